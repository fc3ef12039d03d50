"""Steps in captured CUDA graphs: what a graph repeats, and what it is handed before each repetition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mcfsim.checks.whole import Whole
from mcfsim.optim.declaration import Declaration
from mcfsim.torch.local import local
from mcfsim.torch.repeatable_step import Captured, RepeatableStep
from mcfsim.torch.work import Work


def capturing() -> bool:
    """Return whether a CUDA graph is being captured."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


class Together(NamedTuple):
    """Parameters of one group that make one step together in a graph.

    Attributes
    ----------
    group : int
    parameters : list of tensor
    launch : Captured or None
        None if they have no elements.
    """

    group: int
    parameters: list[torch.Tensor]
    launch: Captured | None


class CapturedStep:
    """A step of an optimizer in a captured graph.

    Parameters
    ----------
    works : sequence of (list of tensor, Work)
        The step, and the parameters that it is made of.
    states : mapping of tensor to dict
        The optimizer's.

    Raises
    ------
    RuntimeError
        If it cannot be captured.
    """

    def __init__(
        self, works: Sequence[tuple[list[torch.Tensor], Work]], states: Mapping[torch.Tensor, dict[str, Any]]
    ) -> None:
        for _, work in works:
            if not isinstance(work.on, RepeatableStep):
                raise RuntimeError(
                    "a step of parameters on a CPU, or of a group without capturable=True, cannot be part of "
                    "a captured graph"
                )
        self._together = []
        for parameters, work in works:
            assert isinstance(work.on, RepeatableStep)
            launch = work.on.capture(work.moved, work.hyper, work.count, work.rate)
            self._together.append(Together(work.group, parameters, launch))
        self._places = self._addresses(states)

    def before_replay(
        self,
        states: Mapping[torch.Tensor, dict[str, Any]],
        settings: Callable[[int], tuple[Declaration, float]],
        whole: Whole,
    ) -> None:
        """Count the step, and hand over what it needs; see `StoredOptimizer.before_replay`.

        Parameters
        ----------
        states : mapping of tensor to dict
            The optimizer's, now.
        settings : callable
            Returns hyperparameters and learning rate of a group.
        whole : Whole
            Of the optimizer.
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
                hyper, rate = settings(group)
                prepared.append(launch.prepared(hyper, counts[-1], rate))
        with whole.changing("handing a step over to a captured graph"):
            for hand_over in prepared:
                hand_over()
            for (_, parameters, _), count in zip(self._together, counts, strict=True):
                for p in parameters:
                    states[p]["step"] = count

    def _addresses(self, states: Mapping[torch.Tensor, dict[str, Any]]) -> list[int]:
        """Return where everything lies that the graph writes."""
        return [
            local(x).data_ptr()
            for _, parameters, _ in self._together
            for p in parameters
            for x in (p, *states.get(p, {}).values())
            if isinstance(x, torch.Tensor)
        ]
