"""Muon on a small language model: by coefficients, by the format of iterates, and by strategy.

Each option trains at its own best rate, chosen by `experiments.tuning` on two other seeds.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments import paired, tuning
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.lost_directions import ITERATES
from mcfsim.optim.declaration import Declaration
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "muon_losses"
MODEL, STEPS, BETA2 = Model(width=32), 100, 0.95
SEEDS = tuple(range(8))
#: Matrices that Muon leaves to AdamW, as is usual: the tied embedding, and the positions.
OTHERS = ("embedding", "positions")
#: The rates of Muon are these times those of `experiments.tuning`, which are AdamW's.
FASTER = 16.0


class Option(NamedTuple):
    """Coefficients, iterates and strategy of Muon; no coefficients are AdamW."""

    coefficients: str | None
    iterates: str
    strategy: str


USUAL = Option("keller-jordan", "bf16", "fp32-master")
OPTIONS: dict[str, Option] = {
    "usual": USUAL,
    "iterates in fp32": USUAL._replace(iterates="fp32"),
    "iterates in two bf16": USUAL._replace(iterates="two bf16"),
    "polar-express": USUAL._replace(coefficients="polar-express"),
    "deepseek-v4": USUAL._replace(coefficients="deepseek-v4"),
    "plain": USUAL._replace(strategy="plain"),
    "kahan": USUAL._replace(strategy="kahan"),
    "kahan+int8": USUAL._replace(strategy="kahan+int8"),
    "collage-plus": USUAL._replace(strategy="collage-plus"),
    "AdamW": Option(None, "", "fp32-master"),
}
REFERENCE = "usual"


def optimizer(option: Option) -> Declaration:
    """Return the optimizer of an option."""
    if option.coefficients is None:
        return mcf.AdamW(beta1=0.9, beta2=BETA2)
    iteration = mcf.NewtonSchulz(option.coefficients, **ITERATES[option.iterates])
    return mcf.Muon(iteration=iteration, beta2=BETA2, others=OTHERS, share=0.2)


def train(name: str, rate: float, seed: int) -> dict[str, Any]:
    """Train one option at one rate; return its loss, None if it diverged, its bytes and what is lost."""
    option, peak = OPTIONS[name], _peak(name, rate)
    run = mcf.simulate(
        MODEL.problem(),
        optimizer(option),
        option.strategy,
        STEPS,
        mcf.Schedule(peak=peak, warmup=STEPS // 10, final=0.1),
        seed,
        record_every=STEPS // 10,
        progress=False,
    )
    results = run.results[option.strategy]
    return {
        "loss": None if "diverged_at" in results else results["validation_loss"],
        "lost": float(np.mean(run.series[option.strategy]["lost"])),
        "bytes": results["bytes_per_parameter"],
    }


def study() -> None:
    """Choose the rates, train, and write the results; some 20 minutes on two cores."""
    tuned = tuning.tune(list(OPTIONS), partial(tuning.losses, RESULT, train))
    best = {name: tuning.best_rate(tuned[name]) for name in OPTIONS}
    jobs = [(name, rate, seed) for name in OPTIONS for rate in _rates(name, best) for seed in SEEDS]
    runs: dict[str, dict[str, Any]] = {}
    for (name, rate, _), found in zip(jobs, resumed(RESULT, train, jobs), strict=True):
        row = runs.setdefault(
            name, {"bytes": found["bytes"], "own": f"{_peak(name, best[name]):g}", "at": {}}
        )
        at = row["at"].setdefault(f"{_peak(name, rate):g}", {"loss": [], "lost": []})
        at["loss"].append(found["loss"])
        at["lost"].append(found["lost"])
    write_result(
        RESULT,
        {
            "settings": {
                "problem": MODEL.problem().settings(),
                "parameters": MODEL.parameters,
                "steps": STEPS,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
            },
            "tuning": {
                name: {f"{_peak(name, rate):g}": losses for rate, losses in found.items()}
                for name, found in tuned.items()
            },
            "runs": runs,
        },
    )


def _peak(name: str, rate: float) -> float:
    """Return the peak of an option's schedule."""
    return rate * (FASTER if OPTIONS[name].coefficients else 1.0)


def _rates(name: str, best: dict[str, float]) -> list[float]:
    """Return the rates of an option: for Muon, all that are best for one, so that all compare at the same."""
    if OPTIONS[name].coefficients is None:
        return [best[name]]
    return sorted({rate for other, rate in best.items() if OPTIONS[other].coefficients})


# -- what came of it ----------------------------------------------------------------------------------------
def losses(name: str, rate: str) -> np.ndarray[Any, Any]:
    """Return the losses of an option at a peak rate, one a seed."""
    return np.array(read_result(RESULT)["runs"][name]["at"][rate]["loss"], float)


def rates() -> list[str]:
    """Return the rates at which all options of Muon trained."""
    return sorted(read_result(RESULT)["runs"][REFERENCE]["at"], key=float)


def table() -> str:
    """Return bytes, losses and final loss of each option, beside the first one at the same rate."""
    runs, rows = read_result(RESULT)["runs"], []
    for name, option in OPTIONS.items():
        row = runs[name]
        own = row["at"][row["own"]]
        shown = {
            "optimizer": "Muon" if option.coefficients else "AdamW",
            "coefficients": option.coefficients or "",
            "iterates": option.iterates,
            "strategy": f"`{option.strategy}`",
            "bytes": f"{row['bytes']:.4g}",
            "own rate": row["own"],
            "updates lost": f"{np.mean(own['lost']):.3f}",
            "validation loss": f"{np.mean(own['loss']):.3f}",
        }
        for rate in rates():
            there = name != REFERENCE and rate in row["at"]
            shown[f"minus the first's at {rate}"] = (
                paired.shown(losses(name, rate) - losses(REFERENCE, rate), 3) if there else ""
            )
        rows.append(shown)
    return markdown_table(rows)


def draw() -> None:
    """Draw what each option of Muon loses against the reference, at each rate."""
    shown = [name for name in OPTIONS if name != REFERENCE and OPTIONS[name].coefficients]
    with subplots(1, len(rates()), width=9.5, height=3.6) as (figure, (panels,)):
        for axes, rate in zip(panels, rates(), strict=True):
            for place, name in enumerate(reversed(shown)):
                gap = losses(name, rate) - losses(REFERENCE, rate)
                low, high = paired.interval(gap)
                colour = COLOURS["vermilion" if paired.apart(gap) else "grey"]
                axes.plot([low, high], [place, place], color=colour, linewidth=2.4)
                axes.plot(gap.mean(), place, "D", color=colour, markersize=5)
            axes.axvline(0, color=COLOURS["black"], linewidth=1)
            axes.set_yticks(range(len(shown)), list(reversed(shown)) if axes is panels[0] else [])
            axes.set_xlim(-0.045, 0.045)
            axes.set_xlabel(f"loss minus that with bf16 iterates and fp32 masters,\nat a peak rate of {rate}")
        message(figure, title())
        save(figure, FIGURES / RESULT)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    names = [name for name in OPTIONS if name != REFERENCE and OPTIONS[name].coefficients]
    gaps = [losses(name, rate) - losses(REFERENCE, rate) for name in names for rate in rates()]
    held = sum(not paired.apart(gap) for gap in gaps)
    return (
        f"Muon's iterates, coefficients and strategies at one rate: {held} of {len(gaps)} intervals hold zero"
    )


if __name__ == "__main__":
    study()
    draw()
