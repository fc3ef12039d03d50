"""Linear layers of problems by a recipe: which ones follow it, and their random words."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from mcfsim.random import RandomWords
from mcfsim.recipes import Recipe, linear
from mcfsim.training.problems._transformer import Array, BackPair, Multiplier
from mcfsim.training.problems.base import DataStream, generator

_BLOCK = re.compile(r"layer(\d+)\.")


class RecipeMultiplier:
    """The products of linear layers by a recipe, as `TransformerPieces` takes them.

    Layers named ``layerN.`` belong to block N. Products are those of `mcfsim.recipes.linear`, of operands
    rounded to float32.

    Parameters
    ----------
    recipe : Recipe
    names : sequence of str
        The problem's tensors, in a fixed order.
    blocks : int
        The number of blocks, for the recipe's shares that stay in high precision.
    high : collection of str
        Names of layers that stay in high precision in any case, as heads do.
    step, seed : int
        Of the batch. With the layer's place among the names they give its random words, whose key is drawn
        from the seed, so that they share no stream with those of an optimizer of this seed.
    otherwise : Multiplier
        Multiplies in high precision.
    """

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        blocks: int,
        high: Collection[str],
        step: int,
        seed: int,
        otherwise: Multiplier,
    ) -> None:
        self.recipe, self.names, self.blocks, self.high = recipe, tuple(names), blocks, frozenset(high)
        self.step, self.otherwise = step, otherwise
        self.key = int(generator(seed, DataStream.CALCULATION).integers(2**64, dtype=np.uint64))

    def follows(self, name: str) -> bool:
        """Return whether the layer of a tensor is computed by the recipe."""
        found = _BLOCK.match(name)
        block = int(found[1]) if found else None
        return name not in self.high and not self.recipe.keeps(name, block, self.blocks)

    def words(self, name: str) -> RandomWords | None:
        """Return the random words of a layer, None if the recipe needs none."""
        if not self.recipe.stochastic:
            return None
        return RandomWords(self.key, self.step, self.names.index(name))

    def __call__(self, x: Array, weight: Array, name: str) -> tuple[Array, BackPair]:
        """Return ``x @ weight`` in the dtype of x, and its backward pass."""
        if not self.follows(name):
            return self.otherwise(x, weight, name)
        y, back = linear(self.recipe, x, weight.T, self.words(name))

        def backward(dy: Array) -> tuple[Array, Array]:
            dx, dweight = back(dy)
            return dx.astype(x.dtype, copy=False), np.ascontiguousarray(dweight.T, weight.dtype)

        return y.astype(x.dtype, copy=False), backward
