"""Products and norms of bfloat16, summed bit for bit as PyTorch 2.13 does on a CPU with AVX512_BF16.

The order of the sums depends on the number of products and on how the operands lie in memory. oneDNN computes
the larger matrix products, loops of ATen the smaller ones. Other processors and other versions use other
orders; there an error is at most ``k 2**-24 sum |a b|``, as in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels import native

Array = NDArray[Any]
Single = NDArray[np.float32]

#: If there are more products than this, oneDNN computes them, and flushes subnormal numbers.
SMALL = 4096
#: How many products it sums at a time; twice as many if contiguous rows on the left are longer than that.
BLOCK = 512
#: How many partial sums a norm has.
LANES = 8
_LEAST = np.float32(2.0**-126)


def matmul(a: Array, b: Array, *, rows: tuple[bool, bool] = (True, True)) -> Single:
    """Return a matrix product in binary32, before it is rounded to bfloat16.

    Parameters
    ----------
    a, b : array, shapes (m, k) and (k, n)
        Numbers of bfloat16, in float32.
    rows : tuple of bool, optional
        For each operand, whether its rows are contiguous in PyTorch's memory; if not, its columns are.

    Returns
    -------
    array of float32, shape (m, n)
        NaN and infinities come out as in IEEE arithmetic.
    """
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    with np.errstate(all="ignore"):
        if a.shape[0] * a.shape[1] * b.shape[1] > SMALL:
            long = rows[0] and a.shape[1] > 2 * BLOCK
            return _by_onednn(a, b, 2 * BLOCK if long else BLOCK)
        if rows == (False, True):
            return _chain(a, b, range(a.shape[1]))
        return _by_registers(a, b) if rows == (True, False) else _by_lanes(a, b)


def norm(x: Array) -> np.float32:
    """Return the Euclidean norm of numbers of bfloat16 in binary32, before it is rounded to bfloat16.

    Squares are summed in the order of memory, in eight lanes; then the lanes are added in order, and last the
    remaining squares. Because of the sum's error, the result can round to bfloat16 unlike the exact norm.

    Parameters
    ----------
    x : array
        Numbers of bfloat16, in float32, in the order of PyTorch's memory.
    """
    numbers = np.asarray(x, np.float32).reshape(-1)
    with np.errstate(all="ignore"):
        squares = numbers * numbers
        whole = numbers.size // (2 * LANES) * (2 * LANES)
        by_lane = np.concatenate([np.zeros((1, LANES), np.float32), squares[:whole].reshape(-1, LANES)])
        # Accumulating adds one after another; a sum of NumPy would add in pairs.
        lanes = np.add.accumulate(by_lane, axis=0, dtype=np.float32)[-1]
        total = np.add.accumulate(np.concatenate([lanes, squares[whole:]]), dtype=np.float32)[-1]
        return np.float32(np.sqrt(total))


def _by_onednn(a: Single, b: Single, block: int) -> Single:
    """Return sums by chains of fused multiply-adds, added in order; the odd place of each pair goes first."""
    a, b = _flushed(a), _flushed(b)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], block):
        stop = min(start + block, a.shape[1])
        order = [j for pair in range(start, stop, 2) for j in (pair + 1, pair) if j < stop]
        part = _chain(a, b, order, flush=True)
        total = part if start == 0 else total + part
    return total


def _by_lanes(a: Single, b: Single) -> Single:
    """Return sums by four chains, of every fourth product each; the first takes the remaining ones."""
    length = a.shape[1]
    whole = length - length % 4
    first, *others = (
        _chain(a, b, [*range(lane, whole, 4), *(range(whole, length) if lane == 0 else ())])
        for lane in range(4)
    )
    for other in others:
        first = first + other
    return first


def _by_registers(a: Single, b: Single) -> Single:
    """Return sums by eight registers of eight lanes, halved in turn; then one register; then a chain."""
    length, total = a.shape[1], np.zeros((a.shape[0], b.shape[1]), np.float32)
    long, middle = length - length % 64, length - length % 16
    if long:
        lanes = [[_chain(a, b, range(r * 8 + i, long, 64)) for i in range(8)] for r in range(8)]
        total = _halved(_halved(np.array(lanes)))
    if middle > long:
        total = total + _halved(np.array([_chain(a, b, range(long + i, middle, 8)) for i in range(8)]))
    return _chain(a, b, range(middle, length), total)


def _halved(parts: Single) -> Single:
    """Return the sum along the first axis, the upper half added to the lower one until one is left."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = parts[:half] + parts[half:]
    return np.asarray(parts[0])


def _chain(
    a: Single, b: Single, order: Iterable[int], total: Single | None = None, *, flush: bool = False
) -> Single:
    """Return sums of products by fused multiply-adds in a given order."""
    if total is None:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for j in order:
        product = np.multiply(a[:, j, np.newaxis], b[j], dtype=np.float64)  # exact: of 16 bits
        if flush:
            product = np.where(np.abs(product) < _LEAST, product * 0, product)
        nearest, residual = native.add(product, total.astype(np.float64))
        finite = np.isfinite(residual)
        total = native.make_odd(nearest, np.where(finite, residual, 0)).astype(np.float32)
    return total


def _flushed(x: Single) -> Single:
    """Return numbers with zeros in place of subnormal ones."""
    return np.where(np.abs(x) < _LEAST, x * 0, x)
