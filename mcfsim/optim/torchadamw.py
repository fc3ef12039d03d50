"""AdamW with the rounding points of PyTorch: its hyperparameters and one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.real_numbers import round_real
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.declaration import Slot
from mcfsim.optim.state import State, Step, average, converted, move, split_master
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Rounding


class TorchAdamWScalars(NamedTuple):
    """The real scalars of one step, rounded as in PyTorch; `beta2` may be an expansion of floats.

    Attributes
    ----------
    beta1, gain1 : float
        Used only if m has several components.
    near, far : float
        The factors of g - m in `lerp_`. If w = 1 - beta1 < 1/2, it starts from m with near = w; otherwise it
        starts from g with far = w - 1. The other factor is zero.
    beta2 : float or tuple of float
    gain2 : float
        ``1 - beta2``.
    root2 : float
        The root of ``1 - beta2^t``.
    epsilon : float
    kept : float
        ``1 - lr lambda``, the factor by which decay multiplies the parameter.
    decay : float
        ``lr lambda``; zero without decay.
    size : float
        ``lr / (1 - beta1^t)``.
    """

    beta1: float
    gain1: float
    near: float
    far: float
    beta2: Any
    gain2: float
    root2: float
    epsilon: float
    kept: float
    decay: float
    size: float


def inner(ar: Arithmetic) -> Arithmetic:
    """Return the arithmetic in which PyTorch computes on a format: the carrier's, to nearest even.

    It is binary32 for a format that binary32 holds, and otherwise binary64. If `ar` already has that format,
    or exact numbers, it is returned unchanged.
    """
    if ar.format is None or ar.rounding is None:
        return ar
    wide = _widened(ar.format)
    return ar if wide == ar.format else ar.like(wide, replace(ar.rounding, mode=Mode.NEAREST_EVEN))


def stored(ar: Arithmetic, x: Value) -> Value:
    """Return a number of the inner arithmetic as it reads after `ar` has rounded and stored it."""
    wide = inner(ar)
    return converted(wide, converted(ar, x, wide), ar)


@lru_cache(maxsize=64)
def _widened(fmt: Format) -> Format:
    """Return the format of a format's carrier."""
    return get_format(str(carrier_of(fmt)))


def let_in(ar: Arithmetic) -> Callable[[float], float]:
    """Return a function that rounds a real scalar to nearest even in an arithmetic's format."""
    fmt = ar.format
    return float if fmt is None else lambda x: round_real(x, fmt, Rounding())


def lerp_factors(weight: float) -> tuple[float, float]:
    """Return near and far for a weight, as `TorchAdamWScalars` describes them; one of the two is zero."""
    return (weight, 0.0) if weight < 0.5 else (0.0, weight - 1.0)


def lerp(ar: Arithmetic, start: Value, end: Value, near: float, far: float) -> Value:
    """Return ``start.lerp(end, weight)``, computed in the inner arithmetic and stored."""
    wide = inner(ar)
    first, last = converted(wide, start, ar), converted(wide, end, ar)
    apart = wide.sub(last, first)
    moved = wide.fma(apart, near, first) if near else wide.fma(apart, far, last)
    return converted(ar, moved, wide)


def addcmul(ar: Arithmetic, v: Value, gradient: Value, beta: float, gain: float) -> Value:
    """Return ``v.mul_(beta).addcmul_(gradient, gradient, gain)``, computed in the inner arithmetic."""
    wide = inner(ar)
    g = converted(wide, gradient, ar)
    shrunk = converted(ar, wide.mul(converted(wide, v, ar), beta), wide)
    moved = wide.fma(wide.mul(g, gain), g, converted(wide, shrunk, ar))
    return converted(ar, moved, wide)


def first_moment(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: TorchAdamWScalars
) -> tuple[Value, ...]:
    """Return the new first moment by ``lerp_``; an expansion as in `mcfsim.optim.adamw`."""
    if len(m) > 1:
        return average(ar, m, scalars.beta1, gradient, scalars.gain1)
    return (lerp(ar, m[0], gradient, scalars.near, scalars.far),)


