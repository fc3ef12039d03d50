"""Rounding for all large precisions at once: leading terms propose each decision, obligations prove it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from mcfsim.formats.floating import floor_log2
from mcfsim.rounding import Mode
from mcfsim.theorems.symbolic.decisions import Ledger, Relation, UndecidedError
from mcfsim.theorems.symbolic.polynomial import Polynomial, Precisions, is_dyadic, unit


# -- exact results ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _OfPolynomial:
    """A positive real number as a function of the precision, made from a polynomial."""

    a: Polynomial

    @property
    def over(self) -> Precisions:
        """The precisions that it covers."""
        return self.a.over


@dataclass(frozen=True)
class Exactly(_OfPolynomial):
    """A positive number that is a polynomial."""

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term."""
        return self.a.leading

    def series(self, last: int) -> dict[int, Fraction]:
        """Return the coefficients up to a power."""
        return {k: c for k, c in self.a.terms if k <= last}

    def minus(self, y: Polynomial) -> Polynomial:
        """Return the difference."""
        return self.a - y


@dataclass(frozen=True)
class Ratio(_OfPolynomial):
    """A quotient a / b with b > 0."""

    b: Polynomial

    @property
    def leading(self) -> tuple[int, Fraction]:
        """Power and coefficient of the first term."""
        (k, c), (j, d) = self.a.leading, self.b.leading
        return k - j, c / d

    def series(self, last: int) -> dict[int, Fraction]:
        """Return the coefficients up to a power, by long division."""
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
class Root(_OfPolynomial):
    """The square root of a > 0."""

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
        """Return the coefficients up to a power, each from those before."""
        start, leading = self.leading
        given, found = dict(self.a.terms), {start: leading}
        for power in range(start + 1, last + 1):
            known = sum(found[i] * found[start + power - i] for i in range(start + 1, power))
            found[power] = (given.get(start + power, Fraction(0)) - known) / (2 * leading)
        return {k: c for k, c in found.items() if k <= last}

    def minus(self, y: Polynomial) -> Polynomial:
        """Return ``a - y**2``."""
        return self.a - y * y


#: A number to be rounded: it gives its leading term, the coefficients up to a power of t, which may be any
#: rational numbers, and a polynomial with the sign of its difference from a y >= 0.
Real = Exactly | Ratio | Root


# -- rounding ---------------------------------------------------------------------------------------------
#: The mode that rounds the magnitude of a negative number.
MIRRORED = {Mode.UP: Mode.DOWN, Mode.DOWN: Mode.UP}


def rounded(x: Real, mode: Mode, ledger: Ledger) -> Polynomial:
    """Round a positive number to precision p, for all large p.

    Parameters
    ----------
    x : Real
        The exact number.
    mode : Mode
        Any but stochastic.
    ledger : Ledger
        Collects the obligations.

    Raises
    ------
    UndecidedError
        If the result is not a polynomial with dyadic coefficients.
    """
    low = binade(x)
    ledger.require(Relation.NOT_NEGATIVE, x.minus(low), "not below its binade")
    ledger.require(Relation.POSITIVE, -x.minus(low * 2), "below the next binade")
    ulp = 2 * low * unit(low.over)
    whole = integer_part(x, ulp)
    ledger.require(Relation.INTEGER, whole, "integer part")
    ledger.require(Relation.POSITIVE, whole, "integer part")  # comparisons by squares assume it
    rest = x.minus(whole * ulp)
    if rest and mode in (Mode.UP, Mode.TO_ODD):  # these depend on whether the number is inexact
        ledger.require(Relation.POSITIVE, rest, "inexact")
    else:
        ledger.require(Relation.NOT_NEGATIVE, rest, "not below its integer part")
    ledger.require(Relation.POSITIVE, -x.minus((whole + 1) * ulp), "below the next integer")
    if not rest:
        return whole * ulp
    return (whole + int(goes_up(x, whole, ulp, mode, ledger))) * ulp


def binade(x: Real) -> Polynomial:
    """Propose the largest power of two that is at most a number."""
    power, coefficient = x.leading
    below = Fraction(2) ** floor_log2(coefficient)
    low = Polynomial(((power, below),), x.over)
    return low / 2 if coefficient == below and x.minus(low).sign < 0 else low


def integer_part(x: Real, ulp: Polynomial) -> Polynomial:
    """Propose the largest integer that is at most a number, in units in the last place.

    Raises
    ------
    UndecidedError
        If it is not a polynomial with dyadic coefficients.
    """
    ((power, size),) = ulp.terms
    digits = {k - power: c / size for k, c in x.series(power).items()}
    for k, c in digits.items():
        if k < 0 and not is_dyadic(c):
            raise UndecidedError(f"a coefficient {c} of the result is not dyadic: its last bits depend on p")
    constant = digits.get(0, Fraction(0))
    digits[0] = Fraction(constant.numerator // constant.denominator)
    whole = Polynomial.of(digits, ulp.over)
    return whole - 1 if constant == digits[0] and x.minus(whole * ulp).sign < 0 else whole


def goes_up(x: Real, whole: Polynomial, ulp: Polynomial, mode: Mode, ledger: Ledger) -> bool:
    """Decide whether a number strictly between an integer and the next one rounds up."""
    match mode:
        case Mode.UP:
            return True
        case Mode.DOWN | Mode.TOWARD_ZERO:
            return False
        case Mode.TO_ODD:
            return is_even(whole, ledger)
        case Mode.NEAREST_EVEN | Mode.NEAREST_AWAY:
            side = half_way(x, whole, ulp, ledger)
            if side:
                return side > 0
            return mode is Mode.NEAREST_AWAY or not is_even(whole, ledger)
        case Mode.STOCHASTIC:
            raise UndecidedError("stochastic rounding has no one result")


def half_way(x: Real, whole: Polynomial, ulp: Polynomial, ledger: Ledger) -> int:
    """Decide whether a number is above the midpoint (1), below it (-1), or equal to it for every p (0)."""
    beyond = x.minus((whole + Fraction(1, 2)) * ulp)
    if not beyond:
        ledger.require(Relation.NOT_NEGATIVE, beyond, "half-way")
        return 0
    side = beyond.sign
    ledger.require(Relation.POSITIVE, beyond * side, "above half-way" if side > 0 else "below half-way")
    return side


def is_even(whole: Polynomial, ledger: Ledger) -> bool:
    """Decide the parity of an integer."""
    constant = dict(whole.terms).get(0, Fraction(0))
    even = constant.numerator % 2 == 0
    ledger.require(Relation.EVEN if even else Relation.ODD, whole, "parity")
    return even
