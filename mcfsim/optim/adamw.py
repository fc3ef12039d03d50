"""AdamW: its hyperparameters and one step, a plain function of arithmetics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mcfsim.optim.declaration import Average, Declaration, Interval, Slot
from mcfsim.optim.state import (
    DECAYED_UPDATE,
    State,
    Step,
    add_error,
    average,
    converted,
    decayed_update,
    error_feedback,
    error_weight,
    expanded,
    move,
)
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class AdamWScalars(NamedTuple):
    """The real scalars of one step, as Python floats; `beta2` may be an expansion of floats."""

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
    """Return the new first moment m for a gradient."""
    return average(ar, m, scalars.beta1, gradient, scalars.gain1)


def second_moment(
    ar: Arithmetic, v: tuple[Value, ...], gradient: Value, scalars: AdamWScalars
) -> tuple[Value, ...]:
    """Return the new second moment v for a gradient, which is squared."""
    return average(ar, v, scalars.beta2, ar.mul(gradient, gradient), scalars.gain2)


def quotient(
    roles: Roles, m: tuple[Value, ...], v: tuple[Value, ...], scalars: AdamWScalars
) -> tuple[Value, Value]:
    """Return the corrected m divided by the root of the corrected v, and this denominator.

    The denominator includes epsilon. Weight decay and learning rate are applied to the quotient later.
    """
    up = roles.update
    mhat = up.div(m[0], scalars.correction1)
    vhat = up.div(converted(up, v[0], roles.second_moment), scalars.correction2)
    below = up.add(up.sqrt(vhat), scalars.epsilon)
    return up.div(mhat, below), below


def adamw(
    roles: Roles,
    strategy: Strategy,
    state: State,
    gradient: Value,
    scalars: AdamWScalars,
    *,
    second_moment: Average = second_moment,
) -> Step:
    """Make one AdamW step; every operation is a rounding point, and nothing else rounds.

    Parameters
    ----------
    roles : Roles
        The arithmetics, of any backend.
    strategy : Strategy
        Says how many components the tensors have, and how the update is added.
    state : State
        The state so far. At the start it has the parameter and zeros.
    gradient : value
        It is first rounded into the format of m; this is exact for a value of a lower format.
    scalars : AdamWScalars
        The real scalars; they enter by the arithmetics' scalar policy.
    second_moment : callable, optional
        Computes the new v; replace it for an optimizer that differs only in this.

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

    If v has another format than m, g is rounded into the format of v before it is squared, v is computed in
    that format, and its leading component is rounded into the format of m, in which D is computed.

    The addition `feedback` rounds the parameter and feeds the rounding error e back into m::

        m = RN(m + RN(w RN(e RN(RN(sqrt(vhat)) + eps))))
            with w = (1 - beta1^t) (1 - 1 / beta1) (1 - lr lambda) / lr

    In later steps m then makes up for e, if each of them loses the same e. With beta1 = 0, or at a learning
    rate of 0, nothing is fed back.

    The decay is part of D, so it is compensated like the rest. Without decay, its operations are left out.

    PyTorch rounds at other points; see `mcfsim.optim.torchadamw`.

    References
    ----------
    Loshchilov, Hutter, ICLR 2019, Algorithm 2; Yu et al., ICML 2024, Algorithm 2. Feedback: ECO, arXiv
    2601.22101.
    """
    ar, second, up = roles.moments, roles.second_moment, roles.update
    g = ar.round(gradient)
    m = first_moment(ar, state.m, g, scalars)
    v = second_moment(second, state.v, converted(second, g, ar), scalars)
    direction, below = quotient(roles, m, v, scalars)
    update = decayed_update(up, strategy, state, direction, scalars)
    if strategy.addition is Addition.FEEDBACK:
        rounded, error = error_feedback(roles, state, update)
        m = add_error(roles, m, up.mul(error, below), scalars.feedback)
        return Step(State((rounded,), m, v, ()), update)
    parameter, extra = move(roles, strategy, state, update)
    return Step(State(parameter, m, v, extra), update)


@dataclass(frozen=True)
class AdamW(Declaration):
    """Hyperparameters of AdamW.

    Parameters
    ----------
    beta1, beta2 : float
        Decay of the first and of the second moment, in [0, 1).
    epsilon : float
        Added to the root of the second moment; not negative. If it is zero, a step is 0 / 0 where v is zero:
        NaN, and in exact numbers a ZeroDivisionError before anything changes.
        An optimizer warns if a positive epsilon is zero in the format of the moments, as 1e-8 is in fp16 and
        fp8.
    weight_decay : float
        Decoupled decay, not negative.

    Raises
    ------
    TypeError
        If a hyperparameter is not a number.
    ValueError
        If a hyperparameter is out of range, or not finite.
    """

    slots = (Slot("m", first_moment), Slot("v", second_moment))
    step = staticmethod(adamw)
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
        decay, kept = self.weight_decay if decayed else 0.0, 1.0 - self.beta1**step
        fed = kept * (1.0 - 1.0 / self.beta1) * (1.0 - rate * decay) if self.beta1 else 0.0
        return AdamWScalars(
            beta1=self.beta1,
            gain1=1.0 - self.beta1,
            beta2=expanded(roles, strategy, self.beta2),
            gain2=1.0 - self.beta2,
            correction1=kept,
            correction2=1.0 - self.beta2**step,
            epsilon=self.epsilon,
            decay=decay,
            rate=rate,
            feedback=error_weight(strategy, fed, rate),
        )

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by their names in the guide."""
        return {
            "m": {"1 - beta1": 1.0 - self.beta1},
            "v": {"1 - beta2": 1.0 - self.beta2},
            "update": {"epsilon": self.epsilon, "weight_decay": self.weight_decay},
        }


#: The rounding points of a step with one-component moments and decay, without the strategy's addition.
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
    *DECAYED_UPDATE,
)
