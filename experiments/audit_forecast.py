"""Forecast which tensors of the language model stop, from its initial weights; then train it and compare.

There are two forecasts: one that knows nothing of the updates, and one from gradients that were recorded
while training with fp32 master weights.
"""

from __future__ import annotations

import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import mcfsim as mcf
from experiments import side_by_side
from experiments.common import FIGURES, read_result, write_result
from mcfsim.models.audit import Audit, audit
from mcfsim.models.forecast import lengths, stop_of
from mcfsim.models.known import RecordedUpdates
from mcfsim.models.plan import NoiseModel, Plan, Updates
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table

STEPS, RECORD_EVERY, SAMPLES = 300, 5, 1024
SCHEDULE = mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
HYPER = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
STRATEGIES = ("plain", "collage-light", "collage-plus", "fp32-master")
#: The strategy whose forecasts are compared tensor by tensor; a tensor below this EDQ counts as stopped.
LOSING, STOPPED = "plain", 0.5
#: What the two forecasts know, and how a table says it.
KNOWN = {"nothing": "nothing", "gradients": "gradients, recorded with fp32 master weights"}
#: Drawn step by step: the tensors that stop first and last, one that never starts, and one in between.
DRAWN = ("gain", "embedding", "layer0.mlp.up", "layer0.attention.out")


def record(folder: Path) -> None:
    """Train with fp32 master weights, and record start, gradients and rates."""
    problem = mcf.get_problem("language-model")
    start = {name: np.asarray(x, np.float32) for name, x in problem.initial_parameters(0).items()}
    chosen = dict.fromkeys(start, mcf.strategy("fp32-master"))
    recorder = mcf.record(start, folder)
    side_by_side.train(problem, HYPER, chosen, start, SCHEDULE, STEPS, 0, recorder.step)


def forecast(folder: Path, updates: Updates) -> Audit:
    """Audit the initial weights."""
    low = mcf.get_format("bfloat16")
    strategies = tuple(mcf.strategy(name, low) for name in STRATEGIES)
    samples = scan(open_weights(folder / "weights.safetensors"), SAMPLES)
    return audit(samples, Plan(HYPER, SCHEDULE, STEPS, strategies, updates, stopped=STOPPED), low)


def measured(run: mcf.Run, strategy: str, measure: str, tensor: str = "") -> float:
    """Return a measure of a run as audits give it: each step weighted by its rate."""
    series = run.series[strategy][f"{measure}/{tensor}" if tensor else measure]
    weight = run.series[strategy]["rate"] * lengths(run.steps)
    return float(np.average(series, weights=weight))


def compare(found: Audit, run: mcf.Run) -> dict[str, Any]:
    """Return the forecasts beside the measurements, and how near they are to each other."""
    rows, names = {}, [item.name for item in found.tensors]
    for item in found.tensors:
        series = run.series[LOSING][f"normalized_edq/{item.name}"]
        rows[item.name] = {
            "lost": [item.found[LOSING].lost, measured(run, LOSING, "lost", item.name)],
            "edq": [item.found[LOSING].edq, measured(run, LOSING, "normalized_edq", item.name)],
            "stops": [item.found[LOSING].stops, stop_of(run.steps, series, STOPPED)],
        }
    pairs = {label: np.array([rows[name][label] for name in names]).T for label in ("lost", "edq")}
    ends = [[STEPS if step is None else step for step in row["stops"]] for row in rows.values()]
    totals = {item.strategy.name: item for item in map(found.total, found.plan.strategies)}
    lost = [(totals[name].lost, measured(run, name, "lost")) for name in STRATEGIES]
    return {
        "tensors": rows,
        "rank_correlation": {label: float(spearmanr(*pair)[0]) for label, pair in pairs.items()},
        "mean_error": {label: float(np.abs(np.subtract(*pair)).mean()) for label, pair in pairs.items()},
        "largest_error": {label: float(np.abs(np.subtract(*pair)).max()) for label, pair in pairs.items()},
        "stop_off": max(abs(a - b) for a, b in ends) / STEPS,
        # No strategy with a larger forecast loss than another has a smaller measured loss.
        "strategies_in_order": all((a[0] - b[0]) * (a[1] - b[1]) >= 0 for a, b in combinations(lost, 2)),
        "strategies": {
            name: {
                "lost": [totals[name].lost, measured(run, name, "lost")],
                "edq": [totals[name].edq, measured(run, name, "normalized_edq")],
            }
            for name in STRATEGIES
        },
    }


