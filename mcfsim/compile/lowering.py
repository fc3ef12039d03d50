"""From a program to a straight line of machine operations: each operation by its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mcfsim.compile.program import Program, Register, Step
from mcfsim.compile.scalars import Entering, Use, uses
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, carrier_of
from mcfsim.kernels.element.floats import NAN
from mcfsim.kernels.element.machine import F32, F64, Line, Type, Value
from mcfsim.kernels.element.operations import change_element, flush_element, operate_element
from mcfsim.kernels.element.rounding import is_value
from mcfsim.kernels.plan import Way, plan, refusal, sum_within
from mcfsim.rounding import Underflow

_TYPES = {FLOAT32: F32, FLOAT64: F64}
_SIGNS = ("neg", "abs", "sign", "round")


@dataclass(frozen=True)
class Lowered:
    """A program as a line.

    Attributes
    ----------
    line : Line
        Its inputs are those of the program, each of its format's carrier, and a number for each use of a real
        scalar.
    operands : tuple of Value
        The inputs that differ from element to element.
    numbers : tuple of Value
        The inputs that are the same for all elements, in the order of the uses.
    results : tuple of Value
    strange : Value or None
        Where an operand is no value of its format, as a truth value, if that was asked for.
    """

    line: Line
    operands: tuple[Value, ...]
    numbers: tuple[Value, ...]
    results: tuple[Value, ...]
    strange: Value | None


def type_of(fmt: Format) -> Type:
    """Return what a register holds of a value of a format."""
    return _TYPES[carrier_of(fmt)]


def lower(
    program: Program, entering: tuple[Entering, ...], *, checked: bool = False, wide: bool = False
) -> Lowered:
    """Return the machine's line for a program.

    Parameters
    ----------
    program : Program
    entering : tuple of Entering
        As what each real scalar enters, in the order of `mcfsim.compile.scalars.uses`.
    checked : bool, optional
        Whether to tell where an operand is no value of its format.
    wide : bool, optional
        Whether all results are of binary64.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    TypeError
        If a result is a number.
    """
    line = Line()
    given = tuple(line.input(x.name, type_of(x.format)) for x in program.inputs)
    strange: Value | None = None
    if checked:
        for x, value in zip(program.inputs, given, strict=True):
            other = ~is_value(value, x.format)
            strange = other if strange is None else strange | other
    # Processors make clean codes of NaN, and hand them on; what others may have made is cleaned.
    known: dict[Any, Value] = {
        x: value.equals(value).select(value, value.like(NAN))
        for x, value in zip(program.inputs, given, strict=True)
    }
    numbers: dict[tuple[int, int], tuple[Use, Entering, Value]] = {}
    for use, way in zip(uses(program), entering, strict=True):
        narrow = way in (Entering.VALUE, Entering.CARRIER)
        kind = type_of(use.step.result.format) if narrow else F64
        numbers[id(use.step), use.position] = use, way, line.input(use.name, kind)
    for step in program.steps:
        taken = [numbers.get((id(step), position)) for position in range(len(step.operands))]
        operands = [
            known[x] if entry is None else entry[2] for x, entry in zip(step.operands, taken, strict=True)
        ]
        ways = {entry[1] for entry in taken if entry is not None}
        known[step.result] = _lowered(step, operands, ways)
    for x in program.outputs():
        if not isinstance(x, Register):
            raise TypeError(f"{program.name} returns {x!r} as it is, which is no operation")
    results = tuple(known[x].widen() if wide else known[x] for x in program.outputs())
    return Lowered(line, given, tuple(entry[2] for entry in numbers.values()), results, strange)


def _lowered(step: Step, operands: list[Value], ways: set[Entering]) -> Value:
    fmt, rounding, operation = step.result.format, step.rounding, step.operation
    carrier = type_of(fmt)
    if operation in _SIGNS:
        same = isinstance(step.operands[0], Register) and step.operands[0].format == fmt
        return change_element(operation, operands[0], fmt, rounding, carrier=carrier, clean=same)
    if ways & {Entering.CARRIER, Entering.WIDE}:
        if rounding.underflow is Underflow.FLUSH_INPUTS:
            values = [isinstance(x, Register) for x in step.operands]
            operands = [flush_element(x, fmt) if v else x for x, v in zip(operands, values, strict=True)]
            rounding = replace(rounding, underflow=Underflow.GRADUAL)
        way = "native" if Entering.CARRIER in ways else "wide"
        operation = "mul" if operation == "div" else operation
        return operate_element(operation, operands, way, fmt, rounding, carrier=carrier, clean=True)
    planned = plan(fmt, rounding, carrier_of(fmt))
    real = Entering.REAL in ways
    chosen, why = (planned.reals if real else planned.values)[operation]
    if chosen is Way.REFUSED:
        raise refusal(operation, fmt, rounding, why)
    if operation in ("add", "sub") and not real and chosen is not Way.NATIVE:
        chosen = (sum_within(fmt, rounding, carrier_of(fmt)) or planned.values[operation]).way
    return operate_element(operation, operands, chosen, fmt, rounding, carrier=carrier, real=real, clean=True)
