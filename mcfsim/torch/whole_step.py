"""Steps in stages on tensors: each parameter is moved whole, on the CPU, as `mcfsim.Optimizer` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout, StateSlices
from mcfsim.optim.staged_step import StagedSteps
from mcfsim.optim.step_programs import CompiledStep
from mcfsim.optim.vectors import Vector, form, read
from mcfsim.torch.change_log import noted
from mcfsim.torch.host_step import AHEAD
from mcfsim.torch.local import SCALES
from mcfsim.torch.moved import ParameterSlice, StepInputs
from mcfsim.torch.state_layout import StateLayout, packed

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

    def move(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> None:
        """Make a step of these parameters."""
        for x in moved:
            if x.gradient.numel():
                with noted(x):
                    self._move(x, inputs, None)

    def asked(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> list[torch.Tensor]:
        """Return the intended update of a step: one float64 vector per parameter."""
        fmt, found = self.stores.roles.update.format, []
        for x in moved:
            update = np.empty(x.gradient.numel(), form(fmt, packed=True))
            if x.gradient.numel():
                copies = {name: y.clone() for name, y in x.tensors.items()}
                self._move(x._replace(tensors=copies), inputs, update)
            found.append(torch.from_numpy(read(update, fmt).astype(np.float64)))
        return found

    def _steps(self, hyper: Declaration, name: str, shape: Shape) -> StagedSteps:
        layout = Layout({name: np.broadcast_to(np.float32(0), shape)}, {name})
        return StagedSteps(self._compiled(hyper), self.stores.roles, layout)

    def _move(self, x: ParameterSlice, inputs: StepInputs, update: NDArray[Any] | None) -> None:
        """Make the step of one parameter; write the update to a vector if there is one."""
        stores, whole = self.stores, x.whole
        assert whole is not None
        steps = self._made(inputs.hyper, whole.name, tuple(x.gradient.shape))
        here = {name: on_host(y) for name, y in x.tensors.items()}
        vectors: dict[str, Vector] = {name: packed(here[name]) for name in stores.formats}
        for name, kept in stores.grouped.items():
            parts = steps.parts[name].every()
            vectors[name] = kept.vector(here[name], here[name + SCALES], parts)
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
