"""The random words of one counter, by Philox4x32-10 as a straight line of machine operations."""

from __future__ import annotations

from mcfsim.kernels.element.machine import I64, Value
from mcfsim.random import MULTIPLIERS, ROUNDS, STREAM_BITS, WEYL

_MASK = 2**32 - 1


def philox_element(
    index: Value, seed_low: Value, seed_high: Value, step: Value, place: Value
) -> tuple[Value, Value, Value, Value]:
    """Return the four random words of a counter, as `mcfsim.random.RandomWords` does.

    Parameters
    ----------
    index : value
        The number of the counter within its stream and operation, an integer of 64 bits.
    seed_low, seed_high, step : value
        The seed's halves, and the step: integers of 64 bits below ``2**32``.
    place : value
        Stream and operation, see `mcfsim.random.RandomWords.place`.

    Returns
    -------
    tuple of value
        Integers of 32 bits.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    if index.type is not I64:
        raise TypeError(f"a counter is of {I64}, not {index.type}")
    second = index.shr(32) | place.shr(32) << 32 - STREAM_BITS
    c0, c1, c2, c3 = index & _MASK, second, step, place & _MASK
    k0, k1 = seed_low, seed_high
    for _ in range(ROUNDS):
        of_first, of_second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = of_second.shr(32) ^ c1 ^ k0, of_first.shr(32) ^ c3 ^ k1
        c1, c3 = of_second & _MASK, of_first & _MASK
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0.cut(), c1.cut(), c2.cut(), c3.cut()


def word_element(
    index: Value, seed_low: Value, seed_high: Value, step: Value, place: Value, *, bits: int
) -> Value:
    """Return the random word of an index, as `mcfsim.random.RandomWords.words` does.

    Parameters
    ----------
    index, seed_low, seed_high, step, place : value
        Integers of 64 bits, as for `philox_element`, except that the index is that of the word.
    bits : {32, 16}
        The size of a word.

    Returns
    -------
    value
        An integer of 64 bits below ``2**bits``.
    """
    part = index & (128 // bits - 1)
    words = philox_element(index.shr(2 if bits == 32 else 3), seed_low, seed_high, step, place)
    which = part if bits == 32 else part.shr(1)
    chosen = words[3].extend()
    for number in (2, 1, 0):
        chosen = which.equals(number).select(words[number].extend(), chosen)
    if bits == 16:
        chosen = chosen.shr((part & 1) << 4)
    word: Value = chosen & (2**bits - 1)
    return word
