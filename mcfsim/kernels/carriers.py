"""The NumPy dtypes that hold formats: carriers of their values, dtypes of their codes, and native dtypes.

If there is none, `UnsupportedFormatError` is raised.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from mcfsim.checks import is_real
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.formats.grids import Grid

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class UnsupportedFormatError(ValueError):
    """A format, operation or mode has no exact path in the chosen arithmetic."""


def holds(carrier: np.dtype[Any], fmt: Format) -> bool:
    """Return whether every value of the format, and NaN and infinity, is a number of the carrier.

    The carrier must also hold the power of two whose unit in the last place is the format's smallest
    subnormal number and, for a grid, the numbers next to its ends.
    """
    info = np.finfo(carrier)
    precision = fmt.precision + isinstance(fmt, Grid)
    cut, highest = info.nmant + 1 - precision, int(info.maxexp) - 1
    return cut >= 0 and fmt.emin >= int(info.minexp) and fmt.emax <= highest and fmt.emin + cut <= highest


def within(fmt: Format, other: Format) -> bool:
    """Return whether `other` has the precision and the range of `fmt`, and so all its finite numbers.

    The precision of a posit is that near 1.
    """
    fine = fmt.precision <= other.precision and fmt.smallest_subnormal >= other.smallest_subnormal
    fine = fine and _unit(fmt) >= _unit(other) and fmt.zero <= other.zero
    return fine and other.lowest <= fmt.lowest and fmt.max <= other.max


def _unit(fmt: Format) -> Fraction:
    """Return the number of which all numbers of a format are multiples; a format without zero may lack it."""
    return fmt.smallest_subnormal / (1 if fmt.zero else 2 ** (fmt.precision - 1))


def is_filled(carrier: np.dtype[Any], fmt: Format) -> bool:
    """Return whether every number of the carrier is a value of the format."""
    return fmt == FORMATS[carrier.name]


@lru_cache(maxsize=4096)
def carrier_of(fmt: Format) -> np.dtype[Any]:
    """Return the dtype that carries the format's values: float32 if it holds them, else float64.

    Raises
    ------
    UnsupportedFormatError
        If not even float64 holds them.
    """
    for carrier in (FLOAT32, FLOAT64):
        if holds(carrier, fmt):
            return carrier
    raise UnsupportedFormatError(
        f"{fmt} (precision {fmt.precision}, emin {fmt.emin}, emax {fmt.emax}) exceeds float64, the widest "
        "carrier; use backend='exact'"
    )


def code_dtype(fmt: Format | str) -> np.dtype[Any]:
    """Return the shortest unsigned dtype that holds the codes of a format.

    Raises
    ------
    UnsupportedFormatError
        If codes are longer than 64 bits.
    """
    fmt = get_format(fmt)
    if fmt.bits > 64:
        raise UnsupportedFormatError(f"codes of {fmt} have {fmt.bits} bits; at most 64 are supported")
    return np.min_scalar_type(2**fmt.bits - 1)


def native_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes dtype whose values are those of the format.

    Raises
    ------
    UnsupportedFormatError
        If there is no such dtype.
    """
    import ml_dtypes

    for name, known in FORMATS.items():
        scalar = getattr(ml_dtypes, name, None) or getattr(np, name, None)
        if known == fmt and scalar is not None:
            dtype: np.dtype[Any] = np.dtype(scalar)
            return dtype
    raise UnsupportedFormatError(f"no dtype of NumPy or ml_dtypes holds {fmt} and its codes")


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype of NumPy or ml_dtypes holds floating-point numbers of at most 64 bits."""
    # The integers of ml_dtypes, such as int4, do not have NumPy's kind of integers.
    return is_real(dtype) and not dtype.name.startswith(("int", "uint"))
