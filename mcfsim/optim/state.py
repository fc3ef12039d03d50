"""The state that an optimizer carries from step to step, and the operations that optimizers share."""

from __future__ import annotations

import math
from collections.abc import Callable
from reprlib import repr as shortened
from typing import Any, NamedTuple

from mcfsim.formats import Format, Grid, Specials
from mcfsim.multiword import expansion
from mcfsim.optim.stored import FLOAT32
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Overflow, Rounding


class State(NamedTuple):
    """The stored tensors that a step reads and returns, each as a tuple of components.

    Attributes
    ----------
    parameter : tuple of value
        One component, or an expansion, most significant first.
    m, v : tuple of value
        The moments; `v` is empty for an optimizer without one.
    extra : tuple of value
        Kahan's compensation or the master copy; otherwise empty.
    """

    parameter: tuple[Value, ...]
    m: tuple[Value, ...]
    v: tuple[Value, ...]
    extra: tuple[Value, ...]

    def represented(self, strategy: Strategy) -> tuple[Value, ...]:
        """Return the components whose exact sum is the parameter that the state represents.

        They are the expansion, the parameter with Kahan's compensation, or the master copy.
        """
        if strategy.addition is Addition.MASTER:
            return self.extra
        return self.parameter + self.extra


class Step(NamedTuple):
    """The result of a step: the new state, and the update before its addition to the parameter."""

    state: State
    update: Value


def step_by(step: Callable[..., Step], roles: Any, strategy: Strategy, old: State, *given: Any) -> Step:
    """Make a straight-line step.

    Raises
    ------
    TypeError
        If the result is not a `Step`, or differs from the old state in its numbers of components.
    """
    made: Any = step(roles, strategy, old, *given)
    must = f"{step.__qualname__} must return"
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], State)) or made[1] is None:
        raise TypeError(f"{must} Step(State(...), update), not {shortened(made)}")
    for label, before, after in zip(State._fields, old, made[0], strict=True):
        if not isinstance(after, tuple | list) or len(after) != len(before):
            raise TypeError(f"{must} a tuple of {len(before)} for {label}, not {shortened(after)}")
    return Step(*made)


def converted(ar: Arithmetic, x: Value, source: Arithmetic) -> Value:
    """Return a value of arithmetic `source` in `ar`: rounded if the formats differ, otherwise unchanged."""
    return x if ar.format == source.format else ar.round(x)


def average(ar: Arithmetic, x: tuple[Value, ...], beta: Any, new: Value, gain: float) -> tuple[Value, ...]:
    """Return the moving average ``beta x + gain new``.

    With one component it is ``RN(RN(beta x) + gain new)``, the last product unrounded, as in torch's ``mul_``
    followed by ``addcmul_``, which torch's AdamW uses for v (but not for m, see `mcfsim.optim.torchadamw`).
    For an expansion it is ``Grow(Mul(beta, x), RN(gain new))``.

    Parameters
    ----------
    ar : Arithmetic
        The arithmetic of the moment.
    x : tuple of value
        The average so far, as an expansion of n components.
    beta : float or tuple of float
        A real scalar, or an expansion with as many components as x.
    new : value
        The number that enters the average.
    gain : float
        A real scalar, such as ``1 - beta``.
    """
    decayed = expansion.mul(ar, beta, x) if isinstance(beta, tuple) else expansion.scale(ar, x, beta)
    if len(decayed) == 1:
        return (ar.fma(new, gain, decayed[0]),)
    return expansion.grow(ar, decayed, ar.mul(new, gain))


def expanded(roles: Roles, strategy: Strategy, beta2: float) -> Any:
    """Return beta2 as it enters a step: as a real scalar, or as an expansion if the strategy asks for one."""
    count = strategy.beta2_components
    return beta2 if count == 1 else expansion.expand(roles.second_moment, beta2, count)


def decayed_update(up: Arithmetic, strategy: Strategy, state: State, direction: Value, scalars: Any) -> Value:
    """Return the update ``RN(-lr RN(direction + RN(lambda theta)))``, or ``RN(-lr direction)`` without decay.

    Parameters
    ----------
    up : Arithmetic
        The arithmetic of the update.
    scalars
        The scalars of the step, with ``decay`` and ``rate``.
    """
    if scalars.decay:
        theta = up.round(state.represented(strategy)[0])
        direction = up.add(direction, up.mul(theta, scalars.decay))
    return up.mul(direction, -scalars.rate)


#: The rounding points of `decayed_update` with decay.
DECAYED_UPDATE: tuple[tuple[str, str], ...] = (
    ("weight", "round"),
    ("weight decay", "mul"),
    ("decayed direction", "add"),
    ("update", "mul"),
)


