"""A step as an operator of PyTorch, into which its compiler does not look: so that it keeps the bits."""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch


class StepMaker(Protocol):
    """An optimizer that makes steps of tensors which stand for its parameters."""

    def listed(self) -> list[Any]:
        """Return the places of all parameters."""

    def advance(
        self, places: list[Any], parameters: list[torch.Tensor], gradients: list[torch.Tensor]
    ) -> None:
        """Make one step of some of them."""


_numbers = count()
_optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()


def enrolled(optimizer: StepMaker) -> int:
    """Return a number by which the operator finds an optimizer as long as it lives."""
    number = next(_numbers)
    _optimizers[number] = optimizer
    return number


def _step(number, places, parameters, gradients):  # type: ignore[no-untyped-def]
    optimizer = _optimizers[number]
    listed = optimizer.listed()
    optimizer.advance([listed[place] for place in places], parameters, gradients)


#: A step of the optimizer with a number: of the parameters at some places among all, with their gradients.
#: What a compiled graph has of parameters may be copies, which it puts in their places afterwards; so the
#: step is made of what it is given.
#: A CUDA graph that the compiler captures would repeat launches without `before_replay`; torch captures none,
#: where it can be told so.
step = torch.library.custom_op(
    "mcfsim::step",
    _step,
    mutates_args=("parameters",),
    schema="(int number, int[] places, Tensor(a!)[] parameters, Tensor[] gradients) -> ()",
    **({"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}),
)
