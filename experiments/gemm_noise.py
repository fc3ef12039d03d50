"""Whether a training fails where the noise of quantised gradients is longer than they are.

The condition is of Chmiel et al., arXiv 2505.19115: training gets less effective where the norm of the
gradient is below sqrt(3) times that of the noise of quantisation. Gradients are rounded at random as they
enter the backward pass, to formats of more and less noise, and each trains at its own best rate.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import gemm_losses, paired, tuning
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.gemm_bias import backward_only, gradient
from mcfsim.recipes import RECIPES
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.scaled import SCALED, ScaledFormat
from mcfsim.training.problems import LanguageModel
from mcfsim.training.schedule import clipped

RESULT = "gemm_noise"
#: Formats from little to much noise.
NOISY: dict[str, ScaledFormat] = {
    "MXFP8": RECIPES["mxfp8"].dgrad.left.format,  # type: ignore[dict-item]  # it is scaled
    "NVFP4": RECIPES["nvfp4"].dgrad.left.format,  # type: ignore[dict-item]
    **{f"int{bits}": SCALED[f"int{bits}"] for bits in (6, 4, 3, 2)},
}
#: Steps, steps between measurements of norms, and seeds of the trainings.
STEPS, EVERY, SEEDS = 128, 16, tuple(range(12))
LIMIT = math.sqrt(3)


def train(name: str, rate: float, seed: int) -> dict[str, Any]:
    """Return a training's loss, and the norm of gradients over that of their noise along the way."""
    fmt = NOISY.get(name)
    recipe = None if fmt is None else backward_only(fmt, "stochastic")
    model = LanguageModel(gemm_losses.corpus(), calculation=recipe, **gemm_losses.SHAPE)
    schedule = mcf.Schedule(rate, warmup=STEPS // 8, final=0.1)
    hyper = mcf.AdamW(beta1=0.9, beta2=gemm_losses.BETA2, weight_decay=0.1)
    start, ratios = model.initial_parameters(seed), []
    optimizer = mcf.Optimizer(hyper, mcf.strategy("fp32"), start, model.decayed, steps=STEPS)
    for step in range(1, STEPS + 1):
        weights = dict(optimizer.weights())
        _, found = model.loss_and_gradient(weights, step, seed)
        if fmt is not None and step % EVERY == 0:
            right = gradient(None, weights, (step, seed))
            noise = gradient(recipe, weights, (step, seed), STEPS + step) - right
            ratios.append(float(np.linalg.norm(right) / np.linalg.norm(noise)))
        optimizer.step(optimizer.receive(clipped(found, 1.0)[0]), schedule.rate(step, STEPS))
    plain = LanguageModel(gemm_losses.corpus(), **gemm_losses.SHAPE)
    loss = plain.validation_loss(dict(optimizer.weights()))
    return {"loss": loss if math.isfinite(loss) else None, "ratios": ratios}


def study() -> None:
    """Choose rates, train, and write the results; some ten minutes of a processor."""
    names = (gemm_losses.REFERENCE, *NOISY)
    tuned = tuning.tune(names, partial(tuning.losses, RESULT, train))
    rates = {name: tuning.best_rate(tuned[name]) for name in names}
    jobs = [(name, rates[name], seed) for name in names for seed in SEEDS]
    runs: dict[str, dict[str, list[Any]]] = {name: {"loss": [], "ratios": []} for name in names}
    for (name, _, _), found in zip(jobs, resumed(RESULT, train, jobs), strict=True):
        for key, value in found.items():
            runs[name][key].append(value)
    write_result(
        RESULT,
        {
            "settings": {
                "problem": gemm_losses.problem(gemm_losses.REFERENCE).settings(),
                "steps": STEPS,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
                "rates": rates,
            },
            "tuning": tuning.written(tuned),
            "runs": runs,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def gap(name: str) -> np.ndarray[Any, Any]:
    """Return losses less those of exact gradients, seed by seed."""
    runs = read_result(RESULT)["runs"]
    return np.array(runs[name]["loss"], float) - np.array(runs[gemm_losses.REFERENCE]["loss"], float)


def ratio(name: str) -> np.ndarray[Any, Any]:
    """Return the norm of gradients over that of the noise, averaged over a run, one number per seed."""
    return np.array(read_result(RESULT)["runs"][name]["ratios"]).mean(axis=1)


def table() -> str:
    """Return losses by the noise of gradients."""
    rates, rows = read_result(RESULT)["settings"]["rates"], []
    for name in NOISY:
        low, high = paired.interval(ratio(name))
        rows.append(
            {
                "gradients in": name,
                "norm over noise (95 % interval)": f"{ratio(name).mean():.2f} ({low:.2f} to {high:.2f})",
                "below sqrt(3)": "yes" if high < LIMIT else "no" if low > LIMIT else "open",
                "rate": f"{rates[name]:g}",
                "loss minus that of exact gradients": paired.shown(gap(name)),
                "apart": paired.answer(gap(name)),
            }
        )
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    lost = [name for name in NOISY if paired.apart(gap(name)) and gap(name).mean() > 0]
    if lost:
        *most, last = lost
        names = f"{', '.join(most)} and {last}" if most else last
        return f"Gradients whose noise is as long as that of {names} cost loss"
    longest = 1 / min(ratio(name).mean() for name in NOISY)
    return f"No loss is told apart, even where noise is {longest:.1f} times as long as the gradient"


def draw() -> None:
    """Draw the loss against the noise."""
    with subplots(1, 1, width=7, height=3.8) as (figure, ((axes,),)):
        for name in NOISY:
            gaps, at = gap(name), ratio(name).mean()
            low, high = paired.interval(gaps)
            colour = COLOURS["vermilion"] if low > 0 else COLOURS["blue"]
            axes.plot([at, at], [low, high], color=colour, linewidth=2.2)
            axes.plot(at, gaps.mean(), "D", color=colour, markersize=5)
            off = {"NVFP4": (7, -13), "int6": (-31, 4)}.get(name, (7, 4))
            axes.annotate(name, (at, gaps.mean()), off, textcoords="offset points", fontsize=8.5)
        axes.axhline(0, color=COLOURS["black"], linewidth=1)
        axes.axvline(LIMIT, color=COLOURS["grey"], linestyle=(0, (4, 2)), linewidth=1)
        axes.annotate(
            "sqrt(3)",
            (LIMIT, 1),
            (3, -10),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8.5,
        )
        axes.set_xscale("log")
        axes.set_xlim(0.4, 100)
        axes.set_xlabel("norm of the gradient / norm of its noise, mean of a run")
        axes.set_ylabel(
            f"loss minus that of exact gradients\n(nats a byte; 95 % interval, {len(SEEDS)} seeds)"
        )
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
    draw()
