"""Statements on what double-word arithmetic assumes: double words, ties to even, no underflow of products."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mcfsim.formats import Format
from mcfsim.rounding import NEAREST, Mode, Rounding
from mcfsim.theorems.catalogue.double_words import BY_SOLVER, EVEN, PRODUCT, double, unit, worst_of_plus_fp
from mcfsim.theorems.catalogue.double_words import THEOREMS as DOUBLE_WORDS
from mcfsim.theorems.claims import double_word_to_even
from mcfsim.theorems.counterexamples import Case, power, quantum, scaled
from mcfsim.theorems.hypotheses import RESULTS_FINITE, exponents_at_least, hypothesis
from mcfsim.theorems.logic import SMALLEST_NORMAL, AnyOf, Word, equal
from mcfsim.theorems.operands import relaxed_pair
from mcfsim.theorems.statement import Hypothesis, Scaling, Theorem
from mcfsim.theorems.symbolic import families, family, u

AWAY = frozenset({Mode.NEAREST_AWAY})

_NAMED = {theorem.name: theorem for theorem in DOUBLE_WORDS}


# -- relaxed pairs ------------------------------------------------------------------------------------------
def _relaxed(theorem: str, **changes: Any) -> Theorem:
    """Return a statement with relaxed pairs in place of double words, and any tie rule.

    Every double word is a relaxed pair, whatever the tie rule.
    """
    of = _NAMED[theorem]
    about = {
        "name": f"{theorem}_relaxed",
        "operands": tuple(relaxed_pair(o.name) if o.paired else o for o in of.operands),
        "source": f"measured, no proof known; for double words: {of.source}",
        "modes": NEAREST,
        "worst": None,
        "sharp": "",
        "variant": True,
    }
    return replace(of, **{**about, **changes})


RELAXED_WORST = family(x=(1, -u + u**2), y=-(1 - 3 * u) / 2)
RELAXED_AWAY = family(x=(1, -u + u**2), y=-(1 - u) / 2)
#: For ties to even, and for ties away from zero.
ADD222_EVEN, ADD222_AWAY = (
    family(x=(1, -u + u**2), y=(-(1 - u) / 2, -low * (1 + 2 * u))) for low in (u**2 / 4, u / 8)
)


def _relaxed_away(fmt: Format, _: Rounding) -> Iterable[Case]:
    for case in RELAXED_AWAY(fmt.precision):
        yield from scaled(case, fmt, -2 * fmt.precision)


def _add222(fmt: Format, rounding: Rounding) -> Iterable[Case]:
    p = fmt.precision
    even, away = ADD222_EVEN.at(p), ADD222_AWAY.at(p)
    if rounding.mode is Mode.NEAREST_EVEN:
        return scaled(even, fmt, -3 * p - 1)
    if p == 3:  # the family reaches the bound, and its neighbour exceeds it
        away = (away[0], -unit(p), *away[2:])
    return scaled(away, fmt, -2 * p - 2)


RELAXED = (
    _relaxed(
        "dw_plus_fp",
        source=f"{BY_SOLVER}; for double words: {_NAMED['dw_plus_fp'].source}",
        modes=EVEN,
        families=RELAXED_WORST,
        worst=worst_of_plus_fp(1),
        sharp="asymptotically; 2u^2/(1+u+2u^2) is the worst of all operands tried",
    ),
    _relaxed(
        "dw_plus_fp",
        name="dw_plus_fp_relaxed_ties_away",
        source="measured",
        modes=AWAY,
        holds=False,
        families=RELAXED_AWAY,
        witnesses=_relaxed_away,
        worst=worst_of_plus_fp(-1),
        sharp="2u^2/(1-u+2u^2) is the worst of all operands tried",
    ),
    _relaxed("accurate_dw_plus_dw"),
    _relaxed(
        "add222",
        source="measured",
        holds=False,
        families=families(ADD222_EVEN, ADD222_AWAY),
        witnesses=_add222,
    ),
    _relaxed("dw_times_fp3"),
    _relaxed("dw_times_dw1", claim=double(Fraction(11, 2), PRODUCT)),
    *map(_relaxed, ("dw_times_dw2", "dw_times_dw3", "dw_div_fp3", "dw_div_dw2", "sqrt_dw")),
)


# -- ties ---------------------------------------------------------------------------------------------------
def _ties_away(name: str, *rest: Fraction) -> Theorem:
    """State that results are double words also with ties away from zero, which is false.

    The exact result of the counterexample is ``2**(p-1) + 1/2``: the tie goes up and leaves ``-1/2``. Its
    first component is ``2**(p-1)``, and `rest` are the others.
    """

    def witnesses(fmt: Format, _: Rounding) -> Iterable[Case]:
        return scaled((2 ** (fmt.precision - 1), *rest), fmt, -1)

    return replace(
        _NAMED[name],
        name=f"{name}_ties_away",
        claim=double_word_to_even(),
        source="measured",
        modes=AWAY,
        precision=3,
        holds=False,
        witnesses=witnesses,
        worst=None,
        sharp="",
        variant=True,
    )


NONE, HALF, ONE = Fraction(0), Fraction(1, 2), Fraction(1)
TIES = (
    _ties_away("dw_plus_fp", NONE, HALF),
    _ties_away("accurate_dw_plus_dw", NONE, HALF, NONE),
    _ties_away("dw_times_dw2", HALF, ONE, NONE),
)


# -- underflow ----------------------------------------------------------------------------------------------
HIGH, LOW, Y = Word("x"), Word("x", 1), Word("y")
NO_UNDERFLOW = hypothesis(
    AnyOf((exponents_at_least(HIGH, Y), equal(HIGH, 0), equal(Y, 0)))
    & ((abs(LOW * Y) >= SMALLEST_NORMAL) | equal(LOW * Y, 0))
)


def _in_format(name: str, *where: Hypothesis, **changes: Any) -> Theorem:
    """Return `dw_times_fp3` as a statement about a format with its range, not about its precision alone."""
    return replace(
        _NAMED["dw_times_fp3"],
        name=name,
        where=(*where, RESULTS_FINITE),
        scaling=Scaling.NONE,
        range="bounded",
        sharp="",
        **changes,
    )


def _vanishing(fmt: Format, _: Rounding) -> Iterable[Case]:
    """Yield the smallest number as both factors: if it is below 1, its square vanishes."""
    if quantum(fmt) < 0:
        yield power(quantum(fmt)), Fraction(0), power(quantum(fmt))


UNDERFLOW = (
    _in_format("dw_times_fp3_in_range", NO_UNDERFLOW),
    _in_format("dw_times_fp3_underflow", source="measured", holds=False, witnesses=_vanishing),
)

THEOREMS = (*RELAXED, *TIES, *UNDERFLOW)
