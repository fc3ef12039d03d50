"""Benchmarks of whole algorithms as calls of NumPy's functions, beside an operation at a time on blocks.

One thread, which takes the time of its processor; the two take turns. They measure and test nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console

import mcfsim as mcf
from experiments.common import write_result
from mcfsim.compile.loops import BoundLoop, Loop
from mcfsim.compile.tracing import trace
from mcfsim.optim.step_programs import BoundStage, numbers, words_of
from mcfsim.storage.buffers import BLOCK
from tests.benchmarks import timing
from tests.benchmarks.timing import Array, Call, Pair

SIZE = 1 << 21
REPEATS = 5
SUMS = (
    *(("bfloat16", mode) for mode in ("nearest_even", "up", "stochastic")),
    *(("float8_e4m3fn", mode) for mode in ("nearest_even", "up")),
    *((name, "nearest_even") for name in ("tf32", "posit16", "int8")),
)
PEER = "an operation at a time"


def sums(x: Array) -> Iterator[Pair]:
    """2Sum: the text as a whole, checks of its operands included, and the operations."""
    for name, mode in SUMS:
        operands = timing.addends(x, name)
        words = {"random": mcf.RandomWords(1)} if mode == "stochastic" else {}
        ar = mcf.arithmetic(name, mode, compiled=False, **words)
        bound_loop = Loop(trace(mcf.two_sum, name, mode)).on_numpy(())
        if words:
            bound_loop = bound_loop.drawing({0: words["random"]})
        whole = _filled(bound_loop, operands, ar.blocks.keeps)
        yield Pair(f"two_sum in {name}, {mode}", whole, PEER, partial(mcf.two_sum, ar, *operands))


def _filled(bound_loop: BoundLoop, operands: tuple[Array, ...], keeps: Callable[[Array], bool]) -> Call:
    results = [np.empty_like(x) for x in operands]

    def call() -> None:
        for start in range(0, SIZE, BLOCK):
            block = slice(start, start + BLOCK)
            given = [x[block] for x in operands]
            assert all(map(keeps, given))
            bound_loop(given, [x[block] for x in results], start)

    return call


def steps(x: Array) -> Iterator[Pair]:
    """One AdamW step under each strategy."""
    for name in mcf.STRATEGIES:
        if name != "exact":
            ours, theirs = (_step(name, x, whole=whole) for whole in (True, False))
            yield Pair(f"one step of adamw, {name}", ours, PEER, theirs)


def _step(name: str, x: Array, *, whole: bool) -> Call:
    optimizer, gradient = timing.optimizer(name, x, SIZE, compiled=False)
    if whole:
        loops: dict[Any, Loop] = {}

        def bound_loops(
            roles: Any, scalars: Any, gradient: Array, shape: tuple[int, ...], count: int, ahead: int
        ) -> dict[int, BoundStage]:
            program = optimizer._compiled._programs.of(roles, scalars, mcf.get_format(str(gradient.dtype)))
            loop = loops.setdefault(program.key, Loop(program))
            found = loop.on_numpy(program.reals(numbers(scalars)))
            return {0: BoundStage(found.drawing(words_of(roles, count)) if program.drawn else found, {})}

        optimizer._compiled.bound_loops = bound_loops  # type: ignore[method-assign]
    return partial(optimizer.step, gradient, 1e-3)


def in_turns(pair: Pair) -> tuple[float, float]:
    """Return the median seconds of the processor of both, which take turns."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(1 + REPEATS):
        for found, call in zip(times, (pair.ours, pair.theirs), strict=True):
            start = time.thread_time()
            call()
            found.append(time.thread_time() - start)
    mine, other = (float(np.median(found[1:])) for found in times)
    return mine, other


def main() -> None:
    x = timing.drawn(SIZE)
    table = timing.pair_table("whole algorithms on NumPy; medians of processor time")
    rows = [row for group in (sums(x), steps(x)) for row in timing.measured(group, SIZE, table, in_turns)]
    Console().print(table)
    write_result("algorithms", {"versions": timing.about(), "size": SIZE, "pairs": rows})


if __name__ == "__main__":
    main()
