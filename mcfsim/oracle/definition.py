"""Rounding and arithmetic by the definition: an exact rational result, rounded once, on Python integers.

Nothing here computes in floating point: a Python float only carries a value that it holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format, Parity
from mcfsim.formats.posit import Posit
from mcfsim.oracle.functions import FUNCTIONS, function_value
from mcfsim.oracle.posits import operate_posit, round_posit
from mcfsim.oracle.rationals import (
    NEAREST_EVEN,
    Ratio,
    compared,
    floor_log2,
    goes_outward,
    root_between,
    round_magnitude,
)
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

#: A real number; only a float can be NaN, an infinity or a signed zero.
Number = float | Fraction


def round_fraction(
    value: Fraction, fmt: Format, rounding: Rounding = NEAREST_EVEN, *, negative_zero: bool = False
) -> float:
    """Return a rational number rounded to a format.

    Parameters
    ----------
    value : Fraction
        The exact number.
    fmt : Format
        The target. Binary64 must hold its numbers, because the result is a float.
    rounding : Rounding, optional
        Mode and policies. With ``flush_inputs`` the number is treated as an operand.
    negative_zero : bool, optional
        Whether a `value` of zero stands for negative zero. A nonzero `value` that rounds to zero keeps its
        own sign. Either zero is positive in a format without negative zero.

    Returns
    -------
    float
        A number of the format, an infinity if the format has them, or NaN, whether it has a code or not.

    Raises
    ------
    ValueError
        If binary64 does not hold every number of the format.

    Examples
    --------
    >>> from mcfsim.formats import get_format
    >>> round_fraction(Fraction(1, 3), get_format("e4m3fn"))
    0.34375
    """
    if isinstance(fmt, Posit):
        return float(round_posit(value, fmt, rounding))
    if fmt.precision > 53 or fmt.emin - fmt.precision + 1 < -1074 or fmt.emax > 1023:
        raise ValueError(f"{fmt} has numbers that binary64 does not hold")
    if not value:
        return _zero(negative_zero, fmt)
    negative, magnitude = value.numerator < 0, (abs(value.numerator), value.denominator)
    tiny = compared(magnitude, fmt.smallest_normal) < 0
    if tiny and rounding.underflow in (Underflow.FLUSH_BEFORE, Underflow.FLUSH_INPUTS):
        return _zero(negative, fmt)
    flushed = tiny and rounding.underflow is Underflow.FLUSH_AFTER
    if tiny and not fmt.zero and not flushed:
        rounded = fmt.smallest_normal.as_integer_ratio()
    else:
        # The exponent is bounded below only: a number past the maximum is first rounded, then tested.
        exponent = floor_log2(value) if flushed else max(floor_log2(value), fmt.emin)
        rounded = _round_at(magnitude, negative, exponent, fmt, rounding.mode)
    if rounded[0] == 0 or (flushed and compared(rounded, fmt.smallest_normal) < 0):
        return _zero(negative, fmt)
    if negative and not fmt.signed:
        return negative_value(fmt, rounding)
    if compared(rounded, abs(fmt.lowest) if negative else fmt.max) > 0:
        return overflow_value(negative, fmt, rounding)
    return _signed(rounded[0] / rounded[1], negative)  # which binary64 holds


def round_float(value: Number, fmt: Format, rounding: Rounding = NEAREST_EVEN) -> float:
    """Return a number rounded to a format: `round_fraction` extended to NaN, infinities and signed zeros."""
    if _is_infinite(value):
        return infinity_value(value < 0, fmt)
    if _is_nan(value):
        return math.nan
    exact = value if type(value) is Fraction else Fraction(value)
    return round_fraction(exact, fmt, rounding, negative_zero=_negative(value))


def operate(
    name: str, operands: Sequence[float | Fraction], fmt: Format, rounding: Rounding = NEAREST_EVEN
) -> float:
    """Return the exact result of an IEEE 754 operation, rounded once.

    Parameters
    ----------
    name : {"add", "sub", "mul", "div", "sqrt", "fma"} or an elementary function
        The operation; ``fma`` of x, y, z is ``x * y + z``. For functions see
        `mcfsim.oracle.functions.function_value`.
    operands : sequence of float or Fraction
        The operands: any real numbers, infinities and NaN.
    fmt : Format
        The format of the result.
    rounding : Rounding, optional
        Mode and overflow policy. An exact infinity, such as 1 / 0, is no overflow: in a format without
        infinity it becomes NaN, whatever the policy.

    Raises
    ------
    ValueError
        If there is no operation of this name with this number of operands.
    """
    if rounding.underflow is Underflow.FLUSH_INPUTS:
        operands = [_without_small(operand, fmt) for operand in operands]
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
    if not fmt.has_negative_zero:  # a zero operand is the zero of the format
        operands = [x if x else 0.0 for x in operands]
    if name in FUNCTIONS and len(operands) == 1:
        (x,) = operands
        if isinstance(fmt, Posit) and _is_infinite(x):  # which stands for NaR
            return math.nan
        return function_value(name, x, partial(round_float, fmt=fmt, rounding=rounding))
    if isinstance(fmt, Posit):
        return operate_posit(name, operands, fmt, rounding)
    down = rounding.mode is Mode.DOWN
    match name, operands:
        case "add", [x, y]:
            exact = _multiply_add(x, 1.0, y, down)
        case "sub", [x, y]:
            exact = _multiply_add(y, -1.0, x, down)  # -y of a fraction zero would be positive
        case "mul", [x, y]:  # a zero of the product's own sign changes neither its value nor its sign
            exact = _multiply_add(x, y, _signed(0.0, _negative(x) != _negative(y)), down)
        case "fma", [x, y, z]:
            exact = _multiply_add(x, y, z, down)
        case "div", [x, y]:
            exact = _divide(x, y)
        case "sqrt", [x]:
            exact = _square_root(x, fmt)
        case _:
            raise ValueError(f"there is no operation {name!r} of {len(operands)} operands")
    return round_float(exact, fmt, rounding)


def overflow_value(negative: bool, fmt: Format, rounding: Rounding) -> float:
    """Return the result for a finite number that rounds past the maximum, see `Overflow`."""
    # The maximum counts as odd, and a number past it as above every midpoint.
    outward = goes_outward(rounding.mode, negative, True, 1)
    if outward and rounding.overflow is Overflow.IEEE and fmt.has_nan:
        return infinity_value(negative, fmt)
    return float(fmt.lowest if negative else fmt.max)


def infinity_value(negative: bool, fmt: Format) -> float:
    """Return the infinity of a format, or NaN if it has none of that sign."""
    if not fmt.has_infinity or (negative and not fmt.signed):
        return math.nan
    return _signed(math.inf, negative)


def negative_value(fmt: Format, rounding: Rounding) -> float:
    """Return the result for a finite number that rounds to a negative number in an unsigned format."""
    saturates = rounding.overflow is Overflow.SATURATE or not fmt.has_nan
    return float(fmt.lowest) if saturates else math.nan


# -- exact results: a zero, an infinity or NaN as a float, any other number as a fraction ------------------
def _multiply_add(x: Number, y: Number, z: Number, down: bool) -> Number:
    if any(map(_is_nan, (x, y, z))):
        return math.nan
    negative = _negative(x) != _negative(y)  # the product's sign
    if _is_infinite(x) or _is_infinite(y):
        opposed = _is_infinite(z) and _negative(z) != negative
        return math.nan if opposed or x == 0 or y == 0 else _signed(math.inf, negative)
    if _is_infinite(z):
        return z
    # An exactly zero sum has the sign that both terms share. If the signs differ, it is negative in the mode
    # down and positive in the others (IEEE 754-2019, 6.3).
    share = any if down else all
    (a, b), (c, d), (e, f) = x.as_integer_ratio(), y.as_integer_ratio(), z.as_integer_ratio()
    return Fraction(a * c * f + e * b * d, b * d * f) or _signed(0.0, share((negative, _negative(z))))


def _divide(x: Number, y: Number) -> Number:
    negative = _negative(x) != _negative(y)
    if _is_nan(x) or _is_nan(y) or (_is_infinite(x) and _is_infinite(y)) or (x == 0 and y == 0):
        return math.nan
    if _is_infinite(x) or y == 0:
        return _signed(math.inf, negative)
    if _is_infinite(y) or x == 0:
        return _signed(0.0, negative)
    (a, b), (c, d) = x.as_integer_ratio(), y.as_integer_ratio()
    return Fraction(a * d, b * c)


def _square_root(x: Number, fmt: Format) -> Number:
    if _is_nan(x) or x < 0:
        return math.nan
    if _is_infinite(x) or x == 0:
        return x
    # In these units every number of the format, and every midpoint of neighbours, is an integer; also below
    # the smallest normal number, where the exponent is unbounded.
    return root_between(Fraction(x), max(fmt.precision - fmt.emin + 1, 0))


# -- quanta and signs -----------------------------------------------------------------------------------
def _round_at(magnitude: Ratio, negative: bool, exponent: int, fmt: Format, mode: Mode) -> Ratio:
    """Return a magnitude rounded to a multiple of the quantum of numbers with an exponent."""
    scale = exponent - fmt.precision + 1
    numerator, denominator = magnitude[0] << max(-scale, 0), magnitude[1] << max(scale, 0)
    # One significand bit: the neighbours are 1 and 2 quanta, even or odd like their exponent fields.
    of_code = fmt.parity is Parity.CODE and denominator < numerator < 2 * denominator
    odd = (exponent + fmt.bias) % 2 == 1 if of_code else None
    quanta = round_magnitude(numerator, denominator, negative, mode, odd)
    return quanta << max(scale, 0), 1 << max(-scale, 0)


def _without_small(operand: Number, fmt: Format) -> Number:
    """Return an operand, or a zero of its sign if it is below the smallest normal number."""
    small = not (_is_nan(operand) or _is_infinite(operand)) and abs(Fraction(operand)) < fmt.smallest_normal
    return _signed(0.0, _negative(operand)) if small else operand


def _zero(negative: bool, fmt: Format) -> float:
    if not fmt.zero:
        return math.nan
    return _signed(0.0, negative and fmt.has_negative_zero)


def _signed(magnitude: float, negative: bool) -> float:
    return -magnitude if negative else magnitude


def _negative(value: Number) -> bool:
    """Return whether a number, or a zero, has a negative sign."""
    return value.numerator < 0 if type(value) is Fraction else math.copysign(1.0, value) < 0


def _is_nan(value: Number) -> bool:
    return type(value) is not Fraction and value != value


def _is_infinite(value: Number) -> bool:
    return type(value) is not Fraction and math.isinf(value)
