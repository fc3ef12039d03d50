"""Programs whose operations with real scalars are carried out in binary32, as PyTorch carries them out."""

from __future__ import annotations

from dataclasses import replace

from mcfsim.compile.program import Operand, Program, ProgramStep, Register
from mcfsim.formats import Format
from mcfsim.kernels.operation_plan import OPERATIONS
from mcfsim.kernels.real_numbers import SINGLE, Scalars, is_widened
from mcfsim.rounding import Rounding, Underflow

_NEAREST, _FLUSHING = Rounding(), Rounding(underflow=Underflow.FLUSH_INPUTS)


def by_policy(program: Program, scalars: Scalars) -> Program:
    """Return a program as `mcfsim.compile.scalars.encoding` takes it by a policy for its real scalars."""
    return in_single(program) if scalars == "float32" else program


def in_single(program: Program) -> Program:
    """Return a program whose operations with real scalars are carried out in binary32, to nearest even.

    Their results are rounded into their own formats, by their own roundings and random words. Before, values
    are flushed if the rounding flushes operands; a real scalar, an operand in binary32, is not. Real scalars
    and draws keep their order. Operations on signs, roundings, functions and selections stay as they are:
    `mcfsim.compile.scalars` knows what a real scalar is to them.
    """
    steps: list[ProgramStep] = []
    brought: dict[tuple[Register, bool], Register] = {}

    def rounded(x: Register, fmt: Format, rounding: Rounding) -> Register:
        result = Register(f"{x}_{fmt}", fmt)
        steps.append(ProgramStep("round", rounding, (x,), result))
        return result

    def bring(x: Operand, flushes: bool) -> Operand:
        if not isinstance(x, Register):
            return x
        if (x, flushes) not in brought:
            value = rounded(x, x.format, _FLUSHING) if flushes else x
            brought[x, flushes] = rounded(value, SINGLE, _NEAREST)
        return brought[x, flushes]

    for step in program.steps:
        scalars = len(step.registers) < len(step.operands)
        if not (scalars and step.operation in OPERATIONS and is_widened(step.result.format, "float32")):
            steps.append(step)
            continue
        flushes = step.rounding.underflow is Underflow.FLUSH_INPUTS
        operands = tuple(bring(x, flushes) for x in step.operands)
        made = Register(f"{step.result}_{SINGLE}", SINGLE)
        steps.append(replace(step, rounding=_NEAREST, operands=operands, result=made, draw=None))
        steps.append(replace(step, operation="round", rounding=step.rounding.of_results, operands=(made,)))
    return replace(program, steps=tuple(steps))
