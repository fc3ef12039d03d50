"""Numbers that share scales, against the definition in Fractions, gfloat and ml_dtypes."""

import dataclasses
import itertools
import math
from fractions import Fraction

import gfloat.block
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfsim.formats import FORMATS, Format
from mcfsim.formats.grids import grid
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction, same
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule, get_scaled_format, quantize, scaled_table
from tests.scaled.definition import by_definition, hard_rows, round_element, special_rows
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers
from tests.shared.layouts import LAYOUTS

EXACT = [rule for rule in ScaleRule if rule.exact and rule is not ScaleRule.QUEST]
RULES = [(fmt, rule) for fmt in SCALED.values() for rule in EXACT if fmt.rule.exact and not fmt.tensor_scale]
RULES.append((SCALED["nvfp4"], ScaleRule.ABSMAX))
MX = [name for name, fmt in SCALED.items() if name.startswith("mx") and fmt.rule.exact]
GFLOAT = {
    "mxfp8_e4m3": gfloat.formats.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": gfloat.formats.format_info_mxfp8_e5m2,
    "mxfp6_e3m2": gfloat.formats.format_info_mxfp6_e3m2,
    "mxfp6_e2m3": gfloat.formats.format_info_mxfp6_e2m3,
    "mxfp4": gfloat.formats.format_info_mxfp4_e2m1,
    "mxint8": gfloat.formats.format_info_mxint8,
}
IEEE = Rounding()


# -- by the definition -------------------------------------------------------------------------------------
def check(rows, fmt, assert_same):
    """Quantise rows of one block each, and compare with the definition."""
    scale, tensor_scale, results = by_definition(rows, fmt, DETERMINISTIC)
    before = rows.copy()
    for mode, (elements, numbers) in zip(DETERMINISTIC, results, strict=True):
        scaled = quantize(rows, fmt, rounding=mode)
        assert_same(scaled.scale[:, 0], scale)
        assert scaled.tensor_scale == (tensor_scale if fmt.tensor_scale else None)
        assert_same(scaled.elements, elements, rows)
        assert_same(scaled.dequantize(), numbers, rows)
    assert_same(rows, before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("fmt", "rule"), RULES, ids=str)
@pytest.mark.sampled(79, each=False)
@pytest.mark.slow
def test_hard_blocks_are_quantised_by_the_definition(fmt, rule, dtype, assert_same):
    """And blocks of zeros, and with NaN or infinity."""
    fmt = dataclasses.replace(fmt, rule=rule, block=6)
    rows, special = hard_rows(fmt, dtype, 6), special_rows(dtype, 6)
    # Numbers of one size a tensor, where it has a scale, so that the scales of blocks are exercised.
    for some in np.array_split(rows, 20) if fmt.tensor_scale else [rows]:
        check(some, fmt, assert_same)
    check(special[1:] if rule is ScaleRule.MAX else special, fmt, assert_same)


# -- other judges ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MX)
@pytest.mark.sampled(2, each=False)
def test_mx_blocks_are_those_of_gfloat(name, assert_same):
    rng, info = np.random.default_rng(7), GFLOAT[name]
    assert (info.k, SCALED[name].bits_per_element) == (32, Fraction(8 * info.block_size_bytes, 32))
    emax = math.floor(math.log2(float(SCALED[name].element.max)))  # no power of two among them
    x = (rng.standard_t(2, size=(60, 32)) * 2.0 ** rng.integers(-30, 30, (60, 1))).astype(np.float32)
    scaled = quantize(x, name)
    for row, scale, numbers in zip(x.astype(float), scaled.scale[:, 0], scaled.dequantize(), strict=True):
        assert scale == gfloat.block.compute_scale_amax(emax, row)
        assert_same(numbers, gfloat.block.quantize_block(info, row, lambda *_, scale=scale: scale), row)


@pytest.mark.parametrize("name", MX)
def test_mx_scales_and_their_codes_are_those_of_ml_dtypes(name, assert_same):
    scaled = quantize((2.0 ** np.arange(-145.0, 128, 0.25)).astype(np.float32)[:, np.newaxis], name)
    foreign = scaled.scale.astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    assert_same(foreign.astype(np.float64), scaled.scale)
    assert_same(scaled.scale_codes, foreign.view(np.uint8))


