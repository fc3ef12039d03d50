"""Codes and values by kind of format, a block at a time and unchecked.

Values in increasing order have places; place 0 is zero's or, without one, the smallest positive number's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Specials, get_format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels import grid_codes, posit_codes
from mcfsim.kernels.carriers import UnsupportedFormatError

Block = NDArray[Any]


class TwosComplement:
    """Codes that are places in two's complement: those of grids and posits."""

    def __init__(
        self, fmt: Format, encode: Callable[..., Block], decode: Callable[..., Block], first: int, last: int
    ) -> None:
        self.fmt, self.first, self.last = fmt, first, last
        self.encode: Callable[[Block], Block] = lambda values: encode(values, fmt)
        self.decode: Callable[[Block], Block] = lambda codes: decode(codes, fmt)
        #: Whether some codes stand for nothing.
        self.gaps = last - first + 1 + fmt.has_nan < 1 << fmt.bits

    def unassigned(self, codes: Block) -> NDArray[np.bool_]:
        """Return which codes stand for nothing."""
        places = self.places(codes)
        return (places < self.first) | (places > self.last)

    def places(self, codes: Block) -> NDArray[np.int64]:
        """Return the places of codes other than NaN's."""
        beyond = np.int64(64 - self.fmt.bits if self.fmt.signed else 0)
        return codes.astype(np.int64) << beyond >> beyond

    def at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the codes at places."""
        return places.astype(np.uint64) & np.uint64((1 << self.fmt.bits) - 1)


class FloatCodes:
    """Codes of sign, exponent field and fraction. What lies below the sign is the magnitude."""

    def __init__(self, fmt: Format) -> None:
        self.fmt, self.sign_place = fmt, fmt.bits - fmt.signed
        self.mask = top = (1 << self.sign_place) - 1
        fraction_bits = fmt.precision - 1
        #: Magnitude of the largest finite number.
        self.largest = ((fmt.emax + fmt.bias - 1) << fraction_bits) + fmt.max_significand
        #: Magnitude of infinity, and the whole code that is given to NaN; -1 if there is none.
        self.infinity = self.nan = -1
        if fmt.specials is Specials.IEEE:
            self.infinity = top >> fraction_bits << fraction_bits
            self.nan = self.infinity | 1 << (fraction_bits - 1)
        elif fmt.specials is Specials.NUZ:
            self.infinity, self.nan = (top, top + 1) if fmt.signed else (top - 1, top)
        elif fmt.specials is not Specials.NONE:
            self.nan = top if fmt.specials is Specials.FN else top + 1
        #: The least magnitude above the largest finite number's that is not one of nothing.
        self.special = self.infinity if fmt.has_infinity else self.nan if self.nan == top else top + 1
        self.gaps = self.largest + 1 < self.special
        self.last = self.largest + fmt.has_infinity
        self.first = 0 if not fmt.signed else -self.last if fmt.zero else ~self.last

    def cut(self, carrier: np.dtype[Any]) -> int:
        """Return how many bits of a carrier codes lack, where they are a carrier's upper bits; else 0."""
        fmt, info = self.fmt, np.finfo(carrier)
        same = (fmt.emin, fmt.emax) == (int(info.minexp), int(info.maxexp) - 1)
        plain = fmt.specials is Specials.IEEE and fmt.has_negative_zero
        return int(info.nmant) + 1 - fmt.precision if same and plain else 0

    def encode(self, x: Block) -> Block:
        """Return the codes of values of the format, in float32 or float64."""
        fmt, info = self.fmt, np.finfo(x.dtype)
        integer, unsigned = (np.dtype(f"{kind}{x.dtype.itemsize}") for kind in "iu")
        if cut := self.cut(x.dtype):
            upper: Block = x.view(unsigned) >> unsigned.type(cut)
            if (nan := np.isnan(x)).any():
                np.copyto(upper, self.nan, where=nan)
            return upper
        bits = x.view(integer) & np.iinfo(integer).max
        exponent = np.maximum(bits >> info.nmant, 1)
        significand = bits - ((exponent - 1) << info.nmant)
        # A subnormal is its significand shifted down; a normal one has its field on top.
        exponent -= int(info.maxexp) - 1 + fmt.emin
        shift = info.nmant + 1 - fmt.precision + np.maximum(-exponent, 0)
        codes: Block = significand >> np.minimum(shift, info.bits - 1)
        codes += np.maximum(exponent, 0) << (fmt.precision - 1)
        if not fmt.zero:  # the field of emin is 0, and not 1 as beside subnormal numbers
            codes -= 1 << (fmt.precision - 1)
        codes = codes.view(unsigned)
        finite = np.isfinite(x).all()
        if not finite and fmt.has_infinity:
            np.copyto(codes, self.infinity, where=np.isinf(x))
        if fmt.signed:
            sign = x.view(unsigned) >> (info.bits - 1) << self.sign_place
            if fmt.zero and not fmt.has_negative_zero:
                np.copyto(sign, 0, where=codes == 0)
            codes |= sign
        if not finite and fmt.has_nan:
            np.copyto(codes, self.nan, where=np.isnan(x))
        return codes

    def decode(self, codes: Block) -> Block:
        """Return the values of codes that stand for one, in binary64."""
        fmt, fraction_bits = self.fmt, self.fmt.precision - 1
        magnitude = codes.astype(np.int64) & self.mask
        finite = np.minimum(magnitude, self.largest)
        field = finite >> fraction_bits
        significand = finite & ((1 << fraction_bits) - 1)
        if fmt.zero:
            significand |= np.minimum(field, 1) << fraction_bits
            field = np.maximum(field, 1)
        else:
            significand |= 1 << fraction_bits
        values = scaled(significand.astype(np.float64), field - fmt.bias - fraction_bits)
        np.copyto(values, np.nan, where=magnitude > self.largest)
        if fmt.has_infinity:
            np.copyto(values, np.inf, where=magnitude == self.infinity)
        if fmt.signed:
            np.negative(values, out=values, where=codes > self.mask)
            if self.nan > self.mask:  # in the place of negative zero
                np.copyto(values, np.nan, where=codes == self.nan)
        return values

    def unassigned(self, codes: Block) -> NDArray[np.bool_]:
        """Return which codes stand for nothing."""
        magnitude = codes.astype(np.int64) & self.mask
        return (magnitude > self.largest) & (magnitude < self.special)

    def places(self, codes: Block) -> NDArray[np.int64]:
        """Return the places of codes other than NaN's."""
        places: NDArray[np.int64] = np.minimum(codes.astype(np.int64) & self.mask, self.largest + 1)
        if self.fmt.signed:
            np.copyto(places, -places if self.fmt.zero else ~places, where=codes > self.mask)
        return places

    def at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the codes at places; of zero, the positive one."""
        negative = places < 0
        magnitude = np.where(negative, -places if self.fmt.zero else ~places, places)
        np.copyto(magnitude, self.infinity, where=magnitude > self.largest)
        return magnitude.astype(np.uint64) | negative.astype(np.uint64) << np.uint64(self.sign_place)


def code_dtype(fmt: Format | str) -> np.dtype[Any]:
    """Return the shortest unsigned dtype that holds a code.

    Raises
    ------
    UnsupportedFormatError
        If codes are longer than 64 bits.
    """
    fmt = get_format(fmt)
    for width in (8, 16, 32, 64):
        if fmt.bits <= width:
            return np.dtype(f"u{width // 8}")
    raise UnsupportedFormatError(f"codes of {fmt} have {fmt.bits} bits; at most 64 are supported")


@lru_cache(maxsize=256)
def codes_by_kind(fmt: Format) -> TwosComplement | FloatCodes:
    """Return what knows the codes of a format."""
    if isinstance(fmt, Grid):
        return TwosComplement(fmt, grid_codes.encode, grid_codes.decode, fmt.low, fmt.high)
    if isinstance(fmt, Posit):
        last = (1 << (fmt.bits - 1)) - 1
        return TwosComplement(fmt, posit_codes.encode, posit_codes.decode, -last, last)
    return FloatCodes(fmt)


def scaled(significand: Any, exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``significand * 2**exponent`` in two exact steps: the power may be subnormal."""
    first = np.maximum(exponent, -1000)
    product: NDArray[np.float64] = significand * power_of_two(first) * power_of_two(exponent - first)
    return product


def power_of_two(exponent: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``2.0**exponent``, for exponents of normal numbers of binary64."""
    return ((exponent.astype(np.int64, copy=False) + 1023) << 52).view(np.float64)
