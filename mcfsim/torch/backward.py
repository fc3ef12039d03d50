"""Steps in the backward pass: each parameter moves once its gradient is there, and the gradient is freed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from mcfsim.checks import whole_number
from mcfsim.torch.moved import ParameterPlace
from mcfsim.torch.step import StoredOptimizer
from mcfsim.torch.straight_step import SMALL

#: The parameters that have hooks.
_HOOKED = WeakTensorKeyDictionary()


class BackwardSteps:
    """The hooks that make an optimizer's steps in the backward pass; see `step_in_backward`."""

    def __init__(self, optimizer: StoredOptimizer, every: int) -> None:
        self._optimizer, self._every = optimizer, every
        #: For each parameter, how many gradients were added into which tensor, and its version then.
        self._added: dict[torch.Tensor, tuple[int, Any, int]] = {}
        self._waiting: dict[torch.Tensor, ParameterPlace] = {}
        places = [place for place in optimizer.listed() if place.parameter.requires_grad]
        self._hooks = [
            place.parameter.register_post_accumulate_grad_hook(self._receiver(place)) for place in places
        ]
        if every > 1:
            self._hooks += [p.register_hook(partial(self._look, p)) for _, _, p, _ in places]
        self._hooked = [place.parameter for place in places]
        _HOOKED.update(dict.fromkeys(self._hooked))

    def finish(self) -> None:
        """Make the steps of parameters with gradients of fewer backward passes, and free these gradients."""
        held = (x for x in self._optimizer.listed() if x.parameter in self._added)
        self._waiting = {place.parameter: place for place in held}
        self._move()

    def remove(self) -> None:
        """Remove the hooks; existing gradients stay."""
        for hook in self._hooks:
            hook.remove()
        while self._hooked:
            _HOOKED.pop(self._hooked.pop(), None)
        self._added.clear()
        self._waiting.clear()

    def _look(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Before a gradient is added, restart the count if the gradients so far were zeroed in place."""
        _, held, version = self._added.get(parameter, (0, None, 0))
        if held is not None and held is parameter.grad and held._version != version and not held.any():
            del self._added[parameter]

    def _receiver(self, place: ParameterPlace) -> Any:
        def received(parameter: torch.Tensor) -> None:
            if parameter.grad is None:
                raise RuntimeError(
                    f"another hook has freed the gradient of a parameter of shape {tuple(parameter.shape)} "
                    "before its step"
                )
            if self._every > 1 and torch.is_grad_enabled():  # each sum is a tensor of its own
                raise RuntimeError(
                    f"backward(create_graph=True) makes a new tensor of each sum of gradients, and "
                    f"a step is due every {self._every} passes; use every=1, or optimizer.step()"
                )
            count, gradient, _ = self._added.get(parameter, (0, None, 0))
            if gradient is not parameter.grad:  # the previous gradient is gone
                count = 0
            self._added[parameter] = count + 1, parameter.grad, parameter.grad._version
            if count + 1 < self._every:
                self._waiting.pop(parameter, None)  # it waited in a pass that was broken off
                return
            self._waiting[parameter] = place
            if sum(p.numel() for p in self._waiting) > SMALL:
                self._move()
            else:  # small ones wait for others, at most until the pass ends
                torch.autograd.Variable._execution_engine.queue_callback(self._move)

        return received

    def _move(self) -> None:
        """Make the steps of the waiting parameters, and free their gradients; leave the others alone."""
        waiting, self._waiting = self._waiting, {}
        places = [self._found(place) for p, place in waiting.items() if p.grad is not None]
        parameters = [place.parameter for place in places]
        if places:
            self._optimizer.advance(places, parameters, [p.grad for p in parameters])
        for p in parameters:
            del self._added[p]
            p.grad = None

    def _found(self, place: ParameterPlace) -> ParameterPlace:
        """Return the present place of a parameter; raise ValueError if it has none."""
        if self._optimizer.is_at(place):
            return place
        for other in self._optimizer.listed():
            if other.parameter is place.parameter:
                return other
        raise ValueError("a parameter no longer belongs to the optimizer; call remove(), and begin anew")


def step_in_backward(optimizer: StoredOptimizer, *, every: int = 1) -> BackwardSteps:
    """Move each parameter in the backward pass, as soon as its gradient is there, and free the gradient.

    So only the gradients of one layer need memory. Small parameters wait for others, at most until the pass
    ends. The steps are those that `step` would make; neither `step` nor its hooks are called any more.

    Parameters
    ----------
    optimizer : optimizer of `mcfsim.torch`
        Its present parameters that require a gradient get hooks; others, and groups added later, move by
        `step`.
    every : int, optional
        How many backward passes add up gradients before a parameter moves: the micro-batches of a batch. Only
        passes that give the parameter a gradient count, and none whose gradients `zero_grad` has discarded.

    Returns
    -------
    BackwardSteps
        Its ``finish()`` makes the steps of fewer micro-batches; its ``remove()`` removes the hooks.

    Raises
    ------
    TypeError
        If `optimizer` is no optimizer of `mcfsim.torch`, or `every` no int.
    ValueError
        If `every` is not positive; if a parameter has a gradient already, which would be added in; or if it
        already moves in the backward pass.

    Notes
    -----
    Operations that need all gradients at once, such as clipping by norm and `GradScaler`, cannot be used.
    DDP does not release gradients. It works in one process, and with FSDP2. With `every` above 1,
    ``backward(create_graph=True)`` raises RuntimeError. Gradient checkpointing with
    ``use_reentrant=True`` makes a backward pass of each segment: a parameter that several segments share
    would move after each of them, so use ``use_reentrant=False`` there.
    """
    if not isinstance(optimizer, StoredOptimizer):
        raise TypeError(
            f"only optimizers of mcfsim.torch step in the backward pass, not {type(optimizer).__name__}"
        )
    passes = whole_number("every", every, least=1)
    if any(place.parameter.grad is not None for place in optimizer.listed()):
        raise ValueError("a parameter has a gradient already; call optimizer.zero_grad() first")
    if any(place.parameter in _HOOKED for place in optimizer.listed()):
        raise ValueError(
            "a parameter moves in the backward pass already; call remove() of what step_in_backward returned"
        )
    optimizer._opt_called = True  # tells torch's schedulers that steps come before their own
    return BackwardSteps(optimizer, passes)
