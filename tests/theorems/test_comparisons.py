"""Comparisons in claims: of exact numbers they are exact, of anything else elementwise or refused."""

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
from mcfsim.theorems.hypotheses import within_factor_two
from mcfsim.theorems.paths import EveryPath
from mcfsim.theorems.trial import Measured, Trial
from mcfsim.theorems.two_words import TwoWords

RNG = np.random.default_rng(11)
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
PAIR = (value("a"), value("b"))


def _numbers(bits, span, size=200):
    n = RNG.integers(-(2**bits) + 1, 2**bits, size).astype(np.float64)
    n[::9] = 0
    return np.ldexp(n, RNG.integers(-span, span + 1, size))


def _fraction(number):
    return Fraction(number.item() if isinstance(number, np.generic) else number)


def _fractions(x):
    return [x.fraction(i) for i in range(x.n.size)]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize(("bits", "span"), list(itertools.product([1, 3, 11, 24, 50], [0, 2, 15, 60, 300])))
@pytest.mark.sampled(6)
def test_exact_numbers_compare_as_fractions_do(compare, bits, span):
    a, b = (Exact.of(_numbers(bits, span), bits) for _ in range(2))
    # In one word, two words and Python's integers; equal ones among them, by other integers and exponents.
    for x, y in ((a, b), (a * a, b * b), (a * a * a, b), (a * 3 - b, a + a + a - b), (a * 4, a), (a * 0, b)):
        found = compare(x, y)
        assert found.dtype == bool
        assert found.tolist() == [compare(p, q) for p, q in zip(_fractions(x), _fractions(y), strict=True)]


@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("span", [0, 40])
@pytest.mark.sampled(4)
def test_exact_numbers_compare_with_numbers(compare, span):
    x = Exact.of(_numbers(4, span), 4)
    numbers = [0, 1, -3, 7.5, -0.0, 2**70, 10**30, -(2**1100), 5e-324, Fraction(1, 3), Fraction(-7, 12)]
    for number in [*numbers, *_fractions(x)[:5], np.float32(1.5), np.int64(-2), np.float64(2.0**-30)]:
        right = [
            compare(p, Fraction(number.item() if hasattr(number, "item") else number)) for p in _fractions(x)
        ]
        right = _fraction(number)
        assert compare(x, number).tolist() == [compare(p, right) for p in _fractions(x)]
        assert compare(number, x).tolist() == [compare(right, p) for p in _fractions(x)]


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul])
def test_numbers_enter_sums_and_products_exactly(operation):
    x = Exact.of(_numbers(8, 20), 8)
    for number in (0, 3, -(2**80) - 1, 0.1, Fraction(5, 8), np.float32(0.1), np.int8(-7)):
        right = _fraction(number)
        assert _fractions(operation(x, number)) == [operation(p, right) for p in _fractions(x)]
        assert _fractions(operation(number, x)) == [operation(right, p) for p in _fractions(x)]
    with pytest.raises(TypeError, match="1/3 is no integer times a power of two"):
        operation(x, Fraction(1, 3))


OTHERS = [
    None,
    "1",
    True,
    np.True_,
    np.inf,
    -np.inf,
    np.nan,
    np.ones(200),
    [1.0],
    (1,),
    1j,
    object(),
    np.float32("inf"),
]


@pytest.mark.parametrize("compare", [*COMPARISONS, operator.add, operator.sub, operator.mul])
@pytest.mark.parametrize("other", OTHERS, ids=lambda x: type(x).__name__)
def test_nothing_else_goes_with_exact_numbers(compare, other):
    for x in (Exact.of(_numbers(8, 3), 8), Exact.of(_numbers(40, 3)) * Exact.of(_numbers(40, 3))):
        with pytest.raises(TypeError):
            compare(x, other)
        with pytest.raises(TypeError):
            compare(other, x)
    n = TwoWords.of(RNG.integers(0, 9, 200))
    with pytest.raises(TypeError):
        compare(n, other)


