"""Quotients by scales, in binary64, from which one more rounding is as if made from the exact quotient."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.kernels import residuals
from mcfsim.kernels.codes_by_kind import power_of_two

Floats = NDArray[np.float64]

# A quotient by a scale between 2**-200 and 2**200 that exceeds 2**300, or falls short of 2**-300, is far
# beyond the largest number of every element format, or below what random bits resolve of the smallest. So
# it makes no difference that operands are kept between these, where no residual underflows.
_SMALL, _LARGE = 2.0**-500, 2.0**500


def factors(scale: ArrayLike) -> tuple[Floats, Floats]:
    """Return a power of two and a significand, so that ``x / scale`` is ``x * power / significand``.

    The significand is in [1, 2). A scale of zero gives a power of zero, so that the quotient is a zero with
    the sign of x, and a NaN gives NaN.
    """
    scale = np.asarray(scale, dtype=np.float64)
    half, exponent = np.frexp(scale)
    positive = scale > 0
    power = power_of_two(np.where(positive, 1 - exponent, 0))
    return np.where(positive, power, scale), np.where(positive, 2 * half, 1.0)


def quotient(x: Floats, power: Floats, significand: Floats) -> Floats:
    """Return ``x * power / significand`` rounded to odd in binary64, in a new array."""
    magnitude = np.abs(x)
    if magnitude.size and not (magnitude.max() <= _LARGE and magnitude.min() >= _SMALL):
        nonzero = np.clip(magnitude, _SMALL, _LARGE)
        x = np.copysign(np.where(magnitude == 0, magnitude, nonzero), x)
    scaled = x * power
    if (significand == 1).all():
        return scaled
    return residuals.make_odd(*residuals.div(scaled, significand))
