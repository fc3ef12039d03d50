"""Uniform grids: their fields, rounding to them in every mode, and their codes, against integers."""

import dataclasses
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfsim.convert import round_to
from mcfsim.formats.floating import Format
from mcfsim.formats.grids import Grid, grid
from mcfsim.kernels import grid_codes
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, holds
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Rule, Underflow

NAMES = ["ternary", "int2", "int3", "int4", "int8", "int4_symmetric", "int8_symmetric"]
GRIDS = [
    *map(grid, NAMES),
    Grid("mxint8_element", low=-128, high=127, fraction_bits=6),
    Grid("unsigned", low=0, high=15),
    Grid("lopsided", low=-3, high=12, fraction_bits=-2),
]
NEAREST = Rounding()


def rounded(kernel, x, words=None):
    """Return an array rounded by a kernel, as its callers do it."""
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        kernel(x, out, words)
    return out


def by_definition(x, fmt, mode):
    """Round one float to a grid: an integer multiple of the quantum, by the mode, then at most the ends."""
    if not math.isfinite(x):
        return math.nan
    quanta = Fraction(x) * Fraction(2) ** fmt.fraction_bits
    below = math.floor(quanta)
    match mode:
        case Mode.NEAREST_EVEN:
            k = round(quanta)
        case Mode.NEAREST_AWAY:
            nearest = math.floor(abs(quanta) + Fraction(1, 2))
            k = -nearest if x < 0 else nearest
        case Mode.TOWARD_ZERO:
            k = math.trunc(quanta)
        case Mode.UP:
            k = math.ceil(quanta)
        case Mode.DOWN:
            k = below
        case Mode.TO_ODD:
            k = below if quanta == below or below % 2 else below + 1
    return float(min(max(k, fmt.low), fmt.high) * Fraction(2) ** -fmt.fraction_bits)


def hard_numbers(fmt, carrier):
    """Return all quarters of a quantum to beyond both ends, the numbers beside them, and far ones."""
    quarters = np.arange(4 * fmt.low - 17, 4 * fmt.high + 18).astype(np.float64) / 4
    x = (quarters * 2.0**-fmt.fraction_bits).astype(carrier)
    info = np.finfo(carrier)
    far = np.array([0.0, info.smallest_subnormal, info.tiny, 1e-30, 1e5, 1e9, 1e30, info.max, np.inf, np.nan])
    far = far.astype(carrier)
    return np.concatenate(
        [x, np.nextafter(x, carrier.type(-np.inf)), np.nextafter(x, carrier.type(np.inf)), far, -far]
    )


# -- the format ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["int2", "int4"])
def test_range_and_bits_are_those_of_ml_dtypes(name):
    info = ml_dtypes.iinfo(name)
    assert (grid(name).low, grid(name).high, grid(name).bits) == (info.min, info.max, info.bits)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_range_and_bits_are_those_of_numpy(bits):
    fmt, info = grid(f"int{bits}"), np.iinfo(f"int{bits}")
    assert (fmt.lowest, fmt.max, fmt.bits) == (info.min, info.max, info.bits)


def test_ternary_has_three_values_in_two_bits():
    fmt = grid("ternary")
    assert (fmt.lowest, fmt.max, fmt.bits, fmt.precision) == (-1, 1, 2, 1)


def test_symmetric_grids_lack_the_least_number():
    assert (grid("int8_symmetric").low, grid("int8_symmetric").high) == (-127, 127)
    assert grid("int8_symmetric").bits == 8


def test_a_grid_with_fraction_bits_is_scaled():
    fmt = Grid(low=-128, high=127, fraction_bits=6)
    assert (fmt.lowest, fmt.max, fmt.quantum) == (-2, Fraction(127, 64), Fraction(1, 64))
    assert fmt.smallest_normal == fmt.smallest_subnormal == fmt.quantum


@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_the_fixed_point_format_of_the_fields_holds_both_ends_and_has_the_quantum(fmt):
    held = Format(precision=fmt.precision, emin=fmt.emin, emax=fmt.emax, specials="none")
    assert fmt.emin == fmt.emax
    assert held.smallest_subnormal == fmt.quantum
    assert max(-fmt.low, fmt.high) < 2**fmt.precision
    assert max(-fmt.low, fmt.high) >= 2 ** (fmt.precision - 1)


