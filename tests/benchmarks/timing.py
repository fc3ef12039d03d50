"""An operation beside its peer: how both are timed, and the row that it makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from experiments.common import processor
from mcfsim.training.record import versions

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


@lru_cache
def installed(name: str) -> Any:
    """Return a peer's module, or None where it is not installed, which is printed."""
    try:
        return import_module(name)
    except ImportError:
        print(f"{name} is not installed: its rows are left out")
        return None


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


def pair_table(title: str) -> Table:
    """Return the table that `measured` adds to."""
    return Table("operation", "ns/element", "peer", "peer's", "times as fast", title=title)


def measured(pair: Pair, size: int, table: Table) -> dict[str, Any]:
    """Time a pair, in nanoseconds an element; add it to a table, and return it for the result file."""
    mine, other = (1e9 * median_seconds(call) / size for call in (pair.ours, pair.theirs))
    table.add_row(pair.operation, f"{mine:.2f}", pair.peer, f"{other:.2f}", f"{other / mine:.2f}")
    return {
        "operation": pair.operation,
        "ns": mine,
        "peer": pair.peer,
        "peer_ns": other,
        "ratio": other / mine,
    }


def about(*packages: str) -> dict[str, Any]:
    """Return what times depend on: the machine, and the versions of what is installed."""
    found: dict[str, Any] = dict(versions())
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**found, "processor": processor(), "threads": 1}
