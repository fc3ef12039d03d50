"""A function in a format, with its inputs: recorded, run on blocks, and its error shared out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import Attribution
from mcfsim.analysis.expressions import recorded_function
from mcfsim.analysis.rounded_run import Formats, run
from mcfsim.analysis.samplers import Inputs
from mcfsim.checks import check_processor
from mcfsim.compile.program import Program, Register
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import Scalars
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

Array = NDArray[np.float64]
Output = int | Literal["sum"]


@dataclass(frozen=True, eq=False)
class RoundedFunction:
    """A function in a format, with its inputs: all that an analysis depends on.

    Parameters
    ----------
    function : callable
    inputs : Inputs
    format, rounding : Format, Rounding
    scalars : {"exact", "rounded"}
    output : int or "sum"
    data : {"format", "real"}
    options : mapping

    Attributes
    ----------
    program : Program
        The function, recorded.
    outputs : tuple of Register
        The results whose sum is analysed.

    Raises
    ------
    TypeError, ValueError
        If the function branches on a value, or there is no such output.
    """

    function: Callable[..., Any]
    inputs: Inputs
    format: Format
    rounding: Rounding
    scalars: Scalars
    output: Output
    data: str
    options: Mapping[str, Any]
    program: Program = field(init=False)
    outputs: tuple[Register, ...] = field(init=False)

    def __post_init__(self) -> None:
        program = recorded_function(
            self.function, self.format, self.rounding, self.inputs.shape, self.options
        )
        results, output = program.outputs(), self.output
        if not results:
            raise ValueError(f"{program.name} returns no result")
        if output == "sum":
            chosen = results
        elif type(output) is int and -len(results) <= output < len(results):
            chosen = [results[output]]
        else:
            count = len(results)
            raise ValueError(
                f"{program.name} has {count} result{'s' * (count != 1)}, and no result {output!r}: "
                f"an output is a place from 0 to {count - 1}, or 'sum'"
            )
        outputs = tuple(x for x in chosen if isinstance(x, Register))
        if not outputs or any(x for x in chosen if not isinstance(x, Register)):  # zeros add nothing
            raise ValueError(
                f"the result {output!r} of {program.name} has a number in it, which depends on no operation"
            )
        object.__setattr__(self, "program", program)
        object.__setattr__(self, "outputs", outputs)

    @property
    def of_inputs(self) -> Rounding:
        """How inputs are rounded: as results are, or to nearest if these are rounded at random."""
        return Rounding() if self.rounding.stochastic else self.rounding

    def rounded_inputs(self, numbers: Sequence[Array]) -> tuple[list[Any], dict[Register, Array]]:
        """Return inputs as values of the format, and their errors if these are part of the question."""
        carrier = carrier_of(self.format)
        made = [np.asarray(round_to(x, self.format, self.of_inputs), carrier) for x in numbers]
        if self.data == "format":
            return made, {}
        pairs = zip(self.program.inputs, made, numbers, strict=True)
        return made, {x: value.astype(np.float64) - given for x, value, given in pairs}

    def block(self, number: int, formats: Formats = MappingProxyType({})) -> Attribution:
        """Return the attribution of one block of inputs, with other formats for some results."""
        return self.at(self.inputs.block(number), formats, start=number * Inputs.BLOCK)

    def at(
        self, numbers: Sequence[Array], formats: Formats = MappingProxyType({}), *, start: int = 0
    ) -> Attribution:
        """Return the attribution of given inputs."""
        check_processor()
        given, errors = self.rounded_inputs(numbers)
        random = RandomWords(self.inputs.seed) if self.rounding.stochastic else None
        made = run(self.program, given, scalars=self.scalars, formats=formats, random=random, start=start)
        return Attribution(self.outputs, made, errors)

    def chosen(self, results: list[Any]) -> Any:
        """Return the analysed result from all results."""
        return sum(results) if self.output == "sum" else results[self.output]