@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_there_are_no_special_values(fmt):
    assert not any((fmt.has_nan, fmt.has_infinity, fmt.has_negative_zero, fmt.has_subnormals))


def test_grids_are_equal_by_range_and_not_by_name_nor_to_floats():
    assert grid("int8") == Grid("mine", low=-128, high=127)
    assert hash(grid("int8")) == hash(Grid("mine", low=-128, high=127))
    assert grid("int8") != grid("int8_symmetric")
    assert grid("int8") != Grid(low=-128, high=127, fraction_bits=6)
    assert grid("int8") != Format(precision=8, emin=7, emax=7, specials="none")
    assert dataclasses.replace(grid("int8"), low=-127) == grid("int8_symmetric")


def test_default_names_tell_the_range():
    assert Grid(low=-8, high=7).name == "int4"
    assert Grid(low=-8, high=7, fraction_bits=2).name == "int4_fraction2"
    assert Grid(low=-5, high=3).name == "integers_-5_3"
    assert Grid(low=0, high=3).name == "integers_0_3"


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 2), (-2, -1), (2, -2)])
def test_a_range_without_zero_or_without_positive_numbers_is_refused(low, high):
    with pytest.raises(ValueError, match="low <= 0 < high"):
        Grid(low=low, high=high)


@pytest.mark.parametrize(
    "wrong", [{"low": -1.0, "high": 1}, {"low": -1, "high": True}, {"low": -1, "high": "1"}]
)
def test_bounds_that_are_no_integers_are_refused(wrong):
    with pytest.raises(TypeError, match="must be an int"):
        Grid(**wrong)


