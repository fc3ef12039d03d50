"""Benchmarks of the emulator on NumPy beside its peers in one run, on one thread but where two are said.

They measure and test nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.rounding import DETERMINISTIC, Mode
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import prepare
from tests.benchmarks.emulators import emulators
from tests.benchmarks.timing import SIZE, Array, Call, Pair, about, measured, median_seconds, pair_table

#: Nothing is compiled here.
NUMPY: dict[str, Any] = {"compiled": False}


def casts(x: Array, out: Array) -> Iterator[Pair]:
    """Rounding float32 to a format, beside the cast of the library that has the format."""
    peers = {
        "bfloat16": ("ml_dtypes cast", ml_dtypes.bfloat16),
        "float16": ("NumPy cast", np.float16),
        "float8_e4m3fn": ("ml_dtypes cast", ml_dtypes.float8_e4m3fn),
        "float8_e5m2": ("ml_dtypes cast", ml_dtypes.float8_e5m2),
    }
    for name, (peer, dtype) in peers.items():
        yield Pair(
            f"round float32 to {name}",
            lambda name=name: mcf.round_to(x, name, out=out, **NUMPY),
            peer,
            lambda dtype=dtype: x.astype(dtype),
        )


def modes(x: Array, out: Array) -> Iterator[Pair]:
    """Every other mode, beside nearest even."""
    words = mcf.RandomWords(1)
    for name in ("bfloat16", "float16", "float8_e4m3fn"):
        nearest = lambda name=name: mcf.round_to(x, name, out=out, **NUMPY)  # noqa: E731
        for mode in DETERMINISTIC:
            if mode is not Mode.NEAREST_EVEN:
                rounded = lambda name=name, mode=mode: mcf.round_to(x, name, mode, out=out, **NUMPY)  # noqa: E731
                yield Pair(f"round to {name}, {mode}", rounded, "nearest_even", nearest)
        drawn = lambda name=name: mcf.round_to(x, name, "stochastic", random=words, out=out, **NUMPY)  # noqa: E731
        yield Pair(f"round to {name}, stochastic, words drawn", drawn, "nearest_even", nearest)


def sums(x: Array) -> Iterator[Pair]:
    """2Sum in emulated bf16, beside the same text on ml_dtypes arrays."""
    a = mcf.round_to(x, "bfloat16")
    b = a[::-1].copy()
    emulated, native = mcf.arithmetic("bfloat16", **NUMPY), mcf.arithmetic("bfloat16", backend="native")
    a_native, b_native = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    ours = lambda: mcf.two_sum(emulated, a, b)  # noqa: E731
    yield Pair(
        "two_sum in bfloat16", ours, "same text, ml_dtypes", lambda: mcf.two_sum(native, a_native, b_native)
    )
    pair = mcf.arithmetic("bfloat16", threads=2, **NUMPY)
    yield Pair("two_sum in bfloat16, two threads", lambda: mcf.two_sum(pair, a, b), "one thread", ours)


def threads(x: Array, out: Array) -> Iterator[Pair]:
    """Two threads beside one, and what memory allows: a copy."""
    for name in ("bfloat16", "float8_e4m3fn"):
        yield Pair(
            f"round to {name}, two threads",
            lambda name=name: mcf.round_to(x, name, out=out, threads=2, **NUMPY),
            "one thread",
            lambda name=name: mcf.round_to(x, name, out=out, **NUMPY),
        )

    def copy_halves() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(np.copyto, np.split(out, 2), np.split(x, 2)))

    yield Pair("copy float32, two threads", copy_halves, "one thread", lambda: np.copyto(out, x))


def statements() -> Iterator[Pair]:
    """Trying all pairs of bfloat16, beside the algorithm alone on the same pairs."""
    for name in ("two_sum", "fast_two_sum", "fast_two_sum_unordered"):
        for mode in (Mode.NEAREST_EVEN, Mode.TOWARD_ZERO, Mode.UP, Mode.DOWN):
            check = prepare(name, "bfloat16", mode, Selection(extent="all"))
            ar = BlockArithmetic(check.format, check.rounding, "exact")
            # A share of all pairs: ranges spread evenly over them.
            domain, parts = check.domain(), 64
            starts = [i * (domain.size // parts) for i in range(parts)]
            ranges = [(start, start + SIZE // parts) for start in starts]

            def alone(check=check, ar=ar, domain=domain, ranges=ranges) -> None:
                for first, last in ranges:
                    for _, blocks in domain.blocks(first, last):
                        try_block(check.theorem, ar, blocks)

            yield Pair(
                f"verify {name} in bfloat16, {mode}",
                lambda check=check, ranges=ranges: [check(*one) for one in ranges],
                "the algorithm alone",
                alone,
            )


def steps(x: Array) -> Iterator[tuple[str, Call]]:
    """One AdamW step of 2**20 parameters under each strategy."""
    weights, gradient = {"w": 0.02 * x[: 1 << 20]}, {"w": 1e-3 * x[1 << 20 : 2 << 20]}
    for name in mcf.STRATEGIES:
        if name != "exact":
            optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), weights, ["w"], **NUMPY)
            received = optimizer.receive(gradient)
            yield name, lambda o=optimizer, g=received: o.step(g, 1e-3)


def passes(x: Array, out: Array) -> dict[str, float]:
    """Nanoseconds an element of all that rounding to bfloat16 does: six passes over a block, and memory."""
    block = x[:BLOCK].copy()
    bits, code = block.view(np.int32), np.empty(BLOCK, np.int32)
    constant = np.array(16, np.int32)
    steps = {
        "maximum.reduce": lambda: np.maximum.reduce(block),
        "right_shift": lambda: np.right_shift(bits, constant, out=code),
        "bitwise_and, twice": lambda: np.bitwise_and(code, constant, out=code),
        "add, twice": lambda: np.add(code, bits, out=code),
    }
    times = {}
    for name, step in steps.items():
        calls = 100 * (2 if name.endswith("twice") else 1)
        seconds = median_seconds(lambda step=step, calls=calls: [step() for _ in range(calls)])
        times[name] = 1e9 * seconds / (100 * BLOCK)
    times["copy of the whole array"] = 1e9 * median_seconds(lambda: np.copyto(out, x)) / SIZE
    return times


def main() -> None:
    """Run all, print two tables, write the result file."""
    warnings.simplefilter("ignore")  # of the peers
    x = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    out = np.empty_like(x)
    table = pair_table("medians")
    groups = (
        casts(x, out),
        emulators(x, out, **NUMPY),
        modes(x, out),
        sums(x),
        threads(x, out),
        statements(),
    )
    rows = [measured(pair, SIZE, table) for pair in track([pair for group in groups for pair in group])]
    rates = Table("strategy", "ns/parameter", "Mparameter/s", title="one AdamW step, one thread")
    optimizer = []
    for name, step in steps(x):
        seconds = median_seconds(step) / (1 << 20)
        optimizer.append({"strategy": name, "ns_per_parameter": 1e9 * seconds})
        rates.add_row(name, f"{1e9 * seconds:.1f}", f"{1e-6 / seconds:.1f}")
    console = Console()
    console.print(table)
    console.print(rates)
    result = {
        "versions": about("ml_dtypes", "gfloat", "pychop"),
        "size": SIZE,
        "pairs": rows,
        "adamw": optimizer,
        "passes": passes(x, out),
    }
    write_result("benchmarks", result)


if __name__ == "__main__":
    main()
