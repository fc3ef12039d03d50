"""Random words drawn by a compiled loop, or by NumPy: the same words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.llvm_source import words_source
from mcfsim.compile.lowering import Lowered
from mcfsim.compile.objects import called
from mcfsim.compile.sources import KEY
from mcfsim.kernels.element.machine import I64, recorded
from mcfsim.kernels.element.philox import philox_element
from mcfsim.random import RandomWords, Words, counters, word_bits
from mcfsim.storage.buffers import scratch


def word_dtype(bits: int) -> np.dtype[Any]:
    """Return the dtype of the shortest words with at least so many bits."""
    return np.dtype(f"u{word_bits(bits) // 8}")


def draw(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the words of a range of indices, as `RandomWords.draws` does.

    The next draw for the same place in the same thread overwrites them.
    """
    these, wanted = counters(start, count, word_bits(bits))
    drawn: NDArray[Any] = scratch(place, 4 * len(these), np.int32)
    _loop()(*map(np.int64, (*words.key, words.step, words.place, these.start)), drawn)
    return drawn.view(word_dtype(bits))[wanted]


def draw_rows(words: RandomWords, operations: Any, counter: int, drawn: NDArray[np.int32]) -> None:
    """Fill each row of an array with the words of one operation, from a given counter of four words."""
    key = (words.seed & 0xFFFFFFFF, words.seed >> 32, words.step)
    _rows()(*map(np.int64, key), words.place + operations, np.int64(counter), drawn)


def drawn_by_numpy(words: RandomWords, start: int, count: int, bits: int, place: str) -> Words:
    """Return the same words as `draw`, drawn by NumPy."""
    drawn: Words = scratch(place, count, word_dtype(bits))
    np.copyto(drawn, words.draws(start, count, bits))
    return drawn


def prepare_words() -> None:
    """Compile or load the loop that draws words."""
    _loop()


@lru_cache(maxsize=1)
def _loop() -> Any:
    return called(_source(), "loop", *[np.int64(0)] * 5, np.empty(0, np.int32))


@lru_cache(maxsize=1)
def _rows() -> Any:
    nothing = np.empty(0, np.int64), np.int64(0), np.empty((0, 0), np.int32)
    return called(_source(), "rows", *[np.int64(0)] * 3, *nothing)


def _source() -> str:
    """Return the source of the loop that draws random words."""
    line, results = recorded(philox_element, index=I64, **dict.fromkeys(KEY, I64))
    inputs = {value.constant: value for value in line.values if value.verb == "input"}
    key = tuple(inputs[name] for name in KEY)
    lowered = Lowered(line, (), key, (), results, None, index=inputs["index"])
    return words_source(lowered, "The words of Philox4x32-10, four of a counter.")
