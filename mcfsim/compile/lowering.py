"""From a program to a straight line of machine operations: each operation by its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcfsim.compile.program import Operand, Program, Register, Scalar, Step
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.machine import F32, F64, Line, Type, Value
from mcfsim.kernels.element.operations import change_element, operate_element
from mcfsim.kernels.plan import COMFORT, Way, plan, refusal

_TYPES = {FLOAT32: F32, FLOAT64: F64}
_SIGNS = ("neg", "abs", "sign", "round")


@dataclass(frozen=True)
class Lowered:
    """A program as a line.

    Attributes
    ----------
    program : Program
    line : Line
        Its inputs are those of the program, each of its format's carrier, and the real scalars, of binary64.
    results : tuple of Value
    """

    program: Program
    line: Line
    results: tuple[Value, ...]

    def check_scalars(self, scalars: Mapping[str, Any]) -> dict[str, float]:
        """Return real scalars as the line takes them.

        Raises
        ------
        UnsupportedFormatError
            If binary64 does not hold one, or what is lost of a product with it.
        """
        for name, number in scalars.items():
            size = abs(number) if number == number else 1.0
            far = size and not 2.0**-COMFORT <= size <= 2.0**COMFORT and size != np.inf
            if far or (number == number and float(number) != number):
                raise UnsupportedFormatError(
                    f"{name} = {number!r} is beyond what a compiled loop takes exactly"
                )
        return {name: float(number) for name, number in scalars.items()}


def type_of(fmt: Format) -> Type:
    """Return what a register holds of a value of a format."""
    return _TYPES[carrier_of(fmt)]


def lower(program: Program) -> Lowered:
    """Return the machine's line for a program.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    line = Line()
    known: dict[Any, Value] = {x: line.input(x.name, type_of(x.format)) for x in program.inputs}
    scalars = {name: line.input(name, F64) for name in program.scalars}

    def value(x: Operand) -> Value:
        if isinstance(x, Scalar):
            return -scalars[x.name] if x.negative else scalars[x.name]
        return known[x] if isinstance(x, Register) else line.constant(float(x), F64)

    for step in program.steps:
        known[step.result] = _lowered(step, [value(x) for x in step.operands])
    return Lowered(program, line, tuple(value(x) for x in program.outputs()))


def _lowered(step: Step, operands: list[Value]) -> Value:
    fmt, rounding = step.result.format, step.rounding
    carrier = type_of(fmt)
    if step.operation in _SIGNS:
        return change_element(step.operation, operands[0], fmt, rounding, carrier=carrier)
    planned = plan(fmt, rounding, carrier_of(fmt))
    real = not all(isinstance(x, Register) for x in step.operands)
    way, why = (planned.reals if real else planned.values)[step.operation]
    if way is Way.REFUSED:
        raise refusal(step.operation, fmt, rounding, why)
    for x in step.operands:
        if not isinstance(x, Register | Scalar) and float(x) != x:
            raise UnsupportedFormatError(f"{step}: {x!r} is no binary64 number")
    return operate_element(step.operation, operands, str(way), fmt, rounding, carrier=carrier, real=real)
