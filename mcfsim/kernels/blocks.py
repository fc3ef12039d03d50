"""Blocks of arrays that stay in cache: the one loop over elements, and the threads that share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks.processor import check_processor
from mcfsim.storage.buffers import BLOCK, LARGE_BLOCK

Array = NDArray[Any]


def for_each_block(
    function: Callable[..., object],
    operands: Sequence[Array],
    dtype: np.dtype[Any],
    outputs: int,
    *,
    results: np.dtype[Any] | None = None,
    out: Array | None = None,
    threads: int = 1,
    ordered: bool = False,
    block: int = BLOCK,
) -> list[Array]:
    """Apply an elementwise function to broadcast operands block by block.

    Parameters
    ----------
    function : callable
        Takes the index of the block's first element, then one one-dimensional contiguous block of `dtype`
        an operand, to which it must not write, and one an output, which it fills.
    operands : sequence of array
        Any layout, byte order and (numeric) dtype; `dtype` must hold each element exactly.
    dtype : dtype
        Of the blocks of operands.
    outputs : int
        Number of results.
    results : dtype, optional
        Of the results, if it is another.
    out : array, optional
        Where the only result goes; of its dtype and of the broadcast shape. If it is an operand, the function
        finds both in the same memory.
    threads : int, optional
        Blocks are shared among this many threads; NumPy frees the interpreter lock inside its loops.
    ordered : bool, optional
        Whether indices count the elements in row-major order, whatever the layout of the operands;
        otherwise in the order that is fastest.
    block : int, optional
        Elements a block, if one thread does the work.

    Returns
    -------
    list of array
        The results, of the broadcast shape.
    """
    if out is None and _is_one_block(operands, dtype, block):
        made = [np.empty(operands[0].shape, results or dtype) for _ in range(outputs)]
        check_processor()
        with np.errstate(all="ignore"):
            function(0, *[array.reshape(-1) for array in (*operands, *made)])
        return made
    size = block if threads == 1 else LARGE_BLOCK
    given = [out] if out is not None else [None] * outputs
    iterator = np.nditer(  # type: ignore[call-overload]  # its stub knows no "contig"
        [*operands, *given],
        flags=["external_loop", "buffered", "ranged", "zerosize_ok", "delay_bufalloc"],
        op_flags=[["readonly", "contig", "aligned"]] * len(operands)
        + [["writeonly", "allocate", "no_subtype"]] * outputs,
        op_dtypes=[dtype] * len(operands) + [results or dtype] * outputs,
        casting="unsafe",  # the callers have seen to it that every element fits
        order="C" if ordered else "K",
        buffersize=size,
    )
    inputs = len(operands)

    def run(part: np.nditer, start: int) -> None:
        check_processor()  # a setting of each thread
        with np.errstate(all="ignore"):
            for arrays in part:
                function(start, *arrays)
                start += arrays[0].size

    if threads > 1 and iterator.itersize > size:
        bounds = np.linspace(0, -(-iterator.itersize // size), threads + 1).astype(int) * size
        bounds = np.minimum(bounds, iterator.itersize)
        with ThreadPoolExecutor(threads) as pool:
            tasks = []
            for start, stop in pairwise(bounds):
                part = iterator.copy()
                part.iterrange = (int(start), int(stop))
                part.reset()
                tasks.append(pool.submit(run, part, int(start)))
            for task in tasks:
                task.result()
    elif iterator.itersize:
        iterator.reset()
        run(iterator, 0)
    return list(iterator.operands[inputs:])


def _is_one_block(operands: Sequence[Array], dtype: np.dtype[Any], block: int) -> bool:
    """Whether the operands are already blocks, so that no loop is needed."""
    first = operands[0]
    if not 0 < first.size <= block:
        return False
    for array in operands:
        flags = array.flags
        if array.dtype != dtype or array.shape != first.shape or not (flags.c_contiguous and flags.aligned):
            return False
    return True
