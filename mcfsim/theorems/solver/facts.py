"""Axioms about numbers of p bits and rounding to nearest, for every p from a least one on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.theorems.hypotheses import (
    exponents_ordered,
    multiple_of_ulp,
    not_largest,
    ordered,
    sum_in_range,
)
from mcfsim.theorems.solver.unknown_numbers import (
    TRUE,
    ZERO,
    Formula,
    Lemma,
    LinearForm,
    RoundedSum,
    UnknownArithmetic,
    UnknownNumber,
    all_of,
    equal,
    is_multiple_of_ulp,
    not_above,
    within,
)
from mcfsim.theorems.statement import Hypothesis

NEAREST = "the definition of rounding to nearest"


@dataclass(frozen=True)
class Fact:
    """An axiom for the solver.

    Attributes
    ----------
    text : str
        The axiom in words.
    source : str
        Its source, or its reason.
    of : callable
        Returns its formula for a number, powers of two, or rounded sums.
    """

    text: str
    source: str
    of: Callable[..., Formula]


def fact(text: str, source: str) -> Callable[[Callable[..., Formula]], Fact]:
    """Return a decorator that makes a fact of the function that returns its formula."""
    return partial(Fact, text, source)


# -- of one number ------------------------------------------------------------------------------------------
@fact(
    "x = 0, or its bits go from f down to l >= ulp(x): |x| = f = l, or f + l <= |x| <= 2 f - l, f >= 2 l",
    "the definition of a number of p bits",
)
def _bits(x: UnknownNumber) -> Formula:
    low, top = x.first + x.last, 2 * x.first - x.last
    power = equal(x.last, x.first) & (equal(x.value, x.first) | equal(-x.value, x.first))
    up, down = (low <= x.value) & (x.value <= top), (low <= -x.value) & (-x.value <= top)
    return x.zero | ((x.ulp <= x.last) & (power | ((2 * x.last <= x.first) & (up | down))))


OF_A_NUMBER = (_bits,)


# -- of u, and of powers of two -----------------------------------------------------------------------------
@fact("a power of two is positive, and u times it at most 2^-m of it", "p >= m, the least p")
def _small(power: LinearForm, least: int) -> Formula:
    return (power > ZERO) & (power.times_u() * (1 << least) <= power)


@fact("u |x| <= 2^-m |x|", "p >= m, the least p")
def _small_share(x: LinearForm, least: int) -> Formula:
    rest = x - x.times_u() * (1 << least)
    return ((x >= ZERO) & (rest >= ZERO)) | ((x <= ZERO) & (rest <= ZERO))


@fact("of two powers of two one is at least twice the other, or they are equal", "exponents are integers")
def _powers(a: LinearForm, b: LinearForm) -> Formula:
    return equal(a, b) | (2 * a <= b) | (2 * b <= a)


OF_A_POWER = (_small,)
OF_A_VALUE = (_small_share,)
OF_TWO_POWERS = (_powers,)


# -- of a sum that is rounded to nearest --------------------------------------------------------------------
@fact("RN(t) has the sign of t, and is 0 for t = 0 only", "exponents are unbounded")
def _sign(r: RoundedSum) -> Formula:
    t, x = r.exact, r.result.value
    return ((t > ZERO) & (x > ZERO)) | ((t < ZERO) & (x < ZERO)) | (equal(t, ZERO) & equal(x, ZERO))


@fact("|t - RN(t)| <= ulp(RN(t)) / 2", "the numbers on both sides of RN(t) are at most ulp(RN(t)) away")
def _half_ulp(r: RoundedSum) -> Formula:
    return r.result.zero | within(r.off, r.result.first.times_u())


@fact(
    "|t - RN(t)| <= ulp(RN(t)) / 4 if |t| < 2^e, the first bit of RN(t)",
    "then RN(t) is +-2^e, and the number before it ulp(RN(t)) / 2 away",
)
def _below_power(r: RoundedSum) -> Formula:
    first, t = r.result.first, r.exact
    inside = (t < first) & (-t < first)
    return r.result.zero | inside.implies(within(2 * r.off, first.times_u()))


@fact("|t - RN(t)| <= |t - x| for each term x of t, which is a number of p bits", NEAREST)
def _nearest(r: RoundedSum) -> Formula:
    return all_of(not_above(r.off, r.exact - x.value) for x in r.terms)


@fact(
    "RN(t) = t if |t| <= 2^p g, g the least last bit of the terms of t",
    "a multiple of g up to 2^p g is a number of p bits",
)
def _representable(r: RoundedSum) -> Formula:
    share, exact = r.exact.times_u(), equal(r.off, ZERO)
    return all_of((_is_least(x, r) & within(share, x.last)).implies(exact) for x in r.terms)


@fact("t = RN(t), or |t - RN(t)| >= g, the least last bit of the terms of t", "both are multiples of g")
def _error_multiple(r: RoundedSum) -> Formula:
    exact = equal(r.off, ZERO)
    return exact | all_of(_is_least(x, r).implies((x.last <= r.off) | (x.last <= -r.off)) for x in r.terms)


@fact(
    "the last bit of RN(t) is at least the least last bit g of the terms of t",
    "t is a multiple of g, and RN(t) either equals t or has a larger ulp",
)
def _last_of_sum(r: RoundedSum) -> Formula:
    return all_of(_is_least(x, r).implies(x.last <= r.result.last) for x in r.terms)


@fact(
    "if RN(x + y) = x + y, its last bit is the lesser of those of x and y if they differ, "
    "and above them if not",
    "binary addition",
)
def _last_of_exact_sum(r: RoundedSum) -> Formula:
    if len(r.terms) != 2:
        return TRUE
    (x, y), last = r.terms, r.result.last
    free = (r.off > ZERO) | (r.off < ZERO) | r.result.zero
    return all_of(
        (
            (x.last < y.last).implies(free | equal(last, x.last)),
            (y.last < x.last).implies(free | equal(last, y.last)),
            equal(x.last, y.last).implies(free | (2 * x.last <= last)),
        )
    )


def _is_least(x: UnknownNumber, r: RoundedSum) -> Formula:
    """Return the formula that a term's last bit is not above any other's, so that it divides the sum."""
    return all_of(x.last <= y.last for y in r.terms)


OF_A_SUM = (
    *(_sign, _half_ulp, _below_power, _nearest, _representable, _error_multiple),
    *(_last_of_sum, _last_of_exact_sum),
)


@fact(
    "with ties to even: the last bit of RN(t) is at least 2 ulp(RN(t)) if |t - RN(t)| = ulp(RN(t)) / 2",
    NEAREST,
)
def _even(r: RoundedSum) -> Formula:
    if not r.own_ties:
        return TRUE
    half, x = r.result.first.times_u(), r.result
    tie = equal(r.off, half) | equal(-r.off, half)
    return x.zero | tie.implies(2 * x.ulp <= x.last)


EVEN_TIES = (_even,)


# -- of two rounded sums ------------------------------------------------------------------------------------
@fact("RN(t) <= RN(t') if t < t', whichever way ties go in each", NEAREST)
def _monotone(r: RoundedSum, s: RoundedSum) -> Formula:
    up = (r.exact < s.exact).implies(r.result.value <= s.result.value)
    down = (s.exact < r.exact).implies(s.result.value <= r.result.value)
    return up & down


@fact("RN(t) = RN(t') if t = t'", "one rule for ties decides by t alone")
def _same(r: RoundedSum, s: RoundedSum) -> Formula:
    if not (r.own_ties and s.own_ties):
        return TRUE
    return equal(r.exact, s.exact).implies(equal(r.result.value, s.result.value))


OF_TWO_SUMS = (_monotone, _same)


# -- theorems in place of algorithms ----------------------------------------------------------------------
def _compensated(
    where: Callable[[UnknownNumber, UnknownNumber], Formula],
    ar: UnknownArithmetic,
    a: UnknownNumber,
    b: UnknownNumber,
) -> tuple[UnknownNumber, UnknownNumber]:
    """Return ``RN(a + b)`` and a number: the error if a hypothesis holds, and any number if not."""
    s = ar.rounded(a, b)
    rest = RoundedSum(ar.number(), (a, b, -s))
    ar.known.append(where(a, b).implies(equal(rest.off, ZERO) & _last_of_sum.of(rest)))
    return s, rest.result


def undecorated(function: Any) -> Callable[..., Any]:
    """Return the undecorated function of a straight-line algorithm, and any other function unchanged."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found


#: The statement on which each lemma rests, by algorithm.
STATEMENTS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {undecorated(two_sum): "two_sum", undecorated(fast_two_sum): "fast_two_sum_multiple"}
)
LEMMAS: Mapping[Callable[..., Any], Lemma] = MappingProxyType(
    {
        undecorated(two_sum): partial(_compensated, lambda a, b: TRUE),
        undecorated(fast_two_sum): partial(_compensated, is_multiple_of_ulp),
    }
)
#: What is supposed of a and b, by algorithm, so that no step overflows if the sum does not: by a theorem of
#: Boldo, Graillat and Muller, TOMS 44(1), 2017. If a is a multiple of ulp(b) with a smaller exponent, and b
#: has the largest exponent, a + b is exact.
IN_RANGE: Mapping[Callable[..., Any], tuple[Hypothesis, ...]] = MappingProxyType(
    {
        undecorated(two_sum): (not_largest("a"),),
        undecorated(fast_two_sum): tuple(
            supposed("a", "b") for supposed in (ordered, exponents_ordered, multiple_of_ulp)
        ),
    }
)
SUM_IN_RANGE = sum_in_range("a", "b")
