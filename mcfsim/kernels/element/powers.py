"""Logarithms and powers of one binary32 number, computed in binary64 and rounded once.

They are rounded correctly but where the exact result lies within 2^-52 of itself of a tie; powers that are
ties themselves, to exponents of 16 at most, come out as ties. Only sums, products and quotients are asked, so
that every machine has these bits.
"""

from __future__ import annotations

import math
import struct

from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import Value

#: To be added to an integer, as a number or to its code: the sum has the integer in its last bits.
_INTEGER = 1.5 * 2.0**52
#: Leaves the first 28 bits of a number of binary64, whose product with one of binary32 is exact.
_FIRST = -(1 << 25)
#: 2 / ln 2, and what its first 24 bits leave of it.
_FACTOR, _FACTOR_LOW = 2.885390043258667, 3.851925982253235e-08
#: Terms of both series, of which the next one would be below 2^-60.
_LOGARITHM, _EXPONENTIAL = 10, 14
#: Beyond these powers of two there is zero and infinity alone.
_REACH = 400.0


def log2_element(x: Value) -> Value:
    """Return the binary logarithm of a binary32 number that is not negative."""
    high, low = _logarithm(x)
    found = (high + low).narrow()
    found = x.equals(0.0).select(-math.inf, found)
    return (x < INFINITY).select(found, x)  # infinity and NaN


def power_element(x: Value, exponent: Value) -> Value:
    """Return a binary32 number, not negative, to the power of another, as C's `pow`."""
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
    """Return a binary logarithm as a sum of a number of 28 bits and a small one, right to 2^-60.

    Of ``x = 2**k z``, z between the roots of 1/2 and 2, it is ``k + 2 / ln 2 artanh s`` with ``s = (z - 1) /
    (z + 1)``. Numbers that have none lead to some number.
    """
    bits = x.widen().bits()  # in binary64 none is subnormal
    middle = _code(math.sqrt(0.5))
    exponent = (bits - middle + (1023 << 52)).shr(52) - 1023
    z = (bits - (exponent << 52)).as_number()
    above, below = z - 1.0, z + 1.0  # exact
    inverse = below.like(1.0) / below
    s = above * inverse
    s_high = (s.bits() & _FIRST).as_number()
    s_low = (above - s_high * below) * inverse  # of an exact remainder
    square = s * s
    series = square * (1 / (2 * _LOGARITHM + 1))
    for term in range(_LOGARITHM - 1, 0, -1):
        series = (series + 1 / (2 * term + 1)) * square
    first = s_high * _FACTOR  # exact
    rest = s_low * _FACTOR + (s * _FACTOR_LOW + s * series * (_FACTOR + _FACTOR_LOW))
    k = _number(exponent)
    whole = k + first
    rest = (first - (whole - k)) + rest  # what the sum has lost is exact
    high = (whole.bits() & _FIRST).as_number()
    return high, (whole - high) + rest


def _exponential(whole: Value, fraction: Value, rest: Value) -> Value:
    """Return ``2**(whole + fraction + rest)``, of an integer, half of one at most, and a small number."""
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
    """Return an integer of 64 bits, a small one, as a number."""
    return (integer + _code(_INTEGER)).as_number() - _INTEGER


def _code(number: float) -> int:
    return int.from_bytes(struct.pack("<d", number), "little")
