"""The blocks of an array: runs along an axis, tiles of the last two axes, or all of it; views or copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_int

Array = NDArray[Any]


class BlockViews:
    """How the blocks of an array of one shape, or of a tensor of PyTorch, lie in it.

    Parameters
    ----------
    shape : tuple of int
        The array's.
    block : int or (int, int) or "axis" or None
        See `mcfsim.scaled.formats.ScaledFormat`.
    axis : int
        Along which blocks lie; not negative. Tiles ignore it.

    Raises
    ------
    ValueError
        If blocks are tiles and the array has fewer than two axes.
    """

    def __init__(
        self, shape: tuple[int, ...], block: int | tuple[int, int] | Literal["axis"] | None, axis: int
    ) -> None:
        self._shape, self.axis = shape, axis
        self._tiled, self._whole = isinstance(block, tuple), block is None
        if isinstance(block, tuple):
            if len(shape) < 2:
                raise ValueError(
                    f"tiles of {block[0]}x{block[1]} need an array of at least two axes, not shape {shape}"
                )
            ranges = [_ranges(length, size) for length, size in zip(shape[-2:], block, strict=True)]
            self._tiles, self._ranges_of_columns = list(product(*ranges)), len(ranges[1])
        elif not self._whole:
            self._length = (shape or (1,))[axis]
            whole = max(self._length, 1)
            self._size = min(block, whole) if isinstance(block, int) else whole

    def parts(self, array: Array) -> list[Array]:
        """Return the parts of an array of this shape, whose last axis runs within a block.

        Blocks of one size form a part: the full ones first. The parts of a contiguous array are views unless
        blocks are tiles, whose elements may be copied row by row.
        """
        array = array.reshape(1) if array.ndim == 0 else array
        if self._whole:
            return [array.reshape(-1)]
        if self._tiled:
            return [_tiles(array, *both) for both in self._tiles]
        rows = _last(array, self.axis)
        count, rest = divmod(self._length, self._size)
        # A view: one axis is split.
        full = rows[..., : count * self._size].reshape(*rows.shape[:-1], count, self._size)
        return [full, rows[..., None, count * self._size :]] if rest else [full]

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales; see `joined`."""
        if self._whole:
            return ()
        if self._tiled:
            ends = self._tiles[-1]
            return (*self._shape[:-2], *(x.blocks.stop for x in ends))
        count = -(-self._length // self._size)
        return tuple(count if place == self.axis else x for place, x in enumerate(self._shape))

    def widths(self, parts: Sequence[Array]) -> list[int]:
        """Return the length of the rows of each part's blocks; for runs, the length of the blocks."""
        if self._tiled:
            return [columns.size for _, columns in self._tiles]
        return [part.shape[-1] for part in parts]

    def put(self, parts: Sequence[Array], array: Array) -> None:
        """Write parts that are copies back into the array from which `parts` took them."""
        if self._tiled:
            for part, (rows, columns) in zip(parts, self._tiles, strict=True):
                tiles = part.reshape(*part.shape[:-1], rows.size, columns.size)
                target = array[..., rows.of, columns.of]
                target[...] = tiles.swapaxes(-2, -3).reshape(target.shape)

    def joined(self, found: Sequence[Array]) -> Array:
        """Return one number for each block of each part as an array, in the shape of the scales.

        Its shape is that of the array, with the number of blocks in place of the length of each axis along
        which blocks lie; it is ``()`` if the whole tensor is a block.
        """
        if self._whole:
            return found[0]
        if self._tiled:
            width = self._ranges_of_columns
            rows = [np.concatenate(found[x : x + width], axis=-1) for x in range(0, len(found), width)]
            return np.concatenate(rows, axis=-2)
        whole = np.concatenate(found, axis=-1)
        return whole.reshape(()) if not self._shape else np.moveaxis(whole, -1, self.axis)

    def shared(self, scale: Array) -> list[Array]:
        """Return views of the scales that broadcast with the parts."""
        if self._whole:
            return [scale.reshape(1)]
        if self._tiled:
            return [scale[..., rows.blocks, columns.blocks, np.newaxis] for rows, columns in self._tiles]
        rows = np.moveaxis(scale.reshape(1) if scale.ndim == 0 else scale, self.axis, -1)[..., np.newaxis]
        count, rest = divmod(self._length, self._size)
        return np.split(rows, [count] if rest else [], axis=-2)


class _Range:
    """Blocks of one size along one axis: the elements of all of them, their numbers, and their size."""

    def __init__(self, start: int, count: int, size: int, first: int) -> None:
        self.of = slice(start, start + count * size)
        self.blocks = slice(first, first + count)
        self.count, self.size = count, size


def _ranges(length: int, size: int) -> list[_Range]:
    """Return the range of the full blocks along an axis, and that of the shorter one if there is one."""
    count, rest = divmod(length, size)
    found = [_Range(0, count, size, 0)] if count or not rest else []
    return [*found, _Range(count * size, 1, rest, count)] if rest else found


def _tiles(array: Array, rows: _Range, columns: _Range) -> Array:
    """Return a copy of some tiles, whose axes are the array's, those of tiles, and one of elements."""
    part = array[..., rows.of, columns.of]
    split = part.reshape(*part.shape[:-2], rows.count, rows.size, columns.count, columns.size)
    tiles = split.swapaxes(-3, -2)
    return tiles.reshape(*tiles.shape[:-2], rows.size * columns.size)


def axis_of(axis: int, dimensions: int) -> int:
    """Return an axis's number from 0 on; raise TypeError unless it is an int, AxisError if there is none."""
    check_int("axis", axis)
    if not -dimensions <= axis < dimensions:  # NumPy's own function takes no long integers
        raise np.exceptions.AxisError(axis, dimensions)
    return axis % dimensions


def _last(array: Array, axis: int) -> Array:
    """Return an array or a tensor with an axis moved to the end."""
    order = [*(place for place in range(array.ndim) if place != axis), axis]
    made: Array = array.transpose(order) if isinstance(array, np.ndarray) else array.permute(order)
    return made
