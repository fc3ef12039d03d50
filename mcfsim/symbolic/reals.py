"""Exact results before their rounding: polynomials, quotients and square roots of polynomials.

Of each, rounding asks the first terms of its series in t, and the sign of its difference from a polynomial.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Protocol

from mcfsim.symbolic.decisions import UndecidedError
from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import Precisions


class Real(Protocol):
    """A positive real number for every precision."""

    @property
    def over(self) -> Precisions:
        """Which precisions."""

    def series(self, last: int) -> dict[int, Fraction]:
        """Return the coefficients of powers of t up to one; they may be any rational numbers."""

    def minus(self, y: Polynomial) -> Polynomial:
        """Return a polynomial that has the sign of the difference from y, which is not negative."""

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term."""


@dataclass(frozen=True)
class Exactly:
    """A polynomial."""

    value: Polynomial

    @property
    def over(self) -> Precisions:
        """Which precisions."""
        return self.value.over

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term."""
        return self.value.leading

    def series(self, last: int) -> dict[int, Fraction]:
        """Return its coefficients up to a power."""
        return {k: c for k, c in self.value.terms if k <= last}

    def minus(self, y: Polynomial) -> Polynomial:
        """Return the difference."""
        return self.value - y


@dataclass(frozen=True)
class Ratio:
    """A quotient a / b with b > 0."""

    a: Polynomial
    b: Polynomial

    @property
    def over(self) -> Precisions:
        """Which precisions."""
        return self.a.over

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term."""
        (k, c), (j, d) = self.a.leading, self.b.leading
        return k - j, c / d

    def series(self, last: int) -> dict[int, Fraction]:
        """Return the coefficients up to a power by long division."""
        (j, d), *others = self.b.terms
        rest, found = dict(self.a.terms), {}
        for power in range(self.leading[0], last + 1):
            digit = rest.get(power + j, Fraction(0)) / d
            found[power] = digit
            for k, c in others:
                rest[power + k] = rest.get(power + k, Fraction(0)) - digit * c
        return found

    def minus(self, y: Polynomial) -> Polynomial:
        """Return the remainder ``a - b y``."""
        return self.a - self.b * y


@dataclass(frozen=True)
class Root:
    """The square root of a > 0."""

    a: Polynomial

    @property
    def over(self) -> Precisions:
        """Which precisions."""
        return self.a.over

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term.

        Raises
        ------
        UndecidedError
            If the leading term of the radicand has no rational square root.
        """
        power, coefficient = self.a.leading
        numerator, denominator = isqrt(coefficient.numerator), isqrt(coefficient.denominator)
        if power % 2:
            raise UndecidedError(f"the root of {self.a} is no series in t: its leading power is odd")
        if Fraction(numerator**2, denominator**2) != coefficient:
            raise UndecidedError(f"the leading coefficient {coefficient} of {self.a} has no rational root")
        return power // 2, Fraction(numerator, denominator)

    def series(self, last: int) -> dict[int, Fraction]:
        """Return the coefficients up to a power, each from the square of those before."""
        start, leading = self.leading
        given, found = dict(self.a.terms), {start: leading}
        for power in range(start + 1, last + 1):
            known = sum(
                (found[i] * found[start + power - i] for i in range(start + 1, power)),
                Fraction(0),
            )
            found[power] = (given.get(start + power, Fraction(0)) - known) / (2 * leading)
        return {k: c for k, c in found.items() if k <= last}

    def minus(self, y: Polynomial) -> Polynomial:
        """Return ``a - y**2``."""
        return self.a - y * y
