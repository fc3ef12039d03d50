"""Random words drawn by a compiled loop, in cache, before the loop that takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.lowering import Lowered
from mcfsim.compile.numba_source import source
from mcfsim.compile.sources import loaded
from mcfsim.kernels.element.machine import I64, recorded
from mcfsim.kernels.element.philox import philox_element
from mcfsim.random import RandomWords, Words
from mcfsim.storage.buffers import scratch

_KEY = ("seed_low", "seed_high", "step", "stream")


def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype of the shortest words that have so many bits."""
    return np.dtype(np.uint16 if bits <= 16 else np.uint32)


def draw(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the words of a range of indices, as `RandomWords.draws` does.

    They share their memory with the next ones that are drawn for the same place in the same thread.
    """
    dtype = word_dtype(bits)
    each = 16 // dtype.itemsize
    first, last = start // each, -(-(start + count) // each)
    drawn: NDArray[Any] = scratch(place, 4 * (last - first), np.int32)
    key = (words.seed & 0xFFFFFFFF, words.seed >> 32, words.step, words.stream)
    _loop()(*map(np.int64, key), np.int64(first), drawn)
    return drawn.view(dtype)[start - each * first :][:count]


@lru_cache(maxsize=1)
def _loop() -> Any:
    return loaded(source_of_words())


def source_of_words() -> str:
    """Return the source of the loop that draws."""
    line, results = recorded(philox_element, index=I64, **dict.fromkeys(_KEY, I64))
    inputs = {value.constant: value for value in line.values if value.verb == "input"}
    key = tuple(inputs[name] for name in _KEY)
    lowered = Lowered(line, (), key, (), results, None, index=inputs["index"])
    return source(lowered, "The words of Philox4x32-10, four of a counter.", interleaved=True)
