"""Muon: momentum made near-orthogonal for matrices, AdamW for the rest; its hyperparameters and stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from mcfsim.checks import check_flag, chosen
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.adamw import AdamW, adamw
from mcfsim.optim.declaration import Granularity, Interval, Shape, Slot
from mcfsim.optim.newton_schulz import NewtonSchulz
from mcfsim.optim.staged import Gathered, Known, Stage, Staged, moved_by, parameter_of, straight
from mcfsim.optim.state import average
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.protocol import Arithmetic


class Scale(StrEnum):
    """Factors of the rate of a matrix's step, by the numbers r and c of its rows and columns.

    ``none``: 1. ``original``: ``sqrt(max(1, r / c))``. ``match_rms_adamw``: ``0.2 sqrt(max(r, c))``, for the
    rates of AdamW. ``spectral``: ``sqrt(r / c)``.

    References
    ----------
    ``original`` and ``match_rms_adamw``: `torch.optim.Muon`; KellerJordan/Muon; Liu et al., arXiv 2502.16982
    (Moonlight). ``spectral``: NVIDIA's Emerging-Optimizers.
    """

    NONE = "none"
    ORIGINAL = "original"
    MATCH_RMS_ADAMW = "match_rms_adamw"
    SPECTRAL = "spectral"


_FACTORS: Mapping[Scale, Callable[[int, int], float]] = MappingProxyType(
    {
        Scale.NONE: lambda rows, columns: 1.0,
        Scale.ORIGINAL: lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
        Scale.MATCH_RMS_ADAMW: lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
        Scale.SPECTRAL: lambda rows, columns: math.sqrt(rows / columns),
    }
)


class MuonScalars(NamedTuple):
    """The real scalars of one step, as Python floats: Muon's, and from beta1 on AdamW's, by its names.

    Attributes
    ----------
    momentum, gain : float
        The momentum is ``momentum B + gain g``.
    length : float
        The rate of a matrix's step, with its factor.
    shrinkage : float
        The rate of Muon times the decay; zero without decay.
    """

    momentum: float
    gain: float
    length: float
    shrinkage: float
    beta1: float
    gain1: float
    beta2: Any
    gain2: float
    correction1: float
    correction2: float
    epsilon: float
    decay: float
    rate: float


@dataclass(frozen=True)
class Orthogonal(Gathered):
    """Near-orthogonal factors of matrices, by a Newton-Schulz iteration.

    Parameters
    ----------
    name, of, over, role
        As for `Gathered`.
    iteration : NewtonSchulz
        The iteration, with its formats and sums.
    """

    iteration: NewtonSchulz = field(default_factory=NewtonSchulz)

    @property
    def what(self) -> str:
        """A description of the numbers."""
        return f"near-orthogonal factor of {self.of}, in {self.iteration.iterate}"

    def taken(self, ar: Arithmetic, x: NDArray[Any], target: Shape) -> NDArray[Any]:
        """Return the near-orthogonal factors."""
        return self.iteration(ar, x)

    def check(self, ar: Arithmetic) -> None:
        """Raise UnsupportedFormatError for a library's low format, whose matrix products are unspecified."""
        if isinstance(ar, NativeArithmetic) and ar.dtype.kind != "f":
            raise UnsupportedFormatError(f"native {ar.dtype}: how matrix products round is not specified")


