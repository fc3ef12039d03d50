"""Statements on sums, dot products, polynomials and means, as `mcfsim.functions` computes them.

Statements with products suppose that nothing underflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

from mcfsim import functions as f
from mcfsim.formats import Format
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Rounding
from mcfsim.theorems.catalogue.double_words import BY_FAMILY
from mcfsim.theorems.catalogue.expansions import few, gamma
from mcfsim.theorems.claims import (
    R,
    claim,
    error_relative_to,
    magnitudes_of,
    mixed_error,
    relative_error,
    sum_of,
)
from mcfsim.theorems.counterexamples import Case, scaled, shows
from mcfsim.theorems.hypotheses import RESULTS_FINITE, by_magnitude
from mcfsim.theorems.logic import Term, Word
from mcfsim.theorems.operands import sequence, value
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import EVEN, ODD, Quotient, families, family, u
from mcfsim.theorems.symbolic.operand_families import root

A, B, C, D = map(Word, "abcd")
FOUR = tuple(map(value, "abcd"))
TWO, THREE = FOUR[:2], FOUR[:3]

JR = "Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013"
JR_OPTIMAL = "Jeannerod, Rump, Math. Comp. 87, 2018"
HIGHAM = "Higham, Accuracy and Stability, 2nd ed., 2002"
MEAN = "Sterbenz, Floating-Point Computation, 1974; Boldo, ICFEM 2015"

#: Roots of u: ``e**2 = u`` for even p, and ``o**2 = 2 u`` for odd p.
e, o = root(EVEN), root(ODD)


# -- sums and dot products ----------------------------------------------------------------------------------
X = sequence("x", 8)
#: Depth of the tree in which the numbers of X are added.
DEPTH = 3
#: Every term but the first is half an ulp of the sum that it is added to, and lost.
LOST = family(a=1, b=u, c=u)
LOST_IN_TREE = family(x=(1, u, u, 0, u, 0, 0, 0))
#: The first product is a tie, and the second one half an ulp.
TIES = families(family(a=1 + e, b=e, c=1 + e, d=e), family(a=1 + o, b=o, c=1 + o / 2, d=o / 2))


def _added(ar: Arithmetic, a: Value, b: Value, c: Value) -> Any:
    return f.recursive_sum(ar, (a, b, c))


def _added_doubly(ar: Arithmetic, a: Value, b: Value, c: Value) -> Any:
    return f.doubly_compensated_sum(ar, (a, b, c))


def _dot(ar: Arithmetic, a: Value, b: Value, c: Value, d: Value) -> Any:
    return f.recursive_dot(ar, (a, b), (c, d))


def _unsorted(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield a number that is lost beside the next one, although it is the sum of all three."""
    big = 2 ** (fmt.precision + 2)
    return scaled((1, big, -big), fmt, 0)


# -- polynomials --------------------------------------------------------------------------------------------
DEGREE = 3
COEFFICIENTS = sequence("c", DEGREE + 1)


def _nested(x: Term, coefficients: list[Term]) -> Term:
    """Return the exact value of a polynomial."""
    total, *rest = coefficients
    for coefficient in rest:
        total = total * x + coefficient
    return total


_C: list[Term] = [Word("c", place) for place in range(DEGREE + 1)]
VALUE, SIZES = _nested(Word("x"), _C), _nested(abs(Word("x")), list(map(abs, _C)))
ROOTS = (A - B) * (A - C)


