"""Steps in stages, run tensor by tensor: each stage a block at a time, and the means between stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import flat, mapped
from mcfsim.optim.declaration import Granularity, Shape
from mcfsim.optim.layout import Layout, in_stripes, offsets, parts_of
from mcfsim.optim.staged import Gathered, Stage, check_step, in_stages
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import CompiledStep
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.vectors import Formats, read, write
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]

#: Number of indices of random words for each part of a step; elements take words by their index in it.
_AREA = 1 << 40


class StagedSteps:
    """The steps of an optimizer in stages, made tensor by tensor.

    The results of stages are kept, in carriers, for one whole tensor at a time.

    Parameters
    ----------
    compiled : CompiledStep
        The loops of the optimizer's stages.
    roles, layout
        The optimizer's arithmetics and layout.

    Raises
    ------
    ValueError, UnsupportedFormatError
        If an arithmetic cannot make a step, see `mcfsim.optim.staged.check_step`.
    """

    def __init__(self, compiled: CompiledStep, roles: Roles, layout: Layout) -> None:
        self.compiled, self.hyper, self.layout = compiled, compiled.hyper, layout
        self.parts = parts_of(self.hyper, layout)
        self.offsets = offsets(layout.shapes)
        self.shapes = {name: self.hyper.viewed(name, shape) for name, shape in layout.shapes.items()}
        for shape in {*self.shapes.values()}:
            check_step(self.hyper, compiled.strategy, roles, shape)

    def planned(
        self,
        roles: Roles,
        state: State,
        formats: Formats,
        gradient: Array,
        update: Array | None,
        *,
        count: int,
        rate: float,
        threads: int,
        ahead: int,
        before: Mapping[str, Mapping[Granularity, int]] | None = None,
    ) -> Callable[[], None]:
        """Return a function that makes a step in place, and writes the update to a vector if there is one.

        Parameters
        ----------
        roles, state, formats, gradient, update
            As in `mcfsim.optim.optimizer.Optimizer`.
        count : int
            The number of the step, counted from 1.
        rate : float
            The learning rate.
        threads, ahead : int
            The number of threads that share a stage, and of steps that are sure to follow.
        before : mapping of str to mapping of Granularity to int, optional
            How many numbers the tensors before each tensor have, which determines its random words; by
            default as in the layout.
        """
        before = self.offsets if before is None else before
        strategy, edge = self.compiled.strategy, self.layout.decayed_size
        scalars = {
            decayed: self.hyper.scalars(roles, strategy, count, rate, decayed=decayed)
            for decayed in (True, False)
        }
        tensors = {name: part for name, part in self.layout.slices.items() if part.stop > part.start}
        received = self.compiled.received(gradient)
        made, places = {}, {}
        for name, part in tensors.items():
            places[name] = self._places(name, part, state, formats)
            shape = self.shapes[name]
            given = roles, self.hyper.of_shape(roles, scalars[part.stop <= edge], shape)
            found = self.compiled.bound_loops(*given, gradient, shape, count, ahead)
            bound = {place: (item.loop.on_threads(threads), item.results) for place, item in found.items()}
            made[name] = _Tensor(strategy, *given, count, threads, before[name], bound)

        def results(name: str, part: slice) -> dict[str, Any]:
            tensor = made[name]
            known: dict[str, Any] = {
                label: tuple(read(x[at], fmt) for x in vectors) for label, at, vectors, fmt in places[name]
            }
            known["gradient"] = gradient[part] if received is None else read(gradient[part], received)
            with np.errstate(all="ignore"):
                return in_stages(self.hyper, self.shapes[name], known, tensor.carry_out, tensor.gather)

        # In exact numbers an operation without a result raises before anything is changed.
        exact = roles.update.format is None
        ready = {name: results(name, part) for name, part in tensors.items()} if exact else {}

        def move() -> None:
            for name, part in tensors.items():
                found = ready[name] if exact else results(name, part)
                for label, at, vectors, fmt in places[name]:
                    for x, new in zip(vectors, found[label], strict=True):
                        write(x[at], new.reshape(-1), fmt)
                if update is not None:
                    write(update[part], found["update"].reshape(-1), roles.update.format)

        return move

    def _places(self, name: str, part: slice, state: State, formats: Formats) -> list[Any]:
        """Return names of a tensor's numbers, their place in vectors, these vectors and their format."""
        where: dict[str, Mapping[str, slice]] = {"parameter": {"parameter": part}, "extra": {"extra": part}}
        where |= {slot: parts.slices[name] for slot, parts in self.parts.items()}
        return [
            (label, place, vectors, fmt)
            for field, vectors, fmt in zip(State._fields, state, formats, strict=True)
            for label, place in where.get(field, {}).items()
        ]


@dataclass
class _Tensor:
    """A runner of one tensor's step."""

    strategy: Strategy
    roles: Roles
    scalars: Any
    count: int
    threads: int
    offsets: Mapping[Granularity, int]
    bound: Mapping[int, tuple[BoundLoop, dict[str, Any]]]

    def carry_out(self, place: int, stage: Stage, given: dict[str, Any]) -> dict[str, Any]:
        """Run a stage, a block at a time, and return its results by name."""
        arrays = flat(tuple(given.values()))
        # Numbers that elements share are copied for each element once: NumPy is slow to take blocks
        # otherwise.
        leaves = [np.ascontiguousarray(x).reshape(-1) for x in arrays]
        shape, size, first = arrays[0].shape, arrays[0].size, self._first(place, stage.over)
        loop, named = self.bound.get(place, (None, None))
        if loop is not None:
            results = [np.empty(size, dtype) for dtype in loop.results]

            def run(block: slice) -> None:
                loop([x[block] for x in leaves], [y[block] for y in results], first + block.start)

            in_stripes(run, slice(0, size), loop.block, self.threads)
        else:
            results, named = self._by_operations(stage, given, leaves, first)
        made = (y.reshape(shape) for y in results)
        assert named is not None
        return {label: mapped(lambda _: next(made), x) for label, x in named.items()}

    def _by_operations(
        self, stage: Stage, given: dict[str, Any], leaves: list[Array], first: int
    ) -> tuple[list[Array], dict[str, Any]]:
        """Run a stage by operations on blocks; return its results as vectors, and one block's by name."""
        pieces: dict[int, dict[str, Any]] = {}

        def work(block: slice) -> None:
            roles = self.roles.on_block(self.count, first + block.start)
            taken = iter([x[block] for x in leaves])
            known = {label: mapped(lambda _: next(taken), x) for label, x in given.items()}
            with np.errstate(all="ignore"):
                pieces[block.start] = stage.algorithm(roles, self.strategy, known, self.scalars)

        in_stripes(work, slice(0, leaves[0].size), BLOCK, self.threads)
        parts = [flat(tuple(pieces[start].values())) for start in sorted(pieces)]
        return [np.concatenate(items) for items in zip(*parts, strict=True)], pieces[0]

    def gather(self, place: int, item: Gathered, x: Array, target: Shape) -> Array:
        """Return the numbers that `item` makes of an array."""
        ar = self.roles.of(item.role).on_block(self.count, self._first(place, item.over))
        return item.taken(ar, x, target)

    def _first(self, place: int, over: Granularity) -> int:
        """Return the index of the first random word for a part of the step."""
        return (place * len(Granularity) + over.place) * _AREA + self.offsets[over]
