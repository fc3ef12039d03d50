"""A program as lines of a machine: one for each way in which its real scalars enter, with its source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mcfsim.compile.joined import AsBits
from mcfsim.compile.lowering import Lowered, lower, way_of
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import Entering, entering, numbers_by, uses
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.operation_plan import Way
from mcfsim.kernels.real_numbers import Scalars, described


class Sequel(Protocol):
    """What goes on with the results of a program in the same loop; two that are equal do the same."""

    @property
    def cost(self) -> float:
        """The nanoseconds that an element takes without compiling, roughly."""

    def __call__(self, lowered: Lowered) -> Lowered:
        """Return the line with other results; numbers that are the same for all elements may be added."""


class Lines(ABC):
    """A program, lowered once for each way in which its real scalars enter.

    As what these enter follows from their numbers (`mcfsim.compile.scalars.Entering`), and rarely is there a
    second way.

    Parameters
    ----------
    program : Program
    scalars : {"exact", "rounded"}
        How real scalars enter.
    sequel : Sequel or None
        What is made of the results.
    joined : AsBits, optional
        Which operand lies as bits, if one does.
    **options : bool
        See `mcfsim.compile.lowering.lower`.
    """

    def __init__(
        self,
        program: Program,
        scalars: Scalars,
        sequel: Sequel | None,
        joined: AsBits | None = None,
        **options: Any,
    ) -> None:
        self.program, self.policy, self.sequel, self.joined = program, scalars, sequel, joined
        self._options = options
        self._uses = uses(program)
        self._made: dict[tuple[Entering, ...], tuple[Lowered, str]] = {}

    def source(self, numbers: Sequence[Any]) -> str:
        """Return the module that is compiled for some real scalars."""
        return self._lowered(self._entering(numbers)[0])[1]

    def line(self, numbers: Sequence[Any]) -> Lowered:
        """Return the line of machine operations for some real scalars, with what the sequel makes of it."""
        return self._line(self._entering(numbers)[0], **self._options)

    def _numbers(self, scalars: Mapping[str, Any]) -> list[Any]:
        """Return real scalars that are given by name in the order of their uses."""
        return [use.number(scalars) for use in self._uses]

    def ways(self, numbers: Sequence[Any]) -> tuple[Entering, ...]:
        """Return as what real scalars enter at the least cost."""
        return self._entering(numbers)[0]

    def general(self, numbers: Sequence[Any]) -> tuple[Entering, ...]:
        """Return ways in which almost all real scalars enter, these among them; seldom the cheapest."""
        made = {step.result: step for step in self.program.steps}
        found = []
        for use, number in zip(self._uses, numbers, strict=True):
            cheapest, _ = entering(use, number, self.policy)
            ways = (Entering.PARTS, Entering.REAL, Entering.WIDE)
            taken = (way for way in ways if numbers_by(use, number, self.policy, way) is not None)
            good = (way for way in taken if way_of(use.step, {way}, made).way is not Way.REFUSED)
            found.append(next(good, cheapest))
        return tuple(found)

    def _entering(
        self, numbers: Sequence[Any], ways: Sequence[Entering] | None = None
    ) -> tuple[tuple[Entering, ...], list[float]]:
        """Return as what real scalars enter, by default the cheapest, and the numbers that stand for them."""
        if ways is None:
            pairs = zip(self._uses, numbers, strict=True)
            chosen = [entering(use, number, self.policy) for use, number in pairs]
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

    def _lowered(self, ways: tuple[Entering, ...]) -> tuple[Lowered, str]:
        if ways not in self._made:
            lowered = self._line(ways, **self._options)
            self._made[ways] = lowered, self._source(lowered, self._about())
        return self._made[ways]

    def _about(self) -> str:
        return f"{self.program.name}, {len(self.program.steps)} operations."

    def _line(self, ways: tuple[Entering, ...], **options: Any) -> Lowered:
        begun = lower if self.joined is None else self.joined.lowered
        lowered = begun(self.program, ways, **options)
        return lowered if self.sequel is None else self.sequel(lowered)

    @abstractmethod
    def _source(self, lowered: Lowered, about: str) -> str:
        """Return a line as the source of a module."""
