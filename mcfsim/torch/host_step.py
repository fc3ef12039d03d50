"""Steps on CPU tensors: by one loop, or by NumPy a block at a time; small tensors are joined first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.compile.loops import BoundLoop
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.torch_tensors import TORCH_DTYPES, as_array, cut, flat, torch_dtype
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.groups import common_edges
from mcfsim.optim.layout import in_stripes
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import CompiledStep, fill_block
from mcfsim.optim.vectors import Vector
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch.local import SCALES
from mcfsim.torch.moved import ParameterSlice, StateLayout, StepRunner, bits_of

# -- many small tensors -----------------------------------------------------------------------------------
#: Most elements of a small tensor: copying it there and back takes less time than a step of its own.
SMALL = BLOCK // 8


class Batched:
    """A step runner that joins consecutive small tensors into one, and hands them to another runner.

    Parameters
    ----------
    carrier : StepRunner
        Makes the steps.
    """

    def __init__(self, carrier: StepRunner) -> None:
        self.stores = carrier.stores
        self._carrier = carrier

    def move(self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters."""
        whole: list[ParameterSlice] = []
        copies: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        for batch in self._batches(moved):
            if len(batch) == 1:
                whole += batch
                continue
            vectors = {name: [x.tensors[name].view(-1) for x in batch] for name in batch[0].tensors}
            joined = {name: torch.cat(parts) for name, parts in vectors.items()}
            gradient = torch.cat([x.gradient.detach().view(-1) for x in batch])
            whole.append(ParameterSlice(joined, gradient, batch[0].first))
            copies += ((joined[name], parts) for name, parts in vectors.items())
        self._carrier.move(whole, hyper, count, rate)
        for joint, parts in copies:
            torch._foreach_copy_(parts, joint.split([part.numel() for part in parts]))

    def asked(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the intended update of step number `count`: one float64 vector per parameter."""
        return self._carrier.asked(moved, hyper, count, rate)

    def _batches(self, moved: Sequence[ParameterSlice]) -> Iterator[list[ParameterSlice]]:
        """Yield the parameters in order, in batches that can be joined; a joined batch fits a block."""
        batch: list[ParameterSlice] = []
        open_ = False
        for x in moved:
            small = self._is_small(x)
            if batch and not (open_ and small and _follows(batch, x)):
                yield batch
                batch = []
            batch.append(x)
            open_ = small
        if batch:
            yield batch

    def _is_small(self, x: ParameterSlice) -> bool:
        """Return whether a parameter is small, and each of its tensors has one number per element."""
        size = x.gradient.numel()
        return (
            size <= SMALL
            and not self.stores.scaled
            and all(
                y.numel() == size and y.is_contiguous() and not y.is_neg()
                for y in (x.gradient, *x.tensors.values())
            )
        )


def _follows(batch: Sequence[ParameterSlice], x: ParameterSlice) -> bool:
    """Return whether a parameter's elements continue a batch's numbering, and fit with it in a block."""
    first, last = batch[0], batch[-1]
    end = last.first + last.gradient.numel()
    room = end + x.gradient.numel() - first.first <= BLOCK
    return bool(x.gradient.dtype == last.gradient.dtype and x.first == end and room)


# -- the step ---------------------------------------------------------------------------------------------
class HostStep:
    """A step runner for CPU tensors: one compiled loop if possible, else NumPy block by block."""

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        self._loop = HostLoop(stores)

    def move(self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters."""
        stores = self.stores
        plain, others = self._parted(moved)
        if not plain or not self._loop.move(plain, hyper, count, rate):
            others = list(moved)
        for run in _runs(others):
            stored = self._stored(run)
            for pieces, new, _ in self._blocks(run, stored, hyper, count, rate):
                for name, block in zip(chain(*stores.names), chain(*new), strict=True):
                    for index, part, place in pieces:
                        stored[name][index][part] = block[place]
            for name in stores.grouped:
                for x, numbers in zip(run, stored[name], strict=True):
                    stores.keep(x.tensors, name, torch.from_numpy(numbers.astype(np.float32)))
        for x in moved:
            stores.requantize(x.tensors)

    def asked(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the intended update of step number `count`: one float64 vector per parameter."""
        plain, others = self._parted(moved)
        made = self._loop.asked(plain, hyper, count, rate) if plain else None
        found = {} if made is None else {id(x): y.to(torch.float64) for x, y in zip(plain, made, strict=True)}
        for run in _runs(moved if made is None else others):
            updates = [np.empty(x.gradient.numel()) for x in run]
            for pieces, _, update in self._blocks(run, self._stored(run), hyper, count, rate):
                for index, part, place in pieces:
                    updates[index][part] = update[place]
            found |= {id(x): torch.from_numpy(y) for x, y in zip(run, updates, strict=True)}
        return [found[id(x)] for x in moved]

    def _parted(self, moved: Sequence[ParameterSlice]) -> tuple[list[ParameterSlice], list[ParameterSlice]]:
        """Return the parameters that a loop can take, and the others."""
        taken = [self._loop.takes(x) for x in moved]
        return list(compress(moved, taken)), list(compress(moved, (not x for x in taken)))

    def _stored(self, moved: Sequence[ParameterSlice]) -> dict[str, list[Any]]:
        """Return, by name, the stored tensors of each parameter, as vectors in the same memory.

        Moments that share scales are copied.
        """
        stores = self.stores
        stored = {name: [flat(x.tensors[name]) for x in moved] for name in stores.formats}
        for name in stores.grouped:
            stored[name] = [as_array(stores.numbers(x.tensors, name)) for x in moved]
        if "remainder" in stored:
            stored["remainder"] = [bits_of(x) for x in stored["remainder"]]
        return stored

    def _blocks(
        self,
        moved: Sequence[ParameterSlice],
        stored: Mapping[str, Sequence[Any]],
        hyper: Declaration,
        count: int,
        rate: float,
    ) -> Iterator[tuple[list[tuple[int, slice, slice]], State, Any]]:
        """Yield the blocks of consecutively numbered parameters.

        A block comes with its pieces, its new state, and the intended update.
        """
        stores, start = self.stores, moved[0].first
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        gradients = [flat(x.gradient) for x in moved]
        fmt: Any = stores.strategy.gradient.format
        exact = [TORCH_DTYPES.get(x.gradient.dtype) == fmt for x in moved]
        for pieces in cut(x.gradient.numel() for x in moved):
            size = pieces[-1][2].stop
            blocks = {
                name: np.empty(size, stored[name][0].dtype if name == "remainder" else carrier_of(item))
                for name, item in stores.formats.items()
            }
            gradient = np.empty(size, carrier_of(fmt))
            with np.errstate(all="ignore"):
                for index, part, place in pieces:
                    for name, block in blocks.items():
                        block[place] = stored[name][index][part]
                    given = gradients[index][part]
                    gradient[place] = given if exact[index] else round_to(given, fmt)
                old = State(*(tuple(blocks[name] for name in names) for names in stores.names))
                rest = blocks.get("remainder")
                if rest is not None:
                    old = old._replace(extra=(stores.beside(blocks["parameter"], rest).numbers(),))
                roles = block_roles(stores.roles, count, start)
                start += size
                new, update = hyper.step(roles, stores.strategy.unshared, old, gradient, scalars)
                if rest is not None:
                    stores.beside(new.parameter[0], rest).keep(new.extra[0])
                    new = new._replace(extra=(rest,))
            yield pieces, new, update


def _runs(moved: Sequence[ParameterSlice]) -> Iterator[list[ParameterSlice]]:
    """Yield runs of parameters whose elements are numbered consecutively."""
    run: list[ParameterSlice] = []
    end = 0
    for x in moved:
        if run and x.first != end:
            yield run
            run = []
        run.append(x)
        end = x.first + x.gradient.numel()
    if run:
        yield run


# -- by one loop --------------------------------------------------------------------------------------------
#: How many steps are assumed to follow when deciding whether compiling pays.
AHEAD = 1000

#: Vectors with their formats; a result whose vector is None is not stored.
_Vectors = Sequence[tuple[Vector | None, Format | None]]


class HostLoop:
    """The compiled loops of an optimizer's steps, for tensors stored as a loop takes them."""

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        self._compiled = lru_cache(maxsize=64)(
            partial(CompiledStep, strategy=stores.strategy, packed=True, closed=True)
        )

    def takes(self, x: ParameterSlice) -> bool:
        """Return whether a loop can take a parameter: contiguous tensors, and no rounding of the gradient."""
        exact = TORCH_DTYPES.get(x.gradient.dtype) == self.stores.gradient
        return exact and all(y.is_contiguous() and not y.is_neg() for y in (x.gradient, *x.tensors.values()))

    def move(self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float) -> bool:
        """Make step number `count` of these parameters if a loop is to be used; return whether it was."""
        bound_loop = self._bound_loop(moved, hyper, count, rate)
        if bound_loop is None:
            return False
        for x in moved:
            vectors = self._vectors(x)
            self._fill(bound_loop, x, vectors, [*vectors, (None, self.stores.roles.update.format)])
        return True

    def asked(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor] | None:
        """Return the intended updates of a step, as vectors of any dtype; None if no loop is to be used."""
        bound_loop, fmt = self._bound_loop(moved, hyper, count, rate), self.stores.roles.update.format
        if bound_loop is None or fmt is None:
            return None
        found = []
        for x in moved:
            found.append(torch.empty(x.gradient.numel(), dtype=torch_dtype(fmt)))
            vectors = self._vectors(x)
            dropped = [(None, fmt) for _, fmt in vectors]
            self._fill(bound_loop, x, vectors, [*dropped, (packed(found[-1]), fmt)])
        return found

    def _bound_loop(
        self, moved: Sequence[ParameterSlice], hyper: Declaration, count: int, rate: float
    ) -> BoundLoop | None:
        stores, elements = self.stores, sum(x.gradient.numel() for x in moved)
        if not elements:
            return None
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        steps, gradient = self._compiled(hyper), packed(moved[0].gradient)
        return steps.bound_loop(stores.roles, scalars, gradient, elements, count, elements * AHEAD)

    def _vectors(self, x: ParameterSlice) -> list[tuple[Vector, Format]]:
        return [(self._vector(x, name), self.stores.formats[name]) for name in chain(*self.stores.names)]

    def _vector(self, x: ParameterSlice, name: str) -> Vector:
        """Return the tensor of a name as a loop reads and writes it, in the same memory."""
        if name in self.stores.grouped:
            return self.stores.grouped[name].vector(x.tensors[name], x.tensors[name + SCALES])
        return packed(x.tensors[name])

    def _fill(self, bound_loop: BoundLoop, x: ParameterSlice, vectors: _Vectors, asked: _Vectors) -> None:
        """Run a loop on a parameter, on PyTorch's number of threads."""
        size, threads = x.gradient.numel(), torch.get_num_threads()
        several = bound_loop.on_threads(threads)
        loop, threads = (several, threads) if size > several.block else (bound_loop, 1)
        edges = common_edges((vector for vector, _ in vectors), [slice(0, size)])
        # Numbers that share scales are read and written by calls; fewer calls on more numbers are faster.
        block = loop.block if edges is None else BLOCK
        given = [*vectors, (packed(x.gradient), self.stores.gradient)]

        def work(block: slice) -> None:
            fill_block(loop, block, given, asked, x.first)  # type: ignore[arg-type]

        in_stripes(work, slice(0, size), block, threads, edges)


def packed(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a contiguous tensor as a vector in the same memory, of codes if they have at most 16 bits."""
    vector = as_array(tensor).reshape(-1)
    return vector if vector.itemsize > 2 else vector.view(f"u{vector.itemsize}")
