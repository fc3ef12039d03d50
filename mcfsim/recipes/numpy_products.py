"""Operands as they enter products on NumPy: quantised, rotated, multiplied in binary32 or by a unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import real_array
from mcfsim.convert import round_to
from mcfsim.kernels.carriers import native_dtype
from mcfsim.products import Unit, get_unit, matmul
from mcfsim.random import RandomWords
from mcfsim.recipes.recipe import Kind, OperandRecipe, ProductRecipe, Signs, element_format, scales_along
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

    A unit with scales takes elements and scales. Another one multiplies elements. Then scales that a tensor
    or a row shares multiply the result, their own product rounded to binary32 first. Scales of blocks
    multiply the sum of each block, which starts from zero: it is added to those before by a fused
    multiply-add in binary32, as DeepGEMM does. Second scales, of tensors, come last, by their product, too.

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
