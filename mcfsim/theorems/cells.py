"""Pairs of exponents that stand for all pairs, if each operand may be scaled by its own power of two.

A cell holds all operands of given exponents. For a homogeneous algorithm, two cells are equivalent if every
number in it, operands included, is far from overflow and underflow in both cells, or lies at exactly the same
place near one of them, or surely becomes zero, or infinity, in both. See `mcfsim.theorems.homogeneity`.
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

#: Classes of quantities whose place does not matter.
_INSIDE, _VANISHED, _INFINITE = -3, -2, -1
#: A claim looks no further below a number than the last bit of its error: p bits and this many more.
_BELOW = 3
#: A claim looks at most this many binades above a number.
_ABOVE = 1


def core(fmt: Format, scales: Scales, positive: tuple[bool, bool]) -> Pieces:
    """Return the cells of two operands that stand for all operands.

    Parameters
    ----------
    fmt : Format
    scales : Scales
        How the numbers in the algorithm scale, for two operands that are scaled independently.
    positive : tuple of bool
        For each operand, whether its positive values stand for all.
    """
    values = finite_values(fmt)
    # Subnormal numbers and zero form one class, with an exponent below all others.
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
    """Return pairs of classes, one per row and sorted, such that every pair is equivalent to one of them.

    Parameters
    ----------
    classes : array of int64
        Exponents of operands, sorted. The first is one less than `emin` and stands for subnormal numbers.
    """
    least = np.where(classes < fmt.emin, fmt.emin - fmt.precision + 1, classes)
    # Pairs near the middle come first, so that they are chosen.
    order = np.argsort(np.abs(classes - (fmt.emin + fmt.emax) // 2), kind="stable")
    low = np.stack([x.ravel() for x in np.meshgrid(least[order], least[order], indexing="ij")])
    high = np.stack([x.ravel() for x in np.meshgrid(classes[order], classes[order], indexing="ij")])
    found = [_places(quantity, low, high, operand=True) for quantity in map(scales.operand, (0, 1))]
    # Quantities of the same place are looked at once, however they came about.
    alike = {(x.degrees, x.low, x.top, x.format, x.rounding): x for x in scales.quantities}
    found += [_places(quantity, low, high) for quantity in alike.values()]
    cell = np.zeros(low.shape[1], np.int64)
    for places in found:  # cells share a number only if all their places so far agree
        different, number = np.unique(places, return_inverse=True)
        cell = np.unique(cell * different.size + number, return_inverse=True)[1]
    first = np.unique(cell, return_index=True)[1]
    rows = high[:, np.sort(first)].T
    result: Places = rows[np.lexsort(rows.T[::-1])]
    return result


def _places(x: Quantity, low: Places, high: Places, *, operand: bool = False) -> Places:
    """Return a number for each cell; two cells share it only if the quantity has the same place in both."""
    degrees = np.array([int(degree) for degree in x.degrees])[:, None]
    # The smallest and the largest exponent; the sign of each degree decides which operand exponent counts.
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
        # Below half the smallest subnormal number, by as many more binades as a claim may look at.
        result[largest < fmt.emin - fmt.precision - _ABOVE] = _VANISHED
    if nearest and rounding.overflow is Overflow.IEEE and fmt.has_infinity:
        result[smallest > fmt.emax + 1 + _ABOVE] = _INFINITE
    return result
