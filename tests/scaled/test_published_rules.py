"""Rules of published code against their definition in fractions, and tiles against their own copies."""

import dataclasses
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mcfsim.formats import FORMATS
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.random import RandomWords
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule, quantize
from tests.scaled.hostile_blocks import hostile_rows, with_no_numbers
from tests.scaled.published import by_published

NVFP4 = ("torchao", "transformer_engine", "four_six_mae", "four_six_mse")
FP8 = ("current", "floor_power", "deepseek", "deepseek_power")
#: Each rule on each kind of block that it is for, small where the kind allows it.
CASES = [
    *((dataclasses.replace(SCALED["nvfp4"], rule=rule), (6, 90)) for rule in NVFP4),
    *((dataclasses.replace(SCALED["nvfp4"], rule=rule, block=(4, 8)), (10, 45)) for rule in NVFP4),
    (dataclasses.replace(SCALED["nvfp4"], rule="torchao", tensor_scale=None), (12, 64)),
    *((dataclasses.replace(SCALED["fp8_e4m3_1x128"], rule=rule, block=8), (12, 60)) for rule in FP8),
    *((dataclasses.replace(SCALED["fp8_e5m2_tensor"], rule=rule, block=(5, 8)), (12, 60)) for rule in FP8),
    *((dataclasses.replace(SCALED["fp8_e4m3_tensor"], rule=rule), (4, 30)) for rule in FP8),
    (SCALED["fp8_e4m3_rows"], (20, 30)),
    (SCALED["mxfp4_quartet"], (16, 100)),
    (dataclasses.replace(SCALED["mxfp4_quartet"], block=(3, 5)), (16, 64)),
    (dataclasses.replace(SCALED["mxfp4"], rule="quest"), (16, 100)),
    (dataclasses.replace(SCALED["mxfp8_e4m3"], rule="quest", block=(3, 6)), (16, 40)),
]


def size_of(fmt):
    return fmt.block_size or 8


def check(x, fmt, assert_same, **options):
    scale, tensor_scale, elements = by_published(x, fmt, **options)
    scaled = quantize(x, fmt, rounding=options.get("mode", "nearest_even"), random=options.get("words"))
    assert scaled.tensor_scale == tensor_scale
    assert_same(scaled.scale, scale.reshape(scaled.scale.shape))
    assert_same(scaled.elements, elements, x)
    numbers = scaled.dequantize()
    by = scaled.scale if fmt.block is None else None
    if by is None:
        by = np.array([[scale_at(scaled, i, j) for j in range(x.shape[1])] for i in range(x.shape[0])])
    with np.errstate(invalid="ignore"):
        assert_same(numbers, elements * (by.astype(float) * (tensor_scale or 1.0)), x)


