"""Costs of a program: operations and their implementations, machine operations, memory traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mcfsim.compile.llvm_source import source
from mcfsim.compile.lowering import Lowered, lower, way_of
from mcfsim.compile.program import Program, Register
from mcfsim.compile.scalars import ScalarEncoding, encoding
from mcfsim.compile.triton_source import kernel_source
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.machine import Type
from mcfsim.report.tables import Rows
from mcfsim.report.texts import RecordedText

_TYPES = {
    Type.F32: "binary32",
    Type.F64: "binary64",
    Type.I32: "32-bit integer",
    Type.I64: "64-bit integer",
    Type.TRUTH: "truth value",
}
#: Verbs that take no processor operation: inputs, constants, and numbers reinterpreted as codes or back.
_NONE = ("input", "constant", "bits", "number")


def generated_source(recorded: RecordedText) -> str:
    """Return the source of the loop that LLVM compiles, which need not be installed.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return source(lower(recorded.program, _entering(recorded)), _about(recorded))


def generated_kernel(recorded: RecordedText) -> str:
    """Return the source of the kernel that Triton compiles for a GPU; neither need be present.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return kernel_source(lower(recorded.program, _entering(recorded), clean=False), _about(recorded))


def _about(recorded: RecordedText) -> str:
    return f"{recorded.program.name}, {len(recorded.program.steps)} operations."


def operation_table(recorded: RecordedText) -> Rows:
    """Return a row for each kind of operation in each format: count, implementation, and its reason."""
    program, made = recorded.program, {step.result: step for step in recorded.program.steps}
    ways: dict[Any, set[ScalarEncoding]] = {step: set() for step in program.steps}
    for use, way in zip(program.uses, _entering(recorded), strict=True):
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
    """Return a row for each measure of a program's size."""
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
    """Return a row for each machine type: its number of operations per element.

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
    """Return the number of operations of each type; a comparison counts for the type of its operands."""
    counted: Counter[Type] = Counter()
    for value in lowered.line.needed(lowered.results):
        if value.verb not in _NONE:
            compares = value.type is Type.TRUTH and value.operands
            counted[value.operands[0].type if compares else value.type] += 1
    return counted


def memory_table(recorded: RecordedText) -> Rows:
    """Return a row for reads and one for writes: bytes per element, in carriers and in codes."""
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
        # Used only to observe a step.
        "written, the update": [x for label, x in results.items() if label == "update"],
    }
    rows = {label: [x.format for x in part] for label, part in parts.items() if part}
    rows["all"] = [fmt for formats in rows.values() for fmt in formats]
    return [
        {
            "memory": label,
            "values": f"{len(formats)}",
            "bytes in carriers": f"{sum(carrier_of(fmt).itemsize for fmt in formats)}",
            "bytes in codes": f"{sum(fmt.bits for fmt in formats) / 8:g}",
        }
        for label, formats in rows.items()
    ]


def refused(recorded: RecordedText) -> str | None:
    """Return the reason why a program cannot be lowered to a line, or None if it can."""
    try:
        lower(recorded.program, _entering(recorded))
    except (UnsupportedFormatError, TypeError) as problem:
        return str(problem)
    return None


def _entering(recorded: RecordedText) -> tuple[ScalarEncoding, ...]:
    """Return how each real scalar enters under the exact policy."""
    program: Program = recorded.program
    return tuple(
        encoding(use, number, "exact")[0]
        for use, number in zip(program.uses, program.reals(recorded.numbers), strict=True)
    )
