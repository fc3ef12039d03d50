"""A step on tensors of a GPU: one kernel, launched once for all parameters of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import torch

from mcfsim.backends.factory import arithmetic
from mcfsim.backends.strung_tensors import TORCH_DTYPES, torch_dtype
from mcfsim.compile.kernel import TableKernel
from mcfsim.compile.program import Program
from mcfsim.compile.scalars import uses
from mcfsim.compile.torch_kernels import check_kernels
from mcfsim.compile.torch_lines import TensorLines
from mcfsim.compile.vector_tables import Table, TableLauncher
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.step_programs import StepPrograms, as_bits, numbers, words_of
from mcfsim.random import RandomWords
from mcfsim.torch.moved import Moved, Stores

#: The vectors of a parameter: its state, and the gradient.
Vectors = list[torch.Tensor]


class DeviceStep:
    """Steps of an optimizer, see `Stores`: by a kernel where Triton serves, else by PyTorch's operations.

    Programs, kernels and tables of addresses are kept from step to step.
    """

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._programs = lru_cache(maxsize=64)(partial(StepPrograms, strategy=stores.strategy, closed=True))
        self._lines: dict[Any, TableKernel | TensorLines] = {}
        self._tables: dict[Any, tuple[Any, Table]] = {}

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters of one device."""
        stores, device = self.stores, moved[0].gradient.device
        program, scalars = self.program(hyper, count, rate)
        moved = [x for x in moved if x.gradient.numel()]
        sets = [self.vectors(x) for x in moved]
        self._fill(self.line(program, device), scalars, moved, sets, words_of(stores.roles, count))
        for x, vectors in zip(moved, sets, strict=True):
            self.put_back(x, vectors)
            stores.requantize(x.tensors)

    def asked(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the update that step number `count` asks for, for each parameter a vector of float64."""
        stores = self.stores
        program, scalars = self.program(hyper, count, rate)
        ready = TensorLines(program, stores.scalars, as_bits(self.stores.strategy, program)).with_numbers(
            scalars
        )
        words = words_of(stores.roles, count)
        fmt = stores.roles.update.format
        assert fmt is not None
        dtype, found = torch_dtype(fmt), []
        for x in moved:
            vectors = self.vectors(x)
            update = torch.empty(x.gradient.numel(), dtype=dtype, device=x.gradient.device)
            ready(vectors, [*(torch.empty_like(y) for y in vectors[:-1]), update], x.first, words)
            found.append(update.to(torch.float64))
        return found

    def _fill(
        self,
        line: TableKernel | TensorLines,
        scalars: Sequence[Any],
        moved: Sequence[Moved],
        sets: Sequence[Vectors],
        words: Mapping[int, RandomWords],
    ) -> None:
        """Let a line work on the vectors of parameters."""
        ready, starts = line.with_numbers(scalars), [x.first for x in moved]
        if isinstance(ready, TableLauncher):
            if sets:
                ready(self._table(ready, sets, starts), words)
        else:
            for vectors, start in zip(sets, starts, strict=True):
                ready(vectors, vectors[:-1], start, words)

    def program(self, hyper: Declaration, count: int, rate: float) -> tuple[Program, list[Any]]:
        """Return a step as a program, and its real scalars."""
        stores = self.stores
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        program = self._programs(hyper).of(stores.roles, scalars, stores.gradient)
        return program, [use.number(numbers(scalars)) for use in uses(program)]

    def _received(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the strategy's format, rounded if it is in another."""
        fmt, gradient = self.stores.gradient, gradient.detach().resolve_neg()
        if TORCH_DTYPES.get(gradient.dtype) == fmt:
            return gradient
        ar = arithmetic(fmt, backend="torch", device=gradient.device)
        return ar.round(gradient).to(torch_dtype(fmt))

    def vectors(self, x: Moved) -> Vectors:
        """Return the numbers of a parameter, and its gradient, as vectors, of which some may be copies."""
        ordered = [self.stores.numbers(x.tensors, name) for name in chain(*self.stores.names)]
        return [*ordered, self._received(x.gradient).reshape(-1).contiguous()]

    def put_back(self, x: Moved, vectors: Vectors) -> None:
        """Write vectors that are copies where they came from."""
        for name, vector in zip(chain(*self.stores.names), vectors, strict=False):
            self.stores.keep(x.tensors, name, vector)

    def line(self, program: Program, device: torch.device) -> TableKernel | TensorLines:
        """Return the line of a step, made once for a program; the update that it asks for is not kept."""
        key = program.key, device
        if key not in self._lines:
            kept = replace(program, results=program.results[:-1])
            given = kept, self.stores.scalars, as_bits(self.stores.strategy, program)
            self._lines[key] = TensorLines(*given)
            with suppress(ImportError, ValueError):
                check_kernels(device)
                self._lines[key] = TableKernel(*given, packed=True, hardware=True)
        return self._lines[key]

    def _table(self, ready: TableLauncher, sets: Sequence[Vectors], starts: Sequence[int]) -> Table:
        """Return the table of some vectors: that of the last step if they lie where they lay."""
        place = [x.data_ptr() for vectors in sets for x in vectors], starts
        key = ready.source, len(sets), starts[0]
        kept = self._tables.get(key)
        if kept is None or kept[0] != place:
            for vectors in sets:
                ready.checked(vectors, vectors[:-1])
            kept = self._tables[key] = place, Table(taken(sets), starts)
        return kept[1]


def taken(sets: Sequence[Vectors]) -> list[Vectors]:
    """Return the vectors of parameters as a kernel takes them: what it reads, and what it writes."""
    return [[*vectors, *vectors[:-1]] for vectors in sets]
