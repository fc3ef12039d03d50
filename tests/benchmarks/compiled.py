"""Benchmarks of compiled loops, on one thread but where two are said: they measure and test nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
from rich.console import Console

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.compile.loops import Loop
from mcfsim.compile.recording import trace
from tests.benchmarks import steps
from tests.benchmarks.emulators import emulators
from tests.benchmarks.timing import SIZE, Array, Pair, about, measured, pair_table

COPY = "copy float32"
FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")

#: What is timed in a fresh process: the first call, compiled or loaded.
_FIRST = """
import time, numpy as np, numba, mcfsim as mcf
from mcfsim.compile import trace
x = np.ones(1 << 15, np.float32)
start = time.perf_counter()
{call}
print(time.perf_counter() - start)
"""
_STEP = "mcf.Optimizer(mcf.AdamW(), mcf.strategy('{}'), {{'w': x}}, ['w'], compiled=True).step(x, 1e-3)"
_CALLS = {
    "two_sum": "mcf.two_sum(mcf.arithmetic('bfloat16', compiled=True), x, x)",
    "two_sum, upward": "mcf.two_sum(mcf.arithmetic('bfloat16', 'up', compiled=True), x, x)",
    "adamw, plain": _STEP.format("plain"),
    "adamw, collage-plus": _STEP.format("collage-plus"),
}


def roundings(x: Array, out: Array) -> Iterator[Pair]:
    """Rounding float32, beside a copy of the array."""
    words = mcf.RandomWords(1)
    for name in FORMATS:
        for mode in ("nearest_even", "nearest_away", "toward_zero", "up", "to_odd", "stochastic"):
            yield Pair(
                f"round float32 to {name}, {mode}",
                lambda name=name, mode=mode: mcf.round_to(
                    x, name, mode, random=words, out=out, compiled=True
                ),
                COPY,
                lambda: np.copyto(out, x),
            )


def casts(x: Array, out: Array) -> Iterator[Pair]:
    """Rounding float32 to nearest, beside the cast of the library that has the format, and beside NumPy."""
    dtypes = (ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    for name, dtype in zip(FORMATS, dtypes, strict=True):
        ours = lambda name=name: mcf.round_to(x, name, out=out, compiled=True)  # noqa: E731
        peer = "NumPy cast" if dtype is np.float16 else "ml_dtypes cast"
        yield Pair(f"round float32 to {name}", ours, peer, lambda dtype=dtype: x.astype(dtype))
        numpy = lambda name=name: mcf.round_to(x, name, out=out, compiled=False)  # noqa: E731
        yield Pair(f"round float32 to {name}", ours, "not compiled", numpy)


def sums(x: Array) -> Iterator[Pair]:
    """2Sum in bf16, beside the same text on ml_dtypes arrays: the call, and the loop alone."""
    a = mcf.round_to(x, "bfloat16")
    b = a[::-1].copy()
    native = mcf.arithmetic("bfloat16", backend="native")
    other = [x.astype(ml_dtypes.bfloat16) for x in (a, b)]
    results = [np.empty_like(a), np.empty_like(a)]
    codes = [mcf.codec.codes_of(array) for array in other]
    coded = [np.empty_like(array) for array in codes]
    theirs = lambda: mcf.two_sum(native, *other)  # noqa: E731
    for mode in ("nearest_even", "toward_zero", "up", "down"):
        ar = mcf.arithmetic("bfloat16", mode, compiled=True)
        loop = Loop(trace(mcf.two_sum, "bfloat16", mode), checked=True).with_scalars({})
        peer = "same text to nearest, ml_dtypes"
        yield Pair(f"two_sum in bfloat16, {mode}", lambda ar=ar: mcf.two_sum(ar, a, b), peer, theirs)
        yield Pair(
            f"the same, {mode}, into arrays that are there",
            lambda loop=loop: loop([a, b], results),
            peer,
            theirs,
        )
        packed = Loop(trace(mcf.two_sum, "bfloat16", mode), checked=True, packed=True).with_scalars({})
        yield Pair(
            f"the same, {mode}, on codes as ml_dtypes has them",
            lambda packed=packed: packed(codes, coded),
            peer,
            theirs,
        )


def threads(x: Array, out: Array) -> Iterator[Pair]:
    """Two threads beside one."""
    for name in ("bfloat16", "float8_e4m3fn"):
        one, two = (
            lambda name=name, threads=threads: mcf.round_to(x, name, out=out, threads=threads, compiled=True)
            for threads in (1, 2)
        )
        yield Pair(f"round float32 to {name}, two threads", two, "one thread", one)


def first_calls() -> dict[str, dict[str, float]]:
    """Return the seconds of the first call in a fresh process: compiled, and loaded from the cache."""
    found: dict[str, dict[str, float]] = {}
    for name, call in _CALLS.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "XDG_CACHE_HOME": folder, "PYTHONDONTWRITEBYTECODE": ""}
            run = [sys.executable, "-c", _FIRST.format(call=call)]
            cold, *loaded = (
                float(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)
                for _ in range(4)
            )
        found[name] = {"compiled": cold, "loaded": float(np.median(loaded))}
    return found


def main() -> None:
    """Run all, print two tables, write the result file."""
    warnings.simplefilter("ignore")  # of the peers
    x = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    out = np.empty_like(x)
    table = pair_table("compiled; medians")
    rows = []
    start = time.perf_counter()
    for group, size in (
        (roundings(x, out), SIZE),
        (casts(x, out), SIZE),
        (emulators(x, out, compiled=True), SIZE),
        (sums(x), SIZE),
        (steps.steps(x), steps.PARAMETERS),
        (threads(x, out), SIZE),
        (steps.threads(x), steps.PARAMETERS),
    ):
        rows += [measured(pair, size, table) for pair in group]
    first = first_calls()
    console = Console()
    console.print(table)
    console.print(first, f"{time.perf_counter() - start:.0f} s in all")
    result = {
        "versions": about("ml_dtypes", "numba", "llvmlite", "gfloat", "pychop", "torch"),
        "size": SIZE,
        "parameters": steps.PARAMETERS,
        "pairs": rows,
        "first": first,
    }
    write_result("compiled", result)


if __name__ == "__main__":
    main()
