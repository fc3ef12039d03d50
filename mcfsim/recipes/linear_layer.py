"""The three products of a linear layer by a recipe, for arrays or tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import real_array
from mcfsim.convert import round_to
from mcfsim.kernels.carriers import native_dtype
from mcfsim.products import Unit, get_unit, matmul
from mcfsim.random import RandomWords
from mcfsim.recipes.named_recipes import get_recipe
from mcfsim.recipes.recipe import (
    Kind,
    OperandRecipe,
    OperandSource,
    ProductRecipe,
    Recipe,
    Signs,
    element_format,
    scales_along,
)
from mcfsim.scaled import Scaled, ScaledFormat, quantize
from mcfsim.scaled.hadamard_transform import hadamard

Array = NDArray[Any]
Single = NDArray[np.float32]


class Entered(NamedTuple):
    """An operand as it entered a product; the contracted axis is the last.

    Attributes
    ----------
    values : array, shape (rows, contracted)
        Its numbers in binary32: elements times scales, rounded once where binary32 does not hold them.
    scaled : Scaled or None
        Elements and scales, which matrix units take; None if it has no scales.
    inside : array of bool or None
        Where the rule of the scales did not clip it, if the rule clips on purpose.
    """

    values: Any
    scaled: Scaled | None = None
    inside: Any = None


class NumPyProducts:
    """Products of arrays of float32."""

    def matrix(self, x: Any, label: str) -> Single:
        """Return a matrix as float32, or raise."""
        array = real_array(x, label)
        if array.ndim != 2:
            raise ValueError(f"{label} of shape {array.shape} must be a matrix")
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, np.float32)

    def operands(self, x: Any, weight: Any) -> tuple[Single, Single]:
        """Return the activations and weights of a layer, or raise."""
        left, right = self.matrix(x, "x"), self.matrix(weight, "weight")
        if left.shape[1] != right.shape[1]:
            raise ValueError(
                f"x of {left.shape} and weight of {right.shape} do not share the number of inputs"
            )
        return left, right

    def gradient(self, dy: Any, shape: tuple[int, ...]) -> Single:
        """Return the gradient of an output of this shape, or raise."""
        found = self.matrix(dy, "dy")
        if found.shape != shape:
            raise ValueError(f"dy of shape {found.shape} must have that of the output, {shape}")
        return found

    def enter(self, x: Array, recipe: OperandRecipe, words: RandomWords | None) -> Entered:
        """Quantise a matrix whose contracted axis is the last."""
        if recipe.format is None:
            return Entered(x)
        x, random = np.ascontiguousarray(x), words if recipe.stochastic else None
        if not isinstance(recipe.format, ScaledFormat):
            return Entered(round_to(x, recipe.format, recipe.rounding, random=random))
        found = quantize(x, recipe.format, rounding=recipe.rounding, random=random)
        return Entered(found.in_binary32(), found, found.inside(x) if recipe.clips else None)

    def rotate(
        self, x: Array, product: ProductRecipe, words: RandomWords | None, *, back: bool = False
    ) -> Array:
        """Transform the last axis, padded with zeros to a multiple of the order; or transform it back."""
        fill = -x.shape[1] % product.hadamard
        filled = np.pad(x, ((0, 0), (0, fill))) if fill else x
        return hadamard(filled, product.hadamard, signs=signs_in(product, words), inverse=back)

    def multiply(self, a: Entered, b: Entered, product: ProductRecipe) -> Single:
        """Return ``a b'``, rounded to the output's format."""
        with np.errstate(all="ignore"):
            unit = product.unit
            found = a.values @ b.values.T if unit is None else by_unit(a, b, product)
        return self.rounded(found, product)

    def rounded(self, x: Single, product: ProductRecipe) -> Single:
        """Return numbers rounded to the output's format."""
        return x if product.output is None else round_to(x, product.output)


def signs_in(product: ProductRecipe, words: RandomWords | None) -> RandomWords | str | None:
    """Return the signs of a product's transform, as `mcfsim.hadamard` takes them."""
    return {Signs.NONE: None, Signs.FIXED: "transformer_engine", Signs.RANDOM: words}[product.signs]


# -- by a matrix unit --------------------------------------------------------------------------------------
def by_unit(a: Entered, b: Entered, product: ProductRecipe, multiply: Callable[..., Any] = matmul) -> Single:
    """Return ``a b'`` as a matrix unit computes it.

    A unit with scales takes elements and scales. A unit without them multiplies elements. Scales of tensors
    or rows then multiply the result; the product of both is rounded to binary32 first. With scales of blocks,
    the sum of each block starts from zero, and a fused multiply-add in binary32 adds it, times the product of
    its scales, to the blocks before, as in DeepGEMM. Second scales, those of tensors, come last, also by
    their product.

    `ProductRecipe` checks that a unit goes with the operands. `multiply` does what `mcfsim.matmul` does.
    """
    unit = get_unit(product.unit or "")
    if unit.scales:
        left, right = _of_rows(a), _of_rows(b)
        turned = replace(right, elements=right.elements.T, scale=right.scale.T, axis=0)
        return _single(multiply(left, turned, unit=unit, promote_every=product.promote_every))
    x, y = _elements(a, product.left.format, unit), _elements(b, product.right.format, unit)
    size = max(scales_along(product.left.format), scales_along(product.right.format))
    if size:
        found = _promoted((a, b), (x, y), size, partial(multiply, unit=unit))
    else:
        found = _single(multiply(x, y.T, unit=unit, promote_every=product.promote_every))
        found = _times(found, *(None if z.scaled is None else z.scaled.scale for z in (a, b)))
    return _times(found, *(None if z.scaled is None else z.scaled.tensor_scale for z in (a, b)))


