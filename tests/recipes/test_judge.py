"""The judge of recipes is given false recipes and false layers, and finds each."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.recipes import RECIPES, linear
from mcfsim.recipes.linear_layer import LinearLayer, NumPyProducts
from mcfsim.recipes.recipe import OperandSource, Signs
from mcfsim.scaled import ScaledFormat, ScaleRule
from tests.recipes.by_definition import PAPERS, Layer
from tests.recipes.test_linear import CHAIN, data, same

pytestmark = pytest.mark.slow

WORDS = mcf.RandomWords(22)
#: Sides of layers whose matrices are square, so that none but the right result comes in the right shape.
SIDES = {"mxfp8": 5, "quartet": 6, "quartet2": 5, "nvfp4": 18, "fp4-all": 18}
#: Tokens, inputs and outputs of layers with more than one block.
LONG = {
    "mxfp8": [(2, 40, 2), (40, 2, 2), (2, 2, 40)],
    "fp8-blocks": [(2, 130, 2), (130, 2, 2), (2, 2, 130)],
    "quartet": [(2, 40, 1), (40, 6, 1), (1, 6, 40)],
    "quartet2": [(2, 20, 1)],
}
NAMES = [name for name in RECIPES if name != "bf16-truncating"]
OTHERS = [pytest.param(name, marks=pytest.mark.exhaustive) for name in NAMES if name != "mxfp8"]


def ties(side, wide):
    """Return matrices many of whose quotients lie half between elements of FP8, if `wide`, or of FP4."""
    rng = np.random.default_rng(side)
    halves = np.arange(8.5, 16) if wide else np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    found = []
    for by in (1.375, 1.625, 1.1875):
        x = rng.choice(halves, (side, side)) * rng.choice([-1, 1], (side, side)) * by
        x[0, 0] = 448 * by if wide else 2688 * by
        if not wide:
            rows = rng.choice([1.0, 1.25, 1.75, 9.0, 448.0], side)
            x[1:] *= rows[1:, np.newaxis]
            x[:, -1] = np.where(np.arange(side) > 0, 6 * rows * by, x[:, -1])
        found.append(x.astype(np.float32))
    return found


def cancelling(side):
    """Return matrices whose products cancel but for little things, which units cut."""
    x, weight, dy = data((side,) * 3, 9, 1)
    for a, b in ((x, weight), (dy, weight.T), (dy.T, x.T)):
        a[:, 0], a[:, 1], b[:, 0], b[:, 1] = 96.0, -96.0, 96.0, 96.0
    return [x, weight, dy]


def arrays_of(name):
    side = SIDES.get(name, 10)
    found = [data((side,) * 3, 5), data((side,) * 3, 6, 12), ties(side, "fp8" in name)]
    found += [cancelling(side)] if "fp4" not in name and "quartet" not in name else []
    for shape in LONG.get(name, []):
        found.append(data(shape, 5, 12 if name == "mxfp8" else 3))
        for x in found[-1]:  # blocks beyond the first have smaller scales
            x[32:] /= 8
            x[:, 32:] /= 8
    return found


@cache
def expected(name):
    """Return the three products of the paper, for each set of arrays."""
    found = []
    for x, weight, dy in arrays_of(name):
        judge = Layer(PAPERS[name], x, weight, WORDS, CHAIN)
        found.append((judge.y, *judge.backward(dy)))
    return found


def seen(name, recipe=None):
    """Return whether the judge tells the layer of a recipe, as it is now computed, from the paper's."""
    for (x, weight, dy), right in zip(arrays_of(name), expected(name), strict=True):
        try:
            y, backward = linear(recipe or RECIPES[name].with_unit(CHAIN), x, weight, WORDS)
            found = (y, *backward(dy))
        except ValueError:  # a rule that needs positive numbers, a rounding that is not of a rule
            return True
        if not all(same(*pair) for pair in zip(found, right, strict=True)):
            return True
    return False


