"""Gradients scaled down to a largest norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.real_numbers import is_mpf
from mcfsim.training.inner_products import all_finite

Gradients = Mapping[str, NDArray[Any]]
#: Beyond every exponent of binary64.
_FAR = 10_000


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def clipped(gradients: Gradients, clip: float | None) -> tuple[Gradients, float]:
    """Return gradients scaled down to a norm, if theirs is larger, and the norm that they had.

    All are brought near 1 by one power of two first, so no square overflows or underflows. Norm and factor
    are binary64 for floats, and have the precision of mpmath's numbers for these.

    Parameters
    ----------
    gradients : mapping of str to array
        By tensor, in binary32, binary64 or mpmath's numbers.
    clip : float or None
        The largest norm of all together; None scales nothing.

    Returns
    -------
    gradients : mapping of str to array
        In the dtype that they had.
    norm : float
        In the sums of that dtype; infinite where it is beyond binary64. If an element is infinite or NaN, it
        is so too, and what is scaled by an infinite norm is zero, or NaN where an element is infinite.
    """
    exponent = 0
    if all_finite(*gradients.values()):
        largest = max((abs(g).max(initial=0) for g in gradients.values()), default=0.0)
        exponent = _exponent(largest)
    near_one = {name: _times_power(g, -exponent) for name, g in gradients.items()}
    total: Any = sum((g * g).sum() for g in near_one.values())
    # Root and factor of mpmath's numbers are theirs too: binary64's would end an exact run at 16 digits.
    exact = is_mpf(total)
    norm: Any = total.sqrt() if exact else float(np.sqrt(float(total)))
    whole = float(np.ldexp(float(norm), max(-_FAR, min(exponent, _FAR))))
    if clip is None or not (norm * _power(exponent) if exact else whole) > clip:
        return gradients, whole
    shrink = clip / norm
    return {
        name: g * (shrink if g.dtype == object else g.dtype.type(shrink)) for name, g in near_one.items()
    }, whole


def _exponent(x: Any) -> int:
    """Return e with ``2**(e - 1) <= x < 2**e`` of a float or a number of mpmath; 0 of zero."""
    if not is_mpf(x):
        return math.frexp(x)[1]
    mantissa, exponent = x.man_exp
    return int(exponent) + int(mantissa).bit_length()


def _times_power(g: NDArray[Any], exponent: int) -> NDArray[Any]:
    """Return ``g * 2**exponent``, exactly but for floats that underflow."""
    if not exponent:
        return g
    if g.dtype != object:
        product: NDArray[Any] = np.ldexp(g, exponent)
        return product
    exact: NDArray[Any] = g * _power(exponent)
    return exact


def _power(exponent: int) -> Any:
    """Return ``2**exponent`` as a number of mpmath."""
    import mpmath

    return mpmath.ldexp(1, exponent)
