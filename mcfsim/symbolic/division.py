"""Quotients of polynomials: relative errors and bounds, as functions of u."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from mcfsim.symbolic.polynomial import Number, Polynomial
from mcfsim.symbolic.precisions import EVERY


@dataclass(frozen=True)
class Quotient:
    """A rational function: the quotient of two polynomials over the same precisions.

    Parameters
    ----------
    numerator, denominator : Polynomial or number
        The denominator is not zero.

    Raises
    ------
    ZeroDivisionError
        If the denominator is zero, and at a precision where its value is.
    """

    numerator: Polynomial
    denominator: Polynomial

    def __post_init__(self) -> None:
        if not self.denominator:
            raise ZeroDivisionError("a quotient by the polynomial zero")
        if self.numerator.over != self.denominator.over:
            raise ValueError("the polynomials of a quotient are over different precisions")

    @staticmethod
    def of(numerator: Polynomial | Number, denominator: Polynomial | Number = 1) -> Quotient:
        """Return a quotient of polynomials or rational numbers, over the precisions of either."""
        given = [part for part in (numerator, denominator) if isinstance(part, Polynomial)]
        over = given[0].over if given else EVERY
        factor = 1
        for part in (numerator, denominator):
            if isinstance(part, Fraction):  # which need not be dyadic
                factor = lcm(factor, part.denominator)
        parts = (
            part if isinstance(part, Polynomial) else Polynomial.constant(part, over)
            for part in (numerator * factor, denominator * factor)
        )
        return Quotient(*parts)

    def __str__(self) -> str:
        over = str(self.denominator)
        if over == "1":
            return str(self.numerator)
        parts = (f"({part})" if " " in part else part for part in (str(self.numerator), over))
        return " / ".join(parts)

    def at(self, p: int) -> Fraction:
        """Return the value at a precision."""
        return self.numerator.at(p) / self.denominator.at(p)

    def __abs__(self) -> Quotient:
        """Return the function that is positive for every large p."""
        return Quotient(abs(self.numerator), abs(self.denominator))

    def over_unit(self, power: int) -> Quotient:
        """Return it in units of ``u**power``."""
        step, coefficient = self.numerator.over.unit
        terms = ((step * power, coefficient**power),)
        return Quotient(self.numerator, self.denominator * Polynomial(terms, self.numerator.over)).reduced

    @property
    def limit(self) -> Fraction | None:
        """The limit as p grows, or None if there is none: it grows beyond all bounds."""
        if not self.numerator:
            return Fraction(0)
        (k, c), (j, d) = self.numerator.leading, self.denominator.leading
        return c / d if k == j else Fraction(0) if k > j else None

    @property
    def reduced(self) -> Quotient:
        """The same with integers as coefficients, common powers of t and common factors divided out."""
        if not self.numerator:
            return Quotient(self.numerator, Polynomial.constant(1, self.numerator.over))
        parts = (self.numerator, self.denominator)
        low = min(part.leading[0] for part in parts)
        coefficients = [c for part in parts for _, c in part.terms]
        common = lcm(*(c.denominator for c in coefficients))
        shared = gcd(*(int(c * common) for c in coefficients))
        factor = Fraction(self.denominator.sign * common, shared)
        numerator, denominator = (
            Polynomial.of({k - low: c * factor for k, c in part.terms}, part.over) for part in parts
        )
        return Quotient(numerator, denominator)
