"""Expansions: components of known numbers, error bounds in exact integers, and where they are attained."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format
from mcfsim.multiword import double_word, expansion
from mcfsim.oracle import round_fraction, round_integers
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import label

BF16, TF32 = FORMATS["bfloat16"], FORMATS["tf32"]
SIZE = 2**18
UNIT = 44  # of the integers below: 2**-44

# 1 is beyond what the components of beta say: an e4m3 pair for 0.999 is 0.998.
BETAS = {
    ("bf16", "0.999"): ("1", "-131/131072", "-147/268435456"),
    ("bf16", "0.99"): ("253/256", "225/131072", "143/67108864"),
    ("bf16", "0.95"): ("243/256", "205/262144", "-205/268435456"),
    ("bf16", "0.9"): ("115/128", "205/131072", "-205/134217728"),
    ("bf16", "0.98"): ("251/256", "-123/262144", "123/268435456"),
    ("fp16", "0.999"): ("1023/1024", "-393/16777216", "0"),
    ("fp16", "0.99"): ("507/512", "-983/4194304", "0"),
    ("fp16", "0.95"): ("973/1024", "-819/4194304", "-1/16777216"),
    ("tf32", "0.999"): ("1023/1024", "-1573/67108864", "557/274877906944"),
    ("tf32", "0.99"): ("507/512", "-983/4194304", "-1311/137438953472"),
    ("tf32", "0.95"): ("973/1024", "-819/4194304", "-819/17179869184"),
    ("e4m3fn", "0.999"): ("1", "-1/512", "0"),
    ("e4m3fn", "0.99"): ("1", "-5/512", "0"),
    ("e4m3fn", "0.95"): ("15/16", "3/256", "0"),
    ("e5m2", "0.999"): ("1", "-1/1024", "-1/32768"),
    ("e5m2", "0.99"): ("1", "-5/512", "-1/4096"),
    ("e5m2", "0.95"): ("1", "-3/64", "-3/1024"),
}
# Collage's pairs in bfloat16, in decimal: b, db and b + db as printed.
PAIRS = {
    "0.95": (0.94921875, 7.82012939453125e-4, "0.950000762939453"),
    "0.98": (0.98046875, -4.69207763671875e-4, "0.979999542236328"),
    "0.99": (0.98828125, 1.71661376953125e-3, "0.989997863769531"),
    "0.999": (1.0, -9.9945068359375e-4, "0.99900054931640625"),
    "0.9999": (1.0, -1.00135803222656e-4, "0.999899864196777"),
}


def unbounded(precision):
    """Return a format in whose range nothing below over- or underflows."""
    return Format(precision=precision, emin=-300, emax=300)


def total(x):
    """Return the exact sum of an expansion of numbers."""
    return sum((Fraction(float(part)) for part in x), Fraction(0))


def integers(x):
    """Return floats as integers in units of 2**-44, exactly."""
    scaled = np.ldexp(np.asarray(x, dtype=np.float64), UNIT)
    assert (np.abs(scaled) < 2.0**53).all()
    whole = scaled.astype(np.int64)
    assert (whole == scaled).all()
    return whole


def double_words(fmt, size, seed, low=6):
    """Return random double words, in [1, 2) and with up to `low` zeros between the components."""
    rng = np.random.default_rng(seed)
    p = fmt.precision
    high = rng.integers(2 ** (p - 1), 2**p, size) * 2.0 ** (1 - p)
    rest = rng.integers(2 ** (p - 1), 2**p, size) * 2.0 ** (1 - p)
    rest = np.where(rng.random(size) < 0.2, 1.0, rest) * 2.0 ** -(p + rng.integers(0, low, size))
    rest = np.where(rng.random(size) < 0.02, 0.0, rest) * rng.choice([-1.0, 1.0], size)
    return high, np.where(round_integers(high + rest, fmt) == high, rest, 0.0)


def numbers(fmt, size, seed, exponents):
    rng = np.random.default_rng(seed)
    significands = rng.integers(2 ** (fmt.precision - 1), 2**fmt.precision, size) * 2.0 ** (1 - fmt.precision)
    return significands * 2.0 ** rng.integers(*exponents, size) * rng.choice([-1.0, 1.0], size)


def assert_within(fmt, result, exact, bound):
    """Assert ``|error| < bound u**2 |exact|``, or both zero, elementwise, in integers below 2**53."""
    off = np.abs(integers(result[0]) + integers(result[1]) - exact)
    scaled, allowed = np.ldexp(off.astype(np.float64), 2 * fmt.precision), float(bound) * np.abs(exact)
    assert allowed.max() < 2.0**53
    assert ((scaled < allowed) | (off == 0)).all()
    assert off.any()


def assert_double_words(fmt, result):
    high, rest = (np.asarray(part, dtype=np.float64) for part in result)
    assert np.array_equal(round_integers(high + rest, fmt), high)


# -- expand -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("fmt", "beta"), BETAS)
def test_components_of_decay_rates_are_those_of_exact_rationals(fmt, beta):
    expected = tuple(Fraction(text) for text in BETAS[fmt, beta])
    ar = mcf.arithmetic(fmt)
    for value in (Fraction(beta), Decimal(beta)):
        assert tuple(map(Fraction, mcf.expand(ar, value, 3))) == expected
    assert tuple(map(Fraction, mcf.expand(ar, float(beta), 2))) == expected[:2]


@pytest.mark.parametrize("beta", PAIRS)
def test_pairs_of_decay_rates_in_bfloat16_are_the_published_ones(beta):
    high, low = mcf.expand(mcf.arithmetic("bf16"), float(beta), 2)
    printed_high, printed_low, printed_sum = PAIRS[beta]
    assert high == printed_high
    assert f"{low:.14e}" == f"{printed_low:.14e}"
    digits = len(printed_sum) - 2
    assert round(total((high, low)), digits) == Fraction(printed_sum)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32", "e4m3fn", "e5m2", "fp32"])
def test_each_component_is_the_rest_rounded(name, n):
    ar = mcf.arithmetic(name)
    for value in (Fraction(1, 3), -Fraction(999, 1000), Fraction(100), Fraction(2) ** -9, Fraction(0)):
        rest, components = value, mcf.expand(ar, value, n)
        assert len(components) == n
        for component in components:
            assert component == round_fraction(rest, ar.format)
            rest -= Fraction(component)


def test_one_minus_a_rounded_decay_rate_is_not_its_complement_rounded():
    ar = mcf.arithmetic("bf16")
    assert ar.sub(1.0, mcf.expand(ar, Fraction("0.999"), 1)[0]) == 0.0
    assert mcf.expand(ar, Fraction("0.001"), 1) == (0.00099945068359375,)


def test_numbers_of_every_kind_expand_alike():
    ar = mcf.arithmetic("bf16")
    for number in (0.15625, Decimal("0.15625"), Fraction(5, 32), mpmath.mpf("0.15625"), np.float32(0.15625)):
        assert mcf.expand(ar, number, 2) == (0.15625, 0.0)


def test_an_exact_arithmetic_takes_the_number_whole():
    exact = mcf.arithmetic(None, backend="exact")
    assert mcf.expand(exact, Fraction(1, 4), 3) == (0.25, 0, 0)


@pytest.mark.parametrize(
    ("number", "n", "message"),
    [
        (0.5, 0, "at least one component"),
        (math.nan, 2, "not finite"),
        (-math.inf, 2, "not finite"),
        (1e40, 2, "exceeds the maximum"),
    ],
)
def test_what_cannot_be_expanded_is_refused(number, n, message):
    with pytest.raises(ValueError, match=message):
        mcf.expand(mcf.arithmetic("bf16"), number, n)


def test_a_format_without_infinity_refuses_what_exceeds_it():
    with pytest.raises(ValueError, match="exceeds the maximum 448"):
        mcf.expand(mcf.arithmetic("e4m3fn"), 500.0, 2)


def test_a_format_that_only_saturates_refuses_what_rounds_past_its_maximum():
    ar = mcf.arithmetic("e2m1fn")  # up to 6, and the next number would be 8
    assert mcf.expand(ar, 6.5, 2) == (6.0, 0.5)
    with pytest.raises(ValueError, match="exceeds the maximum 6"):
        mcf.expand(ar, 7.0, 2)


def test_the_value_of_an_expansion_is_its_exact_sum():
    assert expansion.value((1.0, 2.0**-100, -(2.0**-200))) == 1 + Fraction(1, 2**100) - Fraction(1, 2**200)


# -- grow -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", [BF16, TF32, unbounded(4)], ids=label)
def test_grow_is_off_by_2_u2_at_most_and_gives_a_double_word(fmt):
    x = double_words(fmt, SIZE, seed=1)
    cancelling = -np.nextafter(x[0].astype(np.float32), np.float32(2)).astype(np.float64)
    nearby = round_integers(cancelling, fmt)
    for a in (numbers(fmt, SIZE, seed=2, exponents=(-2 * fmt.precision, 8)), nearby, -x[0]):
        result = mcf.grow(mcf.arithmetic(fmt), x, a)
        exact = integers(x[0]) + integers(x[1]) + integers(a)
        off = np.abs(integers(result[0]) + integers(result[1]) - exact)
        assert (np.ldexp(off.astype(np.float64), 2 * fmt.precision) <= 2.0 * np.abs(exact)).all()
        assert_double_words(fmt, result)


@pytest.mark.parametrize("precision", [3, 4, 5, 6])
def test_no_operands_are_worse_for_grow_than_the_known_family(precision):
    fmt, u = unbounded(precision), Fraction(1, 2**precision)
    high, low, significands = all_double_words(fmt, below=3)
    a = np.concatenate([s * significands * 2.0**-gap for gap in range(2 * precision + 4) for s in (1, -1)])
    x0, x1 = mcf.grow(mcf.arithmetic(fmt), (high[:, None], low[:, None]), a)
    exact = (high + low)[:, None] + a  # of at most 4 p bits, exact in binary64
    off = np.abs(x0 + x1 - exact)
    relative = np.divide(off, np.abs(exact), out=np.zeros_like(off), where=off > 0)
    i, j = np.unravel_index(relative.argmax(), relative.shape)
    worst = Fraction(off[i, j]) / abs(Fraction(exact[i, j]))
    assert worst == 2 * u**2 / (1 + 2 * u + 2 * u**2)
    assert (high[i], Fraction(low[i]), Fraction(a[j])) == (1, u / 2 + u**2, -(1 - u) / 2)


def all_double_words(fmt, below):
    """Return all double words in [1, 2) with a rest of 2**-(p + below) or more, and all numbers there."""
    p = fmt.precision
    significands = np.arange(2.0 ** (p - 1), 2.0**p) * 2.0 ** (1 - p)
    rests = [s * significands * 2.0**-e for e in range(p, p + below + 1) for s in (1, -1)]
    high, low = (x.ravel() for x in np.meshgrid(significands, np.concatenate([[0.0], *rests]), indexing="ij"))
    normalised = round_integers(high + low, fmt) == high
    return high[normalised], low[normalised], significands


@pytest.mark.parametrize("precision", [4, 5, 6, 8, 11, 24])
def test_the_bound_of_grow_is_attained_in_the_limit(precision):
    fmt, u = unbounded(precision), Fraction(1, 2**precision)
    families = [
        ((1, u / 2 + u**2), -(1 - u) / 2, 2 * u**2 / (1 + 2 * u + 2 * u**2)),
        (
            (1, -u + u**2),
            -(1 - 3 * u) / 2,
            2 * u**2 / (1 + u + 2 * u**2),
        ),  # no double word, though |y| <= ulp / 2
    ]
    for x, a, expected in families:
        result = mcf.grow(mcf.arithmetic(fmt), tuple(map(float, x)), float(a))
        exact = sum(x) + a
        assert abs(total(result) - exact) / exact == expected
    assert precision != 8 or f"{float(families[0][2] * 2**16):.5f}" == "1.98444"


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_ordered_grow_is_grow_where_the_operands_are_ordered(fmt, assert_same):
    x = double_words(fmt, SIZE, seed=3)
    a = numbers(fmt, SIZE, seed=4, exponents=(-2 * fmt.precision, 1))  # below 2, as is x[0]
    ar = mcf.arithmetic(fmt)
    for ordered, plain in zip(mcf.grow(ar, x, a, ordered=True), mcf.grow(ar, x, a), strict=True):
        assert_same(ordered, plain, *x, a)


def test_ordered_grow_of_unordered_operands_loses_the_compensation():
    ar = mcf.arithmetic("bf16")
    x = (1.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0, ordered=True) == (600.0, -(2.0**-9))
    assert mcf.grow(ar, x, 600.0) == (600.0, 1.0)


def test_ordered_grow_of_unordered_operands_is_off_by_more_than_u():
    x, a = (1.03125, -0.000732421875), -9.0625
    result = mcf.grow(mcf.arithmetic("bf16"), x, a, ordered=True)
    exact = total((*x, a))
    assert f"{float(abs(total(result) - exact) / abs(exact) * 2**16):.2f}" == "256.97"


def test_grow_of_one_component_is_addition(assert_same):
    a = numbers(BF16, 1000, seed=5, exponents=(-4, 4))
    ar = mcf.arithmetic("bf16")
    assert_same(mcf.grow(ar, (a[::-1].copy(),), a)[0], ar.add(a[::-1].copy(), a))


# -- add, scale, mul: two components ----------------------------------------------------------------------
@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_addition_is_off_by_3_u2_over_1_less_4_u_at_most_and_gives_a_double_word(fmt):
    rng = np.random.default_rng(6)
    low = 6 if fmt is BF16 else 3
    x, y = double_words(fmt, SIZE, seed=7, low=low), double_words(fmt, SIZE, seed=8, low=low)
    c = rng.choice([-1.0, 1.0], SIZE) * 2.0 ** -rng.integers(0, 2 * fmt.precision - 6, SIZE)
    c = np.where(rng.random(SIZE) < 0.3, -1.0, c)  # many cancel
    y = (c * y[0], c * y[1])
    result = mcf.expansion_add(mcf.arithmetic(fmt), x, y)
    exact = sum(integers(part) for part in (*x, *y))
    off = np.abs(integers(result[0]) + integers(result[1]) - exact)
    p = fmt.precision
    assert (np.ldexp(off * (2.0**p - 4), 2 * p) <= 3 * 2.0**p * np.abs(exact)).all()
    assert off.any()
    assert_double_words(fmt, result)


@pytest.mark.parametrize("precision", [4, 5, 6, 8, 11, 24])
def test_the_bound_of_addition_is_attained_in_the_limit(precision):
    """By the family of Muller and Rideau, ACM TOMS 48(1), 2022, Property 2.1."""
    u = Fraction(1, 2**precision)
    x, y = (1, u - u**2), (-Fraction(1, 2) + u / 2, -(u**2) / 2 + u**3)
    result = mcf.expansion_add(
        mcf.arithmetic(unbounded(precision)), tuple(map(float, x)), tuple(map(float, y))
    )
    exact = sum(x) + sum(y)
    assert abs(total(result) - exact) / exact == (3 - 2 * u) * u**2 / (1 + 3 * u - 3 * u**2 + 2 * u**3)


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_scaling_is_off_by_2_u2_at_most_and_gives_a_double_word(fmt):
    x = double_words(fmt, SIZE, seed=9, low=4)
    a = numbers(fmt, SIZE, seed=10, exponents=(0, 1))
    result = mcf.expansion_scale(mcf.arithmetic(fmt), x, a)
    p = fmt.precision
    exact = integers(a) // 2 ** (UNIT - p + 1) * (integers(x[0]) + integers(x[1])) // 2 ** (p - 1)
    assert np.array_equal(
        exact * 2 ** (p - 1), integers(a) // 2 ** (UNIT - p + 1) * (integers(x[0]) + integers(x[1]))
    )
    assert_within(fmt, result, exact, 2)
    assert_double_words(fmt, result)


@pytest.mark.parametrize("fmt", [BF16, TF32], ids=label)
def test_multiplication_is_off_by_less_than_5_u2_and_gives_a_double_word(fmt):
    p, low = fmt.precision, 6 if fmt is BF16 else 1
    x, y = double_words(fmt, SIZE, seed=11, low=low), double_words(fmt, SIZE, seed=12, low=low)
    result = mcf.expansion_mul(mcf.arithmetic(fmt), x, y)
    lowest = 2 * p + low - 2  # a second component is a multiple of 2**-lowest
    assert 2 * lowest <= UNIT
    factors = [np.ldexp(pair[0] + pair[1], lowest).astype(np.int64) for pair in (x, y)]
    exact = factors[0] * factors[1] * 2 ** (UNIT - 2 * lowest)
    assert_within(fmt, result, exact, 5)
    assert_double_words(fmt, result)


@pytest.mark.parametrize(("precision", "worst"), [(3, "1.164"), (4, "1.237"), (5, "1.393"), (6, "1.522")])
def test_the_worst_scaling_of_all_operands(precision, worst):
    """The bound of Joldes, Muller and Popescu 2017, Theorem 4.3, is 2; nothing comes closer than this."""
    fmt = unbounded(precision)
    high, low, a = all_double_words(fmt, below=2)
    result = mcf.expansion_scale(mcf.arithmetic(fmt), (high[:, None], low[:, None]), a)
    exact = (high + low)[:, None] * a
    relative = np.abs(result[0] + result[1] - exact) / exact
    assert f"{relative.max() * 4**precision:.3f}" == worst


@pytest.mark.parametrize(("precision", "worst"), [(3, "2.226"), (4, "3.062"), (5, "3.882")])
def test_the_worst_multiplication_of_all_operands(precision, worst):
    """The bound of Muller and Rideau 2022, Theorem 2.7, is 5 from precision 5 on."""
    fmt = unbounded(precision)
    high, low, _ = all_double_words(fmt, below=1)
    result = mcf.expansion_mul(mcf.arithmetic(fmt), (high[:, None], low[:, None]), (high, low))
    exact = (high + low)[:, None] * (high + low)
    relative = np.abs(result[0] + result[1] - exact) / exact
    assert f"{relative.max() * 4**precision:.3f}" == worst


@pytest.mark.parametrize(("precision", "worst"), [(3, "2.162"), (4, "2.498")])
def test_the_worst_addition_of_all_operands(precision, worst):
    """The bound of Joldes, Muller and Popescu 2017, Theorem 3.1, is 3 / (1 - 4 u)."""
    fmt = unbounded(precision)
    high, low, _ = all_double_words(fmt, below=4)
    found = 0.0
    for c in [s * 2.0**-gap for gap in range(2 * precision + 4) for s in (1, -1)]:
        result = mcf.expansion_add(mcf.arithmetic(fmt), (high[:, None], low[:, None]), (c * high, c * low))
        exact = (high + low)[:, None] + c * (high + low)
        off = np.abs(result[0] + result[1] - exact)
        found = max(found, np.divide(off, np.abs(exact), out=np.zeros_like(off), where=off > 0).max())
    assert f"{found * 4**precision:.3f}" == worst


def test_the_hardest_known_product_of_double_words_in_bfloat16():
    a, b = (1.0078125, 0.0038909912109375), (1.0078125, 0.0038604736328125)
    errors = []
    for x, y in ((a, b), (b, a)):
        exact = total(x) * total(y)
        errors.append(
            float(abs(total(mcf.expansion_mul(mcf.arithmetic("bf16"), x, y)) - exact) / exact) * 2**16
        )
    assert "4.83938" in [f"{error:.5f}" for error in errors]
    assert max(errors) < 5


# -- div, sqrt; two components are a double word ----------------------------------------------------------
def test_two_components_are_computed_with_as_double_words(assert_same):
    """Bit for bit; only the factors of a product are exchanged, to give Collage's Mul."""
    x, y = double_words(BF16, 2**12, seed=21), double_words(BF16, 2**12, seed=22)
    ar = mcf.arithmetic("bf16")
    pairs = [
        (mcf.grow(ar, x, y[0]), double_word.dw_plus_fp(ar, x, y[0])),
        (mcf.expansion_add(ar, x, y), double_word.accurate_dw_plus_dw(ar, x, y)),
        (mcf.expansion_scale(ar, x, y[0]), double_word.dw_times_fp3(ar, x, y[0])),
        (mcf.expansion_mul(ar, x, y), double_word.dw_times_dw2(ar, y, x)),
        (mcf.expansion_div(ar, x, y), double_word.dw_div_dw2(ar, x, y)),
        (mcf.expansion_sqrt(ar, x), double_word.sqrt_dw(ar, x)),
    ]
    for found, expected in pairs:
        for k in range(2):
            assert_same(found[k], expected[k], *x, *y)
    assert not np.array_equal(mcf.expansion_mul(ar, x, y), mcf.expansion_mul(ar, y, x))