@pytest.mark.parametrize("name", [*MX[:5], "nvfp4", "int4", "int2"])
def test_codes_are_those_of_ml_dtypes(name, assert_same):
    scaled = quantize(np.random.default_rng(3).normal(size=(8, 40)).astype(np.float32), name)
    dtype = np.dtype(getattr(ml_dtypes, scaled.format.element.name))
    bits = scaled.elements.astype(dtype).view(np.uint8) & (2**scaled.format.element.bits - 1)
    assert scaled.codes.dtype == np.uint8
    assert_same(scaled.codes, bits, scaled.elements)


# -- by hand ---------------------------------------------------------------------------------------------
NAN, LEAST, SEVENTH = np.nan, np.float32(1e-5), np.float32(0.5 / 7)
TWO = [[2688.0, -448.0, 224.0], [3.0, 0.75, 0.0]]
AMAX = [[4.0], [6.0], [6.5], [6.99], [7.0], [7.9], [8.0]]


@pytest.mark.parametrize(
    ("x", "fmt", "options", "scale", "numbers"),
    [
        # The scale of a tensor is 1, and its blocks have theirs.
        (TWO, "nvfp4", {}, [[448], [0.5]], TWO),
        # A block vanishes whose scale underflows: 0.001 / 6 is below half of 2**-9.
        ([[2688.0], [-0.001]], "nvfp4", {}, [[448], [0]], [[2688.0], [-0.0]]),
        # Overflow is saturation unless the rounding says otherwise.
        ([500.0, 1.0], "mxfp8_e4m3", {}, [1], [448.0, 1.0]),
        ([500.0, 1.0], "mxfp8_e4m3", {"rounding": IEEE}, [1], [NAN, 1.0]),
        ([500.0, 1.0], "mxfp8_e4m3", {"rule": "round_up", "rounding": IEEE}, [2], [512.0, 1.0]),
        (AMAX, "mxfp4", {"rule": "floor"}, [[1]] * 6 + [[2]], None),
        (AMAX, "mxfp4", {"rule": "round_up"}, [[1]] * 2 + [[2]] * 5, None),
        (AMAX, "mxfp4", {"rule": "even"}, [[1]] * 4 + [[2]] * 3, None),
        ([0.0] * 3, "ternary", {}, LEAST, [0.0] * 3),
        ([0.5, -0.25, 0.125, 1.125], "ternary", {}, 0.5, [0.5, 0.0, 0.0, 0.5]),  # the mean
        ([-1.0, 1.984375, -0.015625, -1.99999], "mxint8", {}, [1], [-1.0, 1.984375, -0.015625, -2.0]),
        ([0.5, -2.0, 0.3], "int4", {"rule": "max"}, SEVENTH, np.float64([7, -8, 4]) * SEVENTH),
    ],
)
def test_by_hand(x, fmt, options, scale, numbers, assert_same):
    scaled = quantize(np.array(x), fmt, **options)
    assert_same(scaled.scale, scale)
    if numbers is not None:
        assert_same(scaled.dequantize(), numbers, x)
    assert scaled.tensor_scale == (1.0 if fmt == "nvfp4" else None)


# -- stochastic ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_stochastic_rounding_with_every_word_goes_up_as_often_as_the_fraction_says():
    rounding = Rounding("stochastic", overflow="saturate", random_bits=4)
    draws = np.arange(16, dtype=np.uint32) << np.uint32(28)
    numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    # The scale is 3, so that quotients are the numbers that are meant.
    fmt = dataclasses.replace(SCALED["mxfp4"], block=2, scale=FORMATS["float32"], rule="absmax")
    for (below, above), k in itertools.product(itertools.pairwise(numbers), range(16)):
        x = np.full((16, 2), 3 * 6.0)
        x[:, 1] = 3 * -(below + (above - below) * k / 16)
        scaled = quantize(x, fmt, rounding=rounding, random=np.stack([draws, draws], axis=1))
        assert (scaled.scale == 3).all()
        assert np.count_nonzero(scaled.elements[:, 1] == -above) == k
        assert np.count_nonzero(scaled.elements[:, 1] == -below) == 16 - k


