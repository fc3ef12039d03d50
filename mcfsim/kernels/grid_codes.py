"""Codes of the numbers of a uniform grid, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats.grids import Grid

Block = NDArray[Any]


def encode(values: Block, fmt: Grid) -> NDArray[np.uint64]:
    """Return the codes of values of a grid: its integers, in two's complement of `fmt.bits` bits.

    Parameters
    ----------
    values : array of float32 or float64
        Of any shape.
    fmt : Grid
        The grid.

    Raises
    ------
    ValueError
        If an element is no value of the grid; NaN is none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        integers = np.asarray(values, dtype=np.float64) * 2.0**fmt.fraction_bits
        wrong = ~((integers >= fmt.low) & (integers <= fmt.high) & (integers == np.floor(integers)))
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"element {index} = {float(values[index])!r} is no value of {fmt}, and has no code")
    # The shifted-out bits of a uint64 are copies of the sign.
    codes: NDArray[np.uint64] = integers.astype(np.int64).astype(np.uint64) & np.uint64(2**fmt.bits - 1)
    return codes


def decode(codes: NDArray[Any], fmt: Grid) -> NDArray[np.float64]:
    """Return the values of codes of a grid.

    Parameters
    ----------
    codes : array of unsigned integers
        Of any shape, each below ``2**fmt.bits``.
    fmt : Grid
        The grid.

    Raises
    ------
    ValueError
        If a code is too large, or stands for an integer beyond the ends.
    """
    integers = np.asarray(codes).astype(np.int64)
    if fmt.signed:
        integers = integers - ((integers >> (fmt.bits - 1)) << fmt.bits)
    wrong = (integers < fmt.low) | (integers > fmt.high)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"code {int(codes[index])} at {index} stands for no value of {fmt}")
    return integers * np.float64(2.0**-fmt.fraction_bits)
