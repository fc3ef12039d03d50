"""Helpers to evaluate terms on a trial: blocks, bits of numbers, exact comparison of sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mcfsim.convert import round_to
from mcfsim.formats import Format, Posit
from mcfsim.rounding import Rounding
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.logic.propositions import UnreadableError
from mcfsim.theorems.logic.terms import (
    Operand,
    Result,
    Rounded,
    Term,
    Word,
    places_of,
    spoken_of,
)
from mcfsim.theorems.trial import Block, Trial, Truth, all_hold, only, rarely, total


def block_of(x: Term, t: Trial) -> Any:
    """Return the block of a word or a result."""
    match x:
        case Word(name, place):
            words = t[name]
            words = words if isinstance(words, tuple) else (words,)
            if place >= len(words):
                raise IndexError(f"{name} has no word number {place}; it has {len(words)}")
            return words[place]
        case Result(place):
            return t.results[place]
        case Operand(name) if not isinstance(t[name], tuple):
            return t[name]
    raise UnreadableError(f"{type(x).__name__} stands where a word or a result must")


def rounded(x: Rounded, t: Trial) -> Any:
    """Return a sum rounded by the arithmetic, or in the mode of the term."""
    ar: Any = t.ar if x.mode is None else t.under(Rounding(x.mode))
    a, b = block_of(x.x, t), block_of(x.y, t)
    return ar.add(a, b) if x.mode is None else ar.add(a.astype(ar.carrier), b.astype(ar.carrier))


def wide(x: Any) -> Any:
    """Return a block in binary64; a Python number unchanged."""
    return x.astype(np.float64, copy=False) if hasattr(x, "dtype") else x


def ulp_place(x: Term, t: Trial) -> Any:
    """Return the exponent of the unit in the last place of a word or a result."""
    return np.maximum(exponent(block_of(x, t), t.format), t.format.emin) - t.format.precision + 1


def and_finite(held: Truth, t: Trial, *terms: Term) -> Truth:
    """Return where `held` is true and all results in terms are finite."""
    return all_hold(held, *(finite(term, t) for term in terms if spoken_of(term)))


def finite(x: Term, t: Trial) -> Truth:
    """Return where all results in a term are finite."""
    places = places_of(x, len(t.results))
    if len(places) == len(t.results):
        return t.finite
    return all_hold(*(np.isfinite(t.results[place]) for place in places)) if places else t.everywhere(True)


# -- floats -------------------------------------------------------------------------------------------------
def exponent(x: Block, fmt: Format) -> Any:
    """Return ``floor(log2 |x|)``, also of subnormal x; for zero a number below all others."""
    found = np.frexp(x)[1].astype(np.int64) - 1
    return np.where(x == 0, fmt.emin - 2 * fmt.precision - 2, found)


def low_bit(x: Block) -> Any:
    """Return the value of the lowest set bit, and infinity for zero."""
    magnitude = np.abs(x.astype(np.float64))
    code = magnitude.view(np.int64)
    rest = (code & (code - 1)).view(np.float64)  # without that bit, unless it is the leading one
    alone = (code & (2**52 - 1)) == 0  # no other fraction bit is set
    return np.where(magnitude == 0, np.inf, np.where(alone, magnitude, magnitude - rest))


def has_bits(x: Block, bits: int) -> Any:
    """Return where binary64 numbers have at most `bits` significant bits; only zero has none."""
    return (x.view(np.int64) & ((1 << (53 - bits)) - 1)) == 0 if bits else x == 0


def is_value(x: Block, fmt: Format) -> Any:
    """Return where binary64 numbers are finite values of a format."""
    if type(fmt) is not Format:  # a posit or a grid lacks some of the numbers that have its bits
        return round_to(x, fmt) == x
    quanta = np.ldexp(np.abs(x), fmt.precision - 1 - fmt.emin)  # infinite if there are very many
    return has_bits(x, fmt.precision) & (np.floor(quanta) == quanta) & (np.abs(x) <= float(fmt.max))


def half_step(x: Block, toward: Block, fmt: Format) -> Any:
    """Return half the distance from binary64 numbers x to their neighbours, see `UlpTowards`."""
    if isinstance(fmt, Posit):
        raise UnreadableError(f"distances to neighbours are known in floats and grids, and {fmt} is neither")
    a = np.abs(x)
    inward = ((x > 0) & (toward < 0)) | ((x < 0) & (toward > 0))
    least = 2.0**fmt.emin  # of a grid, this is the one binade
    leading = np.maximum((a.view(np.int64) & (-1 << 52)).view(np.float64), least)
    half = leading * 2.0**-fmt.precision
    # Below a power of two, numbers are twice as dense.
    return np.where(inward & (a == leading) & (a > least), half / 2, half)


def rounded_to_bits(high: Block, x: Block, bits: int) -> Any:
    """Return where `high` is x rounded to `bits` bits, to nearest, ties to even."""
    # Scale so that the last of these bits is 1; `rint` sends ties to the even integer.
    wide = x.astype(np.float64)
    unit = np.frexp(wide)[1].astype(np.int64) - bits
    return np.ldexp(high.astype(np.float64), -unit) == np.rint(np.ldexp(wide, -unit))


# -- several floats -----------------------------------------------------------------------------------------
def nonoverlapping(parts: Iterable[Block], factor: int = 1) -> Truth:
    """Return where each nonzero component times the factor is below the lowest bit of all later ones."""
    *smaller, last = (part.astype(np.float64) for part in parts)
    least, ok = low_bit(last), np.isfinite(last)
    for part in reversed(smaller):
        ok = ok & ((np.abs(part) < least * (1 / factor)) | (part == 0))  # a multiple of it may overflow
        least = np.minimum(least, low_bit(part))
    return ok


def strongly_nonoverlapping(parts: Iterable[Block]) -> Truth:
    """Return where an expansion, without its zeros, is strongly nonoverlapping.

    It is nonoverlapping, adjacent components are powers of two, and none is adjacent to two others.
    """
    items = [part.astype(np.float64) for part in parts]
    ok = nonoverlapping(items)
    powers = [np.abs(item) == low_bit(item) for item in items]
    adjacent: list[Any] = [0] * len(items)
    for j, larger in enumerate(items):
        for i, smaller in enumerate(items[:j]):
            next_to = (np.abs(smaller) >= low_bit(larger) * 0.5) & (smaller != 0)
            ok = ok & (~next_to | (powers[i] & powers[j]))
            adjacent[i] = adjacent[i] + 1 * next_to
            adjacent[j] = adjacent[j] + 1 * next_to
    return all_hold(ok, *(count < 2 for count in adjacent))


# -- exact numbers ------------------------------------------------------------------------------------------
def units(x: Exact, fmt: Format) -> Exact:
    """Return the units in the last place of exact numbers."""
    if not isinstance(x, Exact):
        raise TypeError("units in the last place are not recorded")
    exponents = ulp_of(x, fmt)
    return Exact(np.ones(exponents.shape), exponents, 1)


def ulp_of(x: Exact, fmt: Format) -> Any:
    """Return the exponents of the units in the last place of exact numbers."""
    # A zero has no bits, and its place says nothing.
    found = np.where(x.is_zero(), fmt.emin, x.lengths() - 1 + x.q)
    return np.maximum(found, fmt.emin) - fmt.precision + 1


def is_multiple(x: Exact, exponents: Any) -> Truth:
    """Return where exact numbers are integer multiples of powers of two with the given exponents."""
    below = np.maximum(exponents - x.q, 0)
    n = x.integers()
    if n.dtype != object:
        return n & ((np.int64(1) << np.minimum(below, 62)) - 1) == 0
    return (n & np.array([(1 << int(k)) - 1 for k in below], object) == 0).astype(np.bool_)


def is_representable(t: Trial, x: Any) -> Truth:
    """Return where exact numbers are finite values of the format."""
    fmt = t.format
    if not isinstance(x, Exact):  # of a recorded program: binary64 holds them
        return is_value(x.numbers(), fmt)
    n = np.abs(x.integers())
    # The odd part is below 2**p, the last bit no less than the quantum, and the whole no more than max.
    last = np.where(n == 0, 1, n & -n)
    short = n // last < 1 << fmt.precision
    coarse = is_multiple(x, np.full(n.shape, fmt.emin - fmt.precision + 1))
    largest = Exact.of(np.full(n.shape, float(max(fmt.max, -fmt.lowest))), fmt.precision)
    result: Any = ((n == 0) | (short & coarse & (abs(x) <= largest))).astype(np.bool_)
    return only(result, lambda some: is_value(some.numbers(), fmt), x) if type(fmt) is not Format else result


# -- sums ---------------------------------------------------------------------------------------------------
def is_difference(d: Block, x: Block, y: Block) -> Any:
    """Return where ``d = x - y`` exactly; False for NaN and infinity.

    The carrier rounds each of the three sums that should give the third number from the other two. If all
    of them do, they are exact: two of the numbers are no smaller than the third, lie within a factor of two
    of each other, and so have an exact difference (Sterbenz), which is the third.
    """
    return (np.subtract(x, y) == d) & (np.add(y, d) == x) & (np.subtract(x, d) == y)


def equal_sums(x: Block, y: Block, s: Block, e: Block, *others: Block) -> Any:
    """Return where ``x + y = s + e + ...`` exactly, for finite x and y; False if one of the others is not."""
    smaller, moved, sure = less(x, y, s)

    def in_integers(x: Block, y: Block, *parts: Block) -> Truth:
        return (Exact.of(x) + Exact.of(y) - total(map(Exact.of, parts))).is_zero()

    there = all_hold(~sure, *map(np.isfinite, (s, e, *others)))
    rest = rarely(there, in_integers, x, y, s, e, *others)
    held = equal_sums(smaller, -moved, e, *others) if others else is_difference(e, smaller, moved)
    return (sure & held) | rest


def less(x: Block, y: Block, s: Block) -> tuple[Block, Block, Any]:
    """Return two numbers u and v, and where ``x + y - s = u - v`` exactly.

    u is the smaller of x and y in magnitude, and v is s minus the larger. Equality holds wherever s is a
    rounded sum of both: s is then the sum itself, or within a factor of two of the larger.
    """
    first = np.abs(x) >= np.abs(y)
    larger, smaller = np.where(first, x, y), np.where(first, y, x)
    moved = np.subtract(s, larger)
    return smaller, moved, is_difference(moved, s, larger)


def rest_of_sum(x: Block, y: Block, s: Block) -> tuple[Block, Any, Any]:
    """Return ``x + y - s`` in binary64, where it is exact, and where that is decided.

    If it is decided not to be exact, no binary64 number equals it. It is decided if s is a rounded sum.
    """
    smaller, moved, sure = less(*(part.astype(np.float64, copy=False) for part in (x, y, s)))
    rest, held = rest_of(smaller, moved)
    return rest, held, sure


def rest_of(x: Block, s: Block) -> tuple[Block, Any]:
    """Return ``x - s`` in binary64, and where it is exact; elsewhere no binary64 number equals it."""
    x, s = (part.astype(np.float64, copy=False) for part in (x, s))
    rest = np.subtract(x, s)
    return rest, is_difference(rest, x, s)


def equal_pairs(x: Block, y: Block, s: Block, e: Block) -> Any:
    """Return the same as `equal_sums`, which runs only where s is neither x nor y."""
    # If s is one of the operands, e must be the other.
    is_x, is_y = s == x, s == y
    rest = only(~(is_x | is_y), equal_sums, x, y, s, e)
    return (is_x & (e == y)) | (is_y & (e == x)) | rest


def at_most(x: Block, y: Block, largest: float) -> Any:
    """Return where ``|x + y| <= largest`` for finite x and y; `largest` is a value of the format."""

    def up_to_it(x: Block, y: Block) -> Truth:
        u, v = np.abs(x), np.abs(y)
        room = largest - np.maximum(u, v)
        return (np.signbit(x) != np.signbit(y)) | (np.minimum(u, v) <= room)

    with np.errstate(over="ignore"):
        size = np.abs(np.add(x, y))
    # A faithful sum below `largest` means that the exact sum is in range; one above means that it is not.
    # At `largest`, the difference from the larger of two numbers of one sign is exact.
    return (size < largest) | rarely(size == largest, up_to_it, x, y)
