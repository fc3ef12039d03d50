"""A binary32 number as bits: those that follow a code of a format with its exponents, or an integer's."""

from __future__ import annotations

from mcfsim.kernels.element.machine import Value


def joined_element(leading: Value, rest: Value, following: int, *, rounded: bool) -> Value:
    """Return the number of a code and the bits that follow it.

    Parameters
    ----------
    leading, rest : value of 32 bits
        The code, and the other bits.
    following : int
        How many these are.
    rounded : bool
        Whether the code is that of the number rounded to nearest, ties away from zero: then it is one more
        than the leading bits where the first bit that follows is set. Otherwise it is the leading bits.
    """
    if rounded:
        leading = leading - rest.shr(following - 1)
    return (leading << following | rest).as_number()


def rest_element(x: Value, following: int) -> Value:
    """Return so many last bits of a binary32 number; zeros of NaN, of which all become one."""
    return x.equals(x).select(x.bits() & (2**following - 1), 0)


#: To be added to an integer, as a number or to its code: the sum has the integer in its last bits.
_INTEGER, _CODE = 1.5 * 2.0**23, 0x4B400000


def number_element(integer: Value, bits: int) -> Value:
    """Return the number of an integer in the last bits, 22 at most, in two's complement."""
    return ((integer << 32 - bits >> 32 - bits) + _CODE).as_number() - _INTEGER


def integer_element(x: Value, bits: int) -> Value:
    """Return a small integral number of binary32 as an integer in the last bits; zero of NaN."""
    return x.equals(x).select((x + _INTEGER).bits() & (2**bits - 1), 0)
