"""Where the blocks of an array lie: views of it, whose last axis runs within a block."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def in_blocks(array: Array, block: int | Literal["axis"] | None, axis: int) -> list[Array]:
    """Return an array as views whose last axis runs within a block: the full blocks, then the one left over.

    The axis before counts the blocks. If all elements are one block, the array is its own and only view.
    """
    array = array.reshape(1) if array.ndim == 0 else array
    if block is None:
        return [array]
    rows = np.moveaxis(array, axis, -1)
    length = rows.shape[-1]
    size = max(length, 1) if block == "axis" else block
    count, rest = divmod(length, size)
    full = rows[..., : count * size].reshape(*rows.shape[:-1], count, size)  # a view: one axis is split
    return [full, rows[..., np.newaxis, count * size :]] if rest else [full]


def shared(
    scale: Array, views: Sequence[Array], block: int | Literal["axis"] | None, axis: int
) -> list[Array]:
    """Return scales as views that broadcast with those of the elements."""
    if block is None:
        return [scale.reshape(1)]
    rows = np.moveaxis(scale.reshape(1) if scale.ndim == 0 else scale, axis, -1)[..., np.newaxis]
    ends = accumulate(view.shape[-2] for view in views)
    return np.split(rows, list(ends)[:-1], axis=-2)
