"""A step on tensors of the CPU, by NumPy, a block of all tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.backends.strung_tensors import TORCH_DTYPES, as_array, cut, flat, torch_dtype
from mcfsim.compile.loops import Filler
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.compiled_step import CompiledStep, fill_block
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.groups import common_edges
from mcfsim.optim.optimizer import block_roles
from mcfsim.optim.state import State
from mcfsim.optim.stripes import in_stripes
from mcfsim.optim.vectors import Vector
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch.grouped import SCALES
from mcfsim.torch.moved import Moved, Stores, bits_of


class HostStep:
    """Steps of an optimizer, see `Stores`."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._loop = HostLoop(stores)

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> None:
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
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the update that step number `count` asks for, for each parameter a vector of float64."""
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

    def _parted(self, moved: Sequence[Moved]) -> tuple[list[Moved], list[Moved]]:
        """Return the parameters that a loop may take, and the others."""
        taken = [self._loop.takes(x) for x in moved]
        return list(compress(moved, taken)), list(compress(moved, (not x for x in taken)))

    def _stored(self, moved: Sequence[Moved]) -> dict[str, list[Any]]:
        """Return by name what is stored of each parameter, as vectors in the same memory.

        Of what shares scales they are copies.
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


# -- by one loop --------------------------------------------------------------------------------------------
#: So many steps are taken to follow, where it is asked whether compiling pays.
AHEAD = 1000

#: Vectors with their formats; where there is none, what is made is not kept.
_Vectors = Sequence[tuple[Vector | None, Format | None]]


class HostLoop:
    """Steps of an optimizer, see `Stores`, of tensors that lie as a loop takes them."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self._compiled = lru_cache(maxsize=64)(
            partial(CompiledStep, strategy=stores.strategy, packed=True, closed=True)
        )

    def takes(self, x: Moved) -> bool:
        """Return whether all that a step reads lies element by element, in its own format."""
        exact = TORCH_DTYPES.get(x.gradient.dtype) == self.stores.gradient
        return exact and all(y.is_contiguous() and not y.is_neg() for y in (x.gradient, *x.tensors.values()))

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> bool:
        """Make step number `count` of these parameters, if there is to be a loop; return whether there is."""
        filler = self._filler(moved, hyper, count, rate)
        if filler is None:
            return False
        for x in moved:
            vectors = self._vectors(x)
            self._fill(filler, x, vectors, [*vectors, (None, self.stores.roles.update.format)])
        return True

    def asked(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor] | None:
        """Return the updates that a step asks for, vectors of any dtype; None if there is to be no loop."""
        filler, fmt = self._filler(moved, hyper, count, rate), self.stores.roles.update.format
        if filler is None or fmt is None:
            return None
        found = []
        for x in moved:
            found.append(torch.empty(x.gradient.numel(), dtype=torch_dtype(fmt)))
            vectors = self._vectors(x)
            dropped = [(None, fmt) for _, fmt in vectors]
            self._fill(filler, x, vectors, [*dropped, (packed(found[-1]), fmt)])
        return found

    def _filler(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> Filler | None:
        stores, elements = self.stores, sum(x.gradient.numel() for x in moved)
        if not elements:
            return None
        scalars: Any = hyper.scalars(stores.roles, stores.strategy, count, rate, decayed=True)
        steps, gradient = self._compiled(hyper), packed(moved[0].gradient)
        return steps.filler(stores.roles, scalars, gradient, elements, count, elements * AHEAD)

    def _vectors(self, x: Moved) -> list[tuple[Vector, Format]]:
        return [(self._vector(x, name), self.stores.formats[name]) for name in chain(*self.stores.names)]

    def _vector(self, x: Moved, name: str) -> Vector:
        """Return what is stored under a name as a loop reads and writes it, in the same memory."""
        if name in self.stores.grouped:
            return self.stores.grouped[name].vector(x.tensors[name], x.tensors[name + SCALES])
        return packed(x.tensors[name])

    def _fill(self, filler: Filler, x: Moved, vectors: _Vectors, asked: _Vectors) -> None:
        """Carry a loop out on a parameter, by PyTorch's number of threads."""
        size, threads = x.gradient.numel(), torch.get_num_threads()
        several = filler.on_threads(threads)
        loop, threads = (several, threads) if size > several.block else (filler, 1)
        edges = common_edges((vector for vector, _ in vectors), [slice(0, size)])
        # Numbers that share scales are read and written by calls, of which fewer on more are faster.
        block = loop.block if edges is None else BLOCK
        given = [*vectors, (packed(x.gradient), self.stores.gradient)]

        def work(block: slice) -> None:
            fill_block(loop, block, given, asked, x.first)  # type: ignore[arg-type]

        in_stripes(work, slice(0, size), block, threads, edges)


def packed(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a contiguous tensor as a vector in the same memory: of codes if these have 16 bits or less."""
    vector = as_array(tensor).reshape(-1)
    return vector if vector.itemsize > 2 else vector.view(f"u{vector.itemsize}")
