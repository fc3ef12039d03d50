"""Means of numbers by a stated sum, from which they are rounded once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels import residuals
from mcfsim.kernels.exact_dot import ODD_BITS, PIECE, dot_to_odd
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.optim.over import Shape
from mcfsim.products import Accumulator, matmul
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Mode
from mcfsim.scaled.mean import sum_of_magnitudes

Array = NDArray[Any]


def check_mean(ar: Arithmetic, accumulator: Accumulator | None) -> None:
    """Raise unless means can be rounded once by an arithmetic.

    Raises
    ------
    ValueError
        If operands are to be flushed, or the accumulator rounds at random.
    UnsupportedFormatError
        If the arithmetic's format has too long significands or too wide a range for exact sums.
    """
    if accumulator is not None and accumulator.rounding.stochastic:
        raise ValueError(
            "the sums of a mean are not rounded at random: an accumulator has no words of its own; the mean "
            "is, where its arithmetic rounds so"
        )
    fmt, rounding = ar.format, ar.rounding
    if fmt is not None and rounding is not None and not isinstance(ar, NativeArithmetic):
        Accumulator(fmt, rounding, block=None)  # refuses formats whose sums are not exact


def mean(ar: Arithmetic, x: Array, target: Shape, accumulator: Accumulator | None = None) -> Array:
    """Return means of numbers over those indices that have length 1 in the result.

    Parameters
    ----------
    ar : Arithmetic
        Of one block, which rounds the quotients of sums and counts: each once, correctly, as if its sum were
        what is stated. In mpmath sums are mpmath's; in binary64, by `NativeArithmetic`, NumPy's.
    x : array
        Of three indices; values of a format that `check_mean` does not refuse. Not empty.
    target : tuple of three int
        Shape of the result.
    accumulator : Accumulator, optional
        How numbers are summed, in row-major order; by default exactly.

    Returns
    -------
    array
        NaN where a number is NaN, or infinities of both signs are among them; else infinite where one is. A
        count enters as it is, whatever the policy of real scalars.

    Notes
    -----
    A sum S that is rounded to odd in 52 bits lies on the same side as S of every number of 52 bits. A
    rounding of S / n turns at numbers B of p bits and guard bits, and S / n lies above B where S lies above
    n B. So the rounded quotient is that of S where n B has 52 bits at most; else it is made of fractions.
    """
    rest = tuple(axis for axis in range(3) if target[axis] != x.shape[axis])
    count = x.size // math.prod(target)
    if ar.format is None or isinstance(ar, NativeArithmetic):
        total = x.sum(axis=rest, keepdims=True)
        return np.asarray(ar.div(total, float(count)))
    kept = tuple(axis for axis in range(3) if axis not in rest)
    numbers = x.transpose(*kept, *rest).reshape(-1, count)
    if accumulator is None:
        assert ar.rounding is not None
        total = _exact(numbers, down=ar.rounding.mode is Mode.DOWN)
    else:
        total = matmul(numbers, np.ones(count, np.float32), accumulator).astype(np.float64)
    with np.errstate(all="ignore"):
        quotients = residuals.make_odd(*residuals.div(total, np.float64(count)))
    if accumulator is None and _bits(ar) + count.bit_length() > ODD_BITS:
        finite = np.flatnonzero(np.isfinite(quotients) & (quotients != 0))
        quotients[finite] = _by_fractions(numbers[finite])
    return np.asarray(ar.round(quotients)).reshape(target)


def _exact(numbers: Array, *, down: bool) -> NDArray[np.float64]:
    """Return the sums of rows, rounded to odd in 52 bits."""
    rows, count = numbers.shape
    sums = np.empty(rows)
    step = max(1, PIECE // count)
    for first in range(0, rows, step):
        part = numbers[first : first + step]

        def operands(start: int, stop: int, part: Array = part) -> tuple[Array, Array]:
            left = part[np.newaxis, :, start:stop].astype(np.float64)
            return left, np.ones((1, stop - start, 1))

        shape = (1, len(part), 1)
        with np.errstate(all="ignore"):
            found = dot_to_odd(operands, (0, count), shape, None, narrow=True, down=down)
        sums[first : first + step] = found[0, :, 0]
    return sums


def _bits(ar: Arithmetic) -> int:
    """Return how many bits numbers have at which an arithmetic's roundings turn."""
    assert ar.format is not None
    assert ar.rounding is not None
    return ar.format.precision + ar.rounding.guard_bits


def _by_fractions(numbers: Array) -> NDArray[np.float64]:
    """Return the means of rows of finite numbers, rounded to odd in binary64."""
    found = np.empty((2, len(numbers)))
    for place, row in enumerate(numbers):
        above, below = (sum_of_magnitudes(row[chosen]) or 0 for chosen in (row > 0, row < 0))
        exact = Fraction(above - below) / row.size
        nearest = float(exact)
        found[:, place] = nearest, (exact > nearest) - (exact < nearest)
    return residuals.make_odd(*found)
