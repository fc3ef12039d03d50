"""Layers of hostile operands, products in binary32, and units that do not go with a recipe."""

import itertools
from contextlib import suppress
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe, linear
from tests.recipes.by_definition import PAPERS, Layer
from tests.recipes.test_linear import CHAIN, OWN, WORDS, by, data, same, wrong


def alike(fmt, unit=None):
    """Return a recipe whose operands are all of one format."""
    operand = OperandRecipe(fmt)
    product = ProductRecipe(operand, operand, unit=unit, output=None)
    return Recipe("mine", forward=product, dgrad=product, wgrad=product)


LONG, SHORT = (
    mcf.Format("long", precision=40, emin=-9, emax=9),
    mcf.Format("short", precision=3, emin=-3, emax=3),
)
TWO = mcf.Unit("two", ("bf16", SHORT), k=4, fraction_bits=24, output="fp32")
MINE = {
    "long scales": alike(replace(mcf.SCALED["mxfp8_e4m3"], scale=LONG, rule="absmax")),
    "no dtype": alike(SHORT),
}
NAMES = [name for name in RECIPES if name != "bf16-truncating"]


# -- operands ---------------------------------------------------------------------------------------------
def hostile(kind):
    """Return activations, weights and gradients of a layer of 3 tokens, 20 inputs and 4 outputs."""
    arrays = data((3, 20, 4), 4)
    with np.errstate(all="ignore"):
        match kind:
            case "zeros":
                return [np.zeros_like(x) for x in arrays]
            case "negative zeros":
                return [-np.zeros_like(x) for x in arrays]
            case "subnormal":
                return [x * np.float32(2e-40) for x in arrays]
            case "huge":
                return [np.copysign(np.float32(3e38), x) for x in arrays]
            case "small beside large":
                return [np.where(x > 0, x * np.float32(1e-30), x * np.float32(1e30)) for x in arrays]
            case "a block of zeros":
                for x in arrays:
                    x[0] = 0
            case "nan":
                arrays[0][1, 2] = np.nan
            case "nan in weights":
                arrays[1][1, 2] = np.nan
            case "infinity":
                arrays[2][1, 2] = np.inf
            case "infinities":
                arrays[0][1, 2], arrays[1][1, 3] = -np.inf, np.inf
    return arrays


