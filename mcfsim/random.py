"""Counter-based random words: each is a function of (seed, step, stream, index) and of nothing else.

So blocks, threads, replicas and resumed runs draw the same words in whatever order they ask for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.scratch import scratch

#: Random words of 32 bits, or of 16 where so many suffice.
Words = NDArray[Any]

_MULTIPLIERS = np.array(0xD2511F53, dtype=np.uint64), np.array(0xCD9E8D57, dtype=np.uint64)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_HALF = np.array(32, dtype=np.uint64)
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
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    first, second = np.array((c0 << _HALF) | c1), np.array((c2 << _HALF) | c3)
    _encrypt(first, second, key)
    a, b, c, d = (word.astype(np.uint32) for word in (first >> _HALF, first, second >> _HALF, second))
    return a, b, c, d


def _encrypt(first: NDArray[np.uint64], second: NDArray[np.uint64], key: tuple[int, int]) -> None:
    """Apply the rounds in place to counters held as pairs of words, the first word of a pair on top.

    A product's high and low word are the next pair but for the high one, to which the other pair's low word
    and the key are added without carry: on pairs, a shift and two exclusive ors.
    """
    left, right = (scratch(place, first.size, np.uint64).reshape(first.shape) for place in ("left", "right"))
    k0, k1 = key
    for _ in range(ROUNDS):
        np.right_shift(first, _HALF, out=left)
        np.multiply(left, _MULTIPLIERS[0], out=left)
        np.right_shift(second, _HALF, out=right)
        np.multiply(right, _MULTIPLIERS[1], out=right)
        for pair, product, k in ((first, right, k0), (second, left, k1)):
            np.left_shift(pair, _HALF, out=pair)
            np.bitwise_xor(pair, np.array(k << 32, dtype=np.uint64), out=pair)
            np.bitwise_xor(pair, product, out=pair)
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF


@dataclass(frozen=True)
class RandomWords:
    """A stream of random words of 32 bits, or of 16.

    Parameters
    ----------
    seed : int
        Below 2**64: the key.
    step, stream : int, optional
        Below 2**32 each. Steps and streams of one seed share no word.

    Raises
    ------
    TypeError
        If one is no int.
    ValueError
        If one is negative or too large.
    """

    seed: int
    step: int = 0
    stream: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("step", 32), ("stream", 32)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{name} must be an int, not {number!r}")
            if not 0 <= number < 2**bits:
                raise ValueError(f"{name} = {number} must lie in [0, 2**{bits})")

    def words(self, start: int, count: int, bits: int = 32) -> Words:
        """Return the words of `count` indices from `start` on.

        Parameters
        ----------
        start, count : int
            The indices.
        bits : {32, 16}, optional
            The size of a word.

        Returns
        -------
        array of uint32 or uint16
            Index i has word i % 4 of the counter i // 4; or half i % 2, the lower one first, of word i // 2.
        """
        if bits not in (16, 32):
            raise ValueError(f"words have 32 or 16 bits, not {bits}")
        if start < 0 or count < 0:
            raise ValueError(f"start = {start} and count = {count} must not be negative")
        return self._words(start, count, bits).copy()

    def draws(self, start: int, count: int, bits: int) -> Words:
        """Return the shortest words that have so many bits, as stochastic rounding takes them.

        They share their memory with the next ones that are drawn in the same thread.
        """
        return self._words(start, count, 16 if bits <= 16 else 32)

    def _words(self, start: int, count: int, bits: int) -> Words:
        each = 128 // bits
        first, last = start // each, -(-(start + count) // each)
        size = last - first
        low, high, swapped = (scratch(place, size, np.uint64) for place in ("first", "second", "left"))
        np.add(_indices(size), np.array(first, dtype=np.uint64), out=low)
        np.right_shift(low, _HALF, out=high)
        np.left_shift(low, _HALF, out=low)
        np.bitwise_or(low, high, out=low)
        high[...] = self.step << 32 | self.stream
        _encrypt(low, high, (self.seed & 0xFFFFFFFF, self.seed >> 32))
        # In memory the lowest bits come first.
        ordered = scratch("words", 2 * size, np.dtype("<u8")).reshape(size, 2)
        for place, pair in enumerate((low, high)):
            np.left_shift(pair, _HALF, out=swapped)
            np.right_shift(pair, _HALF, out=pair)
            np.bitwise_or(swapped, pair, out=ordered[:, place])
        words = ordered.reshape(-1).view(f"<u{bits // 8}")[start - each * first :][:count]
        return words.astype(words.dtype.newbyteorder("="), copy=False)


@lru_cache(maxsize=4)
def _indices(size: int) -> NDArray[np.uint64]:
    indices = np.arange(size, dtype=np.uint64)
    indices.flags.writeable = False
    return indices
