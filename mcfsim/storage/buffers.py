"""Reusable memory for intermediate blocks, and arrays whose elements share memory.

Allocating an array the size of a block costs a call to the operating system and a page fault for each page.
That takes several times as long as the arithmetic on it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Elements per block: enough that calls cost little compared with the arithmetic, and few enough for the
#: caches.
BLOCK = 1 << 17
#: Elements per block where calls cost more: threads wait for each other at each, random words take dozens.
LARGE_BLOCK = 2 * BLOCK

_LINE = 64
#: Binary logarithm of the fewest elements that are allocated.
_LEAST = 12
_kept = threading.local()


def scratch(place: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised vector that belongs to this thread until the next call with the same place.

    Parameters
    ----------
    place : str
        Name of its use. Arrays that are alive at the same time need different places.
    size : int
        Number of elements; beyond `LARGE_BLOCK` the memory is not kept.
    dtype : dtype
        Dtype of the elements.
    """
    if size > LARGE_BLOCK:
        return np.empty(size, dtype)
    arrays: dict[tuple[str, Any], NDArray[Any]] = _kept.__dict__.setdefault("arrays", {})
    key = place, dtype
    array = arrays.get(key)
    if array is None or array.size < size:
        length = (1 << max(_LEAST, (size - 1).bit_length())) * np.dtype(dtype).itemsize
        memory = np.empty(length + _LINE, np.uint8)
        first = -memory.ctypes.data % _LINE  # aligned to a cache line, so that wide loads do not straddle two
        array = arrays[key] = memory[first : first + length].view(dtype)
    return array[:size]


@lru_cache(maxsize=1)
def retain_freed_memory() -> None:
    """Make the C library keep the memory of freed blocks for the next ones.

    The GNU library returns a freed block to the system only if it is larger than all freed before. So this
    frees one large block that is never written to. With other libraries it does nothing.
    """
    np.empty(1 << 24, np.uint8)


def overlaps_itself(shape: Sequence[int], steps: Sequence[int], size: int = 1) -> bool:
    """Return whether elements of an array share memory, given its steps and the size of an element."""
    if 0 in shape:
        return False
    axes = sorted((abs(step), length) for step, length in zip(steps, shape, strict=True) if length != 1)
    reach = size
    for step, length in axes:
        if step < reach:  # axes are not one within another, so all places are compared
            break
        reach += (length - 1) * step
    else:
        return False
    places = np.zeros(1, np.int64)
    for step, length in axes:
        places = np.add.outer(places, step * np.arange(length)).reshape(-1)
    return bool((np.diff(np.sort(places)) < size).any())