# -- false recipes ----------------------------------------------------------------------------------------
def other_operands(operand, label):
    """Yield operands that differ from one in a single field."""
    fmt = operand.format
    for mode in ("nearest_even", "stochastic", "toward_zero"):
        rounding = replace(operand.rounding, mode=mode)
        if rounding != operand.rounding:
            yield mode, lambda r=rounding: replace(operand, rounding=r)
    if not isinstance(fmt, ScaledFormat):
        return
    for rule in ScaleRule:
        yield str(rule), lambda r=rule: replace(operand, format=fmt.with_rule(r))
    block = fmt.block
    others = [8, 16, (16, 16)] if isinstance(block, tuple) else [8, (8, 8)]
    for size in [*others, None, "axis"]:
        yield f"block {size}", lambda b=size: replace(operand, format=replace(fmt, block=b))
    for element in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
        yield element, lambda e=element: replace(operand, format=replace(fmt, element=e))
    if label in ("dgrad", "wgrad"):
        other = next(x for x in OperandSource if x is not operand.source)
        yield str(other), lambda: replace(operand, source=other)


def other_products(product):
    """Yield products that differ from one in a field of their own."""
    yield "swapped", lambda: replace(product, left=product.right, right=product.left)
    for order in (0, 2, 16, 32, 64, 128):
        signs = product.signs if order and product.signs is not Signs.FIXED else Signs.NONE
        yield f"order {order}", lambda o=order, s=signs: replace(product, hadamard=o, signs=s)
    for signs in Signs:
        yield f"signs {signs}", lambda s=signs: replace(product, signs=s)
    for output in (None, "bfloat16", "float16"):
        yield f"output {output}", lambda o=output: replace(product, output=o)
    fp4 = "float4_e2m1fn" in str(getattr(product.left.format, "element", ""))
    for unit in () if fp4 else ("hopper_bf16", "hopper_fp8"):  # sums of FP4 products are exact in each
        yield unit, lambda u=unit: replace(product, unit=u)


def false_recipes(name):
    """Yield what was changed, and the recipe; what cannot be made is left out."""
    recipe = RECIPES[name].with_unit(CHAIN)
    for label, product in recipe.products.items():
        made = [(what, make) for what, make in other_products(product)]
        for side in ("left", "right"):
            for what, make in other_operands(getattr(product, side), label):
                made.append((f"{side} {what}", lambda m=make, s=side, p=product: replace(p, **{s: m()})))
        for what, make in made:
            try:
                changed = make()
                if changed != product:
                    yield f"{label} {what}", replace(recipe, **{label: changed})
            except ValueError:  # UnsupportedFormatError is one
                continue


#: Rules whose scales are the same but for last bits, or for amax beyond what is tried. What they do there is
#: judged where rules are: `tests/scaled`.
_KINDRED = [
    {"absmax", "torchao", "transformer_engine", "current", "deepseek", "max"},
    {"round_up", "ceil", "floor_power", "deepseek_power"},
    {"four_six_mae", "four_six_mse"},
]
#: False recipes that are right: numbers that were quantised stay as they are, and so do rows of one block.
_ALIKE = {
    "mxfp8": {
        "forward left block axis",
        "forward right block axis",
        "dgrad left block axis",
        "dgrad right block axis",
    },
    "fp8-tensor": {"dgrad right forward", "wgrad right forward"},
    "fp8-blocks": {"dgrad right forward", "dgrad left block axis"},
    "nvfp4": {"dgrad right forward"},
    "quartet": {"dgrad left block axis", "dgrad right block axis"},  # small beside what bfloat16 keeps
}


def kindred(name, what):
    """Return whether what was changed is a rule, and the new one gives the same scales but for last bits."""
    label, side, *rule = what.split()
    if side not in ("left", "right") or rule[0] not in set(ScaleRule):
        return False
    own = str(getattr(getattr(RECIPES[name], label), side).format.rule)
    return any({own, rule[0]} <= family for family in _KINDRED)


