"""The neighbours of a value in its format, and the unit in its last place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.codec.codes import real_numbers
from mcfsim.convert import round_to
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import for_each_block
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.kernels.codes_by_kind import FloatCodes, codes_by_kind, scaled

Block = NDArray[Any]


def next_up(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the least value of the format above each number, which need not be one itself.

    Parameters
    ----------
    x : array_like
        Real numbers, as for `encode`.
    fmt : Format or str
        The format.

    Returns
    -------
    array of float32 or float64
        Of the shape of x, in the format's carrier. Above the largest finite number lies infinity, or in a
        format without it that number itself. A zero has the sign of x if the format has both. NaN, and an
        infinity that the format has not, give NaN.

    Raises
    ------
    TypeError
        If x does not hold real numbers.
    UnsupportedFormatError
        If float64 cannot hold the format.
    """
    return _neighbours(x, fmt, 1)


def next_down(x: ArrayLike, fmt: Format | str) -> NDArray[Any]:
    """Return the greatest value of the format below each number; see `next_up`.

    Below the least finite number of an unsigned format, or one without infinity, lies that number itself.
    """
    return _neighbours(x, fmt, -1)


def ulp(x: ArrayLike, fmt: Format | str) -> NDArray[np.float64]:
    """Return the unit in the last place, ``2**(max(e, emin) - p + 1)`` where ``2**e <= |x| < 2**(e + 1)``.

    Beyond emax it is that of emax. NaN and infinities give NaN. The result is binary64. In a grid and among
    posits it is the distance between the two values, one after the other, of which |x| is at least the first
    and less than the second; beyond the largest value, the last such distance.
    """
    fmt = get_format(fmt)
    carrier_of(fmt)
    by_exponent = isinstance(codes_by_kind(fmt), FloatCodes)

    def on_block(start: int, block: Block, out: Block) -> None:
        magnitude = np.abs(block)
        finite = np.isfinite(magnitude)
        if by_exponent:
            exponent = np.maximum(magnitude.view(np.int64) >> 52, 1) - 1023
            exponent = np.clip(exponent, fmt.emin, fmt.emax) - fmt.precision + 1
            step = scaled(1.0, exponent)
        else:
            above = next_up(np.where(finite, magnitude, 0.0), fmt).astype(np.float64)
            step = above - next_down(above, fmt)
        out[...] = np.where(finite, step, np.nan)

    return for_each_block(on_block, [real_numbers(x)], FLOAT64, 1)[0]


def _neighbours(x: ArrayLike, fmt: Format | str, step: int) -> NDArray[Any]:
    fmt = get_format(fmt)
    carrier = carrier_of(fmt)
    codes = codes_by_kind(fmt)

    def on_block(start: int, block: Block, out: Block) -> None:
        # A value next to the number, on either side; a format without zero has one on either side of zero.
        given = block if fmt.zero else np.where(block == 0, float(fmt.smallest_normal), block)
        nearest = round_to(given, fmt, overflow="saturate")
        nan = np.isnan(nearest)
        np.copyto(nearest, float(fmt.max), where=nan)
        reached = nearest <= block if step > 0 else nearest >= block
        places = codes.places(codes.encode(nearest)) + step * reached
        values = codes.decode(codes.at(np.clip(places, codes.first, codes.last)))
        if fmt.has_negative_zero:
            np.copyto(values, np.copysign(0.0, block), where=values == 0)
        np.copyto(values, np.nan, where=nan)
        out[...] = values

    return for_each_block(on_block, [real_numbers(x)], FLOAT64, 1, results=carrier)[0]
