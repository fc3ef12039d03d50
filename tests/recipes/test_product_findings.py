"""What recipes do to products, against a count by the definition in exact fractions."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.oracle import round_fraction
from mcfsim.recipes import (
    RECIPES,
    OperandFinding,
    OperandRecipe,
    ProductRecipe,
    Recipe,
    audit_products,
    linear,
    product_findings,
)
from mcfsim.recipes.linear_layer import Entered, NumPyProducts
from tests.scaled.definition import SATURATING, by_definition

TOKENS, INPUTS, OUTPUTS = 4, 40, 5


def recipe_of(fmt, **options):
    operand = OperandRecipe(fmt)
    product = ProductRecipe(operand, operand, **{"output": None, **options})
    return Recipe("one", forward=product, dgrad=product, wgrad=product)


def operands(seed=0, tokens=TOKENS, outputs=OUTPUTS, inputs=INPUTS):
    """Return activations, weights and gradients with zeros, small numbers and outliers."""
    rng = np.random.default_rng(seed)
    found = []
    for shape in ((tokens, inputs), (outputs, inputs), (tokens, outputs)):
        x = rng.normal(size=shape) * 2.0 ** rng.integers(-6, 1, shape)
        x[rng.random(shape) < 0.1] = 0
        x[rng.random(shape) < 0.03] *= 64
        found.append(x.astype(np.float32))
    found[0][0, :32] = found[0][0, :32].clip(-1, 1)
    found[0][0, 0] = 6  # the largest number of MXFP4 with a scale of 1, which is not clipped
    return found


def fractions(x):
    return [[Fraction(float(y)) for y in row] for row in x]


def product(a, b):
    """Return ``a b'`` of lists of fractions."""
    return [[sum((x * y for x, y in zip(r, s, strict=True)), Fraction(0)) for s in b] for r in a]


def squares(a, b=None):
    """Return the sum of the squares of what differs, or of all."""
    b = b or [[0] * len(row) for row in a]
    return sum((x - y) ** 2 for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True))


def counted(x, fmt):
    """Return an operand's numbers as they enter, and its counts, block by block."""
    size = fmt.block
    blocks = [row[place : place + size] for row in x for place in range(0, x.shape[1], size)]
    width = max(map(len, blocks))
    filled = np.array([np.pad(block, (0, width - len(block))) for block in blocks])
    scales, tensor_scale, [(_, numbers)] = by_definition(filled, fmt, ["nearest_even"])
    nonzero = underflowed = saturated = looked = outliers = 0
    for block, scale, entered in zip(blocks, scales, numbers, strict=True):
        top = Fraction(fmt.element.max) * Fraction(float(scale)) * Fraction(tensor_scale)
        for given, got in zip(block, entered, strict=False):
            nonzero += given != 0
            underflowed += given != 0 and got == 0
            saturated += given != 0 and abs(Fraction(float(given))) > top
        order = sorted((abs(Fraction(float(y))) for y in block), reverse=True)
        if len(order) > 1 and order[0]:
            looked += 1
            outliers += order[0] >= 4 * order[1]
    # Operands are numbers of binary32: elements times scales, rounded once where it does not hold them.
    rows = numbers.astype(np.float32).reshape(len(x), -1, width)
    joined = [[y for b, part in enumerate(row) for y in part[: x.shape[1] - b * size]] for row in rows]
    return np.array(joined), (nonzero, underflowed, saturated, looked, outliers)


def judge(fmt, outputs):
    """Compare findings with those of the definition."""
    x, weight, dy = operands(outputs=outputs)
    recipe, kind = recipe_of(fmt), mcf.SCALED[fmt]
    found = audit_products(recipe, x, weight, dy)
    pairs = {"forward": (x, weight), "dgrad": (dy, weight.T), "wgrad": (dy.T, x.T)}
    names = {"forward": ("x", "weight"), "dgrad": ("dy", "weight"), "wgrad": ("dy", "x")}
    assert list(found) == [(name, operand) for name in pairs for operand in names[name]]
    for name, both in pairs.items():
        entered = [counted(np.ascontiguousarray(operand), kind) for operand in both]
        exact = product(*(fractions(operand) for operand in both))
        rounded = product(*(fractions(numbers) for numbers, _ in entered))
        error = squares(rounded, exact) / squares(exact)
        for operand, given, (numbers, counts) in zip(names[name], both, entered, strict=True):
            one = found[name, operand]
            # The product is summed in binary32, so that its error is known to some 1e-6 of the operands'.
            assert one.relative_error == pytest.approx(math.sqrt(error), rel=1e-4)
            own = squares(fractions(numbers), fractions(given)) / squares(fractions(given))
            assert one.operand_error == pytest.approx(math.sqrt(own), rel=1e-13)
            assert (one.nonzero, one.underflowed, one.saturated, one.blocks, one.outliers) == counts
    assert any(one.outliers for one in found.values())


@pytest.mark.parametrize(("fmt", "outputs"), [("mxfp4", 5), ("nvfp4", 33), ("mxfp8_e4m3", 5)])
@pytest.mark.slow
def test_findings_are_those_of_the_definition(fmt, outputs):
    judge(fmt, outputs)


