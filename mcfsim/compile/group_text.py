"""How groups of numbers that share others are kept, as a text, and the line that it leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mcfsim.kernels.element.floats import NAN
from mcfsim.kernels.element.machine import F32, I32, Line, Value

Array = NDArray[Any]


class Warps(NamedTuple):
    """How threads of a GPU find the least of a group: in warps by halving, then of the warps' by one of them.

    Attributes
    ----------
    width, block : int
        Threads of a warp, and of a group.
    beyond : float
        What a thread has whose element does not exist.
    idle : float
        What one has whose warp does not.
    """

    width: int
    block: int
    beyond: float
    idle: float


class GroupText(ABC):
    """How groups of binary32 numbers are kept: as a code each, of a byte, and some binary32 numbers a group.

    Two that are equal do the same. What is NaN has a clean code.
    """

    @property
    @abstractmethod
    def shared(self) -> int:
        """How many numbers a group has."""

    @property
    def table(self) -> Array | None:
        """Return the numbers of a table, if codes are places in one."""
        return None

    @property
    def places(self) -> Array | None:
        """Return the least number of each place in the table but the first."""
        return None

    @property
    def warps(self) -> Warps | None:
        """Return how the least magnitude is found, if it is asked."""
        return None

    @abstractmethod
    def measured(self, x: Value) -> Value:
        """Return an integer of 32 bits, not negative, of which that of a group is the greatest."""

    def lesser(self, own: Value, other: Value) -> Value:
        """Return what a thread has found that has one magnitude and is handed another."""
        raise NotImplementedError

    @abstractmethod
    def shares(self, greatest: Value, *least: Value) -> tuple[Value, ...]:
        """Return what a group has, by the greatest measure, and the least magnitude if that is asked."""

    @abstractmethod
    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the code of a number, or, where there is a table, a number of whose place it is."""

    @abstractmethod
    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the number of a code, or, where there is a table, of the number in its place."""


class GroupLine:
    """A text of groups, recorded.

    Attributes
    ----------
    text : GroupText
    line : Line
    x, code, greatest : Value
        A number, its code or what the table has in its place, and the greatest measure of a group.
    least, other : tuple of Value
        The least magnitude, if that is asked, and another one that a thread is handed.
    shared : tuple of Value
        What a group has.
    measured, magnitude, lesser, made, encoded, decoded
        The results.
    """

    def __init__(self, text: GroupText) -> None:
        self.text, self.line = text, Line()
        self.x = self.line.input("x", F32)
        self.code = self.line.input("code", I32 if text.table is None else F32)
        self.greatest = self.line.input("greatest", I32)
        names = () if text.warps is None else ("least", "other")
        self.least, self.other = (
            tuple(self.line.input(x, F32) for x in part) for part in (names[:1], names[1:])
        )
        self.shared = tuple(self.line.input(f"shared{place}", F32) for place in range(text.shared))
        self.measured, self.magnitude = text.measured(self.x), abs(self.x)
        self.lesser = tuple(text.lesser(*pair) for pair in zip(self.least, self.other, strict=True))
        self.made = tuple(map(_clean, text.shares(self.greatest, *self.least)))
        self.encoded = text.encoded(self.x, *self.shared)
        self.decoded = _clean(text.decoded(self.code, *self.shared))


def _clean(x: Value) -> Value:
    return x.equals(x).select(x, NAN)
