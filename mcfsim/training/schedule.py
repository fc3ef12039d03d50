"""Schedules of learning rates, and clipping of gradients to a largest norm, with binary64 inner products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import as_array, check_processor, finite_number, real_array, whole_number
from mcfsim.codec import on_host
from mcfsim.kernels.real_numbers import as_float, is_mpf, is_scalar

Vector = NDArray[np.float64]

# -- rates ------------------------------------------------------------------------------------------------
#: How many rates are computed at a time.
_BLOCK = 1 << 15


@dataclass(frozen=True)
class Schedule:
    """A schedule of learning rates: linear warm-up to a peak, then a cosine or a constant.

    Parameters
    ----------
    peak : float
        The largest learning rate; positive.
    warmup : int
        Steps of linear warm-up; the first step has ``peak / warmup``.
    final : float
        The end of the cosine, as a share of the peak; 1 keeps the rate constant.

    Raises
    ------
    TypeError
        If an argument is not a number, or the warm-up is not an int.
    ValueError
        If an argument is out of range, or not finite.

    Examples
    --------
    >>> schedule = Schedule(peak=0.5, warmup=2, final=0.0)
    >>> [schedule.rate(step, steps=4) for step in (1, 2, 3, 4)]
    [0.25, 0.5, 0.25, 0.0]
    """

    peak: float = 3e-4
    warmup: int = 50
    final: float = 0.1

    def __post_init__(self) -> None:
        for label in ("peak", "final"):
            object.__setattr__(self, label, finite_number(label, getattr(self, label)))
        object.__setattr__(self, "warmup", whole_number("warmup", self.warmup, least=0))
        if not self.peak > 0:
            raise ValueError(f"peak = {self.peak} must be positive")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final = {self.final} must lie in [0, 1]")

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step in a run of `steps` steps.

        Parameters
        ----------
        step, steps : int
            ``1 <= step <= steps``.

        Raises
        ------
        TypeError
            If one is not an int.
        ValueError
            If the run has no such step.
        """
        check_processor()
        step, steps = whole_number("step", step, least=1), whole_number("steps", steps, least=1)
        if step > steps:
            raise ValueError(f"step = {step} is beyond the last of {steps}")
        if step < self.warmup:
            return float(self._rising(step))
        return float(self._falling(math.cos(self._angle(step, steps))))

    def rates(self, steps: int) -> Vector:
        """Return the learning rates of all steps of a run, those that `rate` returns.

        Parameters
        ----------
        steps : int
            Length of the run; a million steps take about 0.2 seconds.

        Raises
        ------
        TypeError
            If it is not an int.
        ValueError
            If it is not positive.
        """
        check_processor()
        steps = whole_number("steps", steps, least=1)
        if type(self).rate is not Schedule.rate:  # a custom schedule
            each = (self.rate(step, steps) for step in range(1, steps + 1))
            return np.array([finite_number("a rate", rate) for rate in each])
        found = np.arange(1.0, steps + 1)
        for start in range(0, steps, _BLOCK):
            step = found[start : start + _BLOCK]
            angles = self._angle(step, steps).tolist()
            # NumPy's loops compute another cosine on some processors.
            falling = self._falling(np.fromiter(map(math.cos, angles), np.float64, step.size))
            step[:] = np.where(step < self.warmup, self._rising(step), falling)
        return found

    # For a number and for an array.
    def _rising(self, step: Any) -> Any:
        with np.errstate(over="ignore"):
            rate = self.peak * step / max(1, self.warmup)
            return np.where(rate < math.inf, rate, self.peak * (step / max(1, self.warmup)))

    def _angle(self, step: Any, steps: int) -> Any:
        return math.pi * ((step - self.warmup) / max(1, steps - self.warmup))

    def _falling(self, cosine: Any) -> Any:
        return self.peak * (self.final + (1 - self.final) * 0.5 * (1 + cosine))