def second_moment(
    ar: Arithmetic, v: tuple[Value, ...], gradient: Value, scalars: TorchAdamWScalars
) -> tuple[Value, ...]:
    """Return the new second moment by ``mul_`` and ``addcmul_``; an expansion as in `mcfsim.optim.adamw`."""
    if len(v) > 1:
        return average(ar, v, scalars.beta2, ar.mul(gradient, gradient), scalars.gain2)
    return (addcmul(ar, v[0], gradient, scalars.beta2, scalars.gain2),)


def torchadamw(
    roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: TorchAdamWScalars
) -> Step:
    """Make one step of AdamW as `torch.optim.AdamW(foreach=False, fused=False)` makes it on a CPU.

    Parameters
    ----------
    roles, strategy, state, gradient
        As in `mcfsim.optim.adamw.adamw`.
    scalars : TorchAdamWScalars
        The real scalars, already rounded.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    An operation of PyTorch on a low format computes in binary32, to nearest even (R32), and rounds the stored
    result (RN). For a tensor of binary32, RN changes nothing. The rounding points, named in
    `ROUNDING_POINTS`::

        m = RN(R32(m + w R32(g - m)))                       lerp_, w = R32(1 - beta1) < 1/2; else
            RN(R32(g + (w - 1) R32(g - m)))
        v = RN(R32(w' + R32(R32(1 - beta2) g) g))           mul_, addcmul_, with
            w' = RN(R32(R32(beta2) v))
        d = RN(R32(RN(R32(RN(R32(sqrt(v))) / s)) + RN(eps))),   s = R32(sqrt(1 - beta2^t))
        q = R32(R32(-R32(lr / (1 - beta1^t)) m) / d)        in addcdiv_, which does not store it
        theta = RN(R32(theta' + q)),                        theta' = RN(R32(R32(1 - lr lambda) theta))
        D = RN(R32(q - R32(lr lambda) theta))

    This theta is for the additions `plain` and `master`; there, D is only reported. The additions `kahan` and
    `grow`, which PyTorch does not have, add and compensate D, which includes the decay. A moment of several
    components is computed as in `mcfsim.optim.adamw`. For formats that binary32 does not hold, R32 rounds to
    binary64.

    R32(sqrt(v)) is the correctly rounded root. PyTorch on x86 takes roots of float32 and float64 from Intel
    MKL, which gives another float in a sixth of cases; it rounds roots of bfloat16 and float16 correctly.
    For beta1 = 0 the step follows PyTorch's vector code. At the end of a tensor, where too few numbers are
    left for a vector, PyTorch's m for a gradient of -0 is 0; here it is -0.

    References
    ----------
    ``_single_tensor_adam`` in torch/optim/adam.py of PyTorch 2.13; its fused multiply-adds are those of a
    processor with AVX2 or AVX-512.
    """
    ar, second = roles.moments, roles.second_moment
    g = ar.round(gradient)
    m = first_moment(ar, state.m, g, scalars)
    v = second_moment(second, state.v, converted(second, g, ar), scalars)
    parameter, extra, update = turned(roles, strategy, state, quotient(roles, m, v, scalars), scalars)
    return Step(State(parameter, m, v, extra), update)


def turned(
    roles: Roles, strategy: Strategy, state: State, asked: Value, scalars: TorchAdamWScalars
) -> tuple[tuple[Value, ...], tuple[Value, ...], Value]:
    """Return the new parameter and extra, given the quotient q, and the update D."""
    up = roles.update
    update = converted(up, decayed(roles, strategy, state, asked, scalars), inner(up))
    if strategy.addition in (Addition.KAHAN, Addition.GROW):
        return *move(roles, strategy, state, update), update
    return *added(roles, strategy, state, asked, scalars), update


