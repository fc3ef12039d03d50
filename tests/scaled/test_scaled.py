"""Numbers that share scales, against the definition in Fractions, gfloat and ml_dtypes."""

import dataclasses
import itertools
import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache

import gfloat.block
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcfsim.formats import FORMATS, Format, Posit
from mcfsim.formats.grids import Grid, grid
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction, same
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule, get_scaled_format, quantize, scaled_table

RULES = [(fmt, rule) for fmt in SCALED.values() for rule in ScaleRule if not fmt.tensor_scale]
RULES.append((SCALED["nvfp4"], ScaleRule.ABSMAX))
MX = [name for name in SCALED if name.startswith("mx")]
SATURATING = Rounding(overflow="saturate")
GFLOAT = {
    "mxfp8_e4m3": gfloat.formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": gfloat.formats.format_info_mxfp8_e5m2,
    "mxfp6_e3m2": gfloat.formats.format_info_mxfp6_e3m2,
    "mxfp6_e2m3": gfloat.formats.format_info_mxfp6_e2m3,
    "mxfp4": gfloat.formats.format_info_mxfp4_e2m1,
    "mxint8": gfloat.formats.format_info_mxint8,
}


# -- the definition --------------------------------------------------------------------------------------
@cache
def table(element):
    """Return the numbers of an element format in order, each with whether it is odd."""
    if isinstance(element, Grid):
        return [
            (k * Fraction(2) ** -element.fraction_bits, k % 2) for k in range(element.low, element.high + 1)
        ]
    dtype = np.dtype(getattr(ml_dtypes, element.name))
    codes = np.arange(2**element.bits, dtype=np.uint8)
    numbers = zip(codes.view(dtype).astype(float).tolist(), codes.tolist(), strict=True)
    return sorted({(Fraction(x), code % 2) for x, code in numbers if math.isfinite(x)})


def round_element(quotient, negative, element, mode):
    """Round a rational number to an element by the mode, with saturation."""
    numbers = table(element)
    place = bisect_right(numbers, (quotient, 2)) - 1
    if place < 0 or place == len(numbers) - 1 or numbers[place][0] == quotient:
        value = numbers[max(place, 0)][0]
    else:
        (below, odd_below), (above, _) = numbers[place : place + 2]
        outward = below if quotient < 0 else above
        inward = above if quotient < 0 else below
        middle = (below + above) / 2
        nearest = below if quotient < middle else above
        value = {
            Mode.NEAREST_EVEN: (above if odd_below else below) if quotient == middle else nearest,
            Mode.NEAREST_AWAY: outward if quotient == middle else nearest,
            Mode.TOWARD_ZERO: inward,
            Mode.UP: above,
            Mode.DOWN: below,
            Mode.TO_ODD: below if odd_below else above,
        }[mode]
    return -0.0 if value == 0 and negative and element.has_negative_zero else float(value)


def floor_log2(value):
    exponent = value.numerator.bit_length() - value.denominator.bit_length()  # or one more than that
    while Fraction(2) ** exponent > value:
        exponent -= 1
    return exponent


def power_scale(amax, element, rule, scale):
    """Return the scale of a rule of powers of two by its definition, among all powers the format has."""
    largest = table(element)[-1][0]
    low, high = floor_log2(scale.smallest_subnormal), floor_log2(scale.max)
    if amax == 0:
        return Fraction(2) ** low
    exponent = floor_log2(amax) - floor_log2(largest)
    if rule is ScaleRule.EVEN:
        quantum = Fraction(2) ** floor_log2(amax) / 2 ** (top_precision(element) - 1)
        exponent = floor_log2(round(amax / quantum) * quantum) - floor_log2(largest)
    if rule is ScaleRule.ROUND_UP:
        exponent = next(e for e in itertools.count(exponent - 1) if amax <= largest * Fraction(2) ** e)
    return Fraction(2) ** min(max(exponent, low), high)


