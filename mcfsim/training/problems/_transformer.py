"""The differentiable pieces of a transformer, each a forward pass that returns its own backward pass.

Each function returns its output and a backward pass, which maps the output's gradient to the gradients of the
arguments. Activations have one row per token. Everything is computed in the dtype of the arguments, in place
if an operand is not needed again. So a backward pass may overwrite its argument, and can be called only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.buffers import retain_freed_memory

Array = NDArray[Any]
Back = Callable[[Array], Array]
BackPair = Callable[[Array], tuple[Array, Array]]

#: Keeps the norm of a zero row finite; small against the mean square of any activation.
NORM_EPSILON = 1e-5


def matmul(x: Array, weight: Array) -> tuple[Array, BackPair]:
    """Return ``x @ weight``."""

    def backward(dy: Array) -> tuple[Array, Array]:
        return dy @ weight.T, x.T @ dy

    return x @ weight, backward


#: Rows with a smaller largest magnitude are scaled as if it were this.
LEAST_LARGEST = 1e-5


def as_integers(x: Array, bits: int) -> Array:
    """Round the rows of x to integers of `bits` bits with one scale s per row: ``clip(round(x s)) / s``.

    The integers are those of two's complement. The scale is the largest integer divided by the largest
    magnitude of the row, which counts as 1e-5 at least. Every operation is rounded in the dtype of x. A row
    with a NaN or an infinity becomes NaN. There is no backward pass: gradients pass unchanged (the
    straight-through estimator).

    References
    ----------
    Wang et al., arXiv 2310.11453, 2023 (BitNet); Zhao et al., arXiv 2412.04787, 2024.
    """
    end = 1 << (bits - 1)
    largest = np.abs(x).max(axis=1, keepdims=True)
    scale = np.asarray(end - 1, x.dtype) / np.maximum(largest, np.asarray(LEAST_LARGEST, x.dtype))
    scaled: Array = np.rint(x * scale)
    np.clip(scaled, -end, end - 1, out=scaled)
    scaled /= scale
    return scaled


def rms_norm(x: Array, gain: Array) -> tuple[Array, BackPair]:
    """Return the rows of x, scaled to a mean square of one, times the gain of each column."""
    width = len(gain)
    scale = 1 / np.sqrt(np.vecdot(x, x)[:, None] / width + NORM_EPSILON)
    unit = x * scale

    def backward(dy: Array) -> tuple[Array, Array]:
        dgain = np.einsum("nd,nd->d", dy, unit)
        dx = np.multiply(dy, gain, out=dy)
        dx -= unit * (np.vecdot(dx, unit)[:, None] / width)
        dx *= scale
        return dx, dgain

    return unit * gain, backward


def squared_relu(x: Array) -> tuple[Array, Back]:
    """Return ``max(x, 0)**2``, overwriting x: an activation without transcendentals."""
    positive = np.maximum(x, 0, out=x)

    def backward(dy: Array) -> Array:
        dy *= positive
        dy *= 2
        return dy

    return positive * positive, backward


def gated_silu(x: Array) -> tuple[Array, Back]:
    """Return ``silu(a) b`` of rows that hold a and b side by side; ``silu(a) = a / (1 + exp(-a))``.

    References
    ----------
    Shazeer, GLU Variants Improve Transformer, arXiv 2002.05202, 2020 (SwiGLU).
    """
    gate, up = np.split(x, 2, axis=1)
    share = 1 / (1 + np.exp(-gate))
    opened = gate * share

    def backward(dy: Array) -> Array:
        dx = np.empty_like(x)
        dgate, dup = np.split(dx, 2, axis=1)
        np.multiply(dy, opened, out=dup)
        dy *= up
        # silu' = share (1 + a (1 - share)) = share + silu (1 - share)
        np.multiply(dy, share + opened * (1 - share), out=dgate)
        return dx

    return opened * up, backward


def turned(x: Array, angles: Array, *, back: bool = False) -> None:
    """Turn pairs of columns of queries or keys in place, or turn them back.

    Column i of the first half and of the second half of a head form a pair. It is turned by the angle of
    (token, i), so that scores depend on the distance of tokens (RoPE).

    Parameters
    ----------
    x : ndarray, shape (..., length, depth)
    angles : ndarray, shape (length, depth / 2)
        In binary64; sines and cosines are rounded to the dtype of x.

    References
    ----------
    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864, 2021.
    """
    cosine, sine = np.cos(angles).astype(x.dtype), np.sin(-angles if back else angles).astype(x.dtype)
    left, right = np.split(x, 2, axis=-1)
    first = left * cosine - right * sine
    right *= cosine
    right += left * sine
    left[...] = first


#: The most weights of attention that are computed at a time.
_WEIGHTS = 1 << 17


def causal_attention(
    qkv: Array, sequences: int, heads: int, angles: Array | None = None
) -> tuple[Array, Back]:
    """Return causal multi-head attention: every token attends to itself and the tokens before it.

    Parameters
    ----------
    qkv : ndarray
        Queries, keys and values of all heads side by side; the queries are scaled in place.
    sequences, heads : int
        How many sequences of equal length the rows of qkv form; how many heads a third of its columns has.
    angles : ndarray, shape (length, depth / 2), optional
        Angles by which queries and keys are turned, see `turned`.
    """
    length, width = len(qkv) // sequences, qkv.shape[1] // 3
    mixed = np.empty((len(qkv), width), qkv.dtype)
    # A few sequences at a time, whose weights stay in the cache.
    step = max(1, _WEIGHTS // (heads * length**2)) * length
    groups = [slice(start, start + step) for start in range(0, len(qkv), step)]
    backs = [_attend(qkv[rows], mixed[rows], length, heads, angles) for rows in groups]

    def backward(dmixed: Array) -> Array:
        dqkv = np.empty_like(qkv)
        for rows, back in zip(groups, backs, strict=True):
            back(dmixed[rows], dqkv[rows])
        return dqkv

    return mixed, backward


def _attend(
    qkv: Array, mixed: Array, length: int, heads: int, angles: Array | None
) -> Callable[[Array, Array], None]:
    """Fill the output of some sequences; return the backward pass, which fills the gradient of qkv."""
    tokens, width = mixed.shape
    scale = 1 / math.sqrt(width // heads)
    split = (tokens // length, length, 3, heads, width // heads)
    qkv[:, :width] *= scale
    query, key, value = _split_heads(qkv, split)
    if angles is not None:
        turned(query, angles)
        turned(key, angles)

    # One row per key and one column per query: NumPy is much faster at reductions over rows. Masked weights
    # come out as exp(-inf) = 0. Every query has a finite largest score, since its own score is not masked.
    weights = key @ query.swapaxes(-1, -2)
    weights += _mask(length, qkv.dtype)
    weights -= weights.max(axis=-2, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-2, keepdims=True)
    np.matmul(weights.swapaxes(-1, -2), value, out=_merged(mixed, split))

    def backward(dmixed: Array, dqkv: Array) -> None:
        dquery, dkey, dvalue = _split_heads(dqkv, split)
        dout = _merged(dmixed, split)
        np.matmul(weights, dout, out=dvalue)
        dweights = value @ dout.swapaxes(-1, -2)
        # The softmax needs sum(weights * dweights) over the keys. It equals the dot product of output and
        # output gradient, a shorter sum.
        dots = np.vecdot(dmixed.reshape(-1, width // heads), mixed.reshape(-1, width // heads))
        dweights -= dots.reshape(*split[:2], heads).swapaxes(1, 2)[:, :, None, :]
        dweights *= weights
        np.matmul(dweights.swapaxes(-1, -2), key, out=dquery)
        np.matmul(dweights, query, out=dkey)
        if angles is not None:
            turned(dquery, angles, back=True)
            turned(dkey, angles, back=True)
        dqkv[:, :width] *= scale

    return backward


def _split_heads(qkv: Array, split: tuple[int, ...]) -> Array:
    """Return a view of queries, keys and values, stacked by sequence and head, with one row per token."""
    return qkv.reshape(split).transpose(2, 0, 3, 1, 4)


def _merged(rows: Array, split: tuple[int, ...]) -> Array:
    """Return a view of an output whose rows are stacked as those of the values."""
    sequences, length, _, heads, depth = split
    return rows.reshape(sequences, length, heads, depth).swapaxes(1, 2)


@lru_cache(maxsize=8)
def _mask(length: int, dtype: np.dtype[Any]) -> Array:
    """Return -inf where the key (row) comes after the query (column), else 0."""
    mask: Array = np.tril(np.full((length, length), -np.inf, dtype), -1)
    mask.flags.writeable = False
    return mask


def embedding(tokens: Array, table: Array) -> tuple[Array, Back]:
    """Return the table's row of every token."""

    def backward(dy: Array) -> Array:
        # Sorting makes the rows to be added up contiguous: faster than np.add.at, and in a fixed order.
        order = np.argsort(tokens, kind="stable")
        present, starts = np.unique(tokens[order], return_index=True)
        dtable = np.zeros_like(table)
        dtable[present] = np.add.reduceat(dy[order], starts, axis=0)
        return dtable

    return table[tokens], backward


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Callable[[], Array]]:
    """Return the mean of ``-log softmax(logits)[target]`` over the rows, overwriting the logits."""
    count = len(targets)
    rows = np.arange(count)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[rows, targets]
    exponentials = np.exp(logits, out=logits)
    totals = exponentials.sum(axis=1)
    loss = np.mean(np.log(totals) - chosen, dtype=np.float64)

    def backward() -> Array:
        dlogits: Array = np.multiply(exponentials, (1 / (count * totals))[:, None], out=exponentials)
        dlogits[rows, targets] -= 1 / count
        return dlogits

    return float(loss), backward


