"""Statements on stochastic rounding: exact expectations over all draws, and what holds on every draw."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.formats import Format
from mcfsim.rounding import Mode, Rounding, Rule
from mcfsim.theorems.catalogue.representability import PAIR, add, multiply
from mcfsim.theorems.claims import (
    bias_inward,
    bias_of_half,
    exact_sum,
    lost_on_every_draw_below,
    neighbour_of,
    product_of,
    relative_error,
    sum_of,
    unbiased,
    unbiased_iff_resolved,
    variance_of_quarter,
)
from mcfsim.theorems.counterexamples import Case, beyond_the_gap, power, unordered
from mcfsim.theorems.hypotheses import (
    RESULTS_FINITE,
    bits_resolved,
    exponent_gap,
    exponents_ordered,
    nonzero,
    same_sign,
)
from mcfsim.theorems.statement import Claim, Hypothesis, Scaling, Theorem

CONNOLLY = "Connolly, Higham, Mary, SIAM J. Sci. Comput. 43(1), 2021"
FITZGIBBON = "Fitzgibbon, Felix, On stochastic rounding with few random bits, ARITH 2025"
FAITHFUL = "Park, Lim, Nagarakatte, arXiv:2601.17198, 2026, on faithful rounding; gap and constant measured"
OF_BITS = f"{CONNOLLY}; of r bits: {FITZGIBBON}"
LINEAR = f"{CONNOLLY}, on unbiased operations; expectation is linear"
APPROACHED = "approached as the gap of exponents grows"

SUM, PRODUCT = sum_of("a", "b"), product_of("a", "b")
#: The claim that s + e = a + b on every draw.
EXACT = exact_sum()
ERROR = relative_error(2, SUM)
ORDERED = exponents_ordered("a", "b")
NEAR = exponent_gap("a", "b")
OF_ONE_SIGN = nonzero("a", "b"), same_sign("a", "b")
RESOLVED = bits_resolved("a", "b")
#: Even 32 random bits, the most there can be, do not resolve 2**-FAR beside 1.
FAR = 64


def _unresolved(fmt: Format, _: Rounding) -> Iterator[Case]:
    if fmt.emin <= -FAR:
        yield Fraction(1), power(-FAR)


def _rounded_up(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a sum about a quarter of an ulp above a value, if the draws resolve that."""
    if rounding.random_bits > 1 or rounding.rule is not Rule.TRUNCATE:
        yield from beyond_the_gap(fmt, rounding)


def _unordered(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield operands on which some draw is off by 1, if no draw overflows."""
    return ((a, b) for a, b in unordered(fmt, rounding) if abs(b) + 2 * a <= fmt.max)


def _theorem(name: str, algorithm: Any, about: Claim, *where: Hypothesis, **others: Any) -> Theorem:
    """Return a statement on all draws without overflow."""
    return Theorem(
        name,
        algorithm,
        PAIR,
        about,
        where=(*where, RESULTS_FINITE),
        modes=frozenset({Mode.STOCHASTIC}),
        # Samples reach the gaps at which 16 random bits no longer resolve the second operand.
        scaling=Scaling.EACH if algorithm is multiply else Scaling.COMMON,
        gaps=lambda p: (-p - 18, p + 18),
        **others,
    )


THEOREMS = (
    _theorem("sr_unbiased", add, unbiased_iff_resolved(SUM), source=OF_BITS),
    _theorem("sr_product_unbiased", multiply, unbiased_iff_resolved(PRODUCT), source=OF_BITS),
    _theorem(
        "sr_unbiased_any",
        add,
        unbiased(SUM),
        source=f"{FITZGIBBON}, against it",
        holds=False,
        families=lambda p: ((Fraction(1), power(-FAR)),),
        witnesses=_unresolved,
    ),
    _theorem("sr_neighbour", add, neighbour_of(SUM), source=CONNOLLY),
    _theorem(
        "sr_variance",
        add,
        variance_of_quarter(SUM),
        source="the variance of two values an ulp apart",
        worst=lambda p: Fraction(1, 4),
        sharp="attained by midpoints",
    ),
    _theorem(
        "sr_bias",
        add,
        bias_inward(SUM),
        source=FITZGIBBON,
        rules=(Rule.TRUNCATE,),
        sharp="the least upper bound",
    ),
    _theorem(
        "sr_bias_centred",
        add,
        bias_of_half(SUM),
        source=FITZGIBBON,
        rules=(Rule.CENTRED, Rule.NEAREST_FIRST),
        worst=lambda p: Fraction(1, 2),
    ),
    _theorem(
        "sr_lost_iff",
        add,
        lost_on_every_draw_below("a", "b", 0),
        *OF_ONE_SIGN,
        source=FITZGIBBON,
        rules=(Rule.TRUNCATE,),
    ),
    _theorem(
        "sr_lost_iff_centred",
        add,
        lost_on_every_draw_below("a", "b", 1),
        *OF_ONE_SIGN,
        source=FITZGIBBON,
        rules=(Rule.CENTRED,),
    ),
    # In any order: E[z] = E[s] - a and E[e] = b - E[z], even if the error of s is not a value of the format.
    _theorem("fast_two_sum_sr", fast_two_sum, unbiased(SUM), RESOLVED, source=LINEAR),
    _theorem("two_sum_sr", two_sum, unbiased(SUM), RESOLVED, source=LINEAR),
    _theorem("fast_two_sum_sr_near", fast_two_sum, EXACT, ORDERED, NEAR, source=FAITHFUL),
    _theorem(
        "fast_two_sum_sr_exact",
        fast_two_sum,
        EXACT,
        ORDERED,
        source="fast_two_sum carried over from rounding to nearest",
        holds=False,
        witnesses=_rounded_up,
    ),
    _theorem(
        "two_sum_sr_near",
        two_sum,
        EXACT,
        NEAR,
        source="measured on every draw at precisions 2 to 6; of Fast2Sum see fast_two_sum_sr_near",
    ),
    _theorem(
        "two_sum_sr_exact",
        two_sum,
        EXACT,
        source="two_sum carried over from rounding to nearest",
        holds=False,
        witnesses=_rounded_up,
    ),
    _theorem("sr_fast_two_sum_path_error", fast_two_sum, ERROR, ORDERED, source=FAITHFUL, sharp=APPROACHED),
    _theorem(
        "sr_fast_two_sum_path_error_unordered",
        fast_two_sum,
        ERROR,
        source="sr_fast_two_sum_path_error without its hypothesis",
        holds=False,
        witnesses=_unordered,
    ),
    _theorem("sr_two_sum_path_error", two_sum, ERROR, source=FAITHFUL, sharp=APPROACHED),
)
