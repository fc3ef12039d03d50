"""Exact arrays: random expressions against fractions; what goes with none, and what claims cannot compare."""

import operator
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.theorems import Theorem, claim, double_word, value, verify
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.two_words import TwoWords
from tests.theorems.campaign import numbers

OPERATIONS = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge]
OPERATIONS += [operator.ne, operator.add, operator.sub, operator.mul]
RNG = np.random.default_rng(5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(2500, marks=pytest.mark.exhaustive)])
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


def test_two_words_against_integers():
    edge = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**61, 2**62, -(2**62), 2**62 - 1]
    n = np.array([*edge, *RNG.integers(-(2**62), 2**62, 500)], dtype=np.int64)
    m = n[RNG.permutation(n.size)]
    a, b, other = TwoWords.product(n, m), TwoWords.of(m), m.tolist()
    exact = [x * y for x, y in zip(n.tolist(), other, strict=True)]
    for found, right in (
        (a.integers(), exact),
        ((-a).integers(), [-x for x in exact]),
        (abs(a).integers(), list(map(abs, exact))),
        ((a + b).integers(), list(map(operator.add, exact, other))),
        (a <= b, list(map(operator.le, exact, other))),
        (a.is_zero(), [x == 0 for x in exact]),
        *(((b << by)[:3].integers(), [x << by for x in other[:3]]) for by in (0, 1, 30, 61, 62, 63)),
    ):
        assert found.tolist() == right
    by = RNG.integers(0, 101, n.size)
    shifted = list(map(operator.lshift, (n >> 40).tolist(), by.tolist()))
    assert (TwoWords.of(n >> 40) << by).integers().tolist() == shifted
    for i, item in enumerate(exact):
        assert abs(Fraction(float(a.numbers()[i])) - item) <= Fraction(abs(item), 2**51)
        assert a.integer(i) == item


@pytest.mark.parametrize(
    "test",
    [
        lambda t: (t.results != t["x"]) | (t["a"] == t["a"]),
        lambda t: (t["x"] in t.results) | (t["a"] == t["a"]),
        lambda t: (t == t) | (t["a"] == t["a"]),
        lambda t: (not t.result()) | (t["a"] == t["a"]),
        lambda t: (t.result() == t["a"]) | (t["a"] == t["a"]),
        lambda t: t.exact("a") == float("nan"),
    ],
)
def test_a_claim_that_compares_what_cannot_be_compared_is_no_claim(test):
    theorem = Theorem("odd", lambda ar, x, a: x, [double_word("x"), value("a")], claim("odd", test))
    with pytest.raises(ValueError, match="raised TypeError"):
        verify(theorem, "float6_e2m3fn")
