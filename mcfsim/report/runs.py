"""What runs lost, as rows of text: by strategy, and by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mcfsim.training.record import Run

#: What the other strategies' losses are compared with.
REFERENCE = "fp32-master"

#: Measures shown late in the run, by heading: the series, and how a number is written.
LATE: Mapping[str, tuple[str, str]] = {
    "lost late": ("lost", ".2%"),
    "EDQ late": ("normalized_edq", ".4f"),
    "v / exact": ("v_ratio", ".4f"),
    "one-step error": ("one_step_error", ".2e"),
    "distance to exact": ("distance", ".2e"),
}
#: By which tensors are put in order.
_QUALITY = "normalized_edq"


def run_table(run: Run) -> list[dict[str, str]]:
    """Return one row of text a strategy: what it stores, where it arrives, what it loses on the way.

    "Late" is the mean over the last fifth of the recorded steps. Measures that no strategy has are left
    out, and losses that there are none of; a measure that a strategy has not is "-", and one that is no
    number "nan". If a strategy diverged, a column says at which step.

    Parameters
    ----------
    run : Run
        A finished simulation or replay.
    """
    losses = {
        name: found["validation_loss"] for name, found in run.results.items() if "validation_loss" in found
    }
    shown = {
        heading: (measure, form)
        for heading, (measure, form) in LATE.items()
        if any(measure in series for series in run.series.values())
    }
    rows = []
    for name in run.series:
        size = run.results[name].get("bytes_per_parameter")
        row = {"strategy": name, "bytes / parameter": "-" if size is None else f"{size:g}"}
        if losses:
            row["validation loss"] = f"{losses[name]:.6g}"
        if REFERENCE in losses:
            row[f"minus {REFERENCE}"] = f"{losses[name] - losses[REFERENCE]:+.3g}"
        row |= {heading: _late(run, name, measure, form) for heading, (measure, form) in shown.items()}
        if any("diverged_at" in results for results in run.results.values()):
            row["diverged at step"] = f"{run.results[name].get('diverged_at', '-')}"
        rows.append(row)
    return rows


def tensor_table(run: Run, most: int) -> list[dict[str, str]]:
    """Return one row of text a tensor and strategy: of each strategy those that lose most, the worst first.

    That is, those whose normalised EDQ late in the run is furthest from 1; where it is no number, as of a
    tensor without gradients, it comes last.

    Parameters
    ----------
    run : Run
        A finished simulation or replay.
    most : int
        Tensors of each strategy.

    Returns
    -------
    list of dict
        Empty if the run has a single tensor, whose measures are those in total.
    """
    rows = []
    for name, series in run.series.items():
        tensors = [key.partition("/")[2] for key in series if key.startswith(f"{_QUALITY}/")]
        off = {tensor: abs(run.late(name, f"{_QUALITY}/{tensor}") - 1) for tensor in tensors}
        worst = sorted(tensors, key=lambda tensor: (math.isnan(off[tensor]), -off[tensor]))
        for tensor in worst[:most]:
            row = {"strategy": name, "tensor": tensor if tensor.isprintable() else ascii(tensor)}
            rows.append(
                row
                | {
                    heading: _late(run, name, f"{measure}/{tensor}", form)
                    for heading, (measure, form) in LATE.items()
                    if any(f"{measure}/{tensor}" in other for other in run.series.values())
                }
            )
    return rows


def _late(run: Run, name: str, measure: str, form: str) -> str:
    if measure not in run.series[name]:
        return "-"
    number = run.late(name, measure)
    return "nan" if math.isnan(number) else format(number, form)
