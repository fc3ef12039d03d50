"""Sums of products of posits as by a quire: exact, and rounded once; its width, and what cancels in it."""

from fractions import Fraction

import numpy as np
import pytest

from mcfsim.codec import decode
from mcfsim.formats import Posit
from mcfsim.oracle.posits import posit_value, round_posit
from mcfsim.products import Accumulator, dot, matmul
from mcfsim.rounding import DETERMINISTIC, Rounding

FORMATS = [Posit(8), Posit(8, 0), Posit(12), Posit(16), Posit(16, 1), Posit(6, 3)]


def some_posits(fmt, size, seed=0):
    """Return posits as Fractions and as numbers: random codes, many of them beside those of 0 and NaR."""
    random = np.random.default_rng([seed, fmt.bits, fmt.es])
    top = 2 ** (fmt.bits - 1) - 1
    codes = random.integers(0, top + 1, size)
    ends = np.array([1, 2, 3, top - 1, top])
    codes = np.where(random.random(size) < 0.3, random.choice(ends, size), codes)
    codes = np.where(random.random(size) < 0.5, codes, (2**fmt.bits - codes) % 2**fmt.bits)
    exact = np.array([posit_value(int(code), fmt) for code in codes.flat], dtype=object).reshape(size)
    return exact, decode(codes.astype(np.uint64), fmt)


def once(a, b, fmt, mode):
    return float(round_posit(sum(x * y for x, y in zip(a, b, strict=True)), fmt, Rounding(mode)))


def at_each(a, b, fmt, mode):
    rounding, total = Rounding(mode), Fraction(0)
    for x, y in zip(a, b, strict=True):
        total = round_posit(total + round_posit(x * y, fmt, rounding), fmt, rounding)
    return float(total)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.sampled(9, each=False)
def test_sums_are_exact_and_rounded_once_or_at_each_term(fmt, mode, assert_same):
    (left, a), (right, b) = some_posits(fmt, (60, 12)), some_posits(fmt, (60, 12), seed=1)
    # What is added last cancels all but a little of the rest, or all of it.
    left[20:, 6:], a[20:, 6:] = -left[20:, :6], -a[20:, :6]
    right[20:, 6:], b[20:, 6:] = right[20:, :6], b[20:, :6]
    left[40:, 11], a[40:, 11] = posit_value(1, fmt), float(fmt.smallest_normal)
    pairs = list(zip(left, right, strict=True))
    quire = dot(a, b, Accumulator(fmt, mode, block=None))
    assert_same(quire, [once(x, y, fmt, mode) for x, y in pairs])
    assert not quire[20:40].any()
    terms = dot(a, b, Accumulator(fmt, mode, block=1, products="rounded"))
    assert_same(terms, [at_each(x, y, fmt, mode) for x, y in pairs])
    assert (quire != terms).any()


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_matrix_products_are_sums_of_quires(fmt, assert_same):
    (left, a), (right, b) = some_posits(fmt, (7, 40)), some_posits(fmt, (40, 5), seed=1)
    expected = [[once(row, column, fmt, "nearest_even") for column in right.T] for row in left]
    assert_same(matmul(a, b, Accumulator(fmt, block=None)), expected)


BIG, SMALL, ONES = float(Posit(16).max), float(Posit(16).smallest_normal), [1.0] * 600


@pytest.mark.parametrize(
    ("fmt", "a", "b", "exactly", "each"),
    [
        # What each rounding loses is kept; of the square of the smallest nothing is rounded to zero.
        (Posit(16), [BIG, SMALL, -BIG], [BIG, SMALL, BIG], SMALL, 0.0),
        (Posit(8), ONES, ONES, 512.0, 16.0),  # 17 is nearer to 16 than to 20
        (Posit(16), [np.nan, 1.0], [1.0, 1.0], np.nan, np.nan),
    ],
)
def test_by_hand(fmt, a, b, exactly, each, assert_same):
    assert_same(dot(a, b, Accumulator(fmt, block=None)), exactly)
    assert_same(dot(a, b, Accumulator(fmt, block=1, products="rounded")), each)


@pytest.mark.parametrize("fmt", [Posit(bits, es) for bits in (3, 8, 16, 32) for es in range(4)], ids=str)
def test_a_quire_holds_the_sums_of_fewer_than_2_to_the_31_products_and_no_more(fmt):
    largest = Fraction(fmt.max) ** 2 / fmt.smallest_normal**2  # in units of the quire
    assert largest.denominator == 1
    assert (2**31 - 1) * largest < 2 ** (fmt.quire_bits - 1) <= 2**31 * largest
    if fmt.es == 2:  # the standard's, which holds fewer than 2**(23 + 4 n) posits
        posit = Fraction(fmt.max) / fmt.smallest_normal**2
        assert 2 ** (23 + 4 * fmt.bits) * posit == 2 ** (fmt.quire_bits - 1)
        assert fmt.bits == 3 or fmt.quire_bits == 16 * fmt.bits
