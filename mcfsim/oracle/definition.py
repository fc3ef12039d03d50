"""Rounding and arithmetic by the definition: an exact rational result, rounded once, on Python integers.

Nothing here computes in floating point: a Python float only carries a value that it holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from mcfsim.formats import Format, Parity
from mcfsim.formats.posit import Posit
from mcfsim.oracle.posits import operate_posit, round_posit
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

#: IEEE 754's default: to nearest, ties to even, overflow to infinity.
NEAREST_EVEN = Rounding()
NO_ONE_RESULT = "stochastic rounding has no one result; the oracle rounds in the other modes"

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
    if value == 0:
        return _zero(negative_zero, fmt)
    tiny = abs(value) < fmt.smallest_normal
    if tiny and rounding.underflow in (Underflow.FLUSH_BEFORE, Underflow.FLUSH_INPUTS):
        return _zero(value < 0, fmt)
    exponent = floor_log2(abs(value))
    if rounding.underflow is Underflow.FLUSH_AFTER and tiny:
        unbounded = _round_at(value, exponent - fmt.precision + 1, exponent, fmt, rounding.mode)
        if abs(unbounded) < fmt.smallest_normal:
            return _zero(value < 0, fmt)
        rounded = unbounded
    elif tiny and not fmt.zero:
        rounded = fmt.smallest_normal if value > 0 else -fmt.smallest_normal
    else:
        # The exponent is bounded below only: a number past the maximum is first rounded, then tested.
        exponent = max(exponent, fmt.emin)
        rounded = _round_at(value, exponent - fmt.precision + 1, exponent, fmt, rounding.mode)
    if rounded == 0:
        return _zero(value < 0, fmt)
    if rounded < 0 and not fmt.signed:
        return negative_value(fmt, rounding)
    if not fmt.lowest <= rounded <= fmt.max:
        return overflow_value(value < 0, fmt, rounding)
    return float(rounded)


def round_float(value: float, fmt: Format, rounding: Rounding = NEAREST_EVEN) -> float:
    """Return a float rounded to a format: `round_fraction` extended to NaN, infinities and signed zeros."""
    if math.isnan(value):
        return math.nan
    if math.isinf(value):
        return infinity_value(value < 0, fmt)
    return round_fraction(Fraction(value), fmt, rounding, negative_zero=_negative(value))


def operate(
    name: str, operands: Sequence[float | Fraction], fmt: Format, rounding: Rounding = NEAREST_EVEN
) -> float:
    """Return the exact result of an IEEE 754 operation, rounded once.

    Parameters
    ----------
    name : {"add", "sub", "mul", "div", "sqrt", "fma"}
        The operation; ``fma`` of x, y, z is ``x * y + z``.
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
    if isinstance(fmt, Posit):
        return operate_posit(name, operands, fmt, rounding)
    match name, operands:
        case "add", [x, y]:
            return _multiply_add(x, 1.0, y, fmt, rounding)
        case "sub", [x, y]:
            return _multiply_add(x, 1.0, -y, fmt, rounding)
        case "mul", [x, y]:  # a zero of the product's own sign changes neither its value nor its sign
            return _multiply_add(x, y, -0.0 if _negative(x) != _negative(y) else 0.0, fmt, rounding)
        case "fma", [x, y, z]:
            return _multiply_add(x, y, z, fmt, rounding)
        case "div", [x, y]:
            return _divide(x, y, fmt, rounding)
        case "sqrt", [x]:
            return _square_root(x, fmt, rounding)
        case _:
            raise ValueError(f"there is no operation {name!r} of {len(operands)} operands")


def overflow_value(negative: bool, fmt: Format, rounding: Rounding) -> float:
    """Return the result for a finite number that rounds past the maximum, see `Overflow`."""
    match rounding.mode:
        case Mode.NEAREST_EVEN | Mode.NEAREST_AWAY:
            outward = True
        case Mode.UP:
            outward = not negative
        case Mode.DOWN:
            outward = negative
        case Mode.TOWARD_ZERO | Mode.TO_ODD:
            outward = False
        case Mode.STOCHASTIC:
            raise ValueError(NO_ONE_RESULT)
    if outward and rounding.overflow is Overflow.IEEE and fmt.has_nan:
        return infinity_value(negative, fmt)
    return float(fmt.lowest if negative else fmt.max)


def infinity_value(negative: bool, fmt: Format) -> float:
    """Return the infinity of a format, or NaN if it has none of that sign."""
    if not fmt.has_infinity or (negative and not fmt.signed):
        return math.nan
    return -math.inf if negative else math.inf


def negative_value(fmt: Format, rounding: Rounding) -> float:
    """Return the result for a finite number that rounds to a negative number in an unsigned format."""
    saturates = rounding.overflow is Overflow.SATURATE or not fmt.has_nan
    return float(fmt.lowest) if saturates else math.nan


