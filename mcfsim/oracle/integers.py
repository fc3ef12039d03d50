"""The arithmetic of `mcfsim.oracle.definition` in int64 arrays, for hundreds of millions of operands.

Each float64 is split into its sign, an integer significand and an exponent. Integer arithmetic then gives the
exact result, an integer is rounded once, and the result is assembled as a bit pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.formats import Format, Parity
from mcfsim.oracle.definition import infinity_value, negative_value, overflow_value
from mcfsim.oracle.rationals import NEAREST_EVEN, goes_outward
from mcfsim.rounding import Mode, Rounding, Underflow

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Significands(NamedTuple):
    """Arrays of numbers ``(-1)**negative * significand * 2**exponent``, infinities and NaN.

    A zero has the significand 0 and any exponent. Where `infinite` or `nan` is set, the exponent is
    meaningless; `nan` takes precedence. The significand of an infinity is not 0.
    """

    negative: Bools
    significand: Integers
    exponent: Integers
    infinite: Bools
    nan: Bools


def split(x: Floats) -> Significands:
    """Return floats split into sign, significand of 53 bits, and exponent."""
    code = x.view(np.int64)
    field = (code >> 52) & 0x7FF
    fraction = code & (2**52 - 1)
    return Significands(
        negative=code < 0,
        significand=fraction | (np.minimum(field, 1) << 52),
        exponent=np.maximum(field, 1) - 1075,
        infinite=np.isinf(x),
        nan=np.isnan(x),
    )


def round_parts(exact: Significands, fmt: Format, rounding: Rounding) -> Floats:
    """Return numbers with significands below ``2**53``, rounded to the format."""
    negative, significand, exponent, infinite, nan = exact
    # A float64 holds the significand exactly, so its exponent field gives the length in bits.
    length = (significand.astype(np.float64).view(np.int64) >> 52) - 1022
    tiny = (significand > 0) & (length + exponent <= fmt.emin)
    least = fmt.emin + 1 - exponent
    if rounding.underflow is Underflow.FLUSH_AFTER:
        least = np.where(tiny, length, least)
    excess = np.maximum(np.maximum(length, least) - fmt.precision, 0)
    # Every significand is below half of 2**54: dropping more than 54 bits does not change the rounding.
    shift = np.minimum(excess, 54)
    unit: Integers = 1 << shift
    kept = significand >> shift
    odd = (kept & 1).astype(np.bool_)
    if fmt.parity is Parity.CODE:  # with one bit, a normal number's code is its exponent field
        odd = np.where(kept == 1, (exponent + excess + fmt.bias) & 1 == 1, odd)
    rest = significand & (unit - 1)
    kept += (rest > 0) & goes_outward(rounding.mode, negative, odd, 2 * rest - unit)
    # The bit pattern of a positive float64 grows with its value, so patterns can be compared instead.
    code = np.where(kept == 0, 0, kept.astype(np.float64).view(np.int64) + ((exponent + excess) << 52))
    smallest = np.float64(fmt.smallest_normal).view(np.int64)
    if rounding.underflow is Underflow.FLUSH_BEFORE:
        code = np.where(tiny, 0, code)
    elif rounding.underflow is Underflow.FLUSH_AFTER:
        code = np.where(code < smallest, 0, code)
    elif not fmt.zero:
        code = np.where(tiny, smallest, code)
    below = np.zeros_like(negative) if fmt.signed else negative & (code != 0)
    overflow = (code > np.float64(fmt.max).view(np.int64)) & ~below
    if not fmt.has_negative_zero:
        negative = negative & (code != 0)
    result = np.where(negative, -code.view(np.float64), code.view(np.float64))
    result[below] = negative_value(fmt, rounding)
    for sign, where in ((False, ~exact.negative), (True, exact.negative)):
        result[where & overflow] = overflow_value(sign, fmt, rounding)
        result[where & infinite] = infinity_value(sign, fmt)
    if not fmt.zero:
        result[(code == 0) & ~infinite] = np.nan
    result[nan] = np.nan
    return result


#: Elements processed at a time, to keep temporary arrays small.
BLOCK = 2**16
#: Largest number of significand bits of an operand: that of float16 and tf32.
OPERAND_BITS = 11
#: Bound on the exponent of an operand's integer significand; it keeps all results in the range of binary64.
OPERAND_EXPONENT = 500


def operate_integers(
    name: str, *operands: ArrayLike, fmt: Format, rounding: Rounding = NEAREST_EVEN
) -> NDArray[np.float64]:
    """Return the exact results of an elementwise IEEE 754 operation, each rounded once.

    Parameters
    ----------
    name : {"add", "sub", "mul", "div", "sqrt", "fma"}
        The operation; ``fma`` of x, y, z is ``x * y + z``.
    *operands : array_like of float64
        The operands, broadcast against each other. Each number has at most 11 significant bits, like the
        numbers of bfloat16, float16, tf32 and the 8-bit formats.
    fmt : Format
        The format of the results, of precision at most 11.
    rounding : Rounding, optional
        Mode and overflow policy, as in `mcfsim.oracle.definition.operate`.

    Raises
    ------
    TypeError
        If an operand is no array of floats of at most 64 bits.
    ValueError
        If there is no operation of this name with this number of operands, or the format or an operand is
        too wide.

    Examples
    --------
    >>> from mcfsim.formats import get_format
    >>> operate_integers("fma", [7.0, 7.0], 37.0, [-1.0, -(2.0**-50)], fmt=get_format("bf16"))
    array([258., 258.])
    """
    if fmt.precision > OPERAND_BITS:
        raise ValueError(f"{fmt} has more than {OPERAND_BITS} significand bits")

    def result(*blocks: Floats) -> Floats:
        operands = [_operand(_taken_in(block, fmt, rounding)) for block in blocks]
        return round_parts(_exact(name, operands, rounding), fmt, rounding)

    return _blockwise(result, operands, fmt)


def round_integers(x: ArrayLike, fmt: Format, rounding: Rounding = NEAREST_EVEN) -> NDArray[np.float64]:
    """Return float64 or narrower numbers rounded elementwise to a format, as by `round_float`.

    Raises
    ------
    TypeError
        If `x` is no array of floats of at most 64 bits.
    ValueError
        If the format has numbers that are not normal numbers of binary64.
    """
    return _blockwise(lambda x: round_parts(split(_taken_in(x, fmt, rounding)), fmt, rounding), (x,), fmt)


def same(a: ArrayLike, b: ArrayLike) -> NDArray[np.bool_]:
    """Return where two arrays agree: both NaN, or equal numbers, with zeros of equal sign."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is no error here
        x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return np.asarray((x.view(np.int64) == y.view(np.int64)) | (np.isnan(x) & np.isnan(y)))


