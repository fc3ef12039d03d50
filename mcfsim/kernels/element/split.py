"""A binary32 number in two parts: a code of a shorter format with as many exponents, and what follows it."""

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