@pytest.mark.parametrize("name", ["int1", "int33", "int", "int04x", "uint8", "symmetric", "INT8"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="unknown grid"):
        grid(name)


# -- rounding --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("carrier", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", GRIDS, ids=str)
@pytest.mark.sampled(8)
def test_numbers_round_by_the_definition(fmt, mode, carrier, assert_same):
    x = hard_numbers(fmt, carrier)
    expected = [by_definition(float(item), fmt, mode) for item in x]
    for overflow in (Overflow.IEEE, Overflow.SATURATE):
        assert_same(rounded(get_kernel(fmt, Rounding(mode, overflow), carrier), x), expected, x)


@given(x=st.floats(width=64), fmt=st.sampled_from(GRIDS), mode=st.sampled_from(DETERMINISTIC))
def test_any_float64_rounds_by_the_definition(assert_same, x, fmt, mode):
    actual = rounded(get_kernel(fmt, Rounding(mode), FLOAT64), np.array([x]))
    assert_same(actual, [by_definition(x, fmt, mode)], [x])


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_int32_rounds_by_the_definition(mode, assert_same):
    fmt = grid("int32")
    ends = np.array([fmt.low, fmt.high, 2**30, -(2**24) - 1, 0], dtype=np.float64)
    x = np.add.outer(ends, np.arange(-8, 9) / 4).ravel()
    expected = [by_definition(float(item), fmt, mode) for item in x]
    assert_same(rounded(get_kernel(fmt, Rounding(mode), FLOAT64), x), expected, x)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_round_to_takes_grids(fmt, mode, assert_same):
    x = hard_numbers(fmt, FLOAT32)
    assert_same(round_to(x, fmt, mode), [by_definition(float(item), fmt, mode) for item in x], x)


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", [grid("int4"), grid("ternary")], ids=str)
def test_stochastic_rounding_goes_up_as_often_as_the_fraction_says(fmt, rule):
    bits, sixteenths = 4, np.arange(16 * fmt.low, 16 * fmt.high + 1)
    kernel = get_kernel(fmt, Rounding("stochastic", random_bits=bits, rule=rule), FLOAT64)
    draws = np.arange(2**bits, dtype=np.uint32) << np.uint32(32 - bits)
    for k in sixteenths:
        results = rounded(kernel, np.full(draws.size, k / 16), draws)
        toward_zero, fraction = divmod(abs(int(k)), 16)  # four bits resolve it, whatever the rule
        outward = math.copysign(toward_zero + 1, k)
        assert np.count_nonzero(results == outward) == fraction
        assert np.count_nonzero(results == math.copysign(toward_zero, k)) == 16 - fraction


def test_stochastic_rounding_beyond_the_ends_saturates_for_every_draw():
    draws = np.array([0, 2**31, 2**32 - 1], dtype=np.uint32)
    for overflow in Overflow:
        kernel = get_kernel(grid("int4"), Rounding("stochastic", overflow), FLOAT64)
        for x, end in ((7.5, 7), (7.01, 7), (1e300, 7), (-8.5, -8), (-8.01, -8), (-1e300, -8)):
            assert (rounded(kernel, np.full(3, x), draws) == end).all()


def test_a_block_may_be_rounded_in_place(assert_same):
    x = hard_numbers(grid("int4"), FLOAT32)
    kernel, expected = get_kernel(grid("int4"), NEAREST, FLOAT32), x.copy()
    expected = rounded(kernel, expected)
    with np.errstate(all="ignore"):
        kernel(x, x)
    assert_same(x, expected)


@pytest.mark.parametrize("rounding", [NEAREST, Rounding("stochastic")], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_keeps_tells_values_and_nan_from_other_numbers(fmt, rounding):
    kernel = get_kernel(fmt, rounding, FLOAT64)
    values = np.arange(fmt.low, fmt.high + 1) * 2.0**-fmt.fraction_bits
    with np.errstate(all="ignore"):
        assert kernel.keeps(np.concatenate([values, [np.nan, -0.0]]))
        for other in (
            float(fmt.max + fmt.quantum),
            float(fmt.lowest - fmt.quantum),
            float(fmt.quantum / 2),
            np.inf,
        ):
            assert not kernel.keeps(np.append(values, other))


@pytest.mark.parametrize("underflow", [item for item in Underflow if item is not Underflow.GRADUAL])
def test_flushing_is_refused(underflow):
    with pytest.raises(UnsupportedFormatError, match="no subnormal numbers"):
        get_kernel(grid("int8"), Rounding(underflow=underflow), FLOAT64)


def test_a_carrier_too_narrow_is_refused():
    with pytest.raises(UnsupportedFormatError):
        get_kernel(grid("int32"), NEAREST, FLOAT32)


def test_a_grid_of_as_many_bits_as_a_carrier_is_carried_by_the_next():
    x = np.float32([1.5, 2.5, 2**23 - 1, 1e9, -1e9, 0.25])
    judge = OracleArithmetic(grid("int24"))
    expected = [judge.round(float(number)) for number in x]
    assert round_to(x, "int24").tolist() == round_to(x.astype(np.float64), "int24").tolist() == expected
    assert not holds(FLOAT32, grid("int24"))
    assert holds(FLOAT32, grid("int23"))


# -- codes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", GRIDS, ids=str)
def test_codes_are_integers_in_twos_complement_and_decode_to_their_values(fmt, assert_same):
    integers = range(fmt.low, fmt.high + 1)
    values = np.array([float(k * fmt.quantum) for k in integers])
    codes = grid_codes.encode(values, fmt)
    assert codes.dtype == np.uint64
    assert codes.tolist() == [k % 2**fmt.bits for k in integers]
    assert_same(grid_codes.decode(codes, fmt), values)


def test_codes_of_int8_are_the_bytes_of_numpy():
    values = np.arange(-128, 128)
    codes = grid_codes.encode(values.astype(np.float32).reshape(16, 16), grid("int8"))
    assert (codes == values.astype(np.int8).view(np.uint8).reshape(16, 16)).all()


@pytest.mark.parametrize("wrong", [0.5, 8.0, -9.0, np.nan, np.inf, -np.inf, 1e300])
def test_what_is_no_value_has_no_code(wrong):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* no value of int4"):
        grid_codes.encode(np.array([1.0, wrong]), grid("int4"))


@pytest.mark.parametrize(
    ("fmt", "wrong"), [(grid("ternary"), 2), (grid("int4"), 16), (GRIDS[-2], 16)], ids=str
)
def test_codes_of_nothing_are_refused(fmt, wrong):
    with pytest.raises(ValueError, match=rf"code {wrong} at \(1,\)"):
        grid_codes.decode(np.array([1, wrong]), fmt)