def test_quotients_and_roots_of_one_component_are_those_of_numbers(assert_same):
    x, y = (numbers(BF16, 1000, seed=seed, exponents=(-4, 4)) for seed in (23, 24))
    ar = mcf.arithmetic("bf16")
    assert_same(mcf.expansion_div(ar, (x,), (y,))[0], ar.div(x, y), x, y)
    assert_same(mcf.expansion_sqrt(ar, (np.abs(x),))[0], ar.sqrt(np.abs(x)), x)


def test_quotients_and_roots_of_more_than_two_components_are_refused():
    ar, x = mcf.arithmetic("bf16"), (1.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="an expansion of 3 components cannot be divided; allowed: 1 or 2"):
        mcf.expansion_div(ar, x, x)
    with pytest.raises(
        ValueError, match="of 3 components cannot be put under a square root; allowed: 1 or 2"
    ):
        mcf.expansion_sqrt(ar, x)


# -- three and four components ----------------------------------------------------------------------------
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("precision", [8, 11])
def test_the_error_of_longer_expansions_is_of_the_order_of_u_to_the_n(precision, n):
    """By 4 u**n of the product, or of the sum of magnitudes."""
    fmt = unbounded(precision)
    ar, bound, rng = mcf.arithmetic(fmt), 4 * Fraction(1, 2 ** (n * precision)), np.random.default_rng(n)
    reals = [
        Fraction(int(rng.integers(2**62)), 2**61) - 1 + Fraction(int(rng.integers(2**62)), 2**124)
        for _ in range(300)
    ]
    reals = [v * Fraction(2) ** int(rng.integers(-3, 4)) for v in reals]
    x, y = (
        tuple(map(np.array, zip(*(mcf.expand(ar, v, n) for v in part), strict=True)))
        for part in (reals[::2], reals[1::2])
    )
    columns = [list(zip(*e, strict=True)) for e in (x, y)]
    first, second = ([total(c) for c in column] for column in columns)
    numbers_ = [Fraction(v) for v in y[0].tolist()]
    for result, exact, size in (
        (mcf.grow(ar, x, y[0]), [a + b for a, b in zip(first, numbers_, strict=True)], "sum"),
        (mcf.expansion_add(ar, x, y), [a + b for a, b in zip(first, second, strict=True)], "sum"),
        (mcf.expansion_scale(ar, x, y[0]), [a * b for a, b in zip(first, numbers_, strict=True)], "product"),
        (mcf.expansion_mul(ar, x, y), [a * b for a, b in zip(first, second, strict=True)], "product"),
    ):
        assert len(result) == n
        off = [abs(total(c) - e) for c, e in zip(zip(*result, strict=True), exact, strict=True)]
        sizes = (
            [abs(a) + abs(b) for a, b in zip(first, second, strict=True)]
            if size == "sum"
            else map(abs, exact)
        )
        assert all(o <= bound * s for o, s in zip(off, sizes, strict=True))
        assert any(off)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("fmt", [BF16, FORMATS["float16"]], ids=label)