@dataclass(frozen=True)
class RecordedRates:
    """The learning rates recorded from a training loop.

    Parameters
    ----------
    rates : tuple of float
        One per step.
    """

    rates: tuple[float, ...]

    def rate(self, step: int, steps: int) -> float:
        """Return the recorded learning rate of a step, counted from 1; `steps` is ignored."""
        return self.rates[step - 1]


# -- norms and inner products -----------------------------------------------------------------------------


def _real(x: Any) -> float:
    if not is_scalar(x) and not isinstance(x, np.floating | np.integer):
        raise TypeError(f"an array has {shortened(x)} in it, which is no real number")
    return as_float(x)


_REALS = np.frompyfunc(_real, 1, 1)


def vectors(*arrays: ArrayLike) -> list[Vector]:
    """Return arrays or tensors, also of mpmath's numbers, as flat binary64 vectors.

    Raises
    ------
    TypeError
        If one does not hold real numbers.
    ValueError
        If their sizes differ.
    """
    given = [as_array(on_host(array), "an array") for array in arrays]
    given = [np.asarray(_REALS(x)) if x.dtype == object else real_array(x, "an array") for x in given]
    found = [x.astype(np.float64, copy=False).ravel() for x in given]
    if len({vector.size for vector in found}) > 1:
        raise ValueError(f"the arrays differ in size: {[np.shape(array) for array in arrays]}")
    return found


def ratio(numerator: float, denominator: float, exponent: int = 0) -> float:
    """Return ``numerator / denominator * 2**exponent``; NaN if the denominator is zero."""
    return float(np.ldexp(numerator / denominator, exponent)) if denominator else float("nan")


def all_finite(*numbers: ArrayLike) -> bool:
    """Return whether no number is infinite or NaN; numbers of mpmath may be among them."""
    arrays = [x if isinstance(x, np.ndarray) else np.asarray(on_host(x)) for x in numbers]
    return all(all(y - y == 0 for y in x.flat) if x.dtype == object else np.isfinite(x).all() for x in arrays)


def scaled(vector: Vector) -> tuple[Vector, int]:
    """Return a vector times ``2**-exponent``, so that its largest magnitude is in [1/2, 1), and the exponent.

    A vector that is zero, empty or not finite is returned unchanged, with the exponent 0.
    """
    largest = float(np.abs(vector).max(initial=0.0))
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return _times_power(vector, -exponent), exponent


def norm(vector: Vector) -> tuple[float, int]:
    """Return the norm ``f 2**e`` of a vector as ``f`` and ``e``."""
    near_one, exponent = scaled(vector)
    return float(np.linalg.norm(near_one)), exponent


class InnerProducts(NamedTuple):
    """The inner products of D and E, each scaled near 1 by a power of two, and these powers' exponents."""

    mixed: float
    intended: float
    effective: float
    below: int
    above: int

    @classmethod
    def of(cls, d: Vector, e: Vector) -> InnerProducts:
        """Return the inner products of two vectors; NaN if a number is not finite."""
        if not all_finite(d, e):
            return cls(math.nan, math.nan, math.nan, 0, 0)
        (d, below), (e, above) = scaled(d), scaled(e)
        return cls(float(d @ e), float(d @ d), float(e @ e), below, above)

    @classmethod
    def joined(cls, parts: Iterable[InnerProducts]) -> InnerProducts:
        """Return the inner products of all elements of several vectors, from those of each vector."""
        found = list(parts)
        below = max((x.below for x in found if x.intended), default=0)
        above = max((x.above for x in found if x.effective), default=0)

        def total(numbers: Iterable[tuple[float, int]]) -> float:
            return math.fsum(math.ldexp(number, exponent) for number, exponent in numbers)

        return cls(
            total((x.mixed, x.below - below + x.above - above) for x in found),
            total((x.intended, 2 * (x.below - below)) for x in found),
            total((x.effective, 2 * (x.above - above)) for x in found),
            below,
            above,
        )

    def edq(self) -> float:
        """Return ``<D / ||D||, E>``."""
        return ratio(self.mixed, math.sqrt(self.intended), self.above)

    def normalized_edq(self) -> float:
        """Return ``<D, E> / ||D||**2``."""
        return ratio(self.mixed, self.intended, self.above - self.below)

    def norm_ratio(self) -> float:
        """Return ``||E|| / ||D||``."""
        return ratio(math.sqrt(self.effective), math.sqrt(self.intended), self.above - self.below)

    def cosine(self) -> float:
        """Return the cosine of the angle between D and E."""
        return ratio(self.mixed, math.sqrt(self.intended) * math.sqrt(self.effective))


