"""Sums of floats compared in floats: exactly, and with integers only where that does not do."""

from __future__ import annotations

from typing import Any

import numpy as np

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.trial import Block, Truth, only, rarely


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


def rest_of_sum(x: Block, y: Block, s: Block) -> tuple[Block, Any, Any]:
    """Return ``x + y - s`` in binary64, where it is exact, and where that tells.

    Where it is not exact, no binary64 number is; or s is no rounded sum, and it does not tell.
    """
    smaller, moved, sure = less(*(part.astype(np.float64, copy=False) for part in (x, y, s)))
    rest, held = rest_of(smaller, moved)
    return rest, held, sure


def rest_of(x: Block, s: Block) -> tuple[Block, Any]:
    """Return ``x - s`` in binary64, and where it is exact; where it is not, no binary64 number is."""
    x, s = (part.astype(np.float64, copy=False) for part in (x, s))
    rest = np.subtract(x, s)
    return rest, is_difference(rest, x, s)


def equal_pairs(x: Block, y: Block, s: Block, e: Block) -> Any:
    """Return the same as `equal_sums`, where as a rule s is x or y for few cases or for many."""
    # If s is one of the operands, e must be the other.
    is_x, is_y = s == x, s == y
    rest = only(~(is_x | is_y), equal_sums, x, y, s, e)
    return (is_x & (e == y)) | (is_y & (e == x)) | rest


def equal_to_three(x: Block, y: Block, r: Block, e: Block, f: Block) -> Any:
    """Return where ``x + y = r + e + f`` exactly, for finite x and y; none else is part of a sum."""
    smaller, moved, sure = less(x, y, r)

    def in_integers(*parts: Block) -> Truth:
        x, y, r, e, f = map(Exact.of, parts)
        return (x + y - r - e - f).is_zero()

    finite = np.isfinite(r) & np.isfinite(e) & np.isfinite(f)
    rest = rarely(~sure & finite, in_integers, x, y, r, e, f)
    return (sure & equal_sums(smaller, -moved, e, f)) | rest


def at_most(x: Block, y: Block, largest: float) -> Any:
    """Return where ``|x + y| <= largest``, a value of the format, for finite x and y."""

    def up_to_it(x: Block, y: Block) -> Truth:
        u, v = np.abs(x), np.abs(y)
        room = largest - np.maximum(u, v)
        return (np.signbit(x) != np.signbit(y)) | (np.minimum(u, v) <= room)

    with np.errstate(over="ignore"):
        size = np.abs(np.add(x, y))
    # A faithful sum below it comes from one in range, and one beyond it does not. At it, of numbers of one
    # sign, what the larger one leaves to it is exact.
    return (size < largest) | rarely(size == largest, up_to_it, x, y)
