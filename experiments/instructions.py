"""The instructions of a GPU that kernels take, counted in their machine code, and a forecast of speed."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import mcfsim as mcf
from experiments.common import read_result, write_result
from experiments.machine_code.throughput import DEVICES, THROUGHPUT, by_pipe, limits
from mcfsim.compile.kernel import Kernel, check_triton
from mcfsim.compile.program import Program
from mcfsim.compile.tracing import trace
from mcfsim.optim.step_programs import record_step
from mcfsim.report.tables import markdown_table

#: How a kernel rounds to bfloat16, and what that is called in tables.
WAYS = {"integers": False, "instructions": True}


def two_sum() -> Program:
    """Return 2Sum in bfloat16."""
    return trace(mcf.two_sum, "bfloat16")


def collage_plus() -> Program:
    """Return the third AdamW step of the strategy collage-plus, whose results are only new numbers."""
    hyper, strategy = mcf.AdamW(), mcf.strategy("collage-plus")
    roles = strategy.roles("nearest_even")
    scalars = hyper.scalars(roles, strategy, 3, 1e-3, decayed=True)
    program = record_step(hyper, strategy, roles, scalars, gradient=strategy.gradient.format)
    *kept, _ = program.results
    return replace(program, results=tuple(kept))


PROGRAMS = {"two_sum": two_sum, "collage-plus": collage_plus}


def kernel(name: str, *, hardware: bool) -> tuple[Kernel, list[Any]]:
    """Return a program's kernel on codes, and its real scalars."""
    program = PROGRAMS[name]()
    return Kernel(program, packed=True, hardware=hardware), program.reals()


def source(name: str, *, hardware: bool = False) -> str:
    """Return the source of a program's kernel on codes."""
    made, numbers = kernel(name, hardware=hardware)
    return made.source(numbers)


def counts_table() -> str:
    """Return how many instructions an element takes, by pipe."""
    rows = []
    for row in read_result("instructions")["kernels"]:
        label = {"kernel": row["kernel"], "16 bits by": row["way"], "GPU": f"sm_{row['capability']}"}
        rows.append(label | {pipe: _short(count) for pipe, count in row["counts"].items()})
    return markdown_table(rows)


def forecast_table() -> str:
    """Return how many elements per second memory and each pipe allow by themselves, in units of 10^9."""
    rows = []
    for row in read_result("instructions")["kernels"]:
        for name, device in DEVICES.items():
            if device.capability != row["capability"]:
                continue
            allowed = limits(row["counts"], row["bytes"], device)
            least = min(allowed, key=allowed.__getitem__)
            shown = ("memory", "issue", "integer and comparison", "conversion")
            rows.append(
                {"kernel": row["kernel"], "16 bits by": row["way"], "GPU": name, "bytes": f"{row['bytes']}"}
                | {pipe: f"{allowed[pipe] / 1e9:.0f}" if pipe in allowed else "" for pipe in shown}
                | {"forecast": f"{allowed[least] / 1e9:.0f}", "bound by": least}
            )
    return markdown_table(rows)


def _short(count: float) -> str:
    return f"{count:.1f}" if count else ""


def main() -> None:
    """Count, if Triton is installed; otherwise leave the earlier counts."""
    try:
        check_triton()
    except ImportError as error:
        print(f"instructions of kernels are not counted: {error}")
        return
    rows = []
    for name in PROGRAMS:
        for way, hardware in WAYS.items():
            made, numbers = kernel(name, hardware=hardware)
            text, line = made.source(numbers), made.line(numbers)
            size = sum(line.dtype(x).itemsize for x in (*line.operands, *line.results))
            rows += [
                {"kernel": name, "way": way, "capability": capability, "bytes": size}
                | {"counts": by_pipe(text, line, capability)}
                for capability in THROUGHPUT
            ]
    write_result("instructions", {"versions": {"triton": version("triton")}, "kernels": rows})


if __name__ == "__main__":
    main()
