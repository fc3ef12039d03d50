"""Rounding for every precision at once: each decision read off leading terms, and then demanded.

What is read off is a proposal. What makes it right are the obligations: that the number lies in the proposed
binade, between the proposed integer and the next one in units in the last place, and on which side of their
middle. They determine the rounded number, whatever the proposal came from.
"""

from __future__ import annotations

from fractions import Fraction

from mcfsim.rounding import Mode
from mcfsim.symbolic.decisions import Ledger, Relation, UndecidedError
from mcfsim.symbolic.polynomial import Polynomial, is_dyadic
from mcfsim.symbolic.reals import Real

#: The mode for the magnitude of a negative number.
MIRRORED = {Mode.UP: Mode.DOWN, Mode.DOWN: Mode.UP}


def rounded(x: Real, mode: Mode, ledger: Ledger) -> Polynomial:
    """Return a positive number rounded to precision p, for every p from some one on.

    Parameters
    ----------
    x : Real
        The exact number.
    mode : Mode
        Any but stochastic.
    ledger : Ledger
        Takes the obligations.

    Raises
    ------
    UndecidedError
        If the result is no polynomial with dyadic coefficients.
    """
    low = binade(x)
    ledger.require(Relation.NOT_NEGATIVE, x.minus(low), "not below its binade")
    ledger.require(Relation.POSITIVE, -x.minus(low * 2), "below the next binade")
    ulp = unit_in_last_place(low)
    whole = integer_part(x, ulp)
    ledger.require(Relation.INTEGER, whole, "integer part")
    ledger.require(Relation.POSITIVE, whole, "integer part")  # as comparisons by squares suppose
    rest = x.minus(whole * ulp)
    if rest and is_inexact_needed(mode):
        ledger.require(Relation.POSITIVE, rest, "inexact")
    else:
        ledger.require(Relation.NOT_NEGATIVE, rest, "not below its integer part")
    ledger.require(Relation.POSITIVE, -x.minus((whole + 1) * ulp), "below the next integer")
    if not rest:
        return whole * ulp
    return (whole + int(goes_up(x, whole, ulp, mode, ledger))) * ulp


def binade(x: Real) -> Polynomial:
    """Propose the largest power of two that is not above a number."""
    power, coefficient = x.leading
    below = Fraction(2) ** floor_log2(coefficient)
    low = Polynomial(((power, below),), x.over)
    return low / 2 if coefficient == below and x.minus(low).sign < 0 else low


def unit_in_last_place(low: Polynomial) -> Polynomial:
    """Return the distance of neighbours in a binade: 2 u times its lower end."""
    return low * Polynomial((low.over.unit,), low.over) * 2


def integer_part(x: Real, ulp: Polynomial) -> Polynomial:
    """Propose the largest integer that is not above a number, in units in the last place.

    Raises
    ------
    UndecidedError
        If it is no polynomial with dyadic coefficients.
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
    """Decide between an integer and the next one, for a number strictly between."""
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
    """Decide whether a number is above the middle, below it, or, for every p, the middle itself."""
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


def is_inexact_needed(mode: Mode) -> bool:
    """Return whether a result depends on whether the number is one already."""
    return mode in (Mode.UP, Mode.TO_ODD)


def floor_log2(number: Fraction) -> int:
    """Return the exponent e with ``2**e <= number < 2**(e + 1)`` of a positive number."""
    e = number.numerator.bit_length() - number.denominator.bit_length()
    return e if Fraction(2) ** e <= number else e - 1
