"""Inputs on which other emulators are known to go wrong, each with the reason for its right result."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, ulp
from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import operate, round_float, round_fraction, same
from mcfsim.rounding import DETERMINISTIC, Rounding, Rule
from mcfsim.scaled import quantize
from tests.oracle.operands import SMALL_FORMATS, label

# Operation, format, mode, operands, result. In comments, what another way of computing it gives.
OPERATIONS = [
    (
        "fma",
        "bf16",
        "nearest_even",
        (1.0625, 1.0625, 2.0**-100),
        1.1328125,
    ),  # a wider fma: 1.125, a tie to even
    ("fma", "bf16", "nearest_even", (7.0, 37.0, -(2.0**-20)), 258.0),  # by way of float32: 260
    ("fma", "bf16", "nearest_even", (7.0, 37.0, -(2.0**-50)), 258.0),  # by way of float64: 260
    ("fma", "fp16", "nearest_even", (320.0, 128.25, 2.0**-24), 41056.0),  # 0x1.40cp15: just above a tie
    ("fma", "e5m2", "nearest_even", (12.0, 24.0, 2.0**-16), 320.0),  # by way of float32: 256
    ("add", "bf16", "toward_zero", (1.0, -(2.0**-60)), 0.99609375),  # a carrier to nearest: 1
    ("add", "bf16", "up", (1.0, 2.0**-60), 1.0078125),  # a carrier to nearest: 1
    ("add", "bf16", "to_odd", (1.0, 2.0**-60), 1.0078125),  # a carrier to nearest: 1
    ("mul", "tf32", "nearest_even", (1044 * 2.0**-79, 2009 * 2.0**-79), 2.0**-136),  # in float32: 0
    ("add", "e4m3fn", "nearest_even", (416.0, 15.0), 416.0),  # by way of bfloat16: 448
    ("sqrt", "e4m3fn", "nearest_even", (240.0,), 15.0),  # by way of bfloat16: 16
    ("mul", "bf16", "nearest_even", (129 * 2.0**-70, 255 * 2.0**-79), 2.0**-133),  # flushing to zero: 0
    ("sub", "bf16", "nearest_even", (1.5 * 2.0**-126, 2.0**-126), 2.0**-127),  # flushing to zero: 0
]
# Format, mode, number, result.
ROUNDINGS = [
    ("bf16", "nearest_even", 1 + 2.0**-8 + 2.0**-40, 1.0078125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 1 + 2.0**-4 + 2.0**-40, 1.125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 464.0, 448.0),  # half-way to the 480 that there is not, and 448 is even
    ("e4m3fn", "nearest_even", 465.0, math.nan),
    ("fp16", "nearest_even", 65519.99, 65504.0),
    ("fp16", "nearest_even", 65520.0, math.inf),
    ("fp16", "nearest_even", 65536.0, math.inf),  # a carry past the largest exponent that is lost: 0
    ("fp16", "nearest_even", 131071.0, math.inf),
    ("fp16", "nearest_even", 2.0**-25, 0.0),
    ("fp16", "nearest_even", 2.0**-25 * (1 + 2.0**-30), 2.0**-24),
    ("fp16", "toward_zero", math.nextafter(8.0, 0.0), 7.99609375),
    ("fp16", "up", -(2.0**-30), -0.0),
]
WRONG_BY_LIBRARIES = [("bfloat16", 1 + 2.0**-8 + 2.0**-40), ("float8_e4m3fn", 1 + 2.0**-4 + 2.0**-40)]


@pytest.mark.parametrize(("name", "fmt", "mode", "operands", "expected"), OPERATIONS)
def test_operation(name, fmt, mode, operands, expected):
    ar = mcf.arithmetic(fmt, mode)
    assert same(getattr(ar, name)(*operands), expected)
    assert same(getattr(ar, name)(*(np.array([x]) for x in operands)), [expected]).all()
    assert same(operate(name, operands, mcf.get_format(fmt), Rounding(mode)), expected)


@pytest.mark.parametrize(("fmt", "mode", "number", "expected"), ROUNDINGS)
def test_rounding(fmt, mode, number, expected):
    assert same(mcf.round_to(number, fmt, mode), expected)
    assert same(mcf.round_to(np.array([number, -number]), fmt, mode)[0], expected)
    assert same(round_float(number, mcf.get_format(fmt), Rounding(mode)), expected)


@pytest.mark.parametrize("number", [465.0, 1e300, 2**2000])
def test_a_saturating_overflow_gives_the_maximum_and_keeps_nan_and_infinity_apart(number):
    assert mcf.round_to(number, "e4m3fn", overflow="saturate") == 448.0
    assert mcf.round_to(-number, "e4m3fn", overflow="saturate") == -448.0
    rounded = mcf.round_to(np.array([np.inf, -np.inf, np.nan]), "e4m3fn", overflow="saturate")
    assert np.isnan(rounded).all()


def test_an_int64_does_not_pass_through_float32():
    number = 2**32 + 2**24 + 1
    assert np.float32(number) == 2**32 + 2**24  # a tie of bfloat16
    for source in (np.array([number]), np.array([number], np.uint64), number, np.int64(number)):
        assert mcf.round_to(source, "bf16") == 2**32 + 2**25


def test_an_int64_does_not_pass_through_float64():
    number = 2**62 + 2**54 + 1
    assert float(number) == 2**62 + 2**54  # a tie of bfloat16
    for source in (np.array([number]), np.array([number], np.uint64), number, np.int64(number)):
        assert mcf.round_to(source, "bf16") == 2**62 + 2**55


@pytest.mark.parametrize(("name", "number"), WRONG_BY_LIBRARIES)
def test_ml_dtypes_rounds_a_float64_twice_and_is_no_oracle_for_it(name, number):
    fmt = FORMATS[name]
    cast = np.array([number]).astype(getattr(ml_dtypes, name)).astype(np.float64)
    assert cast == 1.0
    assert mcf.round_to(np.array([number]), fmt) == round_float(number, fmt) == 1 + 2.0 ** (1 - fmt.precision)


@pytest.mark.parametrize(
    "fmt", [*SMALL_FORMATS, *(FORMATS[name] for name in ("bfloat16", "float16", "tf32"))], ids=label
)
def test_adding_to_the_bits_of_a_nan_makes_no_number(fmt):
    patterns = np.array([0x7FFFFFFF, 0x7F800001], np.uint32)
    for mode in DETERMINISTIC:
        assert np.isnan(mcf.round_to(patterns.view(np.float32), fmt, mode)).all()


def test_e4m3_has_three_maxima():
    maxima = {name: float(mcf.get_format(name).max) for name in ("e4m3fn", "e4m3")}
    assert maxima == {"e4m3fn": 448.0, "e4m3": 240.0}
    assert Format(precision=4, emin=-6, emax=8, specials="none").max == 480
    assert float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max) == 448
    assert float(ml_dtypes.finfo(ml_dtypes.float8_e4m3).max) == 240


@pytest.mark.parametrize("fmt", [FORMATS[name] for name in ("bfloat16", "float16", "float8_e5m2")], ids=label)
def test_exponents_beside_powers_of_two_are_not_those_of_a_rounded_logarithm(fmt):
    """In binary64 log2 of the number below a power of two is that power's exponent."""
    for exponent in range(max(fmt.emin, -1000), fmt.emax):
        below = math.nextafter(2.0**exponent, 0.0)
        largest_below = float(2 * (1 - fmt.unit_roundoff) * Fraction(2) ** (exponent - 1))
        if exponent > fmt.emin:
            assert mcf.round_to(np.array([below]), fmt, "toward_zero") == largest_below
        assert mcf.round_to(np.array([below]), fmt) == 2.0**exponent


