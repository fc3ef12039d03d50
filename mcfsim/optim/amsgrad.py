"""AMSGrad, which is AdamW with the largest v so far: with its own rounding points and with PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcfsim.optim import torchadamw
from mcfsim.optim.adamw import AdamW, AdamWScalars, first_moment, quotient, second_moment
from mcfsim.optim.declaration import Granularity, Slot
from mcfsim.optim.staged import Known, Stage, Staged, parameter_of
from mcfsim.optim.state import converted, decayed_update, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.torchadamw import TorchAdamW, TorchAdamWScalars
from mcfsim.protocol import Arithmetic, Value


@dataclass(frozen=True)
class AMSGrad(Staged, AdamW):  # type: ignore[misc]  # its step is in stages
    """Hyperparameters of AMSGrad, those of `AdamW`; it divides by the root of the largest v so far.

    The slot v keeps two numbers per element: v, and the largest one. As in
    ``torch.optim.AdamW(amsgrad=True)`` the largest v is found before the bias correction.

    References
    ----------
    Reddi, Kale, Kumar, ICLR 2018, Algorithm 2, with decoupled decay.
    """

    slots = (Slot("m"), Slot("v"))
    feeds_back = False

    def parts(self, slot: str, shape: tuple[int, ...]) -> dict[str, Granularity]:
        """Return what a slot keeps; for v, also the largest so far."""
        names = ("v", "largest") if slot == "v" else (slot,)
        return dict.fromkeys(names, Granularity.ELEMENT)

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage, ...]:
        """Return a tensor's step; see `amsgrad` for its rounding points."""
        return (STAGE,)


def amsgrad(roles: Roles, strategy: Strategy, known: Known, scalars: AdamWScalars) -> dict[str, Any]:
    """Make one step like `mcfsim.optim.adamw.adamw`, but with the largest v; see `larger`."""
    ar, second = roles.moments, roles.second_moment
    g = ar.round(known["gradient"])
    m = first_moment(ar, known["m"], g, scalars)
    v = second_moment(second, known["v"], converted(second, g, ar), scalars)
    largest = larger(second, v, known["largest"])
    state = parameter_of(known)
    direction, _ = quotient(roles, m, (largest[0],), scalars)
    update = decayed_update(roles.update, strategy, state, direction, scalars)
    parameter, extra = move(roles, strategy, state, update)
    return {"parameter": parameter, "m": m, "v": v, "largest": largest, "extra": extra, "update": update}


def larger(ar: Arithmetic, v: tuple[Value, ...], before: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the larger of v and the largest v so far, without rounding.

    If there are several components, the leading ones are compared; where that of v is not less, all
    components of v are taken. A NaN stays.
    """
    first, *rest = before
    found = [ar.maximum(v[0], first)]
    if rest:
        grown = ar.sub(v[0], first)
        found += [ar.choose(grown, new, old) for new, old in zip(v[1:], rest, strict=True)]
    return tuple(found)


#: What a stage reads, whatever its rounding points.
_TAKEN = ("gradient", "m", "v", "largest", "parameter", "extra")
STAGE = Stage(amsgrad, Granularity.ELEMENT, _TAKEN)


@dataclass(frozen=True)
class TorchAMSGrad(AMSGrad, TorchAdamW):  # type: ignore[misc]  # its step is in stages
    """Hyperparameters of AMSGrad with the rounding points of ``torch.optim.AdamW(amsgrad=True)`` on a CPU.

    The hyperparameters are those of `AMSGrad`, the rounding points those of `TorchAdamW`; finding the largest
    v rounds nothing.
    """

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage, ...]:
        """Return a tensor's step; see `torchamsgrad` for its rounding points."""
        return (TORCH_STAGE,)


def torchamsgrad(
    roles: Roles, strategy: Strategy, known: Known, scalars: TorchAdamWScalars
) -> dict[str, Any]:
    """Make one step like `mcfsim.optim.torchadamw.torchadamw`, but with the largest v; see `larger`."""
    ar, second = roles.moments, roles.second_moment
    g = ar.round(known["gradient"])
    m = torchadamw.first_moment(ar, known["m"], g, scalars)
    v = torchadamw.second_moment(second, known["v"], converted(second, g, ar), scalars)
    largest = larger(second, v, known["largest"])
    asked = torchadamw.quotient(roles, m, largest, scalars)
    parameter, extra, update = torchadamw.turned(roles, strategy, parameter_of(known), asked, scalars)
    return {"parameter": parameter, "m": m, "v": v, "largest": largest, "extra": extra, "update": update}


TORCH_STAGE = Stage(torchamsgrad, Granularity.ELEMENT, _TAKEN)
