"""Stochastic gradient descent with momentum: one step, as a plain function of its arithmetics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mcfsim.optim.declaration import Declaration, Range, Slot
from mcfsim.optim.state import State, Step, along, average, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class SGDScalars(NamedTuple):
    """The real scalars of one step, as Python floats."""

    momentum: float
    decay: float
    rate: float


def next_momentum(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: SGDScalars
) -> tuple[Value, ...]:
    """Return the momentum moved by a gradient: ``RN(RN(mu m) + g)``."""
    return average(ar, m, scalars.momentum, gradient, 1.0)


@dataclass(frozen=True)
class SGD(Declaration):
    """Hyperparameters of SGD with momentum.

    Parameters
    ----------
    momentum : float
        In [0, 1).
    weight_decay : float
        Decoupled decay, not negative.

    Raises
    ------
    TypeError
        If one is no number.
    ValueError
        If one is out of range, or not finite.
    """

    slots = (Slot("m", next_momentum),)
    ranges: ClassVar = {"momentum": Range.SHARE, "weight_decay": Range.NOT_NEGATIVE}

    momentum: float = 0.9
    weight_decay: float = 0.0

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> SGDScalars:
        """Return the scalars at learning rate `rate`; no other depends on the step."""
        return SGDScalars(self.momentum, self.weight_decay if decayed else 0.0, rate)

    def entering(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and name."""
        return {"m": {"momentum": self.momentum}, "update": {"weight_decay": self.weight_decay}}

    def step(
        self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: SGDScalars
    ) -> Step:
        """Make one step; see `sgd`."""
        return sgd(roles, strategy, state, gradient, scalars)


def sgd(roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: SGDScalars) -> Step:
    """Make one step of SGD with momentum.

    Parameters
    ----------
    roles, strategy, state, gradient
        As in `mcfsim.optim.adamw.adamw`; ``state.v`` is empty.
    scalars : SGDScalars
        Enter by the arithmetics' scalar policy.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    The rounding points, named in `ROUNDING_POINTS`::

        m = RN(RN(mu m) + g)
        D = RN(-lr RN(m + RN(lambda theta)))
        theta = theta + D by the strategy's addition

    References
    ----------
    Sutskever, Martens, Dahl, Hinton, ICML 2013; decoupled decay: Loshchilov, Hutter, ICLR 2019, Algorithm 1.
    """
    ar, up = roles.moments, roles.update
    m = next_momentum(ar, state.m, ar.round(gradient), scalars)
    direction = m[0]
    update = along(up, strategy, state, direction, scalars)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, (), extra), update)


#: The rounding points of a step with a one-component moment and decay, before the strategy's addition.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("first moment decayed", "mul"),
    ("first moment", "fma"),
    ("weight", "round"),
    ("weight decay", "mul"),
    ("decayed direction", "add"),
    ("update", "mul"),
)