def top_precision(element):
    """Return the significand bits at the top, from the distance of the largest two numbers."""
    (below, _), (largest, _) = table(element)[-2:]
    return floor_log2(largest) - floor_log2(largest - below) + 1


def real_scale(value, scale):
    value = value if scale.zero else max(value, scale.smallest_normal)
    return Fraction(round_fraction(value, scale, SATURATING))


def block_scale(block, fmt, tensor_scale):
    """Return the scale of one block of floats; NaN if one is not finite."""
    if not np.isfinite(block).all():
        return math.nan
    numbers = [Fraction(float(x)) for x in block]
    largest, amax = table(fmt.element)[-1][0], max(map(abs, numbers))
    match fmt.rule:
        case ScaleRule.ABSMAX:
            return real_scale(amax / (largest * tensor_scale) if tensor_scale else Fraction(0), fmt.scale)
        case ScaleRule.ABSMEAN:
            mean = sum(map(abs, numbers)) / len(numbers)
            return real_scale(max(mean, Fraction("0.00001")) / largest, fmt.scale)
        case ScaleRule.MAX:
            return real_scale(max(numbers) / largest, fmt.scale)
    return power_scale(amax, fmt.element, fmt.rule, fmt.scale)


def by_definition(rows, fmt, modes):
    """Return scales of rows of blocks, the tensor scale, and for each mode elements and numbers."""
    tensor_scale = Fraction(1)
    if fmt.tensor_scale:
        whole = [row for row in rows if np.isfinite(row).all()]
        amax = max((Fraction(float(abs(x))) for row in whole for x in row), default=Fraction(0))
        divisor = table(fmt.element)[-1][0] * fmt.scale.max
        tensor_scale = Fraction(round_fraction(amax / divisor, fmt.tensor_scale, SATURATING))
    scales = [block_scale(row, fmt, tensor_scale) for row in rows]
    results = [(np.empty(rows.shape), np.empty(rows.shape)) for _ in modes]
    for (i, j), x in np.ndenumerate(rows):
        x = float(x)
        missing = isinstance(scales[i], float)
        by = Fraction(0) if missing else scales[i] * tensor_scale
        quotient = Fraction(x) / by if by else Fraction(0)
        for mode, (elements, numbers) in zip(modes, results, strict=True):
            if missing:
                elements[i, j], numbers[i, j] = math.nan if fmt.element.has_nan else 0.0, math.nan
                continue
            elements[i, j] = round_element(quotient, math.copysign(1, x) < 0, fmt.element, mode)
            product = Fraction(elements[i, j]) * by
            numbers[i, j] = float(product) if product else math.copysign(0.0, elements[i, j])
            assert Fraction(numbers[i, j]) == product
    return np.array([float(scale) for scale in scales]), float(tensor_scale), results


# -- hard blocks -----------------------------------------------------------------------------------------
def hard_rows(fmt, dtype, width):
    """Return blocks whose largest magnitude is hard for the scale, or whose quotients are hard to round."""
    rng = np.random.default_rng(len(fmt.name))
    dtype = np.dtype(dtype)
    info = np.finfo(dtype)
    top = math.frexp(float(fmt.element.max))[0] * 2
    significands = [1.0, top, 2 - 2.0 ** -top_precision(fmt.element), 1.5, 2 - 2.0**-23]
    largest = [s * 2.0**e for s in significands for e in (0, -7, 118)]
    largest = np.array(largest, dtype)
    largest = np.concatenate(
        [largest, np.nextafter(largest, dtype.type(0)), np.nextafter(largest, dtype.type(np.inf))]
    )
    ends = [
        info.max,
        info.tiny,
        info.smallest_subnormal,
        3 * info.smallest_subnormal,
        1e-38,
        2.0**-133,
        2.0**-126,
    ]
    if dtype.itemsize == 8:
        ends += [2.0**128, 1e200, 1e-50, 1e-300]
    largest = np.concatenate([largest, np.array(ends, dtype)])
    rows = np.zeros((largest.size, width), dtype)
    rows[:, 0] = largest
    rows[:, 1] = -largest
    numbers = [x for x, _ in table(fmt.element)]
    middles = np.array([float(x + y) / 2 for x, y in itertools.pairwise(numbers)])
    for row in rows:
        by = block_scale(row[:1], dataclasses.replace(fmt, tensor_scale=None), Fraction(1))
        with np.errstate(all="ignore"):
            ties = (rng.choice(middles, width) * float(by)).astype(dtype)
        nudged = np.nextafter(ties, rng.choice(np.array([-1, 1], dtype), width) * dtype.type(np.inf))
        near = np.where(rng.random(width) < 0.5, ties, nudged)
        uniform = row[0] * rng.uniform(-1, 1, width).astype(dtype)
        filled = np.where(rng.random(width) < 0.7, near, uniform)[2:]
        row[2:] = np.where(np.abs(filled) <= row[0], filled, dtype.type(-0.0))
    return rows


