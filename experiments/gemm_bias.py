"""The bias of gradients quantised to nearest and at random, and whether training fails where noise is longer.

Only the gradients that enter the two products of the backward pass are quantised, so that an error of the
model's gradient is theirs. The condition is of Chmiel et al., arXiv 2505.19115: training gets less effective
where the norm of the gradient is below sqrt(3) times that of the noise of quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import gemm_losses, paired
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.gemm_underflow import RATE, trained
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe
from mcfsim.recipes.recipe import Signs
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.scaled import SCALED, ScaledFormat
from mcfsim.training.problems import LanguageModel
from mcfsim.training.schedule import clipped

RESULT = "gemm_bias"
#: Trainings, and of the bias draws of each.
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
#: Of the condition: formats from little to much noise, steps, and when norms are measured.
NOISY: dict[str, ScaledFormat] = {
    "MXFP8": _MXFP8,
    "NVFP4": _NVFP4,
    **{f"int{bits}": SCALED[f"int{bits}"] for bits in (6, 4, 3, 2)},
}
STEPS, EVERY = 64, 8
LIMIT = math.sqrt(3)


def backward_only(fmt: ScaledFormat | None, rounding: str, order: int = 0) -> Recipe:
    """Return the recipe that quantises gradients as they enter the backward pass, and nothing else."""
    plain = ProductRecipe(output=None)
    signs = Signs.RANDOM if order else Signs.NONE
    back = ProductRecipe(OperandRecipe(fmt, rounding), hadamard=order, signs=signs, output=None)
    return Recipe("backward", forward=plain, dgrad=back, wgrad=back)


class OneBatch(LanguageModel):
    """A model whose every step has one batch, so that steps differ in random words alone."""

    batch_of = (gemm_losses.STEPS + 1, 0)

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
    place, (near, drawn, order) = (gemm_losses.STEPS + 1, seed), FORMATS[name]
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


def train(name: str, seed: int) -> dict[str, Any]:
    """Return a training's loss, and the norm of gradients over that of their noise along the way."""
    fmt = NOISY.get(name)
    recipe = None if fmt is None else backward_only(fmt, "stochastic")
    model = LanguageModel(gemm_losses.corpus(), calculation=recipe, **gemm_losses.SHAPE)
    schedule = mcf.Schedule(RATE, warmup=STEPS // 8, final=0.1)
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
    return {"loss": plain.validation_loss(dict(optimizer.weights())), "ratios": ratios}


def study() -> None:
    """Compute, and write what came of it; some four minutes of a processor."""
    jobs = [(name, seed) for name in FORMATS for seed in SEEDS]
    biases: dict[str, list[Any]] = {}
    for (name, _), found in zip(jobs, resumed(RESULT, bias, jobs), strict=True):
        biases.setdefault(name, []).append(found)
    jobs = [(name, seed) for name in (gemm_losses.REFERENCE, *NOISY) for seed in SEEDS]
    runs: dict[str, dict[str, list[Any]]] = {}
    for (name, _), found in zip(jobs, resumed(RESULT, train, jobs), strict=True):
        row = runs.setdefault(name, {"loss": [], "ratios": []})
        row["loss"].append(found["loss"])
        row["ratios"].append(found["ratios"])
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
            "runs": runs,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def slope(name: str, rounding: str) -> np.ndarray[Any, Any]:
    """Return by how much gradients are too long along themselves, one number a training."""
    return np.array(read_result(RESULT)["bias"][name][f"{rounding}_slope"])


def gap(name: str) -> np.ndarray[Any, Any]:
    """Return losses less those of exact gradients, seed by seed."""
    runs = read_result(RESULT)["runs"]
    return np.array(runs[name]["loss"]) - np.array(runs[gemm_losses.REFERENCE]["loss"])


def ratio(name: str) -> np.ndarray[Any, Any]:
    """Return the norm of gradients over that of the noise, in the mean of a run, one number a seed."""
    return np.array(read_result(RESULT)["runs"][name]["ratios"]).mean(axis=1)


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


def condition_table() -> str:
    """Return losses by the noise of gradients."""
    rows = []
    for name in NOISY:
        low, high = paired.interval(ratio(name))
        rows.append(
            {
                "gradients in": name,
                "norm over noise (95 % interval)": f"{ratio(name).mean():.2f} ({low:.2f} to {high:.2f})",
                "below sqrt(3)": "yes" if high < LIMIT else "no" if low > LIMIT else "open",
                "loss minus that of exact gradients": paired.shown(gap(name)),
                "apart": paired.answer(gap(name)),
            }
        )
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    biased = [name for name in FORMATS if paired.apart(slope(name, "stochastic"))]
    short = " and ".join(name.split(",")[0] for name in biased)
    lost = [name for name in NOISY if paired.apart(gap(name))]
    longest = 1 / min(ratio(name).mean() for name in NOISY)
    none = f"no loss is told apart, even where noise is {longest:.1f} times as long as the gradient"
    said = f"gradients in {' and '.join(lost)} cost loss" if lost else none
    return f"Gradients rounded at random are too short in {short};\n{said}"


def draw() -> None:
    """Draw biases by format, and the loss against the noise."""
    with subplots(1, 2, width=10.5, height=3.9) as (figure, (axes,)):
        left, right = axes
        for place, name in enumerate(reversed(FORMATS)):
            for shift, rounding, colour in ((0.13, "nearest", "vermilion"), (-0.13, "stochastic", "blue")):
                numbers = 100 * slope(name, rounding)
                low, high = paired.interval(numbers)
                left.plot([low, high], [place + shift] * 2, color=COLOURS[colour], linewidth=2.2)
                left.plot(
                    numbers.mean(),
                    place + shift,
                    "D",
                    color=COLOURS[colour],
                    markersize=5,
                    label=None if place else {"nearest": "to nearest"}.get(rounding, "at random"),
                )
        left.axvline(0, color=COLOURS["black"], linewidth=1)
        left.set_yticks(
            range(len(FORMATS)),
            [name.replace("; ", ";\n").replace(", scales", ",\nscales") for name in reversed(FORMATS)],
        )
        left.set_xlabel("bias along the gradient, %\n(95 % interval of four trainings)")
        left.legend(fontsize=8.5, loc="upper left")
        for name in NOISY:
            gaps, at = gap(name), ratio(name).mean()
            low, high = paired.interval(gaps)
            colour = COLOURS["blue"] if at > LIMIT else COLOURS["vermilion"]
            right.plot([at, at], [low, high], color=colour, linewidth=2.2)
            right.plot(at, gaps.mean(), "D", color=colour, markersize=5)
            off = (7, -13) if name == "NVFP4" else (7, 4)
            right.annotate(name, (at, gaps.mean()), off, textcoords="offset points", fontsize=8.5)
        right.axhline(0, color=COLOURS["black"], linewidth=1)
        right.axvline(LIMIT, color=COLOURS["grey"], linestyle=(0, (4, 2)), linewidth=1)
        right.annotate(
            "sqrt(3)",
            (LIMIT, 1),
            (3, -10),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=8.5,
        )
        right.set_xscale("log")
        right.set_xlim(0.5, 100)
        right.set_xlabel("norm of the gradient / norm of its noise, mean of a run")
        right.set_title(f"loss minus that of exact gradients (95 % interval, {len(SEEDS)} seeds)")
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
    draw()