def test_renormalizing_keeps_the_sum_exactly(fmt, n):
    rng = np.random.default_rng(n)
    parts = tuple(numbers(fmt, 500, seed=n + i, exponents=(-9, 9)) for i in range(n))
    parts = tuple(np.where(rng.random(500) < 0.1, 0.0, part) for part in parts)
    result = mcf.renormalize(mcf.arithmetic(fmt), parts)
    assert len(result) == n
    for before, after in zip(zip(*parts, strict=True), zip(*result, strict=True), strict=True):
        assert total(after) == total(before)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_renormalizing_leaves_each_component_the_rounding_of_itself_and_the_next(n):
    parts = tuple(numbers(BF16, 20_000, seed=90 + n + i, exponents=(-9, 9)) for i in range(n))
    known = [np.full(1, part) for part in (-507904.0, 679936.0, 68608.0, *(0.0,) * (n - 3))][:n]
    parts = tuple(np.concatenate([part, extra]) for part, extra in zip(parts, known, strict=True))
    ar = mcf.arithmetic("bf16")
    result = mcf.renormalize(ar, parts)
    for component, following in itertools.pairwise(result):
        assert (ar.add(component, following) == component).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_renormalizing_without_cancellation_puts_the_sum_or_a_neighbour_in_front(n):
    parts = tuple(np.abs(numbers(BF16, 500, seed=n + i, exponents=(-9, 9))) for i in range(n))
    first = mcf.renormalize(mcf.arithmetic("bf16"), parts)[0]
    sums = [total(column) for column in zip(*parts, strict=True)]
    rounded = np.array([round_fraction(v, BF16) for v in sums])
    assert (first >= mcf.codec.next_down(rounded, BF16)).all()
    assert (first <= mcf.codec.next_up(rounded, BF16)).all()


