"""The scaling law for precision on the language model: fitted, and asked for a precision that was held out.

The model sees matrices of floats of three exponent bits, of P bits in all, with a scale for each tensor.
They are rounded anew from a master copy in binary32; moments and gradients are in binary32. The number of
tokens is the same in all trainings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.scaling_law import (
    PUBLISHED,
    PUBLISHED_FLOAT_WEIGHTS,
    Effective,
    Fit,
    Interval,
    fit,
    share_band,
)
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel

RESULT = "precision_law"
SIZES = tuple(Model(layers=2, width=width, heads=4, context=64) for width in (16, 24, 32, 48))
#: Bits of the weights; None for binary32, which is as many as it takes.
BITS = (4, 5, 6, 7, 8, 10, None)
HELD_OUT = 6
#: Position of binary32 on an axis of bits, behind a break.
WIDE = 11.5
SEEDS, STEPS, PEAK, BETA2 = 6, 200, 3e-3, 0.95
#: How each constant is called.
SYMBOLS = {"a": "A", "alpha": "alpha", "floor": "E + B D^-alpha", "gamma": "gamma (bits)", "offset": "n"}


def format_of(bits: int) -> mcf.Format:
    """Return a float of three exponent bits, without infinities and NaN."""
    return mcf.Format(precision=bits - 3, emin=-6, emax=0, specials="none")


class RoundedWeights(LanguageModel):
    """The language model with matrices of few bits, each scaled so that its largest is the format's largest.

    Gradients are those at the rounded matrices, passed unchanged to what is trained (straight through).

    Parameters
    ----------
    model : Model
        The shape.
    bits : int
        As `format_of` takes them.
    """

    def __init__(self, model: Model, bits: int) -> None:
        super().__init__(**asdict(model))
        self.model, self.bits = model, bits

    def settings(self) -> dict[str, Any]:
        """Return what names the shape, the text and the bits."""
        return {**self.model.problem().settings(), "bits": self.bits}

    def rounded(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with all matrices rounded; every operation is one of binary32."""
        fmt, found = format_of(self.bits), dict(parameters)
        for name in self.decayed:
            largest = np.abs(found[name]).max()
            scale = np.float32(fmt.max) / largest if largest else np.float32(1)
            found[name] = (
                mcf.round_to(found[name] * scale, fmt, overflow="saturate").astype(np.float32) / scale
            )
        return found

    def loss_and_gradient(self, parameters: Mapping[str, Any], step: int, seed: int) -> Any:
        """Return the loss at the rounded matrices, and its gradient there."""
        return super().loss_and_gradient(self.rounded(parameters), step, seed)

    def validation_loss(self, parameters: Mapping[str, Any]) -> float:
        """Return the loss at the rounded matrices."""
        return super().validation_loss(self.rounded(parameters))


