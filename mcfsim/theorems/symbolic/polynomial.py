"""Laurent polynomials in ``t = 2**-n`` with dyadic coefficients, and the sets of precisions they cover."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from mcfsim.checks import check_int

# -- precisions -------------------------------------------------------------------------------------------
#: The least precision of a format.
LEAST = 2


@dataclass(frozen=True)
class Precisions:
    """The precisions ``p = step * n + rest`` for integers n; polynomials are in ``t = 2**-n``.

    Parameters
    ----------
    step : int, optional
        1 covers every precision, and t is u. 2 covers those of one parity, and ``u = 2**-rest * t**2``, so
        odd powers of t act as odd powers of the square root of u.
    rest : int, optional
        From 0 to ``step - 1``.

    Raises
    ------
    TypeError, ValueError
        If either is not an int or out of range.
    """

    step: int = 1
    rest: int = 0

    def __post_init__(self) -> None:
        check_int("step", self.step)
        check_int("rest", self.rest)
        if not 1 <= self.step <= 8 or not 0 <= self.rest < self.step:
            raise ValueError(f"precisions {self.step} n + {self.rest}: allowed: 1 <= step <= 8, rest < step")

    def __str__(self) -> str:
        if self.step == 1:
            return "p"
        return f"{self.step} n + {self.rest}" if self.rest else f"{self.step} n"

    @property
    def least(self) -> int:
        """The least n that gives the precision of a format."""
        return -((self.rest - LEAST) // self.step)

    def precision(self, n: int) -> int:
        """Return the precision p for an n."""
        return self.step * n + self.rest

    def index(self, p: int) -> int:
        """Return the n for a precision p.

        Raises
        ------
        ValueError
            If p is not one of these precisions.
        """
        if p not in self:
            raise ValueError(f"p = {p} is none of the precisions {self}")
        return (p - self.rest) // self.step

    def __contains__(self, p: int) -> bool:
        return p % self.step == self.rest

    @property
    def unit(self) -> tuple[int, Fraction]:
        """The unit roundoff u as a power of t and its coefficient."""
        return self.step, Fraction(1, 2**self.rest)


#: All precisions, the even ones, and the odd ones.
EVERY, EVEN, ODD = Precisions(), Precisions(2), Precisions(2, 1)


# -- polynomials ------------------------------------------------------------------------------------------
#: Numbers that mix with polynomials; they must be dyadic.
Number = int | float | Fraction
#: The sort key of terms: a power, or a name and a power.
_Key = TypeVar("_Key", int, tuple[str, int])


@dataclass(frozen=True)
class Polynomial:
    """A Laurent polynomial in t; its value at each precision is a dyadic number.

    It can be added, subtracted and multiplied with polynomials over the same precisions and with Python
    numbers, divided by a single term, as in ``(1 - u) / 2``, and raised to integer powers.

    Parameters
    ----------
    terms : tuple of (int, Fraction)
        Power and coefficient of each term, by ascending power, without zeros. The first term is the largest
        for every large p.
    over : Precisions
        The precisions that it covers.

    Raises
    ------
    TypeError
        In an operation with an object of any other type.
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
        """Return the polynomial with given coefficients by power; zeros are dropped."""
        return Polynomial(collected(terms.items()), over)

    @staticmethod
    def constant(number: Number, over: Precisions) -> Polynomial:
        """Return a number as a polynomial.

        Raises
        ------
        ValueError
            If it is not dyadic.
        """
        return Polynomial.of({0: dyadic(number)}, over)

    @staticmethod
    def from_any(x: Polynomial | Number, over: Precisions) -> Polynomial:
        """Return a polynomial unchanged, and a number as a polynomial."""
        return x if isinstance(x, Polynomial) else Polynomial.constant(x, over)

    def __str__(self) -> str:
        return written(self)

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term; zero raises ValueError."""
        if not self.terms:
            raise ValueError("zero has no leading term")
        return self.terms[0]

    @property
    def sign(self) -> int:
        """The sign for every large p: 1, -1, or 0 for the polynomial zero."""
        return 0 if not self.terms else 1 if self.terms[0][1] > 0 else -1

    def at(self, p: int) -> Fraction:
        """Return the value at a precision.

        Raises
        ------
        ValueError
            If the polynomial is not defined there.
        """
        return self.at_index(self.over.index(p))

    def at_index(self, n: int) -> Fraction:
        """Return the value at ``t = 2**-n``."""
        # In integers, in units of the smallest power of two: sums of fractions would look for common factors.
        digits = [(c.numerator, 1 - n * k - c.denominator.bit_length()) for k, c in self.terms]
        unit = min((exponent for _, exponent in digits), default=0)
        whole = sum(number << (exponent - unit) for number, exponent in digits)
        return Fraction(whole << unit) if unit >= 0 else Fraction(whole, 1 << -unit)

    def __neg__(self) -> Polynomial:
        return Polynomial(tuple((k, -c) for k, c in self.terms), self.over)

    def __abs__(self) -> Polynomial:
        """Return the absolute value for large p: the polynomial or its negative."""
        return -self if self.sign < 0 else self

    def __add__(self, other: Polynomial | Number) -> Polynomial:
        return Polynomial(collected((*self.terms, *self._taken(other).terms)), self.over)

    __radd__ = __add__

    def __sub__(self, other: Polynomial | Number) -> Polynomial:
        return self + -self._taken(other)

    def __rsub__(self, other: Number) -> Polynomial:
        return self._taken(other) - self

    def __mul__(self, other: Polynomial | Number) -> Polynomial:
        others = self._taken(other).terms
        return Polynomial(collected((k + j, c * d) for k, c in self.terms for j, d in others), self.over)

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
        taken = Polynomial.from_any(other, self.over)
        if taken.over != self.over:
            raise ValueError(f"polynomials over the precisions {self.over} and {taken.over} do not mix")
        return taken


def unit(over: Precisions) -> Polynomial:
    """Return the unit roundoff ``u = 2**-p``."""
    return Polynomial((over.unit,), over)


def collected(terms: Iterable[tuple[_Key, Fraction]]) -> tuple[tuple[_Key, Fraction], ...]:
    """Return the sums of coefficients by key, in ascending order, without zeros."""
    sums: dict[_Key, Fraction] = {}
    for key, c in terms:
        sums[key] = sums[key] + c if key in sums else c
    return tuple(sorted((key, c) for key, c in sums.items() if c))


def is_dyadic(number: Fraction) -> bool:
    """Return whether a number is an integer over a power of two."""
    return number.denominator & (number.denominator - 1) == 0


def dyadic(number: Any) -> Fraction:
    """Convert a Python number to a fraction exactly.

    Raises
    ------
    TypeError
        If it is not an int, float or Fraction.
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
    """Return a polynomial as text, largest term first, in powers of u, or of t if u's are fractional."""
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
