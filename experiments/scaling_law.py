"""The scaling law for precision, and its fit: how much smaller a model trained in few bits acts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import check_processor, finite_number

Vector = NDArray[np.float64]


#: The constants of a fit (those in `_LOGARITHMS` as logarithms), their bounds (for the floor, as far beyond
#: the losses), and the points from which the fit begins.
_NAMES = ("a", "alpha", "floor", "gamma", "offset")
_LOGARITHMS = ("a", "gamma")
_BOUNDS = ((-12.0, 6.0), (0.01, 3.0), (-10.0, 10.0), (-3.0, 3.0), (-10.0, 10.0))
_STARTS = tuple(product((-2.0, 0.0), (0.2, 0.6), ((0.0, 0.0), (1.0, 1.0))))
#: The step of the search for the end of an interval, and the halvings that then locate it.
_STEP, _HALVINGS = 0.02, 20


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
        """Return the bits, common to all kinds, that make the most of a given cost, parameters times bits.

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


@dataclass(frozen=True)
class Interval:
    """A constant that was fitted, and where it may lie.

    Parameters
    ----------
    value : float
        Of the best fit.
    low, high : float
        Ends of its profile interval: beyond them no other constants fit well enough. Infinite where the data
        set no bound.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """The law ``a (N / unit)^-alpha share(P)^-alpha + floor`` as data of one number of tokens have it.

    Parameters
    ----------
    constants : mapping of str to Interval
        ``a, alpha, floor, gamma, offset``; the part of the data is in the floor.
    unit : float
        In which sizes are counted: their geometric mean.
    residual : float
        Root mean square of what is left.
    confidence : float
        Of the intervals.
    """

    constants: Mapping[str, Interval]
    unit: float
    residual: float
    confidence: float

    @property
    def effective(self) -> Effective:
        """The share by precision, of the best fit."""
        return Effective(self.constants["gamma"].value, self.constants["offset"].value)

    def predict(self, size: ArrayLike, bits: ArrayLike) -> NDArray[np.float64]:
        """Return the loss of a size and a number of bits of weights, which may be infinite."""
        values = {name: item.value for name, item in self.constants.items()}
        law = PrecisionLaw(values["a"], 0.0, values["floor"], values["alpha"], {"weights": self.effective})
        return law.loss(np.asarray(size, np.float64) / self.unit, 1.0, weights=bits)


def fit(
    sizes: Sequence[float],
    bits: Sequence[float],
    losses: Sequence[float],
    confidence: float = 0.95,
    seeds: Sequence[Any] | None = None,
) -> Fit:
    """Fit the law to losses of several sizes and precisions of weights, by least squares.

    Parameters
    ----------
    sizes, bits, losses : sequences of float
        One of each a training; bits may be infinite, for weights that are not rounded.
    seeds : sequence, optional
        Of each training; those of one size and seed share a start and batches. Then what all precisions of a
        size and seed have in common beyond their size's mean is taken out of the losses, and the interval has
        fewer degrees of freedom by each such mean.
    confidence : float, optional
        Of the intervals. They are those of the profile: where the sum of squares, with the other constants
        fitted anew, is at most ``1 + F / (count - 5)`` times the least one, F by the distribution of that
        name; the 5 is the number of all that is fitted.

    Raises
    ------
    TypeError, ValueError
        If lengths differ, a number is out of range or not finite, or there are fewer than six trainings,
        two sizes or three precisions.
    """
    squares, unit = _given(sizes, bits, losses, confidence, seeds)
    least, x = squares.least(squares.starts())
    limit = squares.limit(least, confidence, 1)
    constants = {}
    for place, name in enumerate(_NAMES):
        found = squares.end(x, place, -1, limit), float(x[place]), squares.end(x, place, 1, limit)
        low, value, high = map(math.exp, found) if name in _LOGARITHMS else found
        constants[name] = Interval(value, low, high)
    residual = math.sqrt(least / squares.losses.size)
    return Fit(MappingProxyType(constants), unit, residual, confidence)


def share_band(
    sizes: Sequence[float],
    bits: Sequence[float],
    losses: Sequence[float],
    at: Sequence[float],
    confidence: float = 0.95,
    seeds: Sequence[Any] | None = None,
) -> Vector:
    """Return the least and the largest share at some bits, of all gamma and offset that fit well enough.

    These are in their joint profile region: where the sum of squares, with the other constants fitted anew,
    is at most ``1 + 2 F / (count - 5)`` times the least one, F by the distribution of that name.

    Parameters
    ----------
    sizes, bits, losses, confidence, seeds
        As `fit` takes them.
    at : sequence of float
        Numbers of bits, which are positive and finite.

    Returns
    -------
    array, shape (2, len(at))

    Raises
    ------
    TypeError, ValueError
        As `fit` does, or if a number of bits is out of range.
    """
    if not all(0 < number < math.inf for number in at):
        raise ValueError("bits must be positive and finite")
    squares, _ = _given(sizes, bits, losses, confidence, seeds)
    least, x = squares.least(squares.starts())
    limit = squares.limit(least, confidence, 2)
    ends = []
    for number in at:
        shares, start = _Shares(squares, number), np.array([*x[:4], x[4] - number / math.exp(x[3])])
        ends.append([max(-math.expm1(shares.end(start, 4, sign, limit)), 0.0) for sign in (1, -1)])
    return np.array(ends).T


def _given(
    sizes: Sequence[float],
    bits: Sequence[float],
    losses: Sequence[float],
    confidence: float,
    seeds: Sequence[Any] | None,
) -> tuple[_Squares, float]:
    """Return the sum of squares for a fit's arguments, and the unit of sizes; raise if they make no sense."""
    check_processor()
    n, p, y = (np.asarray(item, np.float64) for item in (sizes, bits, losses))
    if not (n.shape == p.shape == y.shape and n.ndim == 1):
        raise ValueError(f"{n.size} sizes, {p.size} bits and {y.size} losses do not belong together")
    if not ((n > 0) & np.isfinite(n) & (p > 0) & np.isfinite(y)).all():
        raise ValueError("sizes and bits must be positive, sizes and losses finite")
    if n.size < 6 or len(set(n.tolist())) < 2 or len(set(p.tolist())) < 3:
        raise ValueError("a fit of five constants needs six trainings, two sizes and three precisions")
    if not 0 < finite_number("confidence", confidence) < 1:
        raise ValueError(f"confidence = {confidence} must lie in (0, 1)")
    unit = math.exp(float(np.log(n).mean()))
    if seeds is None:
        return _Squares(n / unit, p, y, len(_NAMES)), unit
    if len(seeds) != n.size:
        raise ValueError(f"{len(seeds)} seeds do not belong to {n.size} trainings")
    blocks: dict[tuple[float, Any], list[int]] = {}
    for place, block in enumerate(zip(n.tolist(), seeds, strict=True)):
        blocks.setdefault(block, []).append(place)
    tried = {size: sorted(p[places]) for (size, _), places in blocks.items()}
    if any(sorted(p[places]) != tried[size] for (size, _), places in blocks.items()):
        raise ValueError("every seed of a size must have the same precisions")
    paired = y.copy()
    for (size, _), places in blocks.items():
        paired[places] += y[n == size].mean() - y[places].mean()
    return _Squares(n / unit, p, paired, len(_NAMES) + len(blocks) - len(tried)), unit


