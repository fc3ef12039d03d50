"""Programs one of whose operands lies as bits: those that follow another one's code, or an integer's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcfsim.compile.lowering import Lowered, called, lower, type_of
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import Entering
from mcfsim.kernels.codes_by_kind import code_dtype
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.element.machine import I32, Line, Value
from mcfsim.kernels.element.split import integer_element, joined_element, number_element, rest_element


@dataclass(frozen=True)
class AsBits(ABC):
    """Which operand, and the result in its place, lies as bits; in programs on codes.

    Parameters
    ----------
    place : int
        That of the operand, of a format in binary32.
    """

    place: int

    @property
    @abstractmethod
    def bits(self) -> int:
        """How many bits there are."""

    @abstractmethod
    def read(self, given: Sequence[Value]) -> Value:
        """Return the operand's number, of all operands as they lie."""

    @abstractmethod
    def kept(self, x: Value) -> Value:
        """Return the bits of a number."""

    def lowered(self, program: Program, entering: tuple[Entering, ...], **options: Any) -> Lowered:
        """Return the line of a program on codes, as `mcfsim.compile.lowering.lower` does.

        Raises
        ------
        ValueError
            If it is not on codes.
        """
        if not options.get("packed"):
            raise ValueError("an operand that lies as bits is for programs on codes")
        line = Line()
        given = [
            line.input(
                called(x, place), I32 if has_codes(x.format) or place == self.place else type_of(x.format)
            )
            for place, x in enumerate(program.inputs)
        ]
        onto = list(given)
        onto[self.place] = self.read(given)
        lowered = lower(program, entering, onto=tuple(onto), **options)
        results = list(lowered.results)
        results[self.place] = self.kept(results[self.place])
        dtype = np.min_scalar_type(2**self.bits - 1)
        packed = {
            x: code_dtype(y.format) for x, y in zip(given, program.inputs, strict=True) if has_codes(y.format)
        }
        lying = {**lowered.packed, **packed, given[self.place]: dtype, results[self.place]: dtype}
        return replace(lowered, operands=tuple(given), results=tuple(results), packed=lying)


@dataclass(frozen=True)
class Joined(AsBits):
    """Which operand is kept as the bits that follow another one's codes.

    Parameters
    ----------
    leading : int
        The place of the operand whose codes lead.
    following : int
        How many bits follow.
    rounded : bool
        See `mcfsim.kernels.element.split.joined_element`.
    """

    leading: int
    following: int
    rounded: bool

    @property
    def bits(self) -> int:
        """Those that follow."""
        return self.following

    def read(self, given: Sequence[Value]) -> Value:
        """Return the number of a code and the bits that follow it."""
        return joined_element(given[self.leading], given[self.place], self.following, rounded=self.rounded)

    def kept(self, x: Value) -> Value:
        """Return the last bits."""
        return rest_element(x, self.following)


@dataclass(frozen=True)
class Integer(AsBits):
    """Which operand is kept as an integer in two's complement.

    Parameters
    ----------
    size : int
        Of the integer, in bits: 16 at most.
    """

    size: int

    @property
    def bits(self) -> int:
        """Those of the integer."""
        return self.size

    def read(self, given: Sequence[Value]) -> Value:
        """Return the number."""
        return number_element(given[self.place], self.size)

    def kept(self, x: Value) -> Value:
        """Return the integer."""
        return integer_element(x, self.size)
