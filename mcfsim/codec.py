"""Values of a format and their codes, in order, and the neighbours and ulp of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.carriers import UnsupportedFormatError, carrier_of
from mcfsim.convert import round_to
from mcfsim.formats import Format, Specials, get_format

_FIELD, _BIAS = 52, 1023  # of binary64


def code_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the shortest unsigned dtype that holds a code.

    Raises
    ------
    UnsupportedFormatError
        If codes are longer than 64 bits.
    """
    for width in (8, 16, 32, 64):
        if fmt.bits <= width:
            return np.dtype(f"u{width // 8}")
    raise UnsupportedFormatError(f"codes of {fmt} have {fmt.bits} bits; at most 64 are supported")


def encode(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the codes of values of a format: sign, exponent field, fraction, from the highest bit down.

    Parameters
    ----------
    x : array_like
        Values of the format. NaN gets the positive quiet NaN, in ``fn`` formats the positive all-ones code.
    fmt : Format or str
        The format.

    Returns
    -------
    array of unsigned integers
        Of the shape of x.

    Raises
    ------
    ValueError
        If an element is no value of the format, or it has no code for NaN.
    """
    fmt = get_format(fmt)
    dtype = code_dtype(fmt)
    given = _binary64(x)
    values = np.asarray(round_to(given, fmt))
    nan = np.isnan(given)
    if not ((values == given) | nan).all():
        index = tuple(int(i) for i in np.argwhere(~((values == given) | nan))[0])
        raise ValueError(f"element {index} = {given[index]!r} is no value of {fmt}; round it first")
    if nan.any() and not fmt.has_nan:
        raise ValueError(f"{fmt} has no code for NaN")
    bits = np.ascontiguousarray(values).view(np.uint64).reshape(values.shape)
    magnitude = _magnitude_codes(bits & np.uint64(2**63 - 1), fmt)
    magnitude = np.where(np.isinf(values), np.uint64(_infinity_code(fmt)), magnitude)
    sign = (bits >> np.uint64(63)) << np.uint64(fmt.bits - 1)
    sign = np.where((magnitude == 0) & (not fmt.has_negative_zero), np.uint64(0), sign)
    codes = np.where(nan, np.uint64(_nan_code(fmt)), magnitude | sign)
    return codes.astype(dtype)


def decode(codes: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the values of codes, in the format's carrier dtype.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format.
    fmt : Format or str
        The format.

    Raises
    ------
    TypeError
        If the codes are no integers.
    ValueError
        If a code has too many bits, or stands for nothing: beyond the largest number of a format whose
        exponent range does not fill its field.
    """
    fmt = get_format(fmt)
    given = np.asarray(codes)
    if given.dtype.kind not in "iu":
        raise TypeError(f"codes must be integers, not {given.dtype}")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < 2**fmt.bits:
        raise ValueError(f"codes of {fmt} lie in [0, 2**{fmt.bits})")
    whole = given.astype(np.uint64)
    sign = whole >> np.uint64(fmt.bits - 1)
    magnitude = whole & np.uint64(2 ** (fmt.bits - 1) - 1)
    nan = _is_nan(magnitude, sign, fmt)
    infinite = (magnitude == _infinity_code(fmt)) & fmt.has_infinity
    largest = _magnitude_codes(np.array([float(fmt.max)]).view(np.uint64), fmt)[0]
    if unused := int(np.count_nonzero((magnitude > largest) & ~nan & ~infinite)):
        raise ValueError(f"{unused} codes stand for no value of {fmt}")
    fraction_bits = fmt.precision - 1
    field = (magnitude >> np.uint64(fraction_bits)).astype(np.int64)
    significand = (magnitude & np.uint64(2**fraction_bits - 1)).astype(np.int64)
    significand += (field > 0) * np.int64(2**fraction_bits)
    # The quantum 2**(max(field, 1) - bias - p + 1) in two exact factors: it may be subnormal in binary64.
    exponent = np.maximum(field, 1) - fmt.bias - fraction_bits
    first = np.maximum(exponent, -1000)
    with np.errstate(over="ignore"):  # of codes of infinities and NaN
        finite = significand.astype(np.float64) * _power_of_two(first) * _power_of_two(exponent - first)
    values = np.where(nan, np.nan, np.where(infinite, np.inf, finite))
    result: NDArray[Any] = np.where(sign == 1, -values, values).astype(carrier_of(fmt))
    return result


def all_values(fmt: Format | str) -> NDArray[Any]:
    """Return every value but NaN in increasing order, -0 before +0 and infinities included.

    Raises
    ------
    ValueError
        If codes have more than 24 bits.
    """
    fmt = get_format(fmt)
    if fmt.bits > 24:
        raise ValueError(f"{fmt} has 2**{fmt.bits} codes; listing is for at most 2**24")
    largest = int(encode([float(fmt.max)], fmt)[0])
    positive = np.arange(largest + 1)
    values = decode(positive, fmt)
    if fmt.has_infinity:
        values = np.append(values, values.dtype.type("inf"))
    negative = -values[::-1]
    return np.concatenate([negative if fmt.has_negative_zero else negative[:-1], values])


def next_up(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the least value of the format above each number, which need not be one itself.

    Of the largest finite number it is infinity, or that number itself in a format without. NaN gives NaN.
    """
    fmt = get_format(fmt)
    given = _binary64(x)
    if not fmt.has_infinity:  # an infinite number is no value: NaN, as in rounding
        given = np.where(np.isinf(given), np.nan, given)
    below = np.asarray(round_to(given, fmt, "down"), dtype=np.float64)
    # Any number strictly between a value and the next one rounds up to the next one.
    with np.errstate(over="ignore"):
        nudge = np.nextafter(below, np.inf)
    above = np.asarray(round_to(nudge, fmt, "up", "ieee" if fmt.has_infinity else "saturate"))
    above = np.where(given < -float(fmt.max), -float(fmt.max), above)
    return np.where(np.isnan(given) | (given == np.inf), given, above).astype(carrier_of(fmt))


def next_down(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the greatest value of the format below each number; see `next_up`."""
    return -next_up(-_binary64(x), fmt)


def ulp(x: ArrayLike, fmt: Format | str) -> NDArray[np.float64]:
    """Return the unit in the last place, ``2**(max(e, emin) - p + 1)`` where ``2**e <= |x| < 2**(e + 1)``.

    Beyond emax it is that of emax. NaN and infinities give NaN. The result is binary64.
    """
    fmt = get_format(fmt)
    carrier_of(fmt)
    given = np.abs(_binary64(x))
    exponent = np.clip(np.frexp(np.where(np.isfinite(given), given, 1.0))[1] - 1, fmt.emin, fmt.emax)
    exponent = np.where(given == 0, fmt.emin, exponent) - fmt.precision + 1
    first = np.maximum(exponent, -1000)
    return np.where(np.isfinite(given), _power_of_two(first) * _power_of_two(exponent - first), np.nan)


def _binary64(x: ArrayLike) -> NDArray[np.float64]:
    """Return numbers of any real dtype in binary64; integers that it does not hold are refused."""
    return np.asarray(round_to(np.asarray(x), "float64", "down"))


def _power_of_two(exponent: NDArray[Any]) -> NDArray[np.float64]:
    return ((exponent.astype(np.int64) + _BIAS) << _FIELD).view(np.float64)


def _magnitude_codes(bits: NDArray[np.uint64], fmt: Format) -> NDArray[np.uint64]:
    """Codes of nonnegative finite values from their binary64 codes."""
    field = (bits >> np.uint64(_FIELD)).astype(np.int64)
    significand = bits & np.uint64(2**_FIELD - 1)
    significand = significand | ((field > 0).astype(np.uint64) << np.uint64(_FIELD))
    exponent = np.maximum(field, 1) - _BIAS
    # A subnormal of the format is its significand shifted down; a normal one has its field on top.
    shift = _FIELD + 1 - fmt.precision + np.maximum(fmt.emin - exponent, 0)
    code = significand >> np.minimum(shift, 63).astype(np.uint64)
    normal = (exponent >= fmt.emin) & (field > 0)
    lifted = np.where(normal, exponent - fmt.emin, 0).astype(np.uint64) << np.uint64(fmt.precision - 1)
    codes: NDArray[np.uint64] = code + lifted
    return codes


def _infinity_code(fmt: Format) -> int:
    return (2**fmt.exponent_bits - 1) << (fmt.precision - 1) if fmt.has_infinity else 0


def _nan_code(fmt: Format) -> int:
    if fmt.specials is Specials.IEEE:
        return _infinity_code(fmt) | 1 << (fmt.precision - 2)
    return 2 ** (fmt.bits - 1) - 1 if fmt.specials is Specials.FN else 1 << (fmt.bits - 1)


def _is_nan(magnitude: NDArray[np.uint64], sign: NDArray[np.uint64], fmt: Format) -> NDArray[np.bool_]:
    nan = np.zeros(magnitude.shape, dtype=np.bool_)
    if fmt.specials is Specials.IEEE:
        nan |= magnitude > _infinity_code(fmt)
    elif fmt.specials is Specials.FN:
        nan |= magnitude == 2 ** (fmt.bits - 1) - 1
    elif fmt.specials is Specials.FNUZ:
        nan |= (magnitude == 0) & (sign == 1)
    return nan
