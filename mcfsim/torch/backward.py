"""Steps in the backward pass: each parameter moves when its gradient is there, which is then given back."""

from __future__ import annotations

from typing import Any

import torch

from mcfsim.checks.arguments import whole_number
from mcfsim.torch.batched import SMALL
from mcfsim.torch.step import StoredOptimizer
from mcfsim.torch.work import ParameterPlace


class BackwardSteps:
    """The hooks of an optimizer's parameters, see `step_in_backward`."""

    def __init__(self, optimizer: StoredOptimizer, every: int) -> None:
        self._optimizer, self._every = optimizer, every
        self._added: dict[torch.Tensor, tuple[int, Any]] = {}  # how many gradients, and to what
        self._waiting: dict[torch.Tensor, ParameterPlace] = {}
        places = [place for place in optimizer.listed() if place.parameter.requires_grad]
        self._hooks = [
            place.parameter.register_post_accumulate_grad_hook(self._receiver(place)) for place in places
        ]

    def finish(self) -> None:
        """Make the steps of parameters that have a gradient of fewer backward passes, and give it back."""
        held = (x for x in self._optimizer.listed() if x.parameter in self._added)
        self._waiting = {place.parameter: place for place in held}
        self._move()

    def remove(self) -> None:
        """Make no steps any more; gradients that are there stay."""
        for hook in self._hooks:
            hook.remove()
        self._added.clear()

    def _receiver(self, place: ParameterPlace) -> Any:
        def received(parameter: torch.Tensor) -> None:
            count, gradient = self._added.get(parameter, (0, None))
            if gradient is not parameter.grad:  # the one before is there no more
                count = 0
            self._added[parameter] = count + 1, parameter.grad
            if count + 1 < self._every:
                return
            self._waiting[parameter] = place
            if sum(p.numel() for p in self._waiting) > SMALL:
                self._move()
            else:  # small ones wait for others, at most till the pass ends
                torch.autograd.Variable._execution_engine.queue_callback(self._move)

        return received

    def _move(self) -> None:
        """Make the steps of the parameters that wait for it; the others are not looked at."""
        waiting, self._waiting = self._waiting, {}
        places = [self._found(place) for p, place in waiting.items() if p.grad is not None]
        parameters = [place.parameter for place in places]
        if places:
            self._optimizer.advance(places, parameters, [p.grad for p in parameters])
        for p in parameters:
            del self._added[p]
            p.grad = None

    def _found(self, place: ParameterPlace) -> ParameterPlace:
        """Return where a parameter is now; raise ValueError if it is nowhere."""
        if self._optimizer.is_at(place):
            return place
        for other in self._optimizer.listed():
            if other.parameter is place.parameter:
                return other
        raise ValueError("a parameter is the optimizer's no more; call remove(), and begin anew")


def step_in_backward(optimizer: StoredOptimizer, *, every: int = 1) -> BackwardSteps:
    """Have each parameter move in the backward pass, as soon as its gradient is there, and give that back.

    So no more than the gradients of one layer need memory. Small parameters wait for others, at most till the
    pass ends. The steps are those that `step` would make, which is not called any more, nor are its hooks.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
        Its parameters of now; groups added later move by `step`.
    every : int, optional
        Backward passes whose gradients are added up before a parameter moves: micro-batches of a batch. Those
        are counted that give it a gradient.

    Returns
    -------
    BackwardSteps
        Whose ``finish()`` makes the steps of fewer micro-batches, and ``remove()`` ends it.

    Raises
    ------
    TypeError
        If it is no optimizer of `mcfsim.torch`, or `every` no int.
    ValueError
        If `every` is not positive, or a parameter has a gradient already, which would be added.

    Notes
    -----
    What needs all gradients at once, as clipping by their norm and `GradScaler`, cannot come between; nor
    does DDP let go of gradients. In one process, and with FSDP2, it serves.
    """
    if not isinstance(optimizer, StoredOptimizer):
        raise TypeError(f"only optimizers of mcfsim.torch are stepped so, not {type(optimizer).__name__}")
    passes = whole_number("every", every, least=1)
    if any(place.parameter.grad is not None for place in optimizer.listed()):
        raise ValueError("a parameter has a gradient already; call optimizer.zero_grad() first")
    optimizer._opt_called = True  # by which a scheduler of torch sees that steps come before its own
    return BackwardSteps(optimizer, passes)
