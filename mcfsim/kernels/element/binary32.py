"""One binary32 number: its bits, integers as numbers, and logarithms and powers that are rounded once.

Logarithms and powers are computed in binary64. They are correctly rounded unless the exact result lies within
a relative distance of 2^-52 of a tie. Powers that are ties themselves, with exponents of at most 16, are
computed as ties. Only sums, products and quotients are used, so that every machine gives the same bits.
"""

from __future__ import annotations

import math
import struct

from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import Value

#: Added to an integral number, or its code to an integer: the sum's last bits, in binary64, are the integer.
_INTEGER = 1.5 * 2.0**52
#: The same for binary32, and its code.
_SHORT_INTEGER, _SHORT_CODE = 1.5 * 2.0**23, 0x4B400000
#: A mask for the first 28 bits of a binary64 number, whose product with a binary32 number is exact.
_FIRST = -(1 << 25)
#: 2 / ln 2, and the part of it below its first 24 bits.
_FACTOR, _FACTOR_LOW = 2.885390043258667, 3.851925982253235e-08
#: The number of terms of both series; the next term would be below 2^-60.
_LOGARITHM, _EXPONENTIAL = 10, 14
#: Beyond these powers of two the result is zero or infinity.
_REACH = 400.0


# -- bits ----------------------------------------------------------------------------------------------------
def joined_element(leading: Value, rest: Value, following: int, *, rounded: bool) -> Value:
    """Return the number given by a code and the bits that follow it.

    Parameters
    ----------
    leading, rest : value of 32 bits
        The code, and the other bits.
    following : int
        The number of other bits.
    rounded : bool
        Whether the code is that of the number rounded to nearest, ties away from zero: it then exceeds the
        leading bits by one if the first bit that follows is set. Otherwise it is the leading bits.
    """
    if rounded:
        leading = leading - rest.shr(following - 1)
    return (leading << following | rest).as_number()


def rest_element(x: Value, following: int) -> Value:
    """Return the last bits of a binary32 number; zero for NaN, so that all NaNs become one."""
    return x.equals(x).select(x.bits() & (2**following - 1), 0)


def number_element(integer: Value, bits: int) -> Value:
    """Return an integer in two's complement, in the last bits (22 at most), as a number."""
    return ((integer << 32 - bits >> 32 - bits) + _SHORT_CODE).as_number() - _SHORT_INTEGER


def integer_element(x: Value, bits: int) -> Value:
    """Return a small integral binary32 number as an integer in the last bits; zero for NaN."""
    return x.equals(x).select((x + _SHORT_INTEGER).bits() & (2**bits - 1), 0)


# -- logarithms and powers -----------------------------------------------------------------------------------
def log2_element(x: Value) -> Value:
    """Return the binary logarithm of a nonnegative binary32 number."""
    high, low = _logarithm(x)
    found = (high + low).narrow()
    found = x.equals(0.0).select(-math.inf, found)
    return (x < INFINITY).select(found, x)  # infinity and NaN


def power_element(x: Value, exponent: Value) -> Value:
    """Return a nonnegative binary32 number to the power of another, with the special cases of C's `pow`."""
    high, low = _logarithm(x)
    to = exponent.widen()
    product = high * to  # exact
    product = (product < _REACH).select(product, _REACH)
    product = (product > -_REACH).select(product, -_REACH)
    whole = (product + _INTEGER) - _INTEGER
    power = _exponential(whole, product - whole, low * to).narrow()
    grows = (x > 1.0).select(exponent, -exponent) > 0.0
    endless = x.equals(0.0) | ~(x < INFINITY) | ~(abs(exponent) < INFINITY)
    power = endless.select(grows.select(INFINITY, power.like(0.0)), power)
    power = (x.equals(x) & exponent.equals(exponent)).select(power, NAN)
    return (x.equals(1.0) | exponent.equals(0.0)).select(1.0, power)


def _logarithm(x: Value) -> tuple[Value, Value]:
    """Return a binary logarithm as the sum of a number of 28 bits and a small one, accurate to 2^-60.

    For ``x = 2**k z``, z between the square roots of 1/2 and 2, it is ``k + 2 / ln 2 artanh s`` with
    ``s = (z - 1) / (z + 1)``. For x without a logarithm the result is unspecified.
    """
    bits = x.widen().bits()  # in binary64 none is subnormal
    middle = _code(math.sqrt(0.5))
    exponent = (bits - middle + (1023 << 52)).shr(52) - 1023
    z = (bits - (exponent << 52)).as_number()
    above, below = z - 1.0, z + 1.0  # exact
    inverse = below.like(1.0) / below
    s = above * inverse
    s_high = (s.bits() & _FIRST).as_number()
    s_low = (above - s_high * below) * inverse  # the remainder is exact
    square = s * s
    series = square * (1 / (2 * _LOGARITHM + 1))
    for term in range(_LOGARITHM - 1, 0, -1):
        series = (series + 1 / (2 * term + 1)) * square
    first = s_high * _FACTOR  # exact
    rest = s_low * _FACTOR + (s * _FACTOR_LOW + s * series * (_FACTOR + _FACTOR_LOW))
    k = _number(exponent)
    whole = k + first
    rest = (first - (whole - k)) + rest  # the error of the sum is exact
    high = (whole.bits() & _FIRST).as_number()
    return high, (whole - high) + rest


def _exponential(whole: Value, fraction: Value, rest: Value) -> Value:
    """Return ``2**(whole + fraction + rest)`` of an integer, a fraction up to 1/2, and a small number."""
    f = fraction + rest
    lost = (fraction - f) + rest
    series = f * _coefficient(_EXPONENTIAL)
    for term in range(_EXPONENTIAL - 1, 0, -1):
        series = (series + _coefficient(term)) * f
    value = (series + lost * math.log(2)) + 1.0
    return (value.bits() + ((whole + _INTEGER).bits() << 52)).as_number()


def _coefficient(term: int) -> float:
    return math.log(2) ** term / math.factorial(term)


def _number(integer: Value) -> Value:
    """Return a small integer of 64 bits as a number."""
    return (integer + _code(_INTEGER)).as_number() - _INTEGER


def _code(number: float) -> int:
    return int.from_bytes(struct.pack("<d", number), "little")
