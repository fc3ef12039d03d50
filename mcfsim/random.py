"""Counter-based random words: each is a function of (seed, step, stream, index) and of nothing else.

So blocks, threads, replicas and resumed runs draw the same words in whatever order they ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
ROUNDS = 10


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Return the four words of Philox4x32-10 for a counter of four words and a key of two.

    Parameters
    ----------
    counter : tuple of four uint32 array_like
        They broadcast.
    key : tuple of two int
        32 bits each.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> _HALF) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> _HALF) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    a, b, c, d = (word.astype(np.uint32) for word in np.broadcast_arrays(c0, c1, c2, c3))
    return a, b, c, d


@dataclass(frozen=True)
class RandomWords:
    """A stream of random words of 32 bits.

    Parameters
    ----------
    seed : int
        Below 2**64: the key.
    step, stream : int, optional
        Below 2**32 each. Steps and streams of one seed share no word.

    Raises
    ------
    ValueError
        If one is negative or too large.
    """

    seed: int
    step: int = 0
    stream: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("step", 32), ("stream", 32)):
            if not 0 <= getattr(self, name) < 2**bits:
                raise ValueError(f"{name} = {getattr(self, name)} must lie in [0, 2**{bits})")

    def words(self, start: int, count: int) -> Words:
        """Return the words of `count` indices from `start` on; index i has word i % 4 of block i // 4."""
        first, last = start // 4, -(-(start + count) // 4)
        blocks = np.arange(first, last, dtype=np.uint64)
        counter = (blocks & _LOW, blocks >> _HALF, self.step, self.stream)
        words = np.stack(philox(counter, (self.seed & 0xFFFFFFFF, self.seed >> 32)), axis=-1).reshape(-1)
        return words[start - 4 * first : start - 4 * first + count]
