"""Conversion between codes and values, by kind of format (floats, posits, grids), in unchecked blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Specials
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.carriers import FLOAT32, FLOAT64

#: The place of binary64's lowest exponent bit, and its code of 1.
_POINT, _ONE = 52, np.int64(1023 << 52)
Block = NDArray[Any]


class TwosComplement(ABC):
    """The codes of grids and posits: places, that is, ordered integers, in two's complement."""

    def __init__(self, fmt: Format, first: int, last: int) -> None:
        self.fmt, self.first, self.last = fmt, first, last
        #: Whether some codes stand for no value.
        self.gaps = last - first + 1 + fmt.has_nan < 1 << fmt.bits

    def encode(self, values: Block) -> Block:
        """Return the codes of values of the format, given in float32 or float64."""
        return self.at(self.place_of(values.astype(np.float64, copy=False)))

    def decode(self, codes: Block) -> Block:
        """Return the values in binary64 of codes that stand for one."""
        return self.value_at(self.places(codes))

    @abstractmethod
    def place_of(self, values: Block) -> NDArray[np.int64]:
        """Return the places of values."""

    @abstractmethod
    def value_at(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values at given places."""

    def unassigned(self, codes: Block) -> NDArray[np.bool_]:
        """Return which codes stand for no value."""
        places = self.places(codes)
        return (places < self.first) | (places > self.last)

    def places(self, codes: Block) -> NDArray[np.int64]:
        """Return the places of codes, except that of NaN."""
        beyond = np.int64(64 - self.fmt.bits if self.fmt.signed else 0)
        return codes.astype(np.int64) << beyond >> beyond

    def at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the codes at given places."""
        return places.astype(np.uint64) & np.uint64((1 << self.fmt.bits) - 1)


class GridCodes(TwosComplement):
    """The codes of a grid: its integers."""

    fmt: Grid

    def place_of(self, values: Block) -> NDArray[np.int64]:
        """Return the integers of values."""
        return np.ldexp(values, self.fmt.fraction_bits).astype(np.int64)  # the power may be beyond binary64

    def value_at(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of integers."""
        return places * np.float64(2.0**-self.fmt.fraction_bits)


class PositCodes(TwosComplement):
    """The codes of posits: a regime, which encodes a number k, above bits that binary64's codes also have.

    A regime takes two bits, and one more for each step of k away from 0 and -1. So it leaves fewer and fewer
    bits for the rest, and none near either end of the range.
    """

    fmt: Posit

    def place_of(self, values: Block) -> NDArray[np.int64]:
        """Return the places of posits; that of NaN is the least, and a zero of either sign has 0."""
        bits, tail, code = self.fmt.bits, _POINT + self.fmt.es, values.view(np.int64)
        magnitude = code & np.int64(2**63 - 1)
        offset = np.clip(magnitude - _ONE, self.fmt.emin << _POINT, self.fmt.emax << _POINT)
        k = offset >> tail
        # For the largest posit nothing is cut off.
        cut = np.minimum(k ^ (k >> 63), bits - 3) + (tail - (bits - 3))
        kept = (offset & np.int64(2**tail - 1)) >> cut
        # The last bit of the run of zeros or ones has this place value; the bits after the regime are added.
        end = np.int64(1) << (bits - 2 - np.abs(k))
        places = np.where(k < 0, end, np.int64(2 ** (bits - 1)) - end) + kept
        places = np.where(magnitude == 0, np.int64(0), np.where(code < 0, -places, places))
        return np.where(np.isnan(values), np.int64(-(2 ** (bits - 1))), places)

    def value_at(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the posits at given places, and NaN for NaR."""
        bits, tail, magnitude = self.fmt.bits, _POINT + self.fmt.es, np.abs(places)
        ones = magnitude >> (bits - 2) == 1
        after_run = np.where(ones, np.int64(2 ** (bits - 1) - 1) - magnitude, magnitude)
        powers = np.int64(1) << np.arange(bits - 1)
        length = np.searchsorted(powers, after_run, side="right")  # of the rest, as bit_length has it
        run = bits - 1 - length
        k = np.where(ones, run - 1, -run)
        kept_bits = np.maximum(length - 1, 0)  # the bit that ends the run is no part of the tail
        kept = magnitude & ((np.int64(1) << kept_bits) - np.int64(1))
        offset = (k << tail) + (kept << (tail - kept_bits))
        values = np.where(places == 0, 0.0, np.copysign((offset + _ONE).view(np.float64), places))
        return np.where(places == -(2 ** (bits - 1)), np.nan, values)


class FloatCodes:
    """The codes of floating-point formats: the sign above the magnitude (exponent field and fraction)."""

    def __init__(self, fmt: Format) -> None:
        self.fmt, self.sign_place = fmt, fmt.bits - fmt.signed
        #: How many low bits of a carrier's codes the format's codes lack, if they are its upper bits; else 0.
        self.cuts = {carrier: _cut(fmt, carrier) for carrier in (FLOAT32, FLOAT64)}
        self.mask = top = (1 << self.sign_place) - 1
        fraction_bits = fmt.precision - 1
        #: Magnitude of the largest finite number.
        self.largest = ((fmt.emax + fmt.bias - 1) << fraction_bits) + fmt.max_significand
        #: Magnitude of infinity, and the whole code of NaN; -1 if there is none.
        self.infinity = self.nan = -1
        if fmt.specials is Specials.IEEE:
            self.infinity = top >> fraction_bits << fraction_bits
            self.nan = self.infinity | 1 << (fraction_bits - 1)
        elif fmt.specials is Specials.NUZ:
            self.infinity, self.nan = (top, top + 1) if fmt.signed else (top - 1, top)
        elif fmt.specials is not Specials.NONE:
            self.nan = top if fmt.specials is Specials.FN else top + 1
        #: The least magnitude above that of the largest finite number, unassigned magnitudes excluded.
        self.special = self.infinity if fmt.has_infinity else self.nan if self.nan == top else top + 1
        self.gaps = self.largest + 1 < self.special
        self.last = self.largest + fmt.has_infinity
        self.first = 0 if not fmt.signed else -self.last if fmt.zero else ~self.last

    def encode(self, x: Block) -> Block:
        """Return the codes of values of the format, given in float32 or float64."""
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        if cut := self.cuts[x.dtype]:
            upper: Block = x.view(unsigned) >> unsigned.type(cut)
            if (nan := np.isnan(x)).any():
                np.copyto(upper, self.nan, where=nan)
            return upper
        fmt, info, integer = self.fmt, np.finfo(x.dtype), np.dtype(f"i{x.dtype.itemsize}")
        bits = x.view(integer) & np.iinfo(integer).max
        exponent = np.maximum(bits >> info.nmant, 1)
        significand = bits - ((exponent - 1) << info.nmant)
        # The code of a subnormal number is its shifted significand; a normal one adds the exponent field.
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
        """Return the values in binary64 of codes that stand for one."""
        fmt, fraction_bits = self.fmt, self.fmt.precision - 1
        magnitude = codes.astype(np.int64) & self.mask
        finite = np.minimum(magnitude, self.largest)
        field, rest = finite >> fraction_bits, finite & ((1 << fraction_bits) - 1)
        leading = np.minimum(field, 1) if fmt.zero else 1  # a subnormal number has none
        significand = (rest | leading << fraction_bits).astype(np.float64)
        values: Block = np.ldexp(significand, np.maximum(field, int(fmt.zero)) - fmt.bias - fraction_bits)
        np.copyto(values, np.nan, where=magnitude > self.largest)
        if fmt.has_infinity:
            np.copyto(values, np.inf, where=magnitude == self.infinity)
        if fmt.signed:
            np.negative(values, out=values, where=codes > self.mask)
            if self.nan > self.mask:  # NaN has the code of negative zero
                np.copyto(values, np.nan, where=codes == self.nan)
        return values

    def unassigned(self, codes: Block) -> NDArray[np.bool_]:
        """Return which codes stand for no value."""
        magnitude = codes.astype(np.int64) & self.mask
        return (magnitude > self.largest) & (magnitude < self.special)

    def places(self, codes: Block) -> NDArray[np.int64]:
        """Return the places of codes, except that of NaN."""
        places: NDArray[np.int64] = np.minimum(codes.astype(np.int64) & self.mask, self.largest + 1)
        if self.fmt.signed:
            np.copyto(places, -places if self.fmt.zero else ~places, where=codes > self.mask)
        return places

    def at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the codes at given places; zero is positive."""
        negative = places < 0
        magnitude = np.where(negative, -places if self.fmt.zero else ~places, places)
        np.copyto(magnitude, self.infinity, where=magnitude > self.largest)
        return magnitude.astype(np.uint64) | negative.astype(np.uint64) << np.uint64(self.sign_place)


def _cut(fmt: Format, carrier: np.dtype[Any]) -> int:
    info = np.finfo(carrier)
    same = (fmt.emin, fmt.emax) == (int(info.minexp), int(info.maxexp) - 1)
    plain = fmt.specials is Specials.IEEE and fmt.has_negative_zero
    return int(info.nmant) + 1 - fmt.precision if same and plain else 0


@lru_cache(maxsize=256)
def codes_by_kind(fmt: Format) -> TwosComplement | FloatCodes:
    """Return the encoder and decoder of a format's codes."""
    if isinstance(fmt, Grid):
        return GridCodes(fmt, fmt.low, fmt.high)
    if isinstance(fmt, Posit):
        last = (1 << (fmt.bits - 1)) - 1
        return PositCodes(fmt, -last, last)
    return FloatCodes(fmt)