@pytest.mark.slow
def test_stochastic_quotients_are_exact_to_the_last_random_bit():
    rng, rounded_twice = np.random.default_rng(6), 0
    rounding = Rounding("stochastic", overflow="saturate", random_bits=32)
    for _ in range(200):
        amax, whole, threshold = rng.uniform(1, 2), int(rng.integers(0, 100)), int(rng.integers(1, 2**32))
        by = Fraction(round_fraction(Fraction(amax) / 127, FORMATS["float32"]))
        x = float((whole + Fraction(threshold, 2**32)) * by)  # next to where one draw more goes up
        x = np.array([amax, np.nextafter(x, 0), x, np.nextafter(x, 1)])
        quotients = [Fraction(item) / by for item in x.tolist()]
        exact = [int(q) + (q % 1 * 2**32 >= threshold) for q in quotients]
        scaled = quantize(x, "int8", rounding=rounding, random=np.full(4, 2**32 - threshold, np.uint32))
        assert scaled.elements[1:].tolist() == exact[1:]
        rounded_twice += exact != [int(q) + (q % 1 * 2**32 >= threshold) for q in map(float, quotients)]
    assert rounded_twice  # there are quotients that binary64 cannot tell from the threshold


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_word_of_an_element_is_that_of_its_row_major_index(axis, bits, assert_same):
    x = np.random.default_rng(2).normal(size=(7, 5, 9))
    fmt, stream = dataclasses.replace(SCALED["mxfp4"], block=4), RandomWords(11, step=3)

    def elements(x, random):
        rounding = Rounding("stochastic", random_bits=bits)
        return quantize(x, fmt, axis=axis, rounding=rounding, random=random).elements

    words = stream.draws(0, x.size, bits).reshape(x.shape)
    assert_same(elements(np.asfortranarray(x), words), elements(x, stream), x)
    assert (elements(x, RandomWords(12)) != elements(x, stream)).any()


