"""AdamW with the rounding points of PyTorch: one step, as a plain function of its arithmetics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mcfsim.convert import round_to
from mcfsim.formats import get_format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.adamw import AdamW
from mcfsim.optim.declaration import Slot
from mcfsim.optim.state import State, Step, average, crossed, move, of_master
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode


class TorchAdamWScalars(NamedTuple):
    """The real scalars of one step: each rounded as PyTorch lets it in, or a float expansion for `beta2`.

    Attributes
    ----------
    beta1, gain1 : float
        For an m of several components alone.
    near, far : float
        What `lerp_` multiplies g - m with: w = 1 - beta1 to go from m if w < 1/2, else w - 1 to go from g.
        The other one is zero.
    beta2 : float or tuple of float
    gain2 : float
        ``1 - beta2``.
    root2 : float
        The root of ``1 - beta2^t``.
    epsilon : float
    kept : float
        ``1 - lr lambda``: what decay leaves of the parameter.
    decay : float
        ``lr lambda``; zero where nothing decays.
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
    """Return the arithmetic that PyTorch computes in on numbers of a format: the carrier's, to nearest even.

    That is binary32 for a format that it holds, and else binary64. An arithmetic of the very format, or of
    exact numbers, is returned as it is.
    """
    if ar.format is None or ar.rounding is None:
        return ar
    wide = get_format(str(carrier_of(ar.format)))
    return ar if wide == ar.format else ar.like(wide, replace(ar.rounding, mode=Mode.NEAREST_EVEN))


def _let_in(ar: Arithmetic) -> Callable[[float], float]:
    """Return how a real scalar enters operations of an arithmetic: rounded to nearest even."""
    fmt = ar.format
    return float if fmt is None else lambda x: float(round_to(x, fmt))


def first_moment(
    ar: Arithmetic, m: tuple[Value, ...], gradient: Value, scalars: TorchAdamWScalars
) -> tuple[Value, ...]:
    """Return m by ``lerp_``; an expansion as in `mcfsim.optim.adamw`."""
    if len(m) > 1:
        return average(ar, m, scalars.beta1, gradient, scalars.gain1)
    wide = inner(ar)
    old, g = crossed(wide, m[0], ar), crossed(wide, gradient, ar)
    apart = wide.sub(g, old)
    moved = wide.fma(apart, scalars.near, old) if scalars.near else wide.fma(apart, scalars.far, g)
    return (crossed(ar, moved, wide),)


def second_moment(
    ar: Arithmetic, v: tuple[Value, ...], gradient: Value, scalars: TorchAdamWScalars
) -> tuple[Value, ...]:
    """Return v by ``mul_`` and ``addcmul_``; an expansion as in `mcfsim.optim.adamw`."""
    if len(v) > 1:
        return average(ar, v, scalars.beta2, ar.mul(gradient, gradient), scalars.gain2)
    wide = inner(ar)
    g = crossed(wide, gradient, ar)
    shrunk = crossed(ar, wide.mul(crossed(wide, v[0], ar), scalars.beta2), wide)
    moved = wide.fma(wide.mul(g, scalars.gain2), g, crossed(wide, shrunk, ar))
    return (crossed(ar, moved, wide),)