#: The product of a linear layer: of activations, one row a token, and a matrix, for the layer of this name.
Multiplier = Callable[[Array, Array, str], tuple[Array, BackPair]]


class TransformerPieces:
    """The pieces of a transformer as one object; subclasses compute them in other ways.

    Parameters
    ----------
    multiplier : callable, optional
        ``multiplier(x, weight, name)`` returns ``x @ weight`` and its backward pass, with `weight` of shape
        (inputs, outputs) and the name of its tensor. By default NumPy multiplies.
    """

    def __init__(self, multiplier: Multiplier | None = None) -> None:
        retain_freed_memory()  # each step takes as much as the last one freed
        self.multiplier: Multiplier = multiplier or (lambda x, weight, name: matmul(x, weight))

    def linear(self, x: Array, weight: Array, name: str) -> tuple[Array, BackPair]:
        """Return the product of a linear layer: all such products are made here."""
        return self.multiplier(x, weight, name)

    def entered(self, parameters: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the parameters as the computation uses them."""
        return parameters

    def add(self, x: Array, change: Array) -> Array:
        """Return ``x + change``, which may overwrite x."""
        x += change
        return x

    def total(self, x: Array) -> Array:
        """Return the sum along the first axis."""
        summed: Array = x.sum(axis=0)
        return summed

    rms_norm = staticmethod(rms_norm)
    squared_relu = staticmethod(squared_relu)
    gated_silu = staticmethod(gated_silu)
    causal_attention = staticmethod(causal_attention)
    embedding = staticmethod(embedding)
    cross_entropy = staticmethod(cross_entropy)
