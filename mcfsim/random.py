"""Counter-based random words: each is a function of (seed, step, stream, operation, index) alone.

Blocks, threads, replicas and resumed runs therefore draw the same words, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_int, whole_number
from mcfsim.storage.buffers import scratch

#: Random words of 32 bits, or of 16 where these suffice.
Words = NDArray[Any]

#: Multipliers of Philox4x32, and the constants added to its key in each round.
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = tuple(np.array(number, dtype=np.uint64) for number in MULTIPLIERS)
_HALF = np.array(32, dtype=np.uint64)
ROUNDS = 10
#: In the counter's second word the upper bits are the stream; the lower bits extend the first word.
STREAM_BITS = 20
INDEX_BITS = 64 - STREAM_BITS


def _encrypt(pairs: NDArray[np.uint64], key: tuple[int, int]) -> None:
    """Apply the Philox rounds in place to counters held as pairs of words: all first pairs, then all second.

    The first word of a pair is the upper one. The product of each side becomes the next pair of the other
    side, after an exclusive or of its high word with that side's low word and the key. On pairs this is a
    shift and two exclusive ors.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    size = pairs.size // 2
    products = scratch("products", 2 * size, np.uint64)
    (first, second), (of_second, of_first) = ((rows[:size], rows[size:]) for rows in (pairs, products))
    k0, k1 = key
    for _ in range(ROUNDS):
        np.right_shift(first, _HALF, out=of_first)
        np.right_shift(second, _HALF, out=of_second)
        np.multiply(of_first, _MULTIPLIERS[0], out=of_first)
        np.multiply(of_second, _MULTIPLIERS[1], out=of_second)
        np.left_shift(pairs, _HALF, out=pairs)
        np.bitwise_xor(first, np.array(k0 << 32, dtype=np.uint64), out=first)
        np.bitwise_xor(second, np.array(k1 << 32, dtype=np.uint64), out=second)
        np.bitwise_xor(pairs, products, out=pairs)
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF


def word_bits(bits: int) -> int:
    """Return the size of the shortest words that have `bits` bits: 16 or 32."""
    return 16 if bits <= 16 else 32


def counters(start: int, count: int, bits: int) -> tuple[range, slice]:
    """Return the counters whose words cover `count` indices from `start` on, and the slice of their words.

    Parameters
    ----------
    start, count : int
    bits : {32, 16}
        The size of a word.

    Raises
    ------
    ValueError
        If the stream has fewer words.
    """
    each = 128 // bits
    if start + count > (most := each << INDEX_BITS):
        raise ValueError(f"start + count = {start + count} exceeds {most}, the number of a stream's words")
    found = range(start // each, -(-(start + count) // each))
    first = start - each * found.start
    return found, slice(first, first + count)


@dataclass(frozen=True)
class RandomWords:
    """A stream of random words of 32 or 16 bits.

    Parameters
    ----------
    seed : int
        Key of the generator, below 2**64.
    step : int, optional
        Below 2**32.
    stream : int, optional
        Below 2**20.
    operation : int, optional
        Below 2**32; see `of`. Different steps, streams and operations of one seed share no word.

    Raises
    ------
    TypeError
        If an argument is no int.
    ValueError
        If an argument is negative or too large.
    """

    seed: int
    step: int = 0
    stream: int = 0
    operation: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("step", 32), ("stream", STREAM_BITS), ("operation", 32)):
            number = getattr(self, name)
            check_int(name, number)
            if not 0 <= number < 2**bits:
                raise ValueError(f"{name} = {number} must lie in [0, 2**{bits})")

    @property
    def key(self) -> tuple[int, int]:
        """The seed as two words, the lower one first."""
        return self.seed & 0xFFFFFFFF, self.seed >> 32

    @property
    def place(self) -> int:
        """Stream and operation in one integer, as kernels take them; the operation is the low 32 bits."""
        return self.stream << 32 | self.operation

    def of(self, operation: int) -> RandomWords:
        """Return the stream of an operation, counted from this one; it shares no word with other streams."""
        return replace(self, operation=self.operation + operation)

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
            With 32 bits, index i has word i % 4 of counter i // 4. With 16 bits, it has half i % 2, the lower
            half first, of the word of index i // 2.
        """
        start, count = whole_number("start", start, 0), whole_number("count", count, 0)
        if (bits := whole_number("bits", bits, 0)) not in (16, 32):
            raise ValueError(f"words have 32 or 16 bits, not {bits}")
        return self._words(start, count, bits).copy()

    def draws(self, start: int, count: int, bits: int) -> Words:
        """Return the shortest words that have `bits` bits, for stochastic rounding.

        The next draw in the same thread overwrites them.
        """
        return self._words(start, count, word_bits(bits))

    def _words(self, start: int, count: int, bits: int) -> Words:
        these, wanted = counters(start, count, bits)
        size = len(these)
        pairs = scratch("pairs", 2 * size, np.uint64)
        high, low = divmod(self.stream << INDEX_BITS | these.start, 2**32)
        if low + size <= 2**32:  # the counter's second word is the same for all indices
            np.add(_high_indices(size), np.array(low << 32 | high, dtype=np.uint64), out=pairs[:size])
        else:
            indices = np.arange(these.start, these.stop, dtype=np.uint64)
            indices |= np.uint64(self.stream << INDEX_BITS)
            np.bitwise_or(indices << _HALF, indices >> _HALF, out=pairs[:size])
        pairs[size:] = self.step << 32 | self.operation
        _encrypt(pairs, self.key)
        # The first word goes into the low bits, which come first in memory.
        exchanged = np.left_shift(pairs, _HALF, out=scratch("products", 2 * size, np.uint64))
        np.bitwise_or(np.right_shift(pairs, _HALF, out=pairs), exchanged, out=pairs)
        ordered = scratch("words", 2 * size, np.dtype("<u8"))
        ordered[::2], ordered[1::2] = pairs[:size], pairs[size:]
        words = ordered.view(f"<u{bits // 8}")[wanted]
        return words.astype(words.dtype.newbyteorder("="), copy=False)


@lru_cache(maxsize=4)
def _high_indices(size: int) -> NDArray[np.uint64]:
    """Return 0, 1, ... in the upper words of pairs."""
    indices = np.arange(size, dtype=np.uint64) << _HALF
    indices.flags.writeable = False
    return indices
