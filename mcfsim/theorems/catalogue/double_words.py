"""Statements on sums of double words: bounds on the relative error, and that results are double words.

They also hold with underflow, since sums of subnormal numbers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.claims import Target, all_of, error_relative_to, normalised, relative_error, sum_of
from mcfsim.theorems.counterexamples import Case, scaled
from mcfsim.theorems.hypotheses import RESULTS_FINITE, hypothesis, same_sign
from mcfsim.theorems.logic import AnyOf, Operand, SameSign, Word
from mcfsim.theorems.logic.propositions import Constant
from mcfsim.theorems.operands import double_word, value
from mcfsim.theorems.statement import Claim, Scaling, Theorem
from mcfsim.theorems.symbolic import Quotient, families, family, u

X, Y, NUMBER = double_word("x"), double_word("y"), value("y")
SUM = sum_of("x", "y")
EVEN = frozenset({Mode.NEAREST_EVEN})

JMP = "Joldes, Muller, Popescu, TOMS 44(2), 2017"
MR = "Muller, Rideau, TOMS 48(1), 2022"
PROVED = "proved here for every p >= 3 by a solver"
#: For relaxed pairs in place of double words.
BY_SOLVER = f"{PROVED}, ties to even (every_bound.md)"
BY_FAMILY = "asymptotically: proved for every p by the family"


def double(bound: Constant, target: Target) -> Claim:
    """Claim a bound in units of ``u**2``, and that the result is a double word."""
    return all_of(relative_error(bound, target), normalised())


def unit(p: int) -> Fraction:
    """Return the unit roundoff ``u = 2**-p``."""
    return Fraction(1, 2**p)


def worst_of_plus_fp(middle: int) -> Callable[[int], Fraction]:
    """Return the function ``2 / (1 + middle u + 2 u^2)`` of p, as worst constants of DWPlusFP are."""
    return lambda p: 2 / (1 + middle * unit(p) + 2 * unit(p) ** 2)


# -- operands that come near the bounds ---------------------------------------------------------------------
PLUS_FP_WORST = family(x=(1, u / 2 + u**2), y=-(1 - u) / 2)
PLUS_FP_PUBLISHED = family(x=(1, u - u**2), y=-(1 - u) / 2)
ACCURATE = family(x=(1, u - u**2), y=(-(1 - u) / 2, -(u**2) / 2 + u**3))
ADD222 = family(x=(1, -(1 - u) * u / 2), y=(-(1 - u) / 2, (1 - u) * u**2 / 4))
SLOPPY = family(x=(1 + 2 * u, -u + u**2), y=(5 * u, -4 * (1 - u) * u**2))
#: The sum of the high words is minus the rounded sum of the low words.
CANCELLING = family(x=(2 - 6 * u, u - u**2), y=(-(2 - 4 * u), u), first=3)
HALF = family(x=(1, u / 2 + u**2), y=(-(1 - u) / 2, (1 - u) * u**2 / 2))


def _accurate_worst(p: int) -> Fraction:
    small = unit(p)
    return (3 - 2 * small) / (1 + 3 * small - 3 * small**2 + 2 * small**3)


def _cancelling(fmt: Format, _: Rounding) -> Iterable[Case]:
    small = unit(fmt.precision)
    for case in CANCELLING(fmt.precision):
        yield from scaled(case, fmt, -2 * fmt.precision)
    # The high words cancel, and the sum of the low words is rounded.
    yield from scaled((1, small, -1, small**2), fmt, -2 * fmt.precision)


def _accurate(fmt: Format, _: Rounding) -> Iterable[Case]:
    if fmt.precision >= 4:
        for case in ACCURATE(fmt.precision):
            yield from scaled(case, fmt, -3 * fmt.precision)


_X, _Y = Word("x"), Word("y")
NO_CANCELLATION = hypothesis(AnyOf((2 * abs(_X) < abs(_Y), 2 * abs(_Y) < abs(_X), SameSign(_X, _Y))))

#: What all bounds of sums have in common, and those of sloppy ones.
_about_sums = partial(
    Theorem,
    operands=(X, Y),
    where=(RESULTS_FINITE,),
    modes=EVEN,
    precision=3,
    scaling=Scaling.COMMON,
    gaps=lambda p: (-2 * p - 3, 2 * p + 3),
)
_about_sloppy_sums = partial(_about_sums, algorithm=dw.sloppy_dw_plus_dw, claim=double(3, SUM))

THEOREMS = (
    _about_sums(
        "dw_plus_fp",
        dw.dw_plus_fp,
        operands=(X, NUMBER),
        claim=double(2, SUM),
        source=f"{JMP}, Algorithm 4, Theorem 2.2; {MR}",
        families=families(PLUS_FP_WORST, PLUS_FP_PUBLISHED),
        worst=worst_of_plus_fp(2),
        sharp="asymptotically; 2u^2/(1+2u+2u^2) is the worst of all operands tried, p = 3 to 8",
    ),
    _about_sloppy_sums(
        "sloppy_dw_plus_dw",
        where=(same_sign("x", "y"), RESULTS_FINITE),
        source=f"{JMP}, Algorithm 5",
        families=SLOPPY,
        sharp=BY_FAMILY,
    ),
    _about_sloppy_sums(
        "sloppy_dw_plus_dw_any_signs",
        source=f"{JMP}, Algorithm 5, which claims no bound where signs differ",
        precision=2,
        holds=False,
        families=CANCELLING,
        witnesses=_cancelling,
        sharp="the relative error reaches 1",
    ),
    _about_sloppy_sums(
        "sloppy_dw_plus_dw_absolute",
        claim=all_of(error_relative_to(3, SUM, abs(Operand("x")) + abs(Operand("y")), unit=2), normalised()),
        source=f"of {JMP}, Algorithm 5; {PROVED} (every_bound.md)",
        families=SLOPPY,
        sharp=BY_FAMILY,
    ),
    _about_sloppy_sums(
        "sloppy_dw_plus_dw_no_cancellation",
        where=(NO_CANCELLATION, RESULTS_FINITE),
        source="Yang et al., arXiv:2404.05948, abstract",
        families=HALF,
    ),
    _about_sums(
        "accurate_dw_plus_dw",
        dw.accurate_dw_plus_dw,
        claim=double(Quotient.of(3, 1 - 4 * u), SUM),
        source=f"{JMP}, Algorithm 6, Theorem 3.1; {MR}",
        families=ACCURATE,
        worst=_accurate_worst,
        sharp=f"asymptotically, by the family of {MR}, Property 2.1; from p = 5 on no worse case is known",
    ),
    _about_sums(
        "accurate_dw_plus_dw_old_conjecture",
        dw.accurate_dw_plus_dw,
        claim=relative_error(Fraction(9, 4), SUM),
        source=f"conjectured to be the worst: {JMP}; refuted: {MR}, Property 2.1",
        precision=2,
        holds=False,
        families=ACCURATE,
        witnesses=_accurate,
    ),
    _about_sums(
        "add222",
        dw.add222,
        claim=double(Fraction(3, 2), SUM),
        source="conjecture, measured; the network madd of Zhang, Aiken, 2025",
        families=ADD222,
        sharp="the constant grows to 1.5 with p",
    ),
)
