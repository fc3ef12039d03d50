"""Results of others, and by hand: of the emulator, and of the oracle that judges it elsewhere.

gfloat's in its modes; ml_dtypes and NumPy are in `test_rounding` and `test_backends`. What it rounds
otherwise than IEEE 754 is left out. By hand: what other emulators go wrong on.
"""

import itertools
import math
from dataclasses import replace
from functools import cache

import gfloat
import numpy as np
import pytest
from gfloat import RoundMode, formats

from mcfsim import arithmetic, round_to
from mcfsim.formats import FORMATS, Parity, get_format, p3109
from mcfsim.oracle import operate, operate_integers, round_float, round_integers, same
from mcfsim.rounding import Mode, Overflow, Rounding, Rule
from tests.oracle.operands import count, label, magnitudes
from tests.shared.formats import hard_numbers, p3109_formats, p3109_of_gfloat

E8M0 = FORMATS["float8_e8m0fnu"]
SHORT = ("6_e3m2", "6_e2m3", "4_e2m1")
INFO = {
    **{FORMATS[f"float{x}fn"]: getattr(formats, f"format_info_ocp_{x[2:]}") for x in SHORT},
    **{FORMATS[f"float{bits}"]: getattr(formats, f"format_info_binary{bits}") for bits in (16, 32)},
    FORMATS["float8_e5m2"]: formats.format_info_ocp_e5m2,
    FORMATS["float8_e4m3fn"]: formats.format_info_ocp_e4m3,
    FORMATS["bfloat16"]: formats.format_info_bfloat16,
    replace(E8M0, parity=Parity.CODE): formats.format_info_ocp_e8m0,  # where 2 of 1, 2, 4 is even
}
MODES = {
    Mode.TOWARD_ZERO: RoundMode.TowardZero,
    Mode.UP: RoundMode.TowardPositive,
    Mode.DOWN: RoundMode.TowardNegative,
    Mode.NEAREST_EVEN: RoundMode.TiesToEven,
    Mode.NEAREST_AWAY: RoundMode.TiesToAway,
}
RULES = {
    Rule.NEAREST_FIRST: RoundMode.Stochastic,
    Rule.CENTRED: RoundMode.StochasticFast,
    Rule.TRUNCATE: RoundMode.StochasticFastest,
}
OVERFLOWS = (Overflow.IEEE, Overflow.SATURATE)
P3109 = {fmt: p3109_of_gfloat(fmt) for fmt in p3109_formats(range(3, 9))}
WIDE_P3109 = {
    p3109(bits, precision): formats.format_info_p3109(bits, precision)
    for bits, precision in ((10, 1), (12, 4), (14, 13), (16, 8), (16, 11))
}
ALL = INFO | P3109 | WIDE_P3109


@cache
def between(fmt, steps):
    """Return numbers of a format, what divides the gap above each into so many steps, also the last one's."""
    size = count(fmt)
    places = np.arange(min(size, 300))
    if size > 300:
        inner = np.random.default_rng(1).integers(0, size, 300)
        places = np.unique(np.concatenate([places, inner, size - 1 - places]))
    numbers = magnitudes(fmt, places)
    above = np.append(magnitudes(fmt, places[:-1] + 1), float(fmt.max) + float(fmt.max / fmt.max_significand))
    share = np.arange(0, 1, 1 / steps)
    return np.unique(numbers[:, None] + (above - numbers)[:, None] * share)


def comparable(x, fmt, saturates):
    """Return the numbers about which gfloat and we mean the same; the definition says the others."""
    if saturates or not fmt.has_nan:
        x = x[~np.isinf(x)]
    if not fmt.signed:
        x = x[~(np.signbit(x) & (x != 0))]
    if not fmt.has_nan and not saturates:
        x = x[~(np.abs(x) > float(fmt.max))]
    if not fmt.zero:
        x = x[~(np.abs(x) < float(fmt.smallest_normal))]
    return x


