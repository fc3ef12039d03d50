"""The exponents of values, as functions of p: in which ranges what holds without bounds holds as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.symbolic.decisions import Relation
from mcfsim.symbolic.decisions import first as decided
from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import Precisions
from mcfsim.symbolic.reals import Exactly
from mcfsim.symbolic.symbolic_rounding import binade, floor_log2


@dataclass(frozen=True)
class LinearExponent:
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

    With ``emin`` and ``emax`` at these all of them are normal and finite, for every p from which on the
    obligations hold; and where that is so, a bounded format rounds as an unbounded one. Larger ranges do,
    too; smaller ones may, as sums that are subnormal are exact.
    """

    def __init__(self, over: Precisions) -> None:
        self._over = over
        self._values = {Polynomial.constant(1, over)}

    def add(self, value: Polynomial) -> None:
        """Note a value."""
        if value:
            self._values.add(abs(value))

    def emin(self, first: int) -> LinearExponent:
        """Return the largest least exponent that suffices, from a precision on."""
        return self._line(first, min)

    def emax(self, first: int) -> LinearExponent:
        """Return the smallest largest exponent that suffices, from a precision on."""
        return self._line(first, max)

    def _line(self, first: int, extreme: Callable[[Iterable[int]], int]) -> LinearExponent:
        start, lines, single = self._over.index(first), [], []
        for value in self._values:
            low = binade(Exactly(value))
            ((power, size),) = low.terms
            settled = max(
                decided(Relation.NOT_NEGATIVE, value - low), decided(Relation.POSITIVE, 2 * low - value)
            )
            lines.append((-power, floor_log2(size)))
            # Before it settles a value may be in another binade, as 1 + 8 u = 2 is for p = 3.
            values = ((n, abs(value.at_index(n))) for n in range(start, settled))
            single += [(n, floor_log2(number)) for n, number in values if number]
        slope = extreme(slope for slope, _ in lines)
        offsets = [offset + (other - slope) * start for other, offset in lines]
        offsets += [exponent - slope * n for n, exponent in single]
        return LinearExponent(slope, extreme(offsets), self._over)
