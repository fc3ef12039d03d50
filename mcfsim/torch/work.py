"""A step as it is to be made, and who may look at it before it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mcfsim.optim.declaration import Declaration
from mcfsim.torch.moved import Moved, Stores


class ParameterPlace(NamedTuple):
    """Where a parameter is in an optimizer.

    Attributes
    ----------
    group : int
        The number of its group.
    within : int
        Its number there.
    parameter : tensor
    first : int
        The number of its first element among those of all parameters.
    """

    group: int
    within: int
    parameter: torch.Tensor
    first: int


class StepRunner(Protocol):
    """What carries steps out: on the CPU, or on a GPU."""

    stores: Stores

    def move(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> None:
        """Make step number `count` of these parameters of one device."""

    def asked(
        self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float
    ) -> list[torch.Tensor]:
        """Return the update that step number `count` asks for, for each parameter a vector of float64."""


@dataclass(frozen=True)
class Work:
    """Parameters of one group that make one step together.

    Attributes
    ----------
    group : int
        Its number.
    on : Carrier
    moved : list of Moved
        What lies here of them.
    hyper : Declaration
    count : int
        Of the step, from 1.
    rate : float
        The learning rate.
    """

    group: int
    on: StepRunner
    moved: list[Moved]
    hyper: Declaration
    count: int
    rate: float

    def check(self) -> None:
        """Raise ValueError if the step cannot be made with its scalars, before anything changes."""
        stores = self.on.stores
        self.hyper.scalars(stores.roles, stores.strategy, self.count, self.rate, decayed=True)


class Watching(Protocol):
    """Someone who looks at steps before they are made."""

    def see(self, works: Sequence[Work]) -> None:
        """Look at a step, all of it; what is looked at must stay as it is."""
