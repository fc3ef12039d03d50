"""Codes of posits from binary64 numbers and back, and where the bits lie that a posit keeps of a number.

Nothing is computed in floating point. What a float's code counts, from the code of 1 on, is
``e * 2**q + fraction`` with its exponent e and q fraction bits, subnormal numbers apart. The lowest
``q + es`` bits of this offset are the exponent and the fraction of a posit, and the integer k above them is
what the regime stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats.posit import Posit
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, holds

Integers = NDArray[Any]


class PositLayout:
    """How the codes of a carrier's nonnegative numbers lie to those of a posit format.

    Parameters
    ----------
    fmt : Posit
        The format.
    carrier : dtype
        ``float32`` or ``float64``.

    Attributes
    ----------
    integer : dtype
        The signed integer of the carrier's size.
    one, infinity : integer
        Codes of 1 and of infinity.
    least, greatest : integer
        Offsets of the smallest and the largest positive posit.
    tail : int
        How many bits of an offset lie below k.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the posits.
    """

    def __init__(self, fmt: Posit, carrier: np.dtype[Any]) -> None:
        if not holds(carrier, fmt):
            raise UnsupportedFormatError(f"{fmt} has values that {carrier} cannot hold")
        info = np.finfo(carrier)
        self.integer = np.dtype(f"i{carrier.itemsize}")
        self.one = self.integer.type((int(info.maxexp) - 1) << info.nmant)
        self.infinity = self.integer.type((2 * int(info.maxexp) - 1) << info.nmant)
        self.least = self.integer.type(fmt.emin << info.nmant)
        self.greatest = self.integer.type(fmt.emax << info.nmant)
        self.tail = info.nmant + fmt.es
        self._sign_place = 8 * carrier.itemsize - 1
        self._longest_run = fmt.bits - 3
        # Of the offsets in the two regimes of two bits.
        self._fewest_cut = self.tail - (fmt.bits - 3)

    def cut(self, offset: Integers) -> Integers:
        """Return how many of the lowest bits of an offset a posit does not keep.

        A regime takes two bits, and one more for each step of k away from 0 and -1. It has room for ever
        fewer bits of the tail, and next to both ends for none.
        """
        k = np.right_shift(offset, self.tail)
        run = np.bitwise_xor(k, np.right_shift(k, self._sign_place), out=k)  # k or -k - 1
        np.minimum(run, self._longest_run, out=run)  # at the largest posit, of which nothing is cut off
        return np.add(run, self._fewest_cut, out=run)


def encode(values: NDArray[Any], fmt: Posit) -> NDArray[np.uint64]:
    """Return the codes of posits.

    Parameters
    ----------
    values : array of float32 or float64
        Posits, of any shape. NaN becomes NaR, and a zero of either sign the one zero.
    fmt : Posit
        The format.

    Returns
    -------
    array of uint64
        Of the same shape: the lowest n bits, two's complement for negative numbers.

    Raises
    ------
    ValueError
        If an element is no value of the format, as an infinity is not.
    UnsupportedFormatError
        If binary64 does not hold the format.
    """
    layout = PositLayout(fmt, FLOAT64)
    given = np.asarray(values, dtype=np.float64)
    bits = given.reshape(-1).view(np.int64)
    magnitude = bits & np.int64(2**63 - 1)
    nan, zero = magnitude > layout.infinity, magnitude == 0
    offset = np.clip(magnitude - layout.one, layout.least, layout.greatest)
    cut = layout.cut(offset)
    rest = offset & ((np.int64(1) << cut) - np.int64(1))
    wrong = ((rest != 0) | (offset != magnitude - layout.one)) & ~nan & ~zero
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong.reshape(given.shape))[0])
        raise ValueError(f"element {index} = {float(given[index])!r} is no value of {fmt}; round it first")
    k = offset >> layout.tail
    kept = (offset & np.int64(2**layout.tail - 1)) >> cut
    # The last bit of the run of zeros or ones has this place value; what follows the regime is added.
    place = np.int64(1) << (fmt.bits - 2 - np.abs(k))
    code = np.where(k < 0, place, np.int64(2 ** (fmt.bits - 1)) - place) + kept
    code = np.where(zero, np.int64(0), np.where(bits < 0, -code, code))
    code = np.where(nan, np.int64(2 ** (fmt.bits - 1)), code)
    codes: NDArray[np.uint64] = code.astype(np.uint64) & np.uint64(2**fmt.bits - 1)
    return codes.reshape(given.shape)


def decode(codes: NDArray[Any], fmt: Posit) -> NDArray[np.float64]:
    """Return the values of codes of posits, and NaN for NaR.

    Parameters
    ----------
    codes : array of unsigned integers
        Of any shape, each below ``2**fmt.bits``.
    fmt : Posit
        The format.

    Raises
    ------
    ValueError
        If a code has too many bits.
    UnsupportedFormatError
        If binary64 does not hold the format.
    """
    layout = PositLayout(fmt, FLOAT64)
    given = np.asarray(codes)
    if given.size and int(given.max()) >= 2**fmt.bits:
        raise ValueError(f"codes of {fmt} lie in [0, 2**{fmt.bits})")
    code = given.astype(np.int64)
    negative = code >> (fmt.bits - 1)
    body = np.where(negative == 1, np.int64(2**fmt.bits) - code, code)
    ones = body >> (fmt.bits - 2) == 1
    after_run = np.where(ones, np.int64(2 ** (fmt.bits - 1) - 1) - body, body)
    powers = np.int64(1) << np.arange(fmt.bits - 1)
    length = np.searchsorted(powers, after_run, side="right")  # of the rest of the code, as bit_length has it
    run = fmt.bits - 1 - length
    k = np.where(ones, run - 1, -run)
    kept_bits = np.maximum(length - 1, 0)  # what ends the run is no part of the tail
    kept = body & ((np.int64(1) << kept_bits) - np.int64(1))
    offset = (k << layout.tail) + (kept << (layout.tail - kept_bits))
    values = (offset + layout.one).view(np.float64)
    values = np.where(body == 0, 0.0, np.where(negative == 1, -values, values))
    return np.where(code == 2 ** (fmt.bits - 1), np.nan, values)
