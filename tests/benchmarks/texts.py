"""Benchmarks of whole texts as calls of NumPy's functions, beside an operation at a time on blocks.

One thread, which takes the time of its processor; the two take turns. They measure and test nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import mcfsim as mcf
from experiments.common import processor, write_result
from mcfsim.compile.loops import Filler, Loop
from mcfsim.compile.recording import trace
from mcfsim.compile.scalars import uses
from mcfsim.optim.recording import numbers, words_of
from mcfsim.storage.buffers import BLOCK
from mcfsim.training.record import versions
from tests.benchmarks.__main__ import Array, Call, Pair

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
        a = mcf.round_to(x, name)
        b = a[::-1].copy()
        results = [np.empty_like(a), np.empty_like(a)]
        words = {"random": mcf.RandomWords(1)} if mode == "stochastic" else {}
        ar = mcf.arithmetic(name, mode, compiled=False, **words)
        filler = Loop(trace(mcf.two_sum, name, mode)).on_numpy(())
        if words:
            filler = filler.drawing({0: words["random"]})
        yield Pair(
            f"two_sum in {name}, {mode}",
            _filled(filler, [a, b], results, ar.blocks.keeps),
            PEER,
            lambda ar=ar, a=a, b=b: mcf.two_sum(ar, a, b),
        )


def _filled(
    filler: Filler, operands: list[Array], results: list[Array], keeps: Callable[[Array], bool]
) -> Call:
    def call() -> None:
        for start in range(0, SIZE, BLOCK):
            block = slice(start, start + BLOCK)
            given = [x[block] for x in operands]
            assert all(map(keeps, given))
            filler(given, [x[block] for x in results], start)

    return call


def steps(x: Array) -> Iterator[Pair]:
    """One AdamW step under each strategy."""
    weights = {"w": 0.02 * x}
    for name in mcf.STRATEGIES:
        if name != "exact":
            ours, theirs = (_step(name, weights, x, whole=whole) for whole in (True, False))
            yield Pair(f"one step of adamw, {name}", ours, PEER, theirs)


def _step(name: str, weights: dict[str, Array], x: Array, *, whole: bool) -> Call:
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), weights, ["w"], compiled=False)
    gradient = optimizer.receive({"w": 1e-3 * x})
    if whole:
        loops: dict[Any, Loop] = {}

        def filler(
            roles: Any, scalars: Any, gradient: Array, elements: int, count: int, ahead: int
        ) -> Filler:
            program = optimizer._compiled._recorded(roles, scalars, mcf.get_format(str(gradient.dtype)))
            loop = loops.setdefault(program.key, Loop(program))
            found = loop.on_numpy([use.number(numbers(scalars)) for use in uses(program)])
            return found.drawing(words_of(roles, count)) if program.drawn else found

        optimizer._compiled.filler = filler  # type: ignore[method-assign]
    return lambda: optimizer.step(gradient, 1e-3)


def measured(pair: Pair) -> tuple[float, float]:
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
    """Run all, print a table, write the result file."""
    x = np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)
    table = Table(
        "text", "ns/element", PEER, "times as fast", title="whole texts on NumPy; medians of processor time"
    )
    rows: list[dict[str, Any]] = []
    for group in (sums(x), steps(x)):
        for pair in group:
            mine, other = (1e9 * seconds / SIZE for seconds in measured(pair))
            table.add_row(pair.operation, f"{mine:.2f}", f"{other:.2f}", f"{other / mine:.2f}")
            rows.append(
                {
                    "operation": pair.operation,
                    "ns": mine,
                    "peer": PEER,
                    "peer_ns": other,
                    "ratio": other / mine,
                }
            )
    Console().print(table)
    about = {**versions(), "processor": processor(), "threads": 1}
    write_result("texts", {"versions": about, "size": SIZE, "pairs": rows})


if __name__ == "__main__":
    main()