def test_other_shapes_are_refused():
    x = Exact.of(_numbers(8, 3), 8)
    for other in (x[:1], x[:7]):
        for operation in (*COMPARISONS, operator.add, operator.mul):
            with pytest.raises(ValueError, match="shapes"):
                operation(x, other)


def test_an_array_of_exact_numbers_is_no_sequence_and_has_no_truth_value():
    misuses = [bool, iter, hash, lambda x: 1 in x, lambda x: not x, np.sign, np.abs]
    for x in (Exact.of(_numbers(8, 3), 8), TwoWords.of(np.arange(5))):
        for misuse in misuses:
            with pytest.raises(TypeError):
                misuse(x)
    with pytest.raises(TypeError, match="fraction"):
        Exact.of(np.ones(3))[0]


def _trial(algorithm_gives_operand=False):
    ar = BlockArithmetic(get_format("float8_e4m3fn"), Rounding(), "exact")
    a, b = np.float32([1, 2]), np.float32([2, 3])
    return Trial(ar, ("x", "a"), ((a, b), a), (a, b) if algorithm_gives_operand else (b, a))


@pytest.mark.parametrize("compare", [*COMPARISONS, operator.contains])
def test_what_holds_arrays_is_not_compared_as_a_whole(compare):
    t = _trial(algorithm_gives_operand=True)
    measured = Measured(t.exact("a"), t.exact("a"))
    paths = EveryPath(BlockArithmetic(get_format("e4m3fn"), Rounding("stochastic"), "exact"), 2)
    drawn = paths.add(t["a"], t["a"])
    tuples = [t.results, t["x"], t.results[:1], t.results + t["x"]]
    wholes = [(t, _trial()), (t, t), (measured, measured), (measured, 0), (drawn, drawn), (drawn, t["a"])]
    for x, y in [*itertools.product(tuples, [t["x"], t["a"], (t["a"],)]), *wholes]:
        with pytest.raises(TypeError):
            compare(x, y)


# -- whole claims, counted by fractions ---------------------------------------------------------------------
def _finite(name):
    return [Fraction(float(x)) for x in all_values(name) if np.isfinite(x)]


@pytest.mark.parametrize("compare", COMPARISONS)
def test_a_claim_by_any_comparison_has_the_violations_that_fractions_count(compare):
    name = "float6_e3m2fn"
    about = claim("result ? a - b", lambda t: compare(t.result(), t.exact("a") - t.exact("b")))
    certificate = verify(Theorem("compared", lambda ar, a, b: ar.sub(a, b), PAIR, about), name)
    ar, values = BlockArithmetic(get_format(name), Rounding(), "exact"), _finite(name)
    pairs = list(itertools.product(values, values))
    rounded = ar.sub(*(np.float32([float(pair[i]) for pair in pairs]) for i in (0, 1)))
    wrong = sum(not compare(Fraction(float(d)), a - b) for d, (a, b) in zip(rounded, pairs, strict=True))
    assert certificate.violations == wrong
    assert 0 < wrong < certificate.tried


def test_a_claim_that_is_false_almost_everywhere_is_refuted():
    def never(t):
        return (t.result() != t.exact("a") - t.exact("b")) | (t["a"] == t["b"])

    theorem = Theorem("never", lambda ar, a, b: ar.sub(a, b), PAIR, claim("never exact", never))
    assert verify(theorem, "float8_e4m3fn").violations > 10_000


def test_sterbenz_is_verified_however_it_is_written():
    forms = [
        lambda d, e: d == e,
        lambda d, e: ~(d != e),
        lambda d, e: (d <= e) & (d >= e),
        lambda d, e: ~((d < e) | (d > e)),
        lambda d, e: d - e == 0,
        lambda d, e: abs(d - e) <= 0,
    ]
    for form in forms:
        about = claim("a - b is exact", lambda t, form=form: form(t.result(), t.exact("a") - t.exact("b")))
        theorem = Theorem(
            "s", lambda ar, a, b: ar.sub(a, b), PAIR, about, where=[within_factor_two("a", "b")]
        )
        assert verify(theorem, "float8_e4m3fn").verdict == "verified"


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