@dataclass(frozen=True)
class Muon(Staged):
    """Hyperparameters of Muon: matrices move by the near-orthogonal factor of their momentum.

    Tensors with fewer than two dimensions, and those named in `others`, move by AdamW. If a tensor has
    more, its last two dimensions are those of matrices.

    Parameters
    ----------
    momentum : float
        Decay mu of the momentum, in [0, 1).
    nesterov : bool
        Whether the factor is that of the momentum one step ahead.
    averaged : bool
        Whether the momentum is an average, ``mu B + (1 - mu) g``, as in PyTorch and Keller Jordan's code; if
        not, it is a sum, ``mu B + g``, as in Moonlight's.
    scale : {"original", "match_rms_adamw", "spectral", "none"}
        How the rate of a matrix depends on its shape; see `Scale`.
    weight_decay : float
        Decoupled decay, not negative; for matrices it is scaled by the rate without the shape's factor.
    iteration : NewtonSchulz
        The Newton-Schulz iteration, with its coefficients, formats and sums.
    others : tuple of str
        Names or patterns of matrices that move by AdamW, such as ``"*embedding*"``.
    share : float
        The rate of AdamW is this share of the schedule's; positive.
    beta1, beta2, epsilon : float
        As for `AdamW`.

    Raises
    ------
    TypeError
        If a hyperparameter is of the wrong type.
    ValueError
        If a hyperparameter is out of range, or not finite.

    References
    ----------
    Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024.
    """

    slots: ClassVar[tuple[Slot, ...]] = (Slot("m"), Slot("v"))
    ranges: ClassVar = {
        "momentum": Interval.SHARE,
        "weight_decay": Interval.NOT_NEGATIVE,
        "share": Interval.POSITIVE,
        **AdamW.ranges,
    }

    momentum: float = 0.95
    nesterov: bool = True
    averaged: bool = True
    scale: Scale | str = Scale.ORIGINAL
    weight_decay: float = 0.1
    iteration: NewtonSchulz = field(default_factory=NewtonSchulz)
    others: tuple[str, ...] = ()
    share: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("nesterov", "averaged"):
            check_flag(name, getattr(self, name))
        object.__setattr__(self, "scale", chosen("scale", self.scale, Scale))
        if not isinstance(self.iteration, NewtonSchulz):
            raise TypeError(f"iteration must be a NewtonSchulz, not {self.iteration!r}")
        listed = isinstance(self.others, list | tuple)
        if not listed or not all(isinstance(name, str) for name in self.others):
            raise TypeError(f"others must be a tuple of names or patterns, not {self.others!r}")
        object.__setattr__(self, "others", tuple(self.others))

    @property
    def beside(self) -> AdamW:
        """The optimizer of the other tensors."""
        return AdamW(self.beta1, self.beta2, self.epsilon, self.weight_decay)

    @property
    def by_name(self) -> bool:
        """Whether the step of a tensor depends on its name."""
        return any(other != "*" for other in self.others)

    def viewed(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a tensor, flattened if `others` names it, so that AdamW moves it."""
        return (math.prod(shape),) if any(fnmatchcase(name, other) for other in self.others) else shape

    def scalars(
        self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool
    ) -> MuonScalars:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        others = self.beside.scalars(roles, strategy, step, rate * self.share, decayed=decayed)._asdict()
        others.pop("feedback")
        return MuonScalars(
            momentum=self.momentum,
            gain=1.0 - self.momentum if self.averaged else 1.0,
            length=rate,
            shrinkage=rate * others["decay"],
            **others,
        )

    def of_shape(self, roles: Roles, scalars: Any, shape: tuple[int, ...]) -> Any:
        """Return the scalars of a tensor's step, with the shape's factor in the rate of a matrix."""
        if len(shape) < 2:
            return scalars
        return scalars._replace(length=scalars.length * self.factor(shape))

    def factor(self, shape: Sequence[int]) -> float:
        """Return the factor of the rate of a matrix of a shape, see `Scale`."""
        return _FACTORS[Scale(self.scale)](*(max(1, size) for size in shape[-2:]))

    def rounded_hyperparameters(self) -> dict[str, dict[str, float]]:
        """Return the scalars that enter every step, by role and by their names in the guide."""
        others, gain = self.beside.rounded_hyperparameters(), 1.0 - self.momentum if self.averaged else 1.0
        return {**others, "m": {"1 - momentum": gain, **others["m"]}}

    def parts(self, slot: str, shape: tuple[int, ...]) -> dict[str, Granularity]:
        """Return what a slot keeps: matrices have no second moment."""
        return {} if slot == "v" and len(shape) >= 2 else {slot: Granularity.ELEMENT}

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage | Gathered, ...]:
        """Return a tensor's step; see `ahead` and `turned` for its rounding points, and `adamw`."""
        if len(shape) < 2:
            return (BESIDE,)
        return (
            Stage(ahead if self.nesterov else momentum, Granularity.ELEMENT, ("gradient", "m")),
            Orthogonal("factor", "direction", Granularity.ELEMENT, "update", self.iteration),
            Stage(turned, Granularity.ELEMENT, ("factor", "parameter", "extra")),
        )


def momentum(roles: Roles, strategy: Strategy, known: Known, scalars: MuonScalars) -> dict[str, Any]:
    """Return the momentum ``B = RN(RN(mu B) + gain g)``, whose leading component is the direction."""
    ar = roles.moments
    m = average(ar, known["m"], scalars.momentum, ar.round(known["gradient"]), scalars.gain)
    return {"m": m, "direction": m[0]}


def ahead(roles: Roles, strategy: Strategy, known: Known, scalars: MuonScalars) -> dict[str, Any]:
    """Return the momentum B as `momentum` does, and the direction ``RN(mu B + RN(gain g))`` ahead of it."""
    ar, up = roles.moments, roles.update
    g = ar.round(known["gradient"])
    m = average(ar, known["m"], scalars.momentum, g, scalars.gain)
    return {"m": m, "direction": up.fma(m[0], scalars.momentum, up.mul(g, scalars.gain))}


def turned(roles: Roles, strategy: Strategy, known: Known, scalars: MuonScalars) -> dict[str, Any]:
    """Move a matrix by ``D = RN(-lr' O + RN(-lr lambda theta))``, or ``RN(-lr' O)`` without decay.

    O is the near-orthogonal factor of the direction, lr' the rate with the factor of the shape.
    """
    up = roles.update
    if scalars.shrinkage:
        theta = up.round(parameter_of(known).represented(strategy)[0])
        update = up.fma(known["factor"], -scalars.length, up.mul(theta, -scalars.shrinkage))
    else:
        update = up.mul(known["factor"], -scalars.length)
    return moved_by(roles, strategy, known, update)


#: The step of tensors that are not matrices.
BESIDE = straight(adamw)

#: The rounding points of a matrix's step with decay and Nesterov's direction, without the strategy's addition
#: and those of the iteration: stage, name, operation.
ROUNDING_POINTS: tuple[tuple[str, str, str], ...] = (
    ("ahead", "gradient", "round"),
    ("ahead", "momentum decayed", "mul"),
    ("ahead", "momentum", "fma"),
    ("ahead", "gradient scaled", "mul"),
    ("ahead", "direction", "fma"),
    ("turned", "weight", "round"),
    ("turned", "weight decay", "mul"),
    ("turned", "update", "fma"),
)
