"""Steps in captured CUDA graphs, and the operator that makes a step in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from mcfsim.checks import Whole
from mcfsim.torch.device_step import Captured, RepeatableStep
from mcfsim.torch.local import local
from mcfsim.torch.moved import StepInputs, Work

# -- an operator ------------------------------------------------------------------------------------------
_numbers = count()
_optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()


def enrolled(optimizer: torch.optim.Optimizer) -> int:
    """Register an optimizer, and return the number by which the operator finds it while it lives."""
    number = next(_numbers)
    _optimizers[number] = optimizer
    return number


@torch.library.custom_op(
    "mcfsim::step",
    mutates_args=("parameters",),
    schema="(int number, int[] places, Tensor(a!)[] parameters, Tensor[] gradients) -> ()",
    **({"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}),
)
def step(number, places, parameters, gradients):  # type: ignore[no-untyped-def]
    """Make a step of the optimizer with a given number, for parameters at given places, by their gradients.

    A compiled graph may pass copies of parameters, which it copies back afterwards; so the step works on the
    tensors that it is given. A CUDA graph captured by the compiler would repeat launches without
    `before_replay`; the tag, where torch has it, prevents such captures.
    """
    optimizer = _optimizers[number]
    listed = optimizer.listed()
    optimizer.advance([listed[place] for place in places], parameters, gradients, in_operator=True)


# -- captured graphs --------------------------------------------------------------------------------------
def capturing() -> bool:
    """Return whether a CUDA graph is being captured."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


class CapturedStep:
    """A step of an optimizer in a captured graph.

    Parameters
    ----------
    works : sequence of Work
        The work of the step.
    states : mapping of tensor to dict
        The optimizer's state.

    Raises
    ------
    RuntimeError
        If the step cannot be captured.
    """

    def __init__(self, works: Sequence[Work], states: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        for work in works:
            if not isinstance(work.on, RepeatableStep):
                raise RuntimeError(
                    "a step of parameters on a CPU, or of a group without capturable=True, cannot be part of "
                    "a captured graph"
                )
        #: Group, parameters and launch of each work; no launch if the parameters have no elements.
        self._together: list[tuple[int, list[torch.Tensor], Captured | None]] = []
        for work in works:
            assert isinstance(work.on, RepeatableStep)
            launch = work.on.capture(work.moved, work.inputs)
            self._together.append((work.group, work.parameters, launch))
        self._places = self._addresses(states)

    def before_replay(
        self,
        states: Mapping[torch.Tensor, dict[str, Any]],
        inputs: Callable[[int, int], StepInputs],
        whole: Whole,
    ) -> None:
        """Count the step, and hand over its inputs; see `StoredOptimizer.before_replay`.

        Parameters
        ----------
        states : mapping of tensor to dict
            The optimizer's present state.
        inputs : callable
            Returns the inputs of a group's step, given its number.
        whole : Whole
            The optimizer's.
        """
        if self._addresses(states) != self._places:
            raise RuntimeError(
                "parameters or state lie elsewhere than when the graph was captured; capture it anew"
            )
        counts, prepared = [], []
        for group, parameters, launch in self._together:
            found = {states[p]["step"] + 1 for p in parameters}
            if len(found) > 1:
                raise RuntimeError(
                    "parameters that the graph moves together have made different numbers of steps since it "
                    "was captured; capture it anew"
                )
            counts.append(found.pop())
            if launch is not None:
                prepared.append(launch.prepared(inputs(group, counts[-1])))
        with whole.changing("handing a step over to a captured graph"):
            for hand_over in prepared:
                hand_over()
            for (_, parameters, _), count in zip(self._together, counts, strict=True):
                for p in parameters:
                    states[p]["step"] = count

    def _addresses(self, states: Mapping[torch.Tensor, dict[str, Any]]) -> list[int]:
        """Return the addresses of all tensors that the graph writes."""
        return [
            local(x).data_ptr()
            for _, parameters, _ in self._together
            for p in parameters
            for x in (p, *states.get(p, {}).values())
            if isinstance(x, torch.Tensor)
        ]
