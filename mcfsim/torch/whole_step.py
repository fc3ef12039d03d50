"""Steps of whole parameters: in stages, on grids, and put together from the parts of several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout, StateSlices
from mcfsim.optim.on_grid import OnGrid
from mcfsim.optim.staged_step import StagedSteps
from mcfsim.optim.step_programs import CompiledStep
from mcfsim.optim.strategies import DEFAULT_WORDS
from mcfsim.optim.vectors import form, read, write
from mcfsim.random import RandomWords
from mcfsim.torch.change_log import noted
from mcfsim.torch.local import gathered, own_part
from mcfsim.torch.moved import ParameterSlice, StepInputs, StepRunner, Updates
from mcfsim.torch.state_layout import SCALE, StateLayout, packed
from mcfsim.torch.straight_step import AHEAD

Shape = tuple[int, ...]


class WholeStep:
    """A step runner for steps in stages. Tensors of a GPU are copied to the CPU and back.

    It keeps the stages of each shape, and their loops, from step to step.
    """

    def __init__(self, stores: StateLayout) -> None:
        self.stores = stores
        made = partial(CompiledStep, strategy=stores.strategy.unshared, packed=True)
        self._compiled = lru_cache(maxsize=64)(made)
        self._made = lru_cache(maxsize=1024)(self._steps)

    def slots(self, hyper: Declaration, name: str, shape: Shape) -> Mapping[str, StateSlices]:
        """Return the parts of each slot of a parameter; raise if its arithmetic cannot make the step."""
        return self._made(hyper, name, shape).parts

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of these parameters; append the intended update of each to `updates`, if given."""
        fmt = self.stores.roles.update.format
        for x in moved:
            if x.gradient.numel():
                update = None if updates is None else np.empty(x.gradient.numel(), form(fmt, packed=True))
                with noted(x):
                    self._move(x, inputs, update)
                if updates is not None and update is not None:
                    updates.append(torch.from_numpy(read(update, fmt).astype(np.float64)))

    def _steps(self, hyper: Declaration, name: str, shape: Shape) -> StagedSteps:
        layout = Layout({name: np.broadcast_to(np.float32(0), shape)}, {name})
        return StagedSteps(self._compiled(hyper), self.stores.roles, layout)

    def _move(self, x: ParameterSlice, inputs: StepInputs, update: NDArray[Any] | None) -> None:
        """Make the step of one parameter; write the update to a vector if there is one."""
        stores, whole = self.stores, x.whole
        assert whole is not None
        steps = self._made(inputs.hyper, whole.name, tuple(x.gradient.shape))
        here = {name: on_host(y) for name, y in x.tensors.items()}
        vectors = stores.vectors(here, {name: steps.parts[name].every() for name in stores.grouped})
        gradient = packed(on_host(stores.received(x.gradient)))
        steps.planned(
            *(stores.roles, *stores.state_of(vectors), gradient, update),
            count=inputs.number,
            rate=inputs.rate,
            threads=torch.get_num_threads(),
            ahead=AHEAD,
            before={whole.name: whole.before},
        )()
        stores.requantize(here, steps.parts)
        for name, y in x.tensors.items():
            if here[name] is not y:
                y.copy_(here[name])


