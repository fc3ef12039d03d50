"""The three products of every named recipe against fractions: bits by units, bounds by binary32."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.recipes import RECIPES, linear
from tests.recipes.by_definition import PAPERS, Layer

pytestmark = pytest.mark.slow

#: Fused multiply-adds in order, which every recipe's elements have.
CHAIN = "cdna3_fp32"
#: Units that multiply what a recipe stores.
OWN = {
    "bf16": "hopper_bf16",
    "mxfp8": "blackwell_mxfp8",
    "fp8-tensor": "hopper_fp8",
    "fp8-blocks": "hopper_fp8",
    "nvfp4": "blackwell_nvfp4",
    "fp4-all": "blackwell_nvfp4",
    "quartet": "blackwell_mxfp4",
    "quartet2": "blackwell_nvfp4",
}
#: Tokens, inputs, outputs: blocks, tiles and groups that end short, along each of the contracted axes.
SHAPES = [(2, 130, 2), (130, 2, 2), (2, 2, 130), (18, 5, 19), (1, 1, 1)]
_FEWER = {"quartet": [(3, 20, 2), (1, 1, 1)], "quartet2": [(2, 18, 1), (1, 1, 1)]}
_LONG = {"quartet": [(2, 36, 2), (34, 2, 2), (2, 2, 34)], "quartet2": [(130, 2, 1), (1, 2, 130)]}
_COSTLY = pytest.mark.costly("groups and rotations of 32 and 128 numbers that end short, in fractions")


def cases(names):
    """Return names of recipes with the shapes of their layers."""
    return [
        pytest.param(name, shape, id=f"{name}-{'x'.join(map(str, shape))}", marks=marks)
        for name in names
        for shapes, marks in (
            (_FEWER.get(name, SHAPES), ()),
            (_LONG.get(name, []), (_COSTLY, pytest.mark.exhaustive)),
        )
        for shape in shapes
    ]


def data(shape, seed=0, spread=3):
    """Return activations, weights and gradients, with outliers and zeros."""
    tokens, inputs, outputs = shape
    rng = np.random.default_rng([seed, *shape])
    found = []
    for rows, columns in ((tokens, inputs), (outputs, inputs), (tokens, outputs)):
        x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-spread, spread + 1, (rows, columns))
        found.append(np.where(rng.random((rows, columns)) < 0.1, 0.0, x).astype(np.float32))
    return found


def same(found, expected):
    """Return whether arrays have the same bits, NaN alike; zeros of either sign count as one number."""
    found, expected = np.asarray(found), np.asarray(expected)
    return (
        found.dtype == expected.dtype == np.float32
        and found.shape == expected.shape
        and np.array_equal(found + np.float32(0), expected + np.float32(0), equal_nan=True)
    )


def wrong(computed, name, unit, arrays, words, paper=None):
    """Return which of the three products are not those of the paper; `computed` as `linear`."""
    x, weight, dy = arrays
    judge = Layer(paper or PAPERS[name], x, weight, words, unit)
    y, backward = computed(x, weight, words)
    pairs = zip((y, *backward(dy)), (judge.y, *judge.backward(dy)), strict=True)
    return [label for label, pair in zip(("y", "dx", "dw"), pairs, strict=True) if not same(*pair)]


def by(recipe):
    """Return the package's layer of a recipe."""
    return lambda x, weight, words: linear(recipe, x, weight, words)


WORDS = mcf.RandomWords(7, 3, 2, 64)


@pytest.mark.parametrize(("name", "shape"), cases(x for x in RECIPES if x != "bf16-truncating"))
@pytest.mark.sampled(23, each=False)
@pytest.mark.costly("rotations of 128 numbers in fractions")
def test_products_in_order_are_those_of_the_paper(name, shape):
    assert not wrong(by(RECIPES[name].with_unit(CHAIN)), name, CHAIN, data(shape), WORDS)


@pytest.mark.parametrize(("name", "shape"), cases(OWN))
@pytest.mark.sampled(39, each=False)
@pytest.mark.costly("rotations of 128 numbers in fractions")
def test_products_by_the_units_of_the_time_are_those_of_the_paper(name, shape):
    """Of the same numbers as in order, so that the judge quantises them once."""
    recipe = RECIPES[name].with_unit(OWN[name])
    assert not wrong(by(recipe), name, OWN[name], data(shape), WORDS)
