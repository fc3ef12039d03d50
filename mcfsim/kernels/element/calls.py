"""Calls of NumPy's functions on blocks, with reused memory, that execute a line or part of one.

A line is a straight line of machine operations on one element. Values that only one side of a selection needs
are computed only if some element takes that side, and only for these elements if they are few. So a line
that corrects overflows and NaN pays only for the test whether there are any.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.element.machine import BITWISE, VERBS, Value
from mcfsim.kernels.elementary import table_of
from mcfsim.storage.buffers import BLOCK, scratch

Array = NDArray[Any]
#: Fills results from operands.
Fill = Callable[[Sequence[Array], Sequence[Array]], None]
#: A function, and a getter that picks its operands and its output from all memory.
Call = tuple[Callable[..., Any], Callable[[list[Any]], tuple[Any, ...]]]

#: One element in this many counts as few: a masked copy or a gather then costs less than passes over all.
_FEW = 16
#: The bound memory before the first call: no size, and no memory.
_NOTHING: tuple[int, list[Any]] = -1, []


# -- verbs (machine operations), into existing memory ------------------------------------------------------
def cast(x: Array, out: Array) -> None:
    """Fill a block with the elements of another, converted to its dtype."""
    np.copyto(out, x, casting="unsafe")


def _greatest(a: Array, b: Array, out: Array) -> None:
    np.maximum(a, b, out=out)


def _least(a: Array, b: Array, out: Array) -> None:
    np.minimum(a, b, out=out)


def blend(condition: Array, yes: Array, no: Array, out: Array) -> None:
    """Fill a block with elements of `yes` where a condition holds, else of `no`; `out` may be either one."""
    taken = np.count_nonzero(condition)
    if taken == condition.size or not taken:
        chosen = yes if taken else no
        if chosen is not out:
            np.copyto(out, chosen)
        return
    if yes is out:
        condition, yes, taken = ~condition, no, condition.size - taken
    elif no is not out:
        np.copyto(out, no)
    if taken * _FEW <= condition.size:
        np.copyto(out, yes, where=condition)
        return
    # A masked copy takes a branch per element, which is mispredicted if the mask is irregular.
    integer = np.dtype(f"i{out.itemsize}")
    mask = scratch("mask", out.size, integer)
    np.copyto(mask, condition)
    np.negative(mask, mask)
    codes = out.view(integer)
    differing = np.bitwise_xor(yes.view(integer), codes, scratch("differing", out.size, integer))
    np.bitwise_xor(codes, np.bitwise_and(differing, mask, mask), codes)


def looking_up(table: str) -> Callable[..., Any]:
    """Return the function that performs a look-up in a table."""
    numbers = table_of(table)

    def look_up(places: Array, out: Array) -> None:
        np.take(numbers, places, out=out, mode="clip")  # without "clip" NumPy makes a copy of the result

    return look_up


#: The functions that perform verbs; they take the memory of the result last.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **VERBS,
    **BITWISE,
    **{"shr": np.right_shift, "select": blend},
    **{"clip": np.clip, "greatest": _greatest, "least": _least},
    **dict.fromkeys(("widen", "narrow", "extend", "cut", "count"), cast),
}


# -- calls ---------------------------------------------------------------------------------------------------
class Memory(NamedTuple):
    """The memory of a value: an operand, result, constant, single number, or buffer of an item size."""

    kind: str
    number: int
    size: int = 0


class Calls:
    """Calls of NumPy's functions that fill results from operands, as `forms.as_calls` writes them.

    Parameters
    ----------
    calls : sequence of Call
        In order.
    slots : mapping
        The place of each memory and dtype in the list of all memory, in order.
    constants : sequence of array
    depth : int, optional
        How many other `Calls` are running meanwhile: each has memory of its own.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        slots: Mapping[tuple[Memory, np.dtype[Any]], int],
        constants: Sequence[Array],
        *,
        depth: int = 0,
    ) -> None:
        self._calls, self._slots, self._constants, self._depth = calls, slots, constants, depth
        self._kept = threading.local()
        places = [(slot, memory, dtype) for (memory, dtype), slot in slots.items()]
        self._buffers = [slot for slot, memory, _ in places if memory.kind == "buffer"]
        self._external = [
            (slot, memory.kind == "result", memory.number, dtype)
            for slot, memory, dtype in places
            if memory.kind in ("operand", "result")
        ]
        self._alone = self._single(places)

    def _single(
        self, slots: Sequence[tuple[int, Memory, np.dtype[Any]]]
    ) -> tuple[Any, tuple[int, ...]] | None:
        """Return the function and its operands' places if there is a single call, and None otherwise.

        Nested calls are excluded, as their operands are memory of any dtype.
        """
        outside = all(
            memory.kind in ("operand", "result") and dtype.kind == "f" for _, memory, dtype in slots
        )
        if self._depth or len(self._calls) != 1 or not outside:
            return None
        function, pick = self._calls[0]
        if not isinstance(function, np.ufunc):
            return None
        *operands, _ = pick([memory.number for _, memory, _ in sorted(slots)])
        return function, tuple(operands)

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self, given: Sequence[Array], out: Sequence[Array]) -> None:
        """Fill results from operands, vectors of one length; the caller ignores floating-point errors."""
        size = out[0].size
        if not size:
            return
        if self._alone is not None:
            function, places = self._alone
            function(*[given[place] for place in places], out[0])
            return
        kept: tuple[int, list[Any]] = self._kept.__dict__.get("bound", _NOTHING)
        slots = kept[1].copy() if kept[0] == size else self._bound(size)
        for slot, is_result, number, dtype in self._external:
            array = out[number] if is_result else given[number]
            slots[slot] = array if array.dtype is dtype else array.view(dtype)
        for function, pick in self._calls:
            function(*pick(slots))

    # -- memory ----------------------------------------------------------------------------------------------
    def _bound(self, size: int) -> list[Any]:
        """Return all memory for blocks of a size, except operands and results."""
        if size > BLOCK:
            return self._memory(size)
        if not hasattr(self._kept, "whole"):
            self._kept.whole = self._memory(BLOCK)
        slots: list[Any] = self._kept.whole.copy()
        for slot in self._buffers:
            slots[slot] = slots[slot][:size]
        self._kept.bound = size, slots
        return slots.copy()

    def _memory(self, size: int) -> list[Any]:
        singles: dict[int, Array] = {}
        slots: list[Any] = []
        for memory, dtype in self._slots:
            match memory.kind:
                case "constant":
                    slots.append(self._constants[memory.number].view(dtype))
                case "single":
                    slots.append(singles.setdefault(memory.number, np.empty((), dtype)).view(dtype))
                case "buffer":
                    place = f"calls {self._depth} {memory.number}"
                    slots.append(scratch(place, size, np.dtype(f"u{memory.size}")).view(dtype))
                case _:
                    slots.append(None)
        return slots