def by_gfloat(x, fmt, mode, overflow, *draw):
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(ALL[fmt], x, mode, overflow is Overflow.SATURATE, *draw)


# -- by gfloat -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ALL, ids=label)
@pytest.mark.sampled(32, each=False)
def test_every_boundary_rounds_as_in_gfloat(fmt, assert_same):
    for mode, overflow in itertools.product(MODES, OVERFLOWS):
        x = comparable(hard_numbers(fmt, np.float64), fmt, overflow is Overflow.SATURATE)
        assert_same(round_to(x, fmt, mode, overflow), by_gfloat(x, fmt, MODES[mode], overflow), x)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", [*INFO, *p3109_formats((4, 8)), *WIDE_P3109], ids=label)
@pytest.mark.sampled(32, each=False)
def test_random_draws_round_as_in_gfloat(fmt, rule, assert_same):
    """Sixteenths of the gaps, ties of the rules among them; in gfloat their sums with the draws are exact."""
    for r, overflow in itertools.product((1, 3), OVERFLOWS):
        x = between(fmt, 16)
        x = comparable(np.concatenate([x, -x, [np.nan]]), fmt, overflow is Overflow.SATURATE)
        draws = np.random.default_rng(r).integers(0, 2**r, x.size)
        x, draws = np.concatenate([x, x]), np.concatenate([draws, 2**r - 1 - draws])
        words = (draws << (32 - r)).astype(np.uint32)
        rounding = Rounding("stochastic", overflow, random_bits=r, rule=rule)
        expected = by_gfloat(x, fmt, RULES[rule], overflow, draws, r)
        assert_same(round_to(x, fmt, rounding, random=words), expected, x, draws)


# -- by hand ----------------------------------------------------------------------------------------------
# Operation, format, mode, operands, result. In comments, what another way of computing it gives.
OPERATIONS = [
    # A wider fma: 1.125, a tie to even.
    ("fma", "bf16", "nearest_even", (1.0625, 1.0625, 2.0**-100), 1.1328125),
    ("fma", "bf16", "nearest_even", (7.0, 37.0, -(2.0**-20)), 258.0),  # by way of float32: 260
    ("add", "bf16", "toward_zero", (1.0, -(2.0**-60)), 0.99609375),  # a carrier to nearest: 1
    ("mul", "tf32", "nearest_even", (1044 * 2.0**-79, 2009 * 2.0**-79), 2.0**-136),  # in float32: 0
    ("add", "e4m3fn", "nearest_even", (416.0, 15.0), 416.0),  # by way of bfloat16: 448
    ("sqrt", "e4m3fn", "nearest_even", (240.0,), 15.0),  # by way of bfloat16: 16
    ("sub", "bf16", "nearest_even", (1.5 * 2.0**-126, 2.0**-126), 2.0**-127),  # flushing to zero: 0
    # 2/3 and the root of 2, in 8 bits.
    ("div", "bf16", "down", (2.0, 3.0), 170 / 256),
    ("sqrt", "bf16", "down", (2.0,), 181 / 128),
    ("sqrt", "bf16", "to_odd", (2.0,), 181 / 128),
]
SATURATE = {"overflow": "saturate"}
# Format, mode, number, result, policies. In comments, what others have.
BY_HAND = [
    ("bf16", "nearest_even", 1 + 2.0**-8 + 2.0**-40, 1.0078125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 1 + 2.0**-4 + 2.0**-40, 1.125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 464.0, 448.0),  # half-way to the 480 that there is not, and 448 is even
    ("e4m3fn", "nearest_even", 465.0, 448.0, SATURATE),
    ("e4m3fn", "nearest_even", math.inf, math.nan, SATURATE),  # an infinity is never made finite
    ("fp16", "nearest_even", 65520.0, math.inf),
    ("bf16", "nearest_even", 2.0**32 + 2**24 + 1, 2.0**32 + 2**25),  # by way of float32: 2**32
    ("e4m3fnuz", "nearest_even", -0.0, 0.0),
    ("e4m3", "nearest_even", 248.0, math.inf),
    ("e2m1fn", "nearest_away", -0.25, -0.5),
    ("fp16", "nearest_away", 2.0**-25, 2.0**-24),
    ("fp16", "down", -(2.0**-1074), -(2.0**-24)),
    ("fp16", "toward_zero", math.nextafter(8.0, 0.0), 7.99609375),
    # e8m0 has no zero, so that what is flushed is NaN.
    ("float8_e8m0fnu", "toward_zero", 2.0**-140, 2.0**-127),
    ("float8_e8m0fnu", "up", 2.0**-140, math.nan, {"underflow": "flush_after"}),
    ("float8_e8m0fnu", "nearest_even", -3.0, math.nan),
    ("float8_e8m0fnu", "nearest_even", -3.0, 2.0**-127, SATURATE),
    ("binary8p3uf", "nearest_even", -3.0, 0.0, SATURATE),
    # Of one significant bit, whose last is that of the exponent: 2, 4 and 8 have the codes 65, 66 and 67.
    ("binary8p1se", "nearest_even", -6.0, -4.0),
    ("binary8p1se", "to_odd", 2.5, 2.0),
    # A posit is rounded by its string of bits: between 2**20 and 2**24 the boundary is 2**22, no mean.
    ("posit8", "nearest_even", 2.0**22, 2.0**20),
    ("posit8", "nearest_away", 2.0**22, 2.0**24),
    ("posit8", "nearest_even", math.nextafter(2.0**22, math.inf), 2.0**24),
    # From another emulator, pychop 0.6.2.
    ("float16", "nearest_even", 1.9712302 * 2**16, math.inf),  # 0: the exponent field is cut to its largest
    ("bfloat16", "nearest_even", math.nextafter(1.5 * 2.0**-133, 0), 2.0**-133),  # 2**-132: so it was
    ("float8_e5m2", "nearest_away", math.nextafter(1.625, 0), 1.5),  # 1.75: it is nearer to 1.5
    ("float8_e5m2", "to_odd", 96.0, 96.0),  # 112: a value has moved
    ("float16", "up", 2.0**-1074, 2.0**-24),  # NaN
]


