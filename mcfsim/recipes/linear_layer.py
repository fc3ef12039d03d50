"""The three products of a linear layer by a recipe, for arrays or tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mcfsim.random import RandomWords
from mcfsim.recipes.named_recipes import get_recipe
from mcfsim.recipes.numpy_products import Entered, NumPyProducts
from mcfsim.recipes.recipe import OperandRecipe, OperandSource, ProductRecipe, Recipe

#: How many operations of random words an operand can take: its elements', and its scales'.
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
        What computes them.
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
        """Return a gradient, of the shape of the tensor that is `wanted` as the forward product took it."""
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
        Takes the gradient of y, and returns those of x and of the weight, which must not change before.

    Raises
    ------
    TypeError
        If an operand is no array of real numbers, or `words` are no RandomWords.
    ValueError
        If a name is unknown, shapes do not match, or random words are missing.

    Notes
    -----
    The left and the right operand of the forward product are numbers 0 and 1, of dgrad 2 and 3, of wgrad 4
    and 5. Operand p takes the words of operation 4 p, counted from that of `words`: each element 16 bits,
    those of its index in row-major order in the matrix that is quantised, the contracted axis last, filled up
    and rotated. By the rule ``eden`` scales take them. The signs of the three products are the upper bits of
    the 32-bit words of operations 24, 28 and 32; both operands of a product share them.

    The expectations of dX and dW over these words, before they are rounded to the output, are products of two
    operands. One that is rounded stochastically counts as it was given; one that is rounded to nearest, or
    was taken by the forward product, counts as it entered. NVFP4 first clips quotients beyond 6, which occur
    if a scale was rounded down: by at most 1/17. With normally distributed gradients that takes .33 % of
    ``<x, x>``, so ``nvfp4`` and ``fp4-all`` are biased toward zero. ``quartet`` has room in its scales;
    ``quartet2`` makes up for what it clips by its corrections.

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
