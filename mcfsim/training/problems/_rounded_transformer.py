"""Pieces of a transformer with every result rounded, by `mcfsim.functions`, or with layers by a recipe.

Rows go through these functions a column at a time: an operand is one column of all rows. Nothing is
overwritten.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mcfsim import functions
from mcfsim.formats import Format
from mcfsim.random import RandomWords
from mcfsim.recipes import Recipe, linear
from mcfsim.training.problems._transformer import (
    NORM_EPSILON,
    Array,
    Back,
    BackPair,
    Multiplier,
    TransformerPieces,
)
from mcfsim.training.problems.base import DataStream, generator
from mcfsim.training.problems.calculation import Calculation, emulated


class RoundedPieces(TransformerPieces):
    """The pieces, every result rounded as a calculation says.

    - Sums over tokens, which make gradients of parameters, are accumulated as matrix products are; the
      embedding's gradient is the product with the tokens as unit vectors.
    - The loss of a row, on which no gradient depends, is computed in the format of reductions, from scores
      rounded into it. The mean of the rows is rounded to binary64.
    - The gradient with respect to the scores is `mcfsim.functions.cross_entropy_gradient`, divided by the
      number of rows.
    - Cosines and sines of positions, and the scale of queries, are real scalars: the former are rounded into
      the format, the latter enters a product that is rounded once.

    Parameters
    ----------
    calculation : Calculation
        In a format with infinities, which mask later tokens.
    multiplier : callable, optional
        As for `TransformerPieces`; its results are rounded into the format. By default the calculation
        multiplies.
    """

    def __init__(self, calculation: Calculation, multiplier: Multiplier | None = None) -> None:
        super().__init__(multiplier or calculation.multiplied)
        self.calculation, self.ar = calculation, calculation.ar
        self._accumulated: dict[str, Any] = {"accumulator": calculation.reductions}

    def linear(self, x: Array, weight: Array, name: str) -> tuple[Array, BackPair]:
        """Return the product of a linear layer, rounded."""
        rounded = self.ar.round
        y, back = self.multiplier(x, weight, name)

        def backward(dy: Array) -> tuple[Array, Array]:
            dx, dweight = back(dy)
            return rounded(dx), rounded(dweight)

        return rounded(y), backward

    def entered(self, parameters: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the parameters rounded."""
        return {name: self.ar.round(parameter) for name, parameter in parameters.items()}

    def add(self, x: Array, change: Array) -> Array:
        """Return ``x + change``, rounded."""
        found: Array = self.ar.add(x, change)
        return found

    def total(self, x: Array) -> Array:
        """Return the sum along the first axis, accumulated as products are."""
        ones = np.ones((1, len(x)), np.float32)
        return self.calculation.product(ones, x.reshape(len(x), -1)).reshape(x.shape[1:])

    def rms_norm(self, x: Array, gain: Array) -> tuple[Array, BackPair]:
        """Return `mcfsim.functions.rms_norm` of rows, with its gradients."""
        columns, gains = _columns(x), tuple(gain[:, np.newaxis])
        options = {"epsilon": NORM_EPSILON, **self._accumulated}

        def backward(dy: Array) -> tuple[Array, Array]:
            dx = functions.rms_norm_gradient(self.ar, columns, gains, _columns(dy), **options)
            unit = _rows(functions.rms_norm(self.ar, columns, (1.0,) * len(gains), **options))
            dgain = self.calculation.product(dy.T[:, np.newaxis], unit.T[..., np.newaxis])
            return _rows(dx), dgain[:, 0, 0]

        return _rows(functions.rms_norm(self.ar, columns, gains, **options)), backward

    def squared_relu(self, x: Array) -> tuple[Array, Back]:
        """Return `mcfsim.functions.squared_relu`."""
        return functions.squared_relu(self.ar, x), lambda dy: functions.squared_relu_gradient(self.ar, x, dy)

    def gated_silu(self, x: Array) -> tuple[Array, Back]:
        """Return ``silu(a) b`` of rows that hold a and b side by side, by `mcfsim.functions.silu`."""
        gate, up = np.split(x, 2, axis=1)
        opened = functions.silu(self.ar, gate)

        def backward(dy: Array) -> Array:
            dgate = functions.silu_gradient(self.ar, gate, self.ar.mul(dy, up))
            return np.concatenate([dgate, self.ar.mul(dy, opened)], axis=1)

        return self.ar.mul(opened, up), backward

    def causal_attention(
        self, qkv: Array, sequences: int, heads: int, angles: Array | None = None
    ) -> tuple[Array, Back]:
        """Return causal multi-head attention by `mcfsim.functions.softmax`."""
        tokens, columns = qkv.shape
        depth, length = columns // 3 // heads, tokens // sequences
        product, scale = self.calculation.product, 1 / math.sqrt(depth)

        def turned(x: Array, *, back: bool = False) -> Array:
            if angles is None:
                return x
            cosine, sine = _turn(self.calculation.format, angles.shape, angles.tobytes())
            pair = functions.rotation(self.ar, cosine, sine if back else -sine, *np.split(x, 2, axis=-1))
            return np.concatenate(pair, axis=-1)

        def merged(*parts: Array) -> Array:
            """Return parts of one row per token and head as rows of tokens, side by side."""
            return np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(tokens, -1)

        def of_heads(x: Array) -> Array:
            return x.reshape(sequences, length, -1, heads, depth).transpose(2, 0, 3, 1, 4)

        query, key, value = of_heads(qkv)
        query, key = turned(self.ar.mul(query, scale)), turned(key)
        later = np.triu(np.ones((length, length), np.bool_), 1)
        scores = np.where(later, np.float32(-np.inf), product(query, key.swapaxes(-1, -2)))
        weights = functions.softmax(self.ar, _columns(scores), **self._accumulated)
        mixing = _rows(weights)

        def backward(dmixed: Array) -> Array:
            (dout,) = of_heads(dmixed)
            dvalue = product(mixing.swapaxes(-1, -2), dout)
            # A masked token has no influence: a product that overflows there must not count.
            dmixing = np.where(later, np.float32(0), product(dout, value.swapaxes(-1, -2)))
            dweights = functions.softmax_gradient(self.ar, weights, _columns(dmixing), **self._accumulated)
            dscores = _rows(dweights)
            dquery = turned(product(dscores, key), back=True)
            dkey = turned(product(dscores.swapaxes(-1, -2), query), back=True)
            return merged(self.ar.mul(dquery, scale), dkey, dvalue)

        return merged(product(mixing, value)), backward

    def embedding(self, tokens: Array, table: Array) -> tuple[Array, Back]:
        """Return the table's row of every token."""
        chosen = np.eye(len(table), dtype=np.float32)[tokens]
        return table[tokens], lambda dy: self.calculation.product(chosen.T, dy)

    def cross_entropy(self, logits: Array, targets: Array) -> tuple[float, Callable[[], Array]]:
        """Return the mean of ``-log softmax(logits)[target]`` over the rows, and its gradient."""
        wide = emulated(self.calculation.reductions)
        logarithms = functions.log_softmax(wide, _columns(wide.round(logits)))
        losses = -_rows(logarithms)[np.arange(len(targets)), targets].astype(np.float64)
        mean = math.fsum(losses) / len(losses) if np.isfinite(losses).all() else np.mean(losses)

        def backward() -> Array:
            right = np.eye(logits.shape[1], dtype=np.float32)[targets]
            by_score = functions.cross_entropy_gradient(
                self.ar, _columns(logits), _columns(right), **self._accumulated
            )
            return self.calculation.div(_rows(by_score), len(targets))

        return float(mean), backward


def _columns(x: Array) -> tuple[Array, ...]:
    """Return the columns of rows, each contiguous."""
    return tuple(np.ascontiguousarray(np.moveaxis(x, -1, 0)))


def _rows(columns: tuple[Array, ...]) -> Array:
    """Return rows, contiguous, from their columns."""
    return np.stack(columns, axis=-1)


@lru_cache(maxsize=8)
def _turn(fmt: Format, shape: tuple[int, ...], angles: bytes) -> tuple[Array, Array]:
    """Return cosines and sines of angles, rounded into a format."""
    ar = emulated(fmt)
    numbers = np.frombuffer(angles, np.float64).tolist()
    cosine, sine = (np.array([*map(of, numbers)], ar.carrier).reshape(shape) for of in (ar.cos, ar.sin))
    return cosine, sine


# -- linear layers by a recipe: which ones follow it, and their random words ------------------------------
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