# -- clipping ---------------------------------------------------------------------------------------------
Gradients = Mapping[str, NDArray[Any]]
#: A number beyond every exponent of binary64.
_FAR = 10_000


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def clipped(gradients: Gradients, clip: float | None) -> tuple[Gradients, float]:
    """Return gradients scaled down to the norm `clip` if theirs is larger, and the norm that they had.

    All gradients are first scaled near 1 by one power of two, so no square overflows or underflows. For
    floats norm and factor are binary64; for mpmath's numbers they have the precision of these.

    Parameters
    ----------
    gradients : mapping of str to array
        By tensor, in binary32, binary64 or mpmath's numbers. Shorter numbers and integers are converted
        first, to whichever of binary32 and binary64 holds them.
    clip : float or None
        The largest norm of all together; None scales nothing.

    Returns
    -------
    gradients : mapping of str to array
        Those given, or scaled ones.
    norm : float
        Infinite if it is beyond binary64. If an element is infinite or NaN, so is the norm. Scaling by an
        infinite norm gives zero, or NaN where an element is infinite.
    """
    exponent, wide = 0, {name: _wide(g) for name, g in gradients.items()}
    if all_finite(*wide.values()):
        largest = max((abs(g).max(initial=0) for g in wide.values()), default=0.0)
        exponent = _exponent(largest) - 1  # so that the factor is below the largest power of two
    near_one = {name: _times_power(g, -exponent) for name, g in wide.items()}
    total: Any = sum((g * g).sum() for g in near_one.values())
    # Root and factor of mpmath's numbers are mpmath's, too: binary64 would limit an exact run to 16 digits.
    exact = is_mpf(total)
    norm: Any = total.sqrt() if exact else float(np.sqrt(float(total)))
    whole = float(np.ldexp(float(norm), max(-_FAR, min(exponent, _FAR))))
    if clip is None or not (norm * _power(exponent) if exact else whole) > clip:
        return gradients, whole
    shrink = clip / norm
    return {
        name: (g * (shrink if g.dtype == object else g.dtype.type(shrink))).reshape(gradients[name].shape)
        for name, g in near_one.items()
    }, whole


def _wide(g: NDArray[Any]) -> NDArray[Any]:
    """Return a gradient as an array of an axis or more, in binary32 or longer, or in mpmath's numbers."""
    dtype = g.dtype if g.dtype == object else np.result_type(g.dtype, np.float32)
    # An operation on an array without axes would return a number of mpmath, which has no methods of arrays.
    return np.atleast_1d(g.astype(dtype, copy=False))


def _exponent(x: Any) -> int:
    """Return e with ``2**(e - 1) <= x < 2**e`` for a float or a number of mpmath; 0 for zero."""
    if not is_mpf(x):
        return math.frexp(x)[1]
    mantissa, exponent = x.man_exp
    return int(exponent) + int(mantissa).bit_length()


def _times_power(g: NDArray[Any], exponent: int) -> NDArray[Any]:
    """Return ``g * 2**exponent``, exact except for floats that underflow."""
    if not exponent:
        return g
    power: Any = _power(exponent) if g.dtype == object else np.ldexp(g.dtype.type(1), exponent)
    # A product by a number is several times as fast as ldexp, and rounds as it does.
    product: NDArray[Any] = g * power if 0 < power < math.inf else np.ldexp(g, exponent)
    return product


def _power(exponent: int) -> Any:
    """Return ``2**exponent`` as a number of mpmath."""
    import mpmath

    return mpmath.ldexp(1, exponent)