@pytest.mark.parametrize(("name", "fmt", "mode", "operands", "expected"), OPERATIONS)
def test_operations_by_hand(name, fmt, mode, operands, expected):
    assert same(getattr(arithmetic(fmt, mode), name)(*operands), expected)
    fmt, rounding = get_format(fmt), Rounding(mode)
    assert same(operate(name, operands, fmt, rounding), expected)
    assert same(operate_integers(name, *operands, fmt=fmt, rounding=rounding), expected)


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: "-".join(map(str, case[:3])))
def test_roundings_by_hand(case):
    fmt, mode, number, expected, policies = [*case, {}][:5]
    rounding = Rounding(mode, **policies)
    assert same(round_to(number, fmt, rounding), expected)
    assert same(round_to(np.array([number, -number]), fmt, rounding)[0], expected)
    assert same(round_float(number, get_format(fmt), rounding), expected)
    if "posit" not in fmt:
        assert same(round_integers(number, get_format(fmt), rounding), expected)


def test_flushing_to_zero_has_three_meanings():
    """In float16: of a sum with a small operand, a small difference, and a product just below 2**-14."""
    small, least = 3 * 2.0**-24, 2.0**-14
    results = {"gradual": [], "flush_inputs": [], "flush_before": [], "flush_after": []}
    for underflow, found in results.items():
        ar = arithmetic("float16", underflow=underflow)
        found.append(ar.add(small, least))
        found.append(ar.sub(1.5 * least, least))
        found.append(ar.mul((1 + 2.0**-10) * 2.0**-7, (1 - 2.0**-10) * 2.0**-7))  # 2**-14 once rounded
    assert results == {
        "gradual": [least + small, least / 2, least],
        "flush_inputs": [least, least / 2, least],
        "flush_before": [least + small, 0.0, 0.0],
        "flush_after": [least + small, 0.0, least],
    }
