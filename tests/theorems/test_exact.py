"""Exact arrays against fractions, and the identities and predicates on bits that statements are judged by."""

import itertools
import operator
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.formats import Format, get_format
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.logic import of_trials
from mcfsim.theorems.logic.of_trials import equal_sums, has_bits, is_difference, is_value, rest_of_sum
from mcfsim.theorems.two_words import TwoWords
from tests.theorems.campaign import numbers
from tests.theorems.trying import Rationals, bits_of, last_bit

OPERATIONS = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge]
OPERATIONS += [operator.ne, operator.add, operator.sub, operator.mul]
EIGHT = [get_format("float8_e4m3fn"), get_format("float8_e5m2")]
OTHERS = [get_format("posit8"), get_format("posit5es0"), get_format("int8")]
RNG = np.random.default_rng(5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(2500, marks=pytest.mark.exhaustive)])
def test_random_expressions(count):
    assert numbers.first_wrong(count) is None


NONE = [None, "1", True, np.True_, np.inf, np.nan, np.float32("inf"), np.ones(200), [1.0], (1,), 1j, object()]


@pytest.mark.parametrize("other", NONE, ids=lambda x: type(x).__name__)
def test_nothing_else_goes_with_exact_numbers(other):
    wide = np.ldexp(RNG.integers(1, 2**40, 200).astype(np.float64), -20)
    for x in (Exact.of(np.arange(200.0)), Exact.of(wide) * Exact.of(wide)):
        for operation in OPERATIONS:
            for pair in ((x, other), (other, x)):
                with pytest.raises(TypeError):
                    operation(*pair)
            with pytest.raises(TypeError):
                operation(TwoWords.of(np.arange(200)), other)


def test_arrays_of_exact_numbers_have_one_shape_and_are_no_sequences():
    x = Exact.of(np.arange(200.0), 8)
    for other in (x[:1], x[:7]):
        for operation in OPERATIONS:
            with pytest.raises(ValueError, match="shapes"):
                operation(x, other)
    with pytest.raises(TypeError, match="fraction"):
        x[0]
    with pytest.raises(TypeError, match="1/3 is not an integer times a power of two"):
        x + Fraction(1, 3)


def test_numbers_beyond_64_bits_go_back_to_binary64_or_not_at_all():
    big, one = (Exact.of(np.array([2.0**60, 1.0]), 1) for _ in range(2))
    assert (big + one).numbers().tolist() == [2.0**61, 2.0]
    with pytest.raises(OverflowError, match="more bits"):
        (Exact.of(np.array([2.0**60])) + Exact.of(np.array([1.0]))).numbers()
    # Of integers of thousands of bits, where the numbers themselves are of any size.
    x = Exact.of(np.array([1.5, -3.0, 2.0**900, 2.0**-1000, 0.0]))
    huge = x * 2**3000 * Fraction(1, 2**2990)
    assert huge.numbers().tolist() == [1536.0, -3072.0, 2.0**910, 2.0**-990, 0.0]
    one = x * 3**700
    ratio = one.ratio(x * (3**700 + 1))
    assert np.all(np.abs(ratio[:4] - 1) < 2.0**-50)
    assert ratio[4] == 0
    assert ((-one).ratio(x * (3**700 + 1)) == -ratio).all()  # cut alike
    with pytest.raises(OverflowError):
        one.numbers()


# -- identities that statements are tried by ----------------------------------------------------------------
@pytest.mark.slow
def test_identities_are_those_of_rationals():
    # Numbers of 24 bits and any exponents in binary32, where sums of them round, overflow and underflow.
    rng = np.random.default_rng(5)
    size = 3000
    x = np.ldexp(rng.integers(-(2**24), 2**24, size), rng.integers(-149, 100, size)).astype(np.float32)
    near = np.ldexp(rng.integers(-(2**24), 2**24, size), rng.integers(-3, 4, size)).astype(np.float32)
    y = np.where(rng.random(size) < 0.8, x * (near / np.float32(2**24)), rng.permutation(x))
    with np.errstate(all="ignore"):
        s = np.where(rng.random(size) < 0.8, x + y, np.float32(np.inf))
        e = (x.astype(np.float64) + y - s).astype(np.float32)
        found = np.array([is_difference(e, x, y), is_difference(y, s, x), equal_sums(x, y, s, e)])
        rest, held, sure = rest_of_sum(x, y, s)
        held &= sure
    counts = np.zeros(3, int)
    for i, case in enumerate(zip(*(part.tolist() for part in (x, y, s, e)), strict=True)):
        truth = [False] * 3
        if np.isfinite(case).all():
            a, b, c, d = map(Fraction, case)
            truth = [d == a - b, b == c - a, a + b == c + d]
        assert found[:, i].tolist() == truth, case
        assert not held[i] or Fraction(float(rest[i])) + Fraction(case[2]) == sum(map(Fraction, case[:2]))
        counts += truth
    assert min(*counts[1:], np.count_nonzero(held)) > 200
    assert counts[2] < size - 200
    # Numbers far apart, which are decided in integers.
    x, y = np.float64([1.0, 1.0, 1.0]), np.float64([2.0**-80, 2.0**-80, 2.0**-80])
    s, e = np.float64([0.5, 2.0**-80, 2.0**-80]), np.float64([0.5, 1.0, 1.0 + 2.0**-52])
    assert equal_sums(x, y, s, e).tolist() == [False, True, False]


