"""The bias of gradients quantised to nearest and at random.

Only the gradients that enter the two products of the backward pass are quantised, so that an error of the
model's gradient is theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import gemm_losses, paired
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.gemm_underflow import RATE, trained
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe
from mcfsim.recipes.recipe import Signs
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.scaled import SCALED, ScaledFormat
from mcfsim.training.problems import LanguageModel

RESULT = "gemm_bias"
#: Seeds of the trainings, and draws for the bias of each.
SEEDS, DRAWS = tuple(range(4)), 16
_NVFP4: ScaledFormat = RECIPES["nvfp4"].dgrad.left.format  # type: ignore[assignment]  # it is scaled
_MXFP8: ScaledFormat = RECIPES["mxfp8"].dgrad.left.format  # type: ignore[assignment]
#: The format of gradients to nearest and at random, and the order of the Hadamard transform, if any.
FORMATS: dict[str, tuple[ScaledFormat, ScaledFormat, int]] = {
    "MXFP8": (_MXFP8, _MXFP8, 0),
    "NVFP4": (_NVFP4, _NVFP4, 0),
    "NVFP4, rotated; at random by MS-EDEN": (_NVFP4, RECIPES["quartet2"].dgrad.left.format, 128),  # type: ignore[dict-item]
    "MXFP4, scales rounded down": (SCALED["mxfp4"], SCALED["mxfp4"], 0),
}
#: Steps of a training in float32, after which biases are measured.
STEPS = 64


def backward_only(fmt: ScaledFormat | None, rounding: str, order: int = 0) -> Recipe:
    """Return the recipe that quantises gradients as they enter the backward pass, and nothing else."""
    plain = ProductRecipe(output=None)
    signs = Signs.RANDOM if order else Signs.NONE
    back = ProductRecipe(OperandRecipe(fmt, rounding), hadamard=order, signs=signs, output=None)
    return Recipe("backward", forward=plain, dgrad=back, wgrad=back)


class OneBatch(LanguageModel):
    """A model whose every step has one batch, so that steps differ in random words alone."""

    batch_of = (STEPS + 1, 0)

    def training_batch(self, step: int, seed: int) -> Any:
        """Return the batch."""
        return super().training_batch(*self.batch_of)


def gradient(recipe: Recipe | None, weights: Any, place: tuple[int, int], draw: int = 0) -> Any:
    """Return the gradient of the layers' matrices for the batch at a place, as one vector."""
    model = OneBatch(gemm_losses.corpus(), calculation=recipe, **gemm_losses.SHAPE)
    model.batch_of = place
    _, found = model.loss_and_gradient(weights, draw, place[1])
    return np.concatenate(
        [x.ravel() for name, x in found.items() if name.startswith("layer") and x.ndim == 2]
    ).astype(np.float64)


def bias(name: str, seed: int) -> dict[str, float]:
    """Return errors of the gradient of one training, relative to its norm.

    ``nearest``, ``stochastic``: the norm of the error, for the latter of one draw. ``bias``: that of the mean
    error of random rounding, from products of different draws, without the part that draws add; its square
    may come out negative. ``*_slope``: the component of the mean error along the gradient.
    """
    _, weights = trained(seed)
    place, (near, drawn, order) = (STEPS + 1, seed), FORMATS[name]
    right = gradient(None, weights, place)
    size = float(right @ right)
    nearest = gradient(backward_only(near, "nearest_even", order), weights, place) - right
    # MS-EDEN rounds scales at random, and elements to nearest.
    at_random = backward_only(drawn, "nearest_even" if order else "stochastic", order)
    errors = [gradient(at_random, weights, place, draw) - right for draw in range(1, DRAWS + 1)]
    return {
        "nearest": math.sqrt(nearest @ nearest / size),
        "nearest_slope": float(nearest @ right) / size,
        **of_draws(errors, right),
    }


def of_draws(errors: Sequence[Any], right: Any) -> dict[str, float]:
    """Return the mean length of errors, the square of their bias, and their part along what is right."""
    count, size = len(errors), float(right @ right)
    total, own = sum(errors), sum(float(x @ x) for x in errors)
    slopes = [float(x @ right) / size for x in errors]
    return {
        "stochastic": math.sqrt(own / count / size),
        "bias_squared": float(total @ total - own) / (count * (count - 1)) / size,
        "stochastic_slope": float(np.mean(slopes)),
        "stochastic_slope_error": float(np.std(slopes, ddof=1) / math.sqrt(count)),
    }


def study() -> None:
    """Compute, and write the results; some two minutes of a processor."""
    jobs = [(name, seed) for name in FORMATS for seed in SEEDS]
    biases: dict[str, list[Any]] = {}
    for (name, _), found in zip(jobs, resumed(RESULT, bias, jobs), strict=True):
        biases.setdefault(name, []).append(found)
    write_result(
        RESULT,
        {
            "settings": {
                "problem": gemm_losses.problem(gemm_losses.REFERENCE).settings(),
                "steps": STEPS,
                "rate": RATE,
                "draws": DRAWS,
                "seeds": SEEDS,
            },
            "bias": {
                name: {key: [row[key] for row in rows] for key in rows[0]} for name, rows in biases.items()
            },
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def slope(name: str, rounding: str) -> np.ndarray[Any, Any]:
    """Return how much too long gradients are along themselves, one number per training."""
    return np.array(read_result(RESULT)["bias"][name][f"{rounding}_slope"])


def bias_table() -> str:
    """Return errors and biases by format."""
    found, rows = read_result(RESULT)["bias"], []
    for name, row in found.items():
        square = paired.interval(row["bias_squared"])
        rows.append(
            {
                "gradients in": name,
                "error, to nearest": f"{np.mean(row['nearest']):.2%}",
                "error, at random": f"{np.mean(row['stochastic']):.2%}",
                "along the gradient, to nearest (95 % interval)": paired.percent(row["nearest_slope"], 2),
                "the same at random": paired.percent(row["stochastic_slope"], 2),
                "its standard error by draws": f"{np.mean(row['stochastic_slope_error']):.2%}",
                "square of the bias at random": f"{square[0]:.1e} to {square[1]:.1e}",
            }
        )
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    biased = [name for name in FORMATS if paired.apart(slope(name, "stochastic"))]
    short = " and ".join(name.split(",")[0] for name in biased)
    return f"Gradients rounded at random are too short in {short}"


def draw() -> None:
    """Draw biases by format."""
    with subplots(1, 1, width=7, height=3.6) as (figure, ((axes,),)):
        for place, name in enumerate(reversed(FORMATS)):
            for shift, rounding, colour in ((0.13, "nearest", "vermilion"), (-0.13, "stochastic", "blue")):
                numbers = 100 * slope(name, rounding)
                low, high = paired.interval(numbers)
                axes.plot([low, high], [place + shift] * 2, color=COLOURS[colour], linewidth=2.2)
                axes.plot(
                    numbers.mean(),
                    place + shift,
                    "D",
                    color=COLOURS[colour],
                    markersize=5,
                    label=None if place else {"nearest": "to nearest"}.get(rounding, "at random"),
                )
        axes.axvline(0, color=COLOURS["black"], linewidth=1)
        axes.set_yticks(
            range(len(FORMATS)),
            [name.replace("; ", ";\n").replace(", scales", ",\nscales") for name in reversed(FORMATS)],
        )
        axes.set_xlabel("bias along the gradient, %\n(95 % interval of four trainings)")
        axes.legend(fontsize=8.5, loc="upper left")
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
    draw()
