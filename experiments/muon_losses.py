"""Muon on a small language model: by coefficients, by the format of iterates, and by strategy.

Each option trains at its own best rate, chosen by `experiments.tuning` on two other seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments import paired, tuning
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
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


#: What iterates are kept in, by name.
ITERATES: dict[str, dict[str, Any]] = {
    "bf16": {"iterate": "bfloat16"},
    "two bf16": {"iterate": "bfloat16", "components": 2},
    "fp32": {"iterate": "float32"},
}
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
    option = OPTIONS[name]
    peak = rate * (FASTER if option.coefficients else 1.0)
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
        "peak": peak,
    }


def _losses(jobs: list[Any]) -> list[float | None]:
    return [run["loss"] for run in resumed(RESULT, train, jobs)]


def study() -> None:
    """Choose the rates, train, and write what came of it; some 15 minutes on two cores."""
    tuned = tuning.tune(list(OPTIONS), _losses)
    best = {name: tuning.best_rate(tuned[name]) for name in OPTIONS}
    jobs = [(name, best[name], seed) for name in OPTIONS for seed in SEEDS]
    runs: dict[str, dict[str, Any]] = {}
    for (name, _, _), found in zip(jobs, resumed(RESULT, train, jobs), strict=True):
        row = runs.setdefault(name, {"rate": found["peak"], "bytes": found["bytes"], "loss": [], "lost": []})
        row["loss"].append(found["loss"])
        row["lost"].append(found["lost"])
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
                name: {f"{rate:g}": losses for rate, losses in found.items()} for name, found in tuned.items()
            },
            "runs": runs,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def difference(name: str) -> np.ndarray[Any, Any]:
    """Return the losses of an option less those of the reference, seed by seed, each at its own best rate."""
    runs = read_result(RESULT)["runs"]
    losses, reference = (np.array(runs[x]["loss"], float) for x in (name, REFERENCE))
    return losses - reference


def table() -> str:
    """Return what each option takes, loses and ends at."""
    runs, rows = read_result(RESULT)["runs"], []
    for name, option in OPTIONS.items():
        row, gap = runs[name], difference(name)
        rows.append(
            {
                "optimizer": "Muon" if option.coefficients else "AdamW",
                "coefficients": option.coefficients or "",
                "iterates": option.iterates,
                "strategy": f"`{option.strategy}`",
                "bytes": f"{row['bytes']:.4g}",
                "best rate": f"{row['rate']:g}",
                "updates lost": f"{np.mean(row['lost']):.3f}",
                "validation loss": f"{np.mean(row['loss']):.3f}",
                "minus the first row's (95 % interval)": "" if name == REFERENCE else paired.shown(gap, 3),
                "apart": paired.answer(gap),
            }
        )
    return markdown_table(rows)


def draw() -> None:
    """Draw what each option loses beside the reference."""
    runs = read_result(RESULT)["runs"]
    shown = [name for name in OPTIONS if name != REFERENCE]
    with subplots(1, 1, width=7.6, height=4.0) as (figure, ((axes,),)):
        for place, name in enumerate(reversed(shown)):
            gap = difference(name)
            low, high = paired.interval(gap)
            colour = COLOURS["vermilion" if paired.apart(gap) else "grey"]
            axes.plot([low, high], [place, place], color=colour, linewidth=2.4)
            axes.plot(gap, [place] * gap.size, "o", color=colour, markersize=2.5, alpha=0.5)
            axes.plot(gap.mean(), place, "D", color=colour, markersize=5)
        axes.axvline(0, color=COLOURS["black"], linewidth=1)
        axes.set_yticks(range(len(shown)), [f"{x}, {runs[x]['bytes']:.3g} bytes" for x in reversed(shown)])
        axes.set_xlabel(
            "validation loss (nats a byte) minus that of Muon with bf16 iterates and fp32 master weights,\n"
            f"each at its own best rate: mean, 95 % interval, {len(SEEDS)} seeds"
        )
        message(figure, title())
        save(figure, FIGURES / RESULT)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    apart = [name for name in OPTIONS if name != REFERENCE and paired.apart(difference(name))]
    return f"Told apart from Muon with bf16 iterates: {', '.join(apart) or 'none'}"


if __name__ == "__main__":
    study()
    draw()
