"""Recipes as data: what they say of themselves, what they refuse, and the way through JSON and back."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from mcfsim.formats.grids import grid
from mcfsim.products import UNITS
from mcfsim.recipes import RECIPES, OperandRecipe, ProductRecipe, Recipe, get_recipe
from mcfsim.recipes.named_recipes import recipe_data, recipe_from
from mcfsim.scaled import SCALED


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_the_same_after_json(name):
    recipe = RECIPES[name]
    assert recipe_from(json.loads(json.dumps(recipe_data(recipe)))) == recipe
    own = replace(recipe, name="own", high=("head*",), first=Fraction(1, 3))
    data = json.loads(json.dumps(recipe_data(own)))
    again = recipe_from(data)
    assert (again, again.name) == (own, "own")
    assert recipe_data(again) == data
    for place in data:
        with pytest.raises(ValueError, match=f"'{place}' is missing"):
            recipe_from({key: value for key, value in data.items() if key != place})


def test_an_own_unit_goes_through_json():
    unit = replace(UNITS["hopper_fp8"], name="mine", fraction_bits=14)
    recipe = replace(RECIPES["fp8-tensor"].with_unit(unit), name="mine")
    again = recipe_from(json.loads(json.dumps(recipe_data(recipe))))
    assert again == recipe
    assert again.forward.unit.fraction_bits == 14


@pytest.mark.parametrize("fmt", [SCALED["int8"], "int8", SCALED["ternary"], grid("ternary"), "bf16"], ids=str)
def test_formats_that_share_a_name_stay_what_they_are_in_json(fmt):
    product = ProductRecipe(OperandRecipe(fmt), output="fp16")
    recipe = Recipe("own", forward=product, dgrad=product, wgrad=product)
    assert recipe_from(json.loads(json.dumps(recipe_data(recipe)))) == recipe


def test_a_recipe_under_the_name_of_another_is_not_taken_for_it():
    other = replace(RECIPES["mxfp8"], name="nvfp4")
    assert recipe_from(recipe_data(other)) == other != RECIPES["nvfp4"]


@pytest.mark.parametrize(
    ("block", "blocks", "high"),
    [(0, 62, True), (1, 62, True), (2, 62, False), (53, 62, False), (54, 62, True)],
)
def test_blocks_at_both_ends_stay_high(block, blocks, high):
    assert RECIPES["nvfp4"].keeps("anything", block, blocks) is high


def test_shares_of_few_blocks_are_rounded_to_the_nearest_number():
    recipe = replace(RECIPES["mxfp8"], first=Fraction(1, 4), last=Fraction(1, 8))
    for blocks, kept in ((1, []), (2, [0]), (4, [0, 3]), (12, [0, 1, 2, 10, 11])):
        assert [block for block in range(blocks) if recipe.keeps("x", block, blocks)] == kept
    assert not recipe.keeps("x")
    assert replace(recipe, high=("layer?.out",)).keeps("layer3.out")


def test_which_recipes_are_stochastic():
    drawn = {name for name, recipe in RECIPES.items() if recipe.stochastic}
    assert drawn == {"nvfp4", "fp4-all", "quartet", "quartet2"}
    assert not any(recipe.forward.stochastic for recipe in RECIPES.values())


def test_units_are_changed_together():
    changed = RECIPES["mxfp8"].with_unit("blackwell_mxfp8")
    assert {product.unit for product in changed.products.values()} == {"blackwell_mxfp8"}
    assert changed.with_unit(None) == RECIPES["mxfp8"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OperandRecipe("nvpf4"), ValueError, "nvpf4"),
        (lambda: OperandRecipe("posit8"), ValueError, "no floating-point format"),
        (lambda: OperandRecipe("nvfp4", "nearst"), ValueError, "nearst"),
        (lambda: OperandRecipe("nvfp4", source="back"), ValueError, "back"),
        (lambda: ProductRecipe("nvfp4"), TypeError, "left must be an OperandRecipe"),
        (lambda: ProductRecipe(hadamard=24), ValueError, "hadamard = 24 must be a power of two"),
        (lambda: ProductRecipe(hadamard=1), ValueError, "hadamard = 1"),
        (lambda: ProductRecipe(hadamard=True), TypeError, "hadamard"),
        (lambda: ProductRecipe(signs="random"), ValueError, "hadamard is 0"),
        (lambda: ProductRecipe(hadamard=32, signs="fixed"), ValueError, "16, and hadamard is 32"),
        (lambda: ProductRecipe(unit="hoper_fp8"), ValueError, "hopper_fp8"),
        (lambda: ProductRecipe(promote_every=0), ValueError, "promote_every"),
        (lambda: replace(RECIPES["bf16"], first=2), ValueError, "first = 2 must be a share"),
        (lambda: replace(RECIPES["bf16"], first="x"), ValueError, "first = x must be a share"),
        (lambda: replace(RECIPES["bf16"], first="1/0"), ValueError, "first = 1/0 must be a share"),
        (lambda: replace(RECIPES["bf16"], last=float("nan")), ValueError, "last = nan must be a share"),
        (lambda: replace(RECIPES["bf16"], last=None), ValueError, "last = None must be a share"),
        (lambda: replace(RECIPES["bf16"], high="head"), TypeError, "tuple of patterns"),
        (lambda: replace(RECIPES["bf16"], high=iter(["head"])), TypeError, "tuple of patterns"),
        (lambda: RECIPES["nvfp4"].keeps("x", 3), ValueError, "block = 3 must be .* less than blocks = 0"),
        (lambda: ProductRecipe(output="float64"), ValueError, "float64 is no .* format of binary32"),
        (lambda: ProductRecipe(output="posit16"), ValueError, "posit16 is no floating-point format"),
        (lambda: replace(RECIPES["bf16"], wgrad=None), TypeError, "wgrad must be a ProductRecipe"),
        (lambda: replace(RECIPES["bf16"], name=3), TypeError, "name"),
        (lambda: get_recipe(3), TypeError, "a Recipe or a name"),
        (lambda: get_recipe("fp8"), ValueError, "fp8-tensor"),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_forward_product_cannot_take_what_it_took():
    taken = OperandRecipe("mxfp4", source="forward")
    product = ProductRecipe(taken, taken)
    with pytest.raises(ValueError, match="only weights in dgrad and activations in wgrad"):
        Recipe("own", forward=product, dgrad=product, wgrad=product)


def test_operands_take_scaled_formats_and_formats_by_name():
    assert OperandRecipe("mxfp4").format == OperandRecipe(" MXFP4").format == SCALED["mxfp4"]
    assert str(OperandRecipe("float8_e4m3fn").format) == "float8_e4m3fn"
    assert str(OperandRecipe()) == "binary32"