def test_precision_24_cuts_no_bits_of_float32():
    """A shift by the width of the significand is undefined in C."""
    narrow = Format(precision=24, emin=-14, emax=15)
    x = np.random.default_rng(1).integers(0, 2**32, 2**16, dtype=np.uint32).view(np.float32)
    inside = np.isfinite(x) & (np.abs(x) >= 2.0**-14) & (np.abs(x) < 2.0**16)
    assert inside.any()
    for mode in DETERMINISTIC:
        assert np.array_equal(mcf.round_to(x[inside], narrow, mode), x[inside])


def test_underflow_follows_the_format_and_leaves_the_sign():
    """2**-140 lies below half of bfloat16's smallest number, 2**-133."""
    for mode, expected in {
        "nearest_even": 0.0,
        "toward_zero": 0.0,
        "up": 2.0**-133,
        "to_odd": 2.0**-133,
    }.items():
        assert same(mcf.round_to(2.0**-140, "bf16", mode), expected)
    assert same(mcf.round_to(-(2.0**-140), "bf16"), -0.0)


def test_a_representable_number_stays_in_every_mode():
    x = np.float32([1.0, -1.0078125, 2.0**-133, 3.3895313892515355e38, 0.0])
    for mode in DETERMINISTIC:
        assert same(mcf.round_to(x, "bf16", mode), x).all()


