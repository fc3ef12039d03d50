"""Stochastic rounding on every path: an operation has every result that some random word gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import is_scalar
from mcfsim.protocol import Arithmetic, Emulation, Forwarding, Value
from mcfsim.random import RandomWords, Words, word_bits
from mcfsim.rounding import Rounding
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.trial import ArrayBacked, Block, Trial, Truth


@dataclass(frozen=True, eq=False)
class Paths(Trial):
    """A trial with operands and results of every path of every case, one element per path.

    A case is violated if one of its paths is, and applicable if all of them are.

    Attributes
    ----------
    whose : block of int
        The case of each path, in order.
    probability : Exact
        The probability of each path: the share of the random words that lead to it.
    """

    whose: Block = field(kw_only=True)
    probability: Exact = field(kw_only=True)

    @cached_property
    def _starts(self) -> Block:
        return np.flatnonzero(np.diff(self.whose, prepend=-1))

    @property
    def cases(self) -> int:
        """Number of cases."""
        return int(self._starts.size)

    def case(self, element: int) -> int:
        """Return the case of a path."""
        return int(self.whose[element])

    def each(self, of_cases: Block) -> Block:
        """Return a value for each path from a value for each case."""
        return of_cases[self.whose]

    def throughout(self, held: Truth) -> Truth:
        """Return for each case whether something holds on every path."""
        return np.logical_and.reduceat(held, self._starts)

    def only(self, there: Truth, test: Callable[[Trial], Truth]) -> Truth:
        """Return where `there` and a test hold; the test sees all paths, since expectations need them."""
        held: Truth = there & test(self)
        return held

    rarely = only

    def mean(self, x: Exact) -> Exact:
        """Return for each path the expectation of a number over all paths of its case."""
        weighted = x * self.probability
        n, q, bits = weighted.integers(), weighted.q, weighted.bits
        if not isinstance(q, int):
            there = n != 0
            least = int(np.min(q, where=there, initial=np.max(q)))
            up = np.where(there, q - least, 0)
            n, q, bits = n.astype(object) << up.astype(object), least, bits + int(up.max())
        bits += int(np.diff(self._starts, append=self.whose.size).max()).bit_length()
        if bits > 62:  # `reduceat` does not sum two words; 125 bits mean Python integers
            n, bits = n.astype(object), max(bits, 125)
        return Exact(np.add.reduceat(n, self._starts), q, bits)[self.whose]


class AllDraws(Forwarding):
    """An `mcfsim.protocol.Arithmetic` that runs an algorithm on all random words at once.

    Parameters
    ----------
    ar : Emulation
        The emulator, with stochastic rounding. It carries out every operation.
    size : int
        Number of cases.

    Attributes
    ----------
    format, carrier, rounding
        Those of the emulator.

    Notes
    -----
    A path splits into two where an operation has two results. Under every `mcfsim.rounding.Rule`, a result
    is the truncation for random bits below some number, and the other neighbour from that number on.
    Bisection finds the number: r + 2 runs of an operation give its results for all ``2**r`` draws.
    """

    def __init__(self, ar: Emulation, size: int) -> None:
        self._ar, self._bits = ar, ar.rounding.random_bits
        self.format, self.carrier, self.rounding = ar.format, ar.carrier, ar.rounding
        self.whose = np.arange(size)
        self.probability = Exact(np.ones(size), 0, 1)
        #: For every operation that split paths: the old path of each new one.
        self._origins: list[Block] = []

    def like(self, fmt: Format, rounding: Rounding) -> Arithmetic:
        """Return the arithmetic of one path in another format."""
        return self._ar.like(fmt, rounding)

    def settled(self, x: Any) -> Any:
        """Return a value or an operand as a block with one element for every path that exists now."""
        if isinstance(x, _Value):
            return self._brought_on(x.block, x.age)
        return self._brought_on(x, 0) if isinstance(x, np.ndarray) else x

    def _brought_on(self, block: Block, age: int) -> Block:
        for origins in self._origins[age:]:
            block = block[origins]
        return block

    def _operate(self, operation: str, *operands: Value) -> _Value:
        blocks = [x if is_scalar(x) else self.settled(x) for x in operands]
        low, high = (self._drawn(operation, blocks, draw) for draw in (0, (1 << self._bits) - 1))
        two = ~_same(low, high)
        if not two.any():
            return _Value(low, len(self._origins))
        some = [x if is_scalar(x) else x[two] for x in blocks]
        ups = self._ups(operation, some, high[two])
        origins = np.repeat(np.arange(two.size), 1 + two)
        # Where a path splits, the first of the two new paths takes the truncation.
        first = np.flatnonzero(two) + np.arange(ups.size)
        result = low[origins]
        result[first + 1] = high[two]
        spare = int(np.min(ups & -ups)).bit_length() - 1  # no probability needs these bits
        share = np.full(origins.size, np.ldexp(1.0, self._bits - spare))
        share[first + 1] = np.ldexp(ups, -spare)
        share[first] -= share[first + 1]
        self.probability = self.probability[origins] * Exact(share, spare - self._bits, self._bits - spare)
        self.whose = self.whose[origins]
        self._origins.append(origins)
        return _Value(result, len(self._origins))

    def _ups(self, operation: str, blocks: list[Any], high: Block) -> Block:
        """Return how many draws give the last draw's result, where the first draw gives another one."""
        below = np.zeros(high.size, np.int64)
        above = below + (1 << self._bits) - 1
        while (above - below > 1).any():
            middle = (below + above) >> 1
            up = _same(self._drawn(operation, blocks, middle), high)
            above, below = np.where(up, middle, above), np.where(up, below, middle)
        return (1 << self._bits) - above

    def _drawn(self, operation: str, blocks: list[Any], draw: int | Block) -> Block:
        """Return the result of an operation with given random bits."""
        sizes = [x.size for x in blocks if not is_scalar(x)]
        if not sizes:  # one result, of one word, for all paths
            draw = int(np.min(draw))
        size = max(sizes, default=self.whose.size)
        result = np.asarray(
            getattr(self._ar.at(_Draws(0, draw=draw), 0), operation)(*blocks), self._ar.carrier
        )
        return result if result.size == size else np.broadcast_to(result, size)


@dataclass(frozen=True, eq=False)
class _Value(ArrayBacked):
    """A block of results, and how often paths had been split when it was computed."""

    block: Block
    age: int


@dataclass(frozen=True)
class _Draws(RandomWords):
    """Random words whose highest bits are given: the same for every element, or one value each."""

    draw: Any = 0

    def draws(self, start: int, count: int, bits: int) -> Words:
        length = word_bits(bits)
        words = np.asarray(self.draw, np.int64) << (length - bits)
        return np.broadcast_to(words.astype(f"u{length // 8}"), count)


def _same(x: Block, y: Block) -> Any:
    return (x == y) | (np.isnan(x) & np.isnan(y))