KINDS = ["zeros", "negative zeros", "subnormal", "huge", "small beside large", "a block of zeros"]
KINDS += ["nan", "nan in weights", "infinity", "infinities"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(80, each=False)
@pytest.mark.costly("rotations in fractions")
def test_hostile_operands_have_the_bits_of_the_paper(name, kind):
    arrays = hostile(kind)
    if name == "quartet2":  # groups of 128
        arrays = [arrays[0][:2, :18], arrays[1][:2, :18], arrays[2][:2, :2]]
        arrays = [np.ascontiguousarray(x) for x in arrays]
    for unit in {CHAIN, OWN[name]}:
        assert not wrong(by(RECIPES[name].with_unit(unit)), name, unit, arrays, WORDS), unit


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity_never_become_numbers(name):
    """In binary32, too: the rows that hold them are NaN, whatever shares their scales may be."""
    x, weight, dy = data((8, 48, 40), 2)
    x[3, 5], dy[2, 7] = np.nan, -np.inf
    y, backward = linear(RECIPES[name], x, weight, WORDS)
    dx, dw = backward(dy)
    assert np.isnan(y[3]).all()
    assert not np.isfinite(dx[2]).any()
    assert not np.isfinite(dw[7]).any()
    assert name == "fp8-tensor" or np.isfinite(y[:3]).all()


@pytest.mark.parametrize("shape", [(0, 5, 3), (3, 0, 2), (2, 4, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", ["none", "chain", "own"])
@pytest.mark.sampled(4, each=False)
def test_empty_layers(name, shape, unit):
    tokens, inputs, outputs = shape
    named = {"none": None, "chain": CHAIN, "own": OWN[name]}[unit]
    x, weight, dy = data(shape)
    y, backward = linear(RECIPES[name].with_unit(named), x, weight, WORDS)
    dx, dw = backward(dy)
    assert (y.shape, dx.shape, dw.shape) == ((tokens, outputs), (tokens, inputs), (outputs, inputs))
    assert all(z.dtype == np.float32 for z in (y, dx, dw))
    if 0 in shape:
        assert not any(z.any() for z in (y, dx, dw))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2, each=False)
@pytest.mark.slow
def test_layouts_and_dtypes_do_not_count(name):
    recipe = RECIPES[name].with_unit(CHAIN)
    x, weight, dy = (a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in data((6, 20, 18)))
    y, backward = linear(recipe, x, weight, WORDS)
    right = (y, *backward(dy))
    for turn in (
        np.asfortranarray,
        lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
        lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
        lambda a: a.astype(np.float64),
        lambda a: a.astype(ml_dtypes.bfloat16),
        lambda a: a.astype(">f4"),
    ):
        again, back = linear(recipe, turn(x), turn(weight), WORDS)
        assert all(same(*pair) for pair in zip((again, *back(turn(dy))), right, strict=True))


def test_longer_numbers_are_rounded_to_float32():
    x, weight, _ = (a.astype(np.float64) + 2.0**-40 for a in data((3, 20, 4)))
    short = (a.astype(np.float32) for a in (x, weight))
    assert same(linear("mxfp8", x, weight)[0], linear("mxfp8", *short)[0])
    assert np.isnan(linear("mxfp8", x * 1e300, weight)[0]).all()


@pytest.mark.slow
def test_operands_are_not_changed():
    for name in NAMES:
        arrays = data((3, 20, 4))
        before = [a.copy() for a in arrays]
        _, backward = linear(RECIPES[name], arrays[0], arrays[1], WORDS)
        first = backward(arrays[2])
        assert all(np.array_equal(*pair) for pair in zip(arrays, before, strict=True))
        assert all(same(*pair) for pair in zip(backward(arrays[2]), first, strict=True))  # and so again


X = np.ones((2, 4))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: linear("mxfp8", np.ones(4), X), ValueError, r"x of shape \(4,\) must be a matrix"),
        (lambda: linear("mxfp8", X, np.ones((1, 2, 4))), ValueError, "weight of shape"),
        (lambda: linear("mxfp8", X, np.ones((2, 5))), ValueError, "do not share"),
        (lambda: linear("mxfp8", np.ones((2, 4), complex), X), TypeError, "x"),
        (lambda: linear("mxfp8", [["a"]], X), TypeError, "x"),
        (lambda: linear("mxfp8", np.ma.ones((2, 4)), X), TypeError, "x"),
        (lambda: linear("nvfp4", X, X), ValueError, "needs words=RandomWords"),
        (lambda: linear("mxfp8", X, X, 3), TypeError, "words must be RandomWords"),
        (lambda: linear("mxfp8", X, np.ones((3, 4)))[1](np.ones((3, 2))), ValueError, "must have that of"),
    ],
)
def test_what_makes_no_layer_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        given()


# -- products in binary32 ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(4, each=False)
@pytest.mark.costly("rotations in fractions")
def test_products_in_binary32_differ_by_their_sums_alone(name):
    """By (k + 2) 2^-24 of the sum of magnitudes: k roundings of the sum, and one of each operand."""
    arrays = x, weight, dy = data((3, 18, 4) if name == "quartet2" else (6, 36, 5), 3)
    judge = Layer(PAPERS[name], x, weight, WORDS, CHAIN)
    recipe = RECIPES[name]
    y, backward = linear(recipe, *arrays[:2], WORDS)
    pairs = [("forward", y, x, weight)]
    if "quartet" not in name:  # whose gradients are rotated back
        taken = judge.taken[0].values if name == "fp8-blocks" else x
        dx, dw = backward(dy)
        pairs += [("dgrad", dx, dy, weight.T), ("wgrad", dw, dy.T, taken.T)]
    for label, found, left, right in pairs:
        a, b = (q.values.astype(np.float64) for q in judge.operands(label, left, right))
        exact, most = a @ b.T, abs(a) @ abs(b).T
        slack = (a.shape[1] + 2) * 2.0**-24 * most + 1e-40
        output = recipe.products[label].output or "float32"
        low, high = (np.asarray(mcf.round_to(exact + s, output)) for s in (-slack, slack))
        assert ((low <= found) & (found <= high)).all(), label
        assert not ((low <= found * 1.02 + 0.01) & (found * 1.02 + 0.01 <= high)).all()


