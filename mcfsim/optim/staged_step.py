"""Steps in stages: each stage a block at a time, by Numba or NumPy, and the means between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import Filler
from mcfsim.compile.program import Program, flat
from mcfsim.formats import Format, get_format
from mcfsim.optim.layout import Layout
from mcfsim.optim.means import check_mean, mean
from mcfsim.optim.over import Over, Shape
from mcfsim.optim.stage_programs import StagePrograms
from mcfsim.optim.staged import Mean, Stage, Staged, in_stages
from mcfsim.optim.state import State
from mcfsim.optim.state_slices import offsets, parts_of
from mcfsim.optim.step_programs import numbers, words_of
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.stripes import in_stripes
from mcfsim.optim.vectors import Formats, is_packed, read, write
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]

#: Fewer elements are not worth looking whether compiling pays.
_LEAST_COMPILED = 1 << 12
#: Random words are those of an element's index, in an area of so many indices for each part of a step.
_AREA = 1 << 40


class StagedSteps:
    """The steps of an optimizer in stages, tensor by tensor.

    What stages make is kept for the whole of one tensor, in carriers, and no more.

    Parameters
    ----------
    hyper, strategy, roles, layout
        Of the optimizer.

    Raises
    ------
    ValueError, UnsupportedFormatError
        If a mean cannot be rounded once, see `mcfsim.optim.means.check_mean`.
    """

    def __init__(self, hyper: Staged, strategy: Strategy, roles: Roles, layout: Layout) -> None:
        self.hyper, self.strategy, self.layout = hyper, strategy, layout
        self.parts = parts_of(hyper, layout)
        self.offsets = offsets(layout)
        self.programs = StagePrograms(hyper, strategy)
        for shape in layout.shapes.values():
            for item in hyper.stages(shape):
                if isinstance(item, Mean):
                    check_mean(roles.of(item.role), item.accumulator)

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
    ) -> Callable[[], None]:
        """Return what makes a step in place, and puts the update in a vector if there is one.

        Parameters
        ----------
        roles, state, formats, gradient, update
            As of `mcfsim.optim.optimizer.Optimizer`.
        count : int
            Which step it is, from 1.
        rate : float
            The learning rate.
        threads, ahead : int
            Threads that share a stage, and steps that are sure to follow.
        """
        scalars = {
            decayed: self.hyper.scalars(roles, self.strategy, count, rate, decayed=decayed)
            for decayed in (True, False)
        }
        tensors = {name: part for name, part in self.layout.slices.items() if part.stop > part.start}
        received = self._format_of(gradient)
        made = {
            name: _Tensor(self, roles, scalars[self._decayed(part)], name, count, threads, received, ahead)
            for name, part in tensors.items()
        }

        def move() -> None:
            for name, part in tensors.items():
                known = self._known(name, part, state, formats)
                known["gradient"] = read(gradient[part], received)
                with np.errstate(all="ignore"):
                    shape = self.layout.shapes[name]
                    found = in_stages(self.hyper, shape, known, made[name].carry_out, made[name].take_mean)
                self._keep(name, part, state, formats, found)
                if update is not None:
                    write(update[part], found["update"].reshape(-1), roles.update.format)

        return move

    def _known(self, name: str, part: slice, state: State, formats: Formats) -> dict[str, Any]:
        """Return a tensor's state, by the names that stages have for it."""
        return {
            label: tuple(read(x[place], fmt) for x in vectors)
            for vectors, fmt, places in self._places(name, part, state, formats)
            for label, place in places.items()
        }

    def _keep(self, name: str, part: slice, state: State, formats: Formats, found: Mapping[str, Any]) -> None:
        """Put a tensor's new state in its place."""
        for vectors, fmt, places in self._places(name, part, state, formats):
            for label, place in places.items():
                for x, made in zip(vectors, found[label], strict=True):
                    write(x[place], made.reshape(-1), fmt)

    def _places(self, name: str, part: slice, state: State, formats: Formats) -> list[Any]:
        """Return vectors, their format, and where a tensor's numbers lie in them, by name."""
        where: dict[str, Mapping[str, slice]] = {"parameter": {"parameter": part}, "extra": {"extra": part}}
        where |= {slot: parts.slices[name] for slot, parts in self.parts.items()}
        return [
            (vectors, fmt, where[label])
            for label, vectors, fmt in zip(State._fields, state, formats, strict=True)
            if label in where
        ]

    def _decayed(self, part: slice) -> bool:
        return bool(part.stop <= self.layout.decayed_size)

    def _format_of(self, gradient: Array) -> Format | None:
        """Return what the gradient's numbers are values of; None of those that NumPy has no name for here."""
        if is_packed(gradient):
            return self.strategy.gradient.format
        return get_format(str(gradient.dtype)) if gradient.dtype in (np.float32, np.float64) else None


