"""AMSGrad with the rounding points of PyTorch: its hyperparameters and its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcfsim.optim.amsgrad import AMSGrad, larger
from mcfsim.optim.declaration import Granularity
from mcfsim.optim.staged import Known, Stage, parameter_of
from mcfsim.optim.state import converted
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.torchadamw import (
    TorchAdamW,
    TorchAdamWScalars,
    first_moment,
    quotient,
    second_moment,
    turned,
)


@dataclass(frozen=True)
class TorchAMSGrad(AMSGrad, TorchAdamW):  # type: ignore[misc]  # its step is in stages
    """Hyperparameters of AMSGrad with the rounding points of ``torch.optim.AdamW(amsgrad=True)`` on a CPU.

    They are those of `AMSGrad`, and the points those of `TorchAdamW`; taking the largest v rounds nothing.
    """

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage, ...]:
        """Return a tensor's step; see `torchamsgrad` for its rounding points."""
        return (TORCH_STAGE,)


def torchamsgrad(
    roles: Roles, strategy: Strategy, known: Known, scalars: TorchAdamWScalars
) -> dict[str, Any]:
    """Make one step as `mcfsim.optim.torchadamw.torchadamw`, but by the largest v; see `larger`."""
    ar, second = roles.moments, roles.second_moment
    g = ar.round(known["gradient"])
    m = first_moment(ar, known["m"], g, scalars)
    v = second_moment(second, known["v"], converted(second, g, ar), scalars)
    largest = larger(second, v, known["largest"])
    asked = quotient(roles, m, largest, scalars)
    parameter, extra, update = turned(roles, strategy, parameter_of(known), asked, scalars)
    return {"parameter": parameter, "m": m, "v": v, "largest": largest, "extra": extra, "update": update}


TORCH_STAGE = Stage(
    torchamsgrad, Granularity.ELEMENT, ("gradient", "m", "v", "largest", "parameter", "extra")
)