def built_later(make: Callable[[], Calls]) -> Fill:
    """Return calls that are built at their first execution: most lines have sides that no element takes."""
    calls = cache(make)

    def fill(given: Sequence[Array], out: Sequence[Array]) -> None:
        calls()(given, out)

    return fill


# -- selections ---------------------------------------------------------------------------------------------
def foreseen(condition: Value) -> tuple[Callable[[Array], bool | None], Value] | None:
    """Return a test whether a truth value is the same for a whole block, and the value it tests, if any.

    The test costs less than the truth value. It returns the common truth value, or None if it cannot tell.
    It looks for rare cases, which hardly any block has: NaN, magnitudes beyond a bound, and set bits.
    """
    if condition.verb == "not":
        if (found := foreseen(condition.operands[0])) is None:
            return None
        inner, value = found

        def negated(x: Array) -> bool | None:
            return None if (known := inner(x)) is None else not known

        return negated, value
    if condition.verb not in ("eq", "le", "lt"):
        return None
    left, right = condition.operands
    if condition.verb == "eq":
        if left is right and left.type.is_float:
            return _is_number, left
        if left.verb == "and" and left.operands[1].verb == "constant" and right.constant == 0:
            return partial(_are_clear, left.operands[1].constant), left.operands[0]
        return None
    beyond = left.verb == "constant"
    bound, magnitude = (left, right) if beyond else (right, left)
    if magnitude.verb != "abs" or bound.verb != "constant":
        return None
    # |x| <= bound and bound < |x| test for |x| <= bound, the other two for |x| < bound.
    within = operator.le if beyond == (condition.verb == "lt") else operator.lt
    number = float(bound.constant)  # type: ignore[arg-type]
    answer = not beyond

    def test(x: Array) -> bool | None:
        inside = within(np.maximum.reduce(x), number) and within(-number, np.minimum.reduce(x))
        return answer if inside else None

    return test, magnitude.operands[0]


