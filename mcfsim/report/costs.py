"""What a program costs: its operations and how each is carried out, the machine's operations, the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mcfsim.compile.lowering import Lowered, lower, way_of
from mcfsim.compile.numba_source import source
from mcfsim.compile.program import Program, Register
from mcfsim.compile.scalars import Entering, entering, uses
from mcfsim.compile.triton_source import kernel_source
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.machine import Type
from mcfsim.report.texts import RecordedText

Rows = list[dict[str, str]]

_TYPES = {
    Type.F32: "binary32",
    Type.F64: "binary64",
    Type.I32: "32-bit integer",
    Type.I64: "64-bit integer",
    Type.TRUTH: "truth value",
}
#: Verbs that are no operation of a processor: what is there already, and numbers taken for their codes.
_NONE = ("input", "constant", "bits", "number")


def generated_source(recorded: RecordedText) -> str:
    """Return the source of the loop that Numba compiles, which need not be installed.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return source(lower(recorded.program, _entering(recorded)), _about(recorded))


def generated_kernel(recorded: RecordedText) -> str:
    """Return the source of the kernel that Triton compiles for a GPU; neither need be there.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return kernel_source(lower(recorded.program, _entering(recorded), clean=False), _about(recorded))


def _about(recorded: RecordedText) -> str:
    return f"{recorded.program.name}, {len(recorded.program.steps)} operations."


def operation_table(recorded: RecordedText) -> Rows:
    """Return a row for each kind of operation in each format: how many, how carried out, and why so."""
    program, made = recorded.program, {step.result: step for step in recorded.program.steps}
    ways: dict[Any, set[Entering]] = {step: set() for step in program.steps}
    for use, way in zip(uses(program), _entering(recorded), strict=True):
        ways[use.step].add(way)
    counted: Counter[tuple[str, ...]] = Counter()
    for step in program.steps:
        chosen, why = way_of(step, ways[step], made)
        taken = "a scalar" if ways[step] else "values"
        counted[step.operation, str(step.result.format), taken, chosen, why] += 1
    return [
        {"operation": name, "format": fmt, "operands": of, "how many": f"{many}", "way": way, "why": why}
        for (name, fmt, of, way, why), many in counted.items()
    ]


def summary_table(recorded: RecordedText) -> Rows:
    """Return a row for each number that says how large a program is."""
    program = recorded.program
    numbers = {
        "operations": len(program.steps),
        "of these changes of sign": sum(step.operation in ("neg", "abs", "sign") for step in program.steps),
        "depth": program.depth(),
        "live registers": program.registers(),
        **({"random words": len(program.words)} if program.words else {}),
    }
    return [{"program": label, "an element": f"{number}"} for label, number in numbers.items()]


def machine_table(recorded: RecordedText) -> Rows:
    """Return a row for each type of the machine: how many operations an element of it takes.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    lowered = lower(recorded.program, _entering(recorded))
    counted = machine_operations(lowered)
    rows = {_TYPES[kind]: counted[kind] for kind in Type if counted[kind]}
    rows["all"] = sum(rows.values())
    return [{"machine": label, "operations": f"{number}"} for label, number in rows.items()]


def machine_operations(lowered: Lowered) -> Counter[Type]:
    """Return how many operations a line has of each type: a comparison counts for what it compares."""
    counted: Counter[Type] = Counter()
    for value in lowered.line.needed(lowered.results):
        if value.verb not in _NONE:
            compares = value.type is Type.TRUTH and value.operands
            counted[value.operands[0].type if compares else value.type] += 1
    return counted


def memory_table(recorded: RecordedText) -> Rows:
    """Return a row for what is read and one for what is written: bytes an element, in carriers and codes."""
    program = recorded.program
    results = {
        label: x
        for label, x in zip(recorded.results, program.outputs(), strict=True)
        if isinstance(x, Register)
    }
    taken = {x for step in program.steps for x in step.registers} | set(results.values())
    parts: Mapping[str, Sequence[Register]] = {
        "read": [x for x in program.inputs if x in taken],
        "written": [x for label, x in results.items() if label != "update"],
        # Of use to whoever watches a step alone.
        "written, the update": [x for label, x in results.items() if label == "update"],
    }
    rows = {label: [x.format for x in part] for label, part in parts.items()}
    rows = {label: formats for label, formats in rows.items() if formats}
    rows["all"] = [fmt for formats in rows.values() for fmt in formats]
    return [
        {
            "memory": label,
            "values": f"{len(formats)}",
            "bytes in carriers": f"{sum(carrier_of(fmt).itemsize for fmt in formats)}",
            "bytes in codes": f"{_code_bytes(formats):g}",
        }
        for label, formats in rows.items()
    ]


def refused(recorded: RecordedText) -> str | None:
    """Return why a program has no line for the machine, or None if it has one."""
    try:
        lower(recorded.program, _entering(recorded))
    except (UnsupportedFormatError, TypeError) as problem:
        return str(problem)
    return None


def _entering(recorded: RecordedText) -> tuple[Entering, ...]:
    """Return as what the real scalars enter by the exact policy."""
    program: Program = recorded.program
    return tuple(entering(use, use.number(recorded.numbers), "exact")[0] for use in uses(program))


def _code_bytes(formats: Sequence[Format]) -> float:
    return sum(fmt.bits for fmt in formats) / 8
