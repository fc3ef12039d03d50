"""Exact arrays against fractions: every width, common and single exponents."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.formats import Format
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.operands import finite_values, significands
from mcfsim.theorems.two_words import TwoWords

RNG = np.random.default_rng(5)


def _numbers(bits, span, size=300):
    """Return numbers of so many bits with exponents in a span, zeros among them."""
    significand = RNG.integers(-(2**bits) + 1, 2**bits, size).astype(np.float64)
    significand[::17] = 0
    return np.ldexp(significand, RNG.integers(-span, span + 1, size))


def _fractions(x):
    return [x.fraction(i) for i in range(x.n.size)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("span", [0, 3, 20, 60])
def test_numbers_are_taken_exactly(dtype, span):
    x = _numbers(8, span).astype(dtype)
    assert _fractions(Exact.of(x, 8)) == [Fraction(float(item)) for item in x]
    assert _fractions(Exact.of(x)) == [Fraction(float(item)) for item in x]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_subnormal_and_extreme_numbers_are_taken_exactly(dtype):
    info = np.finfo(dtype)
    x = np.array([0, info.smallest_subnormal, -info.smallest_subnormal * 5, info.tiny, info.max, -1], dtype)
    assert _fractions(Exact.of(x)) == [Fraction(float(item)) for item in x]
    assert _fractions(Exact.of(x[:3])) == [Fraction(float(item)) for item in x[:3]]


@pytest.mark.parametrize(
    ("bits", "span"), list(itertools.product([4, 11, 24, 30, 50, 53], [0, 4, 15, 40, 120]))
)
@pytest.mark.sampled(4, each=False)
def test_sums_products_and_comparisons_are_exact(bits, span):
    a, b, c = (_numbers(bits, span) for _ in range(3))
    x, y, z = (Exact.of(item, bits) for item in (a, b, c))
    one, two, three = ([Fraction(item) for item in array] for array in (a, b, c))
    assert _fractions(x + y) == [p + q for p, q in zip(one, two, strict=True)]
    product = [p * q - r for p, q, r in zip(one, two, three, strict=True)]
    assert _fractions(x * y - z) == product
    assert _fractions(abs(x * y - z)) == [abs(item) for item in product]
    assert _fractions((x * y - z) * (x + z)) == [
        item * (p + r) for item, p, r in zip(product, one, three, strict=True)
    ]
    for factor in (3, -(2**53), 2**53 + 1, -(2**70) + 1, 2**124, 3**250):
        assert _fractions(x * factor) == [factor * item for item in one]
        assert _fractions((x * y - z) * factor + y) == [
            factor * item + q for item, q in zip(product, two, strict=True)
        ]
    assert (x <= y).tolist() == [p <= q for p, q in zip(one, two, strict=True)]
    assert (x * y <= z).tolist() == [item <= 0 for item in product]
    assert (x - x).is_zero().all()
    assert (x * y - z).is_zero().tolist() == [item == 0 for item in product]


@pytest.mark.parametrize(("bits", "span"), [(8, 4), (24, 10), (40, 20), (53, 100)])
def test_quotients_are_right_to_the_promised_share(bits, span):
    a, b = _numbers(bits, span), _numbers(bits, span)
    x, y = Exact.of(a, bits), Exact.of(b, bits)
    for numerator, denominator in ((x, y), (x * y - y, x * x), (x * x * x - y, y)):
        ratio = numerator.ratio(denominator)
        for i in range(a.size):
            top, bottom = numerator.fraction(i), denominator.fraction(i)
            if bottom == 0:
                assert (ratio[i] == 0) if top == 0 else np.isinf(ratio[i])
                continue
            exact = top / bottom
            assert abs(Fraction(float(ratio[i])) - exact) <= abs(exact) / 2**50


def test_numbers_go_back_to_binary64_or_not_at_all():
    a = _numbers(20, 30)
    x = Exact.of(a, 20)
    assert (x.numbers() == a).all()
    big = Exact.of(np.array([2.0**60, 1.0]), 1)
    assert (big + big).numbers().tolist() == [2.0**61, 2.0]
    with pytest.raises(OverflowError, match="more bits"):
        (Exact.of(np.array([2.0**60])) + Exact.of(np.array([1.0]))).numbers()


def test_cases_are_taken_out():
    a = _numbers(11, 100)
    x = Exact.of(a, 11)
    assert _fractions(x[5:9]) == [Fraction(item) for item in a[5:9]]
    assert _fractions((x * x * x)[[3]]) == [Fraction(a[3]) ** 3]


def test_two_words_against_integers():
    edge = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**61, 2**62, -(2**62), 2**62 - 1]
    n = np.array([*edge, *RNG.integers(-(2**62), 2**62, 500)], dtype=np.int64)
    m = n[RNG.permutation(n.size)]
    a, b = TwoWords.product(n, m), TwoWords.of(m)
    exact = [int(p) * int(q) for p, q in zip(n, m, strict=True)]
    assert a.integers().tolist() == exact
    assert (-a).integers().tolist() == [-item for item in exact]
    assert abs(a).integers().tolist() == [abs(item) for item in exact]
    assert (a + b).integers().tolist() == [item + int(q) for item, q in zip(exact, m, strict=True)]
    assert (a <= b).tolist() == [item <= int(q) for item, q in zip(exact, m, strict=True)]
    assert a.is_zero().tolist() == [item == 0 for item in exact]
    for by in (0, 1, 30, 61, 62, 63):
        assert (b << by)[:3].integers().tolist() == [int(q) << by for q in m[:3]]
    small = TwoWords.of(n >> 40)
    by = RNG.integers(0, 101, n.size)
    assert (small << by).integers().tolist() == [int(p >> 40) << int(s) for p, s in zip(n, by, strict=True)]
    for i, item in enumerate(exact):
        assert abs(Fraction(float(a.numbers()[i])) - item) <= Fraction(abs(item), 2**51)
        assert a.integer(i) == item


def test_quotients_and_numbers_of_integers_beyond_binary64():
    """Of integers of thousands of bits, where the numbers themselves are of any size."""
    x = Exact.of(np.array([1.5, -3.0, 2.0**900, 2.0**-1000, 0.0]))
    huge = x * 2**3000 * Fraction(1, 2**2990)
    assert huge.numbers().tolist() == [1536.0, -3072.0, 2.0**910, 2.0**-990, 0.0]
    one = x * 3**700
    ratio = one.ratio(x * (3**700 + 1))
    assert np.all(np.abs(ratio[:4] - 1) < 2.0**-50)
    assert ratio[4] == 0
    with pytest.raises(OverflowError):
        one.numbers()


@pytest.mark.parametrize("specials", ["ieee", "fn", "fnuz", "nuz", "none"])
def test_significands_are_values_of_the_format(specials):
    fmt = Format("", precision=3, emin=-4, emax=5, specials=specials)
    found = significands(fmt, range(-4, 6), signs=True)
    assert np.isin(found, finite_values(fmt)).all()
    assert found.max() == fmt.max
