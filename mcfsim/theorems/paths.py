"""Stochastic rounding on every path: an operation has each result that one of all random words gives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.real_numbers import is_scalar
from mcfsim.protocol import Arithmetic, Emulation, Value
from mcfsim.random import RandomWords, Words, word_bits
from mcfsim.rounding import Rounding
from mcfsim.theorems.elementwise import ArrayBacked
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.trial import Block, Trial, Truth


@dataclass(frozen=True, eq=False)
class Paths(Trial):
    """Operands and results of every path of every case, one element a path.

    A case is violated if one of its paths is, and applicable if all of them are.

    Attributes
    ----------
    whose : block of int
        The case of each path, in order.
    probability : Exact
        Of each path, as the share of the random words that lead to it.
    """

    whose: Block = field(kw_only=True)
    probability: Exact = field(kw_only=True)

    @cached_property
    def _starts(self) -> Block:
        return np.flatnonzero(np.diff(self.whose, prepend=-1))

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return int(self._starts.size)

    def case(self, element: int) -> int:
        """Return the case of a path."""
        return int(self.whose[element])

    def each(self, of_cases: Block) -> Block:
        """Return for each path what is given for each case."""
        return of_cases[self.whose]

    def throughout(self, held: Truth) -> Truth:
        """Return for each case whether something holds on every path."""
        return np.logical_and.reduceat(held, self._starts)

    def only(self, there: Truth, test: Callable[[Trial], Truth]) -> Truth:
        """Return where `there` and a test hold: it is asked of all paths, since expectations need them."""
        held: Truth = there & test(self)
        return held

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
        if bits > 62:  # two words are not summed: Python integers, which the bits keep them
            n, bits = n.astype(object), max(bits, 125)
        return Exact(np.add.reduceat(n, self._starts), q, bits)[self.whose]


class EveryPath:
    """An `mcfsim.protocol.Arithmetic` that runs an algorithm on all random words at once.

    Parameters
    ----------
    ar : Emulation
        The emulator, rounding stochastically. It carries out every operation.
    size : int
        How many cases there are.

    Notes
    -----
    A path on which an operation has two results becomes two. By every `mcfsim.rounding.Rule` a result moves
    away from its truncation for all random bits from some number on, which is found by bisection: r + 2 runs
    of an operation tell what each of ``2**r`` draws makes of it.
    """

    def __init__(self, ar: Emulation, size: int) -> None:
        self._ar, self._bits = ar, ar.rounding.random_bits
        self.whose = np.arange(size)
        self.probability = Exact(np.ones(size), 0, 1)
        #: For every operation that split paths: the path from which each of the new ones came.
        self._origins: list[Block] = []

    @property
    def format(self) -> Format | None:
        """The format of the results."""
        return self._ar.format

    @property
    def carrier(self) -> Any:
        """The dtype of results."""
        return self._ar.carrier

    @property
    def rounding(self) -> Rounding:
        """Mode, random bits and rule."""
        return self._ar.rounding

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        return self._split("add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        return self._split("sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        return self._split("mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        return self._split("div", a, b)

    def sqrt(self, a: Value) -> Value:
        """Return the square root."""
        return self._split("sqrt", a)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""
        return self._split("fma", a, b, c)

    def neg(self, a: Value) -> Value:
        """Return ``-a``."""
        return self._split("neg", a)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``."""
        return self._split("abs", a)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign, and a zero or NaN as it is."""
        return self._split("sign", a)

    def round(self, x: Value) -> Value:
        """Round numbers from anywhere."""
        return self._split("round", x)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``."""
        return function(self, *operands, **options)

    def like(self, fmt: Format, rounding: Rounding) -> Arithmetic:
        """Return the arithmetic of one path in another format."""
        return self._ar.like(fmt, rounding)

    def settled(self, x: Any) -> Any:
        """Return a value, or an operand, as a block of one element for every path that there is now."""
        if isinstance(x, _Value):
            return self._brought_on(x.block, x.age)
        return self._brought_on(x, 0) if isinstance(x, np.ndarray) else x

    def trial(self, names: tuple[str, ...], operands: tuple[Any, ...], results: tuple[Block, ...]) -> Paths:
        """Return what came out."""
        every = tuple(
            tuple(map(self.settled, operand)) if isinstance(operand, tuple) else self.settled(operand)
            for operand in operands
        )
        return Paths(self._ar, names, every, results, whose=self.whose, probability=self.probability)

    def _brought_on(self, block: Block, age: int) -> Block:
        for origins in self._origins[age:]:
            block = block[origins]
        return block

    def _split(self, operation: str, *operands: Value) -> _Value:
        blocks = [x if is_scalar(x) else self.settled(x) for x in operands]
        low, high = (self._drawn(operation, blocks, draw) for draw in (0, (1 << self._bits) - 1))
        two = ~_same(low, high)
        if not two.any():
            return _Value(low, len(self._origins))
        some = [x if is_scalar(x) else x[two] for x in blocks]
        ups = self._ups(operation, some, high[two])
        origins = np.repeat(np.arange(two.size), 1 + two)
        # Of the two paths that one becomes, the first goes with the truncation.
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
        """Return how many draws give the result of the last one, where that of the first differs."""
        below = np.zeros(high.size, np.int64)
        above = below + (1 << self._bits) - 1
        while (above - below > 1).any():
            middle = (below + above) >> 1
            up = _same(self._drawn(operation, blocks, middle), high)
            above, below = np.where(up, middle, above), np.where(up, below, middle)
        return (1 << self._bits) - above

    def _drawn(self, operation: str, blocks: list[Any], draw: int | Block) -> Block:
        """Carry out an operation with given random bits."""
        size = max((x.size for x in blocks if not is_scalar(x)), default=self.whose.size)
        result = np.asarray(
            getattr(self._ar.at(_Draws(0, draw=draw), 0), operation)(*blocks), self._ar.carrier
        )
        return result if result.size == size else np.broadcast_to(result, size)


@dataclass(frozen=True, eq=False)
class _Value(ArrayBacked):
    """A block of results, from the time when paths had been split so often."""

    block: Block
    age: int


@dataclass(frozen=True)
class _Draws(RandomWords):
    """Random words whose highest bits are given: the same ones for every element, or one each."""

    draw: Any = 0

    def draws(self, start: int, count: int, bits: int) -> Words:
        length = word_bits(bits)
        words = np.asarray(self.draw, np.int64) << (length - bits)
        return np.broadcast_to(words.astype(f"u{length // 8}"), count)


def _same(x: Block, y: Block) -> Any:
    return (x == y) | (np.isnan(x) & np.isnan(y))
