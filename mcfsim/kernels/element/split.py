"""Binary32 numbers as bits: those that follow a code of a format with the same exponents, or an integer."""

from __future__ import annotations

from mcfsim.kernels.element.machine import Value


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


#: Added as a number, or as a code to an integer: the sum has the integer in its last bits.
_INTEGER, _CODE = 1.5 * 2.0**23, 0x4B400000


def number_element(integer: Value, bits: int) -> Value:
    """Return an integer in two's complement, in the last bits (22 at most), as a number."""
    return ((integer << 32 - bits >> 32 - bits) + _CODE).as_number() - _INTEGER


def integer_element(x: Value, bits: int) -> Value:
    """Return a small integral binary32 number as an integer in the last bits; zero for NaN."""
    return x.equals(x).select((x + _INTEGER).bits() & (2**bits - 1), 0)
