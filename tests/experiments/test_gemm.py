"""Experiments with products in low precision: what is cheap again, and by fractions."""

from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from experiments import gemm_bias, gemm_losses, gemm_promotion, gemm_underflow
from experiments.common import _shorten as shorten
from experiments.common import read_result
from mcfsim.random import RandomWords
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, linear


@pytest.mark.parametrize("kind", gemm_promotion.PANELS)
@pytest.mark.slow
def test_errors_of_products_are_those_of_the_result(kind):
    result = read_result("gemm_promotion")
    for place, length in enumerate(gemm_promotion.LENGTHS[:3]):
        for name, found in gemm_promotion.errors(kind, length).items():
            again = shorten(np.percentile(found, gemm_promotion.QUARTILES).tolist())
            assert again == result["errors"][kind][name][place], (name, length)
            worst = result["bounds"].get(name)
            assert worst is None or found.max() <= worst[place]


@pytest.mark.slow
def test_errors_of_products_by_fractions():
    a, b = (mcf.round_to(x, gemm_promotion.FORMAT) for x in gemm_promotion.operands("positive", 256))
    found = gemm_promotion.errors("positive", 256)["Hopper, FP8"]
    made = mcf.matmul(a, b, unit="hopper_fp8")
    for row, column in ((0, 0), (3, 7), (15, 15)):
        terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[row], b[:, column], strict=True)]
        error = abs(Fraction(float(made[row, column])) - sum(terms)) / sum(map(abs, terms))
        assert found[row, column] == pytest.approx(float(error), rel=1e-12)
        assert error > 1e-4  # there is something to see


def test_bounds_grow_with_the_length_unless_sums_are_promoted():
    plain, promoted = (gemm_promotion.SUMS[f"Hopper, FP8{x}"] for x in ("", ", promoted every 128"))
    assert gemm_promotion.bound(plain, 32) == pytest.approx(34 / 2**13)
    assert gemm_promotion.bound(plain, 128) <= gemm_promotion.bound(promoted, 128) * (1 + 1e-6)
    assert gemm_promotion.bound(plain, 2**14) > 100 * gemm_promotion.bound(promoted, 2**14)


def test_parts_of_nvfp4_are_left_out_one_by_one():
    whole, parts = RECIPES["nvfp4"], gemm_losses.parts()
    assert tuple(parts) == gemm_losses.PARTS
    same = {
        name: [getattr(recipe, x) == getattr(whole, x) for x in ("forward", "dgrad", "wgrad", "last")]
        for name, recipe in parts.items()
    }
    assert [*same.values()] == [
        [True, True, False, True],
        [False, False, True, True],
        [True, False, False, True],
        [True, True, True, False],
        [False, False, False, False],
    ]
    assert not parts["without stochastic rounding"].stochastic
    assert not parts["without high layers"].keeps("layer3.mlp.up", 3, 4)
    assert whole.keeps("layer3.mlp.up", 3, 4)


def test_the_share_that_underflows():
    least = 2.0**-16
    dy = np.array([[0.0, 1.0, least / 2, 3 * least / 4, -least / 4, 0.0]], np.float32)
    words = RandomWords(1)
    for name, right in (("float8_e5m2", 2 / 4), ("float16", 0.0)):
        product = ProductRecipe(OperandRecipe(name))
        assert gemm_underflow.share(dy, product, words) == right


def test_the_bias_of_draws_does_not_count_what_draws_add():
    random = np.random.default_rng(3)
    right, bias = random.standard_normal((2, 2000))
    size = right @ right
    for length in (0.0, 0.3):
        errors = [length * bias + 5 * random.standard_normal(2000) for _ in range(400)]
        found = gemm_bias.of_draws(errors, right)
        assert found["bias_squared"] == pytest.approx(length**2 * (bias @ bias) / size, abs=0.01)
        assert found["stochastic"] == pytest.approx(np.sqrt((25 + length**2) * 2000 / size), rel=0.01)
        off = found["stochastic_slope"] - length * (bias @ right) / size
        assert abs(off) < 5 * found["stochastic_slope_error"] < 0.05
    assert gemm_bias.of_draws([right, right], right)["stochastic_slope"] == pytest.approx(1)


@pytest.mark.parametrize("name", gemm_bias.FORMATS)
def test_only_gradients_are_quantised(name):
    near, drawn, order = gemm_bias.FORMATS[name]
    random = np.random.default_rng(4)
    x, weight, dy = (random.standard_normal(shape, np.float32) for shape in ((256, 32), (48, 32), (256, 48)))
    for fmt, rounding in ((near, "nearest_even"), (drawn, "nearest_even" if order else "stochastic")):
        y, back = linear(gemm_bias.backward_only(fmt, rounding, order), x, weight, RandomWords(1))
        np.testing.assert_array_equal(y, x @ weight.T)
        for found, right in zip(back(dy), (dy @ weight, dy.T @ x), strict=True):
            error = np.linalg.norm(found - right) / np.linalg.norm(right)
            assert 1e-3 < error < 0.5
