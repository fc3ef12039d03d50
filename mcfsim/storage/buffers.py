"""Memory for intermediate blocks, kept and used again.

An array of a block's size is worth a call to the operating system at each allocation, and a page fault for
each of its pages: several times what the arithmetic on it costs.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Elements a block: so many that calls cost little beside the arithmetic, and few enough for the caches.
BLOCK = 1 << 17
#: Elements a block where calls weigh more: threads wait for each other at each, and random words take dozens.
LARGE_BLOCK = 2 * BLOCK

_LINE = 64
#: The binary logarithm of the fewest elements that are kept.
_LEAST = 12
_kept = threading.local()


def scratch(place: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised one-dimensional array that is this thread's until the next call for its place.

    Parameters
    ----------
    place : str
        Where it is used: whatever may be alive at the same time needs different places.
    size : int
        Elements; beyond `LARGE_BLOCK` the memory is not kept.
    dtype : dtype
        Of the elements.
    """
    if size > LARGE_BLOCK:
        return np.empty(size, dtype)
    arrays: dict[tuple[str, Any], NDArray[Any]] = _kept.__dict__.setdefault("arrays", {})
    key = place, dtype
    array = arrays.get(key)
    if array is None or array.size < size:
        array = arrays[key] = _on_a_cache_line(1 << max(_LEAST, (size - 1).bit_length()), np.dtype(dtype))
    return array[:size]


@lru_cache(maxsize=1)
def retain_freed_memory() -> None:
    """Make the C library keep the memory of freed blocks for the next ones.

    The GNU library returns a freed block to the system if it is larger than all that were freed before, so
    that freeing one large block, never written to, settles it. Elsewhere this does nothing.
    """
    np.empty(1 << 24, np.uint8)


def _on_a_cache_line(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory that starts where wide loads do not straddle two cache lines."""
    memory = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    offset = -memory.ctypes.data % _LINE
    return memory[offset : offset + size * dtype.itemsize].view(dtype)
