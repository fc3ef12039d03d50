"""Exact attribution of a function's error to its operations, on blocks of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.expressions import recorded_function
from mcfsim.analysis.rounded_run import Formats, RoundedRun, run
from mcfsim.analysis.samplers import Inputs
from mcfsim.analysis.secants import RESULTS, SLOPES, flipped
from mcfsim.checks import check_processor
from mcfsim.compile.program import Program, Register
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import Scalars, as_float
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

Array = NDArray[np.float64]
_ZERO: Any = np.float64(0.0)


@dataclass(frozen=True, eq=False)
class Attribution:
    """The error of a program's output on a block of inputs, shared out among its operations.

    Parameters
    ----------
    outputs : sequence of Register
        The results whose sum is analysed.
    run : RoundedRun
        The rounded results and the rounding error of each operation.
    input_errors : mapping of Register to array, optional
        Rounded minus given inputs, where the rounding of inputs is part of the error.

    Notes
    -----
    Forward, secant slopes pass the errors on: D(result) = own error + sum of slope * D(operand), which is
    computed minus exact result (CENA, Langlois 2001, with secants instead of derivatives). Backward, the same
    slopes give each operation's factor S. The sum of S times own error *is* the error, by reordering a finite
    sum. This holds across ``choose`` and ``maximum``, too.
    """

    outputs: Sequence[Register]
    run: RoundedRun
    input_errors: Mapping[Register, Array]

    @cached_property
    def _forward(self) -> tuple[dict[Register, Any], dict[Register, Any], dict[Register, Sequence[Any]], Any]:
        """Errors so far, own errors, slopes, and the number of choices that went the other way."""
        values = self.run.values
        errors: dict[Register, Any] = {x: self.input_errors.get(x, _ZERO) for x in self.run.program.inputs}
        own: dict[Register, Any] = dict(self.input_errors)
        found: dict[Register, Sequence[Any]] = {}
        turned: Any = 0
        with np.errstate(all="ignore"):
            for step in self.run.program.steps:
                h = [number(x, values) for x in step.operands]
                d = [errors[x] if isinstance(x, Register) else _ZERO for x in step.operands]
                local = self.run.errors[step.result]
                if step.operation == "choose":
                    where, difference = flipped(h[0], h[1], h[2], d[0])
                    turned, local = turned + where, local + difference
                own[step.result] = local
                y = values[step.result] - local if step.operation in RESULTS else 0.0
                found[step.result] = k = SLOPES[step.operation](y, *h, *d)
                passed = (contributed(slope, x) for slope, x in zip(k, d, strict=True) if x is not _ZERO)
                errors[step.result] = sum(passed, local)
        return errors, own, found, turned

    @property
    def errors(self) -> Mapping[Register, Any]:
        """For each input and result, computed minus exact."""
        return self._forward[0]

    @property
    def turned(self) -> Any:
        """For each input, how many choices took a different value than with exact operands."""
        return self._forward[3]

    @cached_property
    def computed(self) -> Array:
        """The computed output."""
        return sum((self.run.values[x] for x in self.outputs), _ZERO)

    @cached_property
    def error(self) -> Array:
        """Computed minus exact output."""
        error = sum((self.errors[x] for x in self.outputs), _ZERO)
        return np.broadcast_to(error, self.computed.shape)

    @cached_property
    def exact(self) -> Array:
        """The exact output, accurate to the last bits of binary64 where the error is relatively small."""
        with np.errstate(invalid="ignore"):
            return self.computed - self.error

    # -- backward -----------------------------------------------------------------------------------------
    def _factors(self, of: Mapping[Register, Sequence[Any]]) -> dict[Register, Any]:
        """Return the factor of each result by the slopes of each operation."""
        factors = self._passed_back(of)
        # Zero times infinity is rare, and leaves some factor that is not finite.
        with np.errstate(all="ignore"):
            known = all(map(all_finite, factors.values()))
        return factors if known else self._passed_back(of, careful=True)

    def _passed_back(
        self, of: Mapping[Register, Sequence[Any]], *, careful: bool = False
    ) -> dict[Register, Any]:
        """Return these factors; if `careful`, a product with zero is zero, whatever the other number is."""
        factors: dict[Register, Any] = {x: np.float64(self.outputs.count(x)) for x in self.outputs}
        with np.errstate(all="ignore"):
            for step in reversed(self.run.program.steps):
                factor = factors.get(step.result)
                if factor is None:
                    continue
                for x, slope in zip(step.operands, of[step.result], strict=True):
                    if isinstance(x, Register):
                        passed = contributed(slope, factor) if careful else _times(slope, factor)
                        factors[x] = factors[x] + passed if x in factors else passed
        return factors

    @cached_property
    def factors(self) -> Mapping[Register, Any]:
        """How much the output changes for each unit of a result's own error, exactly, by secants."""
        return self._factors(self._forward[2])

    def shares(self) -> Iterator[tuple[Register, Array]]:
        """Yield the share of the error of each operation, and of each input that was rounded."""
        own, factors = self._forward[1], self.factors
        for x, local in own.items():
            if x in factors and local is not _ZERO:
                yield x, contributed(factors[x], local)

    # -- first order --------------------------------------------------------------------------------------
    @cached_property
    def exact_values(self) -> Mapping[Register, Any]:
        """The exact values of all inputs and results."""
        errors = self.errors
        return {x: v if errors[x] is _ZERO else v - errors[x] for x, v in self.run.values.items()}

    @cached_property
    def sensitivities(self) -> Mapping[Register, Any]:
        """The derivative of the output with respect to each result, at the exact values."""
        derivatives: dict[Register, Sequence[Any]] = {}
        with np.errstate(all="ignore"):
            values = self.exact_values
            for step in self.run.program.steps:
                h = [number(x, values) for x in step.operands]
                zeros = [_ZERO] * len(h)
                derivatives[step.result] = SLOPES[step.operation](values[step.result], *h, *zeros)
        return self._factors(derivatives)

    @cached_property
    def condition(self) -> Array:
        """The relative condition number with respect to the inputs: the sum of ``|x df/dx| / |f|``."""
        with np.errstate(all="ignore"):
            reached = [x for x in self.run.program.inputs if x in self.sensitivities]
            terms = (np.abs(self.sensitivities[x] * self.exact_values[x]) for x in reached)
            condition = sum(terms, _ZERO) / np.abs(self.exact)
        return np.broadcast_to(condition, self.exact.shape)