def special_rows(dtype, width):
    """Return blocks of zeros, and with NaN and infinities in them."""
    rows = np.ones((5, width), dtype)
    rows[0], rows[1, 1::2] = 0.0, -0.0
    rows[2, 1], rows[3, 0], rows[4, :2] = np.nan, -np.inf, (np.inf, np.nan)
    return rows


def check(rows, fmt, assert_same, modes=DETERMINISTIC):
    """Quantise rows of one block each, and compare with the definition."""
    scale, tensor_scale, results = by_definition(rows, fmt, modes)
    for mode, (elements, numbers) in zip(modes, results, strict=True):
        scaled = quantize(rows, fmt, rounding=mode)
        assert_same(scaled.scale[:, 0], scale)
        assert scaled.tensor_scale == (tensor_scale if fmt.tensor_scale else None)
        assert_same(scaled.elements, elements, rows)
        assert_same(scaled.dequantize(), numbers, rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("fmt", "rule"), RULES, ids=str)
@pytest.mark.sampled(6, each=False)
def test_hard_blocks_are_quantised_by_the_definition(fmt, rule, dtype, assert_same):
    fmt = dataclasses.replace(fmt, rule=rule, block=6)
    rows = hard_rows(fmt, dtype, 6)
    if fmt.tensor_scale:  # numbers of one size a tensor, so that the scales of blocks are exercised
        for some in np.array_split(rows, 20):
            check(some, fmt, assert_same)
    else:
        check(rows, fmt, assert_same)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("fmt", "rule"), RULES, ids=str)
def test_blocks_of_zeros_and_with_nan_or_infinity_by_the_definition(fmt, rule, dtype, assert_same):
    fmt = dataclasses.replace(fmt, rule=rule, block=6)
    rows = special_rows(dtype, 6)
    check(rows[1:] if rule is ScaleRule.MAX else rows, fmt, assert_same)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.sampled(4, each=False)
def test_random_blocks_of_the_full_size_by_the_definition(name, assert_same):
    fmt = SCALED[name]
    width = fmt.block or 50
    fmt = dataclasses.replace(fmt, block=width)
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(12, width)) * 2.0 ** rng.integers(-20, 20, (12, 1))
    check(rows.astype(np.float32), fmt, assert_same)
    check(rows, fmt, assert_same, modes=[Mode.NEAREST_EVEN])


# -- other judges ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MX)
def test_mx_blocks_are_those_of_gfloat(name, assert_same):
    rng = np.random.default_rng(7)
    info = GFLOAT[name]
    assert (info.k, SCALED[name].bits_per_element) == (32, Fraction(8 * info.block_size_bytes, 32))
    emax = math.floor(math.log2(float(SCALED[name].element.max)))  # no power of two among them
    x = (rng.standard_t(2, size=(60, 32)) * 2.0 ** rng.integers(-30, 30, (60, 1))).astype(np.float32)
    scaled = quantize(x, name)
    for row, scale, numbers in zip(x.astype(float), scaled.scale[:, 0], scaled.dequantize(), strict=True):
        assert scale == gfloat.block.compute_scale_amax(emax, row)
        assert_same(numbers, gfloat.block.quantize_block(info, row, lambda *_, scale=scale: scale), row)


