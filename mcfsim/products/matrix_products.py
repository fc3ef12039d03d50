"""Dot products and matrix products, summed as an `Accumulator` or a `Unit` says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mcfsim.formats import Format
from mcfsim.products.accumulator import Accumulation, Accumulator
from mcfsim.products.unit_products import UnitProducts
from mcfsim.products.units import Unit
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding, get_rounding
from mcfsim.scaled import Scaled


def matmul(
    a: ArrayLike | Scaled,
    b: ArrayLike | Scaled,
    accumulator: Accumulator | None = None,
    *,
    unit: Unit | str | None = None,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    promote_every: int | None = None,
    split_k: int = 1,
    threads: int = 1,
) -> Any:
    """Return matrix products, ``a @ b`` or ``c + a @ b``, bit for bit as an accumulator or a unit does it.

    Parameters
    ----------
    a, b : array_like or Scaled
        Numbers in arrays of a NumPy or ml_dtypes floating or integer dtype. Shapes combine as in
        `numpy.matmul`: stacks ``(..., m, k)`` and ``(..., k, n)`` broadcast; a vector is a row on the left
        and a column on the right. An accumulator takes float32 numbers of any formats, or float64 numbers of
        magnitude within 2**+-450. A unit takes numbers of one of its input formats: the one that the dtype
        names, or else the first one. A unit with scales takes `Scaled` operands in blocks along the
        contracted axis.
    accumulator : Accumulator, optional
        How products are summed; either this or `unit`.
    unit : Unit or str, optional
        The matrix unit that sums the products, or a name of `UNITS`.
    c : array_like, optional
        Initial value, which broadcasts to the result. An accumulator takes any format, as the first term of
        the first block's exact sum; without it, that sum has no such term, not even a zero. A unit takes
        numbers of `Unit.addend`, by default zeros, which its first group adds like a carried sum. With
        `promote_every` or `split_k` they are float32 numbers, added last.
    out_format : Format or str, optional
        Format to which the result of an accumulator is rounded once more.
    out_rounding : Rounding or str, optional
        Rounding of that conversion, as in `round_to`.
    random : RandomWords, optional
        Random words, which stochastic rounding needs. The roundings of an element of the result are numbered
        as operations, in the order in which they are made, products before their sum. Each takes the word of
        the element's index in row-major order. See `Accumulator.roundings`.
    promote_every : int, optional
        Products, a multiple of the unit's k, after which a unit begins again at zero. Each such sum is
        added to those before in float32, rounded to nearest even (as in DeepSeek-V3 and DeepGEMM with 128).
    split_k : int, optional
        Parts of the contracted axis of a unit, of equally many groups; the last one may be shorter, or
        missing. Their sums are added in float32, in ascending order.
    threads : int, optional
        Threads that share the tiles of a large result.

    Returns
    -------
    array or number
        Values of the accumulator's or the unit's format, or of the output format, in that format's carrier:
        float32 if it holds the format, else float64. A unit's sums that are added, or multiplied by scales of
        tensors, are float32 numbers.

    Notes
    -----
    The sum of an accumulator's block is one operation on all its terms. It is NaN if a term is NaN, if a
    product is infinity times zero, or if infinities of both signs meet. It is infinite if its terms have
    infinities of one sign, and then NaN in a format without infinity. An exactly zero sum is -0 if all terms
    are -0, else +0; in the mode ``down`` it is +0 if all terms are +0, else -0. Nothing overflows within a
    block. An overflow at its end is permanent: an infinity in the accumulator stays. The sum of no products
    is +0, or `c` rounded.

    An accumulator is a model. Matrix units cut low bits of the terms that they align, and are less accurate
    than one rounding per block; `UnitSums` says what they do, and `Unit` how they treat zeros, NaN and
    infinity. Their last group is filled up with zeros. Float32 scales of whole tensors, as NVFP4's, come
    last: the result is multiplied by their product, both products rounded to float32.

    Raises
    ------
    TypeError
        If an operand is not an array of real numbers, is scaled and should not be or the reverse, or if
        neither or both of `accumulator` and `unit` are given.
    ValueError
        If shapes do not match, a number is out of range or of no format of the unit, random words are
        missing, or an option is for the other way to sum.

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
    way = _way(accumulator, unit, out_format, out_rounding, random, promote_every, split_k)
    return products_of(way, a, b, c, threads)


