"""Statements on Collage's Grow, Mul and Scaling with two components: an error bound and equal algorithms.

Grow is `dw_plus_fp` with Fast2Sum as its first step, which is correct if the exponents are in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Any

from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.multiword import expansion
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import NEAREST, Rounding
from mcfsim.theorems.catalogue.double_words import BY_SOLVER, EVEN, JMP, worst_of_plus_fp
from mcfsim.theorems.claims import all_of, exactly, normalised, relative_error, same_results, sum_of
from mcfsim.theorems.counterexamples import Case, unordered
from mcfsim.theorems.hypotheses import RESULTS_FINITE, exponents_ordered, hypothesis, multiple_of_ulp
from mcfsim.theorems.logic import Exponent, Word, equal
from mcfsim.theorems.operands import double_word, relaxed_pair, value
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import family, u

X, Y, A = double_word("x"), double_word("y"), value("a")
BOUND = all_of(relative_error(2, sum_of("x", "a")), normalised())
_X, _A = Word("x"), Word("a")
ABOVE = hypothesis(equal(Exponent(_A), Exponent(_X)) & (abs(_X) < abs(_A)))
BEYOND = hypothesis((Exponent(_X) < Exponent(_A)) & ~equal(_X, 0))

COLLAGE = "Yu et al., Collage, ICML 2024"
AS_PLUS_FP = f"{COLLAGE}, Grow; as DWPlusFP: {JMP}, Algorithm 4, Theorem 2.2"
SHARP = "asymptotically; the worst is that of dw_plus_fp"


def _grow(ar: Arithmetic, x: Any, a: Value) -> Any:
    return expansion.grow(ar, x, a, ordered=True)


WORST = family(x=(1, u / 2 + u**2), a=-(1 - u) / 2)
RELAXED_WORST = family(x=(1, -u + u**2), a=-(1 - 3 * u) / 2)


def _unordered(fmt: Format, rounding: Rounding) -> Iterable[Case]:
    """Yield operands on which Fast2Sum has a relative error of about u, with a zero low word."""
    return ((a, Fraction(0), b) for a, b in unordered(fmt, rounding))


def _grow_zero(ar: Arithmetic, a: Value) -> Any:
    zero = ar.sub(a, a)
    return _grow(ar, (zero, zero), a)


#: What the statements about Grow have in common.
_about_grow = partial(
    Theorem,
    algorithm=_grow,
    operands=(X, A),
    claim=BOUND,
    where=(exponents_ordered("x", "a"), RESULTS_FINITE),
    modes=EVEN,
    precision=3,
    scaling=Scaling.COMMON,
    gaps=lambda p: (-2 * p - 3, 0),
)
_about_equal_algorithms = partial(Theorem, modes=NEAREST, scaling=Scaling.EACH, range="unbounded")

THEOREMS = (
    _about_grow("grow", source=AS_PLUS_FP, families=WORST, worst=worst_of_plus_fp(2), sharp=SHARP),
    _about_grow(
        "grow_multiple_of_ulp",
        where=(multiple_of_ulp("x", "a"), RESULTS_FINITE),
        source=f"of {COLLAGE}, Grow, by Jeannerod, Zimmermann, FastTwoSum revisited, ARITH 2025, Theorem 1",
        gaps=lambda p: (-2 * p - 3, p),
        families=WORST,
        worst=worst_of_plus_fp(2),
        sharp=SHARP,
    ),
    _about_grow(
        "grow_relaxed",
        operands=(relaxed_pair("x"), A),
        source=f"of {COLLAGE}, Grow; {BY_SOLVER}",
        families=RELAXED_WORST,
        worst=worst_of_plus_fp(1),
        sharp="asymptotically; 2u^2/(1+u+2u^2) is the worst of all operands tried, p = 3 to 8",
    ),
    _about_grow(
        "grow_same_exponent", where=(ABOVE, RESULTS_FINITE), source=AS_PLUS_FP, gaps=lambda p: (0, 0)
    ),
    Theorem("grow_zero_high", _grow_zero, (A,), exactly(sum_of("a")), source=f"of {COLLAGE}, Grow"),
    _about_grow(
        "grow_equals_dw_plus_fp",
        algorithm=lambda ar, x, a: (_grow(ar, x, a), dw.dw_plus_fp(ar, x, a)),
        claim=same_results("Grow(x, a)", "DWPlusFP(x, a)"),
        source="the first Fast2Sum is exact: Dekker, Numer. Math. 18, 1971",
        modes=NEAREST,
        families=WORST,
    ),
    _about_grow(
        "grow_unordered",
        where=(BEYOND, RESULTS_FINITE),
        source=f"of {COLLAGE}, Grow, which supposes |x| >= |a|",
        holds=False,
        gaps=lambda p: (1, 2 * p + 3),
        witnesses=_unordered,
        sharp="the error reaches u: the compensation is lost",
    ),
    _about_equal_algorithms(
        "expansion_mul",
        lambda ar, x, y: (expansion.mul(ar, x, y), dw.dw_times_dw2(ar, y, x)),
        operands=(X, Y),
        claim=same_results("Mul(x, y)", "DWTimesDW2(y, x)"),
        source=f"{COLLAGE}, Mul; {JMP}, Algorithm 11",
        variant=True,
    ),
    _about_equal_algorithms(
        "expansion_scale",
        lambda ar, x, a: (expansion.scale(ar, x, a), dw.dw_times_fp3(ar, x, a)),
        operands=(X, A),
        claim=same_results("Scaling(x, a)", "DWTimesFP3(x, a)"),
        source=f"{COLLAGE}, Scaling; {JMP}, Algorithm 9",
    ),
)
