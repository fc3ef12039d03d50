"""Conversion between codes and values, by kind of format (floats, posits, grids), in unchecked blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Specials, get_format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, holds

# -- posits -----------------------------------------------------------------------------------------------
Integers = NDArray[Any]


class PositLayout:
    """The relation between the codes of a carrier's nonnegative numbers and the codes of a posit format.

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
        The number of bits of an offset below k.

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
        # The bits cut off in the two regimes of two bits.
        self._fewest_cut = self.tail - (fmt.bits - 3)

    def cut(self, offset: Integers) -> Integers:
        """Return how many of the lowest bits of an offset a posit does not keep.

        A regime takes two bits, and one more for each step of k away from 0 and -1. So it leaves fewer and
        fewer bits for the tail, and none next to both ends.
        """
        k = np.right_shift(offset, self.tail)
        run = np.bitwise_xor(k, np.right_shift(k, self._sign_place), out=k)  # k or -k - 1
        np.minimum(run, self._longest_run, out=run)  # for the largest posit, where nothing is cut off
        return np.add(run, self._fewest_cut, out=run)


def encode_posits(values: NDArray[Any], fmt: Posit) -> NDArray[np.uint64]:
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
        The codes, in the same shape: the lowest n bits, in two's complement for negative numbers.

    Raises
    ------
    ValueError
        If an element is no value of the format; an infinity is none.
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
    # The last bit of the run of zeros or ones has this place value; the bits after the regime are added.
    place = np.int64(1) << (fmt.bits - 2 - np.abs(k))
    code = np.where(k < 0, place, np.int64(2 ** (fmt.bits - 1)) - place) + kept
    code = np.where(zero, np.int64(0), np.where(bits < 0, -code, code))
    code = np.where(nan, np.int64(2 ** (fmt.bits - 1)), code)
    codes: NDArray[np.uint64] = code.astype(np.uint64) & np.uint64(2**fmt.bits - 1)
    return codes.reshape(given.shape)


def decode_posits(codes: NDArray[Any], fmt: Posit) -> NDArray[np.float64]:
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
    kept_bits = np.maximum(length - 1, 0)  # the bit that ends the run is no part of the tail
    kept = body & ((np.int64(1) << kept_bits) - np.int64(1))
    offset = (k << layout.tail) + (kept << (layout.tail - kept_bits))
    values = (offset + layout.one).view(np.float64)
    values = np.where(body == 0, 0.0, np.where(negative == 1, -values, values))
    return np.where(code == 2 ** (fmt.bits - 1), np.nan, values)


# -- grids ------------------------------------------------------------------------------------------------
Block = NDArray[Any]


def encode_grid(values: Block, fmt: Grid) -> NDArray[np.uint64]:
    """Return the codes of values of a grid: its integers, in two's complement of `fmt.bits` bits.

    Parameters
    ----------
    values : array of float32 or float64
        Of any shape.
    fmt : Grid
        The grid.

    Raises
    ------
    ValueError
        If an element is no value of the grid; NaN is none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        integers = np.asarray(values, dtype=np.float64) * 2.0**fmt.fraction_bits
        wrong = ~((integers >= fmt.low) & (integers <= fmt.high) & (integers == np.floor(integers)))
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"element {index} = {float(values[index])!r} is no value of {fmt}, and has no code")
    # The shifted-out bits of a uint64 are copies of the sign.
    codes: NDArray[np.uint64] = integers.astype(np.int64).astype(np.uint64) & np.uint64(2**fmt.bits - 1)
    return codes


def decode_grid(codes: NDArray[Any], fmt: Grid) -> NDArray[np.float64]:
    """Return the values of codes of a grid.

    Parameters
    ----------
    codes : array of unsigned integers
        Of any shape, each below ``2**fmt.bits``.
    fmt : Grid
        The grid.

    Raises
    ------
    ValueError
        If a code is too large, or stands for an integer beyond the ends.
    """
    integers = np.asarray(codes).astype(np.int64)
    if fmt.signed:
        integers = integers - ((integers >> (fmt.bits - 1)) << fmt.bits)
    wrong = (integers < fmt.low) | (integers > fmt.high)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"code {int(codes[index])} at {index} stands for no value of {fmt}")
    return integers * np.float64(2.0**-fmt.fraction_bits)


# -- floats, and the codes of a format --------------------------------------------------------------------
class TwosComplement:
    """The codes of grids and posits: places, that is, ordered integers, in two's complement."""

    def __init__(
        self, fmt: Format, encode: Callable[..., Block], decode: Callable[..., Block], first: int, last: int
    ) -> None:
        self.fmt, self.first, self.last = fmt, first, last
        self.encode: Callable[[Block], Block] = lambda values: encode(values, fmt)
        self.decode: Callable[[Block], Block] = lambda codes: decode(codes, fmt)
        #: Whether some codes stand for no value.
        self.gaps = last - first + 1 + fmt.has_nan < 1 << fmt.bits

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


class FloatCodes:
    """The codes of floating-point formats: the sign above the magnitude (exponent field and fraction)."""

    def __init__(self, fmt: Format) -> None:
        self.fmt, self.sign_place = fmt, fmt.bits - fmt.signed
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

    def cut(self, carrier: np.dtype[Any]) -> int:
        """Return how many low bits codes lack if they are upper bits of a carrier's codes; otherwise 0."""
        fmt, info = self.fmt, np.finfo(carrier)
        same = (fmt.emin, fmt.emax) == (int(info.minexp), int(info.maxexp) - 1)
        plain = fmt.specials is Specials.IEEE and fmt.has_negative_zero
        return int(info.nmant) + 1 - fmt.precision if same and plain else 0

    def encode(self, x: Block) -> Block:
        """Return the codes of values of the format, given in float32 or float64."""
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


def code_dtype(fmt: Format | str) -> np.dtype[Any]:
    """Return the shortest unsigned dtype that holds the codes of a format.

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
    """Return the encoder and decoder of a format's codes."""
    if isinstance(fmt, Grid):
        return TwosComplement(fmt, encode_grid, decode_grid, fmt.low, fmt.high)
    if isinstance(fmt, Posit):
        last = (1 << (fmt.bits - 1)) - 1
        return TwosComplement(fmt, encode_posits, decode_posits, -last, last)
    return FloatCodes(fmt)


def scaled(significand: Any, exponent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``significand * 2**exponent`` in two exact steps, as the power may be subnormal."""
    first = np.maximum(exponent, -1000)
    product: NDArray[np.float64] = significand * power_of_two(first) * power_of_two(exponent - first)
    return product


def power_of_two(exponent: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``2.0**exponent``, for exponents of normal numbers of binary64."""
    return ((exponent.astype(np.int64, copy=False) + 1023) << 52).view(np.float64)