def _are_clear(bits: Any, x: Array) -> bool | None:
    return None if np.bitwise_or.reduce(x) & bits else True


def _is_number(x: Array) -> bool | None:
    greatest = np.maximum.reduce(x)
    return True if greatest == greatest else None


@dataclass(frozen=True)
class Side:
    """One side of a selection, or its condition.

    Attributes
    ----------
    places : tuple of int
        The places of the selection's operands that it takes.
    compute : callable, optional
        Fills a block from these operands; without it, the side is its only operand.
    """

    places: tuple[int, ...]
    compute: Fill | None = None

    def of(self, given: Sequence[Array], out: Array, index: Array | None = None) -> Array:
        """Return the side for all elements, or for those of an index; `out` is memory for it."""
        if index is None:
            taken = [given[place] for place in self.places]
        else:
            taken = [x[index] if x.ndim else x for x in map(given.__getitem__, self.places)]
        if self.compute is None:
            return taken[0]
        self.compute(taken, (out,))
        return out


@dataclass(frozen=True, eq=False)
class Choice:
    """A selection that computes each side only for the elements that take it, as far as that pays.

    Attributes
    ----------
    condition : Side
    sides : tuple of Side
        What is taken where the condition is false, and where it is true.
    foresee : callable, optional
        A test as `foreseen` returns it, applied to one operand.
    watched : int
        The place of that operand.
    memory : str
        The place of the condition among the buffers.
    """

    condition: Side
    sides: tuple[Side, Side]
    foresee: Callable[[Array], bool | None] | None
    watched: int
    memory: str

    def places(self) -> tuple[list[int], list[int]]:
        """Return the places of operands that are sides themselves, and of operands read to compute a side."""
        ready = [side.places[0] for side in self.sides if side.compute is None]
        computed = [side for side in self.sides if side.compute is not None]
        return ready, [place for side in (self.condition, *computed) for place in side.places]

    def __call__(self, *given_and_out: Array) -> None:
        """Fill the last block from the others; it may share memory with one of them."""
        *given, out = given_and_out
        if self.foresee is not None and (known := self.foresee(given[self.watched])) is not None:
            return self._whole(known, given, out)
        condition = self.condition.of(given, scratch(self.memory, out.size, np.bool_))
        taken = np.count_nonzero(condition)
        if taken in (0, out.size):
            return self._whole(bool(taken), given, out)
        usual = bool(2 * taken > out.size)
        where = ~condition if usual else condition
        rare = self.sides[not usual]
        if min(taken, out.size - taken) * _FEW <= out.size:
            # Computed before the block is filled, as that may be an operand.
            index = np.flatnonzero(where)
            few = rare.of(given, np.empty(index.size, out.dtype), index)
            self._whole(usual, given, out)
            out[index] = few
        else:
            kept = scratch(f"{self.memory} rare", out.size, out.dtype)
            other = rare.of(given, kept)
            if other is not kept and other.ndim:  # it may be the block to be filled
                np.copyto(kept, other)
                other = kept
            self._whole(usual, given, out)
            blend(where, other, out, out)
        return None

    def _whole(self, chosen: bool, given: Sequence[Array], out: Array) -> None:
        made = self.sides[chosen].of(given, out)
        if made is not out:
            np.copyto(out, made)
