"""Statements on double words: bounds on the relative error, and that results are double words.

Those on sums also hold with underflow, since sums of subnormal numbers are exact. Those on products,
quotients and roots assume that nothing overflows or underflows, so they are tried with unbounded exponents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.rounding import NEAREST, Mode, Rounding
from mcfsim.theorems.claims import (
    Target,
    all_of,
    error_relative_to,
    normalised,
    product_of,
    quotient_of,
    relative_error,
    root_error,
    same_results,
    sum_of,
)
from mcfsim.theorems.counterexamples import Case, scaled
from mcfsim.theorems.hypotheses import RESULTS_FINITE, hypothesis, nonzero, positive, same_sign
from mcfsim.theorems.logic import AnyOf, Operand, SameSign, Word
from mcfsim.theorems.logic.propositions import Constant
from mcfsim.theorems.operands import double_word, value
from mcfsim.theorems.statement import Claim, Scaling, Theorem
from mcfsim.theorems.symbolic import Family, Quotient, families, family, u

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
    """Return the function ``2 / (1 + middle u + 2 u^2)`` of p: worst constants of DWPlusFP have this form."""
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

SUMS = (
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


# -- products, quotients and roots --------------------------------------------------------------------------
PRODUCT, QUOTIENT = product_of("x", "y"), quotient_of("x", "y")

#: For the three products of double words, which Muller and Rideau's proofs bound.
SHARP = (
    "asymptotically: proved for every p by the family, the worst of all operands tried at p = 6 (low words "
    "zero or in the five binades below half an ulp), 7 and 8 (in one binade); no published family was found"
)
BY_TWO_FAMILIES = "asymptotically: proved for every p by a family of even and one of odd p"
GAP = "a gap to the best families known of even and odd p, see every_p.md"


def _products(low: int, high: int, other: int) -> Family:
    """Return the family ``(1 + 2u, u - low u^2), (1 + high u, u - other u^2)``."""
    return family(x=(1 + 2 * u, u - low * u**2), y=(1 + high * u, u - other * u**2))


def _one_sided(fmt: Format, _: Rounding) -> Iterable[Case]:
    """Yield factors for which, in one order, ``xl yh`` is rounded before its last bits can break a tie."""
    small = unit(fmt.precision)
    if fmt.precision < 4:
        yield Fraction(1), 3 * small / 32, Fraction(3, 2), Fraction(1, 8)
    else:
        yield Fraction(1), (1 + 2 * small) * small / 8, 1 + 2 * small, small / 2


#: What these bounds have in common; those of products with a number; those of quotients; those of two words.
_about_double_words = partial(Theorem, operands=(X, Y), modes=EVEN, scaling=Scaling.EACH, range="unbounded")
_about_multiples = partial(_about_double_words, operands=(X, NUMBER), precision=3, sharp=BY_TWO_FAMILIES)
_about_quotients = partial(_about_double_words, where=(nonzero("y"),))
_about_ratios = partial(_about_quotients, sharp=GAP, variant=True)

PRODUCTS = (
    _about_multiples(
        "dw_times_fp1",
        dw.dw_times_fp1,
        claim=double(Fraction(3, 2) + 4 * u, PRODUCT),
        source=f"{JMP}, Algorithm 7; {MR}",
        precision=4,
        sharp="asymptotically: proved for every p by a family",
    ),
    _about_multiples(
        "dw_times_fp2", dw.dw_times_fp2, claim=double(3, PRODUCT), source=f"{JMP}, Algorithm 8; {MR}"
    ),
    _about_multiples(
        "dw_times_fp3",
        dw.dw_times_fp3,
        claim=double(2, PRODUCT),
        source=f"{JMP}, Algorithm 9, Theorem 4.3; {MR}",
    ),
    _about_double_words(
        "dw_times_dw1",
        dw.dw_times_dw1,
        claim=double(5, PRODUCT),
        source=f"{JMP}, Algorithm 10, with 7u^2; {MR}, Theorem 2.6",
        precision=6,
        families=_products(1, 4, 1),
        sharp=SHARP,
    ),
    _about_double_words(
        "dw_times_dw1_any_ties",
        dw.dw_times_dw1,
        claim=double(Fraction(11, 2), PRODUCT),
        source=f"of {JMP}, Algorithm 10; {MR}, Theorem 2.6",
        modes=NEAREST,
        precision=6,
        variant=True,
    ),
    _about_double_words(
        "dw_times_dw2",
        dw.dw_times_dw2,
        claim=double(5, PRODUCT),
        source=f"{JMP}, Algorithm 11, with 6u^2; {MR}, Theorem 2.7",
        precision=5,
        families=_products(3, 2, 1),
        sharp=f"{SHARP}; the bound in print, 5u^2/(1+u)^2, is tighter",
    ),
    _about_double_words(
        "dw_times_dw3",
        dw.dw_times_dw3,
        claim=double(4, PRODUCT),
        source=f"{JMP}, Algorithm 12, with 5u^2; {MR}, Theorem 2.8",
        precision=5,
        families=_products(3, 2, 2),
        sharp=f"{SHARP}; the bound in print, (4u^2 + u^3/2)/(1+u)^2, is tighter",
    ),
    _about_double_words(
        "dw_times_dw2_commutes",
        lambda ar, x, y: (dw.dw_times_dw2(ar, x, y), dw.dw_times_dw2(ar, y, x)),
        claim=same_results("DWTimesDW2(x, y)", "DWTimesDW2(y, x)"),
        source=f"of {JMP}, Algorithm 11, which treats its factors differently",
        holds=False,
        witnesses=_one_sided,
        variant=True,
    ),
)

QUOTIENTS = (
    _about_quotients(
        "dw_div_fp1_equals_fp2",
        lambda ar, x, y: (dw.dw_div_fp1(ar, x, y), dw.dw_div_fp2(ar, x, y)),
        operands=(X, NUMBER),
        claim=same_results("DWDivFP1(x, y)", "DWDivFP2(x, y)"),
        source=f"{JMP}, Algorithms 13 and 14; {MR}",
    ),
    _about_quotients(
        "dw_div_fp2",
        dw.dw_div_fp2,
        operands=(X, NUMBER),
        claim=double(Fraction(7, 2), QUOTIENT),
        source=f"{JMP}, Algorithm 14; {MR}",
        precision=4,
        sharp=GAP,
    ),
    _about_quotients(
        "dw_div_fp3",
        dw.dw_div_fp3,
        operands=(X, NUMBER),
        claim=double(3, QUOTIENT),
        source=f"{JMP}, Algorithm 15, Theorem 6.2; {MR}",
        precision=4,
        sharp=BY_TWO_FAMILIES,
    ),
    _about_quotients(
        "dw_div_dw1_equals_dw2",
        lambda ar, x, y: (dw.dw_div_dw1(ar, x, y), dw.dw_div_dw2(ar, x, y)),
        claim=same_results("DWDivDW1(x, y)", "DWDivDW2(x, y)"),
        source=f"{JMP}, Algorithms 16 and 17; {MR}",
        variant=True,
    ),
    _about_ratios(
        "dw_div_dw2",
        dw.dw_div_dw2,
        claim=double(15 + 56 * u, QUOTIENT),
        source=f"{JMP}, Algorithm 17, Theorem 7.1; {MR}",
        precision=7,
    ),
    _about_ratios(
        "dw_div_dw2_fma",
        dw.dw_div_dw2_fma,
        claim=double(15 + 56 * u, QUOTIENT),
        source=f"measured; {JMP}, Theorem 7.1, does not cover Algorithm 17 with Algorithm 9 in place of 7",
        precision=7,
    ),
    _about_ratios(
        "dw_div_dw3",
        dw.dw_div_dw3,
        claim=double(Fraction(49, 5), QUOTIENT),
        source=f"{JMP}, Algorithm 18; {MR}",
        precision=14,
    ),
)

ROOT = _about_double_words(
    "sqrt_dw",
    dw.sqrt_dw,
    operands=(X,),
    claim=all_of(root_error(Fraction(25, 8), sum_of("x")), normalised()),
    where=(positive("x"),),
    source="Lefevre, Louvet, Muller, Picot, Rideau, TOMS 49(1), 2023, Algorithm 8",
    precision=5,
    scaling=Scaling.SQUARE,
    sharp="asymptotically: proved for every p by a family, the worst of all tried at p = 7 to 11",
)

OTHERS = (*PRODUCTS, *QUOTIENTS, ROOT)

THEOREMS = (*SUMS, *OTHERS)