def scale_at(scaled, i, j):
    block, columns = scaled.format.block, scaled.shape[1]
    height, width = block if isinstance(block, tuple) else (1, columns if block == "axis" else block)
    return float(scaled.scale[i // height, j // width])


def named(case):
    fmt, _ = case
    return f"{fmt}-{fmt.rule}-{fmt.block}"


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.sampled(17, each=False)
@pytest.mark.slow
def test_hostile_blocks_are_quantised_by_the_definition(case, assert_same):
    fmt, shape = case
    for seed, exponent in enumerate((0, -130, 109)):
        x = hostile_rows(*shape, size_of(fmt), seed) * np.float32(2.0**exponent)
        check(x, fmt, assert_same)
    check(with_no_numbers(x, 1), fmt, assert_same)
    check(np.zeros(shape, np.float32), fmt, assert_same)


@pytest.mark.parametrize("rule", [*NVFP4, *FP8, "quartet"])
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_every_mode_rounds_the_same_quotients(rule, assert_same):
    names = {"quartet": "mxfp4_quartet"} | dict.fromkeys(NVFP4, "nvfp4")
    fmt = dataclasses.replace(SCALED[names.get(rule, "fp8_e4m3_1x128")], rule=rule, block=8)
    for mode in DETERMINISTIC:
        check(hostile_rows(4, 24, 8, 5), fmt, assert_same, mode=mode)


@pytest.mark.parametrize(("block", "group", "columns"), [(16, 128, 150), (4, 16, 47), (4, 4, 16)])
@pytest.mark.slow
@pytest.mark.sampled(2, each=False)
def test_eden_corrects_scales_by_their_group(block, group, columns, assert_same):
    fmt = dataclasses.replace(SCALED["nvfp4_eden"], block=block, group=group)
    for seed, mode in enumerate(("nearest_even", "nearest_away", "nearest_even")):
        x = hostile_rows(3, columns, block, seed)
        if seed == 2:
            x = with_no_numbers(x, 3)
        words = np.random.default_rng(seed).integers(0, 2**16, (3, -(-columns // block)), dtype=np.uint16)
        check(x, fmt, assert_same, mode=mode, words=words)
    stream = RandomWords(4)
    drawn = stream.words(0, words.size, 16).reshape(words.shape)
    by_stream, by_words = (quantize(x, fmt, random=random) for random in (stream, drawn))
    assert_same(by_stream.scale, by_words.scale)
    across = quantize(x.T.copy(), fmt, axis=0, random=words.T.copy())
    assert_same(across.scale.T, quantize(x, fmt, random=words).scale)


def test_eden_keeps_what_a_group_represents_on_average():
    """Blocks of one scale: <x, dequantised> is <x, x> up to the noise of scales, and is not without."""
    x = np.clip(np.random.default_rng(0).standard_normal((64, 1024)), -1.9, 1.9).astype(np.float32)
    x[:, ::16] = 1.9
    total = sum((quantize(x, "nvfp4_eden", random=RandomWords(k)).dequantize() * x).sum() for k in range(8))
    plain = (quantize(x, "nvfp4_eden", rule="transformer_engine").dequantize() * x).sum()
    exact = (x.astype(float) ** 2).sum()
    assert abs(total / 8 / exact - 1) < 6e-4 < abs(plain / exact - 1)


def test_eden_makes_no_nan_of_a_tensor_whose_scale_underflows(assert_same):
    x = np.full((1, 128), -1e-44, np.float32)
    scaled = quantize(x, "nvfp4_eden", random=RandomWords(0))
    assert scaled.tensor_scale == 0
    assert (scaled.scale == 448).all()
    assert_same(scaled.dequantize(), np.full(x.shape, -0.0))


# -- tiles ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(32, 48), (33, 50), (3, 5), (2, 20, 40), (0, 20), (20, 0), (2, 0, 3)])
@pytest.mark.parametrize("rule", ["floor", "ceil", "round_up", "even", "absmax", "absmean"])
def test_a_tile_is_quantised_as_if_alone(rule, shape, assert_same):
    fmt = dataclasses.replace(SCALED["mxfp4"], rule=rule, block=(16, 8))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    scaled = quantize(x, fmt)
    assert scaled.scale.shape == (*shape[:-2], -(-shape[-2] // 16), -(-shape[-1] // 8))
    numbers = scaled.dequantize()
    for index in np.ndindex(scaled.scale.shape):
        i, j = index[-2:]
        part = (*index[:-2], slice(16 * i, 16 * i + 16), slice(8 * j, 8 * j + 8))
        alone = quantize(x[part], dataclasses.replace(fmt, block=None))
        assert scaled.scale[index] == alone.scale
        assert_same(scaled.elements[part], alone.elements)
        assert_same(numbers[part], alone.dequantize())


@pytest.mark.parametrize("rule", [None, "torchao", "transformer_engine"])
def test_a_matrix_and_its_transpose_see_one_number(rule, assert_same):
    for name in ("nvfp4_16x16", *(() if rule else ("fp8_e4m3_128x128",))):
        x = hostile_rows(200, 200, 16, 0)
        one, other = quantize(x, name, rule=rule), quantize(np.ascontiguousarray(x.T), name, rule=rule)
        assert_same(one.codes, other.codes.T)
        assert_same(one.scale, other.scale.T)
        assert_same(one.dequantize(), other.dequantize().T, x)
        rows, columns = (quantize(a, "nvfp4") for a in (x, x.T.copy()))
        assert (rows.dequantize() != columns.dequantize().T).any()


@pytest.mark.parametrize("fmt", ["nvfp4_16x16", "mxfp4_quartet", "fp8_e4m3_128x128"])
def test_stochastic_rounding_takes_the_word_of_an_element(fmt, assert_same):
    """In tiles too: whatever the layout, and each neighbour as often as the words say."""
    x = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)
    rounding = Rounding("stochastic", "saturate")
    words = RandomWords(9).words(0, x.size, 16).reshape(x.shape)
    found = quantize(x, fmt, rounding=rounding, random=words)
    assert_same(found.elements, quantize(x, fmt, rounding=rounding, random=RandomWords(9)).elements)
    assert_same(found.elements, quantize(np.asfortranarray(x), fmt, rounding=rounding, random=words).elements)
    lowest, highest = (
        quantize(x, fmt, rounding=rounding, random=np.full(x.shape, word, np.uint16))
        for word in (0, 2**16 - 1)
    )
    cut = quantize(x, fmt, rounding="toward_zero")
    assert_same(lowest.elements, cut.elements)
    assert (np.abs(found.elements) >= np.abs(lowest.elements)).all()
    assert (np.abs(found.elements) <= np.abs(highest.elements)).all()
    differing = highest.elements != lowest.elements
    assert 0.2 < (found.elements != lowest.elements)[differing].mean() < 0.8


# -- what makes no sense ----------------------------------------------------------------------------------
FLOAT16 = FORMATS["float16"]


def changed(name="nvfp4", **fields):
    return dataclasses.replace(SCALED[name], **fields)


@pytest.mark.parametrize(
    ("name", "fields", "error", "message"),
    [
        ("nvfp4", {"block": (16,)}, ValueError, "a tile has rows and columns"),
        ("nvfp4", {"block": (16, 0)}, ValueError, "at least 1 element"),
        ("nvfp4", {"block": np.array([4, 4])}, TypeError, "block must be an int, two of them"),
        ("nvfp4", {"block": (16, 1.5)}, TypeError, "block must be an int, two of them"),
        ("nvfp4", {"rule": "eden"}, ValueError, "needs group="),
        ("nvfp4", {"rule": "eden", "group": 24}, ValueError, "multiple of block = 16"),
        ("nvfp4", {"rule": "eden", "group": 32, "block": (2, 16)}, ValueError, "blocks along an axis"),
        ("nvfp4", {"group": 32}, ValueError, "is for rule 'eden'"),
        ("nvfp4", {"rule": "deepseek"}, ValueError, "no tensor scale"),
        ("mxfp4", {"rule": "transformer_engine"}, ValueError, "needs a tensor scale"),
        ("nvfp4", {"rule": "torchao", "tensor_scale": FLOAT16}, UnsupportedFormatError, "not float16"),
        ("mxfp4", {"rule": "current"}, UnsupportedFormatError, "its scales are float32, not float8_e8m0fnu"),
        ("mxfp4", {"rule": "torchao"}, UnsupportedFormatError, "a format with zero"),
        ("fp8_e4m3_tensor", {"element": FORMATS["float64"]}, UnsupportedFormatError, "does not hold"),
    ],
)
def test_formats_that_make_no_sense_are_refused(name, fields, error, message):
    with pytest.raises(error, match=message):
        changed(name, **fields)


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.ones((4, 4)), {"fmt": "nvfp4", "rule": "torchao"}, TypeError, "float64 is longer"),
        (np.ones((4, 4)), {"fmt": "mxfp4", "rule": "quest"}, TypeError, "float64 is longer"),
        (np.ones(16, ml_dtypes.int4), {"fmt": "nvfp4"}, TypeError, "int4 is no array of floating"),
        (np.ones(16, "f4"), {"fmt": "nvfp4_16x16"}, ValueError, "at least two axes, not shape"),
        (np.ones((4, 16), "f4"), {"fmt": "nvfp4_eden"}, ValueError, "stochastic rounding needs"),
        (np.ones(16, "f4"), {"fmt": "nvfp4_eden", "rounding": "stochastic"}, ValueError, "rounds scales"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        quantize(x, **options)


@pytest.mark.parametrize(
    ("name", "fields", "allowed"),
    [
        ("mxint8", {"rule": "floor_power"}, "from 4 to .* that of int8_fraction6 is 1.98438"),
        ("mxint8", {"rule": "deepseek_power", "element": "ternary"}, "from 2 to"),
        ("fp8_e4m3_rows", {"rule": "deepseek", "element": "bf16"}, "from 1 to 5.1923e\\+33"),
        ("fp8_e4m3_rows", {"element": "ternary"}, "from 1.5 to .* is 1$"),
        ("nvfp4", {"rule": "transformer_engine", "scale": "float32"}, "from 0 to 1"),
        ("nvfp4", {"rule": "torchao", "element": "bf16"}, "from 0 to 7.59559e\\+35"),
        ("nvfp4_eden", {"element": "bf16"}, "from 0 to 1.32923e\\+36"),
    ],
)
def test_elements_by_which_binary32_loses_scales_are_refused(name, fields, allowed):
    with pytest.raises(UnsupportedFormatError, match=f"largest element lies {allowed}"):
        dataclasses.replace(SCALED[name], **fields)


def test_formats_count_the_bits_of_tiles():
    assert SCALED["nvfp4_16x16"].bits_per_element == 4 + Fraction(8, 256)
    assert SCALED["fp8_e4m3_128x128"].bits_per_element == 8 + Fraction(32, 128**2)
    mine = ScaledFormat("mine", element="int8", block=[2, 4], scale="float32", rule="absmax")
    assert mine.block == (2, 4)
    assert SCALED["nvfp4_eden"].with_rule("absmax") == SCALED["nvfp4"]
    assert type(changed("nvfp4_eden", group=np.int64(64)).group) is int
    assert {rule for rule in ScaleRule if rule.exact} >= {"floor", "ceil", "quest"}


def test_negative_numbers_are_clipped_beyond_the_lowest_element():
    x = np.float32([1.999, -1.999, 1.0])
    scaled = quantize(x, "mxint8")
    assert scaled.elements.tolist() == [127 / 64, -2.0, 1.0]
    assert scaled.clipped(x).tolist() == [True, False, False]
    assert scaled.clipped(x - 0.5).tolist() == [False, True, False]


# -- masks ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "nvfp4_16x16"])
def test_a_mask_says_whose_quotients_are_less_than_the_largest_element(fmt):
    x = hostile_rows(20, 70, 16, 2)
    scaled = quantize(x, fmt, rule="quest" if fmt == "mxfp4" else None)
    inside = scaled.inside(x)
    assert inside.any()
    assert not inside.all()
    numbers = dataclasses.replace(scaled, elements=np.ones_like(scaled.elements)).dequantize()
    for place in np.ndindex(x.shape):
        by = Fraction(float(numbers[place]))
        assert inside[place] == (abs(Fraction(float(x[place]))) < 6 * by)
    with pytest.raises(ValueError, match="must have the quantised array's shape"):
        scaled.inside(x[1:])
    for ask in (scaled.inside, scaled.clipped):
        with pytest.raises(TypeError, match="complex64 does not hold real numbers"):
            ask(x + 1j)
