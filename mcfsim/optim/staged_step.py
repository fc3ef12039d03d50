"""Steps in stages: stages recorded as programs and run a block at a time, and the means between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import how_compiled
from mcfsim.compile.choice import loops
from mcfsim.compile.loops import BoundLoop
from mcfsim.compile.program import Program, Register, Scalar, flat
from mcfsim.compile.tracing import trace
from mcfsim.formats import Format, get_format
from mcfsim.optim.declaration import Granularity, Shape
from mcfsim.optim.layout import Layout, in_stripes, offsets, parts_of
from mcfsim.optim.staged import Mean, Stage, Staged, check_mean, in_stages, mapped, mean
from mcfsim.optim.state import State
from mcfsim.optim.step_programs import numbers, recorders, symbols, words_of
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.vectors import Formats, is_packed, read, write
from mcfsim.protocol import Arithmetic
from mcfsim.random import RandomWords
from mcfsim.storage.buffers import BLOCK

# -- programs ---------------------------------------------------------------------------------------------
#: Formats of the intermediate results of a step, by name; a tuple for several components.
_Formats = dict[str, Any]
#: A stage, its program, and the program's results by name.
Recorded = tuple[Stage, Program, dict[str, Any]]


def record_stages(
    hyper: Staged,
    strategy: Strategy,
    roles: Roles,
    scalars: Any,
    shape: tuple[int, ...],
    *,
    gradient: Format | None = None,
    lines: bool = False,
) -> dict[int, Recorded]:
    """Record the stages of one tensor's step.

    Parameters
    ----------
    hyper, strategy, roles
        The optimizer's hyperparameters, strategy and arithmetics.
    scalars
        The step's scalars, as `Declaration.scalars` returns them: Python numbers, or symbols for them.
    shape : tuple of int
        The shape of the tensor.
    gradient : Format, optional
        The format of the gradient; by default the format in which the strategy stores it.
    lines : bool, optional
        Whether to record the source lines of the stages.

    Returns
    -------
    dict of int to tuple
        Stage, program, and registers of its results by name; keyed by the place in `Staged.stages`.

    Raises
    ------
    TypeError, ValueError
        If a stage is no straight line, or computes with exact numbers.
    """
    if any(role.format is None or role.rounding is None for role in roles):
        raise ValueError("a step in exact numbers is no program")
    formats: _Formats = {"gradient": gradient or strategy.gradient.format or roles.moments.format}
    of = {"parameter": roles.model.format, "extra": roles.parameter.format}
    for label in of:
        stored = strategy.tensors.get(label)
        formats[label] = (of[label],) * (stored.components if stored else 0)
    for slot in hyper.slots:
        kept = strategy.tensors[slot.name]
        formats |= {
            name: (roles.of(slot.name).format,) * kept.components for name in hyper.parts(slot.name, shape)
        }
    found = {}
    for place, item in enumerate(hyper.stages(shape)):
        if isinstance(item, Mean):
            formats[item.name] = roles.of(item.role).format
        else:
            program, results = _record(item, strategy, roles, scalars, formats, lines=lines)
            name = f"{type(hyper).__name__.lower()}.{item.name}, {strategy.name}"
            found[place] = item, replace(program, name=name), results
            formats |= {label: mapped(made, lambda x: x.format) for label, made in results.items()}
    return found


def _record(
    stage: Stage, strategy: Strategy, roles: Roles, scalars: Any, formats: _Formats, *, lines: bool
) -> tuple[Program, dict[str, Any]]:
    names: list[str] = []

    def text(ar: Arithmetic, *given: Any) -> Any:
        known = dict(zip(stage.takes, given, strict=True))
        made = stage.text(recorders(ar, roles), strategy, known, scalars)
        names[:] = made
        return tuple(made.values())

    def register(name: str) -> Any:
        fmt = formats[name]
        if not isinstance(fmt, tuple):
            return Register(name, fmt)
        return tuple(Register(f"{name}{place}", one) for place, one in enumerate(fmt))

    assert roles.moments.format is not None
    # The first arithmetic of the recording runs nothing and is no source of random words.
    program = trace(text, roles.moments.format, operands=tuple(map(register, stage.takes)), lines=lines)
    operands = (x for step in program.steps for x in step.operands)
    named = dict.fromkeys(x.name for x in operands if isinstance(x, Scalar))
    return replace(program, scalars=tuple(named)), dict(zip(names, program.results, strict=True))


class StagePrograms:
    """The stages of an optimizer as programs, recorded once for all values of the scalars.

    Parameters
    ----------
    hyper, strategy
        The optimizer's hyperparameters and strategy.
    """

    def __init__(self, hyper: Staged, strategy: Strategy) -> None:
        self._given = hyper, strategy
        self._programs: dict[Any, dict[int, Recorded]] = {}

    def of(self, roles: Roles, scalars: Any, shape: tuple[int, ...], gradient: Format) -> dict[int, Recorded]:
        """Return the stages of a tensor's step for a gradient of a format, with its scalars as symbols.

        If a stage computes with scalars, all are recorded anew each time, with the scalars as numbers.
        """
        symbolic = symbols(scalars)
        numbers = ("" if isinstance(x, Scalar) else repr(x) for x in flat(symbolic))
        key = self._given[0].stages(shape), gradient, *numbers
        if key not in self._programs:
            try:
                self._programs[key] = record_stages(*self._given, roles, symbolic, shape, gradient=gradient)
            except TypeError:
                return record_stages(*self._given, roles, scalars, shape, gradient=gradient)
        return self._programs[key]


# -- steps ------------------------------------------------------------------------------------------------
Array = NDArray[Any]

#: With fewer elements, it is not worth asking whether compiling pays.
_LEAST_COMPILED = 1 << 12
#: Number of indices of random words for each part of a step; elements take words by their index in it.
_AREA = 1 << 40


class StagedSteps:
    """The steps of an optimizer in stages, made tensor by tensor.

    The results of stages are kept, in carriers, for one whole tensor at a time.

    Parameters
    ----------
    hyper, strategy, roles, layout
        The optimizer's hyperparameters, strategy, arithmetics and layout.

    Raises
    ------
    ValueError, UnsupportedFormatError
        If a mean cannot be rounded once, see `mcfsim.optim.staged.check_mean`.
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
        """Return a tensor's state by the names that stages use."""
        return {
            label: tuple(read(x[place], fmt) for x in vectors)
            for vectors, fmt, places in self._places(name, part, state, formats)
            for label, place in places.items()
        }

    def _keep(self, name: str, part: slice, state: State, formats: Formats, found: Mapping[str, Any]) -> None:
        """Write a tensor's new state to the vectors."""
        for vectors, fmt, places in self._places(name, part, state, formats):
            for label, place in places.items():
                for x, made in zip(vectors, found[label], strict=True):
                    write(x[place], made.reshape(-1), fmt)

    def _places(self, name: str, part: slice, state: State, formats: Formats) -> list[Any]:
        """Return vectors, their format, and the places of a tensor's numbers in them by name."""
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
        """Return the format of the gradient's numbers; None unless they are codes, float32 or float64."""
        if is_packed(gradient):
            return self.strategy.gradient.format
        return get_format(str(gradient.dtype)) if gradient.dtype in (np.float32, np.float64) else None


