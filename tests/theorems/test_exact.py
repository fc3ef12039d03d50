"""Exact arrays against fractions: sums, products, quotients, comparisons; and what goes with none."""

import itertools
import operator
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.codec import all_values
from mcfsim.formats import get_format
from mcfsim.rounding import Rounding
from mcfsim.theorems import Theorem, claim, double_word, value, verify
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.paths import EveryPath
from mcfsim.theorems.trial import Measured, Trial
from mcfsim.theorems.two_words import TwoWords

RNG = np.random.default_rng(5)
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [operator.add, operator.sub, operator.mul]
PAIR = (value("a"), value("b"))


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


@pytest.mark.parametrize("span", [0, 2, 15, 40, 120, 300])
@pytest.mark.parametrize("bits", [1, 3, 11, 24, 30, 50, 53])
@pytest.mark.sampled(6)
def test_sums_products_and_comparisons_are_exact(bits, span):
    given = [_numbers(bits, span) for _ in range(3)]
    x, y, z = (Exact.of(item, bits) for item in given)
    a, b, c = (list(map(Fraction, item)) for item in given)
    mixed, product = _each(lambda p, q, r: p * q - r, a, b, c), x * y - z
    assert _fractions(x + y) == _each(operator.add, a, b)
    assert _fractions(product) == mixed
    assert _fractions(abs(product)) == _each(abs, mixed)
    assert _fractions(product * (x + z)) == _each(lambda m, p, r: m * (p + r), mixed, a, c)
    for factor in (3, -(2**53), 2**53 + 1, -(2**70) + 1, 2**124, 3**250):
        assert _fractions(x * factor) == [factor * p for p in a]
        assert _fractions(product * factor + y) == _each(lambda m, q, k=factor: k * m + q, mixed, b)
    assert (x - x).is_zero().all()
    assert product.is_zero().tolist() == [m == 0 for m in mixed]
    # In one word, two words and Python's integers; equal ones among them, by other integers and exponents.
    pairs = [
        (x, y),
        (x * x, y * y),
        (x * x * x, y),
        (x * 3 - y, x + x + x - y),
        (x * 4, x),
        (x * 0, y),
        (x * y, z),
    ]
    for one, other in pairs:
        exact = _fractions(one), _fractions(other)
        for compare in COMPARISONS:
            found = compare(one, other)
            assert found.dtype == bool
            assert found.tolist() == _each(compare, *exact), compare


NUMBERS = [0, 1, -3, 7.5, -0.0, 0.1, 2**70, 10**30, -(2**1100), 5e-324, Fraction(5, 8), np.float32(0.1)]
NUMBERS += [np.int8(-7), np.int64(-2), np.float64(2.0**-30)]
#: What is no integer times a power of two is compared, but neither added nor multiplied by.
THIRDS = [Fraction(1, 3), Fraction(-7, 12)]


@pytest.mark.parametrize("operation", [*COMPARISONS, *ARITHMETIC])
@pytest.mark.sampled(4)
def test_numbers_enter_exactly(operation):
    for span in (0, 20, 40):
        x = Exact.of(_numbers(4, span), 4)
        exact = _fractions(x)
        compared = operation in COMPARISONS
        for number in [*NUMBERS, *exact[:5], *(THIRDS if compared else ())]:
            right = Fraction(number.item() if isinstance(number, np.generic) else number)
            found = operation(x, number), operation(number, x)
            found = [f.tolist() if compared else _fractions(f) for f in found]
            assert found == [[operation(p, right) for p in exact], [operation(right, p) for p in exact]], (
                number
            )
    if not compared:
        with pytest.raises(TypeError, match="1/3 is no integer times a power of two"):
            operation(x, THIRDS[0])


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


def test_arrays_of_exact_numbers_have_one_shape_and_are_no_sequences_nor_truth_values():
    x = Exact.of(_numbers(8, 3), 8)
    for other, operation in itertools.product((x[:1], x[:7]), (*COMPARISONS, operator.add, operator.mul)):
        with pytest.raises(ValueError, match="shapes"):
            operation(x, other)
    misuses = [bool, iter, hash, lambda x: 1 in x, lambda x: not x, np.sign, np.abs]
    for each, misuse in itertools.product((x, TwoWords.of(np.arange(5))), misuses):
        with pytest.raises(TypeError):
            misuse(each)
    with pytest.raises(TypeError, match="fraction"):
        x[0]


@pytest.mark.parametrize(("bits", "span"), [(8, 4), (24, 10), (40, 20), (53, 100)])
def test_quotients_are_right_to_the_promised_share(bits, span):
    x, y = (Exact.of(_numbers(bits, span), bits) for _ in range(2))
    for numerator, denominator in ((x, y), (x * y - y, x * x), (x * x * x - y, y)):
        ratio = numerator.ratio(denominator)
        for i, (top, bottom) in enumerate(zip(_fractions(numerator), _fractions(denominator), strict=True)):
            if bottom == 0:
                assert (ratio[i] == 0) if top == 0 else np.isinf(ratio[i])
                continue
            exact = top / bottom
            assert abs(Fraction(float(ratio[i])) - exact) <= abs(exact) / 2**50


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
def test_what_holds_arrays_is_not_compared_as_a_whole():
    ar, (a, b) = BlockArithmetic(get_format("e4m3fn"), Rounding(), "exact"), np.float32([[1, 2], [2, 3]])
    t, another = (Trial(ar, ("x", "a"), ((a, b), a), results) for results in ((a, b), (b, a)))
    measured = Measured(t.exact("a"), t.exact("a"))
    paths = EveryPath(BlockArithmetic(get_format("e4m3fn"), Rounding("stochastic"), "exact"), 2)
    drawn = paths.add(t["a"], t["a"])
    tuples = [t.results, t["x"], t.results[:1], t.results + t["x"]]
    wholes = [(t, another), (t, t), (measured, measured), (measured, 0), (drawn, drawn), (drawn, t["a"])]
    for x, y in [*itertools.product(tuples, [t["x"], t["a"], (t["a"],)]), *wholes]:
        for compare in (*COMPARISONS, operator.contains):
            with pytest.raises(TypeError):
                compare(x, y)


def _difference(test, **facts):
    return Theorem("own", lambda ar, a, b: ar.sub(a, b), PAIR, claim("result ? a - b", test), **facts)


@pytest.mark.parametrize("compare", COMPARISONS)
def test_a_claim_by_any_comparison_has_the_violations_that_fractions_count(compare):
    name = "float6_e2m3fn"
    about = _difference(lambda t: compare(t.result(), t.exact("a") - t.exact("b")))
    certificate = verify(about, name)
    ar, values = BlockArithmetic(get_format(name), Rounding(), "exact"), all_values(name)
    a, b = np.meshgrid(values[np.isfinite(values)].astype(np.float32), values.astype(np.float32))
    a, b = a.ravel(), b.ravel()
    exact = _each(lambda x, y: Fraction(x) - Fraction(y), a.tolist(), b.tolist())
    wrong = sum(not compare(Fraction(d), e) for d, e in zip(ar.sub(a, b).tolist(), exact, strict=True))
    assert certificate.violations == wrong
    assert 0 < wrong < certificate.tried


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
