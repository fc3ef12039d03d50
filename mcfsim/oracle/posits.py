"""Posit arithmetic by the definition: codes read bit by bit, exact results compared with exact boundaries.

Nothing here computes in floating point: a Python float only carries a value that it holds exactly.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from mcfsim.formats import Posit
from mcfsim.oracle.rationals import NEAREST_EVEN, compared, exact_result, goes_outward
from mcfsim.rounding import Mode, Rounding


def posit_value(code: int, fmt: Posit) -> Fraction | None:
    """Return the value of a code, or None for NaR.

    Parameters
    ----------
    code : int
        From 0 to ``2**n - 1``.
    fmt : Posit
        The format.

    Raises
    ------
    ValueError
        If the code is out of range.

    Examples
    --------
    >>> posit_value(0x7E, Posit(8)), posit_value(0xC0, Posit(8)), posit_value(0x80, Posit(8))
    (Fraction(1048576, 1), Fraction(-1, 1), None)
    """
    if not 0 <= code < 2**fmt.bits:
        raise ValueError(f"code {code} of {fmt} is not from 0 to 2**{fmt.bits} - 1")
    if code == 0:
        return Fraction(0)
    if code == 2 ** (fmt.bits - 1):
        return None
    if code > 2 ** (fmt.bits - 1):
        return -_value(2**fmt.bits - code, fmt.bits, fmt.es)
    return _value(code, fmt.bits, fmt.es)


def round_posit(value: Fraction, fmt: Posit, rounding: Rounding = NEAREST_EVEN) -> Fraction:
    """Return a rational number rounded to a posit.

    Parameters
    ----------
    value : Fraction
        The exact number.
    fmt : Posit
        The target.
    rounding : Rounding, optional
        The mode; policies make no difference.

    Raises
    ------
    ValueError
        If the mode is stochastic.

    Examples
    --------
    >>> [int(round_posit(Fraction(2**e), Posit(8))).bit_length() - 1 for e in (21, 22, 23)]
    [20, 20, 24]
    """
    if not value:
        return value
    negative = value.numerator < 0
    rounded = _rounded(abs(value), negative, fmt, rounding.mode)
    return -rounded if negative else rounded


def truncated_code(magnitude: Fraction, fmt: Posit, power: int = 1) -> int:
    """Return the code of the greatest posit whose power is at most `magnitude`; 0 if there is none.

    These are the leading bits of the code of `magnitude` in a posit format of more bits and the same es.
    """
    bits, es = fmt.bits, fmt.es
    # In units of the smallest posit's power the powers of all posits are integers: the integer part decides.
    numerator, denominator = magnitude.as_integer_ratio()
    whole = numerator * _value(1, bits, es, power).denominator // denominator
    return bisect(range(1, 2 ** (bits - 1)), whole, key=lambda code: _in_units(code, bits, es, power))


def operate_posit(
    name: str, operands: Sequence[float | Fraction], fmt: Posit, rounding: Rounding = NEAREST_EVEN
) -> float:
    """Return the exact result of an operation, rounded once to a posit.

    Parameters
    ----------
    name : {"round", "add", "sub", "mul", "div", "sqrt", "fma"}
        The operation; ``fma`` of x, y, z is ``x * y + z``.
    operands : sequence of float or Fraction
        The operands: any real numbers. NaN and infinities stand for NaR.
    fmt : Posit
        The format of the result; binary64 must hold its values.
    rounding : Rounding, optional
        The mode; policies make no difference.

    Returns
    -------
    float
        A posit, or NaN for NaR; zero is positive. NaR results from an operand NaR, a division by zero, or
        the square root of a negative number.

    Raises
    ------
    ValueError
        If there is no operation of this name with this number of operands, the mode is stochastic, or
        binary64 does not hold every value of the format.
    """
    if fmt.precision > 53 or fmt.emin < -1022:
        raise ValueError(f"{fmt} has numbers that binary64 does not hold")
    if not all(type(operand) is Fraction or math.isfinite(operand) for operand in operands):
        return math.nan
    numbers = [Fraction(operand) for operand in operands]
    match name, numbers:
        case "div", [_, 0]:
            return math.nan
        case "sqrt", [x]:
            if x <= 0:
                return math.nan if x else 0.0
            return float(_rounded(x, False, fmt, rounding.mode, power=2))
        case "round", [x]:
            return float(round_posit(x, fmt, rounding))
    return float(round_posit(exact_result(name, numbers), fmt, rounding))


# -- magnitudes -----------------------------------------------------------------------------------------
def _rounded(exact: Fraction, negative: bool, fmt: Posit, mode: Mode, power: int = 1) -> Fraction:
    """Return the rounding of the number whose power is `exact`; powers are ordered like magnitudes."""
    bits, es = fmt.bits, fmt.es
    code = truncated_code(exact, fmt, power)
    if code in (0, 2 ** (bits - 1) - 1):
        return _value(max(code, 1), bits, es)
    below, above = _value(code, bits, es), _value(code + 1, bits, es)
    if exact == _value(code, bits, es, power):
        return below
    # The boundary is the posit of one more bit: the lower code followed by a one.
    boundary = _value(2 * code + 1, bits + 1, es, power)
    beyond = compared(exact.as_integer_ratio(), boundary)
    return above if goes_outward(mode, negative, code % 2 == 1, beyond) else below


@lru_cache(maxsize=1 << 16)
def _in_units(code: int, bits: int, es: int, power: int) -> int:
    """Return a power of the value of a code in units of that of the smallest posit, whose numerator is 1."""
    return int(_value(code, bits, es, power) * _value(1, bits, es, power).denominator)


@lru_cache(maxsize=1 << 16)
def _value(code: int, bits: int, es: int, power: int = 1) -> Fraction:
    """Return a power of the value of a nonzero code that begins with a zero bit."""
    digits = format(code, f"0{bits}b")[1:]
    run = len(digits) - len(digits.lstrip(digits[0]))
    k = run - 1 if digits[0] == "1" else -run
    after_regime = digits[run + 1 :]
    exponent = int("0" + after_regime[:es].ljust(es, "0"), 2)
    fraction = after_regime[es:]
    significand = 1 + Fraction(int("0" + fraction, 2), 2 ** len(fraction))
    scale = (k << es) + exponent
    value = significand * (1 << scale) if scale >= 0 else significand / (1 << -scale)
    return value**power
