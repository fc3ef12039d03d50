"""Steps on tensors of the CPU by one loop, compiled where that pays, as of `mcfsim.Optimizer`'s vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import torch
from numpy.typing import NDArray

from mcfsim.backends.strung_tensors import TORCH_DTYPES, as_array, torch_dtype
from mcfsim.compile.loops import Filler
from mcfsim.formats import Format
from mcfsim.optim.compiled_step import CompiledStep, fill_block
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.groups import common_edges
from mcfsim.optim.stripes import in_stripes
from mcfsim.optim.vectors import Vector
from mcfsim.storage.buffers import BLOCK
from mcfsim.torch.grouped import SCALES
from mcfsim.torch.moved import Moved, Stores

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