def split_master(
    roles: Roles, strategy: Strategy, master: Value
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the parameter, rounded from a master copy, and the part of the master copy that is kept.

    A strategy without a master copy keeps the number itself as its parameter.
    """
    if strategy.addition is not Addition.MASTER:
        return (master,), ()
    theta, low = roles.model.round(master), roles.model.format
    bits = strategy.extra.remainder if strategy.extra else None
    if bits is not None and low is not None:
        master = remaining(roles.parameter, low, bits, master, theta)
    return (theta,), (master,)


def error_feedback(roles: Roles, state: State, update: Value) -> tuple[Value, Value]:
    """Return the parameter moved by an update, and the rounding error of the parameter.

    Returns
    -------
    parameter, error : value
        ``t = RN(theta + D)`` in the update's format, ``RN(t)`` in the parameter's, and ``RN(t - RN(t))``.

    References
    ----------
    ECO, arXiv 2601.22101.
    """
    up = roles.update
    target = up.add(converted(up, state.parameter[0], roles.model), update)
    parameter = converted(roles.model, target, up)
    return parameter, up.sub(target, converted(up, parameter, roles.model))


def add_error(roles: Roles, m: tuple[Value, ...], error: Value, weight: float) -> tuple[Value, ...]:
    """Return a one-component m with an error added: ``RN(m + RN(weight error))``."""
    ar = roles.moments
    return (ar.add(m[0], ar.mul(converted(ar, error, roles.update), weight)),)


def error_weight(strategy: Strategy, factor: float, rate: float) -> float:
    """Return the weight with which a parameter's rounding error enters the momentum: ``factor / rate``.

    It is 0 for strategies without feedback, and at a rate of 0, where nothing can be lost.

    Raises
    ------
    ValueError
        If it is beyond the range of binary64.
    """
    if strategy.addition is not Addition.FEEDBACK or not rate:
        return 0.0
    weight = factor / rate
    if not math.isfinite(weight):
        raise ValueError(
            f"strategy {strategy.name!r} divides the errors that it feeds back by the learning rate, and "
            f"{rate} is too small"
        )
    return weight


def move(
    roles: Roles, strategy: Strategy, state: State, update: Value
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Add the update to the parameter by the strategy's addition.

    Returns
    -------
    parameter, extra : tuple of value
        The new parameter and extra.

    References
    ----------
    kahan: Kahan, Commun. ACM 8(1), 1965. grow: Yu et al., ICML 2024, with 2Sum in the first step, since
    an update may exceed a parameter near zero.
    """
    ar = roles.parameter
    theta = state.parameter
    if strategy.addition is Addition.FEEDBACK:
        return (error_feedback(roles, state, update)[0],), ()
    step = ar.round(update)
    if strategy.addition is Addition.MASTER:
        return split_master(roles, strategy, ar.add(state.extra[0], step))
    if strategy.addition is Addition.KAHAN:
        (compensation,) = state.extra
        step = ar.add(step, compensation)
        moved = ar.add(theta[0], step)
        return (moved,), (ar.sub(step, ar.sub(moved, theta[0])),)
    return expansion.grow(ar, theta, step), ()


# -- a master copy of few bits beside the parameter -------------------------------------------------------
#: A number below every spacing of a low format; it is added to a parameter because zero has no exponent.
_LEAST = float(FLOAT32.smallest_subnormal)


def _powers(low: Format) -> Format:
    """Return the format whose numbers are the powers of two among the normal numbers of `low`."""
    return Format(
        f"powers of {low}",
        precision=1,
        emin=low.emin,
        emax=low.emax,
        specials=Specials.FN,
        signed=False,
        zero=False,
    )


def grid_of(bits: int) -> Grid:
    """Return the grid of integers that a remainder of `bits` bits can hold."""
    most = 2 ** (bits - 1) - 1
    return Grid(f"int{bits}_symmetric", low=-most, high=most)


def _half(ar: Arithmetic, low: Format, theta: Value) -> Value:
    """Return half an ulp in a parameter's binade; in the lowest one for zero and subnormal numbers."""
    # The power of two at or below a number; for zeros and subnormal numbers, the smallest normal number.
    binade = ar.like(_powers(low), Rounding(Mode.TOWARD_ZERO)).round(ar.add(ar.abs(theta), _LEAST))
    return ar.mul(ar.round(binade), 2.0**-low.precision)


def steps_of(ar: Arithmetic, low: Format, bits: int, theta: Value, master: Value) -> Value:
    """Return the remainder of a master copy, given its parameter: the integer rho of `remaining`."""
    ar = ar.like(FLOAT32, Rounding())
    theta, grid = ar.round(theta), grid_of(bits)
    share = ar.mul(ar.div(ar.sub(master, theta), _half(ar, low, theta)), float(grid.high))
    return ar.like(grid, Rounding(Mode.NEAREST_AWAY, Overflow.SATURATE)).round(share)


def with_steps(ar: Arithmetic, low: Format, bits: int, theta: Value, rho: Value) -> Value:
    """Return the master copy that a parameter and a remainder represent."""
    ar = ar.like(FLOAT32, Rounding())
    theta = ar.round(theta)
    share = ar.div(ar.round(rho), float(grid_of(bits).high))
    return ar.add(theta, ar.mul(share, _half(ar, low, theta)))


def remaining(ar: Arithmetic, low: Format, bits: int, master: Value, theta: Value) -> Value:
    """Return the master copy as far as a parameter and a remainder of `bits` bits represent it.

    Parameters
    ----------
    ar : Arithmetic
        Only its kind matters: everything is computed in float32 and rounded to nearest even.
    low : Format
        The format of the parameter.
    bits : int
        The size of the remainder in bits.
    master, theta : value
        The master copy, and the parameter, which is the master copy rounded into `low`.

    Returns
    -------
    value
        ``theta + RN(RN(rho / L) h)``, rounded, with ``L = 2**(bits - 1) - 1`` and h half an ulp in theta's
        binade. The integer rho is the nearest to ``RN((master - theta) / h L)``, ties away from zero, and
        at most L in magnitude. NaN where the master copy has left the range of `low`.

    References
    ----------
    FlashOptim, arXiv 2602.23349: ``_compute_ecc_bits`` and ``_apply_error_correction`` of its code, with 8
    and 16 bits. (It multiplies by powers of two in two parts; the first part is exact.)
    """
    return with_steps(ar, low, bits, theta, steps_of(ar, low, bits, theta, master))