@pytest.mark.parametrize("name", ["mxfp8", *OTHERS])
@pytest.mark.costly("a hundred false recipes, and layers by definition that tell them")
def test_false_recipes_are_told_from_the_true_one(name):
    assert not seen(name)
    made = list(false_recipes(name))
    missed = {what for what, recipe in made if not seen(name, recipe)}
    assert len(made) > 30
    odd = {what for what in missed if not kindred(name, what) and not what.endswith("hopper_bf16")}
    assert odd <= _ALIKE.get(name, set())
    assert len(missed) < len(made) / 6


# -- false layers -----------------------------------------------------------------------------------------
ENTER, ROTATE, DRAWN, OF = NumPyProducts.enter, NumPyProducts.rotate, LinearLayer.signs, LinearLayer._of
MULTIPLY, ENTERED, GRADIENT = NumPyProducts.multiply, LinearLayer._entered, LinearLayer._gradient


def signs_of_its_own(self, name):
    self.count = getattr(self, "count", 0) + 1
    found = DRAWN(self, name)
    return None if found is None else found.of(self.count)


def not_rotated_back(self, x, product, words, *, back=False):
    return x if back else ROTATE(self, x, product, words)


def rotated_without_signs(self, x, product, words, *, back=False):
    return ROTATE(self, x, replace(product, signs=Signs.NONE), words, back=back)


def never_rotated(self, x, product, words, *, back=False):
    return np.pad(x, ((0, 0), (0, -x.shape[1] % product.hadamard)))


def filled_up_in_front(self, x, product, words, *, back=False):
    fill = 0 if back else -x.shape[1] % product.hadamard
    return ROTATE(self, np.pad(x, ((0, 0), (fill, 0))), product, words, back=back)


def masked_by_the_other(self, name, dy, other, forward, wanted):
    return GRADIENT(self, name, dy, other, forward, forward)


def not_masked(self, name, dy, other, forward, wanted):
    return GRADIENT(self, name, dy, other, forward, wanted._replace(inside=None))


def mask_turned(self, name, dy, other, forward, wanted):
    inside = wanted.inside
    return GRADIENT(
        self, name, dy, other, forward, wanted._replace(inside=None if inside is None else ~inside)
    )


def not_turned(self, name, dy, other, forward, wanted):
    return GRADIENT(self, name, dy.T, other, forward, wanted)


def of_the_other(self, name, dy, other, forward, wanted):
    return GRADIENT(self, name, dy, other, wanted, forward)


def by_the_transposed(self, name, dy, other, forward, wanted):
    forward = forward._replace(values=forward.values[:, : len(forward.values)].T)
    return GRADIENT(self, name, dy, other.T, forward, wanted)


def across(self, x, recipe, words):
    found = ENTER(self, x.T, recipe, words)
    return type(found)(np.ascontiguousarray(found.values.T), None, found.inside)


def plain_numbers(self, x, recipe, words):
    return ENTER(self, x, recipe, words)._replace(scaled=None)


def not_quantised(self, x, recipe, words):
    return type(ENTER(self, x, recipe, words))(x)


def words_of_the_transposed(self, x, recipe, words):
    if words is None or not recipe.stochastic or recipe.format.group:
        return ENTER(self, x, recipe, words)
    drawn = words.words(0, x.size, bits=16).reshape(x.shape[::-1]).T
    return ENTER(self, x, recipe, np.ascontiguousarray(drawn))


def without_the_tensors_scale(self, x, recipe, words):
    found = ENTER(self, x, recipe, words)
    if found.scaled is None or found.scaled.tensor_scale is None:
        return found
    return found._replace(scaled=replace(found.scaled, tensor_scale=1.0))


def without_scales(self, x, recipe, words):
    found = ENTER(self, x, recipe, words)
    if found.scaled is None:
        return found
    return found._replace(scaled=replace(found.scaled, scale=np.ones_like(found.scaled.scale)))


def words_shared(self, place):
    return OF(self, place - place % 2 if place < 6 else place)


def words_again(self, place):
    return OF(self, place - 2 if place in (4, 5) else place)


def words_of_the_first(self, place):
    return OF(self, 0 if place < 6 else place)


def signs_of_an_operand(self, place):
    return OF(self, place - 5 if place >= 6 else place)


def not_rounded(self, a, b, product):
    return MULTIPLY(self, a, b, replace(product, output=None))


