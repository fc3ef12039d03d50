"""Benchmarks of the emulator on NumPy beside its peers in one run, on one thread.

They measure and test nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from itertools import chain, product
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.rounding import Mode
from mcfsim.storage.buffers import BLOCK
from mcfsim.theorems.judge import try_block
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.verification import prepare
from tests.benchmarks import roundings, timing
from tests.benchmarks.timing import SIZE, Array, Call, Pair, median_seconds

#: Nothing is compiled here.
NUMPY: dict[str, Any] = {"compiled": False}
ADAMW = 1 << 20


def sums(x: Array) -> Iterator[Pair]:
    """2Sum in emulated bf16, beside the same algorithm on ml_dtypes arrays."""
    operands = timing.addends(x, "bfloat16")
    native = mcf.arithmetic("bfloat16", backend="native")
    theirs = partial(mcf.two_sum, native, *(x.astype(ml_dtypes.bfloat16) for x in operands))
    ours = partial(mcf.two_sum, mcf.arithmetic("bfloat16", **NUMPY), *operands)
    yield Pair("two_sum in bfloat16", ours, "same algorithm, ml_dtypes", theirs)


def statements() -> Iterator[Pair]:
    """Trying all pairs of bfloat16, beside the algorithm alone on the same pairs."""
    names = ("two_sum", "fast_two_sum", "fast_two_sum_unordered")
    for name, mode in product(names, (Mode.NEAREST_EVEN, Mode.TOWARD_ZERO, Mode.UP, Mode.DOWN)):
        check = prepare(name, "bfloat16", mode, Selection(extent="all"))
        # A share of all pairs: ranges spread evenly over them.
        parts = 64
        starts = [i * (check.domain().size // parts) for i in range(parts)]
        ranges = [(start, start + SIZE // parts) for start in starts]
        ours = partial(_each, check, ranges)
        yield Pair(f"verify {name} in bfloat16, {mode}", ours, "the algorithm alone", _alone(check, ranges))


def _each(check: Any, ranges: list[tuple[int, int]]) -> None:
    for one in ranges:
        check(*one)


def _alone(check: Any, ranges: list[tuple[int, int]]) -> Call:
    ar, domain = BlockArithmetic(check.format, check.rounding, "exact"), check.domain()

    def alone() -> None:
        for first, last in ranges:
            for _, blocks in domain.blocks(first, last):
                try_block(check.theorem, ar, blocks)

    return alone


def steps(x: Array) -> Iterator[tuple[str, Call]]:
    """One AdamW step of 2**20 parameters under each strategy."""
    for name in mcf.STRATEGIES:
        if name != "exact":
            made, received = timing.optimizer(name, x[: 2 * ADAMW], ADAMW, **NUMPY)
            yield name, partial(made.step, received, 1e-3)


def passes(x: Array, out: Array) -> dict[str, float]:
    """Nanoseconds an element of all that rounding to bfloat16 does: six passes over a block, and memory."""
    block = x[:BLOCK].copy()
    bits, code = block.view(np.int32), np.empty(BLOCK, np.int32)
    constant = np.array(16, np.int32)
    steps = {
        "maximum.reduce": partial(np.maximum.reduce, block),
        "right_shift": partial(np.right_shift, bits, constant, out=code),
        "bitwise_and, twice": partial(np.bitwise_and, code, constant, out=code),
        "add, twice": partial(np.add, code, bits, out=code),
    }
    times = {}
    for name, step in steps.items():
        calls = 100 * (2 if name.endswith("twice") else 1)
        seconds = median_seconds(lambda step=step, calls=calls: [step() for _ in range(calls)])
        times[name] = 1e9 * seconds / (100 * BLOCK)
    times["copy of the whole array"] = 1e9 * median_seconds(partial(np.copyto, out, x)) / SIZE
    return times


def main() -> None:
    warnings.simplefilter("ignore")  # of the peers
    x = timing.drawn()
    out = np.empty_like(x)
    of_roundings = [roundings.casts(x, out, **NUMPY), roundings.emulators(x, out, **NUMPY)]
    pairs = [*chain(*of_roundings, sums(x), statements())]
    table = timing.pair_table("medians")
    rows = timing.measured(track(pairs), SIZE, table)
    rates = Table("strategy", "ns/parameter", "Mparameter/s", title="one AdamW step, one thread")
    adamw = []
    for name, step in steps(x):
        seconds = median_seconds(step) / ADAMW
        adamw.append({"strategy": name, "ns_per_parameter": 1e9 * seconds})
        rates.add_row(name, f"{1e9 * seconds:.1f}", f"{1e-6 / seconds:.1f}")
    Console().print(table, rates)
    found = {"versions": timing.about("ml_dtypes", "gfloat", "pychop"), "size": SIZE, "pairs": rows}
    write_result("benchmarks", found | {"adamw": adamw, "passes": passes(x, out)})


if __name__ == "__main__":
    main()
