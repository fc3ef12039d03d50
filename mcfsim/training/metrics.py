"""What rounding costs a training step.

D is the *intended* update: the exact value of what the optimizer asked for. E is the *effective* update:
the change of the represented parameter, the exact sum of its components. All sums are formed in binary64.
Vectors are brought near 1 by powers of two before they are multiplied, so no square overflows or underflows.
Where D, E or a parameter is infinite or NaN, what is measured is no number: the measure is NaN.
Tensors of PyTorch, of any device, are copied to the host's memory, and summed there: their measures are those
of the arrays that they are, and what is a vector is NumPy's.
The ``released_`` measures are those of the code published with Collage, which differ: there E is the change
of the leading component alone, and an update of zero counts as lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from mcfsim.checks.processor import check_processor
from mcfsim.codec import ulp
from mcfsim.codec.views import on_host
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.training.inner_products import InnerProducts, Vector, all_finite, norm, ratio, vectors

_Measure = TypeVar("_Measure", bound=Callable[..., Any])


def _quietly(measure: _Measure) -> _Measure:
    """Let a run that diverged give inf or NaN without a warning, on a processor that is set as it must be."""

    @wraps(measure)
    def measured(*args: Any, **options: Any) -> Any:
        check_processor()
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return measure(*args, **options)

    return cast(_Measure, measured)


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
        summed from the last. A component that stays infinite did not change.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} components before and {len(after)} after")
    pairs = [vectors(new, old) for new, old in zip(after, before, strict=True)]
    total = np.zeros(pairs[0][0].size)
    for new, old in reversed(pairs):
        total += np.where(new == old, 0.0, new - old)
    return total


@_quietly
def edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the effective descent quality ``<D / ||D||, E>``; NaN if D is zero, or a number not finite.

    References
    ----------
    Yu et al., Collage, ICML 2024, Definition of EDQ.
    """
    return InnerProducts.of(*vectors(intended, effective)).edq()


@_quietly
def normalized_edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``<D, E> / ||D||**2``: 1 if nothing is lost, NaN if D is zero."""
    return InnerProducts.of(*vectors(intended, effective)).normalized_edq()


def lost_fraction(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return lost arithmetic: the share of elements with D != 0 whose represented value did not move.

    NaN if D is zero everywhere, or a number is not finite.
    """
    d, e = vectors(intended, effective)
    if not all_finite(d, e):
        return math.nan
    asked = d != 0
    return ratio(float(np.count_nonzero(asked & (e == 0))), float(np.count_nonzero(asked)))


@_quietly
def norm_ratio(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``||E|| / ||D||``; NaN if D is zero."""
    return InnerProducts.of(*vectors(intended, effective)).norm_ratio()


@_quietly
def cosine(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the cosine of the angle between D and E; NaN if one is zero."""
    return InnerProducts.of(*vectors(intended, effective)).cosine()


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
    new, old = vectors(after, before)
    return edq(update, new - old)


def released_imprecision(before: ArrayLike, after: ArrayLike) -> float:
    """Return the released code's "imprecision percentage" as a share: leading components that did not move.

    Elements whose update is zero are counted in; for an expansion, whose trailing component takes what
    the leading one cannot, this is large though almost nothing is lost. NaN if a component is not finite.
    """
    new, old = vectors(after, before)
    if not all_finite(new, old):
        return math.nan
    return ratio(float(np.count_nonzero(new == old)), float(new.size))


@_quietly
def relative_error(x: ArrayLike, exact: ArrayLike) -> float:
    """Return ``||x - exact|| / ||exact||``; NaN if the exact value is zero, infinite if `x` alone is."""
    a, b = vectors(x, exact)
    difference, more = a - b, 0
    if not all_finite(difference) and all_finite(a, b):
        difference, more = a / 2 - b / 2, 1
    (above, exponent), (below, less) = norm(difference), norm(b)
    return ratio(above, below, exponent + more - less)


@_quietly
def median_ratio(x: ArrayLike, exact: ArrayLike) -> float:
    """Return the median of ``x / exact`` over elements with a nonzero exact value.

    NaN if there is none, or a number is not finite: a median would hide it.
    """
    a, b = vectors(x, exact)
    if not all_finite(a, b):
        return math.nan
    there = b != 0
    return float(np.median(a[there] / b[there])) if there.any() else float("nan")


@_quietly
def residual_norm(components: Sequence[ArrayLike]) -> float:
    """Return the norm of what the components after the first hold together."""
    return _length(_trailing(components))


def _trailing(components: Sequence[ArrayLike]) -> Vector:
    """Return the sum of the components after the first, from the last on; zeros if there are none."""
    leading, *rest = vectors(*components)
    total: Vector = sum(reversed(rest), np.zeros(leading.size))
    return total


def _length(vector: Vector) -> float:
    length, exponent = norm(vector)
    return ratio(length, 1.0, exponent)


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
    a, b = vectors(x, exact)
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

    Returns
    -------
    dict of str to float
        All of them NaN if D or a component of a parameter, before or after, is infinite or NaN.
    """
    return measure_parts({"": slice(None)}, intended, before, after, leading, fmt)[""]


@_quietly
def measure_parts(
    parts: Mapping[str, slice],
    intended: ArrayLike,
    before: Sequence[ArrayLike],
    after: Sequence[ArrayLike],
    leading: tuple[Any, Any],
    fmt: Format | None = None,
) -> dict[str, dict[str, float]]:
    """Return every measure of parts of one step, see `measure`.

    Parameters
    ----------
    parts : mapping of str to slice
        Of the vectors of all elements.
    intended, before, after, leading, fmt
        As for `measure`.
    """
    d, old, new = vectors(intended, *leading)
    rounded = d if fmt is None else vectors(round_to(np.asarray(on_host(intended)), fmt))[0]
    effective, moved, rest = effective_update(before, after), new - old, _trailing(after)
    finite = np.logical_and.reduce([np.isfinite(x) for x in vectors(d, old, new, *before, *after)])
    found = {}
    for name, part in parts.items():
        products = InnerProducts.of(d[part], effective[part])
        numbers = {
            "edq": products.edq(),
            "normalized_edq": products.normalized_edq(),
            "lost": lost_fraction(d[part], effective[part]),
            "norm_ratio": products.norm_ratio(),
            "cosine": products.cosine(),
            "residual_norm": _length(rest[part]),
            "released_edq": edq(rounded[part], moved[part]),
            "released_imprecision": released_imprecision(old[part], new[part]),
        }
        found[name] = numbers if finite[part].all() else dict.fromkeys(numbers, math.nan)
    return found
