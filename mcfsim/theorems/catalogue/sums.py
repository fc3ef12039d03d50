"""Statements on 2Sum and Fast2Sum: when e is the exact error of s, and how wrong it is otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.formats import Format
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.theorems.catalogue.representability import DEKKER, PAIR
from mcfsim.theorems.catalogue.representability import SUM_IN_RANGE as IN_RANGE
from mcfsim.theorems.claims import E, S, claim, exact_sum, finite_result, relative_error, sum_of
from mcfsim.theorems.counterexamples import (
    Case,
    beyond_the_gap,
    exchanged,
    power,
    quantum,
    shows,
    unordered,
)
from mcfsim.theorems.hypotheses import (
    RESULTS_FINITE,
    exponents_ordered,
    multiple_of_ulp,
    normal_or_zero,
    not_largest,
    ordered,
)
from mcfsim.theorems.hypotheses import finite_result as supposed_finite
from mcfsim.theorems.logic import AllOf, Finite, Iff, IsValue, Word
from mcfsim.theorems.statement import FAITHFUL, Scaling, Theorem, gaps_in_every_mode

NOT_LARGEST = not_largest("a")
ORDERED = ordered("a", "b")
EXPONENTS_ORDERED = exponents_ordered("a", "b")
SUM_FINITE = supposed_finite(0, "s")
NOT_SUBNORMAL = normal_or_zero("a", "b")

EXACT = exact_sum()
FINITE = finite_result(1, "e")
OFF_BY_2_U2 = relative_error(2, sum_of("a", "b"))
A, B = Word("a"), Word("b")
EXACT_IFF_POSSIBLE = claim(AllOf((IsValue(S - A), Iff(EXACT.said, IsValue(A + B - S)), Finite(E))))

SHARP = "2u^2 is approached, and not reached, as the smaller operand vanishes beside the larger one"

LOST_IN_FLUSHING = "flushing to zero loses errors below 2^emin"
KNUTH = "Knuth, TAOCP 2, 4.2.2, Theorem B"
BGM = "Boldo, Graillat, Muller, TOMS 44(1), 2017"
JZ = "Jeannerod, Zimmermann, FastTwoSum revisited, ARITH 2025"


def _overflows_on_the_way(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield the largest number and a negative one: s is half an ulp too large, so ``s - b`` overflows."""
    if fmt.emax == fmt.emin or not shows(fmt, rounding, 2 * fmt.max):
        return
    half = power(fmt.emax - fmt.precision)  # half an ulp of the largest number
    if rounding.mode is Mode.NEAREST_AWAY and fmt.max_significand > 2 ** (fmt.precision - 1):
        yield fmt.max, -half
    elif rounding.mode is Mode.NEAREST_EVEN and fmt.max_significand % 2 == 1 and fmt.precision > 2:
        yield fmt.max, -3 * half


def _flushed(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield the two smallest normal numbers with opposite signs; their sum is flushed to zero."""
    least = fmt.smallest_normal
    yield least + power(quantum(fmt)), -least


#: What the statements about 2Sum, and those about Fast2Sum, have in common.
_about_two_sum = partial(Theorem, algorithm=two_sum, operands=PAIR, claim=EXACT, scaling=Scaling.COMMON)
_about_fast_two_sum = partial(_about_two_sum, algorithm=fast_two_sum)

THEOREMS = (
    # -- 2Sum --
    _about_two_sum("two_sum", where=(IN_RANGE, NOT_LARGEST), source=f"{KNUTH}; overflow: {BGM}"),
    _about_two_sum(
        "two_sum_any", where=(IN_RANGE,), source=BGM, holds=False, witnesses=_overflows_on_the_way
    ),
    _about_two_sum("two_sum_overflow", claim=FINITE, where=(SUM_FINITE, NOT_LARGEST), source=BGM),
    _about_two_sum(
        "two_sum_directed",
        where=(IN_RANGE, NOT_LARGEST),
        source=BGM,
        modes=FAITHFUL,
        gaps=gaps_in_every_mode,
        holds=False,
        # The larger one may be the format's largest number.
        witnesses=exchanged(beyond_the_gap),
    ),
    _about_two_sum(
        "two_sum_faithful_error",
        claim=OFF_BY_2_U2,
        where=(IN_RANGE, NOT_LARGEST),
        source=f"{BGM}, on 2Sum in directed modes; the constant: measured",
        modes=FAITHFUL,
        sharp=SHARP,
        gaps=lambda p: (-2 * p - 4, 2 * p + 4),
    ),
    _about_two_sum(
        "two_sum_flushed",
        where=(NOT_SUBNORMAL, IN_RANGE, NOT_LARGEST),
        source=LOST_IN_FLUSHING,
        holds=False,
        witnesses=exchanged(_flushed),
        underflow=Underflow.FLUSH_AFTER,
    ),
    # -- Fast2Sum --
    _about_fast_two_sum("fast_two_sum", where=(ORDERED, IN_RANGE), source=DEKKER),
    _about_fast_two_sum("fast_two_sum_exponents", where=(EXPONENTS_ORDERED, IN_RANGE), source=DEKKER),
    _about_fast_two_sum(
        "fast_two_sum_multiple", where=(multiple_of_ulp("a", "b"), IN_RANGE), source=f"{JZ}, Theorem 1"
    ),
    _about_fast_two_sum(
        "fast_two_sum_unordered",
        where=(IN_RANGE,),
        source=f"{DEKKER}, on why operands are ordered",
        holds=False,
        witnesses=unordered,
    ),
    _about_fast_two_sum(
        "fast_two_sum_unordered_error",
        claim=relative_error(1, sum_of("a", "b"), unit=1),
        where=(RESULTS_FINITE,),
        source=f"{JZ}, on operands that are reversed",
        worst=lambda p: 1 / (1 + Fraction(1, 2**p)),
    ),
    _about_fast_two_sum("fast_two_sum_overflow", claim=FINITE, where=(ORDERED, SUM_FINITE), source=BGM),
    _about_fast_two_sum(
        "fast_two_sum_faithful",
        claim=EXACT_IFF_POSSIBLE,
        where=(EXPONENTS_ORDERED, IN_RANGE),
        source=BGM,
        modes=FAITHFUL,
        gaps=lambda p: (-2 * p - 4, 0),
    ),
    _about_fast_two_sum(
        "fast_two_sum_faithful_error",
        claim=OFF_BY_2_U2,
        where=(EXPONENTS_ORDERED, IN_RANGE),
        source=f"{BGM}; Park, Lim, Nagarakatte, arXiv:2601.17198; the constant: measured",
        modes=FAITHFUL,
        sharp=SHARP,
        gaps=lambda p: (-2 * p - 4, 0),
    ),
    _about_fast_two_sum(
        "fast_two_sum_flushed",
        where=(NOT_SUBNORMAL, ORDERED, IN_RANGE),
        source=LOST_IN_FLUSHING,
        holds=False,
        witnesses=_flushed,
        underflow=Underflow.FLUSH_AFTER,
    ),
)