class _Tensor:
    """What carries out the stages of one tensor's step."""

    def __init__(
        self,
        steps: StagedSteps,
        roles: Roles,
        scalars: Any,
        name: str,
        count: int,
        threads: int,
        received: Format | None,
        ahead: int,
    ) -> None:
        self.strategy, self.roles, self.scalars = steps.strategy, roles, scalars
        self.count, self.threads = count, threads
        self._offsets = steps.offsets[name]
        shape = steps.layout.shapes[name]
        compiled = how_compiled(roles)
        self._fillers: dict[int, tuple[Filler, Any]] = {}
        if compiled is False or received is None:
            return
        kept = loops(roles.moments.scalars, apart=True)  # type: ignore[attr-defined]

        def words(program: Program) -> dict[int, RandomWords]:
            return words_of(roles, count)

        for place, (stage, program, results) in steps.programs.of(roles, scalars, shape, received).items():
            elements = stage.over.count(shape)
            if compiled is None and elements < _LEAST_COMPILED:
                continue
            filler = kept.filler(
                *(partial(_itself, program), elements, compiled, numbers(scalars), words, elements * ahead),
                by_numpy=True,
            )
            if filler is not None:
                self._fillers[place] = filler.on_threads(threads), results

    def carry_out(self, place: int, stage: Stage, given: dict[str, Any]) -> dict[str, Any]:
        """Carry out a stage, a block at a time."""
        leaves = list(flat(tuple(given.values())))
        shape = leaves[0].shape
        size, first = leaves[0].size, self._first(place, stage.over)
        filler, named = self._fillers.get(place, (None, None))
        pieces: dict[int, list[Array]] = {}

        def work(block: slice) -> None:
            nonlocal named
            operands = [_flat(x, block) for x in leaves]
            if filler is not None:
                made = [np.empty(block.stop - block.start, dtype) for dtype in filler.results]
                filler(operands, made, first + block.start)
            else:
                roles = Roles(*_on_block(self.roles, self.count, first + block.start))
                known = dict(zip(given, _nested(tuple(given.values()), iter(operands)), strict=True))
                with np.errstate(all="ignore"):
                    results = stage.text(roles, self.strategy, known, self.scalars)
                named, made = results, list(flat(tuple(results.values())))
            pieces[block.start] = made

        in_stripes(work, slice(0, size), BLOCK if filler is None else filler.block, self.threads)
        joined = (
            np.concatenate(parts).reshape(shape)
            for parts in zip(*(pieces[start] for start in sorted(pieces)), strict=True)
        )
        assert named is not None
        return dict(zip(named, _nested(tuple(named.values()), joined), strict=True))

    def take_mean(self, place: int, item: Mean, x: Array, target: Shape) -> Array:
        """Take a mean."""
        ar = self.roles.of(item.role).on_block(self.count, self._first(place, item.over))
        return mean(ar, x, target, item.accumulator)

    def _first(self, place: int, over: Over) -> int:
        """Return the index of the first random word of a part of the step."""
        return (place * len(Over) + over.place) * _AREA + self._offsets[over]


def _on_block(roles: Roles, count: int, first: int) -> list[Any]:
    made = {id(ar): ar.on_block(count, first) for ar in roles}  # one for each, if several roles share it
    return [made[id(ar)] for ar in roles]


def _itself(program: Program) -> Program:
    return program


def _flat(x: Array, block: slice) -> Array:
    """Return numbers of an array in row-major order as a vector, a view where that is possible."""
    return x.reshape(-1)[block] if x.flags.c_contiguous else np.ascontiguousarray(x.flat[block])


def _nested(like: Any, leaves: Any) -> Any:
    """Return leaves in the form of nested tuples."""
    return tuple(_nested(item, leaves) for item in like) if isinstance(like, tuple) else next(leaves)
