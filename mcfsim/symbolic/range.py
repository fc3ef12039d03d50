"""The exponents of values, as functions of p: in which ranges what holds without bounds holds as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import Precisions
from mcfsim.symbolic.rounding import floor_log2


@dataclass(frozen=True)
class Line:
    """An exponent ``slope * n + offset``, for precisions ``p = step * n + rest``."""

    slope: int
    offset: int
    over: Precisions

    def at(self, p: int) -> int:
        """Return it at a precision."""
        return self.slope * self.over.index(p) + self.offset

    def __str__(self) -> str:
        slope = Fraction(self.slope, self.over.step)
        offset = self.offset - slope * self.over.rest
        number = "p" if abs(slope) == 1 else f"{abs(slope)} p"
        moving = f"-{number}" if slope < 0 else number
        if not slope or not offset:
            return moving if slope else str(offset)
        return f"{moving} {'-' if offset < 0 else '+'} {abs(offset)}"


class Range:
    """The exponents of all nonzero values of a run.

    With ``emin`` and ``emax`` at these all of them are normal and finite, for every p from which on the run
    is right; and where that is so, a bounded format rounds as an unbounded one. Larger ranges do, too;
    smaller ones may, as sums that are subnormal are exact.
    """

    def __init__(self, over: Precisions) -> None:
        self._over = over
        self._exponents: set[tuple[int, int]] = {(0, 0)}

    def add(self, value: Polynomial) -> None:
        """Note a value, by the two binades in which its leading term and what is next to it lie."""
        if value:
            power, coefficient = value.leading
            exponent = floor_log2(abs(coefficient))
            exact = len(value.terms) == 1 or abs(coefficient) != Fraction(2) ** exponent
            below = not exact and (value.terms[1][1] > 0) != (coefficient > 0)
            self._exponents.add((-power, exponent - below))

    def emin(self, first: int) -> Line:
        """Return the largest least exponent that suffices, from a precision on."""
        slope = min(slope for slope, _ in self._exponents)
        return self._line(slope, first, min)

    def emax(self, first: int) -> Line:
        """Return the smallest largest exponent that suffices, from a precision on."""
        slope = max(slope for slope, _ in self._exponents)
        return self._line(slope, first, max)

    def _line(self, slope: int, first: int, extreme: Callable[[Iterator[int]], int]) -> Line:
        n = self._over.index(first)
        offsets = (offset + (other - slope) * n for other, offset in self._exponents)
        return Line(slope, extreme(offsets), self._over)
