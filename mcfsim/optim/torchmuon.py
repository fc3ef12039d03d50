"""Muon with the rounding points and the sums of PyTorch on a CPU: its hyperparameters and stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.kernels.torch_products import matmul, norm
from mcfsim.optim.declaration import Granularity, Shape
from mcfsim.optim.muon import Muon, Orthogonal
from mcfsim.optim.newton_schulz import Array, Iterating, NewtonSchulz, Parts
from mcfsim.optim.staged import Gathered, Known, Stage, moved_by, parameter_of, straight
from mcfsim.optim.state import average, converted, split_master
from mcfsim.optim.stored import FLOAT32
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.torchadamw import TorchAdamW, inner, lerp, lerp_factors, let_in, stored, torchadamw
from mcfsim.protocol import Arithmetic

#: How many numbers of bfloat16 a vector of AVX-512 has.
LANES = 32


@dataclass(frozen=True)
class TorchNewtonSchulz(NewtonSchulz):
    """The iteration of `torch.optim.Muon` in bfloat16, with its sums on a CPU.

    For the sums see `mcfsim.kernels.torch_products`. The parameters are those of `NewtonSchulz`; iterate,
    components, accumulator, fused, margin and added must be PyTorch's.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = NewtonSchulz()
        for name in ("iterate", "components", "accumulator", "fused", "margin", "added"):
            if getattr(self, name) != getattr(usual, name):
                raise ValueError(f"{name} must be that of torch.optim.Muon; NewtonSchulz takes others")
        single = tuple(tuple(float(round_to(x, FLOAT32)) for x in triple) for triple in self.iterations)
        object.__setattr__(self, "coefficients", single)

    def steps(self, ar: Arithmetic) -> Iterating:
        """Return the operations of the iteration."""
        return _TorchIterating(ar, self)


class _TorchIterating(Iterating):
    """The operations of PyTorch's iteration."""

    def norm(self, ar: Arithmetic, x: Array, in_rows: bool) -> Array:
        """Return the Frobenius norm of each matrix as PyTorch sums it, rounded; shape (stack, 1, 1)."""
        if self.plain:
            return super().norm(ar, x, in_rows)
        laid = x if in_rows else np.swapaxes(x, -1, -2)
        found = np.array([norm(matrix) for matrix in laid], np.float32)
        return np.asarray(ar.round(found)).reshape(-1, 1, 1)

    def product(self, x: Parts, y: Parts, first: bool = True, second: bool = True) -> Array:
        """Return matrix products as PyTorch sums them."""
        if self.plain:
            return super().product(x, y)
        pairs = zip(x[0], y[0], strict=True)
        return np.stack([matmul(a, b, rows=(first, second)) for a, b in pairs])


class TorchMuonScalars(NamedTuple):
    """The real scalars of one step, rounded as in PyTorch: Muon's, and from beta1 on TorchAdamW's by name.

    Attributes
    ----------
    momentum, gain : float
        Used only if m has several components.
    near_b, far_b, near_u, far_u : float
        Factors of ``lerp`` of the momentum and of the direction; see `TorchAdamWScalars`.
    length : float
        The rate of a matrix's step with its factor, rounded.
    kept_w : float
        The factor by which decay multiplies a matrix.
    shrinkage : float
        ``lr lambda``; zero without decay.
    """

    momentum: float
    gain: float
    near_b: float
    far_b: float
    near_u: float
    far_u: float
    length: float
    kept_w: float
    shrinkage: float
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


@dataclass(frozen=True)
class Vectorised(Gathered):
    """1 where PyTorch adds by whole vectors; -1 for the rest at the end, and in stacks and tall matrices."""

    @property
    def what(self) -> str:
        """A description of the numbers."""
        return "1 where PyTorch adds by whole vectors, otherwise -1"

    def taken(self, ar: Arithmetic, x: NDArray[Any], target: Shape) -> NDArray[Any]:
        """Return the numbers."""
        stack, rows, columns = x.shape
        whole = np.arange(x.size) < x.size // LANES * LANES
        found = np.where(whole & (stack == 1 and rows <= columns), 1.0, -1.0)
        return np.asarray(ar.round(found)).reshape(x.shape)

    def check(self, ar: Arithmetic) -> None:
        """Do nothing: every arithmetic has the number 1."""