def draw(found: Audit, run: mcf.Run) -> None:
    """Draw EDQ of some tensors step by step: forecast and measured."""
    colours = [COLOURS[name] for name in ("vermilion", "blue", "green", "purple")]
    with subplots(width=7.5, height=3.6) as (figure, ((panel,),)):
        by_name = {item.name: item for item in found.tensors}
        for name, colour in zip(DRAWN, colours, strict=True):
            series = run.series[LOSING][f"normalized_edq/{name}"]
            panel.plot(run.steps, series, color=colour, linewidth=1.2, alpha=0.75)
            panel.plot(
                found.steps,
                by_name[name].found[LOSING].edq_by_step,
                color=colour,
                linestyle=(0, (4, 2)),
                label=name,
            )
        panel.axhline(STOPPED, color=COLOURS["grey"], linewidth=0.8)
        panel.set(xlabel="step", xlim=(0, STEPS), ylim=(-0.03, 1.25))
        panel.set_title("share of the update that arrives in plain bf16 (EDQ)")
        panel.legend(
            loc=(0.08, 0.06), title="forecast (dashed), trained (solid)", fontsize=8, title_fontsize=8
        )
        message(
            figure,
            "The audit of the initial weights says which tensors stop, and when",
        )
        save(figure, FIGURES / "audit_forecast")


def summary() -> str:
    """Return how near the forecasts come, as a table."""
    result = read_result("audit_forecast")
    rows = []
    for known, label in KNOWN.items():
        found = result[known]
        rows.append(
            {
                "known of the updates": label,
                **{
                    f"{measure}: rank correlation, mean error, largest": ", ".join(
                        f"{found[part][key]:.3f}"
                        for part in ("rank_correlation", "mean_error", "largest_error")
                    )
                    for key, measure in (("lost", "lost"), ("edq", "EDQ"))
                },
                "stop, off by at most": f"{100 * found['stop_off']:.0f} % of the run",
                "strategies in order": "yes" if found["strategies_in_order"] else "no",
            }
        )
    return markdown_table(rows)


def details() -> str:
    """Return forecast and measured numbers of each tensor, as a table."""
    found = read_result("audit_forecast")["gradients"]["tensors"]
    return markdown_table(
        [
            {
                "tensor": f"`{name}`",
                **{
                    f"{label}, {kind}": f"{row[key][place]:.3f}"
                    for key, label in (("lost", "lost"), ("edq", "EDQ"))
                    for place, kind in enumerate(("forecast", "measured"))
                },
                **{
                    f"stops, {kind}": str(row["stops"][place] or "-")
                    for place, kind in enumerate(("forecast", "measured"))
                },
            }
            for name, row in sorted(found.items(), key=lambda item: item[1]["edq"][1])
        ]
    )


def main() -> None:
    """Record, forecast, train, compare, draw."""
    run = mcf.simulate(
        "language-model", HYPER, STRATEGIES, STEPS, SCHEDULE, 0, record_every=RECORD_EVERY, progress=False
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder)
        sources: dict[str, Updates] = {"nothing": NoiseModel(), "gradients": RecordedUpdates(folder)}
        found = {known: forecast(folder, updates) for known, updates in sources.items()}
    write_result(
        "audit_forecast",
        {
            "settings": run.settings,
            "stopped": STOPPED,
            **{known: compare(item, run) for known, item in found.items()},
        },
    )
    draw(found["gradients"], run)


if __name__ == "__main__":
    main()