# -- units ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "unit", "promoted", "message"),
    [
        ("nvfp4", "hopper_fp8", None, "blocks of 16; hopper_fp8 needs .* a multiple of its 32"),
        ("fp4-all", "blackwell_mxfp8", None, "takes blocks of 32 of .* with scales of float8_e8m0fnu"),
        ("nvfp4", "blackwell_mxfp4", None, "has blocks of 16 .* scales of float8_e4m3fn: it takes"),
        ("quartet", "blackwell_nvfp4", None, "scales of float8_e8m0fnu: it takes"),
        ("mxfp8", "blackwell_mxfp4", None, "blocks of 32 of float8_e4m3fn"),
        ("mxfp8", "hopper_fp8", 64, "sums of blocks are added after 32 products"),
        ("mxfp8", "cdna3_fp8", None, "float8_e4m3fnuz, float8_e5m2fnuz, which lack numbers of float8_e4m3fn"),
        ("fp8-tensor", "blackwell_mxfp8", None, "which has one block of float8_e4m3fn"),
        ("fp8-tensor", "hopper_fp8", 100, "promote_every = 100 is no multiple of hopper_fp8's 32"),
        ("fp8-blocks", "hopper_fp8", 64, "added after 128 products"),
        ("fp8-blocks", "blackwell_mxfp8", None, "it takes blocks of 32"),
        ("bf16", "hopper_fp8", None, "left operand, bfloat16: it multiplies .* lack numbers of bfloat16"),
        ("bf16", "hopper_fp16", None, "lack numbers of bfloat16"),
        ("bf16", "blackwell_mxfp8", None, "bfloat16, without scales"),
        ("bf16", "hopper_fp64", 16, "added in binary32, which does not hold"),
        ("bf16", None, 16, "promote_every is for a unit"),
        ("bf16", "hopper", None, "unknown unit"),
        ("long scales", "hopper_fp8", None, "binary32, in which scales multiply .* not hold those of long"),
        ("no dtype", "two", None, "no dtype of NumPy or ml_dtypes holds short"),
    ],
)
def test_a_unit_that_does_not_go_with_a_recipe_is_refused_at_once(name, unit, promoted, message):
    with pytest.raises(ValueError, match=message):
        {**RECIPES, **MINE}[name].with_unit({"two": TWO}.get(unit, unit), promoted)


def taken():
    """Yield the recipes and units that go together."""
    for name, unit in itertools.product(RECIPES, mcf.UNITS):
        with suppress(ValueError):
            yield RECIPES[name].with_unit(unit), unit


@pytest.mark.parametrize(("recipe", "unit"), [*taken()], ids=str)
@pytest.mark.sampled(26, each=False)
def test_a_unit_that_is_taken_multiplies(recipe, unit):
    """What is refused is refused by the formats; what is not, whatever the numbers are."""
    arrays = data((3, 20, 4), 8, 12)
    arrays[0][0, :3] = np.nan, np.inf, 3e38
    y, backward = linear(recipe, *arrays[:2], WORDS)
    dx, dw = backward(arrays[2])
    assert y.shape == (3, 4)
    assert dx.shape == arrays[0].shape
    assert dw.shape == arrays[1].shape
    assert "to_fp16" in unit or np.isfinite(dx).all()


@pytest.mark.parametrize("block", ["axis", None, 32])
def test_elements_whose_format_has_another_name_and_scales_of_tensors(block):
    """Numbers are the largest element times the largest scale or a half of it, so that nothing is rounded."""
    five = replace(mcf.get_format("float8_e5m2"), name="five")
    fmt = mcf.ScaledFormat(
        "two scales", element=five, block=block, scale="e4m3fn", rule="absmax", tensor_scale="float32"
    )
    x, weight = (-(2.0 ** np.arange(n)[:, np.newaxis]) * np.ones(64) for n in (3, 2))
    x *= 1.75**2 * 2.0**40 * np.where(np.arange(64) < 32, 1, 0.5)  # the largest ones are 1.75 of a power
    found = linear(alike(fmt, "hopper_fp8"), x, weight)[0]
    assert np.array_equal(found, np.float32(x @ weight.T))


def test_operands_as_they_are_need_a_unit_of_binary32():
    assert ProductRecipe(unit=CHAIN).unit == CHAIN
    assert ProductRecipe(unit="hopper_tf32").unit == "hopper_tf32"
    with pytest.raises(ValueError, match="left operand, binary32: it multiplies bfloat16"):
        ProductRecipe(unit="hopper_bf16")


def test_blocks_of_two_lengths_need_a_unit_with_scales():
    short, long = (OperandRecipe(replace(mcf.SCALED["mxfp4"], block=size)) for size in (16, 32))
    with pytest.raises(ValueError, match="blocks of 16 and 32; cdna3_fp32 needs blocks of one length"):
        ProductRecipe(short, long, unit=CHAIN)
    product = ProductRecipe(short, long, unit="blackwell_mxfp4", output=None)
    recipe = replace(RECIPES["mxfp8"], name="two", forward=product)
    x, weight, _ = data((2, 40, 3))
    exact = mcf.quantize(x, short.format).dequantize().astype(np.float64)
    exact = exact @ mcf.quantize(weight, long.format).dequantize().T
    assert np.array_equal(linear(recipe, x, weight)[0], exact.astype(np.float32))
