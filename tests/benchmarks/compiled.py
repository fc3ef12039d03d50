"""Benchmarks of compiled loops, on one thread but where two are said: they measure and test nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial

import ml_dtypes
import numpy as np
from rich.console import Console

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
from tests.benchmarks import roundings, steps, timing
from tests.benchmarks.timing import SIZE, Array, Pair

#: What is timed in a fresh process: the first call, compiled or loaded.
_FIRST = """
import time, numpy as np, mcfsim as mcf
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


def modes(x: Array, out: Array) -> Iterator[Pair]:
    """Rounding float32, beside a copy of the array."""
    words, copy = mcf.RandomWords(1), partial(np.copyto, out, x)
    for name in roundings.CASTS:
        for mode in ("nearest_even", "nearest_away", "toward_zero", "up", "to_odd", "stochastic"):
            rounded = partial(mcf.round_to, x, name, mode, random=words, out=out, compiled=True)
            yield Pair(f"round float32 to {name}, {mode}", rounded, "copy float32", copy)


def sums(x: Array) -> Iterator[Pair]:
    """2Sum in bf16, beside the same text on ml_dtypes arrays: the call, and the loop alone."""
    a, b = timing.addends(x, "bfloat16")
    native = mcf.arithmetic("bfloat16", backend="native")
    other = [x.astype(ml_dtypes.bfloat16) for x in (a, b)]
    results = [np.empty_like(a), np.empty_like(a)]
    codes = [mcf.codec.codes_of(array) for array in other]
    coded = [np.empty_like(array) for array in codes]
    peer, theirs = "same text to nearest, ml_dtypes", partial(mcf.two_sum, native, *other)
    for mode in ("nearest_even", "toward_zero", "up", "down"):
        ar, program = mcf.arithmetic("bfloat16", mode, compiled=True), trace(mcf.two_sum, "bfloat16", mode)
        loop, packed = (Loop(program, checked=True, packed=x).with_scalars({}) for x in (False, True))
        for operation, ours in {
            f"two_sum in bfloat16, {mode}": partial(mcf.two_sum, ar, a, b),
            f"the same, {mode}, into arrays that are there": partial(loop, [a, b], results),
            f"the same, {mode}, on codes as ml_dtypes has them": partial(packed, codes, coded),
        }.items():
            yield Pair(operation, ours, peer, theirs)


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
    warnings.simplefilter("ignore")  # of the peers
    x, start = timing.drawn(), time.perf_counter()
    out, table, rows = np.empty_like(x), timing.pair_table("compiled; medians"), []
    for group, size in (
        (modes(x, out), SIZE),
        (roundings.casts(x, out, compiled=True), SIZE),
        (roundings.emulators(x, out, compiled=True), SIZE),
        (sums(x), SIZE),
        (steps.steps(x), steps.PARAMETERS),
        (roundings.threads(x, out, compiled=True), SIZE),
        (steps.threads(x), steps.PARAMETERS),
    ):
        rows += timing.measured(group, size, table)
    first = first_calls()
    Console().print(table, first, f"{time.perf_counter() - start:.0f} s in all")
    versions = timing.about("ml_dtypes", "llvmlite", "gfloat", "pychop", "torch")
    found = {"versions": versions, "size": SIZE, "parameters": steps.PARAMETERS}
    write_result("compiled", found | {"pairs": rows, "first": first})


if __name__ == "__main__":
    main()
