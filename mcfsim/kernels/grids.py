"""Rounding of blocks to a uniform grid, and the codes of its numbers.

A grid is part of a wider fixed-point format. Into this the floating-point kernel rounds, and what comes out
beyond the grid's ends is clipped: both ends are numbers of the wider format, and rounding keeps the order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats.floating import Format, Specials
from mcfsim.formats.grids import Grid
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.floats import FloatKernel
from mcfsim.random import Words
from mcfsim.rounding import Overflow, Rounding, Underflow

Block = NDArray[Any]


class GridKernel:
    """Rounding of blocks from one carrier type to a grid.

    NaN stays NaN, an infinity becomes NaN, zeros are positive, and every other number beyond an end of the
    grid becomes that end, whatever the overflow policy.

    Parameters
    ----------
    fmt : Grid
        The target.
    rounding : Rounding
        Mode and random bits.
    carrier : dtype
        ``float32`` or ``float64``; every number of the grid must be one of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the grid, or small numbers are to be flushed to zero: none of a grid is
        subnormal.
    """

    #: Whether every number of the carrier is a value of the format: never.
    exact = False

    def __init__(self, fmt: Grid, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        if rounding.underflow is not Underflow.GRADUAL:
            raise UnsupportedFormatError(
                f"{fmt} has no subnormal numbers to flush: underflow must be 'gradual', not "
                f"{rounding.underflow!s}"
            )
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        self.low, self.high = carrier.type(fmt.lowest), carrier.type(fmt.max)
        # One bit more than the grid needs, so that neither end is next to where this format itself ends.
        fixed_point = Format(
            f"fixed point around {fmt}",
            precision=fmt.precision + 1,
            emin=fmt.emin + 1,
            emax=fmt.emin + 1,
            specials=Specials.NONE,
        )
        self._round = FloatKernel(fixed_point, replace(rounding, overflow=Overflow.SATURATE), carrier)
        self._nearest = (
            self._round if not rounding.stochastic else FloatKernel(fixed_point, Rounding(), carrier)
        )

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word an element.
        """
        self._round(x, out, words)
        np.clip(out, self.low, self.high, out=out)
        np.add(out, self.carrier.type(0), out=out)  # -0 + 0 is +0

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the grid alone; the sign of zero is not judged."""
        rounded = np.empty_like(x)
        self._nearest(x, rounded)
        np.clip(rounded, self.low, self.high, out=rounded)
        return bool(((rounded == x) | np.isnan(x)).all())


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
