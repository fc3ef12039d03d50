"""Steps on tensors of a GPU: one kernel for all parameters of a group, also in a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from mcfsim.compile.kernel import GraphLaunch, Kernel, Rows, Table, tabulated
from mcfsim.compile.launch import Launcher, SourceWords, elements_on
from mcfsim.compile.program import Program
from mcfsim.compile.torch_kernels import check_kernels
from mcfsim.compile.torch_loops import TensorLines
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, torch_dtype
from mcfsim.optim.step_programs import StepPrograms, as_bits, numbers, words_of
from mcfsim.torch.change_log import ChangeLog
from mcfsim.torch.moved import ParameterSlice, StepInputs, log_of
from mcfsim.torch.state_layout import StateLayout

#: The vectors of a parameter: itself, its state, and its gradient.
Vectors = list[torch.Tensor]


class VectorSet(NamedTuple):
    """The vectors that a step reads and writes.

    Attributes
    ----------
    slice : ParameterSlice
    operands, results : list of tensor
        The parameter, its state and its gradient; the same without the gradient. If changes are logged, a
        last result says where codes differ.
    """

    slice: ParameterSlice
    operands: Vectors
    results: Vectors


VectorSets = Sequence[VectorSet]


class KeptTable(NamedTuple):
    """A table of vectors.

    Attributes
    ----------
    table : Table
    vectors : list of list of int
        The numbers of their first elements, their sizes and addresses.
    tensors : list of int
        The same of the tensors that they are, without the results; nothing if some are copies.
    """

    table: Table
    vectors: list[list[int]]
    tensors: list[int]


class DeviceStep:
    """A step runner for device tensors: a Triton kernel if possible, else PyTorch operations.

    It keeps programs, kernels and tables of addresses from step to step.
    """

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        self._programs = lru_cache(maxsize=64)(partial(StepPrograms, strategy=stores.strategy, closed=True))
        self._lines: dict[Any, Kernel | TensorLines] = {}
        self._tables: dict[Any, KeptTable] = {}

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> None:
        """Make a step of parameters on one device."""
        (program, scalars), log = self.program(inputs), log_of(moved)
        line, words = self.line(program, moved[0].gradient.device, log), self.words(inputs)
        moved = [x for x in moved if x.gradient.numel()]
        if log is None and isinstance(line, Kernel) and self._launch_again(line, scalars, moved, words):
            return
        sets = [self.set_of(x) for x in moved]
        if isinstance(line, TensorLines):
            ready = line.with_numbers(scalars)
            for x, operands, results in sets:
                ready(operands, results, x.first, words)
        elif sets:
            self._launch(line, scalars, sets, words)
        for x, operands, results in sets:
            self.put_back(x, operands)
            self.stores.requantize(x.tensors)
            if x.log is not None:
                x.log.note(operands[0], results[-1])

    def asked(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> list[torch.Tensor]:
        """Return the intended update of a step: one float64 vector per parameter."""
        stores, words = self.stores, self.words(inputs)
        program, scalars = self.program(inputs)
        lines = TensorLines(program, stores.scalars, as_bits(stores.strategy, program))
        ready, fmt = lines.with_numbers(scalars), stores.roles.update.format
        assert fmt is not None
        dtype, found = torch_dtype(fmt), []
        for x in moved:
            vectors = self.vectors(x)
            update = torch.empty(x.gradient.numel(), dtype=dtype, device=x.gradient.device)
            ready(vectors, [*(torch.empty_like(y) for y in vectors[:-1]), update], x.first, words)
            found.append(update.to(torch.float64))
        return found

    def _launch(self, line: Kernel, scalars: Sequence[Any], sets: VectorSets, words: SourceWords) -> None:
        """Run a kernel on the vectors of parameters."""
        ready = line.with_numbers(scalars)
        self._table(ready, sets).fill(ready, words)

    def _launch_again(
        self, line: Kernel, scalars: Sequence[Any], moved: Sequence[ParameterSlice], words: SourceWords
    ) -> bool:
        """Run a kernel on the vectors of the last step if they lie where they lay; return whether it ran."""
        ready = line.with_numbers(scalars)
        kept = self._tables.get(_table_key(ready, moved)) if moved and not self.stores.scaled else None
        if kept is None or not kept.tensors or kept.tensors != self._place(moved):
            return False
        kept.table.fill(ready, words)
        return True

    def _place(self, moved: Sequence[ParameterSlice]) -> list[int]:
        """Return where tensors lie, and their sizes; nothing unless each is a vector as it is."""
        names, dtype = [*chain(*self.stores.names)], torch_dtype(self.stores.gradient)
        found = []
        for x in moved:
            gradient = x.gradient
            if gradient.dtype != dtype or gradient.is_neg() or not gradient.is_contiguous():
                return []
            found += [x.first, gradient.numel(), gradient.data_ptr()]
            for name in names:
                tensor = x.tensors[name]
                if not tensor.is_contiguous():
                    return []
                found.append(tensor.data_ptr())
        return found

    def program(self, inputs: StepInputs) -> tuple[Program, list[Any]]:
        """Return a step as a program, with its real scalars."""
        scalars = inputs.scalars(self.stores)
        program = self._programs(inputs.hyper).of(self.stores.roles, scalars, self.stores.gradient)
        return program, program.reals(numbers(scalars))

    def words(self, inputs: StepInputs) -> SourceWords:
        """Return the random words of a step, by source."""
        return words_of(self.stores.roles, inputs.number)

    def vectors(self, x: ParameterSlice) -> Vectors:
        """Return a parameter, its state and its gradient as vectors, some of which may be copies."""
        ordered = [self.stores.numbers(x.tensors, name) for name in chain(*self.stores.names)]
        return [*ordered, self.stores.received(x.gradient).reshape(-1).contiguous()]

    def set_of(self, x: ParameterSlice) -> VectorSet:
        """Return the vectors of a parameter's step."""
        operands = self.vectors(x)
        more = [] if x.log is None else [x.log.apart(operands[0])]
        return VectorSet(x, operands, [*operands[:-1], *more])

    def put_back(self, x: ParameterSlice, vectors: Vectors) -> None:
        """Write back the vectors that are copies."""
        for name, vector in zip(chain(*self.stores.names), vectors, strict=False):
            self.stores.keep(x.tensors, name, vector)

    def line(
        self, program: Program, device: torch.device, log: ChangeLog | None = None
    ) -> Kernel | TensorLines:
        """Return the line of a step, made once per program; it does not store the intended update."""
        epilogue = None if log is None else log.epilogue
        key = program.key, device, epilogue
        if key not in self._lines:
            kept = replace(program, results=program.results[:-1])
            given = kept, self.stores.scalars, as_bits(self.stores.strategy, program)
            self._lines[key] = TensorLines(*given, epilogue=epilogue)
            with suppress(ImportError, ValueError):
                check_kernels(device)
                self._lines[key] = Kernel(*given, packed=True, hardware=True, epilogue=epilogue, many=True)
        return self._lines[key]

    def _table(self, ready: Launcher, sets: VectorSets) -> Table:
        """Return the table of vectors: that of the last step if they lie where they lay."""
        moved = [x.slice for x in sets]
        vectors = [
            [x.slice.first, x.operands[0].numel(), *(y.data_ptr() for y in (*x.operands, x.results[-1]))]
            for x in sets
        ]
        key = _table_key(ready, moved)
        kept = self._tables.get(key)
        if kept is None or kept.vectors != vectors:
            table = Table(_taken(ready, sets), [x.first for x in moved])
            kept = self._tables[key] = KeptTable(table, vectors, self._place(moved))
        return kept.table


