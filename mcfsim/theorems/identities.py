"""Identities between floats, decided in floats: exactly, and with integers only where that does not do."""

from __future__ import annotations

from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.trial import Block, Truth, rarely


# -- sums ---------------------------------------------------------------------------------------------------
def is_difference(d: Block, x: Block, y: Block) -> Any:
    """Return where ``d = x - y`` exactly; NaN and infinity are no difference.

    The carrier rounds each of the three sums that should give the third number from the other two. If all
    of them do, they are exact: two of the numbers are no smaller than the third, lie within a factor of two
    of each other, and so have an exact difference (Sterbenz), which is the third.
    """
    return (np.subtract(x, y) == d) & (np.add(y, d) == x) & (np.subtract(x, d) == y)


def equal_sums(x: Block, y: Block, s: Block, e: Block) -> Any:
    """Return where ``x + y = s + e`` exactly, for finite x and y; NaN and infinity are no part of a sum."""
    smaller, moved, sure = less(x, y, s)

    def in_integers(x: Block, y: Block, s: Block, e: Block) -> Truth:
        return (Exact.of(x) + Exact.of(y) - Exact.of(s) - Exact.of(e)).is_zero()

    rest = rarely(~sure & np.isfinite(s) & np.isfinite(e), in_integers, x, y, s, e)
    return (sure & is_difference(e, smaller, moved)) | rest


def less(x: Block, y: Block, s: Block) -> tuple[Block, Block, Any]:
    """Return two numbers u and v with ``x + y - s = u - v``, and where that is so.

    They are the smaller of x and y, and what s is above the larger one. It is so wherever s is a rounded
    sum of both: s then is the sum itself, or within a factor of two of the larger.
    """
    first = np.abs(x) >= np.abs(y)
    larger, smaller = np.where(first, x, y), np.where(first, y, x)
    moved = np.subtract(s, larger)
    return smaller, moved, is_difference(moved, s, larger)


def rest_of_sum(x: Block, y: Block, s: Block) -> tuple[Block, Any]:
    """Return ``x + y - s`` in binary64, and where it is exact, for a rounded sum s.

    Where it is not exact, no binary64 number is; or s is no rounded sum.
    """
    smaller, moved, sure = less(*(part.astype(np.float64, copy=False) for part in (x, y, s)))
    rest, held = rest_of(smaller, moved)
    return rest, sure & held


def rest_of(x: Block, s: Block) -> tuple[Block, Any]:
    """Return ``x - s`` in binary64, and where it is exact; where it is not, no binary64 number is."""
    x, s = (part.astype(np.float64, copy=False) for part in (x, s))
    rest = np.subtract(x, s)
    return rest, is_difference(rest, x, s)


# -- one number ---------------------------------------------------------------------------------------------
def product(x: Block, y: Block) -> Block:
    """Return ``x y`` in binary64, exactly for numbers of at most 26 bits and of no extreme exponents."""
    result: Block = np.multiply(x, y, dtype=np.float64)
    return result


def has_bits(x: Block, bits: int) -> Any:
    """Return where binary64 numbers have at most so many significant bits; zero alone has none."""
    return (x.view(np.int64) & ((1 << (53 - bits)) - 1)) == 0 if bits else x == 0


def is_value(x: Block, fmt: Format) -> Any:
    """Return where binary64 numbers are finite values of a format."""
    quanta = np.ldexp(np.abs(x), fmt.precision - 1 - fmt.emin)  # infinite if they are very many
    return has_bits(x, fmt.precision) & (np.floor(quanta) == quanta) & (np.abs(x) <= float(fmt.max))
