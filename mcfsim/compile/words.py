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
from mcfsim.random import RandomWords, Words, counters, word_bits
from mcfsim.storage.buffers import scratch

_KEY = ("seed_low", "seed_high", "step", "stream")


def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype of the shortest words that have so many bits."""
    return np.dtype(f"u{word_bits(bits) // 8}")


def draw(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the words of a range of indices, as `RandomWords.draws` does.

    They share their memory with the next ones that are drawn for the same place in the same thread.
    """
    these, wanted = counters(start, count, word_bits(bits))
    drawn: NDArray[Any] = scratch(place, 4 * len(these), np.int32)
    _loop()(*map(np.int64, (*words.key, words.step, words.stream, these.start)), drawn)
    return drawn.view(word_dtype(bits))[wanted]


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
