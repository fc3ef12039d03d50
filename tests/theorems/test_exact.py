"""Exact arrays against fractions: sums, products, quotients, comparisons; and what goes with none."""

import itertools
import operator
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.theorems import Theorem, claim, double_word, value, verify
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.two_words import TwoWords

RNG = np.random.default_rng(5)
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [operator.add, operator.sub, operator.mul]


def _numbers(bits, span, size=200):
    """Return numbers of so many bits with exponents in a span, zeros among them."""
    n = RNG.integers(-(2**bits) + 1, 2**bits, size).astype(np.float64)
    n[::9] = 0
    return np.ldexp(n, RNG.integers(-span, span + 1, size))


def _fractions(x):
    return [x.fraction(i) for i in range(x.n.size)]


def _each(operation, *columns):
    return [operation(*case) for case in zip(*columns, strict=True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_taken_exactly(dtype):
    for span in (0, 3, 20, 60):
        x = _numbers(8, span).astype(dtype)
        assert (
            _fractions(Exact.of(x, 8)) == _fractions(Exact.of(x)) == [Fraction(item) for item in x.tolist()]
        )
    info = np.finfo(dtype)
    x = np.array([0, info.smallest_subnormal, -info.smallest_subnormal * 5, info.tiny, info.max, -1], dtype)
    for some in (x, x[:3]):
        assert _fractions(Exact.of(some)) == [Fraction(item) for item in some.tolist()]


OTHERS = [
    None,
    "1",
    True,
    np.True_,
    np.inf,
    -np.inf,
    np.nan,
    np.float32("inf"),
    np.ones(200),
    [1.0],
    (1,),
    1j,
]


@pytest.mark.parametrize("other", [*OTHERS, object()], ids=lambda x: type(x).__name__)
def test_nothing_else_goes_with_exact_numbers(other):
    n = TwoWords.of(RNG.integers(0, 9, 200))
    for operation in (*COMPARISONS, *ARITHMETIC):
        for x in (Exact.of(_numbers(8, 3), 8), Exact.of(_numbers(40, 3)) * Exact.of(_numbers(40, 3))):
            for pair in ((x, other), (other, x)):
                with pytest.raises(TypeError):
                    operation(*pair)
        with pytest.raises(TypeError):
            operation(n, other)


def test_arrays_of_exact_numbers_have_one_shape_and_are_no_sequences():
    x = Exact.of(_numbers(8, 3), 8)
    for other, operation in itertools.product((x[:1], x[:7]), (*COMPARISONS, operator.add, operator.mul)):
        with pytest.raises(ValueError, match="shapes"):
            operation(x, other)
    with pytest.raises(TypeError, match="fraction"):
        x[0]


def test_numbers_go_back_to_binary64_or_not_at_all():
    a = _numbers(20, 30)
    assert (Exact.of(a, 20).numbers() == a).all()
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
    a, b = TwoWords.product(n, m), TwoWords.of(m)
    other = m.tolist()
    exact = _each(operator.mul, n.tolist(), other)
    assert a.integers().tolist() == exact
    assert (-a).integers().tolist() == [-item for item in exact]
    assert abs(a).integers().tolist() == [abs(item) for item in exact]
    assert (a + b).integers().tolist() == _each(operator.add, exact, other)
    assert (a <= b).tolist() == _each(operator.le, exact, other)
    assert a.is_zero().tolist() == [item == 0 for item in exact]
    for by in (0, 1, 30, 61, 62, 63):
        assert (b << by)[:3].integers().tolist() == [q << by for q in other[:3]]
    by = RNG.integers(0, 101, n.size)
    assert (TwoWords.of(n >> 40) << by).integers().tolist() == _each(
        operator.lshift, (n >> 40).tolist(), by.tolist()
    )
    for i, item in enumerate(exact):
        assert abs(Fraction(float(a.numbers()[i])) - item) <= Fraction(abs(item), 2**51)
        assert a.integer(i) == item


# -- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "test",
    [
        lambda t: (t.results != t["x"]) | (t["a"] == t["a"]),
        lambda t: (t["x"] in t.results) | (t["a"] == t["a"]),
        lambda t: (t == t) | (t["a"] == t["a"]),
        lambda t: (not t.result()) | (t["a"] == t["a"]),
        lambda t: (t.result() and True) | (t["a"] == t["a"]),
        lambda t: (t.result() == t["a"]) | (t["a"] == t["a"]),
        lambda t: (t.result() == None) | (t["a"] == t["a"]),  # noqa: E711
        lambda t: t.exact("a") == float("nan"),
    ],
)
def test_a_claim_that_compares_what_cannot_be_compared_is_no_claim(test):
    theorem = Theorem("odd", lambda ar, x, a: x, [double_word("x"), value("a")], claim("odd", test))
    with pytest.raises(ValueError, match="raised TypeError"):
        verify(theorem, "float6_e2m3fn")
