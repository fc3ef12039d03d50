"""Stochastic gradient descent with Nesterov's momentum: its hyperparameters and one step."""

from __future__ import annotations

from dataclasses import dataclass

from mcfsim.optim.sgd import SGD, SGDScalars, next_momentum
from mcfsim.optim.state import DECAYED_UPDATE, State, Step, decayed_update, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Value


def nesterov(roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: SGDScalars) -> Step:
    """Make one step of SGD with Nesterov's momentum: its direction looks one momentum step ahead.

    Parameters
    ----------
    roles, strategy, state, gradient, scalars
        As in `mcfsim.optim.sgd.sgd`.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    The rounding points, named in `ROUNDING_POINTS`::

        m = RN(RN(mu m) + g)
        D = RN(-lr RN(RN(mu m + g) + RN(lambda theta)))
        theta = theta + D by the strategy's addition

    If m has several components, the direction is computed from the leading one.

    References
    ----------
    Nesterov, Soviet Math. Doklady 27, 1983; in this form Sutskever, Martens, Dahl, Hinton, ICML 2013, and
    ``torch.optim.SGD(nesterov=True)``. Decay is decoupled.
    """
    ar, up = roles.moments, roles.update
    g = ar.round(gradient)
    m = next_momentum(ar, state.m, g, scalars)
    direction = up.fma(m[0], scalars.momentum, g)
    update = decayed_update(up, strategy, state, direction, scalars)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, (), extra), update)


@dataclass(frozen=True)
class Nesterov(SGD):
    """Hyperparameters of SGD with Nesterov's momentum, see `SGD`; dampening must be 0, as in PyTorch."""

    feeds_back = False
    step = staticmethod(nesterov)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dampening:
            raise ValueError(f"dampening = {self.dampening}: Nesterov's momentum takes gradients whole")


#: The rounding points of a step with a one-component moment and decay, without the strategy's addition.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("first moment decayed", "mul"),
    ("first moment", "fma"),
    ("momentum ahead", "fma"),
    *DECAYED_UPDATE,
)
