"""The share of gradients that underflow as operands of products, by layer and recipe.

The gradients are those of float32 after some steps of training, the same for all recipes. An element counts
if it is not zero, after rotation where a recipe rotates, but is zero in the operand that enters the product:
of activations' gradients (dgrad) or of weights' gradients (wgrad).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import gemm_losses, paired
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.side_by_side import make_steps
from mcfsim.random import RandomWords
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe
from mcfsim.recipes.linear_layer import NumPyProducts
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel
from mcfsim.training.problems._transformer import Array, BackPair, TransformerPieces, matmul

RESULT = "gemm_underflow"
STEPS, RATE, SEEDS = 64, 4e-3, tuple(range(4))
KINDS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
PRODUCTS = {"dgrad": "for the activations' gradients", "wgrad": "for the weights' gradients"}
#: Formats into which gradients are rounded as they are, without a scale.
UNSCALED = {"float16, no scale": "float16", "e5m2, no scale": "float8_e5m2"}
NAMES = (*UNSCALED, *gemm_losses.NAMES)


def trained(seed: int, steps: int = STEPS) -> tuple[LanguageModel, dict[str, Array]]:
    """Return the model and its weights after some steps in float32."""
    problem = gemm_losses.problem(gemm_losses.REFERENCE)
    start, schedule = problem.initial_parameters(seed), mcf.Schedule(RATE, warmup=STEPS // 8)
    hyper = mcf.AdamW(beta1=0.9, beta2=gemm_losses.BETA2, weight_decay=0.1)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("fp32"), start, problem.decayed, steps=steps)
    make_steps(problem, optimizer, schedule, steps, seed)
    return problem, {name: x.copy() for name, x in optimizer.weights().items()}


class Watched(LanguageModel):
    """A model that keeps the gradients that come back to its linear layers."""

    gradients: dict[str, Array]

    def _pieces(self, step: int, seed: int) -> TransformerPieces:
        self.gradients = {}

        def watched(x: Array, weight: Array, name: str) -> tuple[Array, BackPair]:
            y, back = matmul(x, weight)

            def backward(dy: Array) -> tuple[Array, Array]:
                self.gradients[name] = dy.copy()
                return back(dy)

            return y, backward

        return TransformerPieces(watched)


def product_of(name: str, kind: str) -> ProductRecipe:
    """Return how a recipe computes a product."""
    if name in UNSCALED:
        return ProductRecipe(OperandRecipe(UNSCALED[name]))
    return RECIPES[name].products[kind]


def shares(seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the shares of one training's gradients that underflow, by product, recipe and layer."""
    _, weights = trained(seed)
    watched = Watched(gemm_losses.corpus(), **gemm_losses.SHAPE)
    watched.loss_and_gradient(weights, STEPS + 1, seed)
    found: dict[str, dict[str, dict[str, float]]] = {kind: {} for kind in PRODUCTS}
    for kind, by_recipe in found.items():
        for name in NAMES:
            by_recipe[name] = {}
            for place, (layer, dy) in enumerate(sorted(watched.gradients.items())):
                if layer.startswith("layer"):
                    words = RandomWords(seed, STEPS, place)
                    given = dy if kind == "dgrad" else dy.T
                    by_recipe[name][layer] = share(given, product_of(name, kind), words)
    return found


def share(dy: Array, product: ProductRecipe, words: RandomWords) -> float:
    """Return the share of nonzero elements that enters a product as zero."""
    makers = NumPyProducts()
    given = np.ascontiguousarray(dy)
    if product.hadamard:
        given = makers.rotate(given, product, words.of(100))
    entered = makers.enter(given, product.left, words).values
    there = given != 0
    return float(np.count_nonzero(there & (entered == 0)) / np.count_nonzero(there))


def study() -> None:
    """Train, count, and write the results; a minute of a processor."""
    found = resumed(RESULT, shares, [(seed,) for seed in SEEDS])
    write_result(
        RESULT,
        {
            "settings": {
                "problem": gemm_losses.problem(gemm_losses.REFERENCE).settings(),
                "steps": STEPS,
                "rate": RATE,
                "seeds": SEEDS,
            },
            "shares": {
                kind: {
                    name: {layer: [row[kind][name][layer] for row in found] for layer in found[0][kind][name]}
                    for name in NAMES
                }
                for kind in PRODUCTS
            },
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def by_layer(kind: str, name: str, matrix: str = "") -> np.ndarray[Any, Any]:
    """Return shares, a row per layer and a column per seed; `matrix` selects a kind of matrices."""
    rows = read_result(RESULT)["shares"][kind][name]
    return np.array([seeds for layer, seeds in rows.items() if layer.endswith(matrix)])


def table() -> str:
    """Return the mean shares by matrix, and the interval of the mean over all layers."""
    rows = []
    for name in NAMES:
        for kind in PRODUCTS:
            low, high = paired.interval(by_layer(kind, name).mean(axis=0))
            rows.append(
                {
                    "recipe": f"`{name}`" if name in RECIPES else name,
                    "product": kind,
                    **{matrix: f"{by_layer(kind, name, matrix).mean():.2%}" for matrix in KINDS},
                    "all (95 % interval)": f"{low:.2%} to {high:.2%}",
                }
            )
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    mean = {name: np.mean([by_layer(kind, name).mean() for kind in PRODUCTS]) for name in NAMES}
    eight = max(mean[name] for name in ("mxfp8", "fp8-tensor", "fp8-blocks"))
    four = [mean[name] for name in ("nvfp4", "fp4-all", "quartet", "quartet2")]
    return (
        f"FP4 recipes make {min(four):.0%} to {max(four):.0%} of the gradients zero,\n"
        f"FP8 recipes at most {eight:.1%}, FP8 without scales {mean['e5m2, no scale']:.0%}"
    )


def draw() -> None:
    """Draw the share of each layer by recipe."""
    colours = dict(zip(KINDS, ("blue", "sky", "vermilion", "orange"), strict=True))
    with subplots(1, 2, width=10, height=4) as (figure, (axes,)):
        for panel, (kind, described) in zip(axes, PRODUCTS.items(), strict=True):
            for place, name in enumerate(reversed(NAMES)):
                for row, matrix in enumerate(KINDS):
                    shown = by_layer(kind, name, matrix).mean(axis=1)
                    panel.plot(
                        shown,
                        np.full(shown.size, place + 0.18 * (1.5 - row)),
                        "o",
                        color=COLOURS[colours[matrix]],
                        markersize=4,
                        label=matrix if not place else None,
                    )
            panel.set_xscale("symlog", linthresh=1e-4)
            panel.set_xlim(-3e-5, 1.2)
            ticks = (0, 1e-4, 1e-3, 1e-2, 1e-1, 1)
            panel.set_xticks(ticks, [f"{x:.3g} %" for x in np.multiply(ticks, 100)])
            panel.minorticks_off()
            panel.set_yticks(range(len(NAMES)), list(reversed(NAMES)) if panel is axes[0] else [])
            panel.set_title(f"as operands {described} ({kind})")
            panel.set_xlabel("gradients that become zero, a dot a layer")
        axes[1].legend(fontsize=8.5, loc="lower left")
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
    draw()