def test_a_python_number_is_not_rounded_to_the_format_unless_that_is_asked_for():
    """With 1.004 rounded to 1.0078125 first the product is 3.0234375, a tie that goes to 3.03125."""
    three = np.float32([3.0])
    assert mcf.arithmetic("bf16").mul(three, 1.004) == round_fraction(
        3 * Fraction(1.004), FORMATS["bfloat16"]
    )
    assert mcf.arithmetic("bf16").mul(three, 1.004) == 3.015625
    assert mcf.arithmetic("bf16", scalars="rounded").mul(three, 1.004) == 3.03125


def test_gradual_underflow_keeps_sums_exact():
    """A sum below 2**(emin + 1) is a multiple of the smallest number, and so exact, unless it is flushed."""
    ar = mcf.arithmetic("bf16")
    a, b = np.float32([1.5 * 2.0**-126]), np.float32([-(2.0**-126)])
    assert [x.tolist() for x in mcf.two_sum(ar, a, b)] == [[2.0**-127], [0.0]]


def test_the_product_of_expansions_is_not_made_in_place():
    """The released code of Collage keeps the residual twice, and multiplies by b (2 b - 1) instead of b."""
    ar = mcf.arithmetic("bf16")
    b, v = mcf.expand(ar, Fraction("0.95"), 2), (np.float32([1.0]), np.float32([0.0]))
    high, low = mcf.expansion_mul(ar, b, v)
    assert Fraction(float(high[0])) + Fraction(float(low[0])) == Fraction(b[0]) + Fraction(b[1])
    assert (v[0], v[1]) == (1.0, 0.0)


def test_a_second_moment_in_bfloat16_does_not_decay_at_0_999():
    """For every significand 0.999 v rounds back to v."""
    v = np.arange(128, 256, dtype=np.float32)
    decayed = mcf.arithmetic("bf16").mul(v, 0.999)
    moved = v[decayed != v]
    expected = [
        x for x in v.tolist() if round_fraction(Fraction(x) * Fraction(0.999), FORMATS["bfloat16"]) != x
    ]
    assert moved.tolist() == expected == []


def test_a_step_counter_in_bfloat16_sticks_at_256():
    ar = mcf.arithmetic("bf16")
    count = 0.0
    for _ in range(300):
        count = ar.add(count, 1.0)
    assert count == 256.0


# -- carriers ---------------------------------------------------------------------------------------------
def test_products_of_tf32_are_not_made_in_float32():
    """The product exceeds half of the smallest number of tf32, but in float32 it is just that half, a tie."""
    a, b = np.float32([1044 * 2.0**-79]), np.float32([2009 * 2.0**-79])
    assert mcf.round_to(a * b, "tf32") == 0
    tf32 = FORMATS["tf32"]
    assert round_fraction(Fraction(1044 * 2009, 2**158), tf32) == mcf.arithmetic(tf32).mul(a, b) == 2.0**-136


def test_an_fma_of_float32_serves_e4m3fn_but_not_e5m2():
    rng = np.random.default_rng(1)
    for name, serves in (("float8_e4m3fn", True), ("float8_e5m2", False)):
        numbers = all_values(name)
        numbers = numbers[np.isfinite(numbers)]
        a, b, c = rng.choice(numbers, (3, 2**16))
        fused = mcf.arithmetic(name).fma(a, b, c)
        by_float32 = mcf.round_to(a * b + c, name)  # the product of 8 bits is exact
        assert a.dtype == fused.dtype == np.float32
        assert same(fused, by_float32).all() == serves
        operands = np.stack([a, b, c], axis=1)[:99].tolist()
        assert same(fused[:99], [operate("fma", triple, FORMATS[name]) for triple in operands]).all()


