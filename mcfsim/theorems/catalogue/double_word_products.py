"""Statements on products, quotients and roots of double words: error bounds and double-word results.

The theorems assume that nothing overflows or underflows, so they are tried with unbounded exponents.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.rounding import NEAREST, Rounding
from mcfsim.theorems.catalogue.double_words import EVEN, JMP, MR, NUMBER, X, Y, double, unit
from mcfsim.theorems.claims import (
    all_of,
    normalised,
    product_of,
    quotient_of,
    root_error,
    same_results,
    sum_of,
)
from mcfsim.theorems.counterexamples import Case
from mcfsim.theorems.hypotheses import nonzero, positive
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import Family, family, u

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
_about = partial(Theorem, operands=(X, Y), modes=EVEN, scaling=Scaling.EACH, range="unbounded")
_about_multiples = partial(_about, operands=(X, NUMBER), precision=3, sharp=BY_TWO_FAMILIES)
_about_quotients = partial(_about, where=(nonzero("y"),))
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
    _about(
        "dw_times_dw1",
        dw.dw_times_dw1,
        claim=double(5, PRODUCT),
        source=f"{JMP}, Algorithm 10, with 7u^2; {MR}, Theorem 2.6",
        precision=6,
        families=_products(1, 4, 1),
        sharp=SHARP,
    ),
    _about(
        "dw_times_dw1_any_ties",
        dw.dw_times_dw1,
        claim=double(Fraction(11, 2), PRODUCT),
        source=f"of {JMP}, Algorithm 10; {MR}, Theorem 2.6",
        modes=NEAREST,
        precision=6,
        variant=True,
    ),
    _about(
        "dw_times_dw2",
        dw.dw_times_dw2,
        claim=double(5, PRODUCT),
        source=f"{JMP}, Algorithm 11, with 6u^2; {MR}, Theorem 2.7",
        precision=5,
        families=_products(3, 2, 1),
        sharp=f"{SHARP}; the bound in print, 5u^2/(1+u)^2, is tighter",
    ),
    _about(
        "dw_times_dw3",
        dw.dw_times_dw3,
        claim=double(4, PRODUCT),
        source=f"{JMP}, Algorithm 12, with 5u^2; {MR}, Theorem 2.8",
        precision=5,
        families=_products(3, 2, 2),
        sharp=f"{SHARP}; the bound in print, (4u^2 + u^3/2)/(1+u)^2, is tighter",
    ),
    _about(
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

ROOT = _about(
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

THEOREMS = (*PRODUCTS, *QUOTIENTS, ROOT)
