"""Statements on splitting, on products with their exact error, and on the error of a fused multiply-add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product as every_one_of

from mcfsim.eft import err_fma, split, two_prod, two_prod_fma
from mcfsim.formats import Format
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.catalogue.representability import BOLDO_DAUMAS, DEKKER, PAIR
from mcfsim.theorems.claims import all_of, claim
from mcfsim.theorems.counterexamples import Case, factors, power, quantum
from mcfsim.theorems.hypotheses import (
    RESULTS_FINITE,
    hypothesis,
    is_of_quanta,
    product_in_range,
    product_of_quanta,
)
from mcfsim.theorems.logic import (
    LARGEST,
    AllOf,
    HasBits,
    Iff,
    IsValue,
    OfFormat,
    Result,
    Rounded,
    RoundedToBits,
    Word,
    equal,
)
from mcfsim.theorems.operands import value
from mcfsim.theorems.statement import EVERY_MODE, Hypothesis, Scaling, Theorem

TRIPLE = (*PAIR, value("c"))

VELTKAMP = f"Veltkamp 1968; {DEKKER}"
BOLDO = "Boldo, IJCAR 2006"
BOLDO_MULLER = "Boldo, Muller, IEEE Trans. Comput. 60(2), 2011"


def multiply_add(ar: Arithmetic, a: Value, b: Value, c: Value) -> Value:
    """Return ``a b + c``, rounded once."""
    return ar.fma(a, b, c)


# -- claims -------------------------------------------------------------------------------------------------
A, B, C, X = map(Word, "abcx")
P, ERROR, R, F = Result(0, "p"), Result(1, "e"), Result(0, "r"), Result(2, "f")
HIGH, LOW = Result(0, "high"), Result(1, "low")
#: s = ceil(p / 2) bits go to the low half, one of them its sign.
_HIGH_BITS = OfFormat("floor(p/2)", lambda fmt, _: fmt.precision // 2)
_LOW_BITS = OfFormat("ceil(p/2) - 1", lambda fmt, _: -(-fmt.precision // 2) - 1)
_FACTOR = OfFormat("(2^ceil(p/2) + 1)", lambda fmt, _: 2 ** -(-fmt.precision // 2) + 1)
_HALF_OF_LARGEST = OfFormat("max / 2", lambda fmt, _: fmt.max / 2)
_LEAST = OfFormat("2^(emin + p)", lambda fmt, _: Fraction(2) ** (fmt.emin + fmt.precision))

SPLITS = claim(AllOf((equal(HIGH + LOW, X), HasBits(HIGH, _HIGH_BITS), HasBits(LOW, _LOW_BITS))))
SPLITS_TO_NEAREST = claim(equal(HIGH, RoundedToBits(X, _HIGH_BITS)))
EXACT = claim(equal(P + ERROR, A * B))
FMA = claim(IsValue(A * B + C - R))
TWO = claim(equal(R + ERROR + F, A * B + C))


# -- hypotheses ---------------------------------------------------------------------------------------------
def _splits_in_range(name: str) -> Hypothesis:
    return hypothesis(_FACTOR * abs(Word(name)) <= LARGEST)


DEKKER_WHERE = (
    _splits_in_range("a"),
    _splits_in_range("b"),
    hypothesis(abs(A * B) <= _HALF_OF_LARGEST),
    hypothesis(equal(A * B, 0) | (abs(A * B) >= _LEAST)),
)


def two_prod_floor_split(ar: Arithmetic, a: Value, b: Value) -> tuple[Value, Value]:
    """Return Dekker's product of operands that are split at ``floor(p / 2)`` bits."""
    assert ar.format is not None
    result: tuple[Value, Value] = two_prod(ar, a, b, bits=ar.format.precision // 2)
    return result


def _near_cancellation(p: int) -> Iterable[tuple[Fraction, ...]]:
    """Yield products of extreme significands, with summands of every exponent at which the two interact."""
    top, one = 2**p, 2 ** (p - 1)
    significands = [Fraction(m, one) for m in (one, one + 1, one + 3, top - 3, top - 1)]
    for a, b, c in every_one_of(significands, repeat=3):
        for exponent_of_c in range(-2 * p - 3, p + 4):
            for sign in (1, -1):
                yield a, b, sign * c * Fraction(2) ** exponent_of_c


# -- counterexamples ----------------------------------------------------------------------------------------
def _halves_too_long(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield numbers of (p + 1) / 2 bits, all ones: they equal their high halves, and a b has p + 1 bits."""
    p, least = fmt.precision, quantum(fmt)
    if p % 2 == 0:
        return
    ones = 2 ** ((p + 1) // 2) - 1
    a, b = factors(ones, ones, max(fmt.emin, 2 * least))
    if b * (ones + 2) <= fmt.max and 2 * a * b <= fmt.max:
        yield a, b


def _smallest(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield the smallest number as both factors: if it is below 1, its square is not a multiple of it."""
    if quantum(fmt) < 0:
        yield (power(quantum(fmt)),) * 2


def _long_error(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield a product of more than p bits, lost beside a power of two; for p = 2 its complement is lost."""
    p, least = fmt.precision, quantum(fmt)
    factor = -(-(2**p) // 3) | 1  # the smallest odd number whose triple has more than p bits
    last = max(least, 2 * least)
    (a, b), c = factors(3, factor, last), power(last + 2 * p + 1)
    if a * b + c <= fmt.max:
        yield a, b, c


#: What the statements about splitting, products and fused multiply-add have in common.
_about_splits = partial(
    Theorem, algorithm=split, operands=(value("x"),), where=(_splits_in_range("x"),), precision=3
)
_about_dekker = partial(
    Theorem, operands=PAIR, claim=EXACT, where=DEKKER_WHERE, precision=3, scaling=Scaling.EACH
)
_about_two_prod_fma = partial(
    Theorem,
    algorithm=two_prod_fma,
    operands=PAIR,
    where=(product_in_range("a", "b"),),
    modes=EVERY_MODE,
    scaling=Scaling.EACH,
)
_about_fma = partial(
    Theorem, operands=TRIPLE, where=(product_of_quanta("a", "b"), RESULTS_FINITE), families=_near_cancellation
)

THEOREMS = (
    _about_splits("split", claim=SPLITS, source=VELTKAMP),
    _about_splits(
        "split_to_nearest",
        claim=SPLITS_TO_NEAREST,
        source=f"{BOLDO}, on Veltkamp's algorithm",
        modes=frozenset({Mode.NEAREST_EVEN}),
    ),
    _about_dekker("two_prod", two_prod, source=f"{DEKKER}; {BOLDO}"),
    _about_dekker(
        "two_prod_floor_split",
        two_prod_floor_split,
        source=f"{BOLDO}, on why s = ceil(p/2)",
        holds=False,
        witnesses=_halves_too_long,
    ),
    _about_two_prod_fma(
        "two_prod_fma",
        claim=claim(Iff(EXACT.said, is_of_quanta("a", "b"))),
        source=f"the condition as sufficient: {BOLDO_DAUMAS}",
    ),
    _about_two_prod_fma(
        "two_prod_fma_any",
        claim=EXACT,
        source=f"{BOLDO_DAUMAS}, on why the error must not underflow",
        holds=False,
        witnesses=_smallest,
    ),
    _about_fma(
        "fma_error",
        err_fma,
        claim=all_of(TWO, claim(equal(Rounded(ERROR, F), ERROR))),
        source=BOLDO_MULLER,
        precision=3,
    ),
    _about_fma(
        "fma_error_one",
        multiply_add,
        claim=FMA,
        source=f"{BOLDO_MULLER}, on why it takes two numbers",
        holds=False,
        witnesses=_long_error,
    ),
)