@pytest.mark.parametrize("fmt", [Format("toy", precision=3, emin=-3, emax=3), *EIGHT, *OTHERS], ids=str)
def test_values_are_told_from_other_numbers(fmt):
    r = Rationals(fmt)
    halves = [x / 2 for x in r.numbers] + [x + y / 4 for x, y in itertools.pairwise(r.numbers)]
    numbers = np.array([*r.numbers, *halves, 2 * float(fmt.max), np.nan, np.inf, -np.inf])
    expected = [np.isfinite(x) and Fraction(x) in r.values for x in numbers.tolist()]
    assert is_value(numbers, fmt).tolist() == expected
    assert 0 < sum(expected) < len(expected)


def test_bits_are_counted_from_the_first_to_the_last_one():
    x = np.array([0.0, 1.0, 3.0, -5.0, 0.75])
    for most in range(3):
        assert has_bits(x, most).tolist() == [bits_of(Fraction(number)) <= most for number in x.tolist()]


def nonoverlapping(parts, factor=1):
    pairs = itertools.combinations([part for part in parts if part], 2)
    return all(factor * abs(Fraction(small)) < last_bit(large) for small, large in pairs)


def strongly(parts):
    parts = [part for part in parts if part]
    adjacent = [
        (i, j)
        for (i, small), (j, large) in itertools.combinations(enumerate(parts), 2)
        if 2 * abs(Fraction(small)) >= last_bit(large)
    ]
    ends = [end for pair in adjacent for end in pair]
    powers = all(abs(Fraction(parts[i])) == last_bit(parts[i]) for i in ends)
    return nonoverlapping(parts) and len(set(ends)) == len(ends) and powers


@pytest.mark.slow
def test_predicates_on_all_triples_of_some_numbers():
    numbers = [0.0, 1.0, -1.5, 2.0, 3.0, 4.0, -6.0, 8.0, 7.0, 0.25, -24.0, 32.0]
    triples = list(itertools.product(numbers, repeat=3))
    columns = [np.array(column, np.float32) for column in zip(*triples, strict=True)]
    for predicate, oracle in (
        (of_trials.nonoverlapping, nonoverlapping),
        (lambda parts: of_trials.nonoverlapping(parts, 2), lambda parts: nonoverlapping(parts, 2)),
        (of_trials.strongly_nonoverlapping, strongly),
    ):
        assert predicate(columns).tolist() == [oracle(triple) for triple in triples]
    # The largest numbers of binary64, of which no multiple is one, and the smallest.
    ends = list(itertools.product([0.0, 2.0**1023, -1.5 * 2.0**1023, 2.0**-1074, -3 * 2.0**-1074], repeat=3))
    columns = [np.array(column) for column in zip(*ends, strict=True)]
    for predicate, oracle in (
        (lambda parts: of_trials.nonoverlapping(parts, 2), lambda parts: nonoverlapping(parts, 2)),
        (of_trials.strongly_nonoverlapping, strongly),
    ):
        assert predicate(columns).tolist() == [oracle(triple) for triple in ends]
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.integers(1, 2**53, 3000) >> rng.integers(0, 52, 3000), rng.integers(-1074, 900, 3000))
    x = np.array([*x[x != 0], *-x[x != 0], 2.0**-1074, 3 * 2.0**-1074, 2.0**1023])
    assert of_trials.low_bit(x).tolist() == [float(last_bit(item)) for item in x]
    assert of_trials.low_bit(np.float32([0.0, -0.0, 6.0])).tolist() == [np.inf, np.inf, 2.0]