@dataclass(frozen=True)
class TorchMuon(Muon):
    """Hyperparameters of Muon with the rounding points of `torch.optim.Muon` of PyTorch 2.13 on a CPU.

    They are those of `Muon`; `averaged` and the iteration's formats are PyTorch's. Tensors that are not
    matrices, which PyTorch refuses, move by `TorchAdamW`.
    """

    iteration: NewtonSchulz = field(default_factory=TorchNewtonSchulz)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.averaged:
            raise ValueError("the momentum of torch.optim.Muon is an average: averaged=True")

    @property
    def beside(self) -> TorchAdamW:
        """The optimizer of tensors that are not matrices."""
        return TorchAdamW(self.beta1, self.beta2, self.epsilon, self.weight_decay)

    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of step number `step`, counted from 1, at learning rate `rate`."""
        others = self.beside.scalars(roles, strategy, step, rate * self.share, decayed=decayed)._asdict()
        mu, decay = self.momentum, rate * self.weight_decay if decayed else 0.0
        of_m, of_update, of_parameter = (
            let_in(inner(ar)) for ar in (roles.moments, roles.update, roles.parameter)
        )
        near_b, far_b = lerp_factors(of_m(1.0 - mu))
        near_u, far_u = lerp_factors(of_m(mu))
        return TorchMuonScalars(
            momentum=mu,
            gain=1.0 - mu,
            near_b=near_b,
            far_b=far_b,
            near_u=near_u,
            far_u=far_u,
            length=rate,
            kept_w=of_parameter(1.0 - decay),
            shrinkage=of_update(decay),
            **others,
        )

    def of_shape(self, roles: Roles, scalars: Any, shape: tuple[int, ...]) -> Any:
        """Return the scalars of a tensor's step: a matrix's rate is rounded into the parameter's format."""
        found = super().of_shape(roles, scalars, shape)
        ar = roles.parameter
        return found._replace(length=let_in(ar)(let_in(inner(ar))(found.length)))

    def stages(self, shape: tuple[int, ...]) -> tuple[Stage | Gathered, ...]:
        """Return a tensor's step; see `torch_ahead` and `torch_turned` for its rounding points."""
        if len(shape) < 2:
            return (TORCH_BESIDE,)
        algorithm = torch_ahead if self.nesterov else torch_momentum
        return (
            Stage(algorithm, Granularity.ELEMENT, ("gradient", "m")),
            Orthogonal("factor", "direction", Granularity.ELEMENT, "update", self.iteration),
            Vectorised("vectorised", "direction", Granularity.ELEMENT, "update"),
            Stage(torch_turned, Granularity.ELEMENT, ("factor", "vectorised", "parameter", "extra")),
        )


def torch_momentum(roles: Roles, strategy: Strategy, known: Known, scalars: Any) -> dict[str, Any]:
    """Return the momentum ``B = RN(R32(B + w R32(g - B)))``, whose leading component is the direction."""
    ar, m = roles.moments, known["m"]
    g = ar.round(known["gradient"])
    if len(m) > 1:
        m = average(ar, m, scalars.momentum, g, scalars.gain)
    else:
        m = (lerp(ar, m[0], g, scalars.near_b, scalars.far_b),)
    return {"m": m, "direction": m[0]}


def torch_ahead(roles: Roles, strategy: Strategy, known: Known, scalars: Any) -> dict[str, Any]:
    """Return the momentum B as `torch_momentum` does, and ``U = RN(R32(B + (mu - 1) R32(B - g)))``."""
    found = torch_momentum(roles, strategy, known, scalars)
    ar = roles.moments
    g = ar.round(known["gradient"])
    return {**found, "direction": lerp(ar, g, found["m"][0], scalars.near_u, scalars.far_u)}


def torch_turned(roles: Roles, strategy: Strategy, known: Known, scalars: Any) -> dict[str, Any]:
    """Move a matrix as ``mul_`` and ``add_`` do: first the decay, then the update times the rounded rate.

    Where PyTorch adds by whole vectors, ``theta = RN(R32(theta' - l O))``; elsewhere, in a low format, it is
    ``RN(R32(theta' - RN(R32(l O))))``. l is the rate in the format of theta.
    """
    ar, up = roles.parameter, roles.update
    wide, asking = inner(ar), inner(up)
    factor = converted(asking, known["factor"], up)
    theta = parameter_of(known).represented(strategy)[0]
    update = asking.mul(factor, -scalars.length)
    if scalars.shrinkage:
        update = asking.fma(converted(asking, theta, ar), -scalars.shrinkage, update)
    update = converted(up, update, asking)
    if strategy.addition in (Addition.KAHAN, Addition.GROW):
        return moved_by(roles, strategy, known, update)
    kept = converted(wide, theta, ar)
    if scalars.shrinkage:
        kept = stored(ar, wide.mul(kept, scalars.kept_w))
    factor = converted(wide, known["factor"], up)
    moved = converted(ar, wide.fma(factor, -scalars.length, kept), wide)
    if wide.format != ar.format:
        step = stored(ar, wide.mul(factor, -scalars.length))
        apart = converted(ar, wide.add(kept, step), wide)
        moved = ar.choose(converted(ar, known["vectorised"], up), moved, apart)
    parameter, extra = split_master(roles, strategy, moved)
    return {"parameter": parameter, "extra": extra, "update": update}


#: The step of tensors that are not matrices.
TORCH_BESIDE = straight(torchadamw)
