"""What rounding costs a training step.

D is the *intended* update: the exact value of what the optimizer asked for. E is the *effective* update:
the change of the represented parameter, the exact sum of its components. All sums are formed in binary64.
The ``released_`` measures are those of the code published with Collage, which differ: there E is the change
of the leading component alone, and an update of zero counts as lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.codec import ulp
from mcfsim.convert import round_to
from mcfsim.formats import Format

Vector = NDArray[np.float64]

#: A run that diverged gives inf or NaN, without a warning.
_quietly = np.errstate(over="ignore", invalid="ignore")


def _vectors(*arrays: ArrayLike) -> list[Vector]:
    vectors = [np.asarray(array).astype(np.float64).ravel() for array in arrays]
    if len({vector.size for vector in vectors}) > 1:
        raise ValueError(f"the arrays differ in size: {[np.shape(array) for array in arrays]}")
    return vectors


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


@_quietly
def effective_update(before: Sequence[ArrayLike], after: Sequence[ArrayLike]) -> Vector:
    """Return E, the change of a represented parameter.

    Parameters
    ----------
    before, after : sequence of array_like
        The components, most significant first.

    Returns
    -------
    array
        Flat, binary64: the components' changes, each exact in binary64 within its range of exponents,
        summed from the last.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} components before and {len(after)} after")
    pairs = [_vectors(new, old) for new, old in zip(after, before, strict=True)]
    total = np.zeros(pairs[0][0].size)
    for new, old in reversed(pairs):
        total += new - old
    return total


@_quietly
def edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the effective descent quality ``<D / ||D||, E>``; NaN if D is zero.

    References
    ----------
    Yu et al., Collage, ICML 2024, Definition of EDQ.
    """
    d, e = _vectors(intended, effective)
    return _ratio(float(d @ e), float(np.linalg.norm(d)))


@_quietly
def normalized_edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``<D, E> / ||D||**2``: 1 if nothing is lost, NaN if D is zero."""
    d, e = _vectors(intended, effective)
    return _ratio(float(d @ e), float(d @ d))


def lost_fraction(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return lost arithmetic: the share of elements with D != 0 whose represented value did not move.

    NaN if D is zero everywhere.
    """
    d, e = _vectors(intended, effective)
    asked = d != 0
    return _ratio(float(np.count_nonzero(asked & (e == 0))), float(np.count_nonzero(asked)))


@_quietly
def norm_ratio(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``||E|| / ||D||``; NaN if D is zero."""
    d, e = _vectors(intended, effective)
    return _ratio(float(np.linalg.norm(e)), float(np.linalg.norm(d)))


@_quietly
def cosine(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the cosine of the angle between D and E; NaN if one is zero."""
    d, e = _vectors(intended, effective)
    return _ratio(float(d @ e), float(np.linalg.norm(d) * np.linalg.norm(e)))


@_quietly
def released_edq(update: ArrayLike, before: ArrayLike, after: ArrayLike) -> float:
    """Return the EDQ as Collage's released code has it: E is the leading component's change.

    Parameters
    ----------
    update : array_like
        The update rounded to the parameter's format.
    before, after : array_like
        Leading components.
    """
    new, old = _vectors(after, before)
    return edq(update, new - old)


def released_imprecision(before: ArrayLike, after: ArrayLike) -> float:
    """Return the released code's "imprecision percentage" as a share: leading components that did not move.

    Elements whose update is zero are counted in; for an expansion, whose trailing component takes what
    the leading one cannot, this is large though almost nothing is lost.
    """
    new, old = _vectors(after, before)
    return _ratio(float(np.count_nonzero(new == old)), float(new.size))


@_quietly
def relative_error(x: ArrayLike, exact: ArrayLike) -> float:
    """Return ``||x - exact|| / ||exact||``; NaN if the exact value is zero."""
    a, b = _vectors(x, exact)
    return _ratio(float(np.linalg.norm(a - b)), float(np.linalg.norm(b)))


@_quietly
def median_ratio(x: ArrayLike, exact: ArrayLike) -> float:
    """Return the median of ``x / exact`` over elements with a nonzero exact value; NaN if none."""
    a, b = _vectors(x, exact)
    there = b != 0
    return float(np.median(a[there] / b[there])) if there.any() else float("nan")


@_quietly
def residual_norm(components: Sequence[ArrayLike]) -> float:
    """Return the norm of what the components after the first hold together."""
    rest = [_vectors(item)[0] for item in components[1:]]
    return float(np.linalg.norm(sum(reversed(rest)))) if rest else 0.0


@_quietly
def ulp_error(x: ArrayLike, exact: ArrayLike, fmt: Format | str) -> Vector:
    """Return ``|x - exact|`` in units in the last place of the exact value in a format.

    The unit is that of `mcfsim.codec.ulp`, in every kind of format: beyond the largest number it is that of
    the largest one. NaN if the exact value is not finite.

    Raises
    ------
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    a, b = _vectors(x, exact)
    result: Vector = np.abs(a - b) / ulp(b, fmt)
    return result


def measure(
    intended: ArrayLike,
    before: Sequence[ArrayLike],
    after: Sequence[ArrayLike],
    leading: tuple[Any, Any],
    fmt: Format | None = None,
) -> dict[str, float]:
    """Return every measure of one step, by name.

    Parameters
    ----------
    intended : array_like
        D.
    before, after : sequence of array_like
        Components of the represented parameter.
    leading : tuple of array_like
        The parameter that the model sees, before and after.
    fmt : Format, optional
        Of that parameter; the released measures take the update rounded to it.
    """
    rounded = intended if fmt is None else round_to(np.asarray(intended), fmt)
    effective = effective_update(before, after)
    return {
        "edq": edq(intended, effective),
        "normalized_edq": normalized_edq(intended, effective),
        "lost": lost_fraction(intended, effective),
        "norm_ratio": norm_ratio(intended, effective),
        "cosine": cosine(intended, effective),
        "residual_norm": residual_norm(after),
        "released_edq": released_edq(rounded, *leading),
        "released_imprecision": released_imprecision(*leading),
    }