def _table_key(ready: Launcher, moved: Sequence[ParameterSlice]) -> Any:
    return ready.source, len(moved), moved[0].first


def _taken(ready: Launcher, sets: VectorSets) -> list[Vectors]:
    """Return vectors, checked, as a kernel takes them: those it reads, then those it writes."""
    for x in sets:
        ready.checked(x.operands, x.results)
    return [[*x.operands, *x.results] for x in sets]


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

    def prepared(self, inputs: StepInputs) -> Callable[[], None]:
        """Return a function that hands over the inputs of a step for the next replay.

        Raises
        ------
        RuntimeError
            If the graph cannot make this step.
        """
        program, scalars = self.on.program(inputs)
        words = self.on.words(inputs)
        chosen = self.launch.chosen(scalars) if program.key == self.key else None
        if chosen is None:
            raise RuntimeError(
                f"the captured graph cannot make a step with {inputs.hyper} and lr = {inputs.rate}: "
                "operations take part that did not when it was captured, or the reverse; capture it anew "
                "with these"
            )
        return lambda: self.launch.hand_over(chosen, self.rows, words)


class RepeatableStep(DeviceStep):
    """A step runner like `DeviceStep`, with launches that a captured graph may repeat."""

    def __init__(self, stores: StateLayout) -> None:
        super().__init__(stores)
        self._launches: dict[Any, GraphLaunch] = {}

    def capture(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> Captured | None:
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
        program, scalars = self.program(inputs)
        line = self.line(program, device)
        if not isinstance(line, Kernel):
            raise RuntimeError("a captured graph needs a kernel of Triton, which does not serve here")
        sets = [self.set_of(x) for x in moved]
        launch, rows, _ = self._earlier(line, scalars, sets)
        if launch is None:
            raise RuntimeError(
                "make a step outside of the graph first, with gradients of the same parameters: it compiles "
                "kernels and makes state"
            )
        launch.launch()
        for x, operands, _ in sets:
            self.put_back(x, operands)
        return Captured(self, program.key, launch, rows)

    def _launch(self, line: Kernel, scalars: Sequence[Any], sets: VectorSets, words: SourceWords) -> None:
        launch, rows, elements = self._earlier(line, scalars, sets)
        if launch is None:
            launch = GraphLaunch(line, scalars, rows, elements, words, sets[0].slice.gradient.device)
            self._launches[_key(line, sets)] = launch
            if len(self._launches) > _KEPT:
                del self._launches[next(iter(self._launches))]
        chosen = launch.chosen(scalars)
        assert chosen is not None
        launch.hand_over(chosen, rows, words)
        launch.launch()

    def _earlier(
        self, line: Kernel, scalars: Sequence[Any], sets: VectorSets
    ) -> tuple[GraphLaunch | None, list[Rows], int]:
        """Return the earlier launch for these parameters, or None if it does not take vectors or scalars.

        With it come the rows of the vectors, and the number of elements that an instance processes.
        """
        vectors = _taken(line.with_numbers(scalars), sets)
        elements = elements_on(vectors[0][0].device, max(x.slice.gradient.numel() for x in sets))
        rows = tabulated(vectors, [x.slice.first for x in sets], elements)
        launch = self._launches.get(_key(line, sets))
        if launch is not None and not (launch.fits(rows, elements) and launch.chosen(scalars)):
            launch = None
        return launch, rows, elements


def _key(line: Kernel, sets: VectorSets) -> Any:
    """Return the key of a launch. Each set of parameters has its own launch, as a graph may have them all."""
    return line, *(x.slice.tensors["parameter"].data_ptr() for x in sets)