def swapped(self, a, b, product):
    return MULTIPLY(self, b, a, replace(product, left=product.right, right=product.left))


def result_turned(self, a, b, product):
    return MULTIPLY(self, a, b, product).T


def left_alone_is_rotated(self, name, left, right):
    product = self.recipe.products[name]
    if not product.hadamard:
        return ENTERED(self, name, left, right)
    right = ROTATE(self.products, right, product, DRAWN(self, name), back=True)
    return ENTERED(self, name, left, right[:, : left.shape[1]])


_ALL = tuple(NAMES)
_SCALED = tuple(name for name in NAMES if name != "bf16")
_TURNED, _THROUGH = ("nvfp4", "quartet", "quartet2"), ("quartet", "quartet2")
_TENSORS = ("nvfp4", "fp4-all", "quartet", "quartet2")
#: What is put in place of what, and the recipes whose layers it makes false.
FALSE = [
    (LinearLayer, "signs", signs_of_its_own, _THROUGH),
    (NumPyProducts, "rotate", not_rotated_back, ("quartet",)),
    (NumPyProducts, "rotate", rotated_without_signs, _TURNED),
    (NumPyProducts, "rotate", never_rotated, _TURNED),
    (NumPyProducts, "rotate", filled_up_in_front, _TURNED),
    (LinearLayer, "_gradient", masked_by_the_other, ("quartet",)),
    (LinearLayer, "_gradient", not_masked, ("quartet",)),
    (LinearLayer, "_gradient", mask_turned, ("quartet",)),
    (LinearLayer, "_gradient", not_turned, _ALL),
    (LinearLayer, "_gradient", of_the_other, ("fp8-blocks", *_THROUGH)),
    (LinearLayer, "_gradient", by_the_transposed, _ALL),
    (NumPyProducts, "enter", across, tuple(x for x in _SCALED if x not in ("fp8-tensor", "fp8-blocks"))),
    (NumPyProducts, "enter", plain_numbers, ("fp8-tensor", "nvfp4", "fp4-all", "quartet2")),
    (NumPyProducts, "enter", not_quantised, _ALL),
    (NumPyProducts, "enter", words_of_the_transposed, ("nvfp4", "fp4-all", "quartet")),
    (NumPyProducts, "enter", without_the_tensors_scale, _TENSORS),
    (NumPyProducts, "enter", without_scales, _SCALED),
    (LinearLayer, "_of", words_shared, ("fp4-all", *_THROUGH)),
    (LinearLayer, "_of", words_again, _TENSORS),
    (LinearLayer, "_of", words_of_the_first, _TENSORS),
    (LinearLayer, "_of", signs_of_an_operand, _THROUGH),
    (NumPyProducts, "multiply", not_rounded, _ALL),
    (NumPyProducts, "multiply", result_turned, _ALL),
    (LinearLayer, "_entered", left_alone_is_rotated, _TURNED),
    (NumPyProducts, "rounded", lambda self, x, product: x, _ALL),
]


#: Each by two recipes at the most, which take turns; in the ordinary run by that whose products are made.
CASES = [
    pytest.param(*case, name, marks=() if name == "mxfp8" else pytest.mark.exhaustive)
    for turn, (*case, names) in enumerate(FALSE)
    for place in range(min(2, len(names)))
    for name in [names[(turn + place) % len(names)]]
]


@pytest.mark.parametrize(("owner", "place", "false", "name"), CASES)
@pytest.mark.costly("layers by definition, which false ones are told from")
def test_false_layers_are_told_from_the_true_one(owner, place, false, name):
    with patch.object(owner, place, false):
        assert seen(name)


MANY = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("bf16", "fp8-tensor")]


@pytest.mark.parametrize("name", ["mxfp8", *MANY])
@pytest.mark.costly("layers by definition")
def test_operands_may_change_places_with_the_result(name):
    """Operands that change places in the multiplication, not in the result, are the same product."""
    with patch.object(NumPyProducts, "multiply", lambda *x: swapped(*x).T):
        assert not seen(name)
