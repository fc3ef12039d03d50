"""A program as straight lines of machine operations: one line for each way its real scalars can enter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from mcfsim.compile.lowering import Lowered, called, lower, type_of, way_of
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import ScalarEncoding, by_policy, encoding, numbers_by
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.element.binary32 import integer_element, joined_element, number_element, rest_element
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.element.machine import I32, Line, Value
from mcfsim.kernels.operation_plan import Way
from mcfsim.kernels.real_numbers import Scalars, described


# -- operands stored as bits ------------------------------------------------------------------------------
@dataclass(frozen=True)
class AsBits:
    """An operand stored as bits, and the result at the same place; for programs on codes.

    The bits are those that follow the codes of another operand, or an integer in two's complement, of 16 bits
    at most.

    Parameters
    ----------
    place : int
        The place of the operand, whose carrier is binary32.
    bits : int
        The number of bits.
    leading : int, optional
        The place of the operand whose codes come first; by default the bits are an integer.
    rounded : bool, optional
        See `mcfsim.kernels.element.binary32.joined_element`.
    """

    place: int
    bits: int
    leading: int | None = None
    rounded: bool = False

    def read(self, given: Sequence[Value]) -> Value:
        """Return the operand's number, given all operands as stored."""
        if self.leading is None:
            return number_element(given[self.place], self.bits)
        return joined_element(given[self.leading], given[self.place], self.bits, rounded=self.rounded)

    def kept(self, x: Value) -> Value:
        """Return the bits of a number."""
        return integer_element(x, self.bits) if self.leading is None else rest_element(x, self.bits)

    def lowered(self, program: Program, encoding: tuple[ScalarEncoding, ...], **options: Any) -> Lowered:
        """Lower a program on codes to a line, as `mcfsim.compile.lowering.lower` does.

        Raises
        ------
        ValueError
            If the program is not on codes.
        """
        if not options.get("packed"):
            raise ValueError("an operand can be stored as bits only in a program on codes")
        line = Line()
        given = [
            line.input(
                called(x, place), I32 if has_codes(x.format) or place == self.place else type_of(x.format)
            )
            for place, x in enumerate(program.inputs)
        ]
        onto = list(given)
        onto[self.place] = self.read(given)
        lowered = lower(program, encoding, onto=tuple(onto), **options)
        results = list(lowered.results)
        results[self.place] = self.kept(results[self.place])
        dtype = np.min_scalar_type(2**self.bits - 1)
        lying = {**lowered.packed, given[self.place]: dtype, results[self.place]: dtype}
        return replace(lowered, operands=tuple(given), results=tuple(results), packed=lying)


# -- lines ------------------------------------------------------------------------------------------------
class Epilogue(Protocol):
    """A continuation that processes a program's results in the same loop; equal epilogues do the same."""

    @property
    def cost(self) -> float:
        """The approximate time for an element without compiling, in nanoseconds."""

    def __call__(self, lowered: Lowered) -> Lowered:
        """Return the line with new results; it may add numbers that are the same for all elements."""


@dataclass(frozen=True)
class Difference:
    """The `Epilogue` that adds a result: whether the first result differs in memory from the first operand.

    Codes are compared, whatever they stand for: zeros of other signs and codes of NaN differ.

    Parameters
    ----------
    bits : bool
        Whether the result is the exclusive or of the old and the new bits, instead of a truth value.
    """

    bits: bool

    cost = 1.0

    def __call__(self, lowered: Lowered) -> Lowered:
        """Return the line with one more result."""
        old, new = lowered.operands[0], lowered.results[0]
        made = old.bits() ^ new.bits() if new.type.is_float else old ^ new
        if not self.bits:
            return replace(lowered, results=(*lowered.results, ~made.equals(0)))
        packed = {**lowered.packed, made: lowered.packed[new]} if new in lowered.packed else lowered.packed
        return replace(lowered, results=(*lowered.results, made), packed=packed)


#: What carries out a line on a machine, once the real scalars are known.
Bound = TypeVar("Bound")


