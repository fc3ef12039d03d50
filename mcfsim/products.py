"""Dot products and matrix products, accumulated as an `Accumulator` says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.accumulator import Accumulator, Order, Products, Unit
from mcfsim.checks import real_array
from mcfsim.formats import Format
from mcfsim.kernels.exact_dot import COMFORT
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding

__all__ = ["Accumulator", "Order", "Products", "dot", "matmul"]

Array = NDArray[Any]


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    accumulator: Accumulator,
    *,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    threads: int = 1,
) -> Any:
    """Return matrix products, ``a @ b`` or ``c + a @ b``, bit-exactly as the accumulator computes it.

    Parameters
    ----------
    a, b : array_like
        Numbers of any formats, in arrays of a NumPy or ml_dtypes floating or integer dtype. Shapes combine as
        in `numpy.matmul`: stacks ``(..., m, k)`` and ``(..., k, n)`` broadcast; a vector is a row on the left
        and a column on the right. Each number is a float32 number, or a float64 number of magnitude within
        2**+-450.
    accumulator : Accumulator
        How products are summed.
    c : array_like, optional
        Initial value of the accumulator, of any format; broadcasts to the result. It is the first term of the
        first block's exact sum. Without it, that sum has no such term, not even a zero.
    out_format : Format or str, optional
        Format to which the accumulated result is rounded once more.
    out_rounding : Rounding or str, optional
        Rounding of that conversion, as in `round_to`.
    random : RandomWords, optional
        Random words, which stochastic rounding needs. The roundings of an element of the result are numbered
        as operations, in the order in which they are made, products before their sum. Each takes the word of
        the element's index in row-major order. See `Accumulator.roundings`.
    threads : int, optional
        Threads that share the tiles of a large result.

    Returns
    -------
    array or number
        Values of the accumulator's format, or of the output format, in that format's carrier: float32 if it
        holds the format, else float64.

    Notes
    -----
    The sum of a block is one operation on all its terms. It is NaN if a term is NaN, if a product is infinity
    times zero, or if infinities of both signs meet. It is infinite if its terms have infinities of one sign,
    and then NaN in a format without infinity. An exactly zero sum is -0 if all terms are -0, else +0; in the
    mode ``down`` it is +0 if all terms are +0, else -0. Nothing overflows within a block. An overflow at its
    end is permanent: an infinity in the accumulator stays. The sum of no products is +0, or `c` rounded.

    This is a model. The units in the reference truncate the low bits of the terms that they align, and are
    less accurate than one rounding per block.

    Raises
    ------
    TypeError
        If an operand is no array of real numbers, or `accumulator` is no Accumulator.
    ValueError
        If shapes do not match, a number is out of range, or random words are missing.

    References
    ----------
    Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7:e330,
    2021.

    Examples
    --------
    >>> a, b = [[2.0**12, 1.0, 1.0, -(2.0**12)]], np.ones((4, 1))
    >>> [float(matmul(a, b, Accumulator("float16", block=n))[0, 0]) for n in (1, 2, 4)]
    [0.0, 1.0, 2.0]
    """
    left, right = _operand(a, "a"), _operand(b, "b")
    for label, operand in (("a", left), ("b", right)):
        if operand.ndim == 0:
            raise ValueError(f"{label} is a number; matmul takes arrays of at least one dimension")
    row, column = left.ndim == 1, right.ndim == 1
    left = left[np.newaxis, :] if row else left
    right = right[:, np.newaxis] if column else right
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"shapes {np.shape(a)} and {np.shape(b)} do not go together: {left.shape[-1]} columns on the "
            f"left, {right.shape[-2]} rows on the right"
        )
    try:
        stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(f"stacks of shapes {np.shape(a)} and {np.shape(b)} do not broadcast") from None
    shape = stack + (() if row else left.shape[-2:-1]) + (() if column else right.shape[-1:])
    given = None if c is None else _added(c, shape)
    unit = Unit(accumulator, out_format, out_rounding, random)
    return unit.multiply(left, right, given, stack, threads).reshape(shape)[()]


def dot(
    a: ArrayLike,
    b: ArrayLike,
    accumulator: Accumulator,
    *,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    threads: int = 1,
) -> Any:
    """Return dot products along the last axis, bit-exactly as the accumulator computes them.

    Parameters
    ----------
    a, b : array_like
        Arrays of shapes ``(..., k)``. The last axes have equal length; the others broadcast.
    accumulator, c, out_format, out_rounding, random, threads
        See `matmul`.

    Returns
    -------
    array or number
        Of the broadcast shape without its last axis. See `matmul`.

    Raises
    ------
    TypeError, ValueError
        See `matmul`.

    Examples
    --------
    >>> ones = np.ones(600)
    >>> [float(dot(ones, ones, Accumulator("bf16", block=n))) for n in (1, 2, 4, None)]
    [256.0, 512.0, 600.0, 600.0]
    """
    left, right = _operand(a, "a"), _operand(b, "b")
    if not left.ndim or not right.ndim or left.shape[-1] != right.shape[-1]:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not share the length of a last axis")
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)[:-1]
    except ValueError:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not broadcast") from None
    given = None if c is None else _added(c, shape)
    unit = Unit(accumulator, out_format, out_rounding, random)
    found = unit.multiply(left[..., np.newaxis, :], right[..., np.newaxis], given, shape, threads)
    return found.reshape(shape)[()]


def _operand(x: ArrayLike, label: str) -> Array:
    """Return numbers exactly: as float32 if it holds them all, else as float64."""
    array = real_array(x, label)
    dtype = array.dtype
    if dtype.kind not in "iu" and (dtype.kind != "f" or dtype.itemsize <= 4):
        return array.astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        narrow = wide.astype(np.float32)
        unlike = ~((narrow == wide) | np.isnan(wide))
    if dtype.kind in "iu":
        outside = (array > 2**53) | (array < -(2**53)) if dtype.itemsize == 8 else np.zeros(array.shape, bool)
        allowed = "2**53 at most"
    else:
        magnitude = np.abs(wide)
        outside = unlike & ((magnitude > 2.0**COMFORT) | (magnitude < 2.0**-COMFORT))
        allowed = f"within 2**+-{COMFORT}"
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(f"{label}{list(index)} = {array[index]!r}: magnitudes must be {allowed}")
    return wide if unlike.any() else narrow


def _added(c: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return the addend c, broadcast to the result's shape."""
    numbers = _operand(c, "c")
    try:
        return np.broadcast_to(numbers, shape)
    except ValueError:
        raise ValueError(f"c of shape {numbers.shape} does not broadcast to the result's {shape}") from None
