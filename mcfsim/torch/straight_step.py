"""Steps that are straight lines: by loops or NumPy on the CPU, by one kernel for a whole group on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.kernel import Kernel, Table
from mcfsim.compile.launch import Launcher, SourceWords
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program
from mcfsim.compile.torch_kernels import check_kernels
from mcfsim.compile.torch_loops import TensorLines
from mcfsim.kernels.torch_tensors import torch_dtype
from mcfsim.optim.groups import common_edges
from mcfsim.optim.layout import in_stripes
from mcfsim.optim.step_programs import CompiledStep, StepPrograms, as_bits, numbers, words_of
from mcfsim.optim.vectors import Vector, apart, filling, read, read_block, write, write_block
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch.change_log import ChangeLog, noting
from mcfsim.torch.moved import ParameterSlice, StepInputs, Updates, log_of
from mcfsim.torch.state_layout import StateLayout, packed

# -- on the CPU -------------------------------------------------------------------------------------------
#: The most elements of a small tensor: copying it there and back takes less time than a separate step.
SMALL = BLOCK // 8
#: How many steps are assumed to follow when deciding whether compiling pays.
AHEAD = 1000


class JointSlice(NamedTuple):
    """Parameters joined into one, with their state and gradient as contiguous vectors.

    Attributes
    ----------
    tensors : mapping of str to tensor
        Copies, unless there is one parameter whose elements lie one after another.
    gradient : tensor
        In the strategy's format.
    first : int
        The index of the first element.
    parts : list of slice
        The elements of each parameter.
    pieces : mapping of str to list of tensor
        The tensors that each was joined from.
    """

    tensors: Mapping[str, torch.Tensor]
    gradient: torch.Tensor
    first: int
    parts: list[slice]
    pieces: Mapping[str, list[torch.Tensor]]


class HostStep:
    """A step runner for CPU tensors: one compiled loop if possible, else NumPy block by block."""

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        made = partial(CompiledStep, strategy=stores.strategy, packed=True, closed=True)
        self._compiled = lru_cache(maxsize=64)(made)
        self._gradient = packed(torch.empty(0, dtype=torch_dtype(stores.gradient), device="cpu"))

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of these parameters; append the intended update of each to `updates`, if given."""
        bound_loop = self._bound_loop(moved, inputs)
        for batch in _batches(moved):
            joint = self._joined(batch)
            parameter, log = joint.tensors["parameter"], log_of(batch)
            differing = None if log is None else log.apart(parameter)
            update = None
            if updates is not None:
                fmt = self.stores.roles.update.format
                dtype = torch.float64 if bound_loop is None or fmt is None else torch_dtype(fmt)
                update = torch.empty(joint.gradient.numel(), dtype=dtype, device="cpu")
            self._make(joint, bound_loop, inputs, None if update is None else packed(update), differing)
            if updates is not None and update is not None:
                updates += update.to(torch.float64).split([x.gradient.numel() for x in batch])
            for x, part in zip(batch, joint.parts, strict=True):
                if x.log is not None and differing is not None:
                    x.log.note(parameter[part], differing[part])
            for name, whole in joint.tensors.items():
                parts = joint.pieces[name]
                if whole is not parts[0]:
                    pieces = whole.split([part.numel() for part in parts])
                    copies = [
                        piece if part.ndim == 1 else piece.view(part.shape)
                        for piece, part in zip(pieces, parts, strict=True)
                    ]
                    if name == "parameter" and any(part.is_neg() for part in parts):
                        for part, piece in zip(parts, copies, strict=True):  # PyTorch copies no such list
                            part.copy_(piece)
                    else:
                        torch._foreach_copy_(parts, copies)
            if self.stores.scaled:
                for x in batch:
                    self.stores.requantize(x.tensors)

    def _joined(self, batch: Sequence[ParameterSlice]) -> JointSlice:
        pieces = {name: [_flat(x.tensors[name]) for x in batch] for name in batch[0].tensors}
        tensors = {name: _vector(parts) for name, parts in pieces.items()}
        gradient = _vector([_flat(self.stores.received(x.gradient)) for x in batch])
        ends = accumulate((x.gradient.numel() for x in batch), initial=0)
        return JointSlice(tensors, gradient, batch[0].first, [slice(*x) for x in pairwise(ends)], pieces)

    def _bound_loop(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> BoundLoop | None:
        """Return the loop for these parameters, or None if none is to be used."""
        stores, elements = self.stores, sum(x.gradient.numel() for x in moved)
        if not elements:
            return None
        given = stores.roles, inputs.scalars, self._gradient, (elements,), inputs.number
        log = log_of(moved)
        compiled = self._compiled(inputs.hyper, epilogue=None if log is None else log.epilogue)
        found = compiled.bound_loops(*given, AHEAD)
        return found[0].loop if found else None

    def _make(
        self,
        joint: JointSlice,
        bound_loop: BoundLoop | None,
        inputs: StepInputs,
        update: NDArray[Any] | None,
        differing: torch.Tensor | None,
    ) -> None:
        """Make a step, by a loop if there is one; fill in a vector for the update, if there is one.

        `differing`, if given, is filled in as the log of changes takes it.
        """
        stores, size, threads, block = self.stores, joint.gradient.numel(), torch.get_num_threads(), BLOCK
        if not size:  # the loop may be for other parameters, which have a log
            return
        vectors = stores.vectors(joint.tensors, dict.fromkeys(stores.grouped, joint.parts))
        edges = common_edges(vectors.values(), joint.parts)
        changes = None if differing is None else differing.numpy()
        gradient = apart(packed(joint.gradient), vectors.values())
        if bound_loop is None:
            work, threads = self._by_numpy(gradient, joint.first, vectors, inputs, update), 1
        else:
            several = bound_loop.on_threads(threads)
            bound_loop, threads = (several, threads) if size > several.block else (bound_loop, 1)
            work = self._by_loop(gradient, joint.first, vectors, bound_loop, update, changes)
            # Numbers that share scales are read and written by calls; fewer, larger calls are faster.
            block = bound_loop.block if edges is None else BLOCK
        if changes is not None and not (bound_loop and bound_loop.source):
            work = noting(work, packed(joint.tensors["parameter"]), changes)
        in_stripes(work, slice(0, size), block, threads, edges)

    def _by_loop(
        self,
        gradient: NDArray[Any],
        first: int,
        vectors: Mapping[str, Vector],
        loop: BoundLoop,
        update: NDArray[Any] | None,
        differing: NDArray[Any] | None,
    ) -> Callable[[slice], None]:
        """Return a function that makes the step of a block by a loop."""
        stores = self.stores
        old = [(vectors[name], fmt) for name, fmt in stores.formats.items()]
        given = [*old, (gradient, stores.gradient)]
        asked = [*old, (update, stores.roles.update.format)]  # what has no vector is dropped
        if differing is not None:  # a loop that does not run on codes has no difference of codes
            asked.append((differing.view(loop.results[-1]) if loop.source else None, None))
        return filling(loop, given, asked, first)

    def _by_numpy(
        self,
        gradient: NDArray[Any],
        first: int,
        vectors: Mapping[str, Vector],
        inputs: StepInputs,
        update: NDArray[Any] | None,
    ) -> Callable[[slice], None]:
        """Return a function that makes the step of a block by NumPy."""
        stores = self.stores
        state, formats = stores.state_of(vectors)

        def work(block: slice) -> None:
            roles = stores.roles.on_block(inputs.number, first + block.start)
            with np.errstate(all="ignore"):
                old, given = read_block(state, formats, block), read(gradient[block], stores.gradient)
                new, made = inputs.hyper.step(roles, stores.strategy.unshared, old, given, inputs.scalars)
                write_block(state, new, formats, block)
                if update is not None:
                    write(update[block], made, stores.roles.update.format)

        return work


def _vector(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return results of `_flat` joined into one contiguous vector; a single vector stays as it is."""
    if len(parts) == 1 and parts[0].ndim == 1:
        return parts[0]
    vectors = [x if x.ndim == 1 else x.resolve_neg().contiguous().view(-1) for x in parts]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a vector in the same memory if that is contiguous and not a negated view.

    Any other tensor is returned as it is, with at least two dimensions.
    """
    if x.is_contiguous() and not x.is_neg():
        return x if x.ndim == 1 else x.view(-1)  # a view takes a microsecond
    return x if x.ndim > 1 else x.view(1, -1) if x.is_contiguous() else x.unsqueeze(0)


def _batches(moved: Sequence[ParameterSlice]) -> Iterator[list[ParameterSlice]]:
    """Yield parameters in order, in batches to be joined; several small ones fit into a block together."""
    batch: list[ParameterSlice] = []
    for x in moved:
        if batch and not _follows(batch, x):
            yield batch
            batch = []
        batch.append(x)
    if batch:
        yield batch


def _follows(batch: Sequence[ParameterSlice], x: ParameterSlice) -> bool:
    """Return whether a small parameter continues the numbering of small ones, and fits in their block."""
    last, size = batch[-1].gradient.numel(), x.gradient.numel()
    end = batch[-1].first + last
    return bool(max(last, size) <= SMALL and x.first == end and end + size - batch[0].first <= BLOCK)


# -- on other devices -------------------------------------------------------------------------------------
class VectorSet(NamedTuple):
    """The vectors that a step reads and writes.

    Attributes
    ----------
    slice : ParameterSlice
    operands, results : list of tensor
        The parameter, its state and its gradient; the same without the gradient. A last result says
        where codes differ, if changes are logged, or is the intended update, if that is wanted.
    """

    slice: ParameterSlice
    operands: list[torch.Tensor]
    results: list[torch.Tensor]


class DeviceStep:
    """A step runner for device tensors: a Triton kernel if possible, else PyTorch operations.

    It keeps programs, kernels and tables of addresses from step to step.
    """

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        self._programs = lru_cache(maxsize=64)(partial(StepPrograms, strategy=stores.strategy, closed=True))
        self._lines: dict[Any, Kernel | TensorLines] = {}
        #: Tables of vectors, each with the first indices, sizes and addresses that it was made for.
        self._tables: dict[Any, tuple[list[int], Table]] = {}

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of parameters on one device; append their intended updates to `updates`, if given."""
        (program, scalars), log = self.program(inputs), log_of(moved)
        if updates is None:
            line = self.line(program, moved[0].gradient.device, log)
        else:
            line = TensorLines(program, self.stores.scalars, as_bits(self.stores.strategy, program))
        moved, words = [x for x in moved if x.gradient.numel()], words_of(self.stores.roles, inputs.number)
        if log is None and isinstance(line, Kernel) and self._launch_again(line, scalars, moved, words):
            return
        sets = [self.set_of(x, update=updates is not None) for x in moved]
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
            if updates is not None:
                updates.append(results[-1].to(torch.float64))

    def _launch(
        self, line: Kernel, scalars: Sequence[Any], sets: Sequence[VectorSet], words: SourceWords
    ) -> None:
        """Run a kernel on vectors of parameters, by the last step's table if they have not moved since."""
        ready, moved, places = line.with_numbers(scalars), [x.slice for x in sets], list[int]()
        for x in sets:
            places += [x.slice.first, x.operands[0].numel(), *(y.data_ptr() for y in x.operands)]
            if x.slice.log is not None:
                places.append(x.results[-1].data_ptr())
        key = _table_key(ready, moved)
        if key not in self._tables or self._tables[key][0] != places:
            self._tables[key] = places, Table(taken(ready, sets), [x.first for x in moved])
        self._tables[key][1].fill(ready, words)

    def _launch_again(
        self, line: Kernel, scalars: Sequence[Any], moved: Sequence[ParameterSlice], words: SourceWords
    ) -> bool:
        """Run a kernel on the last step's vectors if they have not moved in memory; return whether it ran."""
        ready = line.with_numbers(scalars)
        kept = self._tables.get(_table_key(ready, moved)) if moved and not self.stores.scaled else None
        if kept is None or kept[0] != self._places(moved):
            return False
        kept[1].fill(ready, words)
        return True

    def _places(self, moved: Sequence[ParameterSlice]) -> list[int]:
        """Return the addresses of tensors as a table has them; none unless all can be used without a copy."""
        names, dtype = [*chain(*self.stores.names)], torch_dtype(self.stores.gradient)
        found = []
        for x in moved:
            gradient = x.gradient
            if gradient.dtype != dtype or gradient.is_neg() or not gradient.is_contiguous():
                return []
            found += [x.first, gradient.numel()]
            for name in names:
                tensor = x.tensors[name]
                if not tensor.is_contiguous():
                    return []
                found.append(tensor.data_ptr())
            found.append(gradient.data_ptr())
        return found

    def program(self, inputs: StepInputs) -> tuple[Program, list[Any]]:
        """Return a step as a program, with its real scalars."""
        program = self._programs(inputs.hyper).of(self.stores.roles, inputs.scalars, self.stores.gradient)
        return program, program.reals(numbers(inputs.scalars))

    def set_of(self, x: ParameterSlice, *, update: bool = False) -> VectorSet:
        """Return the vectors of a parameter's step, some of them copies, with one for a wanted update."""
        operands = [self.stores.numbers(x.tensors, name) for name in chain(*self.stores.names)]
        operands.append(self.stores.received(x.gradient).reshape(-1).contiguous())
        more, fmt = [] if x.log is None else [x.log.apart(operands[0])], self.stores.roles.update.format
        if update and fmt is not None:
            more.append(torch.empty_like(operands[-1], dtype=torch_dtype(fmt)))
        return VectorSet(x, operands, [*operands[:-1], *more])

    def put_back(self, x: ParameterSlice, vectors: list[torch.Tensor]) -> None:
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


def _table_key(ready: Launcher, moved: Sequence[ParameterSlice]) -> Any:
    return ready.source, len(moved), moved[0].first


def taken(ready: Launcher, sets: Sequence[VectorSet]) -> list[list[torch.Tensor]]:
    """Return vectors, checked, as a kernel takes them: those it reads, then those it writes."""
    for x in sets:
        ready.checked(x.operands, x.results)
    return [[*x.operands, *x.results] for x in sets]