def _near_root(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield ``(x - 1)**3``, expanded, next to its root."""
    small = Fraction(1, 2**fmt.precision)
    yield 1 + 2 * small, Fraction(1), Fraction(-3), Fraction(3), Fraction(-1)


# -- means --------------------------------------------------------------------------------------------------
BETWEEN = claim(((A <= R) & (R <= B)) | ((B <= R) & (R <= A)))


def _mean_of_two(ar: Arithmetic, a: Value, b: Value) -> Any:
    return f.mean(ar, (a, b))


def _mean_of_three(ar: Arithmetic, a: Value, b: Value, c: Value) -> Any:
    return f.mean(ar, (a, b, c))


def _overflowing(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield the largest number twice."""
    if shows(fmt, rounding, 2 * fmt.max):
        yield fmt.max, fmt.max


def _equal_terms(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield a number three times: its triple is a tie, off by two thirds of its ulp after the division."""
    for (number,) in scaled((2**fmt.precision - 2,), fmt, 0):
        if fmt.precision > 2 and 4 * number <= fmt.max:
            yield (number,) * 3


#: What statements on numbers that are added, on products of numbers, and on polynomials have in common.
_about_sums = partial(Theorem, operands=THREE, where=(RESULTS_FINITE,), scaling=Scaling.COMMON)
about_products = partial(
    Theorem,
    operands=FOUR,
    where=(RESULTS_FINITE,),
    scaling=Scaling.COMMON,
    range="unbounded",
    gaps=lambda p: (-p - 2, p + 2),
)
_about_polynomials = partial(
    Theorem,
    operands=(value("x"), COEFFICIENTS),
    where=(RESULTS_FINITE,),
    range="unbounded",
    gaps=lambda p: (-3, 3),
)

THEOREMS = (
    # -- sums and dot products --
    _about_sums(
        "recursive_sum_of_three",
        _added,
        claim=error_relative_to(Quotient.of(2, 1 + 2 * u), sum_of("a", "b", "c"), abs(A) + abs(B) + abs(C)),
        source=f"{JR}, with 2u; 2u / (1 + 2u): proved here for every p by a solver (every_bound.md)",
        families=LOST,
        worst=lambda p: 2 / (1 + Fraction(2, 2**p)),
        sharp="reached for every p, by the family",
    ),
    Theorem(
        "pairwise_sum",
        lambda ar, x: f.pairwise_sum(ar, x),
        (X,),
        error_relative_to(Quotient.of(DEPTH, 1 - DEPTH * u), sum_of("x"), magnitudes_of("x")),
        where=(few(DEPTH, "3 u < 1"), RESULTS_FINITE),
        source=f"{HIGHAM}, (4.6)",
        families=LOST_IN_TREE,
        gaps=lambda p: (-p - 2, 0),
        sharp=BY_FAMILY,
    ),
    _about_sums(
        "doubly_compensated_sum",
        _added_doubly,
        claim=relative_error(2, sum_of("a", "b", "c"), unit=1),
        where=(by_magnitude("c", "b", "a"), RESULTS_FINITE),
        source=f"Priest, PhD thesis, Berkeley, 1992, section 4.1; {HIGHAM}, Algorithm 4.3; n <= 2^(p - 3)",
        precision=5,
        gaps=lambda p: (-2 * p - 3, 0),
    ),
    _about_sums(
        "doubly_compensated_sum_unsorted",
        _added_doubly,
        claim=relative_error(2, sum_of("a", "b", "c"), unit=1),
        source="on why terms are sorted",
        precision=5,
        gaps=lambda p: (-2 * p - 3, 2 * p + 3),
        holds=False,
        witnesses=_unsorted,
    ),
    about_products(
        "recursive_dot_of_two",
        _dot,
        claim=error_relative_to(2, A * C + B * D, abs(A * C) + abs(B * D)),
        source=JR,
        families=TIES,
        sharp=BY_FAMILY,
    ),
    # -- polynomials --
    _about_polynomials(
        "horner",
        lambda ar, x, c: f.horner(ar, x, c),
        claim=error_relative_to(Quotient.of(2 * DEGREE, 1 - 2 * DEGREE * u), VALUE, SIZES),
        where=(few(2 * DEGREE, "6 u < 1"), RESULTS_FINITE),
        source=f"{HIGHAM}, (5.3)",
        precision=3,
    ),
    _about_polynomials(
        "horner_near_root",
        lambda ar, x, c: f.horner(ar, x, c),
        claim=relative_error(2 * DEGREE, VALUE, unit=1),
        where=(),
        source="the hope that errors are relative to the value itself",
        holds=False,
        witnesses=_near_root,
        sharp="next to a root no digit may be right",
    ),
    _about_polynomials(
        "compensated_horner",
        lambda ar, x, c: f.compensated_horner(ar, x, c),
        claim=mixed_error(
            VALUE,
            SIZES,
            lambda p: (Fraction(1, 2**p), gamma(2 * DEGREE, p) ** 2),
            "u |s| + gamma(6)^2 S",
            1,
        ),
        where=(few(2 * DEGREE, "6 u < 1"), RESULTS_FINITE),
        source="Graillat, Langlois, Louvet, 2005; with fma: Langlois, Louvet, ARITH 2007",
        precision=3,
    ),
    about_products(
        "polynomial_from_two_roots",
        lambda ar, a, b, c: f.polynomial_from_roots(ar, a, (b, c)),
        operands=THREE,
        claim=relative_error(3, ROOTS, unit=1),
        source=f"three roundings by u / (1 + u) each: {JR_OPTIMAL}",
    ),
    # -- means --
    _about_sums("mean_of_two", _mean_of_two, operands=TWO, claim=BETWEEN, source=MEAN),
    _about_sums(
        "mean_of_two_overflow",
        _mean_of_two,
        operands=TWO,
        where=(),
        claim=BETWEEN,
        source=f"{MEAN}, on why the sum must not overflow",
        holds=False,
        witnesses=_overflowing,
    ),
    _about_sums(
        "mean_of_three",
        _mean_of_three,
        claim=claim(((A <= R) | (B <= R) | (C <= R)) & ((R <= A) | (R <= B) | (R <= C))),
        source="the hope that every mean lies between the least and the largest number",
        holds=False,
        witnesses=_equal_terms,
    ),
)
