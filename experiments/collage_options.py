"""Train a byte-level language model in bf16 under every option of Collage, against fp32 master weights.

Every strategy starts from the same weights and sees the same batches, so differences of losses are paired.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, in_processes, write_result
from mcfsim.optim.strategies import LOW, Addition, Stored
from mcfsim.report.plotting import COLOURS, STRATEGY_STYLES, save, subplots

STEPS = 300
SEEDS = (0, 1, 2)
BETAS = (0.999, 0.95)
STRATEGIES = ("plain", "fp32-optim", "kahan", "collage-light", "collage-plus", "fp32-master")
REFERENCE = "fp32-master"
#: Collage-plus with a first moment of two components as well: what the rounding of m is worth.
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


def train(beta2: float, seed: int, scalars: str) -> mcf.Run:
    """Train one seed under all strategies, or Collage-plus alone with hyperparameters rounded first."""
    return mcf.simulate(
        "language-model",
        mcf.AdamW(beta1=0.9, beta2=beta2, epsilon=1e-8, weight_decay=0.1),
        strategies=[*STRATEGIES, PLUS_TWO_M] if scalars == "exact" else ["collage-plus"],
        steps=STEPS,
        schedule=mcf.Schedule(peak=3e-4, warmup=50, final=0.1),
        seed=seed,
        low="bfloat16",
        clip=1.0,
        scalars=scalars,
        record_every=25,
        truth_sample=1000 if scalars == "exact" else 0,
    )


def summarize(runs: list[mcf.Run], name: str, references: list[mcf.Run]) -> dict[str, float]:
    """Return means over the seeds, and the spread (sample standard deviation) of the paired differences."""
    losses = np.array([run.results[name]["validation_loss"] for run in runs])
    against = np.array([run.results[REFERENCE]["validation_loss"] for run in references])

    def mean(measure: str) -> float:
        return float(np.mean([np.nanmean(run.series[name][measure]) for run in runs]))

    def late(measure: str) -> float:
        return float(np.mean([run.late(name, measure, LATE) for run in runs]))

    return {
        "bytes_per_parameter": runs[0].results[name].get("bytes_per_parameter", float("nan")),
        "validation_loss": float(losses.mean()),
        "difference": float((losses - against).mean()),
        "spread": float((losses - against).std(ddof=1)),
        **{measure: mean(measure) for measure in ("lost", "normalized_edq", "released_imprecision")},
        **{
            f"late_{measure}": late(measure) for measure in ("lost", "normalized_edq", "released_imprecision")
        },
        **{f"late_{measure}": late(measure) for measure in ("m_ratio", "v_ratio", "v_error")},
    }


def draw(runs: dict[float, list[mcf.Run]]) -> None:
    """Draw what each option loses, step by step: one row a beta2."""
    panels = (
        (
            "difference",
            "training loss of the batch (not validation)\nminus that of fp32 master weights (nats)",
        ),
        ("lost", "share of weights that ignore\ntheir update"),
        ("normalized_edq", "effective share of the\nupdate (EDQ / ||D||)"),
    )
    with subplots(len(BETAS), len(panels), width=10.5, height=6) as (figure, axes):
        for row, beta2 in zip(axes, BETAS, strict=True):
            steps = runs[beta2][0].steps
            for panel, (measure, title) in zip(row, panels, strict=True):
                for name in STRATEGIES:
                    if name == REFERENCE and measure == "difference":
                        continue
                    by_seed = np.array([_series(run, name, measure) for run in runs[beta2]])
                    panel.plot(steps, by_seed.mean(axis=0), label=name, **STRATEGY_STYLES[name])
                    panel.fill_between(
                        steps, by_seed.min(axis=0), by_seed.max(axis=0),
                        color=STRATEGY_STYLES[name]["color"], alpha=0.15, linewidth=0,
                    )  # fmt: skip
                panel.set_title(title if beta2 == BETAS[0] else "")
                panel.set_xlim(0, STEPS)
            row[0].set_ylabel(f"beta2 = {beta2}")
            # Linear up to a thousandth, so that compensated options can be told from zero beside plain.
            row[0].axhline(0, color=COLOURS["grey"], linewidth=0.8, zorder=0)
            row[0].set_yscale("symlog", linthresh=1e-3)
            row[0].set_yticks([-0.001, 0, 0.001, 0.01, 0.1], ["-0.001", "0", "0.001", "0.01", "0.1"])
            row[0].minorticks_off()
            row[1].set_ylim(-0.03, 1.03)
            row[2].set_ylim(-0.03, 1.08)
        for panel in axes[-1]:
            panel.set_xlabel("step")
        handles, labels = axes[0][1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=10)
        figure.suptitle(
            "Plain bf16 stops learning; Collage keeps the updates, in 10 or 12 bytes a parameter, not 16",
            fontsize=11.5, fontweight="bold", x=0.01, ha="left",
        )  # fmt: skip
        save(figure, FIGURES / "collage_options")


def _series(run: mcf.Run, name: str, measure: str) -> np.ndarray[Any, Any]:
    if measure == "difference":
        return run.series[name]["loss"] - run.series[REFERENCE]["loss"]
    return run.series[name][measure]


def main() -> None:
    """Run, summarize, draw."""
    jobs = [(beta2, seed, "exact") for beta2 in BETAS for seed in SEEDS]
    jobs += [(BETAS[0], seed, "rounded") for seed in SEEDS]
    done = dict(zip(jobs, in_processes(train, jobs), strict=True))
    runs = {beta2: [done[beta2, seed, "exact"] for seed in SEEDS] for beta2 in BETAS}
    rounded = [done[BETAS[0], seed, "rounded"] for seed in SEEDS]
    first = runs[BETAS[0]][0]
    everything = [series for group in runs.values() for run in group for series in run.series.values()]
    gaps = [np.nanmax(series["binary64_gap"]) for series in everything]
    table = {
        str(beta2): {name: summarize(group, name, group) for name in (*STRATEGIES, PLUS_TWO_M.name)}
        for beta2, group in runs.items()
    }
    write_result(
        "collage_options",
        {
            "settings": {**first.settings, "seeds": SEEDS, "beta2": BETAS},
            "versions": first.versions,
            "late": LATE,
            "binary64_gap": float(max(gaps)),
            "table": table,
            "rounded_scalars": summarize(rounded, "collage-plus", runs[BETAS[0]]),
        },
    )
    draw(runs)


if __name__ == "__main__":
    main()
