"""Steps of optimizers by size: time a parameter and memory, from files, and beside PyTorch and a copy.

Each size runs in a process of its own, under Collage-plus, on codes of bfloat16. This measures and tests
nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.common import write_result
from tests.benchmarks import steps, timing
from tests.benchmarks.timing import Array, Call, about, drawn, installed, median_seconds, optimizer

SIZES = 10**6, 10**7, 10**8, 125 * 10**6
#: Parameters of what is compared with PyTorch, and rounds, of whose medians the least counts.
COMPARED, ROUNDS = 1 << 25, 3
STRATEGY = "collage-plus"


def arguments() -> argparse.Namespace:
    parser, more = timing.parser(__doc__), "parameters, beside PyTorch; 0: none"
    parser.add_argument("--sizes", type=float, nargs="*", default=list(SIZES), help="parameters, in memory")
    parser.add_argument("--mapped", type=float, nargs="*", default=[], help="parameters, in files")
    parser.add_argument("--folder", type=Path, help="for these files; by default one for temporary files")
    parser.add_argument("--limit", type=float, default=4e9, help="bytes of memory besides mapped files")
    parser.add_argument("--compared", type=float, default=COMPARED, help=more)
    return parser.parse_args()


def of_size(parameters: int, threads: int, **more: Any) -> dict[str, Any]:
    """Return what a process of its own finds; see `tests.benchmarks.one_size`."""
    asked = json.dumps({"parameters": parameters, "threads": threads, **more})
    run = [sys.executable, "-m", "tests.benchmarks.one_size", asked]
    printed = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(printed)
    return {**found, "threads": threads, "ns": 1e9 * found["seconds"] / parameters}


def in_memory(sizes: list[int], threads: list[int], table: Table) -> Iterator[dict[str, Any]]:
    """Steps in memory, and the most that a process held beyond its vectors, the interpreter included."""
    for parameters in sizes:
        for count in threads:
            row = of_size(parameters, count)
            megabytes = [f"{row[name] / 1e6:.0f}" for name in ("state", "beyond")]
            times = [f"{row['seconds']:.4g}", f"{row['ns']:.2f}"]
            table.add_row(f"{parameters:.3g}", str(count), *times, *megabytes)
            yield row


def in_files(
    sizes: list[int], threads: int, folder: Path | None, limit: int, table: Table
) -> Iterator[dict[str, Any]]:
    """Steps of states in files, from the disk and back to it, beside a copy of as many bytes."""
    for parameters in sizes:
        with TemporaryDirectory(dir=folder) as place:
            row = of_size(parameters, threads, folder=place, limit=limit)
        row["ratio"] = row["seconds"] / row["copy"]
        times = [f"{row[name]:.4g}" for name in ("seconds", "copy")]
        table.add_row(f"{parameters:.3g}", *times, f"{row['ratio']:.2f}", f"{row['RssAnon'] / 1e6:.0f}")
        yield row


def peers(x: Array, parameters: int, threads: int) -> Iterator[tuple[str, Call]]:
    """Our step, compiled and on NumPy, PyTorch's, and a copy of the bytes that ours reads and writes."""
    options: dict[str, Any] = {"packed": True, "threads": threads}
    ways: dict[str, dict[str, Any]] = {"compiled": {"compiled": True}, "on NumPy alone": {"steps": 10**6}}
    for name, carried in ways.items():
        made, received = optimizer(STRATEGY, x, parameters, **carried, **options)
        step = partial(made.advance, received, 1e-3)
        yield f"ours, {name}", step if "compiled" in carried else partial(_without_llvm, step)
        del made, received, step
    if installed("torch"):
        import torch

        torch.set_num_threads(threads)
        native = "the same operations, torch bfloat16"
        yield native, steps.native_step(STRATEGY, x, parameters, parameters)
        yield f"{native}, in blocks", steps.native_step(STRATEGY, x, parameters, 1 << 17)
        yield steps.FUSED, steps.fused_step(x, parameters)
    yield "copy of the same bytes", _copy(parameters, threads)


def _without_llvm(call: Call) -> None:
    with patch("mcfsim.compile.choice.is_available", lambda: False):
        call()


def _copy(parameters: int, threads: int) -> Call:
    """Return a copy of the bytes that a step reads, 12 a parameter, and writes, 10."""
    given = np.ones(11 * parameters, np.uint8)
    parts = [np.array_split(array, threads) for array in (np.zeros_like(given), given)]

    def copy() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(np.copyto, *parts))

    return copy


def compared(parameters: int, threads: list[int], table: Table) -> Iterator[dict[str, Any]]:
    """Our step beside its peers, in one process."""
    x = drawn(parameters)
    for count in threads:
        for name, call in peers(x, parameters, count):
            ns = 1e9 * min(median_seconds(call) for _ in range(ROUNDS)) / parameters
            table.add_row(name, str(count), f"{ns:.2f}")
            yield {"name": name, "threads": count, "ns": ns}
            del call


def main() -> None:
    asked, console = arguments(), Console()
    headings = ("parameters", "threads", "s", "ns a parameter", "state, MB", "beyond it, MB")
    memory = Table(*headings, title="in memory")
    files = Table("parameters", "s", "copy, s", "ratio", "own memory, MB", title="in files")
    beside = Table("step", "threads", "ns a parameter", title=f"{int(asked.compared):.3g} parameters")
    result: dict[str, Any] = {"versions": about("llvmlite", "torch"), "strategy": STRATEGY}
    sizes, mapped = ([int(x) for x in given] for given in (asked.sizes, asked.mapped))
    result["memory"] = list(in_memory(sizes, asked.threads, memory))
    result["files"] = list(in_files(mapped, max(asked.threads), asked.folder, int(asked.limit), files))
    if asked.compared:
        result["compared"] = list(compared(int(asked.compared), asked.threads, beside))
    for table in (memory, files, beside):
        if table.row_count:
            console.print(table)
    if asked.write:
        write_result("sizes", result)


if __name__ == "__main__":
    main()
