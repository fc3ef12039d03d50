"""Measures of what rounding costs a training step, for whole vectors or for parts from several processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mcfsim.checks import check_processor
from mcfsim.codec import on_host, ulp
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.training.schedule import InnerProducts, Vector, all_finite, norm, ratio, vectors


@contextmanager
def _quietly() -> Iterator[None]:
    """Check the processor's settings for a measure, and let diverged runs give inf or NaN silently."""
    check_processor()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        yield


@_quietly()
def effective_update(before: Sequence[ArrayLike], after: Sequence[ArrayLike]) -> Vector:
    """Return E, the change of a represented parameter.

    Parameters
    ----------
    before, after : sequence of array_like
        The components, most significant first.

    Returns
    -------
    array
        A flat binary64 array: the sum of the components' changes, from the last on. Each change is exact in
        binary64 within its range of exponents. A component that stays infinite did not change.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} components before and {len(after)} after")
    if not len(before):
        raise ValueError("there are no components")
    pairs = [vectors(new, old) for new, old in zip(after, before, strict=True)]
    total = np.zeros(pairs[0][0].size)
    for new, old in reversed(pairs):
        total += np.where(new == old, 0.0, new - old)
    return total


@_quietly()
def edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the effective descent quality ``<D / ||D||, E>``; NaN if D is zero or a number is not finite.

    References
    ----------
    Yu et al., Collage, ICML 2024, Definition of EDQ.
    """
    return InnerProducts.of(*vectors(intended, effective)).edq()