def _taken_in(x: Floats, fmt: Format, rounding: Rounding) -> Floats:
    """Return operands, with zeros in place of small ones if the policy is ``flush_inputs``."""
    if rounding.underflow is not Underflow.FLUSH_INPUTS:
        return x
    zero = np.copysign(0.0, x) if fmt.has_negative_zero else 0.0
    return np.where(np.abs(x) < np.float64(fmt.smallest_normal), zero, x)


def _operand(x: Floats) -> Significands:
    """Return floats split into sign, significand of 11 bits (zero, or at least ``2**10``), and exponent."""
    negative, wide, exponent, infinite, nan = split(x)
    excess = 53 - OPERAND_BITS
    significand, exponent = wide >> excess, exponent + excess
    outside = (significand << excess != wide) | ((np.abs(exponent) > OPERAND_EXPONENT) & (wide != 0))
    if np.any(outside & np.isfinite(x)):
        raise ValueError(
            f"an operand has more than {OPERAND_BITS} significant bits, or lies far out of range"
        )
    return Significands(negative, significand, exponent, infinite, nan)


# -- exact operations -------------------------------------------------------------------------------------
def _exact(name: str, operands: list[Significands], rounding: Rounding) -> Significands:
    """Return the exact result, or a number that rounds like it in every mode to at most 11 bits."""
    down = rounding.mode is Mode.DOWN
    match name, operands:
        case "add", [x, y]:
            return _sum(x, y, down)
        case "sub", [x, y]:
            return _sum(x, y._replace(negative=~y.negative), down)
        case "mul", [x, y]:
            return _product(x, y)
        case "div", [x, y]:
            return _quotient(x, y)
        case "sqrt", [x]:
            return _root(x)
        case "fma", [x, y, z]:
            return _sum(_product(x, y), z, down)
        case _:
            raise ValueError(f"there is no operation {name!r} of {len(operands)} operands")


def _product(x: Significands, y: Significands) -> Significands:
    significand = x.significand * y.significand  # below 2**22
    infinite = x.infinite | y.infinite
    return Significands(
        negative=x.negative ^ y.negative,
        significand=significand,
        exponent=x.exponent + y.exponent,
        infinite=infinite,
        nan=x.nan | y.nan | (infinite & (significand == 0)),
    )