class Lines(ABC, Generic[Bound]):
    """A program for one machine, lowered once for each way its real scalars can enter.

    The numbers determine their `mcfsim.compile.scalars.ScalarEncoding`; a second way is rare.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded", "float32"}, optional
        How real scalars enter.
    joined : AsBits, optional
        The operand that is stored as bits, if there is one.
    epilogue : Epilogue, optional
        Processes the results.
    **options
        See `mcfsim.compile.lowering.lower`.
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars = "exact",
        joined: AsBits | None = None,
        *,
        epilogue: Epilogue | None = None,
        **options: Any,
    ) -> None:
        self.program, self.policy = by_policy(program, scalars), scalars
        self.epilogue, self.joined, self._options = epilogue, joined, options
        self._uses = self.program.uses
        self._made: dict[tuple[ScalarEncoding, ...], tuple[Lowered, Any]] = {}

    def with_scalars(self, scalars: Mapping[str, Any]) -> Bound:
        """Return the program bound to real scalars, given by name; see `with_numbers`."""
        return self.with_numbers(self.program.reals(scalars))

    def with_numbers(self, numbers: Sequence[Any], ways: Sequence[ScalarEncoding] | None = None) -> Bound:
        """Return the program bound to real scalars, in the order of `Program.uses`.

        Their encodings are the cheapest unless others are given.

        Raises
        ------
        UnsupportedFormatError
            If an operation of the program has no exact path in binary64, or a scalar leads beyond that, or
            cannot have the given encoding.
        """
        chosen, found = self._entering(numbers, ways)
        return self._bound(chosen, tuple(found))

    def line(self, numbers: Sequence[Any]) -> Lowered:
        """Return the line of machine operations for the given real scalars, epilogue included."""
        return self._line(self.ways(numbers), **self._options)

    def ways(self, numbers: Sequence[Any]) -> tuple[ScalarEncoding, ...]:
        """Return the cheapest encodings of the given real scalars."""
        return self._entering(numbers)[0]

    def general(self, numbers: Sequence[Any]) -> tuple[ScalarEncoding, ...]:
        """Return encodings that suit these and almost all real scalars; they are seldom the cheapest."""
        made = {step.result: step for step in self.program.steps}
        found = []
        for use, number in zip(self._uses, numbers, strict=True):
            cheapest, _ = encoding(use, number, self.policy)
            ways = (ScalarEncoding.PARTS, ScalarEncoding.REAL, ScalarEncoding.WIDE)
            taken = (way for way in ways if numbers_by(use, number, self.policy, way) is not None)
            good = (way for way in taken if way_of(use.step, {way}, made).way is not Way.REFUSED)
            found.append(next(good, cheapest))
        return tuple(found)

    def _entering(
        self, numbers: Sequence[Any], ways: Sequence[ScalarEncoding] | None = None, *, search: bool = True
    ) -> tuple[tuple[ScalarEncoding, ...], list[float]]:
        """Return encodings of real scalars, by default the cheapest, and the numbers that stand for them."""
        if ways is None:
            pairs = zip(self._uses, numbers, strict=True)
            chosen = [encoding(use, number, self.policy, search=search) for use, number in pairs]
            return tuple(way for way, _ in chosen), [number for _, numbers in chosen for number in numbers]
        found: list[float] = []
        for use, number, way in zip(self._uses, numbers, ways, strict=True):
            parts = numbers_by(use, number, self.policy, way)
            if parts is None:
                raise UnsupportedFormatError(
                    f"{use.step.operation} with {described(number)} is beyond what is compiled already"
                )
            found += parts
        return tuple(ways), found

    def _lowered(self, ways: tuple[ScalarEncoding, ...]) -> tuple[Lowered, Any]:
        """Return the line for encodings, and what is emitted from it, made once."""
        if ways not in self._made:
            lowered = self._line(ways, **self._options)
            about = f"{self.program.name}, {len(self.program.steps)} operations."
            self._made[ways] = lowered, self._emitted(lowered, about)
        return self._made[ways]

    def _line(self, ways: tuple[ScalarEncoding, ...], **options: Any) -> Lowered:
        begun = lower if self.joined is None else self.joined.lowered
        lowered = begun(self.program, ways, **options)
        return lowered if self.epilogue is None else self.epilogue(lowered)

    @abstractmethod
    def _emitted(self, lowered: Lowered, about: str) -> Any:
        """Return a line as its machine takes it: as the source of a module, or as calls."""

    @abstractmethod
    def _bound(self, ways: tuple[ScalarEncoding, ...], numbers: tuple[float, ...]) -> Bound:
        """Return the line for encodings, bound to the numbers that stand for the real scalars."""
