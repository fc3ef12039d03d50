"""Results that are right by hand, and wrong in some published emulator."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.formats import get_format
from mcfsim.oracle import operate, operate_integers, round_float, round_fraction, round_integers, same
from mcfsim.rounding import Rounding

BELOW_8 = math.nextafter(8.0, 0.0)

OPERATIONS = [
    # A wider fma that is rounded to nearest twice gives 1.125, 260, 260 and 256.
    ("fma", "bf16", "nearest_even", (1.0625, 1.0625, 2.0**-100), 1.1328125),
    ("fma", "bf16", "nearest_even", (7.0, 37.0, -(2.0**-20)), 258.0),
    ("fma", "bf16", "nearest_even", (7.0, 37.0, -(2.0**-50)), 258.0),
    ("fma", "e5m2", "nearest_even", (12.0, 24.0, 2.0**-16), 320.0),
    ("fma", "fp16", "nearest_even", (320.0, 128.25, 2.0**-24), 41056.0),
    ("add", "bf16", "toward_zero", (1.0, -(2.0**-60)), 0.99609375),
    ("add", "bf16", "up", (1.0, 2.0**-60), 1.0078125),
    ("add", "bf16", "to_odd", (1.0, 2.0**-60), 1.0078125),
    # Directed sums of numbers that are far apart.
    ("add", "bf16", "down", (1.0, -(2.0**-133)), 0.99609375),
    ("add", "bf16", "down", (-1.0, -(2.0**-133)), -1.0078125),
    ("sub", "bf16", "up", (1.0, 2.0**-133), 1.0),
    # In float32 the first product underflows to a tie, which goes to 0.
    ("mul", "tf32", "nearest_even", (1044 * 2.0**-79, 2009 * 2.0**-79), 2.0**-136),
    ("add", "e4m3fn", "nearest_even", (416.0, 15.0), 416.0),
    ("sqrt", "e4m3fn", "nearest_even", (240.0,), 15.0),
    # 2/3 in 8 bits, from below and above; 1/3 by its ties-to-even neighbours.
    ("div", "bf16", "down", (2.0, 3.0), 170 / 256),
    ("div", "bf16", "up", (2.0, 3.0), 171 / 256),
    ("div", "bf16", "nearest_even", (1.0, 3.0), 171 / 512),
    ("sqrt", "bf16", "down", (2.0,), 181 / 128),
    ("sqrt", "bf16", "up", (2.0,), 182 / 128),
    ("sqrt", "bf16", "to_odd", (2.0,), 181 / 128),
]

ROUNDINGS = [
    ("bf16", "nearest_even", 1 + 2.0**-8 + 2.0**-40, 1.0078125),  # by way of float32: 1
    ("e4m3fn", "nearest_even", 1 + 2.0**-4 + 2.0**-40, 1.125),  # by way of float32: 1
    ("bf16", "nearest_even", 2.0**32 + 2**24 + 1, 2.0**32 + 2**25),  # by way of float32: 2**32
    ("e4m3fn", "nearest_even", 464.0, 448.0),
    ("e4m3fn", "nearest_even", 465.0, math.nan),
    ("e4m3fn", "nearest_away", 464.0, math.nan),
    ("fp16", "nearest_even", 65519.99, 65504.0),
    ("fp16", "nearest_even", 65520.0, math.inf),
    ("fp16", "nearest_even", 131071.0, math.inf),
    ("fp16", "nearest_even", 2.0**-25, 0.0),
    ("fp16", "nearest_even", 2.0**-25 * (1 + 2.0**-30), 2.0**-24),
    ("fp16", "nearest_away", 2.0**-25, 2.0**-24),
    ("fp16", "toward_zero", BELOW_8, 7.99609375),
    ("fp16", "up", -(2.0**-30), -0.0),
    ("fp16", "down", -(2.0**-1074), -(2.0**-24)),
    ("fp16", "to_odd", 2.0**-1074, 2.0**-24),
    ("e4m3fnuz", "up", -(2.0**-30), 0.0),
    ("e4m3fnuz", "nearest_even", -0.0, 0.0),
    ("e4m3fn", "nearest_even", -0.0, -0.0),
    ("e4m3", "nearest_even", 248.0, math.inf),
    ("e4m3b11fnuz", "nearest_even", 31.5, math.nan),
    ("e2m1fn", "nearest_even", 5.0, 4.0),
    ("e2m1fn", "nearest_even", 100.0, 6.0),
    ("e2m1fn", "nearest_even", -0.25, -0.0),
    ("e2m1fn", "nearest_away", -0.25, -0.5),
]


@pytest.mark.parametrize(("name", "fmt", "mode", "operands", "expected"), OPERATIONS)
def test_operation(name, fmt, mode, operands, expected):
    fmt, rounding = get_format(fmt), Rounding(mode)
    assert same(operate(name, operands, fmt, rounding), expected)
    assert same(operate_integers(name, *operands, fmt=fmt, rounding=rounding), expected)


@pytest.mark.parametrize(("fmt", "mode", "value", "expected"), ROUNDINGS)
def test_rounding(fmt, mode, value, expected):
    fmt, rounding = get_format(fmt), Rounding(mode)
    assert same(round_float(value, fmt, rounding), expected)
    assert same(round_integers(value, fmt, rounding), expected)


# Formats without negative numbers, and with one significant bit, whose last is that of the code's exponent.
UNUSUAL = [
    ("e8m0fnu", "nearest_even", "ieee", -3.0, math.nan),
    ("e8m0fnu", "nearest_even", "saturate", -3.0, 2.0**-127),
    ("binary8p3uf", "nearest_even", "saturate", -3.0, 0.0),
    ("e8m0fnu", "nearest_even", "ieee", 3.0, 4.0),
    ("binary8p1se", "nearest_even", "ieee", 3.0, 4.0),  # 2, 4 and 8 have the codes 65, 66 and 67
    ("binary8p1se", "nearest_even", "ieee", -6.0, -4.0),
    ("binary8p1se", "to_odd", "ieee", 2.5, 2.0),
    ("binary8p1se", "to_odd", "ieee", -5.0, -8.0),
    ("binary8p1se", "nearest_away", "ieee", 3.0, 4.0),
]


@pytest.mark.parametrize(("fmt", "mode", "overflow", "value", "expected"), UNUSUAL)
def test_unusual_formats(fmt, mode, overflow, value, expected):
    assert same(round_float(value, get_format(fmt), Rounding(mode, overflow)), expected)


def test_saturation():
    fmt, rounding = get_format("e4m3fn"), Rounding("nearest_even", "saturate")
    assert round_float(465.0, fmt, rounding) == round_integers(465.0, fmt, rounding) == 448.0
    assert same(round_integers([np.inf, -np.inf, np.nan], fmt, rounding), np.nan).all()


def test_nan_patterns_stay_nan():
    patterns = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0xFF800001], dtype=np.uint32).view(np.float32)
    for fmt in map(get_format, ("bf16", "fp16", "e4m3fn", "e2m1fn")):
        assert np.isnan(round_integers(patterns, fmt)).all()


def test_an_integer_past_float64_rounds_once():
    assert round_fraction(Fraction(2**62 + 2**54 + 1), get_format("bf16")) == 2.0**62 + 2.0**55
