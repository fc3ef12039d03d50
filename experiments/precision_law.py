"""The scaling law for precision on the language model: fitted, and asked for a precision that was held out.

Weights are floats of three exponent bits, of P bits in all, rounded after each step from a master copy in
binary32; moments and gradients are in binary32. The number of tokens is the same in all trainings.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.cells import Cell, Model, sweep_options, train
from experiments.common import FIGURES, read_result, write_result
from experiments.scaling_law import PUBLISHED, PUBLISHED_FLOAT_WEIGHTS, Effective, Fit, fit, share_band
from mcfsim.optim.strategies import FLOAT32, Addition, Stored
from mcfsim.report.plotting import COLOURS, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.installed import versions

RESULT = "precision_law"
SIZES = tuple(Model(layers=2, width=width, heads=4, context=64) for width in (16, 24, 32, 48))
#: Bits of the weights; None for binary32, which is as many as it takes.
BITS = (4, 5, 6, 7, 8, 10, None)
HELD_OUT = 6
#: Where binary32 is drawn on an axis of bits, behind a break.
WIDE = 11.5
SEEDS, STEPS, PEAK, BETA2 = 3, 120, 3e-3, 0.95
#: How each constant is called.
SYMBOLS = {"a": "A", "alpha": "alpha", "floor": "E + B D^-alpha", "gamma": "gamma (bits)", "offset": "n"}


def weights_of(bits: int | None) -> mcf.Strategy:
    """Return what keeps weights in so many bits: from 2^-6, below which they lose bits, up to below 2."""
    fmt = FLOAT32 if bits is None else mcf.Format(precision=bits - 3, emin=-6, emax=0, specials="none")
    wide = Stored(FLOAT32)
    name = "float32 weights" if bits is None else f"weights of {bits} bits"
    return mcf.Strategy(name, Stored(fmt), wide, wide, wide, extra=wide, addition=Addition.MASTER)


def measure(given: Any) -> None:
    """Train all, and write what came of it."""
    places = [(model, bits) for model in SIZES for bits in BITS]
    cells = [
        Cell(weights_of(bits), FLOAT32, model, PEAK, BETA2, STEPS, overflow="saturate")
        for model, bits in places
    ]
    found = train(cells, SEEDS, given)
    write_result(
        RESULT,
        {
            "settings": {"seeds": SEEDS, "steps": STEPS, "peak": PEAK, "beta2": BETA2}
            | {"problem": SIZES[-1].problem().settings()},
            "versions": versions(),
            "cells": [
                {"width": model.width, "size": model.size, "bits": bits, "loss": result["loss"]}
                for (model, bits), result in zip(places, found, strict=True)
            ],
        },
    )


def columns(held_out: int | None = None) -> tuple[list[float], list[float], list[float]]:
    """Return sizes, bits and losses of all trainings but those of one precision."""
    rows = [
        (cell["size"], math.inf if cell["bits"] is None else cell["bits"], loss)
        for cell in read_result(RESULT)["cells"]
        if held_out is None or cell["bits"] != held_out
        for loss in cell["loss"]
    ]
    sizes, bits, losses = (list(column) for column in zip(*rows, strict=True))
    return sizes, bits, losses


def fitted() -> str:
    """Return the constants with their intervals, and what is forecast of the precision that was held out."""
    found, published = fit(*columns()), {"gamma": PUBLISHED_FLOAT_WEIGHTS.gamma}
    published |= {"offset": PUBLISHED_FLOAT_WEIGHTS.offset, "alpha": PUBLISHED.alpha}
    rows = [
        {
            "constant": SYMBOLS[name],
            "fitted": f"{item.value:.3f}",
            f"{100 * found.confidence:.0f} % profile interval": f"{item.low:.3f} to {item.high:.3f}",
            "published, for its own setup": f"{published[name]:.4f}" if name in published else "",
        }
        for name, item in found.constants.items()
    ]
    return f"{markdown_table(rows)}\n\nRoot mean square of what is left: {found.residual:.4f} nats."


def held_out() -> str:
    """Return what a fit without one precision says of it, size by size."""
    found, cells = fit(*columns(HELD_OUT)), read_result(RESULT)["cells"]
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
    found, cells = _of_digits(fit(*columns())), read_result(RESULT)["cells"]
    percent = f"{100 * found.confidence:.0f} %"
    numbers = [bits for bits in BITS if bits]
    shown = np.linspace(numbers[0], numbers[-1], 61)
    low, high = share_band(*columns(), shown.tolist(), found.confidence).round(4)
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
        left.text(5.3, left.get_ylim()[1], "open: left out of the second fit", fontsize=8, va="top")
        left.legend(fontsize=8)
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
        figure.suptitle(
            f"Weights of {numbers[0]} bits act like {100 * best:.0f} % of the parameters by the best fit, "
            f"{100 * low[0]:.0f} to {100 * high[0]:.0f} % by its {percent} region",
            fontsize=11.5, fontweight="bold", x=0.01, ha="left",
        )  # fmt: skip
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
    main([])


def main(arguments: list[str] | None = None) -> None:
    """Measure, unless it shall be quick, and draw."""
    given = sweep_options(__doc__, RESULT).parse_args(arguments)
    if not given.quick:
        measure(given)
    draw()


if __name__ == "__main__":
    main()
