"""A step on tensors of the CPU, by NumPy, a block of all tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.backends.tensors import TORCH_DTYPES, as_array, cut, flat
from mcfsim.compile.loops import Filler
from mcfsim.convert import round_to
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.compiled_step import CompiledStep, fill_block
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.memory import Vector
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from mcfsim.optim.stripes import in_stripes
from mcfsim.torch.moved import Moved, Stores, requantize_tensor

#: So many steps are taken to follow, where it is asked whether compiling pays.
AHEAD = 1000


class HostStep:
    """Steps of an optimizer, see `Stores`."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._compiled = lru_cache(maxsize=64)(partial(CompiledStep, strategy=stores.strategy, packed=True))

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters."""
        stores = self.stores
        for run in _runs(self._left_by_loop(moved, hyper, count, rate)):
            stored = self._stored(run)
            for pieces, new, _ in self._blocks(run, stored, hyper, count, rate):
                for name, block in zip(chain(*stores.names), chain(*new), strict=True):
                    for index, part, place in pieces:
                        stored[name][index][part] = block[place]
        for name, kept in stores.scaled.items():
            for x in moved:
                requantize_tensor(x.tensors[name], kept, stores.formats[name])

    def _left_by_loop(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[Moved]:
        """Move parameters that lie as a loop takes them, if there is one; return the others."""
        stores = self.stores
        ready = [x for x in moved if self._is_plain(x)]
        if not ready:
            return list(moved)
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        elements = sum(x.gradient.numel() for x in ready)
        steps, gradient = self._compiled(hyper), packed(ready[0].gradient)
        filler = steps.filler(stores.roles, scalars, gradient, elements, count, elements * AHEAD)
        if filler is None:
            return list(moved)
        threads = torch.get_num_threads()
        several = filler.on_threads(threads)
        for x in ready:
            vectors = [(self._vector(x, name), stores.formats[name]) for name in chain(*stores.names)]
            given = [*vectors, (packed(x.gradient), stores.gradient)]
            asked: list[Any] = [*vectors, (None, stores.roles.update.format)]
            size = x.gradient.numel()
            shared = size > several.block
            loop = several if shared else filler
            work = partial(_fill, loop, given, asked, x.first)
            in_stripes(work, slice(0, size), loop.block, threads if shared else 1)
        return [x for x in moved if not self._is_plain(x)]

    def _is_plain(self, x: Moved) -> bool:
        """Return whether all that a step reads lies element by element, in its own format."""
        exact = TORCH_DTYPES.get(x.gradient.dtype) == self.stores.gradient
        return exact and all(y.is_contiguous() and not y.is_neg() for y in (x.gradient, *x.tensors.values()))

    def _vector(self, x: Moved, name: str) -> Vector:
        """Return what is stored under a name as a loop reads and writes it, in the same memory."""
        if name == "remainder":
            return self.stores.split_of(packed(x.tensors["parameter"]), packed(x.tensors[name]))
        return packed(x.tensors[name])

    def asked(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the update that step number `count` asks for, for each parameter a vector of float64."""
        found = []
        for run in _runs(moved):
            updates = [np.empty(x.gradient.numel()) for x in run]
            for pieces, _, update in self._blocks(run, self._stored(run), hyper, count, rate):
                for index, part, place in pieces:
                    updates[index][part] = update[place]
            found += [torch.from_numpy(x) for x in updates]
        return found

    def _stored(self, moved: Sequence[Moved]) -> dict[str, list[Any]]:
        """Return by name what is stored of each parameter, as vectors in the same memory."""
        stored = {name: [flat(x.tensors[name]) for x in moved] for name in self.stores.formats}
        if "remainder" in stored:
            stored["remainder"] = [x.view(np.uint16) for x in stored["remainder"]]
        return stored

    def _blocks(
        self,
        moved: Sequence[Moved],
        stored: Mapping[str, Sequence[Any]],
        hyper: Declaration,
        count: int,
        rate: float,
    ) -> Iterator[tuple[list[tuple[int, slice, slice]], State, Any]]:
        """Yield blocks of parameters whose elements are numbered on from one to the next.

        Each with its pieces, its new state, and the update that was asked for.
        """
        stores, start = self.stores, moved[0].first
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        gradients = [flat(x.gradient) for x in moved]
        fmt: Any = stores.strategy.gradient.format
        exact = [TORCH_DTYPES.get(x.gradient.dtype) == fmt for x in moved]
        for pieces in cut(x.gradient.numel() for x in moved):
            size = pieces[-1][2].stop
            blocks = {
                name: np.empty(size, np.uint16 if name == "remainder" else carrier_of(item))
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
                split = None
                if "remainder" in blocks:
                    split = stores.split(blocks["parameter"], blocks["remainder"])
                    old = old._replace(extra=(split.numbers(),))
                roles = block_roles(stores.roles, count, start)
                start += size
                new, update = hyper.step(roles, stores.strategy, old, gradient, scalars)
                if split is not None:
                    split.keep(new.extra[0])
                    new = new._replace(extra=(split.rest,))
            yield pieces, new, update


def packed(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a contiguous tensor as a vector in the same memory: of codes if these have 16 bits or less."""
    vector = as_array(tensor).reshape(-1)
    return vector if vector.itemsize > 2 else vector.view(f"u{vector.itemsize}")


def _fill(filler: Filler, given: Any, asked: Any, first: int, block: slice) -> None:
    fill_block(filler, block, given, asked, first)


def _runs(moved: Sequence[Moved]) -> Iterator[list[Moved]]:
    """Yield parameters as runs of neighbours, whose elements are numbered on from one to the next."""
    run: list[Moved] = []
    end = 0
    for x in moved:
        if run and x.first != end:
            yield run
            run = []
        run.append(x)
        end = x.first + x.gradient.numel()
    if run:
        yield run