def train(model: Model, bits: int | None, seed: int) -> float:
    """Return the validation loss of one training in binary32, whose model sees weights of so many bits."""
    run = mcf.simulate(
        model.problem() if bits is None else RoundedWeights(model, bits),
        mcf.AdamW(beta1=0.9, beta2=BETA2, epsilon=1e-8, weight_decay=0.1),
        "fp32",
        STEPS,
        mcf.Schedule(PEAK, warmup=STEPS // 10, final=0.1),
        seed,
        low="float32",
        record_every=STEPS,
        progress=False,
    )
    return run.results["fp32"]["validation_loss"]


def measure() -> None:
    """Train all models, and write the results."""
    places = [(model, bits) for model in SIZES for bits in BITS]
    made = iter(resumed(RESULT, train, [(*place, seed) for place in places for seed in range(SEEDS)]))
    settings = {"seeds": SEEDS, "steps": STEPS, "peak": PEAK, "beta2": BETA2}
    write_result(
        RESULT,
        {
            "settings": {**settings, "problem": SIZES[-1].problem().settings()},
            "cells": [
                {
                    "width": model.width,
                    "size": model.size,
                    "bits": bits,
                    "loss": [next(made) for _ in range(SEEDS)],
                }
                for model, bits in places
            ],
        },
    )


def columns(held_out: int | None = None) -> dict[str, Any]:
    """Return the arguments of `fit` for all trainings except those of one precision."""
    rows = [
        (cell["size"], math.inf if cell["bits"] is None else cell["bits"], loss, seed)
        for cell in read_result(RESULT)["cells"]
        if held_out is None or cell["bits"] != held_out
        for seed, loss in enumerate(cell["loss"])
    ]
    return dict(zip(("sizes", "bits", "losses", "seeds"), map(list, zip(*rows, strict=True)), strict=True))


def fitted() -> str:
    """Return the constants with their intervals.

    If an interval has no end, neither its constant nor those that compensate for it are shown.
    """
    found, published = fit(**columns()), {"gamma": PUBLISHED_FLOAT_WEIGHTS.gamma}
    published |= {"offset": PUBLISHED_FLOAT_WEIGHTS.offset, "alpha": PUBLISHED.alpha}
    told = {
        name
        for together in (("a", "alpha", "floor"), ("gamma",), ("offset",))
        for name in together
        if all(math.isfinite(end) for x in together for end in _ends(found.constants[x]))
    }
    rows = [
        {
            "constant": SYMBOLS[name],
            "fitted": f"{item.value:.3f}" if name in told else "not told",
            f"{100 * found.confidence:.0f} % profile interval": f"{item.low:.3f} to {item.high:.3f}"
            if name in told
            else "without an end",
            "published, for its own setup": f"{published[name]:.4f}" if name in published else "",
        }
        for name, item in found.constants.items()
    ]
    return f"{markdown_table(rows)}\n\nRoot mean square of what is left: {found.residual:.4f} nats."


def _ends(item: Interval) -> tuple[float, float]:
    return item.low, item.high


def held_out() -> str:
    """Return the losses that a fit without one precision predicts for it, size by size."""
    found, cells = fit(**columns(HELD_OUT)), read_result(RESULT)["cells"]
    rows = []
    for cell in cells:
        if cell["bits"] == HELD_OUT:
            forecast, spread = float(found.predict(cell["size"], HELD_OUT)), np.std(cell["loss"], ddof=1)
            rows.append(
                {
                    "width": str(cell["width"]),
                    "N": f"{cell['size']:,}",
                    f"loss at {HELD_OUT} bits, measured": f"{np.mean(cell['loss']):.4f} +- {spread:.4f}",
                    "forecast without them": f"{forecast:.4f}",
                    "off by": f"{forecast - np.mean(cell['loss']):+.4f}",
                }
            )
    return markdown_table(rows)


def optimum() -> str:
    """Return the best precision by the published constants, with their offsets and without."""
    without = replace(
        PUBLISHED, kinds={name: Effective(kind.gamma) for name, kind in PUBLISHED.kinds.items()}
    )
    rows = [
        {
            "constants": label,
            "best bits of weights, activations and KV cache together": f"{law.best_bits():.1f}",
        }
        for label, law in (("as published, with offsets n", PUBLISHED), ("offsets dropped", without))
    ]
    return markdown_table(rows)


def _of_digits(found: Fit, digits: int = 5) -> Fit:
    """Return a fit with constants of a few digits: the last ones differ between processors."""
    constants = {
        name: replace(item, value=float(f"{item.value:.{digits}g}")) for name, item in found.constants.items()
    }
    return replace(found, constants=constants)


def draw() -> None:
    """Draw losses by precision with the fit, and the share of parameters by precision with its band."""
    found, cells = _of_digits(fit(**columns())), read_result(RESULT)["cells"]
    percent = f"{100 * found.confidence:.0f} %"
    numbers = [bits for bits in BITS if bits]
    shown = np.linspace(numbers[0], numbers[-1], 61)
    low, high = share_band(**columns(), at=shown.tolist(), confidence=found.confidence).round(4)
    colours = [COLOURS[name] for name in ("sky", "green", "orange", "vermilion")]
    with subplots(1, 2, width=10, height=4) as (figure, (axes,)):
        left, right = axes
        for place, (model, colour) in enumerate(zip(SIZES, colours, strict=True)):
            for cell in (cell for cell in cells if cell["width"] == model.width):
                at = (cell["bits"] or WIDE) + 0.07 * (place - 1.5)  # side by side, as their ranges overlap
                left.plot([at] * 2, [min(cell["loss"]), max(cell["loss"])], color=colour, linewidth=0.9)
                inside = "white" if cell["bits"] == HELD_OUT else colour
                mean = np.mean(cell["loss"])
                left.plot(at, mean, "o", color=colour, markersize=4.5, markerfacecolor=inside)
            left.plot(
                shown, found.predict(model.size, shown), color=colour, linewidth=1.2,
                label=f"N = {model.size:,}",
            )  # fmt: skip
            end = float(found.predict(model.size, 32))
            left.plot([WIDE - 0.3, WIDE + 0.3], [end] * 2, color=colour, linewidth=1.2)
        left.set_xticks([*numbers, WIDE], [*map(str, numbers), "32"])
        _break(left, (numbers[-1] + WIDE) / 2)
        left.set(xlabel="bits of the weights", title="validation loss (nats): means and ranges of seeds, fit")
        bottom, top = left.get_ylim()
        left.set_ylim(bottom - 0.2 * (top - bottom), top)
        left.text(4, left.get_ylim()[0], "open: left out of the second fit", fontsize=8, va="bottom")
        left.legend(fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 0.05), columnspacing=1)
        right.fill_between(
            shown, low, high, color=COLOURS["black"], alpha=0.12, linewidth=0,
            label=f"{percent} region of gamma and n",
        )  # fmt: skip
        right.plot(shown, found.effective.share(shown), color=COLOURS["black"], label="best fit")
        right.plot(
            shown, PUBLISHED_FLOAT_WEIGHTS.share(shown), color=COLOURS["purple"], linestyle=(0, (4, 2)),
            label="published, its own setup",
        )  # fmt: skip
        right.set(xlabel="bits of the weights", ylim=(0, 1.03), title="effective share of the parameters")
        right.legend(loc="lower right")
        best = float(found.effective.share(numbers[0]))
        message(
            figure,
            f"Weights of {numbers[0]} bits act like {100 * best:.0f} % of the parameters by the best fit, "
            f"{100 * low[0]:.0f} to {100 * high[0]:.0f} % by its {percent} region",
        )
        save(figure, FIGURES / RESULT)


def _break(panel: Any, at: float) -> None:
    """Mark a break of the axis below."""
    ends = [at - 0.08, at + 0.08]
    over: dict[str, Any] = {"transform": panel.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    panel.plot(ends, [0, 0], color="white", linewidth=2, **over)
    slash = [(-1, -2), (1, 2)]
    panel.plot(ends, [0, 0], color="black", linestyle="none", marker=slash, markersize=9, **over)


def study() -> None:
    """Measure, and draw: minutes."""
    measure()
    draw()


if __name__ == "__main__":
    study()