# -- shapes ----------------------------------------------------------------------------------------------
@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.slow
@pytest.mark.costly("all layouts, block by block")
def test_every_block_of_every_layout_is_quantised_as_if_alone(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    block = data.draw(st.sampled_from([1, 2, 3, 7, "axis", None]))
    name = data.draw(st.sampled_from(["mxfp4", "mxint8", "int4"]))
    rule = data.draw(st.sampled_from(["floor", "absmax", "absmean"]))
    layout = LAYOUTS[data.draw(st.sampled_from([*LAYOUTS][:-1]))]
    fmt = dataclasses.replace(SCALED[name], block=block, rule=rule)
    x = layout(np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=shape).astype(np.float32))
    scaled = quantize(x, fmt, axis=axis)
    numbers = scaled.dequantize()
    assert scaled.shape == numbers.shape == shape
    if block is None:
        assert scaled.scale.shape == ()
        return
    size = max(shape[axis], 1) if block == "axis" else block
    count = -(-shape[axis] // size)
    assert scaled.scale.shape == tuple(count if i == axis % len(shape) else n for i, n in enumerate(shape))
    parts = (x, scaled.elements, numbers, scaled.scale)
    lines, elements, numbers, scales = (np.moveaxis(item, axis, -1) for item in parts)
    for index, b in itertools.product(np.ndindex(lines.shape[:-1]), range(count)):
        part = slice(b * size, (b + 1) * size)
        single = quantize(lines[index][part], dataclasses.replace(fmt, block=None))
        assert same(single.elements, elements[index][part]).all()
        assert single.scale == scales[index][b]
        assert same(single.dequantize(), numbers[index][part]).all()


def test_more_than_one_internal_block_of_elements(assert_same):
    x = np.random.default_rng(4).normal(size=(40, 2_000)).astype(np.float32)
    for name in ("mxfp6_e2m3", "nvfp4", "int8", "ternary"):
        whole = quantize(x, name)
        block = whole.format.block or x.shape[1]
        scale = np.broadcast_to(whole.scale, (40, -(-2000 // block))).astype(np.float64)
        by = np.repeat(scale, block, axis=1)[:, :2000] * (whole.tensor_scale or 1.0)
        assert_same(whole.dequantize(), whole.elements.astype(np.float64) * by)
        for i, j in [(0, 0), (39, 1999), (17, 1000), (16, 767), (16, 768), (32, 1536)]:
            quotient, element = Fraction(float(x[i, j])) / Fraction(float(by[i, j])), whole.format.element
            assert whole.elements[i, j] == round_element(quotient, x[i, j] < 0, element, Mode.NEAREST_EVEN)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8"])
def test_a_number_is_an_array_of_one_element(name):
    one, scaled = quantize(np.float32([3.0]), name), quantize(np.float32(3.0), name)
    assert scaled.shape == scaled.scale.shape == scaled.dequantize().shape == ()
    assert scaled.dequantize() == one.dequantize()[0]


@pytest.mark.parametrize(
    ("name", "long", "short"),
    [
        *((name, {"block": 2**70}, {"block": 40}) for name in ("mxfp4", "nvfp4", "fp8_e4m3_1x128")),
        ("nvfp4_16x16", {"block": (2**70, 8)}, {"block": (3, 8)}),
        ("nvfp4_eden", {"group": 2**70}, {"group": 48}),
        ("nvfp4_eden", {"block": 2**70, "group": 2**71}, {"block": 40, "group": 40}),
    ],
)
def test_what_shares_a_scale_ends_with_the_axis(name, long, short, assert_same):
    x, mode = hostile_rows(3, 40, 16, 1), "nearest_even" if name == "nvfp4_eden" else "stochastic"
    formats = [dataclasses.replace(SCALED[name], **fields) for fields in (long, short)]
    one, other = (quantize(x, fmt, rounding=mode, random=RandomWords(5)) for fmt in formats)
    assert_same(one.scale, other.scale)
    assert_same(one.dequantize(), other.dequantize())


# -- formats as data -------------------------------------------------------------------------------------
def test_formats_say_what_they_are_and_are_listed():
    bits = {"mxfp8_e4m3": 8.25, "mxfp6_e3m2": 6.25, "mxfp4": 4.25, "mxint8": 8.25, "nvfp4": 4.5, "ternary": 2}
    assert {name: SCALED[name].bits_per_element for name in bits} == bits
    rows = scaled_table()
    assert [row["format"] for row in rows] == list(SCALED)
    assert rows[4]["bits an element"] == "4.25"
    assert {row["block"] for row in rows} == {"32", "16", "16x16", "128", "128x128", "axis", "tensor"}
    assert get_scaled_format("MXFP4") is SCALED["mxfp4"]
    assert get_scaled_format(SCALED["nvfp4"]) is SCALED["nvfp4"]
    parts = {"element": "e2m1fn", "scale": "e4m3fn", "tensor_scale": "fp32"}
    by_name = ScaledFormat("mine", block=16, rule="absmax", **parts)
    assert by_name == SCALED["nvfp4"]
    # Float32 carries what it holds.
    short = dataclasses.replace(by_name, tensor_scale=None)
    assert quantize(np.array([1.0, 2.0]), short).dequantize().dtype == np.float32
    assert quantize(np.array([1.0, 2.0], np.float32), "mxfp4").dequantize().dtype == np.float64


@pytest.mark.parametrize("fmt", SCALED.values(), ids=str)
def test_the_format_of_values_holds_every_product_and_little_more(fmt):
    parts = [fmt.scale, *([fmt.tensor_scale] if fmt.tensor_scale else [])]
    elements = [fmt.element.smallest_subnormal, fmt.element.max, fmt.element.lowest]
    ends = [(part.smallest_subnormal, part.max) for part in parts]
    products = [math.prod(numbers) for numbers in itertools.product(elements, *ends)]
    for exact in products:
        assert Fraction(round_fraction(exact, fmt.values)) == exact
    assert fmt.values.smallest_subnormal == min(x for x in products if x > 0)
    assert Fraction(2) ** fmt.values.emax <= max(map(abs, products)) <= fmt.values.max


MINE = {"element": grid("int8"), "block": 32, "scale": FORMATS["float32"], "rule": "absmax"}
TALL, DEEP = Format(precision=8, emin=-10, emax=300), Format(precision=8, emin=-300, emax=10)
ABOVE = Format(precision=3, emin=-4, emax=5, specials="none", zero=False)
PAIRS = dataclasses.replace(SCALED["int8"], block=2)


def changed(**fields):
    return ScaledFormat("mine", **{**MINE, **fields})


def quantized(x=(1.0,), fmt="mxfp4", **options):
    return quantize(np.asarray(x), fmt, **options)


def by_hand(**fields):
    made = quantize(np.float32([1, 2, -7, 0.2]), "mxfp4")
    return dataclasses.replace(made, **fields)


@pytest.mark.parametrize(
    ("function", "given", "error", "message"),
    [
        (changed, {"element": 8}, TypeError, "element must be a floating-point format or a grid, not 8"),
        (changed, {"element": "posit6"}, TypeError, "element must be .*, not the posit format posit6"),
        (changed, {"element": "int88"}, ValueError, "unknown format 'int88'"),
        (changed, {"scale": grid("int8")}, TypeError, "scale must be .*, not the grid int8"),
        (changed, {"scale": None}, TypeError, "scale must be a floating-point format, not None"),
        (changed, {"tensor_scale": "int8"}, TypeError, "tensor_scale must be .*, not the grid int8"),
        (changed, {"scale": FORMATS["float4_e2m1fn"]}, ValueError, "has no NaN"),
        (changed, {"element": ABOVE}, ValueError, "has neither NaN nor zero"),
        (changed, {"block": 0}, ValueError, "at least 1 element"),
        *((changed, {"block": bad}, TypeError, "block must be") for bad in (1.5, "row", True)),
        (changed, {"rule": "largest"}, ValueError, "allowed: floor, ceil"),
        (changed, {"rule": "floor", "tensor_scale": FORMATS["float32"]}, ValueError, "no tensor scale"),
        (changed, {"scale": FORMATS["float64"]}, UnsupportedFormatError, "not every product"),
        (changed, {"scale": DEEP}, UnsupportedFormatError, "quotients are exact"),
        (changed, {"element": TALL}, UnsupportedFormatError, "quotients are exact"),
        (quantized, {"fmt": "mxfp-4"}, ValueError, "unknown scaled format .*did you mean 'mxfp4'"),
        (quantized, {"rule": "largest"}, ValueError, "unknown rule"),
        (quantized, {"fmt": "nvfp4", "rule": "floor"}, ValueError, "no tensor scale"),
        (quantized, {"rounding": "even"}, ValueError, "unknown rounding"),
        (quantized, {"rounding": "stochastic"}, ValueError, "stochastic rounding needs"),
        (quantized, {"axis": 1}, np.exceptions.AxisError, "axis 1"),
        (quantized, {"x": np.int32([1])}, TypeError, "int32 is no array of floating-point numbers"),
        (by_hand, {"elements": [1.0, 2.0]}, TypeError, "elements and scale are arrays, not list"),
        (by_hand, {"axis": 1}, ValueError, "axis = 1 does not exist in shape"),
        (by_hand, {"axis": -1}, ValueError, "counted from 0"),
        (by_hand, {"axis": "x"}, TypeError, "axis must be an int"),
        (by_hand, {"tensor_scale": 1.0}, ValueError, "tensor_scale = 1.0, and the format mxfp4 has none"),
        (by_hand, {"format": SCALED["nvfp4"]}, ValueError, "tensor_scale = None, .* nvfp4 has one"),
        (by_hand, {"scale": np.ones(2, "f4")}, ValueError, r"have shape \(1,\), not \(2,\)"),
        # No positive number is no negative scale.
        *(
            (quantized, {"x": x, "fmt": "int8", "rule": "max"}, ValueError, "needs a positive number")
            for x in ([-1.0, -2.0], [0.0, -0.0], [])
        ),
        (
            quantized,
            {"x": [[1.0, 2.0, 3.0], [-1.0, 0.0, 3.0]], "fmt": PAIRS, "rule": "max"},
            ValueError,
            r"block \(1, 0\) of \(2, 2\)",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(function, given, error, message):
    with pytest.raises(error, match=message):
        function(**given)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn], ids=str)
def test_short_dtypes_and_tensors_are_widened_exactly(dtype):
    x = np.random.default_rng(0).standard_normal(96).astype(dtype)
    expected = quantize(x.astype(np.float32), "mxfp8_e4m3").dequantize()
    assert np.array_equal(quantize(x, "mxfp8_e4m3").dequantize(), expected)
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    tensor = torch.from_numpy(x.view(f"u{x.itemsize}")).view(getattr(torch, np.dtype(dtype).name))
    assert np.array_equal(quantize(tensor, "mxfp8_e4m3").dequantize(), expected)
    with pytest.raises(ValueError, match="requires grad"):
        quantize(torch.ones(32, requires_grad=True), "mxfp8_e4m3")


@pytest.mark.parametrize("fmt", [*SCALED, "own"])
@pytest.mark.parametrize("columns", [96, 101])
def test_numbers_in_binary32_are_the_exact_ones_rounded_once(fmt, columns, assert_same):
    chosen = SCALED.get(fmt) or ScaledFormat(  # whose elements times scales of blocks are below binary32
        "own", element="float16", block=32, scale="bfloat16", rule="absmax", tensor_scale="float16"
    )
    x = with_no_numbers(hostile_rows(64, columns, 16, 3), 4)
    scaled = quantize(x, chosen, random=RandomWords(0) if chosen.rule is ScaleRule.EDEN else None)
    with np.errstate(all="ignore"):
        assert_same(scaled.in_binary32(), scaled.dequantize().astype(np.float32))
