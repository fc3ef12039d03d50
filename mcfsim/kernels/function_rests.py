"""Residuals of rounded values of elementary functions, for exact errors of operations.

Where a value is very close to a number of the format, as exp(2**-100) to 1, the residual is the whole error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.elementary import (
    EVALUATE,
    MOST_BITS,
    function_table,
    kept_value,
    looked_up,
    odd_values,
    one_by_one,
    table_key,
    table_of_all,
)

#: The precision, in bits, with which a value is computed first, and bits that must be left of it.
_FIRST, _CERTAIN = 128, 64
#: Bits after which the difference of a value of about 1 from a number is below binary64.
_SETTLED = 1 << 11


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
    """Return how far the value of a function lies above its `coarse` value, given rounded to odd if known."""
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
        # What is left has its first bits, or is below binary64.
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
