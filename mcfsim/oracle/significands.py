"""Floats taken apart into integers, and integers rounded once into a format, in int64 arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Parity
from mcfsim.oracle.definition import NO_ONE_RESULT, infinity_value, negative_value, overflow_value
from mcfsim.rounding import Mode, Rounding, Underflow

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Significands(NamedTuple):
    """Extended real numbers ``(-1)**negative * significand * 2**exponent``.

    A zero has the significand 0 and any exponent. Where `infinite` or `nan` is set, the latter having
    precedence, the exponent means nothing; the significand of an infinity is not 0.
    """

    negative: Bools
    significand: Integers
    exponent: Integers
    infinite: Bools
    nan: Bools


def split(x: Floats) -> Significands:
    """Take floats apart, the significand in 53 bits."""
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
    """Round significands below ``2**53`` to the format."""
    negative, significand, exponent, infinite, nan = exact
    # A float64 holds the significand exactly, so that its exponent field tells the length in bits.
    length = (significand.astype(np.float64).view(np.int64) >> 52) - 1022
    tiny = (significand > 0) & (length + exponent <= fmt.emin)
    least = fmt.emin + 1 - exponent
    if rounding.underflow is Underflow.FLUSH_AFTER:
        least = np.where(tiny, length, least)
    excess = np.maximum(np.maximum(length, least) - fmt.precision, 0)
    # Any significand is less than half of 2**54: dropping more than 54 bits makes no difference to rounding.
    shift = np.minimum(excess, 54)
    unit: Integers = 1 << shift
    kept = significand >> shift
    odd = (kept & 1).astype(np.bool_)
    if fmt.parity is Parity.CODE:  # one bit is kept: the exponent field of a normal number is its code
        odd = np.where(kept == 1, (exponent + excess + fmt.bias) & 1 == 1, odd)
    kept += _increment(odd, significand & (unit - 1), unit, negative, rounding.mode)
    # The bit pattern of a positive float64 grows with its value, so that patterns can be compared instead.
    code = np.where(kept == 0, 0, kept.astype(np.float64).view(np.int64) + ((exponent + excess) << 52))
    smallest = np.float64(fmt.smallest_normal).view(np.int64)
    if rounding.underflow is Underflow.FLUSH_BEFORE:
        code = np.where(tiny, 0, code)
    elif rounding.underflow is Underflow.FLUSH_AFTER:
        code = np.where(code < smallest, 0, code)
    elif not fmt.zero:
        code = np.where(tiny, smallest, code)
    overflow = code > np.float64(fmt.max).view(np.int64)
    below = np.zeros_like(negative) if fmt.signed else negative & (code != 0)
    if not fmt.has_negative_zero:
        negative = negative & (code != 0)
    result = np.where(negative, -code.view(np.float64), code.view(np.float64))
    for sign, where in ((False, ~negative), (True, negative)):
        result[where & overflow] = overflow_value(sign, fmt, rounding)
    result[below] = negative_value(fmt, rounding)
    for sign, where in ((False, ~exact.negative), (True, exact.negative)):
        result[where & infinite] = infinity_value(sign, fmt)
    if not fmt.zero:
        result[(code == 0) & ~infinite] = np.nan
    result[nan] = np.nan
    return result


def _increment(odd: Bools, rest: Integers, unit: Integers, negative: Bools, mode: Mode) -> Bools:
    """Return where ``kept + rest / unit``, with ``0 <= rest < unit``, rounds to ``kept + 1``."""
    match mode:
        case Mode.NEAREST_EVEN:
            return 2 * rest + odd > unit
        case Mode.NEAREST_AWAY:
            return 2 * rest >= unit
        case Mode.TOWARD_ZERO:
            return np.zeros_like(negative)
        case Mode.UP:
            return (rest > 0) & ~negative
        case Mode.DOWN:
            return (rest > 0) & negative
        case Mode.TO_ODD:
            return (rest > 0) & ~odd
        case Mode.STOCHASTIC:
            raise ValueError(NO_ONE_RESULT)
