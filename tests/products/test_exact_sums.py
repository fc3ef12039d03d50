"""Exact sums of products: by a long accumulator, in slices, in pieces, and those of posits as by a quire."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcfsim.codec import decode
from mcfsim.convert import round_to
from mcfsim.formats import Format, Posit
from mcfsim.kernels import exact_dot
from mcfsim.oracle.posits import posit_value, round_posit
from mcfsim.products import Accumulator, dot, matmul
from mcfsim.rounding import DETERMINISTIC, Rounding
from tests.products.model import by_definition


def to_odd(total, y, bits):
    """Whether y is the rational number total, or its neighbour of so many bits with an odd significand."""
    if Fraction(y) == total:
        return True
    unit = Fraction(2) ** (math.frexp(y)[1] - bits)
    return abs(total - Fraction(y)) < unit and Fraction(y) / unit % 2 == 1


@pytest.mark.parametrize("spread", [5, 40, 120, 440])
@pytest.mark.slow
def test_a_long_accumulator_rounds_the_exact_sum_to_odd(spread):
    rng = np.random.default_rng(spread)
    terms = np.ldexp(rng.integers(-(2**53) + 1, 2**53, (12, 2000)), rng.integers(-spread, spread, (12, 2000)))
    terms[6:10] = -terms[2:6]  # what is left is two terms and what the next lines add
    terms[10] = np.ldexp(rng.choice([0.0, 1.0, -1.0, 3.0], 2000), -900)
    terms[11] = -terms[0] * rng.choice([0.0, 1.0], 2000)
    total = exact_dot.LongAccumulator(len(terms))
    for part in (terms[:1], terms[1:7], terms[7:]):
        total.add(part, math.frexp(np.abs(part).max())[1])
    for y, column in zip(total.to_odd().tolist(), terms.T.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert to_odd(exact, y, 53) or to_odd(exact, y, exact_dot.ODD_BITS)


def test_a_sum_that_falls_a_binade_below_its_lower_digits_keeps_52_bits():
    # A digit of one quantum, minus half of it in the next, and what is lower still.
    total = exact_dot.LongAccumulator(8)
    terms = [2.0**total.width, -(2.0 ** (total.width - 1)), -(2.0**-60), 3 * 2.0**-130]
    for term in terms:
        total.add(np.array([[term]]), math.frexp(abs(term))[1])
    assert {0, 1} <= set(total.limbs)
    (y,) = total.to_odd().tolist()
    exact = sum(map(Fraction, terms))
    assert not to_odd(exact, y, 53)
    assert to_odd(exact, y, exact_dot.ODD_BITS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.slow
def test_long_sums_taken_in_pieces_are_exact(dtype, monkeypatch, assert_same):
    monkeypatch.setattr(exact_dot, "PIECE", 64)
    monkeypatch.setattr(exact_dot, "TILE", 8)
    rng = np.random.default_rng(1)
    a, b = np.ldexp(rng.standard_normal((2, 5, 300)), rng.integers(-30, 30, (2, 5, 300))).astype(dtype)
    a[:, 150:], b[:, 150:] = a[:, :150], -b[:, :150]
    a[0, 7], b[2, :] = 0.0, -0.0
    for block, mode in product((None, 100), ("nearest_even", "down")):
        accumulator = Accumulator("float32", mode, block=block)
        assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator))


@pytest.mark.slow
def test_float64_operands_enter_exactly_and_their_products_are_rounded_once(assert_same):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((40, 9)) * np.ldexp(1.0, rng.integers(-400, 400, (40, 9))) for _ in range(2))
    a[0], b[0] = 1 + 2.0**-30, 1 - 2.0**-30
    wide = Format(precision=30, emin=-400, emax=400)
    for block, products in product((1, 2, 4, None), ("exact", "rounded")):
        accumulator = Accumulator(wide, "up", block=block, products=products)
        assert_same(dot(a, b, accumulator), by_definition(a, b, accumulator))


@pytest.mark.parametrize(
    ("fmt", "scale", "pairs"),
    [("float8_e4m3fn", 1.0, 1), ("bfloat16", 2.0**-6, 1), ("bfloat16", 2.0**-20, 4)],
)
def test_both_ways_to_an_exact_sum_agree(fmt, scale, pairs, monkeypatch, assert_same):
    rng = np.random.default_rng(3)
    a, b = round_to(rng.standard_normal((40, 64)), fmt), round_to(rng.standard_normal((64, 30)), fmt)
    a[3], b[:, 4], a[:, 5], b[7] = 0.0, -0.0, a[:, 5] * scale, b[7] * scale
    taken, sliced = [], exact_dot._slices
    watched = lambda *given: taken.append(sliced(*given)) or taken[-1]  # noqa: E731
    monkeypatch.setattr(exact_dot, "_slices", watched)
    accumulator = Accumulator("float32", "down", block=32)
    by_slices = matmul(a, b, accumulator)
    assert max(len(x) * len(y) for x, y in filter(None, taken)) == pairs
    monkeypatch.setattr(exact_dot, "_slices", lambda a, b, most: None)
    assert_same(by_slices, matmul(a, b, accumulator))


@pytest.mark.parametrize("length", [6, 32, 200])
def test_slices_are_short_enough_for_what_cancels_and_what_fills_them(length, assert_same):
    rng = np.random.default_rng(14)
    half = rng.integers(2**23, 2**24, (2, 20, length // 2)) * 2.0 ** rng.integers(-3, 3, (2, 20, length // 2))
    a, b = np.concatenate([half[0], half[0] + 0.125], axis=1), np.concatenate([half[1], -half[1]], axis=1)
    full = rng.integers(2**25 - 2**16, 2**25, (2, 20, min(length, 32)))  # sums of 55 bits
    for (x, y), precision in (((a, b), 45), (full, 50)):
        accumulator = Accumulator(Format(precision=precision, emin=-100, emax=200), "up", block=None)
        expected = by_definition(x, y, accumulator)
        assert_same(dot(x, y, accumulator), expected)
        assert_same(matmul(x, y.T, accumulator).diagonal(), expected)


# -- posits, whose exact sums are those of a quire ----------------------------------------------------------
POSITS = [Posit(8), Posit(8, 0), Posit(12), Posit(16), Posit(16, 1), Posit(6, 3)]


def some_posits(fmt, size, seed=0):
    """Return posits as Fractions and as numbers: random codes, many of them beside those of 0 and NaR."""
    random = np.random.default_rng([seed, fmt.bits, fmt.es])
    top = 2 ** (fmt.bits - 1) - 1
    codes = random.integers(0, top + 1, size)
    codes = np.where(random.random(size) < 0.3, random.choice([1, 2, 3, top - 1, top], size), codes)
    codes = np.where(random.random(size) < 0.5, codes, (2**fmt.bits - codes) % 2**fmt.bits)
    exact = np.array([posit_value(int(code), fmt) for code in codes.flat], dtype=object).reshape(size)
    return exact, decode(codes.astype(np.uint64), fmt)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", POSITS, ids=str)
@pytest.mark.sampled(9, each=False)
def test_sums_of_posits_are_exact_and_rounded_once_or_at_each_term(fmt, mode, assert_same):
    (left, a), (right, b) = some_posits(fmt, (42, 12)), some_posits(fmt, (42, 12), seed=1)
    # What is added last cancels all but a little of the rest, or all of it.
    left[14:, 6:], a[14:, 6:] = -left[14:, :6], -a[14:, :6]
    right[14:, 6:], b[14:, 6:] = right[14:, :6], b[14:, :6]
    left[28:, 11], a[28:, 11] = posit_value(1, fmt), float(fmt.smallest_normal)
    once, each = [], []
    for terms in (left * right).tolist():
        total = Fraction(0)
        for term in terms:
            total = round_posit(total + round_posit(term, fmt, Rounding(mode)), fmt, Rounding(mode))
        each.append(float(total))
        once.append(float(round_posit(sum(terms), fmt, Rounding(mode))))
    quire = Accumulator(fmt, mode, block=None)
    assert_same(dot(a, b, quire), once)
    assert_same(matmul(a, b.T, quire).diagonal(), once)
    assert not any(once[14:28])
    assert_same(dot(a, b, Accumulator(fmt, mode, block=1, products="rounded")), each)
    assert once != each


BIG, SMALL, ONES = float(Posit(16).max), float(Posit(16).smallest_normal), [1.0] * 600


@pytest.mark.slow
def test_by_hand(assert_same):
    for fmt, a, b, exactly, each in (
        # What each rounding loses is kept; of the square of the smallest nothing is rounded to zero.
        (Posit(16), [BIG, SMALL, -BIG], [BIG, SMALL, BIG], SMALL, 0.0),
        (Posit(8), ONES, ONES, 512.0, 16.0),  # 17 is nearer to 16 than to 20
        (Posit(16), [np.nan, 1.0], [1.0, 1.0], np.nan, np.nan),
    ):
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
