"""Results that are right by hand, of the emulator and of the oracle; other emulators go wrong on many."""

import math
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import ulp
from mcfsim.formats import FORMATS
from mcfsim.oracle import operate, operate_integers, round_float, round_fraction, round_integers, same
from mcfsim.rounding import Rounding
from mcfsim.scaled import quantize

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
    # Directed sums of numbers that are far apart.
    ("add", "bf16", "down", (1.0, -(2.0**-133)), 0.99609375),
    ("add", "bf16", "down", (-1.0, -(2.0**-133)), -1.0078125),
    ("sub", "bf16", "up", (1.0, 2.0**-133), 1.0),
    # 2/3 in 8 bits, from below and above; 1/3 by its neighbours, and the root of 2.
    ("div", "bf16", "down", (2.0, 3.0), 170 / 256),
    ("div", "bf16", "up", (2.0, 3.0), 171 / 256),
    ("div", "bf16", "nearest_even", (1.0, 3.0), 171 / 512),
    ("sqrt", "bf16", "down", (2.0,), 181 / 128),
    ("sqrt", "bf16", "up", (2.0,), 182 / 128),
    ("sqrt", "bf16", "to_odd", (2.0,), 181 / 128),
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
    ("bf16", "nearest_even", 2.0**32 + 2**24 + 1, 2.0**32 + 2**25),  # by way of float32: 2**32
    ("e4m3fn", "nearest_away", 464.0, math.nan),
    ("e4m3fnuz", "up", -(2.0**-30), 0.0),
    ("e4m3fnuz", "nearest_even", -0.0, 0.0),
    ("e4m3fn", "nearest_even", -0.0, -0.0),
    ("e4m3", "nearest_even", 248.0, math.inf),
    ("e4m3b11fnuz", "nearest_even", 31.5, math.nan),
    ("e2m1fn", "nearest_even", 5.0, 4.0),
    ("e2m1fn", "nearest_even", 100.0, 6.0),
    ("e2m1fn", "nearest_even", -0.25, -0.0),
    ("e2m1fn", "nearest_away", -0.25, -0.5),
    ("fp16", "nearest_even", 2.0**-25, 0.0),
    ("fp16", "nearest_away", 2.0**-25, 2.0**-24),
    ("fp16", "down", -(2.0**-1074), -(2.0**-24)),
    ("fp16", "to_odd", 2.0**-1074, 2.0**-24),
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
    (E8M0, "nearest_even", -3.0, math.nan),
    (E8M0, "nearest_even", -3.0, 2.0**-127, SATURATE),
    (E8M0, "nearest_even", 3.0, 4.0),
    ("binary8p3uf", "nearest_even", -3.0, 0.0, SATURATE),
    # Of one significant bit, whose last is that of the exponent: 2, 4 and 8 have the codes 65, 66 and 67.
    ("binary8p1se", "nearest_even", 3.0, 4.0),
    ("binary8p1se", "nearest_even", -6.0, -4.0),
    ("binary8p1se", "to_odd", 2.5, 2.0),
    ("binary8p1se", "to_odd", -5.0, -8.0),
    ("binary8p1se", "nearest_away", 3.0, 4.0),
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


@pytest.mark.parametrize(("name", "fmt", "mode", "operands", "expected"), OPERATIONS)
def test_operation(name, fmt, mode, operands, expected):
    ar = mcf.arithmetic(fmt, mode)
    assert same(getattr(ar, name)(*operands), expected)
    assert same(getattr(ar, name)(*(np.array([x]) for x in operands)), [expected]).all()
    fmt, rounding = mcf.get_format(fmt), Rounding(mode)
    assert same(operate(name, operands, fmt, rounding), expected)
    assert same(operate_integers(name, *operands, fmt=fmt, rounding=rounding), expected)


@pytest.mark.parametrize("case", ROUNDINGS, ids=lambda case: "-".join(map(str, case[:3])))
def test_rounding(case):
    fmt, mode, number, expected, policies = [*case, {}][:5]
    rounding = Rounding(mode, **policies)
    assert same(mcf.round_to(number, fmt, rounding), expected)
    assert same(mcf.round_to(np.array([number, -number]), fmt, rounding)[0], expected)
    assert same(round_float(number, mcf.get_format(fmt), rounding), expected)
    if "posit" not in fmt:
        assert same(round_integers(number, mcf.get_format(fmt), rounding), expected)


@pytest.mark.parametrize(
    ("number", "cast", "expected"),
    [(2**32 + 2**24 + 1, np.float32, 2**32 + 2**25), (2**62 + 2**54 + 1, float, 2**62 + 2**55)],
)
def test_an_int64_does_not_pass_through_a_float(number, cast, expected):
    assert cast(number) == number - 1  # a tie of bfloat16
    for source in (np.array([number]), np.array([number], np.uint64), number, np.int64(number)):
        assert mcf.round_to(source, "bf16") == expected
    assert round_fraction(Fraction(number), FORMATS["bfloat16"]) == expected


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
