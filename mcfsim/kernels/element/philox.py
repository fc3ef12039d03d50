"""The random words of one counter: Philox4x32-10 as a straight line."""

from __future__ import annotations

from mcfsim.kernels.element.machine import I64, Value
from mcfsim.random import MULTIPLIERS, ROUNDS, WEYL

_MASK = 2**32 - 1


def philox_element(
    index: Value, seed_low: Value, seed_high: Value, step: Value, stream: Value
) -> tuple[Value, Value, Value, Value]:
    """Return the four words of a counter, as those of `mcfsim.random.RandomWords`.

    Parameters
    ----------
    index : value
        The counter's first two words, an integer of 64 bits.
    seed_low, seed_high, step, stream : value
        The seed's halves, and what else the words are a function of: integers of 64 bits below ``2**32``.

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
    c0, c1, c2, c3 = index & _MASK, index.shr(32), step, stream
    k0, k1 = seed_low, seed_high
    for _ in range(ROUNDS):
        of_first, of_second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = of_second.shr(32) ^ c1 ^ k0, of_first.shr(32) ^ c3 ^ k1
        c1, c3 = of_second & _MASK, of_first & _MASK
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return c0.cut(), c1.cut(), c2.cut(), c3.cut()
