"""Kernels on a GPU: rounding, 2Sum and steps of optimizers beside a copy of the same bytes, and their peers.

Times are medians by CUDA events, sizes well past the cache. On a CPU it runs through in miniature, kernels
interpreted by NumPy: that shows that it runs, and no speed. This measures and tests nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table

import mcfsim as mcf
import mcfsim.torch
from experiments.gpu import keep
from mcfsim.compile import trace
from mcfsim.compile.kernel import Kernel
from mcfsim.compile.program import Register
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.theorems.device import Device, find_device
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.verification import prepare, run
from tests.benchmarks import gpu_peers
from tests.benchmarks.timing import about

#: Elements on a GPU, well past its cache, and in miniature.
SIZE, MINIATURE = 1 << 28, 1 << 12
#: Formats that binary32 is rounded into.
FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32")
#: Tensors of a model with many small ones.
SMALL = 1000
REPEATS = 11
#: A step on so many times fewer elements comes first; if it takes more than so many seconds, it is all.
FEWER, SLOW = 64, 0.02


class Row(NamedTuple):
    """What was measured.

    Attributes
    ----------
    name : str
    seconds : float
        Of one call.
    elements : int
    bytes : float
        Read and written for an element.
    """

    name: str
    seconds: float
    elements: int
    bytes: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.elements * self.bytes / self.seconds


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the median time of a call, the first ones not counted."""
    warm, repeats = (3, REPEATS) if device.type == "cuda" else (0, 1)
    for _ in range(warm):
        call()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return float(np.median(times))


def copying(size: int, device: torch.device) -> Row:
    """A copy: of the device's bandwidth what can be had."""
    given = torch.ones(size, dtype=torch.float32, device=device)
    kept = torch.empty_like(given)
    return Row("copy", seconds(lambda: kept.copy_(given), device), size, 8)


def rounding(size: int, device: torch.device) -> Iterator[Row]:
    """Binary32 rounded into formats, kept as codes where the format has short ones."""
    x = torch.randn(size, device=device)
    for name in FORMATS:
        fmt = mcf.get_format(name)
        given = Register("x", mcf.get_format("float32"))
        kernel = Kernel(trace(lambda ar, x: ar.round(x), fmt, operands=(given,)), packed=True, hardware=True)
        launcher = kernel.with_numbers([])
        dtype = launcher.lowered.dtype(launcher.lowered.results[0])
        out = torch.empty(size, dtype=getattr(torch, str(dtype).replace("uint16", "int16")), device=device)
        taken = seconds(lambda launcher=launcher, out=out: launcher([x], [out]), device)
        yield Row(f"float32 to {name}", taken, size, 4 + dtype.itemsize)


def sums(size: int, device: torch.device) -> Iterator[Row]:
    """2Sum of bfloat16, as one kernel and as torch's six operations."""
    a, b = (torch.randn(size, device=device).bfloat16() for _ in range(2))
    launcher = Kernel(trace(mcf.two_sum, "bfloat16"), packed=True, hardware=True).with_numbers([])
    out = [torch.empty_like(a), torch.empty_like(b)]
    yield Row("two_sum, bfloat16", seconds(lambda: launcher([a, b], out), device), size, 8)
    yield Row("the same operations of torch", seconds(lambda: gpu_peers.two_sum(a, b), device), size, 8)


