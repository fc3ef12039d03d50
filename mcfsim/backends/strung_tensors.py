"""CPU tensors strung together: their elements in order, and the blocks that small ones share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mcfsim.kernels.torch_tensors import TORCH_DTYPES as TORCH_DTYPES
from mcfsim.kernels.torch_tensors import as_array as as_array
from mcfsim.kernels.torch_tensors import check_dense as check_dense
from mcfsim.kernels.torch_tensors import torch
from mcfsim.kernels.torch_tensors import torch_dtype as torch_dtype
from mcfsim.storage.buffers import BLOCK


def flat(tensor: torch.Tensor) -> Any:
    """Return the elements of a tensor in row-major order, whose slices can be read and written."""
    array = as_array(tensor)
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def cut(sizes: Iterable[int]) -> Iterator[list[tuple[int, slice, slice]]]:
    """Cut tensors, strung together, into blocks, so that small ones share a block.

    Yields
    ------
    list of (int, slice, slice)
        The pieces of a block: which tensor, its elements, and where in the block they lie.
    """
    pieces: list[tuple[int, slice, slice]] = []
    filled = 0
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            length = min(size - start, BLOCK - filled)
            pieces.append((index, slice(start, start + length), slice(filled, filled + length)))
            start, filled = start + length, filled + length
            if filled == BLOCK:
                yield pieces
                pieces, filled = [], 0
    if pieces:
        yield pieces
