"""Blocks of arrays that stay in cache: the one loop over elements, and the threads that share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Elements a block. The dozen intermediates of a block then fit the second-level cache.
BLOCK = 1 << 15


def for_each_block(
    function: Callable[..., Sequence[Array]],
    operands: Sequence[Array],
    dtype: np.dtype[Any],
    outputs: int,
    *,
    out: Array | None = None,
    threads: int = 1,
    ordered: bool = False,
) -> list[Array]:
    """Apply an elementwise function to broadcast operands block by block.

    Parameters
    ----------
    function : callable
        Takes the index of the block's first element and one one-dimensional contiguous block of `dtype`
        an operand, and returns `outputs` blocks. It must not write to its arguments.
    operands : sequence of array
        Any layout, byte order and (numeric) dtype that casts to `dtype` exactly.
    dtype : dtype
        The carrier of the computation and of the results.
    outputs : int
        Number of results.
    out : array, optional
        Where the only result goes; of `dtype` and of the broadcast shape.
    threads : int, optional
        Blocks are shared among this many threads; NumPy frees the interpreter lock inside its loops.
    ordered : bool, optional
        Whether indices count the elements in row-major order, whatever the layout of the operands;
        otherwise in the order that is fastest.

    Returns
    -------
    list of array
        The results, of the broadcast shape.
    """
    given = [out] if out is not None else [None] * outputs
    iterator = np.nditer(  # type: ignore[call-overload]  # its stub knows no "contig"
        [*operands, *given],
        flags=["external_loop", "buffered", "ranged", "zerosize_ok", "delay_bufalloc"],
        op_flags=[["readonly", "contig", "aligned"]] * len(operands)
        + [["writeonly", "allocate", "no_subtype"]] * outputs,
        op_dtypes=[dtype] * (len(operands) + outputs),
        casting="same_kind",
        order="C" if ordered else "K",
        buffersize=BLOCK,
    )
    inputs = len(operands)

    def run(part: np.nditer, start: int) -> None:
        with np.errstate(all="ignore"):
            for block in part:
                for target, result in zip(block[inputs:], function(start, *block[:inputs]), strict=True):
                    target[...] = result
                start += block[0].size

    if threads > 1 and iterator.itersize > BLOCK:
        bounds = np.linspace(0, -(-iterator.itersize // BLOCK), threads + 1).astype(int) * BLOCK
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
    results = list(iterator.operands[inputs:])
    return results