FAULTS = {
    "other outliers": (product_findings, "OUTLIER", 3),
    "nothing clipped": (product_findings, "_clipped", lambda x, *_: np.zeros(x.shape, bool)),
    "all clipped that is largest": (
        product_findings,
        "_clipped",
        lambda x, fmt, found: ~found.scaled.inside(x),
    ),
    "sums of magnitudes": (product_findings, "_square", lambda x: float(np.abs(x).sum())),
    "other operands": (NumPyProducts, "enter", lambda self, x, *_: Entered(x, mcf.quantize(x, "mxfp8_e4m3"))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_false_findings_are_seen(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        judge("mxfp4", 5)


def test_errors_of_products_are_exact_where_sums_are():
    """Products of whole numbers in bfloat16: the sum is exact in binary32, and then rounded once."""
    rng = np.random.default_rng(3)
    x, weight = (rng.integers(-40, 41, (7, 9)).astype(np.float32) for _ in range(2))
    found = audit_products("bf16", x, weight)["forward", "x"]
    exact = product(fractions(x), fractions(weight))
    got = [[Fraction(round_fraction(y, mcf.FORMATS["bfloat16"], SATURATING)) for y in row] for row in exact]
    assert found.product_error == float(squares(got, exact)) > 0
    assert found.product_size == float(squares(exact))
    assert (found.error, found.underflow, found.saturation) == (0, 0, 0)
    assert math.isnan(found.outlier_blocks)


@pytest.mark.parametrize("name", RECIPES)
def test_products_are_those_of_linear(name):
    x, weight, dy = operands(1, tokens=32, outputs=16)
    words = mcf.RandomWords(5, 1, 2)
    y, backward = linear(name, x, weight, words)
    dx, dweight = backward(dy)
    found = audit_products(name, x, weight, dy, words)
    for label, got, factors in (
        ("forward", y, (x, weight.T)),
        ("dgrad", dx, (dy, weight)),
        ("wgrad", dweight, (dy.T, x)),
    ):
        exact = factors[0].astype(np.float64) @ factors[1].astype(np.float64)
        for operand in ("x", "weight", "dy"):
            if (label, operand) in found:
                error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
                assert found[label, operand].relative_error == pytest.approx(error, rel=1e-12)


def test_tiles_and_tensors_are_blocks_too():
    x = np.full((32, 32), 0.5, np.float32)
    x[0, 0] = 8
    weight = np.ones((16, 32), np.float32)
    one = audit_products("nvfp4", x, x, words=mcf.RandomWords(0))["forward", "weight"]  # 16x16
    assert (one.blocks, one.outliers) == (4, 1)
    one = audit_products("fp8-tensor", x, weight)["forward", "x"]
    assert (one.blocks, one.outliers) == (1, 1)
    x[0, 1] = -2  # of four times the second largest on
    assert audit_products("fp8-tensor", x, weight)["forward", "x"].outliers == 1
    x[0, 1] = np.nextafter(np.float32(2), np.float32(3))
    assert audit_products("fp8-tensor", x, weight)["forward", "x"].outliers == 0


def test_blocks_of_one_number_or_of_zeros_are_not_looked_at():
    x = np.zeros((3, 33), np.float32)
    x[0, 32] = x[1, 0] = 1
    one = audit_products(recipe_of("mxfp4"), x, x)["forward", "x"]
    assert (one.blocks, one.outliers, one.nonzero) == (1, 1, 2)


def test_findings_of_nothing_and_of_zeros():
    none = np.zeros((0, 32), np.float32)
    weight = np.ones((4, 32), np.float32)
    for x in (none, np.zeros((3, 32), np.float32)):
        one = audit_products("mxfp8", x, weight)["forward", "x"]
        assert (one.relative_error, one.operand_error, one.nonzero) == (0, 0, 0)
        assert all(map(math.isnan, (one.underflow, one.saturation, one.outlier_blocks)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_makes_errors_nan_and_is_not_counted(bad):
    x, weight, dy = operands()
    clean = audit_products("mxfp8", x, weight, dy)["forward", "x"]
    x[0, 0] = bad
    found = audit_products("mxfp8", x, weight, dy)
    for product_name in ("forward", "wgrad"):
        assert math.isnan(found[product_name, "x"].relative_error)
    assert math.isfinite(found["dgrad", "dy"].relative_error)
    assert found["forward", "x"].nonzero in (clean.nonzero, clean.nonzero - 1)
    assert found["forward", "x"].blocks == clean.blocks - 1


def test_sums_add_up_over_calls():
    parts = [audit_products("mxfp8", *operands(seed)[:2])["forward", "x"] for seed in range(3)]
    whole = OperandFinding.joined(parts)
    assert whole.nonzero == sum(part.nonzero for part in parts)
    error = math.sqrt(sum(p.product_error for p in parts) / sum(p.product_size for p in parts))
    assert whole.relative_error == error
    assert OperandFinding.joined([]) == OperandFinding()


def test_what_cannot_be_measured_is_refused():
    x, weight, dy = operands()
    for given, message in (
        ((x, weight[:, :3]), "share the number of inputs"),
        ((x, weight, dy.T), "that of the output"),
        ((x[0], weight), "must be a matrix"),
    ):
        with pytest.raises(ValueError, match=message):
            audit_products("mxfp8", *given)
    with pytest.raises(ValueError, match="unknown product 'back'"):
        audit_products("mxfp8", x, weight, products=["back"])
    for products in (["dgrad"], ["forward", "dgrad"]):
        with pytest.raises(ValueError, match="the products dgrad need dy"):
            audit_products("mxfp8", x, weight, products=products)
    with pytest.raises(ValueError, match="needs words"):
        audit_products(replace(RECIPES["fp4-all"]), x, weight)
