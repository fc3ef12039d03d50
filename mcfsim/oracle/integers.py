"""The arithmetic of `mcfsim.oracle.definition` in int64 arrays, for hundreds of millions of operands.

Each float64 is taken apart into its sign, an integer significand and an exponent. What follows is exact
arithmetic of integers and one rounding of an integer, and the result is put together as a bit pattern.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.formats import Format
from mcfsim.oracle.definition import NEAREST_EVEN
from mcfsim.oracle.significands import Bools, Floats, Integers, Significands, round_parts, split
from mcfsim.rounding import Mode, Rounding, Underflow

#: Elements worked on at a time, so that the temporary arrays stay small.
BLOCK = 2**16
#: Significand bits of an operand at most: those of float16 and tf32.
OPERAND_BITS = 11
#: Bound on the exponent of an operand's integer significand: all results stay in binary64's range.
OPERAND_EXPONENT = 500


def operate_integers(
    name: str, *operands: ArrayLike, fmt: Format, rounding: Rounding = NEAREST_EVEN
) -> NDArray[np.float64]:
    """Apply an operation of IEEE 754 elementwise and round each exact result once.

    Parameters
    ----------
    name : {"add", "sub", "mul", "div", "sqrt", "fma"}
        The operation; ``fma`` of x, y, z is ``x * y + z``.
    *operands : array_like of float64
        As many as the operation takes; they are broadcast against each other. Each number has at most 11
        significant bits, as the numbers of bfloat16, float16, tf32 and the 8-bit formats have.
    fmt : Format
        The format of the results, of precision 11 at most.
    rounding : Rounding, optional
        Mode and overflow policy, as in `mcfsim.oracle.definition.operate`.

    Raises
    ------
    TypeError
        If an operand is no array of floats of at most 64 bits.
    ValueError
        If there is no such operation of so many operands, or if the format or an operand is too wide.

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
    """Round float64 or narrower numbers elementwise to a format, as `round_float` does.

    Raises
    ------
    TypeError
        If `x` is no array of floats of at most 64 bits.
    ValueError
        If the format has numbers that are not normal numbers of binary64.
    """
    return _blockwise(lambda x: round_parts(split(_taken_in(x, fmt, rounding)), fmt, rounding), (x,), fmt)


def same(a: ArrayLike, b: ArrayLike) -> NDArray[np.bool_]:
    """Return where two arrays hold the same value: both NaN, or equal numbers, zeros of equal sign."""
    with np.errstate(invalid="ignore"):  # signalling NaNs are values like others here
        x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return np.asarray((x.view(np.int64) == y.view(np.int64)) | (np.isnan(x) & np.isnan(y)))


def _taken_in(x: Floats, fmt: Format, rounding: Rounding) -> Floats:
    """Return operands, with zeros in place of small ones if the policy is to flush them."""
    if rounding.underflow is not Underflow.FLUSH_INPUTS:
        return x
    return np.where(np.abs(x) < np.float64(fmt.smallest_normal), np.copysign(0.0, x), x)


def _operand(x: Floats) -> Significands:
    """Take floats apart, the significand in 11 bits: zero, or at least ``2**10``."""
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
    """Return the exact result, or a stand-in that every rounding to 11 bits at most rounds alike."""
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
    """Add operands, or a product and an operand, on a common exponent.

    The gap between the exponents is clamped to 24, which changes no rounded result. Let the unit be the power
    of two of the larger exponent: that term is an integer h of at least 2**10 units. The other significand is
    below 2**22, so that with a gap of 24 or more its term is less than a quarter unit. The sum exceeds 2**9
    units, and there every number of at most 11 bits, and every midpoint of two neighbours among them, is a
    multiple of a quarter unit. So is h: no such point lies between h and either sum, the true one and that
    with the gap clamped, on the same side of h. They round alike, whatever the mode.
    """
    # A zero takes the exponent of the other term, which then keeps its own: there is no gap to clamp.
    x_exponent = np.where(x.significand == 0, y.exponent, x.exponent)
    y_exponent = np.where(y.significand == 0, x.exponent, y.exponent)
    exponent = np.maximum(np.minimum(x_exponent, y_exponent), np.maximum(x_exponent, y_exponent) - 24)
    x_term = x.significand << np.maximum(x_exponent - exponent, 0)
    y_term = y.significand << np.maximum(y_exponent - exponent, 0)
    total = np.where(x.negative, -x_term, x_term) + np.where(y.negative, -y_term, y_term)
    # An exact zero is negative if both terms are; if one is, in the mode down only (IEEE 754-2019, 6.3).
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
    shift = 12  # a nonzero quotient exceeds 2**10 * 2**12 / 2**11: its integer part has 12 bits at least
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
    """Append a bit that tells whether the number exceeds its integer part.

    If the integer part has 12 bits at least, each number of at most 11 bits in reach, and each midpoint of
    two neighbours among them, is an integer. A number between two integers may then be replaced by the middle
    of the two, whatever the mode: that is what the appended bit makes of it.
    """
    return (floor << 1) | inexact


def _blockwise(function: Callable[..., Floats], operands: tuple[ArrayLike, ...], fmt: Format) -> Floats:
    """Apply an elementwise function block by block to broadcast operands."""
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
