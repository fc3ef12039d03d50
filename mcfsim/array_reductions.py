"""NumPy's functions that take several operations of rounded arrays: sums, products, bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from operator import add, mul
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError


def _sum(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
    """Return sums from left to right, each addition rounded."""
    rows, shape = _rows(x, axis, dtype, keepdims)
    try:  # products with 1 are exact, and sums of products are compiled
        return (rows @ rows.enter(np.ones(rows.shape[-1]))).reshape(shape)
    except UnsupportedFormatError:
        return _last(rows, add, 0.0).reshape(shape)


def _mean(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return sums, divided by the number of their terms."""
    rows, shape = _rows(x, axis, None, keepdims)
    return (_sum(rows, -1) / rows.shape[-1]).reshape(shape)


def _prod(x: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
    """Return products from left to right, each multiplication rounded."""
    rows, shape = _rows(x, axis, dtype, keepdims)
    return _last(rows, mul, 1.0).reshape(shape)


def _last(rows: Any, operation: Callable[[Any, Any], Any], initial: float) -> Any:
    """Return what operations from left to right come to; without terms, what they begin with."""
    *_, found = (rows.enter(np.full(rows.shape[:-1], initial)), *accumulate(_terms(rows), operation))
    return found


def _cumulative(operation: Callable[[Any, Any], Any], initial: float) -> Callable[..., Any]:
    """Return a function that keeps what each operation from left to right gives."""

    def function(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Any:
        if axis is None and x.ndim != 1:
            raise ValueError(f"an array of {x.ndim} axes is cumulated along one; give axis=")
        rows, shape = _rows(x, axis, dtype, False)
        found = [rows.enter(np.full(shape, initial))] if include_initial else []
        found += accumulate(_terms(rows), operation)
        return np.stack(found, axis=axis or 0) if found else x

    return function


def _rows(x: Any, axis: Any, dtype: Any, keepdims: bool) -> tuple[Any, tuple[int, ...]]:
    """Return an array with what is reduced as its last axis, and the shape of the results."""
    if not isinstance(dtype, Format | None):
        raise TypeError(f"sums and products are of a format, not of {dtype!r}")
    x = x if dtype is None else x.enter(x, dtype)
    gone = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)
    kept = tuple(place for place in range(x.ndim) if place not in gone)
    shape = tuple(x.shape[place] for place in kept)
    size = math.prod(x.shape[place] for place in gone)
    rows = np.transpose(x, (*kept, *gone)).reshape(*shape, size)
    return rows, tuple(
        1 if place in gone else x.shape[place] for place in range(x.ndim)
    ) if keepdims else shape


def _terms(rows: Any) -> list[Any]:
    """Return the terms of sums or products, from left to right."""
    return [rows[..., place] for place in range(rows.shape[-1])]


def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """Return numbers no smaller and no larger than others."""
    low = x if min is None else np.maximum(x, min)
    return low if max is None else np.minimum(low, max)


def _round(x: Any, decimals: int = 0) -> Any:
    """Return the nearest integers, ties to even."""
    if decimals:
        raise TypeError("rounded arrays are rounded to integers alone, not to decimals")
    return np.rint(x)


#: What NumPy's functions are of rounded arrays.
REDUCTIONS: dict[Any, Callable[..., Any]] = {
    **{np.sum: _sum, np.prod: _prod, np.mean: _mean},
    **{np.cumulative_sum: _cumulative(add, 0.0), np.cumulative_prod: _cumulative(mul, 1.0)},
    **{np.clip: _clip, np.round: _round},
}
