"""Lost arithmetic: when adding a number changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.theorems.catalogue.representability import add
from mcfsim.theorems.claims import claim
from mcfsim.theorems.hypotheses import hypothesis, nonzero, sum_in_range
from mcfsim.theorems.operands import value
from mcfsim.theorems.statement import DIRECTED, NEAREST, Claim, Scaling, Theorem
from mcfsim.theorems.trial import Trial, Truth
from mcfsim.theorems.witnesses import Case, power, scaled

PAIR = (value("a"), value("b"))
NONZERO = nonzero("a", "b")
IN_RANGE = sum_in_range("a", "b")
DEFINITION = "the definition of the rounding: a, its neighbours and the midpoints between them"
#: To the neighbour of a on b's side, halved.
H = "h half the distance from a to its neighbour on the side of b"


def lost(t: Trial) -> Truth:
    """Return where a + b rounds to a."""
    return t.results[0] == t["a"]


def half_step(t: Trial) -> Any:
    """Return half the distance from a to its neighbour on the side of b, both not zero.

    Where that underflows to zero, it is less than the smallest number.
    """
    a, fmt = np.abs(t["a"]), t.format
    inward = np.signbit(t["a"]) != np.signbit(t["b"])
    leading = _leading(a, fmt)
    half = leading * a.dtype.type(2.0**-fmt.precision)
    # Below a power of two, numbers are twice as dense.
    return np.where(inward & (a == leading) & (a > _smallest_normal(a, fmt)), half / 2, half)


def is_even(t: Trial) -> Truth:
    """Return where the significand of a is even, which is not zero."""
    a, fmt = np.abs(t["a"]), t.format
    # The two powers of two are taken out exactly: in binary64 neither quotient underflows.
    twice = a.astype(np.float64) / _leading(a, fmt) * 2.0 ** (fmt.precision - 2)
    return np.floor(twice) == twice


def _leading(a: Any, fmt: Format) -> Any:
    """Return the power of two of the first bit of positive numbers, at least that of normal ones."""
    integer = np.dtype(f"i{a.dtype.itemsize}")
    exponent_bits = -1 << np.finfo(a.dtype).nmant
    return np.maximum((a.view(integer) & exponent_bits).view(a.dtype), _smallest_normal(a, fmt))


def _smallest_normal(a: Any, fmt: Format) -> Any:
    return a.dtype.type(fmt.smallest_normal)


def _reaches(t: Trial, on_tie: Callable[[Trial], Truth]) -> Truth:
    """Return where a loses a number up to h, and h itself where that tie is said to fall on a."""
    b, half = np.abs(t["b"]), half_step(t)
    return (b < half) | t.only(b == half, on_tie)


def opposed(t: Trial) -> Truth:
    """Return where a and b have opposite signs."""
    return np.signbit(t["a"]) != np.signbit(t["b"])


def _just_where(text: str, condition: Any) -> Claim:
    return claim(f"a + b rounds to a if and only if {text}", lambda t: lost(t) == condition(t))


def _directed(t: Trial) -> Truth:
    mode = t.rounding.mode
    reached = np.abs(t["b"]) < 2 * half_step(t)
    if mode is Mode.TO_ODD:
        return t.only(reached, lambda some: ~is_even(some))
    return reached & (~opposed(t) if mode is Mode.TOWARD_ZERO else np.signbit(t["b"]) == (mode is Mode.UP))


def _not_saturated(t: Trial) -> Truth:
    if t.format.has_nan and t.rounding.overflow is not Overflow.SATURATE:
        return t.everywhere(True)
    return IN_RANGE.test(t)


def _within(t: Trial, halves: int) -> Truth:
    """Return where ``|b| <= halves u |a| / 2``."""
    scale = 2.0 ** (t.format.precision + 1) / halves  # a power of two; what overflows is larger indeed
    return np.abs(t["b"]) * t["b"].dtype.type(scale) <= np.abs(t["a"])


def _downward(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield 1 and -u: numbers below a power of two are twice as dense."""
    return scaled((1, -power(-fmt.precision)), fmt, -fmt.precision)


def _tie(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a number and half its ulp, where that tie falls on it."""
    u = power(-fmt.precision)
    case = (1 + 2 * u, -u) if rounding.mode is Mode.NEAREST_AWAY else (Fraction(1), u)
    return scaled(case, fmt, -fmt.precision)


UP_TO_HALF_U = hypothesis("|b| <= u |a| / 2", lambda t: _within(t, 1))
UP_TO_U = hypothesis("|b| <= u |a|", lambda t: _within(t, 2))
ABOVE_HALF_U = hypothesis("|b| > u |a| / 2", lambda t: ~_within(t, 1))
ABOVE_U = hypothesis("|b| > u |a|", lambda t: ~_within(t, 2))
#: Where numbers saturate, the largest loses whatever is added.
SHOWN = hypothesis("|a + b| <= max if overflow saturates", _not_saturated)
LOST = claim("a + b rounds to a", lost)
NOT_LOST = claim("a + b does not round to a", lambda t: ~lost(t))

THEOREMS = (
    Theorem(
        "lost_iff",
        add,
        PAIR,
        _just_where(f"|b| < h, or |b| = h and a is even; {H}", lambda t: _reaches(t, is_even)),
        where=(NONZERO, SHOWN),
        source=DEFINITION,
        modes=frozenset({Mode.NEAREST_EVEN}),
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_iff_away",
        add,
        PAIR,
        _just_where(
            f"|b| < h, or |b| = h and a b < 0; {H}",
            lambda t: _reaches(t, opposed),
        ),
        where=(NONZERO, SHOWN),
        source=DEFINITION,
        modes=frozenset({Mode.NEAREST_AWAY}),
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_iff_directed",
        add,
        PAIR,
        _just_where(
            f"|b| < 2 h, and a b > 0 toward zero, b < 0 up, b > 0 down, a is odd to odd; {H}", _directed
        ),
        where=(NONZERO, IN_RANGE),
        source=DEFINITION,
        modes=DIRECTED | {Mode.TO_ODD},
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_sufficient",
        add,
        PAIR,
        LOST,
        where=(NONZERO, UP_TO_HALF_U),
        source=DEFINITION,
        modes=NEAREST,
        scaling=Scaling.COMMON,
        sharp="of a = 2^k the next larger b < 0 is not lost",
    ),
    Theorem(
        "not_lost",
        add,
        PAIR,
        NOT_LOST,
        where=(NONZERO, ABOVE_U, SHOWN),
        source=DEFINITION,
        modes=NEAREST,
        scaling=Scaling.COMMON,
        sharp="of a = 2^k, b = u a is lost to nearest even",
    ),
    Theorem(
        "lost_up_to_u",
        add,
        PAIR,
        LOST,
        where=(NONZERO, UP_TO_U),
        source="a common reading of u, which is the bound for powers of two alone",
        modes=NEAREST,
        holds=False,
        witnesses=_downward,
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "not_lost_from_half_u",
        add,
        PAIR,
        NOT_LOST,
        where=(NONZERO, ABOVE_HALF_U, SHOWN),
        source="the converse of lost_sufficient",
        modes=NEAREST,
        holds=False,
        witnesses=_tie,
        scaling=Scaling.COMMON,
    ),
)
