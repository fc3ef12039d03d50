"""Splitting, products with their exact error, and the error of a fused multiply-add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import product as every_one_of
from typing import Any

import numpy as np

from mcfsim.eft import err_fma, split, two_prod, two_prod_fma
from mcfsim.formats import Format
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.claims import all_of, claim, normalised
from mcfsim.theorems.hypotheses import (
    RESULTS_FINITE,
    exponent,
    hypothesis,
    is_of_quanta,
    product_in_range,
    product_of_quanta,
)
from mcfsim.theorems.identities import (
    equal_sums,
    has_bits,
    is_difference,
    is_value,
    less,
    product,
    rest_of_sum,
)
from mcfsim.theorems.operands import value
from mcfsim.theorems.statement import EVERY_MODE, Hypothesis, Scaling, Theorem
from mcfsim.theorems.trial import Trial, Truth
from mcfsim.theorems.witnesses import Case, halves, power, quantum

PAIR = (value("a"), value("b"))
TRIPLE = (*PAIR, value("c"))

VELTKAMP = "Veltkamp 1968; Dekker, Numer. Math. 18, 1971"
BOLDO = "Boldo, IJCAR 2006"
BOLDO_DAUMAS = "Boldo, Daumas, ARITH 2003"
BOLDO_MULLER = "Boldo, Muller, IEEE Trans. Comput. 60(2), 2011"


def multiply_add(ar: Arithmetic, a: Value, b: Value, c: Value) -> Value:
    """Return ``a b + c``, rounded once."""
    return ar.fma(a, b, c)


# -- claims -------------------------------------------------------------------------------------------------
def _halves(t: Trial) -> tuple[Any, Any, int]:
    high, low = (part.astype(np.float64) for part in t.results)
    return high, low, -(-t.format.precision // 2)


def _splits(t: Trial) -> Truth:
    high, low, s = t.once(_halves)
    short = has_bits(high, t.format.precision - s) & has_bits(low, s - 1)
    return is_difference(low, t["x"].astype(np.float64), high) & short


def _splits_to_nearest(t: Trial) -> Truth:
    high, _, s = t.once(_halves)
    # The last of p - s bits is made the unit, and a tie goes to the even integer.
    unit = exponent(t["x"], t.format) - t.format.precision + s + 1
    return np.ldexp(high, -unit) == np.rint(np.ldexp(t["x"].astype(np.float64), -unit))


def _exact_product(t: Trial) -> Truth:
    p, e = (part.astype(np.float64) for part in t.results)
    return is_difference(e, product(t["a"], t["b"]), p)


def _of_fma(t: Trial) -> Truth:
    error, held = rest_of_sum(product(t["a"], t["b"]), t["c"], t.results[0])
    return held & is_value(error, t.format)


def _two_of_fma(t: Trial) -> Truth:
    r, e, f = (part.astype(np.float64) for part in t.results)
    smaller, moved, sure = less(product(t["a"], t["b"]), t["c"].astype(np.float64), r)
    return sure & equal_sums(smaller, -moved, e, f)


EXACT = claim("p + e = a b exactly", _exact_product)
FMA = claim("a b + c - r is a value of the format", _of_fma)
TWO = claim("r + e + f = a b + c exactly", _two_of_fma)


# -- hypotheses ---------------------------------------------------------------------------------------------
def _splits_in_range(name: str) -> Hypothesis:
    def test(t: Trial) -> Truth:
        factor = 2.0 ** -(-t.format.precision // 2) + 1
        return np.abs(t[name].astype(np.float64)) * factor <= float(t.format.max)  # an exact product

    return Hypothesis(f"(2^s + 1) |{name}| <= max, s = ceil(p/2)", test)


def _normal_error(t: Trial) -> Truth:
    magnitude = np.abs(product(t["a"], t["b"]))
    return (magnitude == 0) | (magnitude >= 2.0 ** (t.format.emin + t.format.precision))


def _half_in_range(t: Trial) -> Truth:
    return np.abs(product(t["a"], t["b"])) <= float(t.format.max / 2)


DEKKER_WHERE = (
    _splits_in_range("a"),
    _splits_in_range("b"),
    hypothesis("|a b| <= max / 2", _half_in_range),
    hypothesis("a b = 0 or |a b| >= 2^(emin + p)", _normal_error),
)


def two_prod_floor_split(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return Dekker's product of operands that are split at ``floor(p / 2)`` bits."""
    assert ar.format is not None
    result: tuple[Value, Value] = two_prod(ar, a, b, bits=ar.format.precision // 2)
    return result


def _near_cancellation(p: int) -> Iterable[tuple[Fraction, ...]]:
    """Yield products of extreme significands with summands of any exponent at which they interact."""
    top, one = 2**p, 2 ** (p - 1)
    significands = [Fraction(m, one) for m in (one, one + 1, one + 3, top - 3, top - 1)]
    for a, b, c in every_one_of(significands, repeat=3):
        for exponent_of_c in range(-2 * p - 3, p + 4):
            for sign in (1, -1):
                yield a, b, sign * c * Fraction(2) ** exponent_of_c


# -- counterexamples ----------------------------------------------------------------------------------------
def _halves_too_long(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield numbers of (p + 1) / 2 bits, all ones: their own high halves, with a product of p + 1 bits."""
    p, least = fmt.precision, quantum(fmt)
    if p % 2 == 0:
        return
    ones = 2 ** ((p + 1) // 2) - 1
    a, b = (ones * power(exponent) for exponent in halves(max(fmt.emin, 2 * least)))
    if b * (ones + 2) <= fmt.max and 2 * a * b <= fmt.max:
        yield a, b


def _smallest(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield the smallest number, squared: no multiple of itself if it is below 1."""
    if quantum(fmt) < 0:
        yield (power(quantum(fmt)),) * 2


def _long_error(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield a product of more than p bits, all of them lost beside a power of two; of p = 2 a complement."""
    p, least = fmt.precision, quantum(fmt)
    factor = -(-(2**p) // 3) | 1  # the smallest odd number from which three times it has more than p bits
    last = max(least, 2 * least)
    first, second = halves(last)
    a, b, c = 3 * power(first), factor * power(second), power(last + 2 * p + 1)
    if a * b + c <= fmt.max:
        yield a, b, c


THEOREMS = (
    Theorem(
        "split",
        split,
        (value("x"),),
        claim("high + low = x exactly, high in p - s bits and low in s - 1 bits", _splits),
        where=(_splits_in_range("x"),),
        source=VELTKAMP,
        precision=3,
    ),
    Theorem(
        "split_to_nearest",
        split,
        (value("x"),),
        claim("high is x, rounded to p - s bits, ties to even", _splits_to_nearest),
        where=(_splits_in_range("x"),),
        source=f"{BOLDO}, on Veltkamp's algorithm",
        modes=frozenset({Mode.NEAREST_EVEN}),
        precision=3,
    ),
    Theorem(
        "two_prod",
        two_prod,
        PAIR,
        EXACT,
        where=DEKKER_WHERE,
        source=f"Dekker, Numer. Math. 18, 1971; {BOLDO}",
        precision=3,
        scaling=Scaling.EACH,
    ),
    Theorem(
        "two_prod_floor_split",
        two_prod_floor_split,
        PAIR,
        EXACT,
        where=DEKKER_WHERE,
        source=f"{BOLDO}, on why s = ceil(p/2)",
        precision=3,
        holds=False,
        witnesses=_halves_too_long,
        scaling=Scaling.EACH,
    ),
    Theorem(
        "two_prod_fma",
        two_prod_fma,
        PAIR,
        claim(
            "p + e = a b exactly if and only if a b is a multiple of the smallest subnormal",
            lambda t: _exact_product(t) == is_of_quanta(t, "a", "b"),
        ),
        where=(product_in_range("a", "b"),),
        source=f"the condition as sufficient: {BOLDO_DAUMAS}",
        modes=EVERY_MODE,
        scaling=Scaling.EACH,
    ),
    Theorem(
        "two_prod_fma_any",
        two_prod_fma,
        PAIR,
        EXACT,
        where=(product_in_range("a", "b"),),
        source=f"{BOLDO_DAUMAS}, on why the error must not underflow",
        modes=EVERY_MODE,
        holds=False,
        witnesses=_smallest,
        scaling=Scaling.EACH,
    ),
    Theorem(
        "fma_error",
        err_fma,
        TRIPLE,
        all_of(TWO, normalised(1)),
        where=(product_of_quanta("a", "b"), RESULTS_FINITE),
        source=BOLDO_MULLER,
        precision=3,
        families=_near_cancellation,
    ),
    Theorem(
        "fma_error_one",
        multiply_add,
        TRIPLE,
        FMA,
        where=(product_of_quanta("a", "b"), RESULTS_FINITE),
        source=f"{BOLDO_MULLER}, on why it takes two numbers",
        holds=False,
        families=_near_cancellation,
        witnesses=_long_error,
    ),
)
