"""Steps of parameters on grids: another runner makes the step, then each tensor is rounded onto its grid."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from mcfsim.optim.on_grid import OnGrid
from mcfsim.optim.strategies import DEFAULT_WORDS
from mcfsim.optim.vectors import read, write
from mcfsim.random import RandomWords
from mcfsim.torch.change_log import noted
from mcfsim.torch.moved import ParameterSlice, StepInputs, StepRunner
from mcfsim.torch.state_layout import SCALE, StateLayout, packed
from mcfsim.torch.whole_step import on_host


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
        grid_of(stores, 0, self._random)  # raises if words are so many that none are left for a grid

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> None:
        """Make a step of these parameters; a first one puts them on their grids before."""
        with ExitStack() as stack:
            for x in moved:
                stack.enter_context(noted(x))
                if inputs.number == 1 and not x.tensors[SCALE]:
                    self.begin(x)
            grids = [self._grid(x) for x in moved]
            for x, grid in zip(moved, grids, strict=True):
                grid.before(read(packed(on_host(x.tensors["parameter"])), grid.format))
            self._inner.move([_without_scale(x) for x in moved], inputs)
            for x, grid in zip(moved, grids, strict=True):
                self._put(x, grid, inputs.number)

    def asked(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> list[torch.Tensor]:
        """Return the intended update of a step: one float64 vector per parameter."""
        return self._inner.asked([_without_scale(x) for x in moved], inputs)

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


def grid_of(stores: StateLayout, size: int, random: RandomWords = DEFAULT_WORDS) -> OnGrid:
    """Return the grid of one parameter of so many elements, which is not begun."""
    grid = stores.strategy.parameter.grid
    assert grid is not None
    return OnGrid(grid, stores.formats["parameter"], {"": slice(0, size)}, random)


def _without_scale(x: ParameterSlice) -> ParameterSlice:
    """Return a slice for the step before the grid, whose changes are none yet."""
    return x._replace(log=None, tensors={name: y for name, y in x.tensors.items() if name != SCALE})