@pytest.mark.parametrize("name", MX)
def test_mx_scales_and_their_codes_are_those_of_ml_dtypes(name, assert_same):
    x = (2.0 ** np.arange(-145.0, 128, 0.25)).astype(np.float32)[:, np.newaxis]
    scaled = quantize(x, name)
    foreign = scaled.scale.astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    assert_same(foreign.astype(np.float64), scaled.scale)
    assert (scaled.scale_codes == foreign.view(np.uint8)).all()


@pytest.mark.parametrize("name", [*MX[:5], "nvfp4", "int4", "int2"])
def test_codes_are_those_of_ml_dtypes(name):
    x = np.random.default_rng(3).normal(size=(8, 40)).astype(np.float32)
    scaled = quantize(x, name)
    dtype = np.dtype(getattr(ml_dtypes, scaled.format.element.name))
    bits = scaled.elements.astype(dtype).view(np.uint8) & (2**scaled.format.element.bits - 1)
    assert scaled.codes.dtype == np.uint8
    assert (scaled.codes == bits).all()


def test_codes_of_mxint8_are_bytes_in_twos_complement():
    scaled = quantize(np.array([-1.0, 1.984375, 0.015625, -0.015625, 0.0, -1.99999]), "mxint8")
    assert scaled.scale.tolist() == [1.0]
    assert scaled.codes.view(np.int8).tolist() == [-64, 127, 1, -1, 0, -128]


# -- by hand ---------------------------------------------------------------------------------------------
def test_nvfp4_has_two_scales():
    x = np.zeros((2, 16), np.float32)
    x[0, :3], x[1, :2] = (2688.0, -448.0, 224.0), (3.0, 0.75)
    scaled = quantize(x, "nvfp4")
    assert scaled.tensor_scale == 1.0
    assert scaled.scale.tolist() == [[448.0], [0.5]]
    assert scaled.elements[0, :3].tolist() == [6.0, -1.0, 0.5]
    assert scaled.elements[1, :2].tolist() == [6.0, 1.5]
    assert (scaled.dequantize() == x).all()


def test_a_block_vanishes_where_its_scale_underflows():
    x = np.array([[2688.0] * 16, [-0.001] * 16])  # 0.001 / 6 is below half of 2**-9
    scaled = quantize(x, "nvfp4")
    assert scaled.scale[1, 0] == 0.0
    assert (scaled.dequantize()[1] == 0.0).all()
    assert np.signbit(scaled.dequantize()[1]).all()


@pytest.mark.parametrize(
    ("amax", "floor", "round_up", "even"),
    [
        (4.0, 1, 1, 1),
        (6.0, 1, 1, 1),
        (6.5, 1, 2, 1),
        (6.99, 1, 2, 1),
        (7.0, 1, 2, 2),
        (7.9, 1, 2, 2),
        (8.0, 2, 2, 2),
    ],
)
def test_rules_of_powers_of_two_for_mxfp4(amax, floor, round_up, even):
    for rule, scale in (("floor", floor), ("round_up", round_up), ("even", even)):
        assert quantize([amax, 1.0], "mxfp4", rule=rule).scale.tolist() == [scale]


def test_overflow_is_saturation_unless_the_rounding_says_otherwise():
    x = [500.0, 1.0]  # the rule floor gives a scale of 1
    assert quantize(x, "mxfp8_e4m3").dequantize().tolist() == [448.0, 1.0]
    assert np.isnan(quantize(x, "mxfp8_e4m3", rounding=Rounding()).dequantize()[0])
    assert quantize(x, "mxfp8_e4m3", rule="round_up", rounding=Rounding()).dequantize()[0] == 512.0