@pytest.mark.parametrize("p", [3, 4, 8, 11])
def test_a_root_may_pass_through_2_p_and_2_more_bits_but_not_one_less(p):
    """With 2 p + 1 bits the root of the number below 4 becomes a tie."""
    fmt = Format(precision=p, emin=-14, emax=15)
    x = all_values(fmt)
    x = x[(x >= 1) & (x < 4)]
    expected = [operate("sqrt", (number,), fmt) for number in x.tolist()]
    assert same(mcf.arithmetic(fmt).sqrt(x), expected).all()
    for q, wrong in ((2 * p + 2, []), (2 * p + 1, [4 - 2.0 ** (2 - p)])):
        wide = mcf.arithmetic(Format(precision=q, emin=-14, emax=15))
        twice = mcf.round_to(wide.sqrt(x), fmt)
        assert x[twice != expected].tolist() == wrong


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_nothing_is_shifted_by_the_width_of_the_word(mode, assert_same):
    """Of 24 bits in float32 and 53 in float64 none is cut off; with a bit less in the format one is."""
    rng = np.random.default_rng(2)
    for bits, dtype in ((24, np.float32), (53, np.float64)):
        x = (rng.uniform(0.25, 4, 500) * rng.choice([-1, 1], 500)).astype(dtype)
        assert_same(mcf.round_to(x, Format(precision=bits, emin=-10, emax=10), mode), x)
        narrow = Format(precision=bits - 1, emin=-10, emax=10)
        by_definition = [round_float(number, narrow, Rounding(mode)) for number in x.tolist()]
        assert_same(mcf.round_to(x, narrow, mode), by_definition, x)


# -- exponents --------------------------------------------------------------------------------------------
def around_powers_of_two(dtype):
    """Return the exponents of the normal numbers, their powers of two and the numbers below and above."""
    info = np.finfo(dtype)
    exponents = np.arange(info.minexp, info.maxexp)
    powers = np.ldexp(dtype(1), exponents)
    return exponents, np.nextafter(powers, dtype(0)), powers, np.nextafter(powers, dtype(np.inf))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_ulp_beside_every_power_of_two_is_not_that_of_a_rounded_logarithm(dtype):
    """The logarithm of the number below a power of two rounds to the exponent of that, for nearly all."""
    exponents, below, powers, above = around_powers_of_two(dtype)
    with np.errstate(all="ignore"):
        assert np.mean(np.floor(np.log2(below)) == exponents) > 0.9
    fmt = FORMATS[np.dtype(dtype).name]
    own = np.ldexp(1.0, np.maximum(exponents - fmt.precision + 1, -1074))
    lower = np.ldexp(1.0, np.maximum(exponents - 1, fmt.emin) - fmt.precision + 1)
    assert same(ulp(powers, fmt), own).all()
    assert same(ulp(above, fmt), own).all()
    assert same(ulp(below, fmt), lower).all()


def test_the_scale_beside_every_power_of_two_is_not_that_of_a_rounded_logarithm():
    """By the rule floor, of e4m3fn with the maximum 448: the exponent of the largest magnitude, less 8."""
    exponents, below, powers, above = around_powers_of_two(np.float32)
    for x, exponent in ((below, exponents - 1), (powers, exponents), (above, exponents)):
        scale = quantize(x[:, None], "mxfp8_e4m3", rule="floor").scale.ravel()
        assert np.array_equal(scale, np.ldexp(1.0, np.maximum(exponent - 8, -127)))


# -- overflow and underflow -------------------------------------------------------------------------------
def test_no_carry_past_the_largest_exponent_of_float16_is_lost():
    x = np.arange(65520, 131072, dtype=np.float32)
    for number in (x, -x, x.astype(np.float64)):
        assert np.array_equal(mcf.round_to(number, "float16"), np.copysign(np.inf, number))
        assert np.array_equal(mcf.round_to(number, "float16", "toward_zero"), np.copysign(65504, number))


@pytest.mark.parametrize(
    ("underflow", "expected"),
    {
        "gradual": 2.0**-127,
        "flush_inputs": math.nan,
        "flush_before": math.nan,
        "flush_after": math.nan,
    }.items(),
)
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
def test_in_e8m0_a_number_below_the_smallest_follows_the_named_policy(mode, underflow, expected):
    """e8m0 has no zero, so that what is flushed is NaN; and 2**-140 is no value of it."""
    rounding = Rounding(mode, underflow=underflow)
    assert same(mcf.round_to(2.0**-140, "e8m0fnu", rounding), expected)
    assert same(mcf.round_to(np.float32([2.0**-140]), "e8m0fnu", rounding), [expected]).all()
    assert same(round_float(2.0**-140, FORMATS["float8_e8m0fnu"], rounding), expected)


