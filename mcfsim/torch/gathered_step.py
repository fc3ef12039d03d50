"""Steps that need whole parameters, where processes have parts: these are put together for the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcfsim.torch.change_log import noted
from mcfsim.torch.grid_step import GridStep
from mcfsim.torch.local import gathered, own_part
from mcfsim.torch.moved import ParameterSlice, StepInputs, StepRunner
from mcfsim.torch.state_layout import StateLayout


class GatheredStep:
    """A step runner that hands whole parameters to another one, and keeps the part of this process.

    Each process makes the same step of the whole. For one parameter at a time it has the gradient, the
    weights and their state whole in memory; each of these is sent once a step.

    Parameters
    ----------
    stores : StateLayout
    inner : StepRunner
        Makes the step of whole parameters.
    """

    def __init__(self, stores: StateLayout, inner: StepRunner) -> None:
        self.stores, self._inner = stores, inner

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> None:
        """Make a step of these parameters; all processes that have parts of them must do so."""
        if here := [x for x in moved if not x.cut]:
            self._inner.move(here, inputs)
        for x in moved:
            if x.cut:
                whole = _whole(x)
                with noted(x):
                    self._inner.move([whole], inputs)
                    _keep(x, whole)

    def asked(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> list[torch.Tensor]:
        """Return the intended update of a step: one float64 vector per parameter, of its part here."""
        found = []
        for x in moved:
            (update,) = self._inner.asked([_whole(x) if x.cut else x], inputs)
            if x.like is not None:
                update = own_part(update.view(x.like.shape), x.like).reshape(-1)
            found.append(update)
        return found

    def begin(self, x: ParameterSlice) -> None:
        """Put a parameter on its grid at the start."""
        assert isinstance(self._inner, GridStep)
        whole = _whole(x) if x.cut else x
        self._inner.begin(whole)
        _keep(x, whole)


def _whole(x: ParameterSlice) -> ParameterSlice:
    """Return a slice of the whole parameter, put together from all processes."""
    assert x.like is not None
    tensors = {name: gathered(y, x.like) if name in x.cut else y for name, y in x.tensors.items()}
    return x._replace(tensors=tensors, gradient=gathered(x.gradient, x.like), cut=(), like=None, log=None)


def _keep(x: ParameterSlice, whole: ParameterSlice) -> None:
    """Write the parts of this process; what it has whole is written already."""
    for name in x.cut:
        assert x.like is not None
        x.tensors[name].copy_(own_part(whole.tensors[name], x.like))