def on_host(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the CPU whose elements lie one after another; itself if it is one."""
    return x.resolve_neg().cpu().contiguous()


# -- on grids ---------------------------------------------------------------------------------------------
class GridStep:
    """A step runner for strategies whose parameter lies on a grid; tensors are rounded on the CPU.

    Parameters
    ----------
    stores : StateLayout
    inner : StepRunner
        Makes the step before weights are put on their grids.
    random : RandomWords or None
        The words of the run.
    """

    def __init__(self, stores: StateLayout, inner: StepRunner, random: RandomWords | None) -> None:
        self.stores, self._inner, self._random = stores, inner, random or DEFAULT_WORDS
        grid_of(stores, 0, self._random)  # raises if the run uses so many words that none are left for a grid

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of these parameters; a first step puts them on their grids beforehand.

        `updates`, if given, receives the intended update of each, from weights that are on their grids.
        """
        with ExitStack() as stack:
            for x in moved:
                stack.enter_context(noted(x))
                if _begins(x, inputs):
                    self.begin(x)
            grids = [self._grid(x) for x in moved]
            for x, grid in zip(moved, grids, strict=True):
                grid.before(read(packed(on_host(x.tensors["parameter"])), grid.format))
            self._inner.move([_without_scale(x) for x in moved], inputs, updates)
            for x, grid in zip(moved, grids, strict=True):
                self._put(x, grid, inputs.number)

    def begin(self, x: ParameterSlice) -> None:
        """Put a parameter on its grid at the start."""
        self._put(x, self._grid(x), None)

    def _put(self, x: ParameterSlice, grid: OnGrid, step: int | None) -> None:
        """Put a parameter on its grid after a step, or at the start, and keep the scale."""
        weights = on_host(x.tensors["parameter"])
        vector = packed(weights)
        numbers = read(vector, grid.format)
        if step is None:
            grid.begin(numbers)
        else:
            grid.after(numbers, step, x.first)
        if numbers is not vector:
            write(vector, numbers, grid.format)
        if weights is not x.tensors["parameter"]:
            x.tensors["parameter"].copy_(weights)
        x.tensors[SCALE].fill_(float(grid.scales[0]))

    def _grid(self, x: ParameterSlice) -> OnGrid:
        """Return the grid of a parameter, with the scale that its state has."""
        made = grid_of(self.stores, x.gradient.numel(), self._random)
        made.scales[0] = float(x.tensors[SCALE])
        return made


def _begins(x: ParameterSlice, inputs: StepInputs) -> bool:
    """Return whether a step begins by putting a parameter on its grid."""
    return inputs.number == 1 and not x.tensors[SCALE]


def grid_of(stores: StateLayout, size: int, random: RandomWords = DEFAULT_WORDS) -> OnGrid:
    """Return the grid, not yet begun, of one parameter of `size` elements."""
    grid = stores.strategy.parameter.grid
    assert grid is not None
    return OnGrid(grid, stores.formats["parameter"], {"": slice(0, size)}, random)


def _without_scale(x: ParameterSlice) -> ParameterSlice:
    """Return a slice for the step before the grid, whose changes are not logged, as they are not final."""
    return x._replace(log=None, tensors={name: y for name, y in x.tensors.items() if name != SCALE})


# -- put together from processes --------------------------------------------------------------------------
class GatheredStep:
    """A step runner that hands whole parameters to another one, and keeps the part of this process.

    Each process makes the same step of the whole. For one parameter at a time it has the gradient, the
    weights and their state whole in memory; each of these is sent once per step.

    Parameters
    ----------
    stores : StateLayout
    inner : StepRunner
        Makes the step of whole parameters.
    """

    def __init__(self, stores: StateLayout, inner: StepRunner) -> None:
        self.stores, self._inner = stores, inner

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs, updates: Updates = None) -> None:
        """Make a step of these parameters; all processes that have parts of them must do so.

        `updates`, if given, receives the intended update of each, for its part here.
        """
        for cut, some in groupby(moved, attrgetter("cut")):
            if not cut:
                self._inner.move([*some], inputs, updates)
                continue
            for x in some:
                whole = _whole(x)
                with noted(x):
                    self._inner.move([whole], inputs, updates)
                    _keep(x, whole)
                if updates is not None and x.like is not None and whole.size:
                    updates[-1] = own_part(updates[-1].view(x.like.shape), x.like).reshape(-1)

    def begin(self, x: ParameterSlice) -> None:
        """Put a parameter on its grid at the start."""
        assert isinstance(self._inner, GridStep)
        whole = _whole(x) if x.cut else x
        self._inner.begin(whole)
        _keep(x, whole)


def as_found(
    runner: StepRunner, moved: Sequence[ParameterSlice], inputs: StepInputs
) -> Sequence[ParameterSlice]:
    """Return parameters as a step moves them: copies on their grids, if it begins by putting them there."""
    if runner.stores.strategy.parameter.grid is None or not isinstance(runner, GridStep | GatheredStep):
        return moved
    found = []
    for x in moved:
        if _begins(x, inputs):
            x = x.copied()
            runner.begin(x)
        found.append(x)
    return found


def _whole(x: ParameterSlice) -> ParameterSlice:
    """Return a slice of the whole parameter, put together from all processes."""
    assert x.like is not None
    tensors = {name: gathered(y, x.like) if name in x.cut else y for name, y in x.tensors.items()}
    return x._replace(tensors=tensors, gradient=gathered(x.gradient, x.like), cut=(), like=None, log=None)


def _keep(x: ParameterSlice, whole: ParameterSlice) -> None:
    """Write the parts of this process; tensors that it has whole are written already."""
    for name in x.cut:
        assert x.like is not None
        x.tensors[name].copy_(own_part(whole.tensors[name], x.like))