def test_renormalizing_two_components_is_two_sum(assert_same):
    a, b = numbers(BF16, SIZE, seed=1, exponents=(-9, 9)), numbers(BF16, SIZE, seed=2, exponents=(-9, 9))
    ar = mcf.arithmetic("bf16")
    for ours, plain in zip(mcf.renormalize(ar, (a, b)), mcf.two_sum(ar, a, b), strict=True):
        assert_same(ours, plain)


# -- on every arithmetic ----------------------------------------------------------------------------------
def operations(ar, x, y):
    return {
        "grow": mcf.grow(ar, x, y[0]),
        "ordered grow": mcf.grow(ar, x, y[0], ordered=True),
        "add": mcf.expansion_add(ar, x, y),
        "scale": mcf.expansion_scale(ar, x, y[0]),
        "mul": mcf.expansion_mul(ar, x, y),
        "renormalize": mcf.renormalize(ar, x),
    }


@pytest.mark.parametrize("n", [1, 2, 3])
def test_large_arrays_give_the_bits_of_small_ones(n, assert_same):
    x = tuple(numbers(BF16, BLOCK + 99, seed=i, exponents=(-9 * i, 1 - 9 * i)) for i in range(n))
    y = tuple(part[::-1].copy() for part in x)
    ar, threads = mcf.arithmetic("bf16"), mcf.arithmetic("bf16", threads=2)
    whole, shared = operations(ar, x, y), operations(threads, x, y)
    pieces = [operations(ar, *(tuple(part[i::7] for part in e) for e in (x, y))) for i in range(7)]
    for name, result in whole.items():
        for k in range(n):
            assert_same(shared[name][k], result[k])
            for i in range(7):
                assert_same(pieces[i][name][k], result[k][i::7])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_exact_arithmetic_runs_the_same_texts_without_error(n):
    exact = mcf.arithmetic(None, backend="exact")
    x = tuple(0.75 * 2.0 ** (-9 * i) for i in range(n))
    y = tuple(-1.25 * 2.0 ** (-9 * i) for i in range(n))
    results = {name: total_mpf(result) for name, result in operations(exact, x, y).items()}
    sums, products = total(x) + total(y), total(x) * total(y)
    assert results["grow"] == results["ordered grow"] == total(x) + Fraction(y[0])
    assert results["add"] == sums
    assert results["scale"] == total(x) * Fraction(y[0])
    assert results["renormalize"] == total(x)
    if n == 1:
        assert results["mul"] == products
    elif n == 2:  # Collage's Mul leaves the product of the second components out
        assert results["mul"] == products - Fraction(x[1]) * Fraction(y[1])


def total_mpf(x):
    return sum((mcf.expansion.to_fraction(part) for part in x), Fraction(0))


@pytest.mark.parametrize("function", [mcf.expansion_add, mcf.expansion_mul, mcf.expansion_div])
def test_expansions_of_different_lengths_are_refused(function):
    with pytest.raises(ValueError, match="expansions of 2 and 3 components"):
        function(mcf.arithmetic("bf16"), (1.0, 0.0), (1.0, 0.0, 0.0))
