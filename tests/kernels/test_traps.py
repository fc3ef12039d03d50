"""Inputs on which other emulators are known to go wrong, each with the reason for its right result."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import all_values, ulp
from mcfsim.formats import FORMATS, Format
from mcfsim.oracle import operate, round_float, same
from mcfsim.rounding import Rounding
from mcfsim.scaled import quantize
from tests.oracle.operands import label

# Operation, format, mode, operands, result. In comments, what another way of computing it gives.
OPERATIONS = [
    # A wider fma: 1.125, a tie to even.
    ("fma", "bf16", "nearest_even", (1.0625, 1.0625, 2.0**-100), 1.1328125),
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
E8M0 = "float8_e8m0fnu"
SATURATE = {"overflow": "saturate"}
# Format, mode, number, result, policies. In comments, what others have.
ROUNDINGS = [
    ("bf16", "nearest_even", 1 + 2.0**-8 + 2.0**-40, 1.0078125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 1 + 2.0**-4 + 2.0**-40, 1.125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 464.0, 448.0),  # half-way to the 480 that there is not, and 448 is even
    ("e4m3fn", "nearest_even", 465.0, math.nan),
    ("e4m3fn", "nearest_even", 465.0, 448.0, SATURATE),
    ("e4m3fn", "nearest_even", -1e300, -448.0, SATURATE),
    ("e4m3fn", "nearest_even", math.inf, math.nan, SATURATE),  # an infinity is never made finite
    ("fp16", "nearest_even", 65519.99, 65504.0),
    ("fp16", "nearest_even", 65520.0, math.inf),
    ("fp16", "nearest_even", 65536.0, math.inf),  # a carry past the largest exponent that is lost: 0
    ("fp16", "nearest_even", 131071.0, math.inf),
    ("fp16", "nearest_even", 2.0**-25, 0.0),
    ("fp16", "nearest_even", 2.0**-25 * (1 + 2.0**-30), 2.0**-24),
    ("fp16", "toward_zero", math.nextafter(8.0, 0.0), 7.99609375),
    ("fp16", "up", -(2.0**-30), -0.0),
    ("bf16", "nearest_even", -(2.0**-140), -0.0),
    ("bf16", "toward_zero", 2.0**-140, 0.0),
    ("bf16", "up", 2.0**-140, 2.0**-133),
    ("bf16", "to_odd", 2.0**-140, 2.0**-133),
    # e8m0 has no zero, so that what is flushed is NaN.
    *((E8M0, mode, 2.0**-140, 2.0**-127) for mode in ("nearest_even", "toward_zero")),
    *((E8M0, "up", 2.0**-140, math.nan, {"underflow": f"flush_{x}"}) for x in ("inputs", "before", "after")),
    # A posit is rounded by its string of bits: between 2**20 and 2**24 the boundary is 2**22, no mean.
    ("posit8", "nearest_even", 2.0**22, 2.0**20),
    ("posit8", "nearest_away", 2.0**22, 2.0**24),
    ("posit8", "nearest_even", math.nextafter(2.0**22, math.inf), 2.0**24),
    ("posit8", "nearest_even", 2.0**23, 2.0**24),
    # From another emulator, pychop 0.6.2.
    ("float16", "nearest_even", 1.9712302 * 2**16, math.inf),  # 0: the exponent field is cut to its largest
    ("float16", "toward_zero", 1.9712302 * 2**16, 65504.0),  # 0
    ("float8_e5m2", "nearest_even", 1.95 * 2**15, math.inf),  # 65536, which is no value of the format
    ("float16", "toward_zero", math.nextafter(32.0, 0), 31.984375),  # 31.96875: log2 was rounded up
    ("bfloat16", "nearest_even", math.nextafter(1.5 * 2.0**-133, 0), 2.0**-133),  # 2**-132: so it was
    ("float8_e5m2", "nearest_away", math.nextafter(1.625, 0), 1.5),  # 1.75: it is nearer to 1.5
    ("float8_e5m2", "to_odd", 96.0, 96.0),  # 112: a value has moved
    ("float16", "nearest_even", 1.001 * 2.0**-25, 2.0**-24),  # 0: just above half of the smallest number
    ("float16", "up", 2.0**-1074, 2.0**-24),  # NaN
]
WRONG_BY_LIBRARIES = [("bfloat16", 1 + 2.0**-8 + 2.0**-40), ("float8_e4m3fn", 1 + 2.0**-4 + 2.0**-40)]


@pytest.mark.parametrize(("name", "fmt", "mode", "operands", "expected"), OPERATIONS)
def test_operation(name, fmt, mode, operands, expected):
    ar = mcf.arithmetic(fmt, mode)
    assert same(getattr(ar, name)(*operands), expected)
    assert same(getattr(ar, name)(*(np.array([x]) for x in operands)), [expected]).all()
    assert same(operate(name, operands, mcf.get_format(fmt), Rounding(mode)), expected)


@pytest.mark.parametrize("case", ROUNDINGS, ids=lambda case: "-".join(map(str, case[:3])))
def test_rounding(case):
    fmt, mode, number, expected, policies = [*case, {}][:5]
    rounding = Rounding(mode, **policies)
    assert same(mcf.round_to(number, fmt, rounding), expected)
    assert same(mcf.round_to(np.array([number, -number]), fmt, rounding)[0], expected)
    assert same(round_float(number, mcf.get_format(fmt), rounding), expected)


@pytest.mark.parametrize(
    ("number", "cast", "expected"),
    [(2**32 + 2**24 + 1, np.float32, 2**32 + 2**25), (2**62 + 2**54 + 1, float, 2**62 + 2**55)],
)
def test_an_int64_does_not_pass_through_a_float(number, cast, expected):
    assert cast(number) == number - 1  # a tie of bfloat16
    for source in (np.array([number]), np.array([number], np.uint64), number, np.int64(number)):
        assert mcf.round_to(source, "bf16") == expected


@pytest.mark.parametrize(("name", "number"), WRONG_BY_LIBRARIES)
def test_ml_dtypes_rounds_a_float64_twice_and_is_no_oracle_for_it(name, number):
    fmt = FORMATS[name]
    cast = np.array([number]).astype(getattr(ml_dtypes, name)).astype(np.float64)
    assert cast == 1.0
    assert mcf.round_to(np.array([number]), fmt) == round_float(number, fmt) == 1 + 2.0 ** (1 - fmt.precision)


@pytest.mark.parametrize("fmt", [FORMATS[name] for name in ("bfloat16", "float16", "float8_e5m2")], ids=label)
def test_exponents_beside_powers_of_two_are_not_those_of_a_rounded_logarithm(fmt):
    """In binary64 log2 of the number below a power of two is that power's exponent."""
    for exponent in range(max(fmt.emin, -1000), fmt.emax):
        below = math.nextafter(2.0**exponent, 0.0)
        largest_below = float(2 * (1 - fmt.unit_roundoff) * Fraction(2) ** (exponent - 1))
        if exponent > fmt.emin:
            assert mcf.round_to(np.array([below]), fmt, "toward_zero") == largest_below
        assert mcf.round_to(np.array([below]), fmt) == 2.0**exponent


def test_the_product_of_expansions_is_not_made_in_place():
    """The released code of Collage keeps the residual twice, and multiplies by b (2 b - 1) instead of b."""
    ar = mcf.arithmetic("bf16")
    b, v = mcf.expand(ar, Fraction("0.95"), 2), (np.float32([1.0]), np.float32([0.0]))
    high, low = mcf.expansion_mul(ar, b, v)
    assert Fraction(float(high[0])) + Fraction(float(low[0])) == Fraction(b[0]) + Fraction(b[1])
    assert (v[0], v[1]) == (1.0, 0.0)


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


# -- policies ---------------------------------------------------------------------------------------------
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


def test_no_call_starts_its_random_words_over_and_no_two_tensors_share_them():
    x = np.full(1000, 1 + 2.0**-8, np.float32)
    ar = mcf.arithmetic("bfloat16", "stochastic", random=mcf.RandomWords(1))
    first, second = ar.round(x), ar.round(x)
    assert (first != second).any()
    streams = [mcf.round_to(x, "bf16", "stochastic", random=mcf.RandomWords(1).of(s)) for s in (0, 1)]
    assert (streams[0] != streams[1]).any()
    assert same(first, streams[0]).all()
    assert same(second, streams[1]).all()