def quotient(roles: Roles, m: tuple[Value, ...], v: tuple[Value, ...], scalars: TorchAdamWScalars) -> Value:
    """Return q, the update without decay, as in `addcdiv_`: in the inner arithmetic of the update."""
    second, up = roles.second_moment, roles.update
    wide, asking = inner(second), inner(up)
    root = stored(second, wide.sqrt(converted(wide, v[0], second)))
    corrected = stored(second, wide.div(root, scalars.root2))
    denominator = stored(second, wide.add(corrected, scalars.epsilon))
    scaled = asking.mul(converted(asking, m[0], up), -scalars.size)
    return asking.div(scaled, converted(asking, denominator, wide))


def decayed(
    roles: Roles, strategy: Strategy, state: State, asked: Value, scalars: TorchAdamWScalars
) -> Value:
    """Return q with the decay included, in the inner arithmetic of the update."""
    if not scalars.decay:
        return asked
    wide = inner(roles.update)
    theta = converted(wide, state.represented(strategy)[0], roles.parameter)
    return wide.fma(theta, -scalars.decay, asked)


def added(
    roles: Roles, strategy: Strategy, state: State, asked: Value, scalars: TorchAdamWScalars
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return the new parameter and extra: q is added to the decayed parameter, or master copy."""
    ar = roles.parameter
    wide = inner(ar)
    theta = converted(wide, state.represented(strategy)[0], ar)
    if scalars.decay:
        theta = stored(ar, wide.mul(theta, scalars.kept))
    moved = converted(ar, wide.add(theta, converted(wide, asked, inner(roles.update))), wide)
    return split_master(roles, strategy, moved)


@dataclass(frozen=True)
class TorchAdamW(AdamW):
    """Hyperparameters of AdamW with the rounding points of `torch.optim.AdamW`.

    They are the same as those of `AdamW`. With ``amsgrad`` PyTorch's steps are those of `TorchAMSGrad`.
    """

    slots = (Slot("m", first_moment), Slot("v", second_moment))
    step = staticmethod(torchadamw)  # type: ignore[assignment]  # of scalars of its own
    feeds_back = False

    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        given = super().scalars(roles, strategy, step, rate, decayed=decayed)
        of_m, of_v, of_update, of_parameter = (
            let_in(inner(ar)) for ar in (roles.moments, roles.second_moment, roles.update, roles.parameter)
        )
        (near, far), decay = lerp_factors(of_m(given.gain1)), rate * given.decay
        return TorchAdamWScalars(
            beta1=given.beta1,
            gain1=given.gain1,
            near=near,
            far=far,
            beta2=given.beta2 if isinstance(given.beta2, tuple) else of_v(given.beta2),
            gain2=of_v(given.gain2),
            root2=of_v(given.correction2**0.5),
            epsilon=let_in(roles.second_moment)(given.epsilon),  # add_ rounds it into the tensor's dtype
            kept=of_parameter(1.0 - decay),
            decay=of_update(decay),
            size=of_update(rate / given.correction1),
        )

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by their names in the guide."""
        of_v = {"1 - beta2": 1.0 - self.beta2, "epsilon": self.epsilon}
        return {**super().rounded_hyperparameters(), "v": of_v, "update": {"weight_decay": self.weight_decay}}


#: The rounding points of a step with one-component moments in a low format and decay. "round" stores; all
#: others are operations of binary32. In binary32 itself, storing rounds nothing.
ROUNDING_POINTS: tuple[tuple[str, str], ...] = (
    ("gradient", "round"),
    ("gradient apart", "sub"),
    ("first moment moved", "fma"),
    ("first moment", "round"),
    ("second moment scaled", "mul"),
    ("second moment decayed", "round"),
    ("gradient scaled", "mul"),
    ("second moment moved", "fma"),
    ("second moment", "round"),
    ("root taken", "sqrt"),
    ("root", "round"),
    ("root divided", "div"),
    ("root corrected", "round"),
    ("epsilon added", "add"),
    ("denominator", "round"),
    ("first moment scaled", "mul"),
    ("quotient", "div"),
    ("update asked for", "fma"),
    ("update", "round"),
    ("weight scaled", "mul"),
    ("weight decayed", "round"),
    ("weight moved", "add"),
    ("weight", "round"),
)
