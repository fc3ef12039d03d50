"""AdamW: one step, as a plain function of the arithmetics that it is handed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mcfsim.multiword.expansion import expand
from mcfsim.optim.declaration import Average, Declaration, Interval, Slot
from mcfsim.optim.state import State, Step, along, average, crossed, error_weight, fed_back, move, with_error
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class AdamWScalars(NamedTuple):
    """The real scalars of one step, as Python floats, or a float expansion for `beta2`."""

    beta1: float
    gain1: float
    beta2: Any
    gain2: float
    correction1: float
    correction2: float
    epsilon: float
    decay: float
    rate: float
    feedback: float = 0.0


def first_moment(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: AdamWScalars
) -> tuple[Value, ...]:
    """Return m moved by a gradient."""
    return average(ar, m, scalars.beta1, gradient, scalars.gain1)


def second_moment(
    ar: Arithmetic, v: tuple[Value, ...], gradient: Value, scalars: AdamWScalars
) -> tuple[Value, ...]:
    """Return v moved by a gradient's square."""
    return average(ar, v, scalars.beta2, ar.mul(gradient, gradient), scalars.gain2)


def quotient(
    roles: Roles, m: tuple[Value, ...], v: tuple[Value, ...], scalars: AdamWScalars
) -> tuple[Value, Value]:
    """Return the corrected m by the root of the corrected v, and that denominator.

    The quotient is what decay and rate then act on.
    """
    up = roles.update
    mhat = up.div(m[0], scalars.correction1)
    vhat = up.div(crossed(up, v[0], roles.second_moment), scalars.correction2)
    below = up.add(up.sqrt(vhat), scalars.epsilon)
    return up.div(mhat, below), below


@dataclass(frozen=True)
class AdamW(Declaration):
    """Hyperparameters of AdamW.

    Parameters
    ----------
    beta1, beta2 : float
        Decay of the first and of the second moment, in [0, 1).
    epsilon : float
        Added to the root of the second moment, not negative. Where v is zero, 0 / 0 follows from zero, which
        is asked for, and from what is zero in the format of the moments, as 1e-8 is in fp16 and fp8; of that
        an optimizer warns.
    weight_decay : float
        Decoupled decay, not negative.

    Raises
    ------
    TypeError
        If one is no number.
    ValueError
        If one is out of range, or not finite.
    """

    slots = (Slot("m", first_moment), Slot("v", second_moment))
    feeds_back = True
    ranges: ClassVar = {
        "beta1": Interval.SHARE,
        "beta2": Interval.SHARE,
        "epsilon": Interval.NOT_NEGATIVE,
        "weight_decay": Interval.NOT_NEGATIVE,
    }

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.1

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> AdamWScalars:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        beta2: Any = self.beta2
        if strategy.beta2_components > 1:
            beta2 = expand(roles.second_moment, self.beta2, strategy.beta2_components)
        decay, kept = self.weight_decay if decayed else 0.0, 1.0 - self.beta1**step
        fed = kept * (1.0 - 1.0 / self.beta1) * (1.0 - rate * decay) if self.beta1 else 0.0
        return AdamWScalars(
            beta1=self.beta1,
            gain1=1.0 - self.beta1,
            beta2=beta2,
            gain2=1.0 - self.beta2,
            correction1=kept,
            correction2=1.0 - self.beta2**step,
            epsilon=self.epsilon,
            decay=decay,
            rate=rate,
            feedback=error_weight(strategy, fed, rate),
        )

    def entering(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by what they are called in the guide."""
        return {
            "m": {"1 - beta1": 1.0 - self.beta1},
            "v": {"1 - beta2": 1.0 - self.beta2},
            "update": {"epsilon": self.epsilon, "weight_decay": self.weight_decay},
        }

    def step(
        self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: AdamWScalars
    ) -> Step:
        """Make one step; see `adamw`."""
        return adamw(roles, strategy, state, gradient, scalars)


def adamw(
    roles: Roles,
    strategy: Strategy,
    state: State,
    gradient: Value,
    scalars: AdamWScalars,
    *,
    second_moment: Average = second_moment,
) -> Step:
    """Make one AdamW step: each line is a rounding point or several, and there are no others.

    Parameters
    ----------
    roles : Roles
        The arithmetics, of any backend.
    strategy : Strategy
        How many components, and how the update is added.
    state : State
        Starts with the parameter and zeros.
    gradient : value
        Is rounded into the format of m on entry, which is exact if it is a value of a lower one.
    scalars : AdamWScalars
        Enter by the arithmetics' scalar policy.
    second_moment : callable, optional
        What becomes of v; another text for an optimizer that differs in this alone.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    The rounding points, named in `ROUNDING_POINTS`::

        m = RN(RN(beta1 m) + (1 - beta1) g)              or Grow(Mul(beta, .), RN(.)) for an expansion,
        v = RN(RN(beta2 v) + (1 - beta2) RN(g g))        see `mcfsim.optim.state.average`
        D = RN(-lr RN(RN(mhat / RN(RN(sqrt(vhat)) + eps)) + RN(lambda theta)))
            with mhat = RN(m / (1 - beta1^t)) and vhat = RN(v / (1 - beta2^t)) of the leading components
        theta = theta + D by the strategy's addition

    If v has another format than m, g is rounded into it before it is squared, v is computed in it, and its
    leading component is rounded into the format of m, in which D is computed.

    The addition `feedback` rounds the parameter, and puts what that has lost, e, back into m::

        m = RN(m + RN(w RN(e RN(RN(sqrt(vhat)) + eps))))
            with w = (1 - beta1^t) (1 - 1 / beta1) (1 - lr lambda) / lr

    It lets m make up for e in the steps to come, if it is lost in each of them alike. With beta1 = 0, or at a
    learning rate of 0, nothing is fed back.

    The decay is part of D, so that it is compensated as the rest. Without decay its two operations fall away.

    PyTorch rounds at other points: those are `mcfsim.optim.torchadamw`'s.

    References
    ----------
    Loshchilov, Hutter, ICLR 2019, Algorithm 2; Yu et al., ICML 2024, Algorithm 2. Feedback: ECO, arXiv
    2601.22101.
    """
    ar, second, up = roles.moments, roles.second_moment, roles.update
    g = ar.round(gradient)
    m = first_moment(ar, state.m, g, scalars)
    v = second_moment(second, state.v, crossed(second, g, ar), scalars)
    direction, below = quotient(roles, m, v, scalars)
    update = along(up, strategy, state, direction, scalars)
    if strategy.addition is Addition.FEEDBACK:
        rounded, error = fed_back(roles, state, update)
        m = with_error(roles, m, up.mul(error, below), scalars.feedback)
        return Step(State((rounded,), m, v, ()), update)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, v, extra), update)


#: The rounding points of a step with one-component moments and decay, before the strategy's addition.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("first moment decayed", "mul"),
    ("first moment", "fma"),
    ("gradient squared", "mul"),
    ("second moment decayed", "mul"),
    ("second moment", "fma"),
    ("first moment corrected", "div"),
    ("second moment corrected", "div"),
    ("root", "sqrt"),
    ("denominator", "add"),
    ("direction", "div"),
    ("weight", "round"),
    ("weight decay", "mul"),
    ("decayed direction", "add"),
    ("update", "mul"),
)
