"""Pairs of exponents that stand for all pairs, if operands may be scaled by powers of two.

A cell holds all pairs of operands of given exponents. For a homogeneous algorithm, two cells are equivalent
if their operands may be scaled into each other, and every number in the algorithm behaves the same in both:
it is free of overflow and underflow, or lies at exactly the same place near an end of the range, or surely
becomes zero, or surely infinity (`mcfsim.theorems.homogeneity`). The same must hold for what hypotheses and
claim ask about a number: whether it is a value of the format, or below a constant (`mcfsim.theorems.reach`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.formats.floating import floor_log2
from mcfsim.rounding import NEAREST, Mode, Overflow, Underflow
from mcfsim.theorems.homogeneity import Quantity, Scales
from mcfsim.theorems.operands import finite_values
from mcfsim.theorems.parts import Kind, Part, Pieces

Places = NDArray[np.int64]

#: Numbers of cells in which a place does not matter: nothing happens there, or a comparison surely holds or
#: surely fails.
INSIDE, HOLDS, FAILS = -1, -2, -3
#: The same for numbers that surely become zero, or infinity, and for subnormal operands. Cells that are like
#: no others have numbers from the last one down.
_VANISHED, _INFINITE, _SUBNORMAL, _ALONE = -4, -5, -6, -7
#: A claim that cannot be read is assumed to look no further below a number than the last bit of its error: p
#: bits and this many more; and at most this many binades above a number.
_BELOW, _ABOVE = 3, 1


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of two operands.

    Attributes
    ----------
    format : Format
    common : bool
        Whether both operands are scaled by one power of two, or each by its own.
    exponents : array of int64, shape (2, n)
        The exponents of both operands; ``emin - 1`` stands for subnormal numbers and zero.
    """

    format: Format
    common: bool
    exponents: Places

    @cached_property
    def _ends(self) -> tuple[Places, Places]:
        """The least and the largest exponents, of each operand or of both together."""
        fmt, high = self.format, self.exponents
        low = np.where(high < fmt.emin, fmt.emin - fmt.precision + 1, high)
        return (low.min(axis=0)[None], high.max(axis=0)[None]) if self.common else (low, high)

    def span(self, degrees: tuple[Fraction, ...]) -> tuple[Places, Places]:
        """Return the least and the largest power of two that a number of these degrees scales with."""
        low, high = self._ends
        powers = np.array([int(degree) for degree in degrees])[:, None]
        return (
            (powers * np.where(powers > 0, low, high)).sum(axis=0),
            (powers * np.where(powers > 0, high, low)).sum(axis=0),
        )

    def moved(self) -> list[Places]:
        """Return what cells have in common if their operands may be scaled into each other."""
        below = self.exponents < self.format.emin
        if not self.common:
            return [np.where(each, _SUBNORMAL, INSIDE) for each in below]
        first, second = self.exponents
        return [alone(second - first, below.any(axis=0))]


#: A function that tells cells apart: it returns a number for each.
Place = Callable[[Cells], Places]


def packed(smallest: Places, largest: Places) -> Places:
    """Return a number for each cell; two share it only if both of these are the same."""
    found: Places = (smallest << 32) + (largest & 0xFFFFFFFF) + (1 << 62)
    return found


def alone(places: Places, there: Any) -> Places:
    """Return the places, with a unique one for each cell where `there` is true."""
    found: Places = np.where(there, _ALONE - np.arange(places.size), places)
    return found


def rounded(x: Quantity, cells: Cells, *, last: bool = True) -> Places:
    """Return the place where a number is rounded: equal for cells in which it is the same but for scale.

    Parameters
    ----------
    x : Quantity
    cells : Cells
    last : bool, optional
        Whether neither another number nor a question relies on the number's bounds. If one does, each cell
        where it is rounded out of its bounds has a unique place.
    """
    smallest, largest = cells.span(x.degrees)
    fmt, rounding = x.format, x.rounding
    result = packed(smallest, largest)
    inside = (smallest >= x.safe_from) & (largest <= x.safe_to)
    nearest = rounding.mode in NEAREST
    # A tie away from zero does not vanish, so it takes one binade more.
    half = Fraction(2) ** (fmt.emin - fmt.precision - (rounding.mode is Mode.NEAREST_AWAY))
    vanished = largest <= floor_log2(half / x.before)
    vanished &= nearest or rounding.mode is Mode.TOWARD_ZERO
    infinite = smallest > fmt.emax - x.low
    if not last and x.near is None:
        # The bound is a power of two: at the last bit or above, it also holds for a number rounded up.
        below = fmt.emin - (fmt.precision if rounding.underflow is Underflow.GRADUAL else 1)
        result = alone(result, (largest + x.top <= below) | infinite)
    elif not last:  # a number that underflows need not be near its sum of multiples
        result, vanished = alone(result, ~inside), vanished & False
    infinite &= nearest and rounding.overflow is Overflow.IEEE and fmt.has_infinity
    for where, place in ((infinite, _INFINITE), (vanished, _VANISHED), (inside, INSIDE)):
        result[where] = place
    return result


def _apart(x: Quantity, cells: Cells) -> Places:
    """Return where a number is, unless it is far from over- and underflow for a claim that cannot be read."""
    smallest, largest = cells.span(x.degrees)
    result = packed(smallest, largest)
    far = smallest + x.low >= cells.format.emin + cells.format.precision + _BELOW
    result[far & (largest + x.top <= cells.format.emax - _ABOVE)] = INSIDE
    return result


