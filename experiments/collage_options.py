"""Train a byte-level language model in bf16 under every option of Collage, against fp32 master weights.

Every strategy starts from the same weights and sees the same batches, so differences of losses are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import best_rates
from experiments.best_rates import BETAS, STRATEGIES
from experiments.common import FIGURES, in_processes, read_result, write_result
from experiments.drawing import draw_seeds
from mcfsim.optim.strategies import LOW, Addition, Stored
from mcfsim.report.plotting import STRATEGY_STYLES, message, save, subplots

RESULT = "collage_options"
SEEDS = (0, 1, 2)
#: What is drawn beside the loss.
DRAWN = {
    "lost": "share of weights that ignore\ntheir update",
    "normalized_edq": "effective share of the\nupdate (EDQ / ||D||)",
}
REFERENCE = "fp32-master"
#: Collage-plus with a first moment of two components as well, which shows what the rounding of m costs.
PLUS_TWO_M = mcf.Strategy(
    "collage-plus, m in 2",
    parameter=Stored(LOW, components=2),
    m=Stored(LOW, components=2),
    v=Stored(LOW, components=2),
    beta2_components=2,
    addition=Addition.GROW,
)
#: Recorded steps that count as late.
LATE = 0.2


def train(strategy: Any, beta2: float, seed: int, scalars: str) -> mcf.Run:
    """Train one seed under a strategy at the best rate of its kind."""
    kind = strategy if isinstance(strategy, str) else "collage-plus"
    return mcf.simulate(
        "language-model",
        strategies=strategy,
        seed=seed,
        scalars=scalars,
        record_every=25,
        truth_sample=1000 if scalars == "exact" else 0,
        progress=False,
        **best_rates.settings(beta2, best_rates.best(kind, beta2)),
    )


def joined(runs: Sequence[mcf.Run]) -> mcf.Run:
    """Return runs of one seed, each of other strategies, as one record."""
    first = runs[0]
    series = {name: found for run in runs for name, found in run.series.items()}
    results = {name: found for run in runs for name, found in run.results.items()}
    return mcf.Run(first.settings, first.versions, first.steps, series, results)


def summarize(runs: list[mcf.Run], name: str, references: list[mcf.Run]) -> dict[str, Any]:
    """Return means over the seeds, and the paired differences of the losses, one a seed."""
    losses = np.array([run.results[name]["validation_loss"] for run in runs])
    against = np.array([run.results[REFERENCE]["validation_loss"] for run in references])

    def mean(measure: str) -> float:
        return float(np.mean([np.nanmean(run.series[name][measure]) for run in runs]))

    def late(measure: str) -> float:
        return float(np.mean([run.late(name, measure, LATE) for run in runs]))

    return {
        "bytes_per_parameter": runs[0].results[name].get("bytes_per_parameter", float("nan")),
        "validation_loss": float(losses.mean()),
        "differences": (losses - against).tolist(),
        **{measure: mean(measure) for measure in ("lost", "normalized_edq", "released_imprecision")},
        **{
            f"late_{measure}": late(measure) for measure in ("lost", "normalized_edq", "released_imprecision")
        },
        **{f"late_{measure}": late(measure) for measure in ("m_ratio", "v_ratio", "v_error")},
    }


def series_of(runs: list[mcf.Run]) -> dict[str, Any]:
    """Return what is drawn, by strategy: measures at the recorded steps, a row a seed."""
    found: dict[str, Any] = {"steps": runs[0].steps.tolist()}
    for name in STRATEGIES:
        found[name] = {
            measure: [run.series[name][measure].tolist() for run in runs] for measure in ("loss", *DRAWN)
        }
    return found


def draw() -> None:
    """Draw what each option loses, step by step: one row a beta2."""
    result = read_result(RESULT)
    with subplots(len(BETAS), 1 + len(DRAWN), width=10.5, height=6) as (figure, axes):
        for row, beta2 in zip(axes, BETAS, strict=True):
            series = result["series"][str(beta2)]
            against = np.array(series[REFERENCE]["loss"])
            for name in STRATEGIES:
                style = {"label": name, **STRATEGY_STYLES[name]}
                numbers = [np.array(series[name]["loss"]) - against]
                numbers += [np.array(series[name][measure]) for measure in DRAWN]
                for panel, by_seed in zip(row, numbers, strict=True):
                    draw_seeds(panel, series["steps"], by_seed, style, alpha=0.08)
            row[0].set_ylabel(f"beta2 = {beta2}")
            row[0].set_ylim(-0.06, 0.12)
            row[1].set_ylim(-0.03, 1.03)
            row[2].set_ylim(-0.03, 1.08)
        titles = "training loss of the batch (not validation)\nminus that of fp32 master weights (nats)"
        for panel, title in zip(axes[0], (titles, *DRAWN.values()), strict=True):
            panel.set_title(title)
        for panel in axes[-1]:
            panel.set_xlabel("step")
        handles, labels = axes[0][1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=10)
        message(
            figure,
            "Late in plain bf16 most weights ignore their update; Collage keeps it in 10 or 12 bytes, not 16",
        )
        save(figure, FIGURES / RESULT)


def main() -> None:
    """Run, summarize, draw."""
    trained = (*STRATEGIES, PLUS_TWO_M)
    jobs = [(name, beta2, seed, "exact") for beta2 in BETAS for seed in SEEDS for name in trained]
    jobs += [("collage-plus", BETAS[0], seed, "rounded") for seed in SEEDS]
    done = iter(in_processes(train, jobs))
    runs = {beta2: [joined([next(done) for _ in trained]) for _ in SEEDS] for beta2 in BETAS}
    rounded = list(done)
    first = runs[BETAS[0]][0]
    everything = [series for group in runs.values() for run in group for series in run.series.values()]
    gaps = [np.nanmax(series["binary64_gap"]) for series in everything]
    table = {
        str(beta2): {name: summarize(group, name, group) for name in (*STRATEGIES, PLUS_TWO_M.name)}
        for beta2, group in runs.items()
    }
    settings = {
        name: found for name, found in first.settings.items() if name not in ("strategies", "schedule")
    }
    rates = {f"{beta2:g}": {name: best_rates.best(name, beta2) for name in STRATEGIES} for beta2 in BETAS}
    write_result(
        RESULT,
        {
            "settings": {**settings, "seeds": SEEDS, "beta2": BETAS, "rates": rates},
            "late": LATE,
            "binary64_gap": float(max(gaps)),
            "series": {str(beta2): series_of(group) for beta2, group in runs.items()},
            "table": table,
            "rounded_scalars": summarize(rounded, "collage-plus", runs[BETAS[0]]),
        },
    )
    draw()


if __name__ == "__main__":
    main()
