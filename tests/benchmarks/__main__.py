"""Benchmarks of the emulator beside its peers in one run, on one thread; they measure and test nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import mcfsim as mcf
from experiments.common import processor, write_result
from mcfsim.run import versions

SIZE = 1 << 24
REPEATS = 7


def median_seconds(function: Callable[[], Any]) -> float:
    """Return the median time of several calls after one that is not counted."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def roundings(x: np.ndarray[Any, Any]) -> list[tuple[str, str, Callable[[], Any], Callable[[], Any]]]:
    """Rounding float32 to a format, beside the cast of the library that has the format."""
    peers = {
        "bfloat16": ("ml_dtypes", ml_dtypes.bfloat16),
        "float16": ("numpy", np.float16),
        "float8_e4m3fn": ("ml_dtypes", ml_dtypes.float8_e4m3fn),
        "float8_e5m2": ("ml_dtypes", ml_dtypes.float8_e5m2),
    }
    out = np.empty_like(x)
    return [
        (
            f"round float32 to {name}",
            f"{library} cast",
            lambda name=name: mcf.round_to(x, name, out=out),
            lambda dtype=dtype: x.astype(dtype),
        )
        for name, (library, dtype) in peers.items()
    ]


def sums(x: np.ndarray[Any, Any]) -> list[tuple[str, str, Callable[[], Any], Callable[[], Any]]]:
    """2Sum in emulated bf16, beside the same text on ml_dtypes arrays."""
    a = mcf.round_to(x, "bfloat16")
    b = a[::-1].copy()
    emulated, native = mcf.arithmetic("bfloat16"), mcf.arithmetic("bfloat16", backend="native")
    a_native, b_native = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    return [
        (
            "two_sum in bfloat16",
            "same text, ml_dtypes arrays",
            lambda: mcf.two_sum(emulated, a, b),
            lambda: mcf.two_sum(native, a_native, b_native),
        )
    ]


def steps(x: np.ndarray[Any, Any]) -> list[tuple[str, float]]:
    """One AdamW step of 2**20 parameters under each strategy."""
    weights, gradient = {"w": 0.02 * x[: 1 << 20]}, {"w": 1e-3 * x[1 << 20 : 2 << 20]}
    rows = []
    for name in mcf.STRATEGIES:
        if name != "exact":
            optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), weights, ["w"])
            received = optimizer.receive(gradient)
            rows.append((name, median_seconds(lambda o=optimizer, g=received: o.step(g, 1e-3)) / (1 << 20)))
    return rows


def main() -> None:
    """Run all, print two tables, write the result file."""
    x = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    table = Table("operation", "peer", "ns/element", "peer's", "times as fast", title="one thread, medians")
    pairs = []
    for name, peer, ours, theirs in [*roundings(x), *sums(x)]:
        mine, other = (1e9 * median_seconds(f) / SIZE for f in (ours, theirs))
        pairs.append({"operation": name, "peer": peer, "ns": mine, "peer_ns": other, "ratio": other / mine})
        table.add_row(name, peer, f"{mine:.2f}", f"{other:.2f}", f"{other / mine:.2f}")
    rates = Table("strategy", "ns/parameter", "Mparameter/s", title="one AdamW step, one thread")
    optimizer = []
    for name, seconds in steps(x):
        optimizer.append({"strategy": name, "ns_per_parameter": 1e9 * seconds})
        rates.add_row(name, f"{1e9 * seconds:.1f}", f"{1e-6 / seconds:.1f}")
    console = Console()
    console.print(table)
    console.print(rates)
    about = {**versions(), "ml_dtypes": ml_dtypes.__version__, "processor": processor(), "threads": 1}
    write_result("benchmarks", {"versions": about, "size": SIZE, "pairs": pairs, "adamw": optimizer})


if __name__ == "__main__":
    main()
