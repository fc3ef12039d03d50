"""Stochastic gradient descent with momentum: its hyperparameters and one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mcfsim.optim.declaration import Declaration, Interval, Slot
from mcfsim.optim.state import (
    DECAYED_UPDATE,
    State,
    Step,
    add_error,
    average,
    decayed_update,
    error_feedback,
    error_weight,
    move,
)
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class SGDScalars(NamedTuple):
    """The real scalars of one step, as Python floats.

    Attributes
    ----------
    gain : float
        The share of the gradient that enters the momentum; zero if it enters whole.
    """

    momentum: float
    decay: float
    rate: float
    feedback: float = 0.0
    gain: float = 0.0


def next_momentum(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: SGDScalars
) -> tuple[Value, ...]:
    """Return the new momentum for a gradient g: ``RN(RN(mu m) + g)``, or with ``(1 - d) g`` if dampened."""
    return average(ar, m, scalars.momentum, gradient, scalars.gain or 1.0)


def sgd(roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: SGDScalars) -> Step:
    """Make one step of SGD with momentum.

    Parameters
    ----------
    roles, strategy, state, gradient
        As in `mcfsim.optim.adamw.adamw`; ``state.v`` is empty.
    scalars : SGDScalars
        The real scalars; they enter by the arithmetics' scalar policy.

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

    The addition `feedback` rounds the parameter and feeds the rounding error e back into m::

        m = RN(m + RN(w e)) with w = (1 - 1 / mu) (1 - lr lambda) / lr

    Without momentum, or at a learning rate of 0, nothing is fed back. With a dampening d, ``(1 - d) g`` takes
    the place of g after the first step, as in `torch.optim.SGD`.

    References
    ----------
    Sutskever, Martens, Dahl, Hinton, ICML 2013; decoupled decay: Loshchilov, Hutter, ICLR 2019, Algorithm 1.
    Feedback: ECO, arXiv 2601.22101.
    """
    ar, up = roles.moments, roles.update
    m = next_momentum(ar, state.m, ar.round(gradient), scalars)
    direction = m[0]
    update = decayed_update(up, strategy, state, direction, scalars)
    if strategy.addition is Addition.FEEDBACK:
        rounded, error = error_feedback(roles, state, update)
        return Step(State((rounded,), add_error(roles, m, error, scalars.feedback), (), ()), update)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, (), extra), update)


@dataclass(frozen=True)
class SGD(Declaration):
    """Hyperparameters of SGD with momentum.

    Parameters
    ----------
    momentum : float
        Decay mu of the momentum, in [0, 1).
    weight_decay : float
        Decoupled decay, not negative.
    dampening : float
        The share of each gradient that does not enter the momentum, in [0, 1). The first one enters whole.

    Raises
    ------
    TypeError
        If a hyperparameter is not a number.
    ValueError
        If a hyperparameter is out of range, or not finite.
    """

    slots = (Slot("m", next_momentum),)
    step = staticmethod(sgd)
    feeds_back = True
    ranges: ClassVar = {
        "momentum": Interval.SHARE,
        "weight_decay": Interval.NOT_NEGATIVE,
        "dampening": Interval.SHARE,
    }

    momentum: float = 0.9
    weight_decay: float = 0.0
    dampening: float = 0.0

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> SGDScalars:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        decay = self.weight_decay if decayed else 0.0
        fed = (1.0 - 1.0 / self.momentum) * (1.0 - rate * decay) if self.momentum else 0.0
        gain = 1.0 - self.dampening if self.dampening and step > 1 else 0.0
        return SGDScalars(self.momentum, decay, rate, error_weight(strategy, fed, rate), gain)

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by name."""
        moment = {"momentum": self.momentum, "1 - dampening": 1.0 - self.dampening}
        return {"m": moment, "update": {"weight_decay": self.weight_decay}}


#: The rounding points of a step with a one-component moment and decay, without the strategy's addition.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("first moment decayed", "mul"),
    ("first moment", "fma"),
    *DECAYED_UPDATE,
)
