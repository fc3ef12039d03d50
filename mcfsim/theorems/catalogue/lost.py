"""Statements on lost arithmetic: when adding a number changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.theorems.catalogue.representability import add
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
    AllOf,
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
from mcfsim.theorems.operands import value
from mcfsim.theorems.statement import DIRECTED, NEAREST, Claim, Scaling, Theorem

PAIR = (value("a"), value("b"))
NONZERO = nonzero("a", "b")
IN_RANGE = sum_in_range("a", "b")
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
    return AnyOf((2 * abs(B) < STEP, AllOf((equal(2 * abs(B), STEP), on_tie))))


def _in_mode(mode: Mode, condition: Proposition) -> Proposition:
    return AllOf(
        (InFormat(f"rounding {mode.replace('_', ' ')}", lambda _, rounding: rounding.mode is mode), condition)
    )


#: b does not reach a's neighbour, and the mode rounds back to a.
BEFORE_NEIGHBOUR = AllOf(
    (
        abs(B) < STEP,
        AnyOf(
            (
                _in_mode(Mode.TOWARD_ZERO, SameSign(A, B)),
                _in_mode(Mode.UP, B < 0),
                _in_mode(Mode.DOWN, B > 0),
                _in_mode(Mode.TO_ODD, ~EVEN),
            )
        ),
    )
)


def _downward(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield 1 and -u: below a power of two, numbers are twice as dense."""
    return scaled((1, -power(-fmt.precision)), fmt, -fmt.precision)


def _tie(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a number and half its ulp, where the tie rounds back to the number."""
    u = power(-fmt.precision)
    case = (1 + 2 * u, -u) if rounding.mode is Mode.NEAREST_AWAY else (Fraction(1), u)
    return scaled(case, fmt, -fmt.precision)


UP_TO_HALF_U, UP_TO_U = share_at_most("b", "a", Fraction(1, 2)), share_at_most("b", "a", 1)
ABOVE_HALF_U, ABOVE_U = share_above("b", "a", Fraction(1, 2)), share_above("b", "a", 1)
#: If overflow saturates, anything added to the largest number is lost.
SHOWN = hypothesis(
    AnyOf(
        (
            InFormat(
                "overflow shows",
                lambda fmt, rounding: fmt.has_nan and rounding.overflow is not Overflow.SATURATE,
            ),
            sum_at_most_largest("a", "b"),
        )
    )
)
IS_LOST, NOT_LOST = claim(LOST), claim(~LOST)

THEOREMS = (
    Theorem(
        "lost_iff",
        add,
        PAIR,
        lost_iff(up_to_half_a_step(EVEN)),
        where=(NONZERO, SHOWN),
        source=DEFINITION,
        modes=frozenset({Mode.NEAREST_EVEN}),
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_iff_away",
        add,
        PAIR,
        lost_iff(up_to_half_a_step(OPPOSED)),
        where=(NONZERO, SHOWN),
        source=DEFINITION,
        modes=frozenset({Mode.NEAREST_AWAY}),
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_iff_directed",
        add,
        PAIR,
        lost_iff(BEFORE_NEIGHBOUR),
        where=(NONZERO, IN_RANGE),
        source=DEFINITION,
        modes=DIRECTED | {Mode.TO_ODD},
        scaling=Scaling.COMMON,
    ),
    Theorem(
        "lost_sufficient",
        add,
        PAIR,
        IS_LOST,
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
        IS_LOST,
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