def _sum(x: Significands, y: Significands, down: bool) -> Significands:
    """Return the sum of two operands, or of a product and an operand, on a common exponent.

    The gap between the exponents is clamped to 24, which changes no rounded result. Let the unit be 2 to the
    larger exponent: the term with it is an integer h of at least 2**10 units. The other significand is below
    2**22, so with a gap of 24 or more its term is less than a quarter unit. The sum exceeds 2**9 units. There
    every number of at most 11 bits, and every midpoint of two neighbours among them, is a multiple of a
    quarter unit, and so is h. The true sum and the sum with the clamped gap lie on the same side of h, and no
    such point lies between h and either of them. They therefore round alike, whatever the mode.
    """
    # A zero takes the exponent of the other term, which then keeps its own: there is no gap to clamp.
    x_exponent = np.where(x.significand == 0, y.exponent, x.exponent)
    y_exponent = np.where(y.significand == 0, x.exponent, y.exponent)
    exponent = np.maximum(np.minimum(x_exponent, y_exponent), np.maximum(x_exponent, y_exponent) - 24)
    x_term = x.significand << np.maximum(x_exponent - exponent, 0)
    y_term = y.significand << np.maximum(y_exponent - exponent, 0)
    total = np.where(x.negative, -x_term, x_term) + np.where(y.negative, -y_term, y_term)
    # An exact zero is negative if both terms are; if only one is, in the mode down (IEEE 754-2019, 6.3).
    zero_negative = x.negative | y.negative if down else x.negative & y.negative
    infinity_negative = np.where(x.infinite, x.negative, y.negative)
    infinite = x.infinite | y.infinite
    return Significands(
        negative=np.where(infinite, infinity_negative, np.where(total == 0, zero_negative, total < 0)),
        significand=np.abs(total),
        exponent=exponent,
        infinite=infinite,
        nan=x.nan | y.nan | (x.infinite & y.infinite & (x.negative ^ y.negative)),
    )


def _quotient(x: Significands, y: Significands) -> Significands:
    shift = 12  # a nonzero quotient exceeds 2**10 * 2**12 / 2**11: its integer part has at least 12 bits
    zero = y.significand == 0
    divisor = np.where(zero, 1, y.significand)
    dividend = x.significand << shift
    quotient = dividend // divisor
    return Significands(
        negative=x.negative ^ y.negative,
        significand=np.where(y.infinite, 0, _with_sticky(quotient, quotient * divisor != dividend)),
        exponent=x.exponent - y.exponent - shift - 1,
        infinite=x.infinite | zero,
        nan=x.nan | y.nan | (x.infinite & y.infinite) | (zero & (x.significand == 0)),
    )


def _root(x: Significands) -> Significands:
    odd = x.exponent & 1
    square = x.significand << (14 + odd)  # zero, or in [2**24, 2**26): the root has 13 bits
    root = np.zeros_like(square)
    for bit in reversed(range(13)):
        trial = root | (1 << bit)
        root = np.where(trial * trial <= square, trial, root)
    return Significands(
        negative=x.negative,
        significand=_with_sticky(root, root * root != square),
        exponent=((x.exponent - odd - 14) >> 1) - 1,
        infinite=x.infinite,
        nan=x.nan | (x.negative & (x.significand != 0)),
    )


def _with_sticky(floor: Integers, inexact: Bools) -> Integers:
    """Return the integer part with a sticky bit appended: 1 if the number exceeds its integer part.

    If the integer part has at least 12 bits, each nearby number of at most 11 bits, and each midpoint of two
    neighbours among them, is an integer. A number between two integers then rounds like their midpoint,
    whatever the mode. The appended bit gives this midpoint.
    """
    return (floor << 1) | inexact


def _blockwise(function: Callable[..., Floats], operands: tuple[ArrayLike, ...], fmt: Format) -> Floats:
    """Return the results of an elementwise function, applied block by block to broadcast operands."""
    if type(fmt) is not Format:
        raise ValueError(f"{fmt} is no floating-point format; use mcfsim.oracle.operate or round_fraction")
    if fmt.emin - fmt.precision + 1 < -1022 or fmt.emax > 1023:
        raise ValueError(f"{fmt} has numbers that are not normal numbers of binary64")
    arrays = [np.asarray(operand) for operand in operands]
    if any(array.dtype.kind in "biu" for array in arrays):
        raise TypeError("operands must be floats: an integer need not be a float64")
    with np.nditer(
        [*arrays, None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[np.float64] * (len(operands) + 1),
        buffersize=BLOCK,
    ) as blocks:
        for *inputs, output in blocks:
            output[...] = function(*inputs)
        result: Floats = blocks.operands[-1]
    return result