def unread(scales: Scales) -> list[Place]:
    """Return what tells cells apart if a claim cannot be read: where all numbers are near the ends."""
    return [partial(_apart, x) for x in (scales.operand(0), scales.operand(1), *scales.quantities)]


def core(
    fmt: Format,
    scales: Scales,
    positive: tuple[bool, bool],
    asked: Sequence[Place] | None,
    gaps: tuple[int, int] | None = None,
) -> tuple[Pieces, ...]:
    """Return the cells of two operands that stand for all: far from the ends of the range, and near them.

    Parameters
    ----------
    fmt : Format
    scales : Scales
        How the numbers in the algorithm scale, for two operands.
    positive : tuple of bool
        For each operand, whether its positive values stand for all.
    asked : sequence of callable, optional
        What hypotheses and claim ask about numbers; None if they cannot be read.
    gaps : tuple of int, optional
        The least and the largest exponent of the second operand relative to the first one's, beyond which
        they do not interact unless one is zero.
    """
    values = finite_values(fmt)
    # Subnormal numbers and zero form one class, with an exponent below all others.
    exponents = np.maximum(np.frexp(values.astype(np.float64))[1] - 1, fmt.emin - 1)
    exponents[np.abs(values) < 2.0**fmt.emin] = fmt.emin - 1
    classes = np.unique(exponents.astype(np.int64))
    sides = [~(only & np.signbit(values)) for only in positive]

    def part(kind: Kind, chosen: Places, text: str, *more: Part) -> Pieces:
        tables = [
            {e: values[side & (exponents == e)] for e in np.unique(column).tolist()}
            for side, column in zip(sides, chosen.T, strict=True)
        ]
        pieces = []
        for e, first in tables[0].items():
            others = np.concatenate([tables[1][x] for x in chosen[chosen[:, 0] == e, 1].tolist()])
            pieces.append(Part(kind, "", ((first,), (others,))))
        said = f"all significands of {len(chosen)} pairs of exponents, {text}"
        return Pieces(kind, said, (), (*pieces, *more))

    chosen, near = representatives(*grouped(classes, fmt, scales, asked, gaps))
    far = part("core", chosen[~near], "for all pairs far from the ends of the range")
    zeros: list[Part] = []
    equally = "for all pairs near the ends: the same numbers are near an end there, and equally near"
    if gaps is not None:
        every, none = ([values[side & kind] for side in sides] for kind in (True, values == 0))
        pairs = (none[0], every[1]), (every[0], none[1])
        zeros = [Part("edge", "", ((x,), (y,))) for x, y in pairs]
        equally += "; zero with every number"
    found = far, part("edge", chosen[near], equally, *zeros)
    return tuple(pieces for pieces in found if pieces.size)


def representatives(pairs: Places, cell: Places, near: NDArray[np.bool_]) -> tuple[Places, NDArray[np.bool_]]:
    """Return pairs of classes, one per row and sorted, and whether they are near an end of the range.

    Every pair is equivalent to one of them.

    Parameters
    ----------
    pairs, cell, near
        As `grouped` returns them.
    """
    first = np.unique(cell, return_index=True)[1]
    first = first[np.lexsort(pairs[::-1, first])]
    return pairs[:, first].T, near[first]


def grouped(
    classes: Places,
    fmt: Format,
    scales: Scales,
    asked: Sequence[Place] | None = None,
    gaps: tuple[int, int] | None = None,
) -> tuple[Places, Places, NDArray[np.bool_]]:
    """Return all pairs of classes, shape (2, n), a number for each, and which are near the ends of the range.

    Equivalent pairs have the same number. Some formats lack some numbers of the last class. The first pair of
    each number has all significands, or it is the only one.

    Parameters
    ----------
    classes : array of int64
        Exponents of operands, sorted. The first is one less than `emin` and stands for subnormal numbers.
    fmt, scales, asked, gaps
        As for `core`.
    """
    # Pairs near the middle come first, so that they are chosen.
    order = np.argsort(np.abs(classes - (fmt.emin + fmt.emax) // 2), kind="stable")
    pairs = np.stack([x.ravel() for x in np.meshgrid(classes[order], classes[order], indexing="ij")])
    if gaps is not None:
        pairs = pairs[:, (pairs[1] - pairs[0] >= gaps[0]) & (pairs[1] - pairs[0] <= gaps[1])]
    whole = fmt.max == (2 - Fraction(2) ** (1 - fmt.precision)) * Fraction(2) ** fmt.emax
    lacking = (pairs == fmt.emax).any(axis=0) & (not whole)
    pairs, lacking = (x[..., np.argsort(lacking, kind="stable")] for x in (pairs, lacking))
    cells = Cells(fmt, scales.common, pairs)
    cell = np.zeros(pairs.shape[1], np.int64)
    all_places = [place(cells) for place in _all(scales, asked)]
    for places in (*cells.moved(), *all_places):
        # Cells share a number only if all their places so far agree.
        different, number = np.unique(places, return_inverse=True)
        cell = np.unique(cell * different.size + number, return_inverse=True)[1]
    cell = alone(cell, lacking & ~np.isin(cell, cell[~lacking]))
    ends = [(pairs < fmt.emin).any(axis=0), *((x < FAILS) | (x >= 0) for x in all_places)]
    return pairs, cell, np.logical_or.reduce(ends)


def _all(scales: Scales, asked: Sequence[Place] | None) -> Iterable[Place]:
    """Yield what tells cells apart: each number of the algorithm, and each question about numbers."""
    for x in scales.quantities:
        yield partial(rounded, x, last=x is scales.quantities[-1] and not asked)
    yield from unread(scales) if asked is None else asked
