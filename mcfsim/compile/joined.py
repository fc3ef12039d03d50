"""Programs one of whose operands lies in two vectors: another one's codes, and the bits that follow them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcfsim.compile.lowering import Lowered, called, lower, type_of
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import Entering
from mcfsim.kernels.codes_by_kind import code_dtype
from mcfsim.kernels.element.codes import has_codes
from mcfsim.kernels.element.machine import I32, Line
from mcfsim.kernels.element.split import joined_element, rest_element


@dataclass(frozen=True)
class Joined:
    """Which operand, and the result in its place, is kept as the bits that follow another one's codes.

    Parameters
    ----------
    leading : int
        The place of the operand whose codes lead.
    place : int
        That of the operand, a binary32 number.
    following : int
        How many bits follow.
    rounded : bool
        See `mcfsim.kernels.element.split.joined_element`.
    """

    leading: int
    place: int
    following: int
    rounded: bool

    def lowered(self, program: Program, entering: tuple[Entering, ...], **options: Any) -> Lowered:
        """Return the line of a program on codes, as `mcfsim.compile.lowering.lower` does.

        Raises
        ------
        ValueError
            If it is not on codes.
        """
        if not options.get("packed"):
            raise ValueError("an operand that begins with another one's code is for programs on codes")
        line = Line()
        given = [
            line.input(
                called(x, place), I32 if has_codes(x.format) or place == self.place else type_of(x.format)
            )
            for place, x in enumerate(program.inputs)
        ]
        onto = list(given)
        leading, rest = given[self.leading], given[self.place]
        onto[self.place] = joined_element(leading, rest, self.following, rounded=self.rounded)
        lowered = lower(program, entering, onto=tuple(onto), **options)
        results = list(lowered.results)
        results[self.place] = rest_element(results[self.place], self.following)
        dtype = np.min_scalar_type(2**self.following - 1)
        packed = {
            x: code_dtype(y.format) for x, y in zip(given, program.inputs, strict=True) if has_codes(y.format)
        }
        lying = {**lowered.packed, **packed, rest: dtype, results[self.place]: dtype}
        return replace(lowered, operands=tuple(given), results=tuple(results), packed=lying)
