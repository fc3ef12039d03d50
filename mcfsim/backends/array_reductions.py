"""Functions that take several operations on rounded arrays, such as sums and products from left to right."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from operator import add, mul
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import NDArray

from mcfsim.checks import refuse
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Underflow

#: Refused arguments: they add numbers or choose where results are written; reductions may have a dtype.
_REFUSED = frozenset(("initial", "out", "where", "dtype", "casting"))


def refuse_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if a function of NumPy is given an argument that rounded arrays do not take."""
    places = zip(_places(function), args, strict=False)
    given = {name for name, argument in places if argument is not None} | kwargs.keys()
    if stray := sorted((_REFUSED - {"dtype"} if function in REDUCTIONS else _REFUSED) & given):
        raise TypeError(f"numpy.{function.__name__} of rounded arrays takes no {', '.join(stray)}")


@lru_cache
def _places(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's arguments in order; none if its signature is not known."""
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:  # a builtin function in earlier versions of NumPy
        return ()


def check_integers(values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless the whole parts of all numbers are integers of a dtype.

    How NumPy converts other numbers depends on the processor.
    """
    info = np.iinfo(dtype)
    whole = np.trunc(values.astype(np.float64))  # as are the limits: -2**n and 2**n
    fits = (whole >= float(info.min)) & (whole < float(int(info.max) + 1))
    if not fits.all():
        refuse(values, int(np.argmin(fits)), f"has no whole part in {dtype}")


def _sum(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
    """Return sums from left to right, each addition rounded."""
    rows, shape = _rows(a, axis, dtype, keepdims)
    # Products with 1 are exact if the format has a 1 and nothing is flushed; sums of products are compiled.
    if rows.accumulates and rows.arithmetic.rounding.underflow is Underflow.GRADUAL:
        ones = rows.enter(np.ones(rows.shape[-1]))
        with suppress(UnsupportedFormatError):
            if (ones == 1).all():
                return (rows @ ones).reshape(shape)
    return _last(rows, add, 0.0).reshape(shape)


def _mean(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """Return sums divided by the number of their terms."""
    rows, shape = _rows(a, axis, None, keepdims)
    return (_sum(rows, -1) / rows.shape[-1]).reshape(shape)


def _prod(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
    """Return products from left to right, each multiplication rounded."""
    rows, shape = _rows(a, axis, dtype, keepdims)
    return _last(rows, mul, 1.0).reshape(shape)


def _last(rows: Any, operation: Callable[[Any, Any], Any], initial: float) -> Any:
    """Return the results of operations from left to right; without terms, the initial number."""
    *_, found = (rows.enter(np.full(rows.shape[:-1], initial)), *accumulate(_terms(rows), operation))
    return found


def _cumulative(operation: Callable[[Any, Any], Any], initial: float) -> Callable[..., Any]:
    """Return a function that returns every partial result of operations from left to right."""

    def function(
        x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
    ) -> Any:
        if axis is None and x.ndim != 1:
            raise ValueError(f"an array of {x.ndim} axes is accumulated along one of them; give axis=")
        rows, shape = _rows(x, axis, dtype, False)
        found = [rows.enter(np.full(shape, initial))] if include_initial else []
        found += accumulate(_terms(rows), operation)
        return np.stack(found, axis=axis or 0) if found else x.enter(x, dtype)

    return function


def _rows(x: Any, axis: Any, dtype: Any, keepdims: bool) -> tuple[Any, tuple[int, ...]]:
    """Return an array whose last axis is the one to reduce, and the shape of the results."""
    if not isinstance(dtype, Format | None):
        raise TypeError(f"dtype of sums and products must be a format, not {dtype!r}")
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


def _extreme(function: Callable[..., Any], other: float) -> Callable[..., Any]:
    """Return a function for the greatest or least elements; of +0 and -0 the sign of `other` yields."""

    def found(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        values = np.asarray(a)
        with np.errstate(invalid="ignore"):  # of signalling NaN
            most = function(values, axis=axis, keepdims=keepdims)
        # Which of +0 and -0 NumPy takes depends on their places.
        signs = np.where(values == 0, np.copysign(1.0, values), other).astype(values.dtype)
        signs = function(signs, axis=axis, keepdims=keepdims)
        return type(a)(np.where(most == 0, np.copysign(most, signs), most), a.arithmetic)

    return found


def _broadcast_arrays(*arrays: Any, subok: bool = False) -> tuple[Any, ...]:
    """Return arrays of one shape, each with its own dtype."""
    given = [x if hasattr(x, "shape") else np.asarray(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in given))
    return tuple(np.broadcast_to(x, shape) for x in given)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Return numbers clipped to bounds, each of which NumPy knows by two names."""
    given = [[x for x in names if x is not None] for names in ((a_min, min), (a_max, max))]
    for most, found in zip((np.maximum, np.minimum), given, strict=True):
        if len(found) > 1:
            raise ValueError("clip takes each bound by one of its names, min or a_min, and max or a_max")
        a = most(a, *found) if found else a
    return a


def _round(a: Any, decimals: int = 0) -> Any:
    """Return the nearest integers, ties to even."""
    if decimals:
        raise TypeError("rounded arrays are rounded to integers alone, not to decimals")
    return np.rint(a)


#: Functions on rounded arrays, by NumPy's functions.
REDUCTIONS: dict[Any, Callable[..., Any]] = {
    **{np.sum: _sum, np.prod: _prod, np.mean: _mean},
    **{np.cumulative_sum: _cumulative(add, 0.0), np.cumulative_prod: _cumulative(mul, 1.0)},
    **{np.clip: _clip, np.round: _round, np.around: _round, np.broadcast_arrays: _broadcast_arrays},
    **dict.fromkeys((np.max, np.amax), _extreme(np.max, -1.0)),
    **dict.fromkeys((np.min, np.amin), _extreme(np.min, 1.0)),
}
