"""Algorithms that store groups of numbers with shared numbers (scales), and the lines recorded from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.floats import NAN, SHORT
from mcfsim.kernels.element.machine import F32, F64, I32, I64, Line, Value

# -- places in a table ------------------------------------------------------------------------------------
Array = NDArray[Any]

_MAGNITUDE = 2**31 - 1


class Buckets(NamedTuple):
    """Ranges of magnitudes that find a place without a search; each has at most one bound of each sign.

    Attributes
    ----------
    shift : int
        The number of low bits of a magnitude that its bucket's number omits.
    first, last : int
        The numbers of the first and the last bucket; magnitudes beyond belong to the nearest one.
    starts : array of uint8
        How many bounds all numbers of a bucket reach: first for nonnegative numbers, then for negative ones.
    """

    shift: int
    first: int
    last: int
    starts: Array


class Places:
    """The places between bounds: a number's place is the number of bounds that it reaches.

    Parameters
    ----------
    bounds : array of float32
        In ascending order, none zero, at most 255 of them.
    """

    def __init__(self, bounds: Array) -> None:
        self.bounds = bounds

    def find(self, x: Array) -> Array:
        """Return how many bounds each number reaches; NaN reaches none."""
        found = np.searchsorted(self.bounds, x, "right")
        return np.where(np.isnan(x), 0, found)

    @cached_property
    def buckets(self) -> Buckets:
        """The coarsest buckets that separate the bounds of each sign."""
        magnitudes = self.bounds.view(np.int32) & _MAGNITUDE
        for shift in range(23, -1, -1):
            keys = magnitudes >> shift
            first, last = int(keys.min()), int(keys.max())
            signed = np.where(self.bounds < 0, -1 - (keys - first), keys - first)  # in order
            if np.unique(signed).size == self.bounds.size:
                break
        count = last - first + 1
        ordered = np.searchsorted(signed, [*range(count), *range(-1, -1 - count, -1)])
        return Buckets(shift, first, last, ordered.astype(np.uint8))


# -- pairs of numbers -------------------------------------------------------------------------------------
def halved(x: Any, both: Callable[[Any, Any], Any], length: int = 1) -> Any:
    """Return an array or a tensor whose last axis is halved until it has a length.

    Each step combines each number of the first half with the number half an axis further on. The axis must be
    a power of two times as long as the result.
    """
    while x.shape[-1] > length:
        half = x.shape[-1] // 2
        x = both(x[..., :half], x[..., half:])
    return x


# -- groups -----------------------------------------------------------------------------------------------
class Warps(NamedTuple):
    """The way GPU threads find a group's least magnitude: halving in each warp, then one warp over all warps.

    Attributes
    ----------
    width, block : int
        Threads of a warp, and of a group.
    beyond : float
        The magnitude of a thread whose element does not exist.
    idle : float
        The magnitude of a thread whose warp does not exist.
    """

    width: int
    block: int
    beyond: float
    idle: float


class GroupAlgorithm(ABC):
    """An algorithm that stores groups of binary32 numbers: a code byte each, some binary32 numbers per group.

    Equal objects do the same. Every NaN has a clean code, or is that of an element that is no code.

    Attributes
    ----------
    coded : bool
        Whether numbers are stored as codes; else as binary32 numbers.
    numbers : int
        How many binary64 numbers, the same for all groups, its methods take as their last arguments.
    """

    coded: ClassVar[bool] = True
    numbers: ClassVar[int] = 0

    @property
    @abstractmethod
    def shared(self) -> int:
        """How many shared numbers a group has."""

    @property
    def random_bits(self) -> int:
        """How many random bits encode a number; 0 if it draws none."""
        return 0

    @property
    def table(self) -> Array | None:
        """The numbers of a table, if codes are places in one."""
        return None

    @property
    def places(self) -> Array | None:
        """The least number of each place in the table except the first."""
        return None

    @property
    def warps(self) -> Warps | None:
        """How the least magnitude is found, if it is needed."""
        return None

    def measured(self, x: Value) -> Value:
        """Return a nonnegative integer of 32 bits for a number; a group's measure is the greatest of them.

        By default the bits of its magnitude; those of NaN exceed infinity's.
        """
        return abs(x).bits()

    def lesser(self, own: Value, other: Value) -> Value:
        """Return the lesser magnitude as a thread finds it, from its own and the one it receives."""
        raise NotImplementedError

    @abstractmethod
    def shares(self, greatest: Value, *others: Value) -> tuple[Value, ...]:
        """Return a group's shared numbers, given its greatest measure, and its least magnitude if needed."""

    @abstractmethod
    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the code of a number or, if there is a table, a number whose place is that code.

        An algorithm with random bits takes them as ``word=``, an integer.
        """

    @abstractmethod
    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the number of a code or, if there is a table, of the table's entry for that code."""


class GroupLine:
    """The straight line of machine operations recorded from a `GroupAlgorithm`.

    Attributes
    ----------
    algorithm : GroupAlgorithm
    line : Line
    x, code, greatest : Value
        A number, its code or the table's entry for that code, and the greatest measure of a group.
    least, other : tuple of Value
        The least magnitude, if needed, and another magnitude that a thread receives.
    shared, numbers : tuple of Value
        The shared numbers of a group, and those that are the same for all groups.
    word : list of Value
        The random bits of a number, if it is encoded with some.
    measured, lesser, made, encoded, decoded
        The results.
    """

    def __init__(self, algorithm: GroupAlgorithm) -> None:
        self.algorithm, self.line = algorithm, Line()
        self.x = self.line.input("x", F32)
        self.code = self.line.input("code", I32 if algorithm.table is None and algorithm.coded else F32)
        self.greatest = self.line.input("greatest", I32)
        pair = tuple(self.line.input(x, F32) for x in ("least", "other") if algorithm.warps is not None)
        self.least, self.other = pair[:1], pair[1:]
        self.shared = tuple(self.line.input(f"shared{place}", F32) for place in range(algorithm.shared))
        self.numbers = tuple(self.line.input(f"number{place}", F64) for place in range(algorithm.numbers))
        self.measured = algorithm.measured(self.x)
        self.lesser: tuple[Value, ...] = (algorithm.lesser(*pair),) if pair else ()
        self.made = tuple(map(_clean, algorithm.shares(self.greatest, *self.least, *self.numbers)))
        drawn = I32 if algorithm.random_bits <= SHORT else I64
        self.word = [self.line.input("word", drawn)] if algorithm.random_bits else []
        word = {"word": self.word[0]} if self.word else {}
        self.encoded = algorithm.encoded(self.x, *self.shared, *self.numbers, **word)
        decoded = algorithm.decoded(self.code, *self.shared, *self.numbers)
        self.decoded = _clean(decoded) if algorithm.coded else decoded


def _clean(x: Value) -> Value:
    return x.equals(x).select(x, NAN)
