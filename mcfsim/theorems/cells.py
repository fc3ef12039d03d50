"""Pairs of exponents that stand for all, where each operand may be multiplied by a power of two of its own.

A cell is all operands of given exponents. Where the algorithm is homogeneous, two cells are as one if every
number in it, operands included, is far from overflow and underflow in both, or lies at exactly the same place
near one of them, or surely goes to zero, or to infinity, in both. See `mcfsim.theorems.homogeneity`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow
from mcfsim.theorems.homogeneity import Quantity, Scales
from mcfsim.theorems.operands import Columns, finite_values
from mcfsim.theorems.parts import Part, Pieces

Places = NDArray[np.int64]

#: What a quantity is, where its place does not matter.
_INSIDE, _VANISHED, _INFINITE = -3, -2, -1
#: What a claim may ask about is no further below a number than its error's last bit: p bits and these.
_BELOW = 3
#: What it may ask about is no larger than so many binades above it.
_ABOVE = 1


def core(fmt: Format, scales: Scales, positive: tuple[bool, bool]) -> Pieces:
    """Return the cells of two operands that stand for all.

    Parameters
    ----------
    fmt : Format
    scales : Scales
        What the algorithm makes of two operands that are scaled independently.
    positive : tuple of bool
        Of which operand positive values stand for all.
    """
    values = finite_values(fmt)
    # Subnormal numbers and zero are one class, listed by the exponent below all others.
    exponents = np.maximum(np.frexp(values.astype(np.float64))[1] - 1, fmt.emin - 1)
    exponents[np.abs(values) < 2.0**fmt.emin] = fmt.emin - 1
    classes = np.unique(exponents)
    tables = [
        {e: values[(exponents == e) & ~(only & np.signbit(values))] for e in classes.tolist()}
        for only in positive
    ]
    chosen = representatives(classes, fmt, scales)
    pieces = []
    for e in classes.tolist():
        others = chosen[chosen[:, 0] == e, 1]
        if others.size:
            column: Columns = (np.concatenate([tables[1][other] for other in others.tolist()]),)
            pieces.append(Part("core", "", ((tables[0][e],), column)))
    text = (
        f"all significands of {len(chosen)} pairs of exponents, which stand for all {classes.size**2}: the "
        "same numbers are near overflow or underflow there, and equally near"
    )
    return Pieces("core", text, (), tuple(pieces))


def representatives(classes: Places, fmt: Format, scales: Scales) -> Places:
    """Return pairs of classes, one a row in order, such that each pair is as one of them.

    Parameters
    ----------
    classes : array of int64
        Exponents of operands in order; the first is one less than `emin` and stands for subnormal numbers.
    """
    least = np.where(classes < fmt.emin, fmt.emin - fmt.precision + 1, classes)
    # Those near the middle come first, and so are taken.
    order = np.argsort(np.abs(classes - (fmt.emin + fmt.emax) // 2), kind="stable")
    low = np.stack([x.ravel() for x in np.meshgrid(least[order], least[order], indexing="ij")])
    high = np.stack([x.ravel() for x in np.meshgrid(classes[order], classes[order], indexing="ij")])
    found = [_places(quantity, low, high, operand=True) for quantity in map(scales.operand, (0, 1))]
    # Quantities of one place, however they came about, are looked at once.
    alike = {(x.degrees, x.low, x.top, x.format, x.rounding): x for x in scales.quantities}
    found += [_places(quantity, low, high) for quantity in alike.values()]
    cell = np.zeros(low.shape[1], np.int64)
    for places in found:  # a number that is the same only where all places so far are
        different, number = np.unique(places, return_inverse=True)
        cell = np.unique(cell * different.size + number, return_inverse=True)[1]
    first = np.unique(cell, return_index=True)[1]
    rows = high[:, np.sort(first)].T
    result: Places = rows[np.lexsort(rows.T[::-1])]
    return result


def _places(x: Quantity, low: Places, high: Places, *, operand: bool = False) -> Places:
    """Return for each cell a number that is the same only where a quantity's place is."""
    degrees = np.array([int(degree) for degree in x.degrees])[:, None]
    # The smallest and the largest exponent, by the sign of each degree.
    smallest: Places = (degrees * np.where(degrees > 0, low, high)).sum(axis=0) + x.low
    largest = (degrees * np.where(degrees > 0, high, low)).sum(axis=0) + x.top
    fmt, rounding = x.format, x.rounding
    result: Places = (smallest << 32) + (largest & 0xFFFFFFFF) + (1 << 62)
    inside = (smallest >= fmt.emin + fmt.precision + _BELOW) & (largest <= fmt.emax - _ABOVE)
    result[inside] = _INSIDE
    if operand:
        return result
    nearest = rounding.mode in (Mode.NEAREST_EVEN, Mode.NEAREST_AWAY)
    if nearest or rounding.mode is Mode.TOWARD_ZERO:
        # Below half the smallest subnormal number; by as many binades more as a claim may ask about.
        result[largest < fmt.emin - fmt.precision - _ABOVE] = _VANISHED
    if nearest and rounding.overflow is Overflow.IEEE and fmt.has_infinity:
        result[smallest > fmt.emax + 1 + _ABOVE] = _INFINITE
    return result
