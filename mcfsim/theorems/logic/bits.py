"""Bits of numbers in arrays: exponents, units in the last place, last bits, and which are values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.trial import Block, Trial, Truth, all_hold

#: The bits of a binary64 code beside sign and exponent.
_FRACTION = 2**52 - 1


# -- floats -------------------------------------------------------------------------------------------------
def exponent(x: Block, fmt: Format) -> Any:
    """Return ``floor(log2 |x|)``, subnormal numbers included; of zero a number below all others."""
    found = np.frexp(x)[1].astype(np.int64) - 1
    return np.where(x == 0, fmt.emin - 2 * fmt.precision - 2, found)


def low_bit(x: Block) -> Any:
    """Return the value of the lowest set bit, and infinity for zero."""
    magnitude = np.abs(x.astype(np.float64))
    code = magnitude.view(np.int64)
    rest = (code & (code - 1)).view(np.float64)  # without that bit, unless it is the leading one
    alone = (code & _FRACTION) == 0
    return np.where(magnitude == 0, np.inf, np.where(alone, magnitude, magnitude - rest))


def has_bits(x: Block, bits: int) -> Any:
    """Return where binary64 numbers have at most so many significant bits; zero alone has none."""
    return (x.view(np.int64) & ((1 << (53 - bits)) - 1)) == 0 if bits else x == 0


def is_value(x: Block, fmt: Format) -> Any:
    """Return where binary64 numbers are finite values of a format."""
    quanta = np.ldexp(np.abs(x), fmt.precision - 1 - fmt.emin)  # infinite if they are very many
    return has_bits(x, fmt.precision) & (np.floor(quanta) == quanta) & (np.abs(x) <= float(fmt.max))


def half_step(x: Block, toward: Block, fmt: Format) -> Any:
    """Return half the distance from binary64 numbers x to their neighbours on another number's side."""
    a = np.abs(x)
    inward = np.signbit(x) != np.signbit(toward)
    least = float(fmt.smallest_normal)
    leading = np.maximum((a.view(np.int64) & (-1 << 52)).view(np.float64), least)
    half = leading * 2.0**-fmt.precision
    # Below a power of two, numbers are twice as dense.
    return np.where(inward & (a == leading) & (a > least), half / 2, half)


def rounded_to_bits(high: Block, x: Block, bits: int) -> Any:
    """Return where a number is another one rounded to so many bits, to nearest, ties to even."""
    # The last of these bits is made the unit, and a tie goes to the even integer.
    wide = x.astype(np.float64)
    unit = np.frexp(wide)[1].astype(np.int64) - bits
    return np.ldexp(high.astype(np.float64), -unit) == np.rint(np.ldexp(wide, -unit))


# -- several floats -----------------------------------------------------------------------------------------
def nonoverlapping(parts: Iterable[Block], factor: int = 1) -> Truth:
    """Return where each nonzero component, times the factor, is below the lowest bit of all later ones."""
    *smaller, last = (part.astype(np.float64) for part in parts)
    least, ok = low_bit(last), factor * np.abs(last) < np.inf
    for part in reversed(smaller):
        ok = ok & ((factor * np.abs(part) < least) | (part == 0))
        least = np.minimum(least, low_bit(part))
    return ok


def strongly_nonoverlapping(parts: Iterable[Block]) -> Truth:
    """Return where an expansion is strongly nonoverlapping, zeros left out.

    It is nonoverlapping, adjacent components are powers of two, and none is adjacent to two others.
    """
    items = [part.astype(np.float64) for part in parts]
    ok = nonoverlapping(items)
    powers = [np.abs(item) == low_bit(item) for item in items]
    adjacent: list[Any] = [0] * len(items)
    for j, larger in enumerate(items):
        for i, smaller in enumerate(items[:j]):
            next_to = (2 * np.abs(smaller) >= low_bit(larger)) & (smaller != 0)
            ok = ok & (~next_to | (powers[i] & powers[j]))
            adjacent[i] = adjacent[i] + 1 * next_to
            adjacent[j] = adjacent[j] + 1 * next_to
    return all_hold(ok, *(count < 2 for count in adjacent))


# -- exact numbers ------------------------------------------------------------------------------------------
def units(x: Exact, fmt: Format) -> Exact:
    """Return the units in the last place of exact numbers."""
    exponents = ulp_of(x, fmt)
    return Exact(np.ones(exponents.shape), exponents, 1)


def ulp_of(x: Exact, fmt: Format) -> Any:
    """Return the exponents of the units in the last place of exact numbers."""
    if x.bits <= 53:
        length = np.frexp(x.integers().astype(np.float64))[1].astype(np.int64)
    else:
        length = np.array([int(n).bit_length() for n in x.integers()], np.int64)
    return np.maximum(length - 1 + x.q, fmt.emin) - fmt.precision + 1


def is_multiple(x: Exact, exponents: Any) -> Truth:
    """Return where exact numbers are integers times powers of two of the given exponents."""
    below = np.maximum(exponents - x.q, 0)
    n = x.integers()
    if n.dtype != object:
        return n & ((np.int64(1) << np.minimum(below, 62)) - 1) == 0
    return (n & np.array([(1 << int(k)) - 1 for k in below], object) == 0).astype(np.bool_)


def is_representable(t: Trial, x: Any) -> Truth:
    """Return where exact numbers are finite values of the format."""
    fmt = t.format
    if not isinstance(x, Exact):  # of a line: binary64 holds them
        return is_value(x.numbers(), fmt)
    n = np.abs(x.integers())
    # The odd part is below 2**p, the last bit no less than the quantum, and the whole no more than max.
    last = np.where(n == 0, 1, n & -n)
    short = n // last < 1 << fmt.precision
    quantum = fmt.emin - fmt.precision + 1
    q = np.broadcast_to(np.asarray(x.q), n.shape)
    shift = np.clip(quantum - q, 0, 62)
    coarse = (n & ((1 << shift) - 1)) == 0
    largest = Exact.of(np.full(n.shape, float(fmt.max)), fmt.precision)
    result: Any = (n == 0) | (short & coarse & (abs(x) <= largest))
    return result.astype(np.bool_)
