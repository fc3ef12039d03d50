"""Operands of products on NumPy: quantised, rotated, multiplied in binary32 or by a matrix unit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import real_array
from mcfsim.convert import round_to
from mcfsim.random import RandomWords
from mcfsim.recipes.recipe import OperandRecipe, ProductRecipe, Signs
from mcfsim.recipes.unit_operands import Entered, by_unit
from mcfsim.scaled import ScaledFormat, quantize
from mcfsim.scaled.hadamard_transform import hadamard

Array = NDArray[Any]
Single = NDArray[np.float32]


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
