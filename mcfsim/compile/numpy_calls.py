"""A lowered program as calls of NumPy's functions, in the place of a compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.lowering import Lowered
from mcfsim.kernels.element.calls import Calls
from mcfsim.storage.buffers import scratch

Array = NDArray[Any]

#: Elements that are worked on at once: all values of a program that live together fit into the second cache.
AT_ONCE = 1 << 15


def calls(lowered: Lowered) -> Callable[..., int]:
    """Return a function ``loop(*operands, *words, *numbers, *results)`` that fills results, vectors.

    As one that is compiled it takes random words of 16 or 32 bits; but the results share no memory with the
    operands, and it does not look at these: it returns 0. How many elements it works on at once may be given.
    """
    given = (*lowered.operands, *lowered.words, *lowered.numbers)
    first, last = len(lowered.operands), len(lowered.operands) + len(lowered.words)
    whole = Calls(lowered.results, given, lowered.numbers)

    def loop(*arrays: Any, at_once: int = AT_ONCE) -> int:
        operands, words, numbers = arrays[:first], arrays[first:last], arrays[last : len(given)]
        singles = [np.asarray(number) for number in numbers]
        size = arrays[-1].size
        with np.errstate(all="ignore"):
            for start in range(0, size, at_once):
                part = slice(start, min(start + at_once, size))
                drawn = [_widened(x[part], f"word {place}") for place, x in enumerate(words)]
                taken = [*(x[part] for x in operands), *drawn, *singles]
                whole(taken, [x[part] for x in arrays[len(given) :]])
        return 0

    return loop


def _widened(words: Array, place: str) -> Array:
    out = scratch(place, words.size, np.dtype(np.int64))
    np.copyto(out, words)
    return out
