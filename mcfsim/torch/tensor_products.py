"""Products of tensors by a recipe: quantised with the bits of NumPy, multiplied in binary32 or by a unit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.formats import FORMATS
from mcfsim.random import RandomWords
from mcfsim.recipes.numpy_products import NumPyProducts, rounded
from mcfsim.recipes.recipe import OperandRecipe, ProductRecipe
from mcfsim.recipes.unit_operands import Entered, by_unit

_NUMPY = NumPyProducts()


@contextmanager
def _in_binary32() -> Iterator[None]:
    """Keep PyTorch from multiplying float32 in TF32 or bfloat16, whatever the user allowed."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TensorProducts:
    """Products of tensors of float32 on any device."""

    def enter(self, x: torch.Tensor, recipe: OperandRecipe, words: RandomWords | None) -> Entered:
        """Quantise a matrix whose contracted axis is the last."""
        if recipe.format is None:
            return Entered(x)
        found = _NUMPY.enter(_array(x), recipe, words)
        inside = None if found.inside is None else torch.from_numpy(found.inside).to(x.device)
        return Entered(torch.from_numpy(found.values).to(x.device), found.scaled, inside)

    def rotate(
        self, x: torch.Tensor, product: ProductRecipe, words: RandomWords | None, *, back: bool = False
    ) -> torch.Tensor:
        """Transform the last axis, filled up by zeros to a multiple of the order; or transform it back."""
        return torch.from_numpy(_NUMPY.rotate(_array(x), product, words, back=back)).to(x.device)

    def multiply(self, a: Entered, b: Entered, product: ProductRecipe) -> torch.Tensor:
        """Return ``a b'``, rounded to the output's format."""
        if product.unit is None:
            with _in_binary32():
                found = a.values @ b.values.T
        else:
            left, right = (x._replace(values=_array(x.values)) for x in (a, b))
            found = torch.from_numpy(by_unit(left, right, product)).to(a.values.device)
        output = product.output
        if output is None or output == FORMATS["bfloat16"]:
            return found if output is None else found.bfloat16().float()
        return torch.from_numpy(rounded(_array(found), product)).to(found.device)


def _array(x: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = x.detach().contiguous().cpu().numpy()
    return found
