"""Statements on Shewchuk's expansions, and on long sums with and without compensation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from typing import Any

from mcfsim.formats import Format
from mcfsim.multiword.shewchuk import expansion_sum, fast_expansion_sum, grow_expansion, vec_sum
from mcfsim.multiword.summation import dot2, dw_sum, kahan_sum, neumaier_sum, recursive_sum, sum_k
from mcfsim.rounding import Rounding
from mcfsim.theorems.catalogue.double_words import EVEN
from mcfsim.theorems.claims import (
    all_of,
    exactly,
    inner_product,
    magnitudes_of,
    mixed_error,
    nonoverlapping_results,
    strongly_nonoverlapping_results,
    sum_of,
)
from mcfsim.theorems.counterexamples import Case, scaled
from mcfsim.theorems.hypotheses import RESULTS_FINITE, by_magnitude, nonadjacent, nonoverlapping, of_format
from mcfsim.theorems.operands import sequence, value
from mcfsim.theorems.statement import Claim, Hypothesis, Scaling, Theorem
from mcfsim.theorems.symbolic import family, u

SHEWCHUK = "Shewchuk, Discrete Comput. Geom. 18, 1997"
ORO = "Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005"
NOT_VERIFIED = "the proposition's number is not verified"
E0, E1, B = value("e0"), value("e1"), value("b")
F0, F1 = value("f0"), value("f1")
G = tuple(map(value, ("g0", "g1", "g2")))
X, Y = sequence("x", 16), sequence("y", 8)
#: More terms than 1/u in bfloat16 and narrower formats.
MANY = 1024


# -- expansions ---------------------------------------------------------------------------------------------
NONOVERLAPPING, NONADJACENT = nonoverlapping_results(), nonoverlapping_results(2)


def grown(ar: Any, e0: Any, e1: Any, b: Any) -> Any:
    """Grow the expansion (e0, e1) by b."""
    return grow_expansion(ar, (e0, e1), b)


def added(ar: Any, e0: Any, e1: Any, f0: Any, f1: Any) -> Any:
    """Add two expansions."""
    return expansion_sum(ar, (e0, e1), (f0, f1))


def merged_and_added(ar: Any, g0: Any, g1: Any, g2: Any) -> Any:
    """Add the expansions whose components are merged to three numbers."""
    return fast_expansion_sum(ar, (g0, g1, g2))


# -- long sums ----------------------------------------------------------------------------------------------
def gamma(n: int, p: int) -> Fraction:
    """Return ``n u / (1 - n u)``; where ``n u >= 1``, the hypothesis `few` excludes all cases."""
    return Fraction(n, max(2**p - n, 1))


def few(n: int, text: str) -> Hypothesis:
    """Return the hypothesis that ``n u < 1``."""
    return of_format(text, lambda fmt, _: n < 2**fmt.precision)


def to_sum(shares: Callable[[int], tuple[Fraction, Fraction]], text: str, stop: int = 1) -> Claim:
    """Claim a bound on the error of the sum of x."""
    return mixed_error(sum_of("x"), magnitudes_of("x"), shares, text, stop)


def _long_terms(p: int) -> Iterable[Case]:
    """Yield a few sequences of terms between 1 and 2, from a linear congruential generator."""
    for seed in range(4):
        state, terms = seed, []
        for _ in range(MANY):
            state = (1103515245 * state + 12345) % 2**31
            terms.append(1 + Fraction(state << p >> 32, 2 ** (p - 1)))
        yield tuple(terms)


def _stagnating(fmt: Format, _: Rounding) -> Iterable[Case]:
    if fmt.precision <= 8 and fmt.emax > 11:
        yield next(iter(_long_terms(fmt.precision)))


#: Three terms whose sum has adjacent components.
ADJACENT = family(g0=-1 / (2 * u) - 6, g1=-2 / u, g2=2 / u + 4)


N = X.components
#: What the statements on expansions, and those on long sums, have in common.
_about_expansions = partial(Theorem, precision=3, scaling=Scaling.COMMON)
_about_merged = partial(_about_expansions, algorithm=merged_and_added, operands=G, modes=EVEN, precision=4)
_about_sums = partial(
    Theorem, operands=(X,), where=(RESULTS_FINITE,), precision=3, gaps=lambda p: (-p - 2, 0)
)

THEOREMS = (
    Theorem(
        "vec_sum",
        lambda ar, x: vec_sum(ar, x),
        (sequence("x", 4),),
        exactly(sum_of("x")),
        where=(RESULTS_FINITE,),
        source=f"{ORO}, Algorithm 4.3",
        gaps=lambda p: (-p, p),
    ),
    _about_expansions(
        "grow_expansion",
        grown,
        operands=(E0, E1, B),
        claim=all_of(exactly(sum_of("e0", "e1", "b")), NONOVERLAPPING),
        where=(nonoverlapping("e0", "e1"), RESULTS_FINITE),
        source=f"{SHEWCHUK}, Theorem 10",
    ),
    _about_expansions(
        "grow_expansion_nonadjacent",
        grown,
        operands=(E0, E1, B),
        claim=NONADJACENT,
        where=(nonadjacent("e0", "e1"), RESULTS_FINITE),
        source=f"{SHEWCHUK}, Theorem 10",
        modes=EVEN,
    ),
    _about_expansions(
        "expansion_sum",
        added,
        operands=(E0, E1, F0, F1),
        claim=all_of(exactly(sum_of("e0", "e1", "f0", "f1")), NONOVERLAPPING),
        where=(nonoverlapping("e0", "e1"), nonoverlapping("f0", "f1"), RESULTS_FINITE),
        source=f"{SHEWCHUK}, Theorem 12",
    ),
    _about_merged(
        "fast_expansion_sum",
        claim=all_of(exactly(sum_of("g0", "g1", "g2")), NONOVERLAPPING),
        where=(by_magnitude("g0", "g1", "g2"), nonadjacent("g0", "g2"), RESULTS_FINITE),
        source=f"{SHEWCHUK}, Theorem 13, for a nonadjacent expansion (g0, g2) and a number g1",
    ),
    _about_merged(
        "fast_expansion_sum_strongly",
        claim=strongly_nonoverlapping_results(),
        where=(by_magnitude("g0", "g1", "g2"), nonadjacent("g0", "g1"), RESULTS_FINITE),
        source=f"{SHEWCHUK}, Theorem 13, as it is commonly quoted; here for expansions (g0, g1) and (g2)",
        holds=False,
        families=ADJACENT,
        witnesses=lambda fmt, _: scaled(ADJACENT.at(fmt.precision), fmt, 1),
        sharp="the sum is exact and nonoverlapping nevertheless",
    ),
    _about_sums(
        "recursive_sum",
        lambda ar, x: recursive_sum(ar, x),
        claim=to_sum(lambda p: (Fraction(0), Fraction(N - 1, 2**p)), "(n - 1) u S"),
        source="Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013",
    ),
    _about_sums(
        "kahan_sum",
        lambda ar, x: kahan_sum(ar, x),
        claim=to_sum(lambda p: (Fraction(0), Fraction(2, 2**p) + Fraction(4 * N, 4**p)), "(2 u + 4 n u^2) S"),
        source="Knuth, TAOCP 2, 4.2.2; Higham, Accuracy and Stability, (4.8): 2u + O(n u^2); the 4 is ours",
    ),
    _about_sums(
        "neumaier_sum",
        lambda ar, x: neumaier_sum(ar, x),
        claim=to_sum(lambda p: (Fraction(1, 2**p), gamma(N - 1, p) ** 2), "u |s| + gamma(n - 1)^2 S"),
        where=(few(N, "n u < 1"), RESULTS_FINITE),
        source=f"{ORO}, on Sum2; {NOT_VERIFIED}",
        precision=5,
    ),
    _about_sums(
        "neumaier_sum_of_many",
        lambda ar, x: neumaier_sum(ar, x),
        operands=(sequence("x", MANY),),
        claim=to_sum(lambda p: (Fraction(0), Fraction(4, 2**p)), "4 u S"),
        source="the hope that the sum of errors is never itself a long sum",
        holds=False,
        families=_long_terms,
        witnesses=_stagnating,
        sharp="beyond 1/u terms the sum of the errors stagnates; kahan_sum and dw_sum do not",
    ),
    _about_sums(
        "sum_k",
        lambda ar, x: sum_k(ar, x, 3),
        claim=to_sum(
            lambda p: (Fraction(1, 2**p) + 3 * gamma(N - 1, p) ** 2, gamma(2 * N - 2, p) ** 3),
            "(u + 3 gamma(n - 1)^2) |s| + gamma(2 n - 2)^3 S",
        ),
        where=(few(4 * N, "4 n u < 1"), RESULTS_FINITE),
        source=f"{ORO}, on SumK; {NOT_VERIFIED}",
        precision=6,
    ),
    _about_sums(
        "dw_sum",
        lambda ar, x: dw_sum(ar, x),
        claim=to_sum(
            lambda p: (Fraction(0), 2 * (N - 1) * (1 + Fraction(2, 4**p)) ** (N - 1) / 4**p),
            "2 (n - 1) u^2 (1 + 2 u^2)^(n - 1) S",
            2,
        ),
        source="from dw_plus_fp, once a term",
    ),
    _about_sums(
        "dot2",
        lambda ar, x, y: dot2(ar, x, y),
        operands=(sequence("x", Y.components), Y),
        claim=mixed_error(
            inner_product("x", "y"),
            magnitudes_of("x", "y"),
            lambda p: (Fraction(1, 2**p), gamma(Y.components, p) ** 2),
            "u |s| + gamma(n)^2 S",
            1,
        ),
        where=(few(Y.components, "n u < 1"), RESULTS_FINITE),
        source=f"{ORO}, on Dot2; {NOT_VERIFIED}",
        precision=4,
        range="unbounded",
    ),
)
