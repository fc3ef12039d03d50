"""An adapter merged into the weights that it adapts: which codes change, and how much is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import finite_number, real_array
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.products import Accumulator, matmul
from mcfsim.training import metrics

Array = NDArray[Any]

#: The largest scale; the smallest is its inverse.
_LARGEST = 2.0**100
#: The update is summed exactly, then rounded to this: no float32 factors make it vanish or overflow.
_WIDE = Format(precision=50, emin=-350, emax=400)
#: A scale's high part; its product with a float32 number is exact, and so is that of the rest.
_HIGH = Format(precision=26, emin=-350, emax=400)


@dataclass(frozen=True, eq=False)
class MergedAdapter:
    """The result of `merge_adapter`.

    Parameters
    ----------
    weights : array, shape (out, in)
        The merged weights, in the format's carrier.
    changed : int
        How many of them have another code than before.
    lost : float
        Share of the weights that were to change, ``s (B A) != 0``, and did not; NaN if none was to.
    edq : float
        ``<D, E> / <D, D>`` of the update ``D = s B A`` and the change E: 1 if nothing is lost; NaN if D is 0.
    error : float
        ``||E - D|| / ||D||``; NaN if D is 0.
    """

    weights: Array
    changed: int
    lost: float
    edq: float
    error: float


def merge_adapter(
    weight: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    scale: float,
    format: Format | str = "bfloat16",
    *,
    stepwise: bool = False,
) -> MergedAdapter:
    """Return ``W + s B A``, rounded into a format, and what the merge changes and loses.

    Adapters with magnitudes (DoRA) are merged in another way.

    Parameters
    ----------
    weight : array_like, shape (out, in)
        W, values of the format.
    a, b : array_like, shapes (rank, in) and (out, rank)
        The factors, float32 numbers.
    scale : float
        s, which is alpha / r, or alpha / sqrt(r) of rank-stabilised adapters.
    format : Format or str, optional
        The format of W, before and after.
    stepwise : bool, optional
        By default the exact sum is rounded once. Otherwise B A is rounded into the format, then s times that,
        then the sum: as PEFT merges where the factors have the dtype of W, too.

    Returns
    -------
    MergedAdapter
        All rounding is to nearest even. A NaN or an infinity of an operand passes into the weights; then
        lost, edq and error are NaN.

    Raises
    ------
    TypeError
        If an operand holds no real numbers, or the scale is no number.
    ValueError
        If shapes do not match, the scale is beyond ``2**+-100`` and not zero, a factor holds numbers that
        float32 lacks, or W holds numbers that are no values of the format.

    References
    ----------
    Hu et al., LoRA, arXiv 2106.09685; ``get_delta_weight`` and ``merge`` of PEFT's LoRA layers.

    Examples
    --------
    >>> merged = merge_adapter([[1.0, 1.0]], [[2.0**-9, 2.0**-6]], [[1.0]], 1.0)
    >>> merged.weights.tolist(), merged.changed, merged.lost
    ([[1.0, 1.015625]], 1, 0.5)
    """
    fmt, scale = get_format(format), finite_number("scale", scale)
    if scale and not 1 / _LARGEST <= abs(scale) <= _LARGEST:
        raise ValueError(f"scale = {scale} must be zero, or between 2**-100 and 2**100 in magnitude")
    base, left, right = real_array(weight, "weight"), real_array(b, "b"), real_array(a, "a")
    shapes = base.shape, right.shape, left.shape
    if any(x.ndim != 2 for x in (base, left, right)) or left.shape != (len(base), len(right)):
        raise ValueError(f"shapes of weight, a and b are {shapes}; needed are (out, in), (r, in), (out, r)")
    if right.shape[1] != base.shape[1]:
        raise ValueError(f"shapes of weight, a and b are {shapes}; needed are (out, in), (r, in), (out, r)")
    for label, x, stored in (("weight", base, fmt), ("a", right, "float32"), ("b", left, "float32")):
        if not np.array_equal(round_to(x, stored), x, equal_nan=True):
            raise ValueError(f"{label} holds numbers that are no values of {stored}; round it first")
    before = round_to(base, fmt)
    # s B in parts, each exact in binary64, and of one sign, as infinite ones would else be NaN together.
    high = float(round_to(scale, _HIGH, "toward_zero"))
    shares = [high, scale - high] if scale != high else [scale]
    twice = np.vstack([right] * len(shares)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        parts = np.hstack([left.astype(np.float64) * share for share in shares])
        asked = matmul(parts, twice, Accumulator(_WIDE, block=None))
        if stepwise:
            ar = arithmetic(fmt)
            product = matmul(left, right, Accumulator(fmt, block=None))
            after = np.asarray(ar.add(before, ar.mul(product, scale)))
        else:
            after = matmul(parts, twice, Accumulator(fmt, block=None), c=before)
    moved = metrics.effective_update([before.ravel()], [after.ravel()])
    moved[~np.isfinite(before.ravel())] = np.nan  # what stays infinite would count as still
    other = (after != before) | (np.signbit(after) != np.signbit(before))
    return MergedAdapter(
        after,
        changed=int(np.count_nonzero(other & ~(np.isnan(after) & np.isnan(before)))),
        lost=metrics.lost_fraction(asked.ravel(), moved),
        edq=metrics.normalized_edq(asked.ravel(), moved),
        error=metrics.relative_error(moved, asked.ravel()),
    )
