"""What a training loses by the recipe of its linear layers' products, and which parts of NVFP4's matter.

Each trains at its own best rate, chosen by `experiments.tuning` on other seeds. Weights, optimizer, attention
and head are those of float32 everywhere: what differs is the products of the layers' matrices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired, tuning
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.drawing import draw_row
from mcfsim.recipes import RECIPES, Recipe
from mcfsim.recipes.recipe import OperandRecipe, Signs
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import Corpus, LanguageModel

RESULT = "gemm_losses"
#: Four layers, of which the recipe nvfp4 keeps the last one in high precision.
SHAPE = {"layers": 4, "width": 64, "heads": 4, "context": 32, "batch": 8}
STEPS, BETA2, SEEDS = 192, 0.95, tuple(range(8))
REFERENCE, WHOLE = "float32", "nvfp4"
NAMES = ("bf16", "mxfp8", "fp8-tensor", "fp8-blocks", "nvfp4", "fp4-all", "quartet", "quartet2")
#: NVFP4's recipe without one of its parts, and without all.
PARTS = (
    "without Hadamard transform",
    "without 2-D scales of weights",
    "without stochastic rounding",
    "without high layers",
    "without all four",
)


def parts() -> dict[str, Recipe]:
    """Return the recipe nvfp4 without one of its parts, by what is missing."""
    whole = RECIPES[WHOLE]
    rows = whole.forward.left
    plain = OperandRecipe(rows.format)

    def left_out(recipe: Recipe, place: int) -> Recipe:
        forward, dgrad, wgrad = recipe.forward, recipe.dgrad, recipe.wgrad
        if place == 0:
            return replace(recipe, wgrad=replace(wgrad, hadamard=0, signs=Signs.NONE))
        if place == 1:
            return replace(recipe, forward=replace(forward, right=rows), dgrad=replace(dgrad, right=rows))
        if place == 2:
            return replace(recipe, dgrad=replace(dgrad, left=plain), wgrad=replace(wgrad, left=plain))
        return replace(recipe, first=0, last=0)

    found, last = {name: left_out(whole, place) for place, name in enumerate(PARTS[:4])}, whole
    for place in range(4):
        last = left_out(last, place)
    return {**found, PARTS[4]: last}


def calculation(name: str) -> Recipe | None:
    """Return the recipe of this name; None for the reference."""
    if name == REFERENCE:
        return None
    return RECIPES[name] if name in RECIPES else parts()[name]


@lru_cache(maxsize=1)
def corpus() -> Corpus:
    """Return the text, read once."""
    return Corpus.from_standard_library()


def problem(name: str) -> LanguageModel:
    """Return the model whose linear layers follow a recipe."""
    return LanguageModel(corpus(), calculation=calculation(name), **SHAPE)


def train(name: str, rate: float, seed: int) -> float | None:
    """Return the validation loss of a training at one rate; None if it diverged."""
    run = mcf.simulate(
        problem(name),
        mcf.AdamW(beta1=0.9, beta2=BETA2, weight_decay=0.1),
        "fp32",
        STEPS,
        mcf.Schedule(rate, warmup=STEPS // 8, final=0.1),
        seed,
        record_every=STEPS,
        progress=False,
    )
    results = run.results["fp32"]
    return None if "diverged_at" in results else float(results["validation_loss"])


def study() -> None:
    """Choose rates, train, and write the results; some 50 minutes of a processor."""
    names = (REFERENCE, *NAMES, *PARTS)
    tuned = tuning.tune(names, partial(resumed, RESULT, train))
    rates = {name: tuning.best_rate(tuned[name]) for name in names}
    jobs = [(name, rates[name], seed) for name in names for seed in SEEDS]
    losses: dict[str, list[float | None]] = {}
    for (name, _, _), loss in zip(jobs, resumed(RESULT, train, jobs), strict=True):
        losses.setdefault(name, []).append(loss)
    model = problem(REFERENCE)
    write_result(
        RESULT,
        {
            "settings": {
                "problem": model.settings(),
                "parameters": sum(int(np.prod(shape)) for shape in model.shapes.values()),
                "steps": STEPS,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
                "rates": rates,
            },
            "tuning": tuning.written(tuned),
            "losses": losses,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def difference(name: str, reference: str = REFERENCE) -> np.ndarray[Any, Any]:
    """Return the losses under a recipe less those of another, seed by seed."""
    losses = read_result(RESULT)["losses"]
    return np.array(losses[name], float) - np.array(losses[reference], float)


def table() -> str:
    """Return the final loss of each recipe, beside float32's."""
    result, rows = read_result(RESULT), []
    losses, rates = result["losses"], result["settings"]["rates"]
    for name in (REFERENCE, *NAMES):
        gap = difference(name)
        rows.append(
            {
                "recipe": f"`{name}`" if name in RECIPES else name,
                "rate": f"{rates[name]:g}",
                "validation loss": f"{np.mean(losses[name]):.4f}",
                "minus float32 (95 % interval)": "" if name == REFERENCE else paired.shown(gap),
                "apart": paired.answer(gap),
            }
        )
    return markdown_table(rows)


def parts_table() -> str:
    """Return what NVFP4's recipe loses without each of its parts."""
    rates, rows = read_result(RESULT)["settings"]["rates"], []
    for name in PARTS:
        gap = difference(name, WHOLE)
        rows.append(
            {
                "`nvfp4`": name,
                "rate": f"{rates[name]:g}",
                "minus `nvfp4` (95 % interval)": paired.shown(gap),
                "apart": paired.answer(gap),
            }
        )
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    recipes = [name for name in NAMES if paired.apart(difference(name))]
    told = [name for name in PARTS if paired.apart(difference(name, WHOLE))]
    return (
        f"Losses told apart from float32's: {', '.join(recipes) or 'none'}; "
        f"from nvfp4's, with a part left out: {', '.join(told) or 'none'}"
    )


def draw() -> None:
    """Draw losses by recipe, and those of NVFP4's recipe without each part."""
    with subplots(1, 2, width=11, height=3.8) as (figure, (axes,)):
        panels = (
            (axes[0], NAMES, REFERENCE, "loss minus that of float32"),
            (axes[1], PARTS, WHOLE, "loss minus that of nvfp4"),
        )
        for panel, names, reference, label in panels:
            for place, name in enumerate(reversed(names)):
                gap = difference(name, reference)
                low, high = paired.interval(gap)
                colour = COLOURS["vermilion"] if low > 0 else COLOURS["grey"]
                colour = COLOURS["blue"] if high < 0 else colour
                draw_row(panel, place, gap, colour)
            panel.axvline(0, color=COLOURS["black"], linewidth=1)
            panel.set_yticks(range(len(names)), list(reversed(names)))
            panel.set_xlabel(f"{label} (nats a byte):\nmean, 95 % interval, a dot a seed")
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
    draw()