# -- direct quantised training ---------------------------------------------------------------------------
def test_ternary_is_as_published_where_that_is_exact():
    rng = np.random.default_rng(1)
    w = rng.integers(-128, 129, 1024) / 256
    w[-1] = 0
    w[-1] = 512 - np.abs(w).sum()
    w = w.astype(np.float32)
    s = 1 / np.maximum(np.abs(w).mean(), np.float32(1e-5))
    assert s == 2.0
    published = np.clip(np.rint(w * s), -1, 1) / s
    assert (quantize(w, "ternary").dequantize() == published).all()


def test_absmean_integers_clip_much_of_a_normal_tensor():
    w = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    beyond = np.abs(w) > np.abs(w, dtype=np.float64).mean()
    for bits in (3, 4, 8):
        elements = quantize(w, f"int{bits}", rule="absmean").elements
        high = 2 ** (bits - 1) - 1
        assert np.abs(elements).max() == high + 1  # the least number is reached, the range is lopsided
        clipped = (elements == high) | (elements == -high - 1) | (elements == -high)
        assert clipped[beyond].all()
    assert 0.42 < beyond.mean() < 0.43


def test_absmean_of_a_tensor_of_zeros_is_the_least_mean():
    scaled = quantize(np.zeros(5), "ternary")
    assert scaled.scale == np.float32(1e-5)
    assert (scaled.dequantize() == 0).all()


def test_max_is_not_the_largest_magnitude():
    scaled = quantize([0.5, -2.0, 0.3], "int4", rule="max")
    assert scaled.scale == np.float32(0.5 / 7)
    assert scaled.elements.tolist() == [7, -8, 4]


@pytest.mark.parametrize("x", [[-1.0, -2.0], [0.0, -0.0], []])
def test_max_without_a_positive_number_is_an_error_and_no_negative_scale(x):
    with pytest.raises(ValueError, match="needs a positive number"):
        quantize(np.array(x), "int8", rule="max")


def test_max_names_the_block_without_a_positive_number():
    fmt = dataclasses.replace(SCALED["int8"], block=2)
    with pytest.raises(ValueError, match=r"block \(1, 0\) of \(2, 2\)"):
        quantize(np.array([[1.0, 2.0, 3.0], [-1.0, 0.0, 3.0]]), fmt, rule="max")


# -- stochastic ------------------------------------------------------------------------------------------
def test_stochastic_rounding_with_every_word_goes_up_as_often_as_the_fraction_says():
    rounding = Rounding("stochastic", overflow="saturate", random_bits=4)
    draws = np.arange(16, dtype=np.uint32) << np.uint32(28)
    numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for (below, above), k in itertools.product(itertools.pairwise(numbers), range(16)):
        x = np.full((16, 2), 3 * 6.0)
        x[:, 1] = 3 * -(below + (above - below) * k / 16)
        words = np.stack([draws, draws], axis=1)
        for rule, scale in (("floor", 4), ("round_up", 4), ("absmax", 3)):
            fmt = dataclasses.replace(SCALED["mxfp4"], block=2, scale=FORMATS["float32"], rule=rule)
            scaled = quantize(x, fmt, rounding=rounding, random=words)
            assert (scaled.scale == scale).all()
            if scale == 3:  # quotients are then the numbers that were meant
                assert np.count_nonzero(scaled.elements[:, 1] == -above) == k
                assert np.count_nonzero(scaled.elements[:, 1] == -below) == 16 - k


