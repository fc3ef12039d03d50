"""Exact sums of arrays, from which a mean is rounded once."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Significands of binary64 are summed in two halves, whose sums over a block are exact in binary64.
_HALF = 27
_LEAST_EXPONENT = -1073  # as frexp has it: of the smallest subnormal number
_EXPONENTS = 1024 - _LEAST_EXPONENT + 1


def sum_of_magnitudes(x: NDArray[Any]) -> Fraction | None:
    """Return the exact sum of the magnitudes of float32 or float64 numbers; None if one is not finite."""
    halves = np.zeros((2, _EXPONENTS), dtype=np.int64)
    for block in _blocks(x):
        if not np.isfinite(block).all():
            return None
        significand, exponent = np.frexp(np.abs(block))
        integers = (significand * 2.0**53).astype(np.int64)
        place = exponent - _LEAST_EXPONENT
        parts = integers >> _HALF, integers & (2**_HALF - 1)
        for total, part in zip(halves, parts, strict=True):
            total += np.bincount(place, weights=part, minlength=_EXPONENTS).astype(np.int64)
    quanta = 0
    for shift in np.flatnonzero(halves.any(axis=0)).tolist():
        high, low = halves[:, shift].tolist()
        quanta += ((high << _HALF) + low) << shift
    return Fraction(quanta) * Fraction(2) ** (_LEAST_EXPONENT - 53)


def _blocks(x: NDArray[Any]) -> Iterable[NDArray[np.float64]]:
    """Return the elements in contiguous blocks of binary64, in any order."""
    if not x.size:
        return ()
    blocks: Iterable[NDArray[np.float64]] = np.nditer(  # type: ignore[call-overload]  # its stub knows no "contig"
        [x],
        flags=["external_loop", "buffered"],
        op_flags=[["readonly", "contig", "aligned"]],
        op_dtypes=[np.float64],
        casting="safe",
        buffersize=2**15,
    )
    return blocks
