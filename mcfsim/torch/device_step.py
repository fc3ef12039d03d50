"""Steps on tensors of a GPU: one kernel for all parameters of a group, also in a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import torch

from mcfsim.backends.factory import arithmetic
from mcfsim.compile.kernel import GraphLaunch, Rows, Table, TableKernel, TableLauncher, tabulated
from mcfsim.compile.launch import elements_on
from mcfsim.compile.program import Program
from mcfsim.compile.torch_kernels import check_kernels
from mcfsim.compile.torch_loops import TensorLines
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, torch_dtype
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.step_programs import StepPrograms, as_bits, numbers, words_of
from mcfsim.random import RandomWords
from mcfsim.torch.moved import ParameterSlice, StateLayout

#: The vectors of a parameter: itself, its state, and its gradient.
Vectors = list[torch.Tensor]


class DeviceStep:
    """A step runner for device tensors: a Triton kernel if possible, else PyTorch operations.

    It keeps programs, kernels and tables of addresses from step to step.
    """

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        self._programs = lru_cache(maxsize=64)(partial(StepPrograms, strategy=stores.strategy, closed=True))
        self._lines: dict[Any, TableKernel | TensorLines] = {}
        self._tables: dict[Any, tuple[Any, Table]] = {}

    def move(self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of parameters on one device."""
        stores, device = self.stores, moved[0].gradient.device
        program, scalars = self.program(hyper, count, rate)
        moved = [x for x in moved if x.gradient.numel()]
        sets = [self.vectors(x) for x in moved]
        self._fill(self.line(program, device), scalars, moved, sets, words_of(stores.roles, count))
        for x, vectors in zip(moved, sets, strict=True):
            self.put_back(x, vectors)
            stores.requantize(x.tensors)

    def asked(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the intended update of step number `count`: one float64 vector per parameter."""
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
        moved: Sequence[ParameterSlice],
        sets: Sequence[Vectors],
        words: Mapping[int, RandomWords],
    ) -> None:
        """Run a line on the vectors of parameters."""
        ready, starts = line.with_numbers(scalars), [x.first for x in moved]
        if isinstance(ready, TableLauncher):
            if sets:
                ready(self._table(ready, sets, starts), words)
        else:
            for vectors, start in zip(sets, starts, strict=True):
                ready(vectors, vectors[:-1], start, words)

    def program(self, hyper: Declaration, count: int, rate: float) -> tuple[Program, list[Any]]:
        """Return a step as a program, with its real scalars."""
        stores = self.stores
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        program = self._programs(hyper).of(stores.roles, scalars, stores.gradient)
        return program, program.reals(numbers(scalars))

    def _received(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient in the strategy's format, rounded if it has another."""
        fmt, gradient = self.stores.gradient, gradient.detach().resolve_neg()
        if TORCH_DTYPES.get(gradient.dtype) == fmt:
            return gradient
        ar = arithmetic(fmt, backend="torch", device=gradient.device)
        return ar.round(gradient).to(torch_dtype(fmt))

    def vectors(self, x: ParameterSlice) -> Vectors:
        """Return a parameter, its state and its gradient as vectors, some of which may be copies."""
        ordered = [self.stores.numbers(x.tensors, name) for name in chain(*self.stores.names)]
        return [*ordered, self._received(x.gradient).reshape(-1).contiguous()]

    def put_back(self, x: ParameterSlice, vectors: Vectors) -> None:
        """Write back the vectors that are copies."""
        for name, vector in zip(chain(*self.stores.names), vectors, strict=False):
            self.stores.keep(x.tensors, name, vector)

    def line(self, program: Program, device: torch.device) -> TableKernel | TensorLines:
        """Return the line of a step, made once per program; it does not store the intended update."""
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
        """Return the table of vectors: that of the last step if their addresses are the same."""
        place = [x.data_ptr() for vectors in sets for x in vectors], starts
        key = ready.source, len(sets), starts[0]
        kept = self._tables.get(key)
        if kept is None or kept[0] != place:
            for vectors in sets:
                ready.checked(vectors, vectors[:-1])
            kept = self._tables[key] = place, Table(taken(sets), starts)
        return kept[1]


def taken(sets: Sequence[Vectors]) -> list[Vectors]:
    """Return the vectors of parameters as a kernel takes them: those it reads, then those it writes."""
    return [[*vectors, *vectors[:-1]] for vectors in sets]


# -- a step that a graph repeats --------------------------------------------------------------------------
#: How many launches are kept, the latest ones: more than an optimizer has groups.
_KEPT = 256


@dataclass(frozen=True)
class Captured:
    """A launch in a captured graph.

    Attributes
    ----------
    on : RepeatableStep
    key
        The key of its program.
    launch : GraphLaunch
    rows : list of Rows
        The vectors that it processes.
    """

    on: RepeatableStep
    key: Any
    launch: GraphLaunch
    rows: list[Rows]

    def prepared(self, hyper: Declaration, count: int, rate: float) -> Callable[[], None]:
        """Return a function that hands over the inputs of step number `count` for the next replay.

        Raises
        ------
        RuntimeError
            If the graph cannot make this step.
        """
        program, scalars = self.on.program(hyper, count, rate)
        words = words_of(self.on.stores.roles, count)
        try:
            chosen = self.launch.chosen(scalars) if program.key == self.key else None
        except UnsupportedFormatError:
            chosen = None
        if chosen is None:
            raise RuntimeError(
                f"the captured graph cannot make a step with {hyper} and lr = {rate}: operations take part "
                "that did not when it was captured, or the reverse; capture it anew with these"
            )
        return lambda: self.launch.hand_over(chosen, self.rows, words)


class RepeatableStep(DeviceStep):
    """A step runner like `DeviceStep`, with launches that a captured graph may repeat."""

    def __init__(self, stores: StateLayout) -> None:
        super().__init__(stores)
        self._launches: dict[Any, GraphLaunch] = {}

    def capture(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> Captured | None:
        """Capture the launch of a step; each replay then makes the step whose inputs were handed over.

        Raises
        ------
        RuntimeError
            If the step has no kernel, or none that was launched before for parameters of these sizes.
        TypeError
            If a gradient would have to be rounded first.
        """
        moved = [x for x in moved if x.gradient.numel()]
        if not moved:
            return None
        device, fmt = moved[0].gradient.device, self.stores.gradient
        for x in moved:
            if TORCH_DTYPES.get(x.gradient.dtype) != fmt:
                raise TypeError(f"in a captured graph gradients must be of {fmt}, not of {x.gradient.dtype}")
        if self.stores.scaled:
            raise RuntimeError(
                f"no graph can be captured of strategy {self.stores.strategy.name!r}: its moments are "
                "quantised between launches"
            )
        program, scalars = self.program(hyper, count, rate)
        line = self.line(program, device)
        if not isinstance(line, TableKernel):
            raise RuntimeError("a captured graph needs a kernel of Triton, which does not serve here")
        sets = [self.vectors(x) for x in moved]
        rows, elements = _tabulated(line, scalars, moved, sets)
        launch = self._made(line, scalars, moved, rows, elements)
        if launch is None:
            raise RuntimeError(
                "make a step outside of the graph first, with gradients of the same parameters: it compiles "
                "kernels and makes state"
            )
        launch.launch()
        for x, vectors in zip(moved, sets, strict=True):
            self.put_back(x, vectors)
        return Captured(self, program.key, launch, rows)

    def _fill(
        self,
        line: TableKernel | TensorLines,
        scalars: Sequence[Any],
        moved: Sequence[ParameterSlice],
        sets: Sequence[Vectors],
        words: Mapping[int, RandomWords],
    ) -> None:
        if not isinstance(line, TableKernel):
            super()._fill(line, scalars, moved, sets, words)
        elif sets:
            rows, elements = _tabulated(line, scalars, moved, sets)
            launch = self._made(line, scalars, moved, rows, elements)
            if launch is None:
                launch = GraphLaunch(line, scalars, rows, elements, words, sets[0][0].device)
                self._launches[_key(line, moved)] = launch
                if len(self._launches) > _KEPT:
                    del self._launches[next(iter(self._launches))]
            launch.hand_over(launch.chosen(scalars), rows, words)
            launch.launch()

    def _made(
        self,
        line: TableKernel,
        scalars: Sequence[Any],
        moved: Sequence[ParameterSlice],
        rows: Sequence[Rows],
        elements: int,
    ) -> GraphLaunch | None:
        """Return the earlier launch for these parameters if it takes the rows and scalars; else None."""
        launch = self._launches.get(_key(line, moved))
        if launch is None or not launch.fits(rows, elements):
            return None
        try:
            launch.chosen(scalars)
        except UnsupportedFormatError:
            return None
        return launch


def _key(line: TableKernel, moved: Sequence[ParameterSlice]) -> Any:
    """Return the key of a launch. Each set of parameters has its own launch, as a graph may have them all."""
    return line, *(x.tensors["parameter"].data_ptr() for x in moved)


def _tabulated(
    line: TableKernel, scalars: Sequence[Any], moved: Sequence[ParameterSlice], sets: Sequence[Vectors]
) -> tuple[list[Rows], int]:
    """Return the rows of parameters' vectors, and the number of elements that an instance processes."""
    ready = line.with_numbers(scalars)
    for vectors in sets:
        ready.checked(vectors, vectors[:-1])
    elements = elements_on(sets[0][0].device, max(vectors[0].numel() for vectors in sets))
    return tabulated(taken(sets), [x.first for x in moved], elements), elements