def test_stochastic_quotients_are_exact_to_the_last_random_bit():
    rng = np.random.default_rng(6)
    rounding = Rounding("stochastic", overflow="saturate", random_bits=32)
    rounded_twice = 0
    for _ in range(200):
        amax = rng.uniform(1, 2)
        by = Fraction(round_fraction(Fraction(amax) / 127, FORMATS["float32"]))
        whole, threshold = int(rng.integers(0, 100)), int(rng.integers(1, 2**32))
        x = float((whole + Fraction(threshold, 2**32)) * by)  # next to where one draw more goes up
        x = np.array([amax, np.nextafter(x, 0), x, np.nextafter(x, 1)])
        quotients = [Fraction(float(item)) / by for item in x]
        word = 2**32 - threshold
        expected = [int(q) + (math.floor(q % 1 * 2**32) + word >= 2**32) for q in quotients]
        scaled = quantize(x, "int8", rounding=rounding, random=np.full(4, word, np.uint32))
        assert scaled.elements[1:].tolist() == expected[1:]
        plain = [Fraction(float(item / float(by))) for item in x]
        rounded_twice += any(
            int(q) + (q % 1 * 2**32 >= threshold) != e for q, e in zip(plain, expected, strict=True)
        )
    assert rounded_twice  # there are quotients that binary64 cannot tell from the threshold


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_word_of_an_element_is_that_of_its_row_major_index(axis, bits):
    x = np.random.default_rng(2).normal(size=(7, 5, 9))
    fmt, rounding = dataclasses.replace(SCALED["mxfp4"], block=4), Rounding("stochastic", random_bits=bits)
    stream = RandomWords(11, step=3)
    words = stream.draws(0, x.size, bits).reshape(x.shape)
    first = quantize(x, fmt, axis=axis, rounding=rounding, random=stream)
    second = quantize(np.asfortranarray(x), fmt, axis=axis, rounding=rounding, random=words)
    assert (first.elements == second.elements).all()
    other = quantize(x, fmt, axis=axis, rounding=rounding, random=RandomWords(12))
    assert (first.elements != other.elements).any()


def test_stochastic_rounding_without_words_is_refused():
    with pytest.raises(ValueError, match="stochastic rounding needs"):
        quantize([1.0], "mxfp4", rounding="stochastic")