def _promoted(
    operands: tuple[Entered, Entered], elements: tuple[Array, Array], size: int, multiply: Callable[..., Any]
) -> Single:
    """Return a product of operands with scales of blocks, block by block."""
    left, right = elements
    scales = [_row_scales(x, size) for x in operands]
    fma = arithmetic("float32").fma
    total = np.zeros((len(left), len(right)), np.float32)
    for place, start in enumerate(range(0, left.shape[1], size)):
        block = slice(start, start + size)
        part = _single(multiply(left[:, block], right[:, block].T))
        by = np.multiply.outer(scales[0][:, place], scales[1][:, place])
        total = fma(by, part, total)
    return total


def _elements(entered: Entered, fmt: Kind, unit: Unit) -> Array:
    """Return elements, in the dtype that names their format to a unit if it takes several."""
    numbers = entered.values if entered.scaled is None else entered.scaled.elements
    own = element_format(fmt)
    return numbers.astype(native_dtype(own)) if own in unit.inputs[1:] else numbers


def _row_scales(entered: Entered, size: int) -> Single:
    """Return the scales of each row's blocks."""
    rows, length = entered.values.shape
    count = -(-length // size)
    if entered.scaled is None:
        return np.ones((rows, count), np.float32)
    scale, block = np.asarray(entered.scaled.scale, np.float32), entered.scaled.format.block
    if isinstance(block, tuple):
        return np.repeat(scale, block[0], axis=0)[:rows]
    return np.broadcast_to(scale, (rows, scale.shape[-1] if isinstance(block, int) else count))


def _of_rows(entered: Entered) -> Scaled:
    """Return an operand whose blocks are runs along rows; those of tiles share their scales."""
    scaled = entered.scaled
    assert scaled is not None
    block = scaled.format.block
    if not isinstance(block, tuple):
        return scaled
    alike = replace(scaled.format, block=block[1])
    return replace(scaled, format=alike, scale=_row_scales(entered, block[1]), axis=1)


def _times(found: Single, left: Array | float | None, right: Array | float | None) -> Single:
    """Return a product times the scales that tensors or rows of its operands share, if any."""
    if left is None and right is None:
        return found
    by = [np.asarray(1 if x is None else x, np.float32) for x in (left, right)]
    with np.errstate(all="ignore"):
        return found * (by[0] * by[1].T)


def _single(x: Any) -> Single:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float32, copy=False)


#: How many operations an operand can draw random words for: those of its elements, and of its scales.
_EACH = 4
#: The numbers of the operands of the three products, left and right; after them come the products' signs.
_PLACES = {"forward": 0, "dgrad": 2, "wgrad": 4}
_SIGNS = 6


class ProductMaker(Protocol):
    """An object that computes products, on arrays or on tensors."""

    def enter(self, x: Any, recipe: OperandRecipe, words: RandomWords | None) -> Entered:
        """Quantise a matrix whose contracted axis is the last."""

    def rotate(self, x: Any, product: ProductRecipe, words: RandomWords | None, *, back: bool = False) -> Any:
        """Transform the last axis, padded with zeros to a multiple of the order; or transform it back."""

    def multiply(self, a: Entered, b: Entered, product: ProductRecipe) -> Any:
        """Return ``a b'``, rounded to the output's format."""

    def rounded(self, x: Any, product: ProductRecipe) -> Any:
        """Return numbers rounded to the output's format."""


class ForwardOperands(NamedTuple):
    """What the forward product took: activations and weights."""

    left: Entered
    right: Entered