def test_flushing_to_zero_has_three_meanings():
    """In float16: of a sum with a small operand, a small difference, and a product just below 2**-14."""
    small, least = 3 * 2.0**-24, 2.0**-14
    results = {"gradual": [], "flush_inputs": [], "flush_before": [], "flush_after": []}
    for underflow, found in results.items():
        ar = mcf.arithmetic("float16", underflow=underflow)
        found.append(ar.add(small, least))
        found.append(ar.sub(1.5 * least, least))
        found.append(ar.mul((1 + 2.0**-10) * 2.0**-7, (1 - 2.0**-10) * 2.0**-7))  # 2**-14 once rounded
    assert results == {
        "gradual": [least + small, least / 2, least],
        "flush_inputs": [least, least / 2, least],
        "flush_before": [least + small, 0.0, 0.0],
        "flush_after": [least + small, 0.0, least],
    }


def test_a_posit_is_rounded_by_its_string_of_bits_and_not_to_the_nearer_of_2_to_the_20_and_24():
    """posit8 has its boundary there at 2**22, which the next bit of the string stands for: no mean."""
    numbers = [2.0**22, math.nextafter(2.0**22, math.inf), 2.0**23]
    assert mcf.round_to(np.array(numbers), "posit8").tolist() == [2.0**20, 2.0**24, 2.0**24]
    assert [round_float(number, mcf.get_format("posit8")) for number in numbers] == [
        2.0**20,
        2.0**24,
        2.0**24,
    ]


# -- stochastic rounding ----------------------------------------------------------------------------------
def ups(number, fmt, bits, **policy):
    """Return how many of all draws of so many bits move a positive number up, and where to."""
    words = (np.arange(2**bits, dtype=np.uint64) << np.uint64(32 - bits)).astype(np.uint32)
    rounding = Rounding("stochastic", random_bits=bits, **policy)
    rounded = mcf.round_to(np.full(words.size, number), fmt, rounding, random=words)
    moved = rounded[~(rounded <= number)]
    return moved.size, set(moved.tolist())


@pytest.mark.parametrize("rule", Rule)
def test_a_representable_number_stays_for_every_draw(rule):
    for number in (0.0, 2.0**-24, 5 * 2.0**-24, 1.0, 1 + 2.0**-10, 65504.0):
        assert ups(number, "float16", 8, rule=rule) == (0, set())


@pytest.mark.parametrize("k", [0, 1, 100, 255])
def test_a_number_below_the_smallest_goes_up_with_its_exact_probability(k):
    """Not always, and not never."""
    number = (k / 256) * 2.0**-24
    assert ups(number, "float16", 8) == (k, {2.0**-24} if k else set())


def test_stochastic_overflow_has_three_rules():
    """A quarter of a quantum above the maximum of e5m2, 57344: never, a quarter, or half of the draws."""
    number = 57344 + 2.0**13 / 4
    assert ups(number, "e5m2", 8, overflow="saturate") == (0, set())
    assert ups(number, "e5m2", 8, overflow="ieee") == (64, {math.inf})
    assert ups(number, "e5m2", 8, overflow="nearest_boundary") == (128, {math.inf})


@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 16), ("float16", 13)])
def test_so_many_random_bits_are_exact_for_a_float32(fmt, bits):
    """As many as its significand of 24 bits has beyond the 8 or 11 of the format."""
    fraction = 2 ** (bits - 1) + 12345 % 2 ** (bits - 1)
    number = np.float32(1 + fraction * 2.0**-23)
    assert float(number) == 1 + fraction * 2.0**-23
    assert ups(number, fmt, bits) == (fraction, {1 + 2.0 ** (bits - 23)})


def test_no_call_starts_its_random_words_over_and_no_two_tensors_share_them():
    x = np.full(1000, 1 + 2.0**-8, np.float32)
    ar = mcf.arithmetic("bfloat16", "stochastic", random=mcf.RandomWords(1))
    first, second = ar.round(x), ar.round(x)
    assert (first != second).any()
    streams = [mcf.round_to(x, "bf16", "stochastic", random=mcf.RandomWords(1).of(s)) for s in (0, 1)]
    assert (streams[0] != streams[1]).any()
    assert same(first, streams[0]).all()
    assert same(second, streams[1]).all()