# -- the operations -------------------------------------------------------------------------------------
def _multiply_add(x: Number, y: Number, z: Number, fmt: Format, rounding: Rounding) -> float:
    if any(map(_is_nan, (x, y, z))):
        return math.nan
    negative = _negative(x) != _negative(y)  # the product's sign
    if _is_infinite(x) or _is_infinite(y):
        opposed = _is_infinite(z) and _negative(z) != negative
        return math.nan if opposed or x == 0 or y == 0 else infinity_value(negative, fmt)
    if _is_infinite(z):
        return infinity_value(_negative(z), fmt)
    # An exactly zero sum has the sign that both terms share. If the signs differ, it is negative in the mode
    # down and positive in the others (IEEE 754-2019, 6.3).
    share = any if rounding.mode is Mode.DOWN else all
    return round_fraction(
        Fraction(x) * Fraction(y) + Fraction(z), fmt, rounding, negative_zero=share((negative, _negative(z)))
    )


def _divide(x: Number, y: Number, fmt: Format, rounding: Rounding) -> float:
    negative = _negative(x) != _negative(y)
    if _is_nan(x) or _is_nan(y) or (_is_infinite(x) and _is_infinite(y)) or (x == 0 and y == 0):
        return math.nan
    if _is_infinite(x) or y == 0:
        return infinity_value(negative, fmt)
    quotient = Fraction(0) if _is_infinite(y) else Fraction(x) / Fraction(y)
    return round_fraction(quotient, fmt, rounding, negative_zero=negative)


def _square_root(x: Number, fmt: Format, rounding: Rounding) -> float:
    if _is_nan(x) or x < 0:
        return math.nan
    if _is_infinite(x):
        return infinity_value(False, fmt)
    # In units of 2**-scale every number of the format, and every midpoint of neighbours, is an integer. Every
    # mode therefore rounds a root between two consecutive integers like their midpoint.
    scale = max(fmt.precision - fmt.emin, 0)
    square = Fraction(x) * 4**scale
    root = math.isqrt(math.floor(square))
    twice_root = 2 * root + (root * root != square)
    return round_fraction(Fraction(twice_root, 2 ** (scale + 1)), fmt, rounding, negative_zero=_negative(x))


# -- integers and signs ---------------------------------------------------------------------------------
def round_integer(value: Fraction, mode: Mode) -> int:
    """Return a rational number rounded to an integer in the given mode."""
    match mode:
        case Mode.NEAREST_EVEN:
            return round(value)  # Python rounds a half to the even integer, exactly
        case Mode.NEAREST_AWAY:
            nearest = math.floor(abs(value) + Fraction(1, 2))
            return -nearest if value < 0 else nearest
        case Mode.TOWARD_ZERO:
            return math.trunc(value)
        case Mode.UP:
            return math.ceil(value)
        case Mode.DOWN:
            return math.floor(value)
        case Mode.TO_ODD:
            below = math.floor(value)
            return below if below == value or below % 2 == 1 else below + 1
        case Mode.STOCHASTIC:
            raise ValueError(NO_ONE_RESULT)


def floor_log2(value: Fraction) -> int:
    """Return the exponent e with ``2**e <= value < 2**(e + 1)`` for a positive number."""
    numerator, denominator = value.numerator, value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()
    return exponent if numerator << max(-exponent, 0) >= denominator << max(exponent, 0) else exponent - 1


def _times_power(value: Fraction, exponent: int) -> Fraction:
    """Return ``value * 2**exponent``."""
    if exponent >= 0:
        return Fraction(value.numerator << exponent, value.denominator)
    return Fraction(value.numerator, value.denominator << -exponent)


def _round_at(value: Fraction, scale: int, exponent: int, fmt: Format, mode: Mode) -> Fraction:
    """Return a number rounded to a multiple of ``2**scale``, the quantum of numbers with its exponent."""
    quanta = _times_power(value, -scale)
    whole = round_integer(quanta, mode)
    if fmt.parity is Parity.CODE and 1 < abs(quanta) < 2:
        # One significand bit: the neighbours are 1 and 2 quanta, even or odd like their exponent fields.
        odd_below = (exponent + fmt.bias) % 2 == 1
        sign = -1 if value < 0 else 1
        if mode is Mode.TO_ODD:
            whole = sign * (1 if odd_below else 2)
        elif mode is Mode.NEAREST_EVEN and abs(quanta) == Fraction(3, 2):
            whole = sign * (2 if odd_below else 1)
    return _times_power(Fraction(whole), scale)


def _without_small(operand: Number, fmt: Format) -> Number:
    """Return an operand, or a zero of its sign if it is below the smallest normal number."""
    small = not (_is_nan(operand) or _is_infinite(operand)) and abs(Fraction(operand)) < fmt.smallest_normal
    return (-0.0 if _negative(operand) else 0.0) if small else operand


def _zero(negative: bool, fmt: Format) -> float:
    if not fmt.zero:
        return math.nan
    return -0.0 if negative and fmt.has_negative_zero else 0.0


def _negative(value: Number) -> bool:
    """Return whether the sign is negative, also of a zero."""
    return value < 0 if isinstance(value, Fraction) else math.copysign(1.0, value) < 0


def _is_nan(value: Number) -> bool:
    return value != value


def _is_infinite(value: Number) -> bool:
    return not isinstance(value, Fraction) and math.isinf(value)
