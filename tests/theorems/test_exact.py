"""Exact arrays: random expressions against fractions, and what goes with none."""

import operator
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.two_words import TwoWords
from tests.theorems.campaign import numbers

OPERATIONS = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge]
OPERATIONS += [operator.ne, operator.add, operator.sub, operator.mul]
RNG = np.random.default_rng(5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [250, pytest.param(2500, marks=pytest.mark.exhaustive)])
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
    with pytest.raises(TypeError, match="1/3 is no integer times a power of two"):
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
    with pytest.raises(OverflowError):
        one.numbers()