@_quietly()
def normalized_edq(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``<D, E> / ||D||**2``: 1 if nothing is lost, NaN if D is zero."""
    return InnerProducts.of(*vectors(intended, effective)).normalized_edq()


@_quietly()
def lost_fraction(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return lost arithmetic: the share of elements with D != 0 whose represented value did not move.

    NaN if D is zero everywhere, or a number is not finite.
    """
    d, e = vectors(intended, effective)
    if not all_finite(d, e):
        return math.nan
    asked = d != 0
    return ratio(float(np.count_nonzero(asked & (e == 0))), float(np.count_nonzero(asked)))


@_quietly()
def norm_ratio(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return ``||E|| / ||D||``; NaN if D is zero."""
    return InnerProducts.of(*vectors(intended, effective)).norm_ratio()


@_quietly()
def cosine(intended: ArrayLike, effective: ArrayLike) -> float:
    """Return the cosine of the angle between D and E; NaN if one is zero."""
    return InnerProducts.of(*vectors(intended, effective)).cosine()


@_quietly()
def released_edq(update: ArrayLike, before: ArrayLike, after: ArrayLike) -> float:
    """Return the EDQ as in Collage's released code: E is the leading component's change.

    Parameters
    ----------
    update : array_like
        The update rounded to the parameter's format.
    before, after : array_like
        Leading components.
    """
    new, old = vectors(after, before)
    return edq(update, new - old)


@_quietly()
def released_imprecision(before: ArrayLike, after: ArrayLike) -> float:
    """Return the released code's "imprecision percentage" as a share: leading components that did not move.

    Elements whose update is zero count, too. For an expansion this is large though almost nothing is lost:
    the trailing component takes what the leading one cannot. NaN if a component is not finite.
    """
    new, old = vectors(after, before)
    if not all_finite(new, old):
        return math.nan
    return ratio(float(np.count_nonzero(new == old)), float(new.size))


@_quietly()
def relative_error(x: ArrayLike, exact: ArrayLike) -> float:
    """Return ``||x - exact|| / ||exact||``; NaN if the exact value is zero, infinite if `x` alone is."""
    a, b = vectors(x, exact)
    difference, more = a - b, 0
    if not all_finite(difference) and all_finite(a, b):
        difference, more = a / 2 - b / 2, 1
    (above, exponent), (below, less) = norm(difference), norm(b)
    return ratio(above, below, exponent + more - less)


@_quietly()
def median_ratio(x: ArrayLike, exact: ArrayLike) -> float:
    """Return the median of ``x / exact`` over elements with a nonzero exact value.

    NaN if there is none, or a number is not finite: a median would hide it.
    """
    a, b = vectors(x, exact)
    if not all_finite(a, b):
        return math.nan
    there = b != 0
    return float(np.median(a[there] / b[there])) if there.any() else float("nan")


@_quietly()
def residual_norm(components: Sequence[ArrayLike]) -> float:
    """Return the norm of the sum of the components after the first; ValueError if there are none."""
    if not len(components):
        raise ValueError("there are no components")
    return _length(_trailing(components))


def _trailing(components: Sequence[ArrayLike]) -> Vector:
    """Return the sum of the components after the first, from the last on; zeros if there are none."""
    leading, *rest = vectors(*components)
    total: Vector = sum(reversed(rest), np.zeros(leading.size))
    return total


def _length(vector: Vector) -> float:
    length, exponent = norm(vector)
    return ratio(length, 1.0, exponent)


@_quietly()
def ulp_error(x: ArrayLike, exact: ArrayLike, fmt: Format | str) -> Vector:
    """Return ``|x - exact|`` in units in the last place of the exact value in a format.

    The unit is that of `mcfsim.codec.ulp`, in every kind of format. Beyond the largest number it is the unit
    of that number. NaN if the exact value is not finite.

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
        Format of that parameter; the released measures take the update rounded to it.

    Returns
    -------
    dict of str to float
        All measures are NaN if D or a component of a parameter, before or after, is infinite or NaN.
    """
    return measure_parts({"": slice(None)}, intended, before, after, leading, fmt)[""]


@_quietly()
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
        Slices of the vectors of all elements, by name.
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


# -- a part at a time -------------------------------------------------------------------------------------
@dataclass
class Tally:
    """Sums over the elements of a step that give lost arithmetic and EDQ.

    The results are those of `mcfsim.metrics.lost_fraction` and `mcfsim.metrics.normalized_edq` for all
    elements together; the EDQ up to the order in which its sums are formed, in binary64.

    Attributes
    ----------
    asked, unmoved : int
        How many elements have a nonzero update, and how many of them have a represented value that stayed.
    finite : bool
        Whether no number was infinite or NaN.
    """

    asked: int = 0
    unmoved: int = 0
    finite: bool = True
    _parts: list[InnerProducts] = field(default_factory=list)

    def add(self, intended: ArrayLike, before: Sequence[ArrayLike], after: Sequence[ArrayLike]) -> None:
        """Add elements: D, and the components of their represented values, before and after.

        Raises
        ------
        TypeError, ValueError
            If an array does not hold real numbers, or sizes differ; nothing is added then.
        """
        d, e = vectors(intended, effective_update(before, after))
        if d.size:
            self.finite &= all_finite(d, *before, *after)
            self.asked += int(np.count_nonzero(d))
            self.unmoved += int(np.count_nonzero((d != 0) & (e == 0)))
            self._parts = [InnerProducts.joined([*self._parts, InnerProducts.of(d, e)])]

    @classmethod
    def joined(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the tally of all elements of several tallies."""
        found = list(tallies)
        counts = sum(x.asked for x in found), sum(x.unmoved for x in found)
        parts = [part for x in found for part in x._parts]
        return cls(*counts, all(x.finite for x in found), parts)

    @property
    def lost(self) -> float:
        """Share of elements with D != 0 that did not move; NaN if none, or if a number is not finite."""
        return ratio(self.unmoved, self.asked) if self.finite else float("nan")

    @property
    def normalized_edq(self) -> float:
        """``<D, E> / ||D||**2``: 1 if nothing is lost; NaN if D is zero, or a number is not finite."""
        return InnerProducts.joined(self._parts).normalized_edq() if self.finite else float("nan")