class _Squares:
    """The sum of squares as a function of the constants, of which one may be held."""

    def __init__(self, sizes: Vector, bits: Vector, losses: Vector, fitted: int) -> None:
        self.sizes, self.bits, self.losses, self.fitted = sizes, bits, losses, fitted
        self.low, self.high = np.array(_BOUNDS).T
        self.low[2] += losses.min()
        self.high[2] += losses.max()

    def limit(self, least: float, confidence: float, together: int) -> float:
        """Return the largest sum of squares at which `together` constants are within the confidence."""
        from scipy.stats import f as f_distribution

        free = self.losses.size - self.fitted
        return least * (1 + together * float(f_distribution.ppf(confidence, together, free)) / free)

    def starts(self) -> list[Vector]:
        """Return where fits begin."""
        floor = self.losses.min()
        return [np.array([a, alpha, floor - math.exp(a), *rest]) for a, alpha, rest in _STARTS]

    def residuals(self, x: Vector) -> Vector:
        """Return the residual of each loss; a share below 1e-6 is taken as 1e-6."""
        a, alpha, floor, gamma, offset = x
        exponent = np.minimum(-self.bits / math.exp(gamma) + offset, 50.0)
        share = np.maximum(-np.expm1(exponent), 1e-6)  # a fit must find its way back from there
        found: Vector = math.exp(a) * (self.sizes * share) ** -alpha + floor - self.losses
        return found

    def least(self, starts: Sequence[Vector], held: int | None = None) -> tuple[float, Vector]:
        """Return the least sum of squares from some starts, and where it is; constant `held` stays put."""
        from scipy.optimize import least_squares

        free = [place for place in range(len(_NAMES)) if place != held]
        best, where = math.inf, starts[0]
        for start in starts:
            x = np.clip(start, self.low, self.high)

            def left(part: Vector, x: Vector = x) -> Vector:
                x[free] = part
                return self.residuals(x)

            bounds = self.low[free], self.high[free]
            found = least_squares(left, x[free].copy(), bounds=bounds, x_scale="jac")
            if 2 * found.cost < best:
                x[free] = found.x
                best, where = 2 * float(found.cost), x
        return best, where

    def end(self, x: Vector, place: int, sign: int, limit: float) -> float:
        """Return where a constant's profile crosses a limit on one side, infinite beyond its bounds."""
        inside, step = x.copy(), sign * _STEP * (self.high[place] - self.low[place])
        while True:
            outside = inside.copy()
            outside[place] += step
            if not self.low[place] <= outside[place] <= self.high[place]:
                return math.inf * sign
            cost, near = self.least([outside], held=place)
            if cost > limit:
                break
            inside = near
        beyond = float(outside[place])
        for _ in range(_HALVINGS):
            middle = inside.copy()
            middle[place] = (inside[place] + beyond) / 2
            cost, near = self.least([middle], held=place)
            if cost > limit:
                beyond = float(middle[place])
            else:
                inside = near
        return beyond


class _Shares(_Squares):
    """The same with the exponent at some bits, the logarithm of the share that is lost, for the offset."""

    def __init__(self, squares: _Squares, at: float) -> None:
        super().__init__(squares.sizes, squares.bits, squares.losses, squares.fitted)
        self.at = at

    def residuals(self, x: Vector) -> Vector:
        """Return the residual of each loss."""
        return super().residuals(np.array([*x[:4], x[4] + self.at / math.exp(x[3])]))
