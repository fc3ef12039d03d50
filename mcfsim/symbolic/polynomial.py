"""Laurent polynomials in ``t = 2**-n`` with dyadic coefficients: numbers, one for every precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mcfsim.symbolic.precisions import EVERY, Precisions

#: What may stand beside a polynomial: numbers that binary floating point has.
Number = int | float | Fraction


@dataclass(frozen=True)
class Polynomial:
    """A sum of powers of t, negative ones included, whose value at each precision is a dyadic number.

    It is added to, subtracted from and multiplied by others over the same precisions, and by Python numbers;
    divided by what is one term, as ``(1 - u) / 2``, and raised to integer powers.

    Parameters
    ----------
    terms : tuple of (int, Fraction)
        Power and coefficient of each term, powers ascending, coefficients not zero: the first term is the
        largest for every large p.
    over : Precisions
        What t is.

    Raises
    ------
    TypeError
        In an operation with anything else.
    ValueError
        If a number is not dyadic or not finite, or two polynomials are over different precisions.
    """

    terms: tuple[tuple[int, Fraction], ...]
    over: Precisions = EVERY

    def __post_init__(self) -> None:
        powers = [power for power, _ in self.terms]
        if powers != sorted(set(powers)):
            raise ValueError(f"powers {powers} are not in ascending order")
        for _, coefficient in self.terms:
            if not coefficient or not is_dyadic(coefficient):
                raise ValueError(f"a coefficient {coefficient} is zero or not dyadic")

    @staticmethod
    def of(terms: Mapping[int, Fraction], over: Precisions) -> Polynomial:
        """Return the polynomial of these coefficients, zeros among them left out."""
        return Polynomial(tuple(sorted((k, c) for k, c in terms.items() if c)), over)

    @staticmethod
    def constant(number: Number, over: Precisions) -> Polynomial:
        """Return a number as a polynomial.

        Raises
        ------
        ValueError
            If it is not dyadic.
        """
        return Polynomial.of({0: dyadic(number)}, over)

    def __str__(self) -> str:
        return written(self)

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term; zero has none."""
        if not self.terms:
            raise ValueError("zero has no leading term")
        return self.terms[0]

    @property
    def sign(self) -> int:
        """The sign for every large p: 1, -1, or 0 of zero alone."""
        return 0 if not self.terms else 1 if self.terms[0][1] > 0 else -1

    def at(self, p: int) -> Fraction:
        """Return the value at a precision.

        Raises
        ------
        ValueError
            If it is none of those that the polynomial is over.
        """
        return self.at_index(self.over.index(p))

    def at_index(self, n: int) -> Fraction:
        """Return the value at ``t = 2**-n``."""
        # As integers in units of the smallest power of two: sums of fractions would look for common factors.
        digits = [(c.numerator, 1 - n * k - c.denominator.bit_length()) for k, c in self.terms]
        unit = min((exponent for _, exponent in digits), default=0)
        whole = sum(number << (exponent - unit) for number, exponent in digits)
        return Fraction(whole << unit) if unit >= 0 else Fraction(whole, 1 << -unit)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((k, -c) for k, c in self.terms), self.over)

    def __abs__(self) -> Polynomial:
        """Return the polynomial that is positive for every large p."""
        return -self if self.sign < 0 else self

    def __add__(self, other: Polynomial | Number) -> Polynomial:
        sums = dict(self.terms)
        for power, coefficient in self._taken(other).terms:
            sums[power] = sums.get(power, Fraction(0)) + coefficient
        return Polynomial.of(sums, self.over)

    __radd__ = __add__

    def __sub__(self, other: Polynomial | Number) -> Polynomial:
        return self + -self._taken(other)

    def __rsub__(self, other: Number) -> Polynomial:
        return self._taken(other) - self

    def __mul__(self, other: Polynomial | Number) -> Polynomial:
        products: dict[int, Fraction] = {}
        for k, c in self.terms:
            for j, d in self._taken(other).terms:
                products[k + j] = products.get(k + j, Fraction(0)) + c * d
        return Polynomial.of(products, self.over)

    __rmul__ = __mul__

    def __truediv__(self, other: Polynomial | Number) -> Polynomial:
        return self * self._taken(other) ** -1

    def __rtruediv__(self, other: Number) -> Polynomial:
        return self._taken(other) / self

    def __pow__(self, exponent: int) -> Polynomial:
        if exponent < 0:
            return self._reciprocal() ** -exponent
        product = Polynomial.constant(1, self.over)
        for _ in range(exponent):
            product *= self
        return product

    def _reciprocal(self) -> Polynomial:
        if not self.terms:
            raise ZeroDivisionError("division by the polynomial zero")
        (power, coefficient), *others = self.terms
        if others or not is_dyadic(1 / coefficient):
            raise ValueError(f"1 / ({self}) is no polynomial with dyadic coefficients; a Quotient takes it")
        return Polynomial.of({-power: 1 / coefficient}, self.over)

    def _taken(self, other: Any) -> Polynomial:
        """Return the other operand as a polynomial over the same precisions."""
        if not isinstance(other, Polynomial):
            return Polynomial.constant(other, self.over)
        if other.over != self.over:
            raise ValueError(f"polynomials over the precisions {self.over} and {other.over} do not mix")
        return other


def is_dyadic(number: Fraction) -> bool:
    """Return whether a number is an integer over a power of two."""
    return number.denominator & (number.denominator - 1) == 0


def dyadic(number: Any) -> Fraction:
    """Return a Python number exactly.

    Raises
    ------
    TypeError
        If it is no int, float or Fraction.
    ValueError
        If it is not finite or not dyadic.
    """
    if isinstance(number, bool) or not isinstance(number, int | float | Fraction):
        kind = type(number).__name__
        raise TypeError(f"{number!r} of type {kind} is no polynomial, int, float or Fraction")
    if isinstance(number, float) and number - number != 0:
        raise ValueError(f"{number} is no finite number")
    exact = Fraction(number)
    if not is_dyadic(exact):
        raise ValueError(f"{exact} is not dyadic: no binary floating-point number")
    return exact


def written(polynomial: Polynomial) -> str:
    """Return it in powers of u, or, where these are not whole, of ``t = 2**-n``; the largest term first."""
    step, unit = polynomial.over.unit
    whole = all(power % step == 0 for power, _ in polynomial.terms)
    name, text = "u" if whole else "t", ""
    for power, coefficient in polynomial.terms:
        number = abs(coefficient)
        if whole:
            power //= step
            number /= unit**power
        factor = "" if not power else name if power == 1 else f"{name}^{power}"
        digits = "" if number == 1 and factor else str(number)
        sign = (" - " if coefficient < 0 else " + ") if text else "-" if coefficient < 0 else ""
        text += sign + (f"{digits} {factor}" if digits and factor else digits + factor)
    return text or "0"
