"""How much smaller a model acts that is trained in few bits: the scaling law for precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks.arguments import finite_number


@dataclass(frozen=True)
class Effective:
    """The share of parameters that precision leaves: ``1 - exp(-P / gamma + n)`` of P bits.

    Parameters
    ----------
    gamma : float
        Bits; the larger, the more bits are needed.
    offset : float
        The n of the exponent.

    Raises
    ------
    TypeError, ValueError
        If one is no finite number, or gamma is not positive.
    """

    gamma: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        finite_number("offset", self.offset)
        if not finite_number("gamma", self.gamma) > 0:
            raise ValueError(f"gamma = {self.gamma} must be positive")

    def share(self, bits: ArrayLike) -> NDArray[np.float64]:
        """Return the share of the parameters, of any shape: 0 where the law says less, 1 of infinite bits.

        Raises
        ------
        ValueError
            If bits are NaN or not positive.
        """
        bits = np.asarray(bits, np.float64)
        if not (bits > 0).all():
            raise ValueError("bits must be positive")
        found: NDArray[np.float64] = np.maximum(-np.expm1(-bits / self.gamma + self.offset), 0.0)
        return found


@dataclass(frozen=True)
class PrecisionLaw:
    """The loss by size, data and precision: ``A N_eff^-alpha + B D^-alpha + E``.

    Parameters
    ----------
    a, b, floor, alpha : float
        A, B, E and alpha.
    kinds : mapping of str to Effective
        What is in few bits: ``N_eff`` is N times the share of each.
    """

    a: float
    b: float
    floor: float
    alpha: float
    kinds: Mapping[str, Effective]

    def effective_parameters(self, size: ArrayLike, **bits: ArrayLike) -> NDArray[np.float64]:
        """Return N_eff of a model; what no bits are given for is exact.

        Raises
        ------
        ValueError
            If a kind is unknown, or bits are not positive.
        """
        found = np.asarray(size, np.float64)
        for kind, number in bits.items():
            if kind not in self.kinds:
                raise ValueError(f"the law says nothing of {kind!r}; known kinds: {', '.join(self.kinds)}")
            found = found * self.kinds[kind].share(number)
        return found

    def loss(self, size: ArrayLike, data: ArrayLike, **bits: ArrayLike) -> NDArray[np.float64]:
        """Return the loss; infinite where no parameter is left, as of 3 bits of activations.

        Parameters
        ----------
        size, data : array_like
            Parameters, and tokens; infinite data are allowed.
        **bits : array_like
            By kind.
        """
        with np.errstate(divide="ignore"):
            of_size = self.a * self.effective_parameters(size, **bits) ** -self.alpha
            of_data = self.b * np.asarray(data, np.float64) ** -self.alpha
        found: NDArray[np.float64] = of_size + of_data + self.floor
        return found

    def best_bits(self) -> float:
        """Return the bits of all kinds together by which a given cost, parameters times bits, goes farthest.

        That is where ``prod(share(P)) / P`` is largest, whatever size and data are.
        """
        from scipy.optimize import minimize_scalar

        def worth(bits: float) -> float:
            return -math.prod(float(kind.share(bits)) for kind in self.kinds.values()) / bits

        grid = np.linspace(0.05, 64.0, 1280)
        near = float(grid[np.argmin([worth(bits) for bits in grid])])
        found = minimize_scalar(worth, bounds=(max(near - 0.1, 1e-3), near + 0.1), method="bounded")
        return float(found.x)


#: Kumar et al., Scaling Laws for Precision, arXiv 2411.04330, appendix K: integers, of models of 30 to 220
#: million parameters. The offsets n are fitted there and belong to it; its authors warn that constants are
#: those of their setup.
PUBLISHED = PrecisionLaw(
    a=4.299e3,
    b=1.806e4,
    floor=2.7648,
    alpha=0.4965,
    kinds=MappingProxyType(
        {
            "weights": Effective(2.6745, 0.3037),
            "activations": Effective(2.2102, 1.4072),
            "kv": Effective(0.9578, 2.4185),
        }
    ),
)
#: The weights' constants for floats instead.
PUBLISHED_FLOAT_WEIGHTS = Effective(2.8111, 0.1240)
