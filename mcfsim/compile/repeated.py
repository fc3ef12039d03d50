"""Launches that a captured CUDA graph repeats, as they are, on the same addresses with the same arguments.

So whatever changes from one to the next lies in the device's memory, and is handed over before each of them.
As what a real scalar enters may change with its number, and with that the kernel. A graph cannot choose; so
it launches two kernels, one that takes scalars in the cheapest way, and one that takes almost all numbers;
one of them finds an empty table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mcfsim.compile.kernel import TableKernel
from mcfsim.compile.launch import sent, shared_by_all
from mcfsim.compile.vector_tables import DevicePart, Rows, TableLauncher
from mcfsim.random import RandomWords

if TYPE_CHECKING:
    import torch


class Chosen(NamedTuple):
    """A kernel of those that are launched, with the real scalars of the next launch put in."""

    place: int
    ready: TableLauncher


class GraphLaunch:
    """A launch of a kernel that a captured graph may repeat.

    After each launch its tables are empty. So a launch to which nothing was handed over changes nothing.

    Parameters
    ----------
    kernel : TableKernel
    numbers : sequence of number
        The real scalars of a launch, as `TableKernel.with_numbers` takes them.
    rows : sequence of Rows
        What it works on.
    elements : int
        How many of them an instance works on.
    words : mapping of int to RandomWords
        Of each source of the program.
    device : device
    """

    def __init__(
        self,
        kernel: TableKernel,
        numbers: Sequence[Any],
        rows: Sequence[Rows],
        elements: int,
        words: Mapping[int, RandomWords],
        device: torch.device,
    ) -> None:
        import torch

        self._kernel, self._rows, self._elements = kernel, rows, elements
        self._ways = list(dict.fromkeys((kernel.ways(numbers), kernel.general(numbers))))
        self._ready = [kernel.with_numbers(numbers, ways) for ways in self._ways]
        self._shared = [shared_by_all(x, device, x.streams(words)) for x in self._ready]
        owners = [sent(torch.from_numpy(part.owners), device) for part in rows]
        self._parts = [
            [
                DevicePart(torch.zeros(part.table.size, dtype=torch.int64, device=device), kept, part.aligned)
                for part, kept in zip(rows, owners, strict=True)
            ]
            for _ in self._ways
        ]

    def fits(self, rows: Sequence[Rows], elements: int) -> bool:
        """Return whether it may work on other rows: each instance has as large a share, aligned alike."""
        return (len(rows), elements) == (len(self._rows), self._elements) and all(
            one.aligned == other.aligned
            and one.table.size == other.table.size
            and np.array_equal(one.owners, other.owners)
            for one, other in zip(rows, self._rows, strict=True)
        )

    def chosen(self, numbers: Sequence[Any]) -> Chosen:
        """Return which of the kernels takes some real scalars.

        Raises
        ------
        UnsupportedFormatError
            If none does.
        """
        ways = self._kernel.ways(numbers)
        place = self._ways.index(ways) if ways in self._ways else len(self._ways) - 1
        return Chosen(place, self._kernel.with_numbers(numbers, self._ways[place]))

    def hand_over(self, chosen: Chosen, rows: Sequence[Rows], words: Mapping[int, RandomWords]) -> None:
        """Say what the next launch works on, with which numbers and words."""
        import torch

        place, ready = chosen
        self._empty()
        parts = self._parts[place]
        shared = shared_by_all(ready, parts[0].table.device, ready.streams(words))
        for kept, given in zip(self._shared[place], shared, strict=True):
            kept.copy_(given)
        for part, given in zip(parts, rows, strict=True):
            part.table.copy_(sent(torch.from_numpy(given.table), part.table.device))

    def launch(self) -> None:
        """Work on what was handed over."""
        for ready, parts, shared in zip(self._ready, self._parts, self._shared, strict=True):
            ready.launch(parts, self._elements, shared)
        self._empty()

    def _empty(self) -> None:
        for parts in self._parts:
            for part in parts:
                part.table.zero_()
