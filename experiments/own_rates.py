"""Each option at its own best learning rate, beside fp32 master weights on the same seeds and batches.

The rates are chosen by `experiments.tuning`. Then each option trains eight other seeds at its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired, tuning
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.drawing import draw_row
from mcfsim.report.plotting import COLOURS, STRATEGY_STYLES, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "own_rates"
MODEL, STEPS, WARMUP, BETA2 = Model(layers=2, width=112), 1000, 100, 0.999
OPTIONS = (
    *("plain", "fp32-optim", "eco", "stochastic-parameter", "stochastic"),
    *("kahan", "collage-light", "collage-plus", "remainder-8"),
    *("fp8-moments", "int8-moments", "split-master", "fp32-master"),
)
REFERENCE, CONTROL = "fp32-master", "split-master"
SEEDS = tuple(range(8))
RECORD_EVERY, SAMPLE = 50, 1000
#: Drawn with names.
NAMED = ("plain", "eco", "stochastic-parameter", "collage-plus", "fp32-master")
TITLE = "Each at its own best rate: plain bf16 ends .01 above fp32 master weights, Collage is not told apart"
#: What is kept of each run: means over the recorded steps, and over the last fifth of them.
MEASURES = ("lost", "normalized_edq", "one_step_error")


def train(option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train one option at one rate; return its loss, None if it diverged, and its measures."""
    run = mcf.simulate(
        MODEL.problem(),
        mcf.AdamW(beta1=0.9, beta2=BETA2, epsilon=1e-8, weight_decay=0.1),
        option,
        STEPS,
        mcf.Schedule(peak=rate, warmup=WARMUP, final=0.1),
        seed,
        record_every=RECORD_EVERY,
        truth_sample=SAMPLE,
        progress=False,
    )
    series, results = run.series[option], run.results[option]
    found = {"loss": results["validation_loss"]}
    for measure in MEASURES:
        found[measure] = float(np.mean(series[measure]))
        found[f"late_{measure}"] = run.late(option, measure)
    return {
        **{name: number if math.isfinite(number) else None for name, number in found.items()},
        **({"loss": None} if "diverged_at" in results else {}),
        "bytes": results["bytes_per_parameter"],
    }


def study() -> None:
    """Choose the rates, train, and write the results; some 100 minutes on two cores."""
    tuned = tuning.tune(OPTIONS, partial(tuning.losses, RESULT, train))
    best = {option: tuning.best_rate(tuned[option]) for option in OPTIONS}
    jobs = [(option, best[option], seed) for option in OPTIONS for seed in SEEDS]
    made = resumed(RESULT, train, jobs)
    runs: dict[str, dict[str, Any]] = {}
    for (option, rate, _), found in zip(jobs, made, strict=True):
        row = runs.setdefault(option, {"rate": rate, "bytes": found["bytes"]})
        for name, number in found.items():
            if name != "bytes":
                row.setdefault(name, []).append(number)
    write_result(
        RESULT,
        {
            "settings": {
                "problem": MODEL.problem().settings(),
                "parameters": MODEL.parameters,
                "steps": STEPS,
                "warmup": WARMUP,
                "beta2": BETA2,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
                "record_every": RECORD_EVERY,
                "truth_sample": SAMPLE,
            },
            "tuning": tuning.written(tuned),
            "runs": runs,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def difference(option: str) -> np.ndarray[Any, Any]:
    """Return the losses of an option less those of the reference, seed by seed, each at its own best rate."""
    runs = read_result(RESULT)["runs"]
    losses, reference = (np.array(runs[name]["loss"], float) for name in (option, REFERENCE))
    return losses - reference


def table(options: Collection[str] = OPTIONS) -> str:
    """Return bytes, losses and final loss of each option, at its own best rate."""
    runs, rows = read_result(RESULT)["runs"], []
    for option in options:
        row, gap = runs[option], difference(option)
        rows.append(
            {
                "option": f"`{option}`",
                "bytes": f"{row['bytes']:.4g}",
                "best rate": f"{row['rate']:g}",
                "lost arithmetic (late)": _late(row, "lost"),
                "EDQ (late)": _late(row, "normalized_edq"),
                "error of a step": f"{np.mean(row['one_step_error']):.4f}",
                "validation loss": f"{np.mean(row['loss']):.4f}",
                f"minus `{REFERENCE}` (95 % interval)": "" if option == REFERENCE else paired.shown(gap),
                "apart": paired.answer(gap),
            }
        )
    return markdown_table(rows)


def _late(row: dict[str, Any], measure: str) -> str:
    return f"{np.mean(row[measure]):.3f} ({np.mean(row[f'late_{measure}']):.3f})"


def tuning_table() -> str:
    """Return the losses from which each option's rate was chosen."""
    tuned = read_result(RESULT)["tuning"]
    rates = sorted({rate for found in tuned.values() for rate in found}, key=float)
    rows = [
        {
            "option": f"`{option}`",
            **{rate: tuning.shown(tuned[option].get(rate, [])) for rate in rates},
        }
        for option in OPTIONS
    ]
    return markdown_table(rows)


def draw() -> None:
    """Draw loss against rate, and what each option loses at its own best rate."""
    result = read_result(RESULT)
    with subplots(1, 2, width=10, height=4.4) as (figure, (axes,)):
        left, right = axes
        for option in OPTIONS:
            tuned = sorted((float(rate), losses[0]) for rate, losses in result["tuning"][option].items())
            style = {"marker": "o", "markersize": 3.5, **STRATEGY_STYLES[option]}
            if option not in NAMED:
                style = {"color": COLOURS["grey"], "linewidth": 0.7, "zorder": 1}
            left.plot(*zip(*tuned, strict=True), label=option if option in NAMED else None, **style)
        left.plot([], [], color=COLOURS["grey"], linewidth=0.7, label="the others")
        least = min(losses[0] for found in result["tuning"].values() for losses in found.values())
        left.set(xscale="log", ylim=(least - 0.02, least + 0.4), xlabel="peak learning rate")
        left.set_title("validation loss (nats a byte), one seed")
        left.set_xticks(tuning.RATES, [f"{rate:g}" for rate in tuning.RATES])
        left.minorticks_off()
        left.legend(fontsize=8.5)
        shown = [option for option in OPTIONS if option != REFERENCE]
        for place, option in enumerate(reversed(shown)):
            draw_row(right, place, difference(option), STRATEGY_STYLES[option]["color"])
        right.axvline(0, color=COLOURS["black"], linewidth=1)
        names = [f"{option}, {result['runs'][option]['bytes']:.3g} bytes" for option in reversed(shown)]
        right.set_yticks(range(len(shown)), names)
        right.set_title(
            f"loss minus that of {REFERENCE}, each at its best rate:\nmean, 95 % interval, {len(SEEDS)} seeds"
        )
        message(figure, TITLE)
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