class LinearLayer:
    """A linear layer whose products follow a recipe.

    Parameters
    ----------
    recipe : Recipe
    products : ProductMaker
        The object that computes the products.
    words : RandomWords or None
        Random words of this layer at this step, for recipes that need some. Operands take their own.
    """

    def __init__(self, recipe: Recipe, products: ProductMaker, words: RandomWords | None) -> None:
        if not isinstance(words, RandomWords | None):
            raise TypeError(f"words must be RandomWords, not {words!r}")
        if recipe.stochastic and words is None:
            raise ValueError(f"recipe {recipe.name!r} is stochastic: it needs words=RandomWords(seed)")
        self.recipe, self.products, self.words = recipe, products, words

    def forward(self, x: Any, weight: Any) -> tuple[Any, ForwardOperands]:
        """Return the output, and the operands as they entered the product."""
        taken = self._entered("forward", x, weight)
        return self.products.multiply(*taken, self.recipe.forward), taken

    def weight(self, weight: Any) -> Entered:
        """Return weights as they enter the forward product."""
        return self._operand("forward", 1, weight)

    def dgrad(self, dy: Any, weight: Any, taken: ForwardOperands) -> Any:
        """Return the gradient of the activations."""
        return self._gradient("dgrad", dy, weight, taken.right, taken.left)

    def wgrad(self, dy: Any, x: Any, taken: ForwardOperands) -> Any:
        """Return the gradient of the weights."""
        return self._gradient("wgrad", dy.T, x, taken.left, taken.right)

    def _gradient(self, name: str, dy: Any, other: Any, forward: Entered, wanted: Entered) -> Any:
        """Return the gradient of the tensor that `wanted` holds as the forward product took it."""
        product, own = self.recipe.products[name], self.recipe.forward
        through = product.right.source is OperandSource.FORWARD
        right = forward.values if through else other
        found = self.products.multiply(*self._entered(name, dy, right.T), product)
        if not through:
            return found
        if wanted.inside is not None:
            found = found * wanted.inside
        if not own.hadamard:
            return found
        back = self.products.rotate(found, own, self.signs("forward"), back=True)
        return self.products.rounded(back[:, : other.shape[1]], product)

    def _entered(self, name: str, left: Any, right: Any) -> ForwardOperands:
        return ForwardOperands(self._operand(name, 0, left), self._operand(name, 1, right))

    def _operand(self, name: str, place: int, x: Any) -> Entered:
        """Return the left or right operand of a product as it enters."""
        product = self.recipe.products[name]
        if product.hadamard:
            x = self.products.rotate(x, product, self.signs(name))
        return self.products.enter(x, (product.left, product.right)[place], self._of(_PLACES[name] + place))

    def signs(self, name: str) -> RandomWords | None:
        """Return the words of a product's signs, which both operands share."""
        return self._of(_SIGNS + _PLACES[name] // 2)

    def _of(self, place: int) -> RandomWords | None:
        return None if self.words is None else self.words.of(_EACH * place)


def linear(
    recipe: Recipe | str, x: Any, weight: Any, words: RandomWords | None = None
) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return the output of a linear layer computed by a recipe, and its backward pass.

    Parameters
    ----------
    recipe : Recipe or str
        The recipe, or a name of `RECIPES`.
    x : array of float32, shape (tokens, inputs)
        Other dtypes are rounded to float32, to nearest even.
    weight : array of float32, shape (outputs, inputs)
    words : RandomWords, optional
        Random words of this layer at this step, which stochastic recipes need; see Notes.

    Returns
    -------
    y : array of float32, shape (tokens, outputs)
        Values of the output's format. A NaN or an infinity in a block makes what depends on the block NaN.
    backward : callable
        Takes the gradient of y, and returns those of x and of the weight; neither may change before the call.

    Raises
    ------
    TypeError
        If an operand is not an array of real numbers, or `words` are not RandomWords.
    ValueError
        If a name is unknown, shapes do not match, or random words are missing.

    Notes
    -----
    The left and the right operand of the forward product are numbers 0 and 1, of dgrad 2 and 3, of wgrad 4
    and 5. Operand p takes the words of operation 4 p, counted from that of `words`. Each element takes 16
    bits, by its row-major index in the matrix that is quantised: padded, rotated, and with the contracted
    axis last. Under the rule ``eden``, scales take the words instead. The signs of the three products are the
    upper bits of the 32-bit words of operations 24, 28 and 32; both operands of a product share them.

    The expectations of dX and dW over these words, before they are rounded to the output, are products of two
    operands. One that is rounded stochastically counts as it was given; one that is rounded to nearest, or
    was taken by the forward product, counts as it entered. NVFP4 first clips quotients beyond 6, which occur
    if a scale was rounded down: by at most 1/17. With normally distributed gradients that takes .33 % of
    ``<x, x>``, so ``nvfp4`` and ``fp4-all`` are biased toward zero. ``quartet`` has room in its scales;
    ``quartet2`` makes up for clipping by its corrections.

    Examples
    --------
    >>> import numpy as np
    >>> x, weight = np.ones((2, 32), np.float32), np.full((3, 32), 0.3, np.float32)
    >>> y, backward = linear("mxfp8", x, weight)
    >>> float(y[0, 0]), backward(y)[1].shape
    (10.0, (3, 32))
    """
    found = get_recipe(recipe)
    products = NumPyProducts()
    left, right = products.operands(x, weight)
    layer = LinearLayer(found, products, words)
    y, taken = layer.forward(left, right)

    def backward(dy: Any) -> tuple[Any, Any]:
        given = products.gradient(dy, y.shape)
        return layer.dgrad(given, right, taken), layer.wgrad(given, left, taken)

    return y, backward
