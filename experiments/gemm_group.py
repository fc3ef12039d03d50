"""One group of a matrix unit, bit by bit: all terms are cut at the same place, and their sum once more."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES
from mcfsim.products import get_unit
from mcfsim.report.plotting import COLOURS, message, save, subplots

#: By unit: what the panel is called, and factors of the products that are not zero.
PANELS = {
    "hopper_fp16": (
        "Hopper, FP16: 25 bits below the largest exponent",
        [
            (1389 * 2.0**-11, 1701 * 2.0**-14),
            (1655 * 2.0**-15, 1467 * 2.0**-15),
            (1209 * 2.0**-16, 1813 * 2.0**-19),
            (1503 * 2.0**-19, 1901 * 2.0**-21),
        ],
    ),
    "hopper_fp8": (
        "Hopper, FP8: 13 bits below the largest exponent",
        [
            (11 * 2.0**-4, 13 * 2.0**-7),
            (13 * 2.0**-8, 14 * 2.0**-8),
            (9 * 2.0**-9, 14 * 2.0**-9),
            (13 * 2.0**-9, 5 * 2.0**-9),
        ],
    ),
}
ADDEND = 1 + 0x490FDB * 2.0**-23
LAST = -42  # the last place that is drawn


class Row(NamedTuple):
    """A positive number of a panel, the highest and lowest place of its bits, and the last that is kept."""

    label: str
    value: Fraction
    top: int
    last: int
    cut: int


def kept(value: Fraction, place: int) -> Fraction:
    """Return a positive number without the bits below 2**place."""
    quantum = Fraction(2) ** place
    return value // quantum * quantum


def place_of(x: Fraction | float) -> int:
    """Return the place of the highest bit of a positive number."""
    return math.frexp(float(x))[1] - 1


def group(name: str) -> tuple[list[Row], Row, Fraction]:
    """Return the terms of a group, the sum of what is kept of them, and the unit's result."""
    unit, factors = get_unit(name), PANELS[name][1]
    fmt, bits = unit.input, unit.fraction_bits
    assert bits is not None
    exponents = [sum(max(place_of(x), fmt.emin) for x in pair) for pair in factors]
    cut = max(0, *exponents) - bits
    rows = [Row("C", Fraction(ADDEND), 0, -23, cut)]
    for number, ((a, b), exponent) in enumerate(zip(factors, exponents, strict=True), 1):
        last = exponent - 2 * (fmt.precision - 1)
        rows.append(Row(f"product {number}", Fraction(a) * Fraction(b), exponent + 1, last, cut))
    total = sum((kept(row.value, cut) for row in rows), Fraction(0))
    top = place_of(total)
    summed = Row("their sum", total, top, cut, top - unit.output.precision + 1)
    a, b = (np.array(x) for x in zip(*factors, strict=True))
    made = mcf.dot(a, b, unit=name, c=ADDEND)
    return rows, summed, Fraction(float(made))


def draw_row(panel: Any, y: float, row: Row) -> None:
    """Draw the bits of a number as squares: ones dark, zeros light, and what is cut in another colour."""
    for place in range(row.top, max(row.last, LAST) - 1, -1):
        one = int(row.value / Fraction(2) ** place) & 1
        if place == row.top and not one:
            continue
        colour = COLOURS["blue" if place >= row.cut else "vermilion"]
        panel.bar(-place, 0.72, 0.86, bottom=y - 0.36, color=colour, alpha=1.0 if one else 0.25, linewidth=0)


def main() -> None:
    """Draw."""
    with subplots(len(PANELS), width=9.5, height=5.4) as (figure, axes):
        for panel, (name, (title, _)) in zip(axes[:, 0], PANELS.items(), strict=True):
            rows, total, made = group(name)
            shown = [*rows, total]
            for y, row in enumerate(shown):
                draw_row(panel, y + (y == len(rows)) * 0.3, row)
            exact = sum((row.value for row in rows), Fraction(0))
            ulp = Fraction(2) ** (total.top - 23)
            panel.axvline(-rows[0].cut + 0.5, color="black", linewidth=1.2)
            panel.axhline(len(rows) - 0.35, color="black", linewidth=0.8)
            panel.text(
                -LAST + 0.5,
                len(rows) + 0.3,
                f"result: {float((exact - made) / ulp):,.0f} float32 ulp too small",
                ha="right",
                va="center",
            )
            panel.set_title(title)
            panel.set_ylim(len(rows) + 0.9, -0.7)
            panel.set_xlim(-1.6, -LAST + 0.6)
            panel.set_yticks([*range(len(rows)), len(rows) + 0.3], [row.label for row in shown])
            panel.tick_params(axis="y", length=0)
            panel.grid(visible=False)
            ticks = range(0, -LAST + 1, 10)
            panel.set_xticks(ticks, [f"$2^{{{-x}}}$" if x else "1" for x in ticks])
        message(
            figure,
            "A tensor core cuts all terms of a group at one place, adds, and cuts again: red bits are lost",
        )
        save(figure, FIGURES / "gemm_group")


if __name__ == "__main__":
    main()