# -- shapes ----------------------------------------------------------------------------------------------
@given(data=st.data())
@pytest.mark.slow
def test_every_block_of_every_layout_is_quantised_as_if_alone(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    block = data.draw(st.sampled_from([1, 2, 3, 7, "axis", None]))
    name = data.draw(st.sampled_from(["mxfp4", "mxint8", "int4"]))
    rule = data.draw(st.sampled_from(["floor", "absmax", "absmean"]))
    layout = data.draw(st.sampled_from(["plain", "reversed", "strided", "fortran", "swapped"]))
    fmt = dataclasses.replace(SCALED[name], block=block, rule=rule)
    x = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(np.float32)
    given_x = {
        "plain": lambda: x,
        "reversed": lambda: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        "strided": lambda: np.repeat(x, 2, axis=0)[::2],
        "fortran": lambda: np.asfortranarray(x),
        "swapped": lambda: x.astype(">f4"),
    }[layout]()
    scaled = quantize(given_x, fmt, axis=axis)
    numbers = scaled.dequantize()
    alone = dataclasses.replace(fmt, block=None)
    assert scaled.shape == numbers.shape == shape
    if block is None:
        assert scaled.scale.shape == ()
        return
    size = max(shape[axis], 1) if block == "axis" else block
    count = -(-shape[axis] // size)
    assert scaled.scale.shape == tuple(count if i == axis % len(shape) else n for i, n in enumerate(shape))
    rest = tuple(n for i, n in enumerate(shape) if i != axis % len(shape))
    lines, elements, scales = (np.moveaxis(item, axis, -1) for item in (x, scaled.elements, scaled.scale))
    for index in np.ndindex(rest):
        for b in range(count):
            part = slice(b * size, (b + 1) * size)
            single = quantize(lines[index][part], alone)
            assert same(single.elements, elements[index][part]).all()
            assert single.scale == scales[index][b]
            assert same(single.dequantize(), np.moveaxis(numbers, axis, -1)[index][part]).all()


def test_more_than_one_internal_block_of_elements(assert_same):
    x = np.random.default_rng(4).normal(size=(40, 2_000)).astype(np.float32)
    for name in ("mxfp6_e2m3", "nvfp4", "int8", "ternary"):
        whole = quantize(x, name)
        fmt = whole.format
        if fmt.block is None:
            by = np.broadcast_to(whole.scale, x.shape)
        else:
            by = np.repeat(whole.scale.astype(np.float64), fmt.block, axis=1)[:, : x.shape[1]]
            by = by * (whole.tensor_scale or 1.0)
        assert_same(whole.dequantize(), whole.elements.astype(np.float64) * by)
        for i, j in [(0, 0), (39, 1999), (17, 1000), (16, 767), (16, 768), (32, 1536)]:
            quotient = Fraction(float(x[i, j])) / Fraction(float(by[i, j]))
            assert whole.elements[i, j] == round_element(
                quotient, x[i, j] < 0, fmt.element, Mode.NEAREST_EVEN
            )


def test_a_number_is_an_array_of_one_element():
    for name in ("mxfp4", "nvfp4", "int8"):
        scaled = quantize(np.float32(3.0), name)
        assert scaled.shape == scaled.scale.shape == scaled.dequantize().shape == ()
        assert abs(float(scaled.dequantize()) - 3.0) < 0.1


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
@pytest.mark.parametrize("block", [32, "axis", None])
@pytest.mark.parametrize("rule", ["floor", "absmax", "absmean"])
def test_empty_arrays_stay_empty(shape, block, rule):
    scaled = quantize(
        np.zeros(shape, np.float32), dataclasses.replace(SCALED["mxfp4"], block=block, rule=rule)
    )
    assert scaled.dequantize().shape == shape
    assert scaled.scale.size == (1 if block is None else 0)


def test_the_operand_is_left_alone():
    x = np.array([1.0, np.nan, -3.0, 1e-320, 1e300])
    before = x.copy()
    quantize(x, "mxfp4").dequantize()
    assert same(x, before).all()


def test_nan_spreads_over_its_block_and_no_further():
    x = np.ones((2, 48))
    x[0, 20], x[1, 40] = np.nan, np.inf
    for name in ("mxfp4", "mxfp8_e4m3", "nvfp4"):
        size = SCALED[name].block
        expected = np.zeros(x.shape, bool)
        expected[0, 20 // size * size : (20 // size + 1) * size] = True
        expected[1, 40 // size * size : (40 // size + 1) * size] = True
        scaled = quantize(x, name)
        assert (np.isnan(scaled.dequantize()) == expected).all()
        assert (np.isnan(scaled.scale) == expected[:, ::size]).all()
    assert quantize(x, "mxfp4").codes[0, 20] == 0  # there is no NaN among the elements


# -- formats as data -------------------------------------------------------------------------------------
def test_bits_an_element():
    expected = {"mxfp8_e4m3": 8.25, "mxfp6_e3m2": 6.25, "mxfp4": 4.25, "mxint8": 8.25, "nvfp4": 4.5}
    assert {name: SCALED[name].bits_per_element for name in expected} == expected
    assert (SCALED["ternary"].bits_per_element, SCALED["int8"].bits_per_element) == (2, 8)


def test_the_table_has_a_row_for_each_format():
    rows = scaled_table()
    assert [row["format"] for row in rows] == list(SCALED)
    assert rows[4]["bits an element"] == "4.25"
    assert {row["block"] for row in rows} == {"32", "16", "tensor"}


def test_float32_carries_what_it_holds():
    fmt = ScaledFormat(
        "mine", element=FORMATS["float4_e2m1fn"], block=16, scale=FORMATS["float8_e4m3fn"], rule="absmax"
    )
    assert quantize(np.array([1.0, 2.0]), fmt).dequantize().dtype == np.float32
    assert quantize(np.array([1.0, 2.0], np.float32), "mxfp4").dequantize().dtype == np.float64


@pytest.mark.parametrize("fmt", SCALED.values(), ids=str)
def test_every_product_is_a_number_of_the_format_of_values(fmt):
    parts = [fmt.scale, *([fmt.tensor_scale] if fmt.tensor_scale else [])]
    ends = [(part.smallest_subnormal, part.max) for part in parts]
    for x, *by in itertools.product(
        [fmt.element.smallest_subnormal, fmt.element.max, fmt.element.lowest], *ends
    ):
        product = x * math.prod(by)
        assert Fraction(round_fraction(product, fmt.values)) == product


def test_names():
    assert get_scaled_format("MXFP4") is SCALED["mxfp4"]
    assert get_scaled_format(SCALED["nvfp4"]) is SCALED["nvfp4"]
    with pytest.raises(ValueError, match="did you mean 'mxfp4'"):
        get_scaled_format("mxfp-4")


MINE = {"element": grid("int8"), "block": 32, "scale": FORMATS["float32"], "rule": "absmax"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"element": 8}, TypeError, "element must be a floating-point format or a grid, not 8"),
        ({"element": Posit(6)}, TypeError, "element must be .* or a grid, not the posit format posit6"),
        ({"element": "posit6"}, TypeError, "element must be .* or a grid, not the posit format posit6"),
        ({"element": "int88"}, ValueError, "unknown format 'int88'"),
        ({"scale": grid("int8")}, TypeError, "scale must be a floating-point format, not the grid int8"),
        ({"scale": "posit16"}, TypeError, "scale must be .*, not the posit format posit16"),
        ({"scale": None}, TypeError, "scale must be a floating-point format, not None"),
        ({"tensor_scale": "int8"}, TypeError, "tensor_scale must be .*, not the grid int8"),
        ({"scale": FORMATS["float4_e2m1fn"]}, ValueError, "has no NaN"),
        ({"block": 0}, ValueError, "at least 1 element"),
        ({"block": 1.5}, TypeError, "block must be"),
        ({"block": "row"}, TypeError, "block must be"),
        ({"block": True}, TypeError, "block must be"),
        ({"rule": "largest"}, ValueError, "allowed: floor, round_up"),
        ({"rule": "floor", "tensor_scale": FORMATS["float32"]}, ValueError, "no tensor scale"),
        ({"scale": FORMATS["float64"]}, UnsupportedFormatError, "not every product"),
        ({"scale": Format(precision=8, emin=-300, emax=10)}, UnsupportedFormatError, "quotients are exact"),
        ({"element": Format(precision=8, emin=-10, emax=300)}, UnsupportedFormatError, "quotients are exact"),
    ],
)
def test_formats_that_make_no_sense_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        ScaledFormat("mine", **{**MINE, **change})


def test_names_stand_for_formats():
    by_name = ScaledFormat(
        "mine", element="e2m1fn", block=16, scale="e4m3fn", tensor_scale="fp32", rule="absmax"
    )
    assert by_name == SCALED["nvfp4"]
    assert by_name.bits_per_element == SCALED["nvfp4"].bits_per_element


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fmt": "mxfp5"}, ValueError, "unknown scaled format"),
        ({"rule": "largest"}, ValueError, "unknown rule"),
        ({"fmt": "nvfp4", "rule": "floor"}, ValueError, "no tensor scale"),
        ({"rounding": "even"}, ValueError, "unknown rounding"),
        ({"axis": 1}, np.exceptions.AxisError, "axis 1"),
        ({"x": np.array([1, 2])}, TypeError, "int64 is no array of float32 or float64"),
        ({"x": np.array([1.0], np.float16)}, TypeError, "float16 is no array"),
        ({"x": np.array([1j])}, TypeError, "complex128 is no array"),
        ({"x": np.array([1.0], np.longdouble)}, TypeError, "no array of float32 or float64"),
    ],
)
def test_bad_arguments_are_refused(change, error, message):
    arguments = {"x": np.array([1.0]), "fmt": "mxfp4", **change}
    with pytest.raises(error, match=message):
        quantize(arguments.pop("x"), arguments.pop("fmt"), **arguments)