def steps(size: int, device: torch.device) -> Iterator[Row]:
    """A step of AdamW under each strategy; on fewer elements where that takes long."""
    for name in mcf.STRATEGIES:
        if name != "exact":
            few = _step(name, max(16, size // FEWER), device)
            yield few if few.seconds > SLOW else _step(name, size, device)


def _step(name: str, size: int, device: torch.device) -> Row:
    strategy = mcf.strategy(name)
    dtype = getattr(torch, strategy.parameter.format.name)
    p = torch.nn.Parameter((0.02 * torch.randn(size, device=device)).to(dtype))
    p.grad = (1e-3 * torch.randn(size, device=device)).to(dtype)
    optimizer = mcfsim.torch.AdamW([p], strategy=name)
    taken = seconds(optimizer.step, device)
    kept = sum(
        x.numel() * x.element_size() for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)
    )
    return Row(
        f"AdamW, {name}", taken, size, 2 * (round(kept / size, 2) + p.element_size()) + p.element_size()
    )


def many(size: int, device: torch.device) -> Iterator[Row]:
    """A step of many small tensors, ours and torch's."""
    each = max(16, size // SMALL // 64)
    count = min(SMALL, size)
    for name in ("collage-plus", "torch AdamW(fused=True), float32"):
        ours = not name.startswith("torch")
        dtype = torch.bfloat16 if ours else torch.float32
        given = [torch.nn.Parameter(torch.randn(each, device=device).to(dtype)) for _ in range(count)]
        for p in given:
            p.grad = torch.ones_like(p)
        optimizer = mcfsim.torch.AdamW(given) if ours else torch.optim.AdamW(given, fused=True)
        taken = seconds(optimizer.step, device)
        yield Row(f"{name}, {count} tensors of {each}", taken, count * each, 22 if ours else 28)


def sweeps(device: torch.device) -> Iterator[Row]:
    """2Sum on all pairs of a format, judged on the device: of bfloat16 on a GPU, of float8_e5m2 in miniature.

    By the clock of the host, for the host takes part: the second time, when kernels are compiled.
    """
    gpu = device.type == "cuda"
    check = prepare("two_sum", "bfloat16" if gpu else "float8_e5m2", "nearest_even", Selection("all"))
    there = find_device(str(device)) if gpu else Device(device, least=0)
    taken = 0.0
    for _ in range(2 if gpu else 1):
        with Sweep() as sweep:
            start = time.perf_counter()
            (found,) = run([check], sweep, device=there)
            taken = time.perf_counter() - start
    yield Row(f"verify two_sum, {check.format.name}, all pairs", taken, found.tried, 4)


def largest(device: torch.device) -> Iterator[Row]:
    """A Collage-plus step of as many parameters as fit on the card, at most 6.7e9."""
    free, _ = torch.cuda.mem_get_info(device)
    size = min(int(6.7e9), int(0.95 * free) // 14) // 1024 * 1024
    p = torch.nn.Parameter(torch.full((size,), 0.02, dtype=torch.bfloat16, device=device))
    p.grad = torch.full_like(p, 1e-3)
    optimizer = mcfsim.torch.AdamW([p])
    yield Row(f"AdamW, collage-plus, {size:.3g} parameters", seconds(optimizer.step, device), size, 22)


def shown(rows: list[Row], copy: Row, title: str) -> Table:
    """Return rows as a table."""
    table = Table(
        Column("what", no_wrap=True), "elements", "ms", "1e9 elements/s", "GB/s", "of a copy", title=title
    )
    for row in rows:
        table.add_row(
            row.name,
            f"{row.elements:.3g}",
            f"{1e3 * row.seconds:.4g}",
            f"{row.elements / row.seconds / 1e9:.4g}",
            f"{row.rate / 1e9:.4g}",
            f"{row.rate / copy.rate:.2f}",
        )
    return table


def main() -> None:
    """Run all, and write the device's result file if a GPU was measured, group by group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=float, help="elements; by default well past the cache of a GPU")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    size = int(asked.size or (MINIATURE if device.type == "cpu" else SIZE))
    if device.type == "cuda":
        for result in measured(size, device):
            keep(result)
        return
    os.environ["TRITON_INTERPRET"] = "1"
    # NumPy, which interprets, warns of what is NaN.
    with patch("mcfsim.torch.step._is_host", lambda device: False), np.errstate(all="ignore"):
        for _ in measured(size, device):
            pass


def measured(size: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Measure group by group; print each table, and yield what is to be kept so far."""
    copy = copying(size, device)
    groups: dict[str, Callable[[], Iterator[Row]]] = {
        "rounding": lambda: rounding(size, device),
        "2Sum": lambda: sums(size, device),
        "steps": lambda: steps(size, device),
        "many tensors": lambda: many(size, device),
        "theorems": lambda: sweeps(device),
        "the largest": lambda: largest(device),
        "peers": lambda: gpu_peers.steps(size, device, seconds, Row),
    }
    if device.type != "cuda":
        del groups["the largest"]
    console = Console(width=120)
    result: dict[str, Any] = {
        "versions": about("torch", "triton"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU, in miniature",
        "copy": copy._asdict(),
        "rows": {},
        "not the exact step rounded once": {},
    }
    for title, group in groups.items():
        rows = []
        for row in group():
            print(f"{title}: {row.name}, {1e3 * row.seconds:.4g} ms", flush=True)
            rows.append(row)
            gc.collect()  # optimizers hold themselves, and their tensors
            if device.type == "cuda":
                torch.cuda.empty_cache()
        console.print(shown([copy, *rows], copy, title))
        result["rows"][title] = [row._asdict() for row in rows]
        yield result
    result["not the exact step rounded once"] = gpu_peers.shares_wrong(min(size, 1 << 24), device)
    table = Table("optimizer", "not the exact step, rounded once", title="parameters after one step")
    for name, share in result["not the exact step rounded once"].items():
        table.add_row(name, f"{share:.2%}")
    console.print(table)
    yield result


if __name__ == "__main__":
    main()
