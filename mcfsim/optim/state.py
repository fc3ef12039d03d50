"""What an optimizer carries from step to step, and what every optimizer does with it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mcfsim.multiword import expansion
from mcfsim.optim.remainder import remaining, steps_of, with_steps
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value


class State(NamedTuple):
    """The stored tensors of one step, each as a tuple of components.

    Attributes
    ----------
    parameter : tuple of value
        One component, or an expansion, most significant first.
    m, v : tuple of value
        The moments; `v` is empty for an optimizer without one.
    extra : tuple of value
        Kahan's compensation or the master copy; else empty.
    """

    parameter: tuple[Value, ...]
    m: tuple[Value, ...]
    v: tuple[Value, ...]
    extra: tuple[Value, ...]

    def represented(self, strategy: Strategy) -> tuple[Value, ...]:
        """Return the components whose exact sum is the parameter that the optimizer means.

        It is the expansion, the parameter with Kahan's compensation, or the master copy.
        """
        if strategy.addition is Addition.MASTER:
            return self.extra
        return self.parameter + self.extra


class Step(NamedTuple):
    """The outcome of a step: the new state, and the update that was asked for, before its addition."""

    state: State
    update: Value


def crossed(ar: Arithmetic, x: Value, source: Arithmetic) -> Value:
    """Return a value of another arithmetic in this one: rounded if the formats differ, else as it is."""
    return x if ar.format == source.format else ar.round(x)


def average(ar: Arithmetic, x: tuple[Value, ...], beta: Any, new: Value, gain: float) -> tuple[Value, ...]:
    """Return the moving average ``beta x + gain new``.

    In one component it is ``RN(RN(beta x) + gain new)``, the last product unrounded, as in torch's ``mul_``
    followed by ``addcmul_``, by which its AdamW makes v (and m by another, see `mcfsim.optim.torchadamw`). As
    an expansion it is ``Grow(Mul(beta, x), RN(gain new))``.

    Parameters
    ----------
    ar : Arithmetic
        Of the moments.
    x : tuple of value
        The average so far, as an expansion of n components.
    beta : float or tuple of float
        A real scalar, or an expansion; an expansion of n components multiplies one of n.
    new : value
        What is averaged.
    gain : float
        A real scalar, as ``1 - beta``.
    """
    decayed = expansion.mul(ar, beta, x) if isinstance(beta, tuple) else expansion.scale(ar, x, beta)
    if len(decayed) == 1:
        return (ar.fma(new, gain, decayed[0]),)
    return expansion.grow(ar, decayed, ar.mul(new, gain))


def along(up: Arithmetic, strategy: Strategy, state: State, direction: Value, scalars: Any) -> Value:
    """Return the update D: ``RN(-lr RN(direction + RN(lambda theta)))``, without decay ``RN(-lr direction)``.

    Parameters
    ----------
    up : Arithmetic
        Of the update.
    scalars
        Of the step, with its ``decay`` and ``rate``.
    """
    if scalars.decay:
        theta = up.round(state.represented(strategy)[0])
        direction = up.add(direction, up.mul(theta, scalars.decay))
    return up.mul(direction, -scalars.rate)


def of_master(roles: Roles, strategy: Strategy, master: Value) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the parameter that a master copy gives, and what is kept of the master copy."""
    theta, low = roles.model.round(master), roles.model.format
    bits = strategy.extra.remainder if strategy.extra else None
    if bits is not None and low is not None:
        master = remaining(roles.parameter, low, bits, master, theta)
    return (theta,), (master,)


def opened(roles: Roles, bits: int, state: State) -> State:
    """Return a state with the master copy itself in place of its remainder."""
    low = roles.model.format
    assert low is not None
    return state._replace(extra=(with_steps(roles.parameter, low, bits, state.parameter[0], state.extra[0]),))


def closed(roles: Roles, bits: int, state: State) -> State:
    """Return a state with a remainder in place of the master copy."""
    low = roles.model.format
    assert low is not None
    return state._replace(extra=(steps_of(roles.parameter, low, bits, state.parameter[0], state.extra[0]),))


def fed_back(roles: Roles, state: State, update: Value) -> tuple[Value, Value]:
    """Return the parameter moved by an update, and what its rounding has lost.

    Returns
    -------
    parameter, error : value
        ``t = RN(theta + D)`` in the update's format, ``RN(t)`` in the parameter's, and ``RN(t - RN(t))``.

    References
    ----------
    ECO, arXiv 2601.22101.
    """
    up = roles.update
    target = up.add(crossed(up, state.parameter[0], roles.model), update)
    parameter = crossed(roles.model, target, up)
    return parameter, up.sub(target, crossed(up, parameter, roles.model))


def with_error(roles: Roles, m: tuple[Value, ...], error: Value, weight: float) -> tuple[Value, ...]:
    """Return an m of one component with an error in it: ``RN(m + RN(weight error))``."""
    ar = roles.moments
    return (ar.add(m[0], ar.mul(crossed(ar, error, roles.update), weight)),)


def error_weight(strategy: Strategy, factor: float, rate: float) -> float:
    """Return by what a lost part of the parameter enters the momentum: ``factor / rate``.

    It is 0 under other strategies, and where nothing can be lost, at a rate of 0.

    Raises
    ------
    ValueError
        If it is beyond binary64.
    """
    if strategy.addition is not Addition.FEEDBACK or not rate:
        return 0.0
    weight = factor / rate
    if not math.isfinite(weight):
        raise ValueError(
            f"strategy {strategy.name!r} feeds errors back over the learning rate: not over {rate}"
        )
    return weight


def move(
    roles: Roles, strategy: Strategy, state: State, update: Value
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Add the update to the parameter in the strategy's way.

    Returns
    -------
    parameter, extra : tuple of value
        The new ones.

    References
    ----------
    kahan: Kahan, Commun. ACM 8(1), 1965. grow: Yu et al., ICML 2024, with 2Sum in the first step, since
    an update may exceed a parameter near zero.
    """
    ar = roles.parameter
    theta = state.parameter
    if strategy.addition is Addition.FEEDBACK:
        return (fed_back(roles, state, update)[0],), ()
    step = ar.round(update)
    if strategy.addition is Addition.MASTER:
        return of_master(roles, strategy, ar.add(state.extra[0], step))
    if strategy.addition is Addition.KAHAN:
        (compensation,) = state.extra
        step = ar.add(step, compensation)
        moved = ar.add(theta[0], step)
        return (moved,), (ar.sub(step, ar.sub(moved, theta[0])),)
    return expansion.grow(ar, theta, step), ()
