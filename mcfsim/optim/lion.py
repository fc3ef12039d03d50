"""Lion, which moves by the sign of an interpolated momentum: its hyperparameters and one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from mcfsim.optim.declaration import Declaration, Interval, Slot
from mcfsim.optim.state import DECAYED_UPDATE, State, Step, average, decayed_update, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class LionScalars(NamedTuple):
    """The real scalars of one step, as Python floats."""

    beta1: float
    gain1: float
    beta2: float
    gain2: float
    decay: float
    rate: float


def _momentum(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: LionScalars
) -> tuple[Value, ...]:
    return average(ar, m, scalars.beta2, gradient, scalars.gain2)


def lion(roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: LionScalars) -> Step:
    """Make one step of Lion.

    Parameters
    ----------
    roles, strategy, state, gradient
        As in `mcfsim.optim.adamw.adamw`; ``state.v`` is empty.
    scalars : LionScalars
        The real scalars; they enter by the arithmetics' scalar policy.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    The rounding points, named in `ROUNDING_POINTS`::

        c = RN(RN(beta1 m) + (1 - beta1) g)
        D = RN(-lr RN(sign(c) + RN(lambda theta)))
        m = RN(RN(beta2 m) + (1 - beta2) g)
        theta = theta + D by the strategy's addition

    The sign of zero is zero, so an element without any gradient yet does not move.

    References
    ----------
    Chen et al., Symbolic Discovery of Optimization Algorithms, NeurIPS 2023, Algorithm 2.
    """
    ar, up = roles.moments, roles.update
    g = ar.round(gradient)
    direction = up.sign(average(ar, state.m, scalars.beta1, g, scalars.gain1)[0])
    update = decayed_update(up, strategy, state, direction, scalars)
    m = _momentum(ar, state.m, g, scalars)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, (), extra), update)


@dataclass(frozen=True)
class Lion(Declaration):
    """Hyperparameters of Lion.

    Parameters
    ----------
    beta1 : float
        Weight of the momentum in the direction, in [0, 1).
    beta2 : float
        Decay of the momentum, in [0, 1).
    weight_decay : float
        Decoupled decay, not negative.

    Raises
    ------
    TypeError
        If a hyperparameter is not a number.
    ValueError
        If a hyperparameter is out of range, or not finite.
    """

    slots = (Slot("m", _momentum),)
    step = staticmethod(lion)
    ranges: ClassVar = {
        "beta1": Interval.SHARE,
        "beta2": Interval.SHARE,
        "weight_decay": Interval.NOT_NEGATIVE,
    }

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> LionScalars:
        """Return the scalars at learning rate `rate`; they depend on the step only through the rate."""
        decay = self.weight_decay if decayed else 0.0
        return LionScalars(self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, decay, rate)

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by name."""
        moment = {"1 - beta1": 1.0 - self.beta1, "1 - beta2": 1.0 - self.beta2}
        return {"m": moment, "update": {"weight_decay": self.weight_decay}}


#: The rounding points of a step with a one-component moment and decay, without the strategy's addition.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("momentum weighted", "mul"),
    ("interpolation", "fma"),
    ("direction", "sign"),
    *DECAYED_UPDATE,
    ("first moment decayed", "mul"),
    ("first moment", "fma"),
)