class _Tensor:
    """A runner of the stages and means of one tensor's step."""

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
        self._bound_loops: dict[int, tuple[BoundLoop, Any]] = {}
        if compiled is False or received is None:
            return
        kept = loops(roles.moments.scalars, apart=True)  # type: ignore[attr-defined]

        def words(program: Program) -> dict[int, RandomWords]:
            return words_of(roles, count)

        for place, (stage, program, results) in steps.programs.of(roles, scalars, shape, received).items():
            elements = stage.over.count(shape)
            if compiled is None and elements < _LEAST_COMPILED:
                continue
            bound_loop = kept.bound_loop(
                *(partial(_itself, program), elements, compiled, numbers(scalars), words, elements * ahead),
                by_numpy=True,
            )
            if bound_loop is not None:
                self._bound_loops[place] = bound_loop.on_threads(threads), results

    def carry_out(self, place: int, stage: Stage, given: dict[str, Any]) -> dict[str, Any]:
        """Run a stage, a block at a time, and return its results by name."""
        leaves = flat(tuple(given.values()))
        shape = leaves[0].shape
        size, first = leaves[0].size, self._first(place, stage.over)
        bound_loop, named = self._bound_loops.get(place, (None, None))
        pieces: dict[int, list[Array]] = {}

        def work(block: slice) -> None:
            nonlocal named
            operands = [_flat(x, block) for x in leaves]
            if bound_loop is not None:
                made = [np.empty(block.stop - block.start, dtype) for dtype in bound_loop.results]
                bound_loop(operands, made, first + block.start)
            else:
                roles = Roles(*_on_block(self.roles, self.count, first + block.start))
                known = dict(zip(given, _nested(tuple(given.values()), iter(operands)), strict=True))
                with np.errstate(all="ignore"):
                    results = stage.text(roles, self.strategy, known, self.scalars)
                named, made = results, flat(tuple(results.values()))
            pieces[block.start] = made

        in_stripes(work, slice(0, size), BLOCK if bound_loop is None else bound_loop.block, self.threads)
        joined = (
            np.concatenate(parts).reshape(shape)
            for parts in zip(*(pieces[start] for start in sorted(pieces)), strict=True)
        )
        assert named is not None
        return dict(zip(named, _nested(tuple(named.values()), joined), strict=True))

    def take_mean(self, place: int, item: Mean, x: Array, target: Shape) -> Array:
        """Return the means that `item` describes of an array."""
        ar = self.roles.of(item.role).on_block(self.count, self._first(place, item.over))
        return mean(ar, x, target, item.accumulator)

    def _first(self, place: int, over: Granularity) -> int:
        """Return the index of the first random word for a part of the step."""
        return (place * len(Granularity) + over.place) * _AREA + self._offsets[over]


def _on_block(roles: Roles, count: int, first: int) -> list[Any]:
    made = {id(ar): ar.on_block(count, first) for ar in roles}  # roles still share arithmetics
    return [made[id(ar)] for ar in roles]


def _itself(program: Program) -> Program:
    return program


def _flat(x: Array, block: slice) -> Array:
    """Return a block of an array in row-major order as a vector; a view if possible."""
    return x.reshape(-1)[block] if x.flags.c_contiguous else np.ascontiguousarray(x.flat[block])


def _nested(like: Any, leaves: Any) -> Any:
    """Return leaves in the nested tuples of `like`."""
    return tuple(_nested(item, leaves) for item in like) if isinstance(like, tuple) else next(leaves)