def number(x: Any, values: Mapping[Register, Array]) -> Any:
    """Return the numbers of an operand: those of a value, or a real scalar."""
    return values[x] if isinstance(x, Register) else np.float64(as_float(x))


def all_finite(x: Any) -> bool:
    """Return whether all numbers are finite, in one pass; false also if their sum overflows."""
    return isfinite(np.add.reduce(x) if np.ndim(x) else x)


def contributed(slope: Any, x: Any) -> Any:
    """Return a slope times an error or a factor; zero if either of them is zero."""
    passed = _times(slope, x)
    if not (isinstance(slope, float) and slope) and not all_finite(passed):
        passed = np.where(np.equal(x, 0) | np.equal(slope, 0), 0.0, passed)
    return passed


def _times(slope: Any, x: Any) -> Any:
    """Return a product with a slope, which often is 1 or -1."""
    if isinstance(slope, float):
        return x if slope == 1.0 else -x if slope == -1.0 else slope * x
    return slope * x


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
        """How inputs are rounded: as results are, or to nearest if results are rounded stochastically."""
        return Rounding() if self.rounding.stochastic else self.rounding

    def rounded_inputs(self, numbers: Sequence[Array]) -> tuple[list[Any], dict[Register, Array]]:
        """Return inputs as values of the format, and their errors if the unrounded inputs are the data."""
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
