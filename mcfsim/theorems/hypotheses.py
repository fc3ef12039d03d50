"""Hypotheses: what a statement supposes about its operands, as data (see `mcfsim.theorems.logic`)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

from mcfsim.theorems.claims import _said
from mcfsim.theorems.logic import (
    LARGEST,
    SMALLEST,
    SMALLEST_NORMAL,
    AllOf,
    AnyOf,
    Exponent,
    Finite,
    InFormat,
    IsMultiple,
    LowBit,
    Nonoverlapping,
    NoOverflow,
    OfFormat,
    Proposition,
    Result,
    SameSign,
    Term,
    U,
    Ulp,
    Word,
    equal,
)
from mcfsim.theorems.statement import Hypothesis
from mcfsim.theorems.trial import Trial, Truth


def hypothesis(said: Proposition | str, test: Callable[[Trial], Truth] | None = None) -> Hypothesis:
    """Return a hypothesis made of a proposition, or of words and a test as for `mcfsim.theorems.claim`."""
    return Hypothesis(_said(said, test))


# -- signs and sizes ----------------------------------------------------------------------------------------
def ordered(a: str, b: str) -> Hypothesis:
    """Suppose ``|a| >= |b|``; pairs are compared by their high words."""
    return Hypothesis(abs(Word(b)) <= abs(Word(a)))


def by_magnitude(*names: str) -> Hypothesis:
    """Suppose that the magnitudes of operands do not decrease, in the order given."""
    words = [abs(Word(name)) for name in names]
    return Hypothesis(AllOf(tuple(a <= b for a, b in pairwise(words))))


def nonzero(*names: str) -> Hypothesis:
    """Suppose that operands are not zero."""
    parts = tuple(~equal(Word(name), 0) for name in names)
    return Hypothesis(parts[0] if len(parts) == 1 else AllOf(parts))


def positive(name: str) -> Hypothesis:
    """Suppose that an operand is positive."""
    return Hypothesis(Word(name) > 0)


def same_sign(a: str, b: str) -> Hypothesis:
    """Suppose that two numbers, or the high words of two pairs, do not have opposite signs."""
    return Hypothesis(SameSign(Word(a), Word(b)))


def within_factor_two(a: str, b: str) -> Hypothesis:
    """Suppose ``b / 2 <= a <= 2 b`` for numbers of one sign."""
    x, y = abs(Word(a)), abs(Word(b))
    return Hypothesis(AllOf((SameSign(Word(a), Word(b)), y <= 2 * x, x <= 2 * y)))


def normal_or_zero(*names: str) -> Hypothesis:
    """Suppose that no operand is subnormal."""
    words = [Word(name) for name in names]
    return Hypothesis(AllOf(tuple((abs(x) >= SMALLEST_NORMAL) | equal(x, 0) for x in words)))


def share_at_most(b: str, a: str, factor: Fraction | int) -> Hypothesis:
    """Suppose ``|b| <= factor u |a|``."""
    return Hypothesis(abs(Word(b)) <= _share_of(a, factor))


def share_above(b: str, a: str, factor: Fraction | int) -> Hypothesis:
    """Suppose ``|b| > factor u |a|``."""
    return Hypothesis(_share_of(a, factor) < abs(Word(b)))


def _share_of(a: str, factor: Fraction | int) -> Term:
    share = U * abs(Word(a))
    return share if factor == 1 else share * factor


# -- exponents and bits -------------------------------------------------------------------------------------
def exponents_ordered(a: str, b: str) -> Hypothesis:
    """Suppose that the exponent of a is at least that of b, or that one is zero."""
    x, y = Word(a), Word(b)
    return Hypothesis(AnyOf((Exponent(y) <= Exponent(x), equal(x, 0), equal(y, 0))))


def exponent_gap(a: str, b: str, extra: int = 0) -> Hypothesis:
    """Suppose that the exponents of nonzero a and b differ by at most ``p + extra``."""
    x, y = Word(a), Word(b)
    most = OfFormat(f"p + {extra}" if extra else "p", lambda fmt, _: fmt.precision + extra)
    near = abs(Exponent(x) - Exponent(y)) <= most
    return Hypothesis(AnyOf((near, equal(x, 0), equal(y, 0))))


def exponents_at_least(x: Term, y: Term) -> Proposition:
    """Return the proposition ``e(x) + e(y) >= emin + p - 1``."""
    return Exponent(x) + Exponent(y) >= OfFormat("emin + p - 1", lambda fmt, _: fmt.emin + fmt.precision - 1)


def multiple_of_ulp(a: str, b: str) -> Hypothesis:
    """Suppose that a is an integer multiple of ulp(b)."""
    return Hypothesis(IsMultiple(Word(a), Ulp(Word(b))))


def product_of_quanta(a: str, b: str) -> Hypothesis:
    """Suppose that ``a b`` is a multiple of the smallest subnormal number."""
    return Hypothesis(is_of_quanta(a, b))


def is_of_quanta(a: str, b: str) -> Proposition:
    """Return the proposition that ``a b`` is a multiple of the smallest subnormal number."""
    return IsMultiple(Word(a) * Word(b), SMALLEST)


def nonoverlapping(*names: str) -> Hypothesis:
    """Suppose that values form a nonoverlapping expansion, smallest first; any may be zero."""
    return Hypothesis(Nonoverlapping(tuple(map(Word, names))))


def nonadjacent(*names: str) -> Hypothesis:
    """Suppose that values form a nonadjacent expansion, smallest first; any may be zero."""
    return Hypothesis(Nonoverlapping(tuple(map(Word, names)), 2))


def bits_resolved(a: str, b: str) -> Hypothesis:
    """Suppose that the first bit of a and b is at most ``2**(p + k - 3)`` times their last bit.

    Then the exact result of each operation of 2Sum and Fast2Sum has at most p + k bits, down to that last
    bit.
    """
    reach = OfFormat("p + k - 3", lambda fmt, rounding: fmt.precision + rounding.random_bits - 3)
    words = Word(a), Word(b)
    near = ((Exponent(x) - Exponent(LowBit(y)) <= reach) | equal(y, 0) for x in words for y in words)
    return Hypothesis(AllOf(tuple(near)))


# -- ranges -------------------------------------------------------------------------------------------------
def sum_in_range(a: str, b: str) -> Hypothesis:
    """Suppose ``|a + b| <= max``: the exact sum does not overflow, whichever way it is rounded."""
    return Hypothesis(sum_at_most_largest(a, b))


def sum_at_most_largest(a: str, b: str) -> Proposition:
    """Return the proposition ``|a + b| <= max``."""
    return abs(Word(a) + Word(b)) <= LARGEST


def product_in_range(a: str, b: str) -> Hypothesis:
    """Suppose ``|a b| <= max``."""
    return Hypothesis(abs(Word(a) * Word(b)) <= LARGEST)


def not_largest(name: str) -> Hypothesis:
    """Suppose that a value is not the largest finite number, of either sign."""
    return Hypothesis(~equal(abs(Word(name)), LARGEST))


def finite_result(place: int, name: str = "") -> Hypothesis:
    """Suppose that a result is finite."""
    return Hypothesis(Finite(Result(place, name)))


def of_format(text: str, test: Callable[..., bool]) -> Hypothesis:
    """Suppose a condition on format and rounding alone; if it does not hold, no operand is tried."""
    return Hypothesis(InFormat(text, test))


#: Suppose that no result is infinite or NaN; in nearest modes, that nothing overflows. Results do not show an
#: overflow if they saturate, by policy or because the format has neither infinity nor NaN.
RESULTS_FINITE = Hypothesis(NoOverflow())
