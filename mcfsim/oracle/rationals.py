"""Rational numbers: exact operations, and the integers to which they round in each mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from mcfsim.rounding import Mode, Rounding

#: IEEE 754's default: to nearest, ties to even, overflow to infinity.
NEAREST_EVEN = Rounding()
NO_ONE_RESULT = "stochastic rounding has no one result; the oracle rounds in the other modes"
#: A numerator and a denominator; a Fraction would spend time on looking for common factors.
Ratio = tuple[int, int]


def goes_outward(mode: Mode, negative: Any, odd: Any, beyond: Any) -> Any:
    """Return whether a number between two neighbours rounds to the one of larger magnitude.

    Parameters
    ----------
    mode : Mode
    negative : bool or array of bool
        Whether the number is negative.
    odd : bool or array of bool
        Whether the neighbour of smaller magnitude is odd.
    beyond : int or array of int
        An integer with the sign of the number's magnitude minus the midpoint.

    Raises
    ------
    ValueError
        If the mode is stochastic.
    """
    match mode:
        case Mode.NEAREST_EVEN:
            return beyond + odd > 0
        case Mode.NEAREST_AWAY:
            return beyond >= 0
        case Mode.TOWARD_ZERO:
            return False
        case Mode.UP:
            return negative ^ True
        case Mode.DOWN:
            return negative
        case Mode.TO_ODD:
            return odd ^ True
        case Mode.STOCHASTIC:
            raise ValueError(NO_ONE_RESULT)


def compared(x: Ratio, y: Fraction) -> int:
    """Return an integer with the sign of ``x - y``."""
    return x[0] * y.denominator - y.numerator * x[1]


def round_integer(value: Fraction, mode: Mode) -> int:
    """Return a rational number rounded to an integer."""
    negative = value.numerator < 0
    magnitude = round_magnitude(abs(value.numerator), value.denominator, negative, mode)
    return -magnitude if negative else magnitude


def round_magnitude(
    numerator: int, denominator: int, negative: bool, mode: Mode, odd: bool | None = None
) -> int:
    """Return the magnitude of a rational number rounded to an integer; see `round_integer`."""
    whole, rest = divmod(numerator, denominator)
    odd = whole % 2 == 1 if odd is None else odd
    return whole + ((rest > 0) & goes_outward(mode, negative, odd, 2 * rest - denominator))  # type: ignore[no-any-return]


def floor_log2(value: Fraction) -> int:
    """Return the exponent e with ``2**e <= abs(value) < 2**(e + 1)`` for a number other than zero."""
    numerator, denominator = abs(value.numerator), value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    return exponent if numerator << max(-exponent, 0) >= denominator << max(exponent, 0) else exponent - 1


def times_power(value: Fraction, exponent: int) -> Fraction:
    """Return ``value * 2**exponent``."""
    return Fraction(value.numerator << max(exponent, 0), value.denominator << max(-exponent, 0))


def exact_result(name: str, operands: Sequence[Fraction]) -> Fraction:
    """Return the exact result of a rational operation.

    Raises
    ------
    ValueError
        If there is no operation of this name with this number of operands.
    """
    match name, operands:
        case "add", [x, y]:
            return x + y
        case "sub", [x, y]:
            return x - y
        case "mul", [x, y]:
            return x * y
        case "div", [x, y]:
            return x / y
        case "fma", [x, y, z]:
            return x * y + z
    raise ValueError(f"there is no operation {name!r} of {len(operands)} operands")


def root_between(value: Fraction, scale: int) -> Fraction:
    """Return the square root of a number if it is an integer in units of ``2**-scale``.

    Between two consecutive integers, return their midpoint: where all numbers of a format, and all midpoints
    of neighbours, are integers, every mode rounds both alike.
    """
    square = times_power(value, 2 * scale)
    root = math.isqrt(math.floor(square))
    return times_power(Fraction(2 * root + (root * root != square)), -scale - 1)
