"""Inner products of vectors in binary64, which are brought near 1 first, so that no square overflows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.codec.views import on_host

Vector = NDArray[np.float64]


def vectors(*arrays: ArrayLike) -> list[Vector]:
    """Return arrays, or tensors, as flat vectors of binary64 and of one size."""
    found = [np.asarray(on_host(array)).astype(np.float64, copy=False).ravel() for array in arrays]
    if len({vector.size for vector in found}) > 1:
        raise ValueError(f"the arrays differ in size: {[np.shape(array) for array in arrays]}")
    return found


def ratio(numerator: float, denominator: float, exponent: int = 0) -> float:
    """Return ``numerator / denominator * 2**exponent``; NaN if the denominator is zero."""
    return float(np.ldexp(numerator / denominator, exponent)) if denominator else float("nan")


def all_finite(*numbers: ArrayLike) -> bool:
    """Whether no number is infinite or NaN; numbers of mpmath may be among them."""
    arrays = [np.asarray(on_host(x)) for x in numbers]
    return all(all(y - y == 0 for y in x.flat) if x.dtype == object else np.isfinite(x).all() for x in arrays)


def scaled(vector: Vector) -> tuple[Vector, int]:
    """Return a vector times ``2**-exponent``, its largest magnitude in [1/2, 1), and the exponent.

    One that is zero, empty or not finite is returned as it is, with the exponent 0.
    """
    largest = float(np.abs(vector).max(initial=0.0))
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return (np.ldexp(vector, -exponent), exponent) if exponent else (vector, 0)


def norm(vector: Vector) -> tuple[float, int]:
    """Return ``f`` and ``e`` of the norm ``f 2**e``."""
    near_one, exponent = scaled(vector)
    return float(np.linalg.norm(near_one)), exponent


class InnerProducts(NamedTuple):
    """Inner products of D and E, each brought near 1, and the exponents of the powers taken out of them."""

    mixed: float
    intended: float
    effective: float
    below: int
    above: int

    @classmethod
    def of(cls, d: Vector, e: Vector) -> InnerProducts:
        """Return those of two vectors, NaN if a number is not finite."""
        if not all_finite(d, e):
            return cls(math.nan, math.nan, math.nan, 0, 0)
        (d, below), (e, above) = scaled(d), scaled(e)
        return cls(float(d @ e), float(d @ d), float(e @ e), below, above)

    @classmethod
    def joined(cls, parts: Iterable[InnerProducts]) -> InnerProducts:
        """Return those of all elements of some vectors, whose own are given."""
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
