"""Memory for intermediate blocks, kept and used again.

An array of a block's size is worth a call to the operating system at each allocation, and a page fault for
each of its pages: several times what the arithmetic on it costs.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Elements a block at most. The dozen intermediates of a block then fit the second-level cache.
BLOCK = 1 << 17

_LINE = 64
_kept = threading.local()


def scratch(place: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised one-dimensional array that is this thread's until the next call for its place.

    Parameters
    ----------
    place : str
        Where it is used: whatever may be alive at the same time needs different places.
    size : int
        Elements; beyond `BLOCK` the memory is not kept.
    dtype : dtype
        Of the elements.
    """
    if size > BLOCK:
        return np.empty(size, dtype)
    arrays: dict[tuple[str, Any], NDArray[Any]] = _kept.__dict__.setdefault("arrays", {})
    key = place, dtype
    array = arrays.get(key)
    if array is None:
        array = arrays[key] = _on_a_cache_line(BLOCK, np.dtype(dtype))
    return array[:size]


def _on_a_cache_line(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory that starts where wide loads do not straddle two cache lines."""
    memory = np.empty(size * dtype.itemsize + _LINE, np.uint8)
    offset = -memory.ctypes.data % _LINE
    return memory[offset : offset + size * dtype.itemsize].view(dtype)