@dataclass(frozen=True)
class TorchAdamW(AdamW):
    """Hyperparameters of AdamW, whose step rounds where that of `torch.optim.AdamW` does.

    They are those of `AdamW`. PyTorch's `amsgrad` is not here.
    """

    slots = (Slot("m", first_moment), Slot("v", second_moment))
    feeds_back = False

    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        given = super().scalars(roles, strategy, step, rate, decayed=decayed)
        of_m, of_v, of_update, of_parameter = (
            _let_in(inner(ar)) for ar in (roles.moments, roles.second_moment, roles.update, roles.parameter)
        )
        weight, decay = of_m(given.gain1), rate * given.decay
        return TorchAdamWScalars(
            beta1=given.beta1,
            gain1=given.gain1,
            near=weight if weight < 0.5 else 0.0,
            far=0.0 if weight < 0.5 else weight - 1.0,
            beta2=given.beta2 if isinstance(given.beta2, tuple) else of_v(given.beta2),
            gain2=of_v(given.gain2),
            root2=of_v(given.correction2**0.5),
            epsilon=_let_in(roles.second_moment)(given.epsilon),  # add_ rounds it into the tensor's dtype
            kept=of_parameter(1.0 - decay),
            decay=of_update(decay),
            size=of_update(rate / given.correction1),
        )

    def entering(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by what they are called in the guide."""
        of_v = {"1 - beta2": 1.0 - self.beta2, "epsilon": self.epsilon}
        return {**super().entering(), "v": of_v, "update": {"weight_decay": self.weight_decay}}

    def step(self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: Any) -> Step:
        """Make one step; see `torchadamw`."""
        return torchadamw(roles, strategy, state, gradient, scalars)


def torchadamw(
    roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: TorchAdamWScalars
) -> Step:
    """Make one step of AdamW as `torch.optim.AdamW(foreach=False, fused=False)` makes it on a CPU.

    Parameters
    ----------
    roles, strategy, state, gradient
        As in `mcfsim.optim.adamw.adamw`.
    scalars : TorchAdamWScalars
        Rounded before.

    Returns
    -------
    Step
        The new state and the update D.

    Notes
    -----
    An operation of PyTorch on a low format computes in binary32, to nearest even (R32), and stores (RN): a
    tensor of binary32 stores what is computed, as it is. The rounding points, named in `ROUNDING_POINTS`::

        m = RN(R32(m + w R32(g - m)))                       lerp_, w = R32(1 - beta1) < 1/2; else
            RN(R32(g + (w - 1) R32(g - m)))
        v = RN(R32(w' + R32(R32(1 - beta2) g) g))           mul_, addcmul_, with
            w' = RN(R32(R32(beta2) v))
        d = RN(R32(RN(R32(RN(R32(sqrt(v))) / s)) + RN(eps))),   s = R32(sqrt(1 - beta2^t))
        q = R32(R32(-R32(lr / (1 - beta1^t)) m) / d)        in addcdiv_, which does not store it
        theta = RN(R32(theta' + q)),                        theta' = RN(R32(R32(1 - lr lambda) theta))
        D = RN(R32(q - R32(lr lambda) theta))

    This theta is that of additions `plain` and `master`, where D is no more than what was asked for.
    Additions `kahan` and `grow`, which PyTorch has not, compensate D with the decay in it. A moment of
    several components moves as in `mcfsim.optim.adamw`. Of formats that binary32 does not hold R32 is that of
    binary64.

    R32(sqrt(v)) is the correctly rounded root. PyTorch on x86 takes roots of float32 and float64 from Intel
    MKL, which gives another float in a sixth of cases; those of bfloat16 and float16 it rounds correctly.
    For beta1 = 0 the text is that of PyTorch's vectors of numbers: at the end of a tensor, where too few are
    left for one, its m of a gradient of -0 is 0 there, and -0 here.

    References
    ----------
    ``_single_tensor_adam`` in torch/optim/adam.py of PyTorch 2.13; its fused multiply-adds are those of a
    processor with AVX2 or AVX-512.
    """
    ar, second, up = roles.moments, roles.second_moment, roles.update
    g = ar.round(gradient)
    m = first_moment(ar, state.m, g, scalars)
    v = second_moment(second, state.v, crossed(second, g, ar), scalars)
    asked = quotient(roles, m, v, scalars)
    update = crossed(up, decayed(roles, strategy, state, asked, scalars), inner(up))
    if strategy.addition in (Addition.KAHAN, Addition.GROW):
        parameter, extra = move(roles, strategy, state, update)
    else:
        parameter, extra = added(roles, strategy, state, asked, scalars)
    return Step(State(parameter, m, v, extra), update)


def quotient(roles: Roles, m: tuple[Value, ...], v: tuple[Value, ...], scalars: TorchAdamWScalars) -> Value:
    """Return q, the update without decay, as `addcdiv_` has it: in the inner arithmetic of the update."""
    second, up = roles.second_moment, roles.update
    wide, asking = inner(second), inner(up)

    def stored(x: Value) -> Value:
        """Round a number into the format of v, and bring it back."""
        return crossed(wide, crossed(second, x, wide), second)

    root = stored(wide.sqrt(crossed(wide, v[0], second)))
    denominator = stored(wide.add(stored(wide.div(root, scalars.root2)), scalars.epsilon))
    scaled = asking.mul(crossed(asking, m[0], up), -scalars.size)
    return asking.div(scaled, crossed(asking, denominator, wide))


def decayed(
    roles: Roles, strategy: Strategy, state: State, asked: Value, scalars: TorchAdamWScalars
) -> Value:
    """Return q and the decay as one update, in the inner arithmetic of the update."""
    if not scalars.decay:
        return asked
    wide = inner(roles.update)
    theta = crossed(wide, state.represented(strategy)[0], roles.parameter)
    return wide.fma(theta, -scalars.decay, asked)


def added(
    roles: Roles, strategy: Strategy, state: State, asked: Value, scalars: TorchAdamWScalars
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return parameter and extra: the decayed parameter, or master copy, plus q."""
    ar = roles.parameter
    wide = inner(ar)
    theta = crossed(wide, state.represented(strategy)[0], ar)
    if scalars.decay:
        theta = crossed(wide, crossed(ar, wide.mul(theta, scalars.kept), wide), ar)
    moved = crossed(ar, wide.add(theta, crossed(wide, asked, inner(roles.update))), wide)
    if strategy.addition is Addition.MASTER:
        return of_master(roles, strategy, moved)
    return (moved,), ()


#: The rounding points of a step with one-component moments in a low format and decay: "round" stores, all
#: others are operations of binary32. Where that is the format, nothing is stored apart.
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