def products_of(
    way: Accumulation | UnitProducts,
    a: ArrayLike | Scaled,
    b: ArrayLike | Scaled,
    c: ArrayLike | None,
    threads: int,
) -> Any:
    """Return matrix products, summed in a given way; the other arguments are those of `matmul`."""
    left: Any = way.operand(a, "a", -1)
    right: Any = way.operand(b, "b", -2)
    for label, operand in (("a", left), ("b", right)):
        if operand.ndim == 0:
            raise ValueError(f"{label} is a number; matmul takes arrays of at least one dimension")
    row, column, before = left.ndim == 1, right.ndim == 1, (left.shape, right.shape)
    left = left[np.newaxis, :] if row else left
    right = right[:, np.newaxis] if column else right
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"shapes {before[0]} and {before[1]} do not go together: {left.shape[-1]} columns on the "
            f"left, {right.shape[-2]} rows on the right"
        )
    try:
        stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(f"stacks of shapes {before[0]} and {before[1]} do not broadcast") from None
    shape = stack + (() if row else left.shape[-2:-1]) + (() if column else right.shape[-1:])
    given = None if c is None else way.added(c, shape)
    return way.multiply(left, right, given, stack, threads).reshape(shape)[()]


def dot(
    a: ArrayLike | Scaled,
    b: ArrayLike | Scaled,
    accumulator: Accumulator | None = None,
    *,
    unit: Unit | str | None = None,
    c: ArrayLike | None = None,
    out_format: Format | str | None = None,
    out_rounding: Rounding | str = "nearest_even",
    random: RandomWords | None = None,
    promote_every: int | None = None,
    split_k: int = 1,
    threads: int = 1,
) -> Any:
    """Return dot products along the last axis, bit-exactly as an accumulator or a unit computes them.

    Parameters
    ----------
    a, b : array_like or Scaled
        Arrays of shapes ``(..., k)``. The last axes have equal length; the others broadcast.
    accumulator, unit, c, out_format, out_rounding, random, promote_every, split_k, threads
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
    way = _way(accumulator, unit, out_format, out_rounding, random, promote_every, split_k)
    left, right = way.operand(a, "a", -1), way.operand(b, "b", -1)
    if not left.ndim or not right.ndim or left.shape[-1] != right.shape[-1]:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not share the length of a last axis")
    try:
        shape = np.broadcast_shapes(left.shape, right.shape)[:-1]
    except ValueError:
        raise ValueError(f"shapes {left.shape} and {right.shape} do not broadcast") from None
    given = None if c is None else way.added(c, shape)
    found = way.multiply(left[..., np.newaxis, :], right[..., np.newaxis], given, shape, threads)
    return found.reshape(shape)[()]


def _way(
    accumulator: Accumulator | None,
    unit: Unit | str | None,
    out_format: Format | str | None,
    out_rounding: Rounding | str,
    random: RandomWords | None,
    promote_every: int | None,
    split_k: int,
) -> Any:
    """Return the object that sums the products."""
    if (accumulator is None) == (unit is None):
        given = "neither" if unit is None else "both"
        raise TypeError(f"either an accumulator or a unit sums the products; {given} is given")
    if unit is None:
        if promote_every is not None or split_k != 1:
            raise ValueError(
                "promote_every and split_k are for a unit; an Accumulator has block, order and lanes"
            )
        assert accumulator is not None
        return Accumulation(accumulator, out_format, out_rounding, random)
    if out_format is not None or random is not None or get_rounding(out_rounding) != Rounding():
        raise ValueError(
            "out_format, out_rounding and random are for an accumulator; round_to rounds a unit's results"
        )
    return UnitProducts(unit, promote_every, split_k)
