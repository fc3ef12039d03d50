"""Elementary functions of blocks in binary64, ready to be rounded, and the residuals of their values.

Values come from tables, from NumPy where it is accurate enough to decide the rounding, or one by one. The
residuals are for exact errors of operations: where a value is very close to a number of the format, as
exp(2**-100) is to 1, the residual is the whole error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.kernels.elementary import (
    EVALUATE,
    MOST_BITS,
    function_table,
    nearest_value,
    odd_value,
    table_key,
    table_of_all,
)

Array = NDArray[Any]

#: NumPy's functions that are used: all its implementations of them state errors of at most 4 units in the
#: last place, for every argument. The errors of sines may grow with the argument.
_ASKED: Mapping[str, Callable[[Array], Array]] = {"exp": np.exp, "log": np.log}
#: The bits of a binary64 significand, and the error, in units in the last place, that is allowed for.
_BITS, _ERROR = 53, 1 << 9
#: Binary logarithm of magnitudes between which results are taken: far from the ends of binary64.
_REACH = 1000
#: The precision in bits with which a value is first computed, and how many certain bits must be left.
_FIRST, _CERTAIN = 128, 64
#: Bits after which the difference of a value of about 1 from a number is below binary64.
_SETTLED = 1 << 11


# -- values --------------------------------------------------------------------------------------------------
def odd_values(name: str, x: Array, fmt: Format) -> NDArray[np.float64]:
    """Return values of an elementary function at values of a format, rounded to odd in binary64.

    Parameters
    ----------
    name : str
        A name in `FUNCTIONS`.
    x : array of float32 or float64
        A block of values of the format.
    fmt : Format
    """
    if fmt.bits <= MOST_BITS:
        return looked_up(function_table(name, fmt), x, fmt)
    return one_by_one(x, partial(kept_value, name))


def nearest_values(name: str, x: Array) -> NDArray[np.float64]:
    """Return values of an elementary function at binary64 numbers, rounded to nearest even in binary64."""
    return one_by_one(x, partial(nearest_value, name))


def looked_up(table: NDArray[np.float64], x: Array, fmt: Format) -> NDArray[np.float64]:
    """Return entries of a table of all codes at values of a format; NaN at NaN, even if it has no code."""
    codes = codes_by_kind(fmt)
    if fmt.has_nan:
        return table[codes.encode(np.ascontiguousarray(x)).astype(np.intp)]
    nan = np.isnan(x)
    found = table[codes.encode(np.where(nan, x.dtype.type(fmt.max), x)).astype(np.intp)]
    found[nan] = np.nan
    return found


def one_by_one(x: Array, function: Callable[[float], float]) -> NDArray[np.float64]:
    """Return a function of each number, computed once for equal ones."""
    numbers, places = np.unique(x.astype(np.float64).view(np.int64), return_inverse=True)
    found = [function(number) for number in numbers.view(np.float64).tolist()]
    return np.array(found, np.float64)[places.reshape(x.shape)]


def kept_value(name: str, x: float) -> float:
    """Return `odd_value`, from a cache unless x is zero."""
    return _kept(name, x) if x else odd_value(name, x)


@lru_cache(maxsize=1 << 16)  # not of zeros: one key would stand for both signs
def _kept(name: str, x: float) -> float:
    return odd_value(name, x)


def decided_values(name: str, x: Array, fmt: Format, needed: int) -> NDArray[np.float64]:
    """Return binary64 numbers that round like values of a function wherever `needed` bits decide.

    NumPy's result is returned where all numbers within 512 units in its last place agree in the needed bits,
    and none of them has only these bits. Elsewhere the result is that of `odd_values`, right in all bits.

    Parameters
    ----------
    name : str
        The function.
    x : array of float32 or float64
        A block of values of the format.
    fmt : Format
    needed : int
        Bits of a significand that decide: the precision of the result and guard bits.
    """
    left = _BITS - needed
    if name not in _ASKED or fmt.bits <= MOST_BITS or 1 << left <= 4 * _ERROR:
        return odd_values(name, x, fmt)
    with np.errstate(all="ignore"):
        y: NDArray[np.float64] = _ASKED[name](x.astype(np.float64))
        magnitude = np.abs(y)
    rest = y.view(np.int64) & ((1 << left) - 1)
    sure = (rest > _ERROR) & (rest < (1 << left) - _ERROR)
    sure &= (magnitude > 2.0**-_REACH) & (magnitude < 2.0**_REACH)
    unsure = ~sure
    if unsure.any():
        y[unsure] = odd_values(name, x[unsure], fmt)
    return y


# -- residuals -----------------------------------------------------------------------------------------------
def _exp_of_minus(libmp: Any, x: float) -> Any:
    return libmp.mpf_exp(libmp.from_float(-x), _CERTAIN, "n")


#: Differences of functions from 1 or -1, far from zero.
_TAILS: Mapping[str, Callable[[Any, float], Any]] = {
    "erf": lambda libmp, x: libmp.mpf_erfc(libmp.from_float(x), _CERTAIN, "n"),
    "expm1": _exp_of_minus,
    "tanh": lambda libmp, x: libmp.mpf_shift(_exp_of_minus(libmp, 2 * x), 1),
}


def coarse(odd: Any) -> NDArray[np.float64]:
    """Return numbers rounded to odd in 50 bits, such as the number that a value is very close to."""
    bits = np.asarray(odd, np.float64).view(np.int64)
    return ((bits + 4) & -8).view(np.float64)


def residual_value(name: str, x: float, odd: float | None = None) -> float:
    """Return how far a value lies above its `coarse` value; `odd` is the value rounded to odd, if known."""
    from mpmath import libmp

    base = float(coarse(kept_value(name, x) if odd is None else odd))
    if not (math.isfinite(base) and x):
        return 0.0
    if abs(base) == 1 and abs(x) > 6 and name in _TAILS:
        tail = _TAILS[name](libmp, min(abs(x), 800.0))
        return math.copysign(float(libmp.to_float(tail)), -base)
    precision = _FIRST + 2 * max(0, -math.frexp(x)[1])  # sin(x) is x - x**3 / 6
    while True:
        value = EVALUATE[name](libmp.from_float(x), precision)
        rest = libmp.mpf_sub(value, libmp.from_float(base), 53, "n")
        # The rest has enough certain bits, or is below binary64.
        certain = rest[1] and sum(rest[2:]) > sum(value[2:]) - precision + _CERTAIN
        if certain or precision > _SETTLED:
            return float(libmp.to_float(rest))
        precision *= 2


def residuals(name: str, x: NDArray[Any], fmt: Format) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `coarse` values, and how far the exact values lie above them."""
    if fmt.bits <= MOST_BITS:
        value, rest = (looked_up(table(name, fmt), x, fmt) for table in (function_table, rest_table))
        return coarse(value), rest
    return coarse(odd_values(name, x, fmt)), one_by_one(x, partial(residual_value, name))


@lru_cache(maxsize=128)
def rest_table(name: str, fmt: Format) -> NDArray[np.float64]:
    """Return `residual_value` at all codes of a format."""

    def rests(numbers: list[float]) -> Iterable[float]:
        return map(partial(residual_value, name), numbers, odd_values(name, np.array(numbers), fmt).tolist())

    return table_of_all(f"{name} rest", fmt, rests)


def rest_key(name: str, fmt: Format) -> str:
    """Return the name of a table of rests in lines of machine operations."""
    return table_key(name, fmt, rest_table, " rest")
