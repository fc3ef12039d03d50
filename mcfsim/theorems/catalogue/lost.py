"""Statements on lost arithmetic: when adding a number changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.theorems.catalogue.representability import about_sums
from mcfsim.theorems.claims import claim
from mcfsim.theorems.counterexamples import Case, power, scaled
from mcfsim.theorems.hypotheses import (
    hypothesis,
    nonzero,
    share_above,
    share_at_most,
    sum_at_most_largest,
    sum_in_range,
)
from mcfsim.theorems.logic import (
    AnyOf,
    Iff,
    InFormat,
    IsMultiple,
    Proposition,
    Result,
    SameSign,
    Ulp,
    UlpTowards,
    Word,
    equal,
)
from mcfsim.theorems.statement import DIRECTED, Claim, gaps_in_every_mode

NONZERO = nonzero("a", "b")
DEFINITION = "the definition of the rounding: a, its neighbours and the midpoints between them"
A, B, S = Word("a"), Word("b"), Result(0, "s")
#: a + b rounds to a.
LOST = equal(S, A)
STEP = UlpTowards(A, B)
EVEN = IsMultiple(A, 2 * Ulp(A))
OPPOSED = ~SameSign(A, B)


def lost_iff(condition: Proposition) -> Claim:
    """Claim that a + b rounds to a if and only if a condition holds."""
    return claim(Iff(LOST, condition))


def up_to_half_a_step(on_tie: Proposition) -> Proposition:
    """Return the condition that |b| is below half the gap to a's neighbour, or is half and `on_tie` holds."""
    return (2 * abs(B) < STEP) | (equal(2 * abs(B), STEP) & on_tie)


def _in_mode(mode: Mode) -> Proposition:
    return InFormat(f"rounding {mode.replace('_', ' ')}", lambda _, rounding: rounding.mode is mode)


#: By mode, when a sum that does not reach a's neighbour is rounded back to a.
BACK = {Mode.TOWARD_ZERO: SameSign(A, B), Mode.UP: B < 0, Mode.DOWN: B > 0, Mode.TO_ODD: ~EVEN}
#: b does not reach a's neighbour, and the mode rounds back to a.
BEFORE_NEIGHBOUR = (abs(B) < STEP) & AnyOf(tuple(_in_mode(mode) & back for mode, back in BACK.items()))


def _downward(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield 1 and -u: below a power of two, numbers are twice as dense."""
    return scaled((1, -power(-fmt.precision)), fmt, -fmt.precision)


def _tie(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a number and half its ulp, where the tie rounds back to the number."""
    u = power(-fmt.precision)
    case = (1 + 2 * u, -u) if rounding.mode is Mode.NEAREST_AWAY else (Fraction(1), u)
    return scaled(case, fmt, -fmt.precision)


#: If overflow saturates, anything added to the largest number is lost.
SHOWN = hypothesis(
    InFormat(
        "overflow shows", lambda fmt, rounding: fmt.has_nan and rounding.overflow is not Overflow.SATURATE
    )
    | sum_at_most_largest("a", "b")
)
IS_LOST, NOT_LOST = claim(LOST), claim(~LOST)

#: What these statements have in common. Unless a statement says otherwise, rounding is to nearest.
_about_lost = partial(about_sums, source=DEFINITION)

THEOREMS = (
    _about_lost(
        "lost_iff",
        claim=lost_iff(up_to_half_a_step(EVEN)),
        where=(NONZERO, SHOWN),
        modes=frozenset({Mode.NEAREST_EVEN}),
    ),
    _about_lost(
        "lost_iff_away",
        claim=lost_iff(up_to_half_a_step(OPPOSED)),
        where=(NONZERO, SHOWN),
        modes=frozenset({Mode.NEAREST_AWAY}),
    ),
    _about_lost(
        "lost_iff_directed",
        claim=lost_iff(BEFORE_NEIGHBOUR),
        where=(NONZERO, sum_in_range("a", "b")),
        modes=DIRECTED | {Mode.TO_ODD},
        gaps=gaps_in_every_mode,
    ),
    _about_lost(
        "lost_sufficient",
        claim=IS_LOST,
        where=(NONZERO, share_at_most("b", "a", Fraction(1, 2))),
        sharp="of a = 2^k the next larger b < 0 is not lost",
    ),
    _about_lost(
        "not_lost",
        claim=NOT_LOST,
        where=(NONZERO, share_above("b", "a", 1), SHOWN),
        sharp="of a = 2^k, b = u a is lost to nearest even",
    ),
    _about_lost(
        "lost_up_to_u",
        claim=IS_LOST,
        where=(NONZERO, share_at_most("b", "a", 1)),
        source="a common reading of u, which is the bound for powers of two alone",
        holds=False,
        witnesses=_downward,
    ),
    _about_lost(
        "not_lost_from_half_u",
        claim=NOT_LOST,
        where=(NONZERO, share_above("b", "a", Fraction(1, 2)), SHOWN),
        source="the converse of lost_sufficient",
        holds=False,
        witnesses=_tie,
    ),
)
