"""An operation beside its peer: how both are timed, and the row that it makes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

import mcfsim as mcf
from experiments.common import processor
from mcfsim.storage.sweeps.installed import versions

SIZE = 1 << 24
REPEATS = 7
#: Seconds after which nothing is called again.
LONG = 5.0

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]


class Pair(NamedTuple):
    """An operation beside its peer."""

    operation: str
    ours: Call
    peer: str
    theirs: Call


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of what several benchmarks are asked."""
    made = argparse.ArgumentParser(description=text)
    made.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    made.add_argument("--write", action="store_true", help="write the result file")
    return made


@lru_cache
def installed(name: str) -> Any:
    """Return a peer's module, or None where it is not installed, which is printed."""
    try:
        return import_module(name)
    except ImportError:
        print(f"{name} is not installed: its rows are left out")
        return None


def drawn(size: int = SIZE) -> Array:
    """Return so many random numbers."""
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)


def addends(x: Array, name: str) -> tuple[Array, Array]:
    """Return operands of a format for 2Sum."""
    a = mcf.round_to(x, name)
    return a, a[::-1].copy()


def optimizer(name: str, x: Array, parameters: int, **options: Any) -> tuple[mcf.Optimizer, Array]:
    """Return an AdamW optimizer of so many parameters, and a gradient for it."""
    weights, gradient = {"w": 0.02 * x[:parameters]}, {"w": 1e-3 * x[-parameters:]}
    made = mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), weights, ["w"], **options)
    return made, made.receive(gradient)


def median_seconds(function: Call) -> float:
    """Return the median time of several calls; a first one is not counted, unless it is the only one."""
    return median_and_least(function)[0]


def median_and_least(function: Call) -> tuple[float, float]:
    """Return the median time of several calls, and the least."""
    times: list[float] = []
    while len(times) <= REPEATS and sum(times) < LONG:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    counted = times[1:] or times
    return float(np.median(counted)), min(counted)


def medians(pair: Pair) -> tuple[float, float]:
    """Return the median seconds of both."""
    return median_seconds(pair.ours), median_seconds(pair.theirs)


def pair_table(title: str) -> Table:
    """Return the table that `measured` adds to."""
    return Table("operation", "ns/element", "peer", "peer's", "times as fast", title=title)


def measured(
    pairs: Iterable[Pair], size: int, table: Table, seconds: Callable[[Pair], tuple[float, float]] = medians
) -> list[dict[str, Any]]:
    """Time pairs, in nanoseconds an element; add them to a table, and return them for the result file."""
    rows = []
    for pair in pairs:
        name, peer, (mine, other) = pair.operation, pair.peer, (1e9 * x / size for x in seconds(pair))
        ratio = other / mine
        table.add_row(name, f"{mine:.2f}", peer, f"{other:.2f}", f"{ratio:.2f}")
        rows.append({"operation": name, "ns": mine, "peer": peer, "peer_ns": other, "ratio": ratio})
    return rows


def about(*packages: str) -> dict[str, Any]:
    """Return what times depend on: the machine, and the versions of what is installed."""
    found: dict[str, Any] = dict(versions())
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "processor": processor(), "threads": 1}
