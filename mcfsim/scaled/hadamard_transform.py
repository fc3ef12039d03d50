"""Hadamard transforms of groups along an axis, with signs, in a stated format and order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import as_array, check_int, check_processor, real_array
from mcfsim.compile.group_loops import hadamard_loops
from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import carrier_of, is_floating
from mcfsim.random import RandomWords
from mcfsim.scaled.block_views import axis_of
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]

#: The signs of Transformer Engine's transform of 16 numbers.
TE_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


def hadamard(
    x: ArrayLike,
    size: int = 16,
    *,
    axis: int = -1,
    signs: RandomWords | ArrayLike | str | None = None,
    inverse: bool = False,
    fmt: Format | str = "float32",
    result: Format | str | None = None,
) -> Array:
    """Transform groups of neighbours: ``y = (x * signs) H / sqrt(size)``, H Sylvester's matrix of +1 and -1.

    Parameters
    ----------
    x : array_like of a floating dtype
        Its numbers must be values of `fmt`; the length of the axis must be a multiple of `size`.
    size : int, optional
        A power of two, at least 2. Published recipes take 16, 32 and 128.
    axis : int, optional
        The axis along which groups lie.
    signs : RandomWords or array_like or "transformer_engine", optional
        The signs of a group's numbers, the same for all groups: +1 and -1; or words, whose upper bits are 1
        where a sign is -1, word i for number i; or the vector of 16 that Transformer Engine has built in.
        Default: all +1.
    inverse : bool, optional
        Whether to undo the transform: ``y = (x H / sqrt(size)) * signs``.
    fmt : Format or str, optional
        The format to which each operation is rounded, to nearest even.
    result : Format or str, optional
        A format to which the results are rounded once more, as "bfloat16" after sums in float32.

    Returns
    -------
    array
        In the carrier of the last format, in the shape of x.

    Raises
    ------
    TypeError, ValueError
        If the size is not a power of two or does not divide the axis, if signs are not +1 and -1, or if x has
        numbers that are not values of `fmt`.
    numpy.exceptions.AxisError
        If there is no such axis.

    Notes
    -----
    Butterflies of strides 1, 2, 4, ... ``size / 2`` add and subtract neighbours at that distance, then each
    sum is multiplied by ``1 / sqrt(size)`` rounded to `fmt`; that is exact for sizes that are powers of four.
    So ``inverse`` gives x back up to rounding. A NaN makes its group NaN, an infinity NaN or infinite.
    Published kernels multiply by a matrix, and the library determines the order of the sums.

    References
    ----------
    NVIDIA, Pretraining large language models with NVFP4, arXiv 2509.25149, 2025.

    Examples
    --------
    >>> hadamard([4.0, 0.0, 0.0, 0.0], 4).tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    check_int("size", size)
    if size < 2 or size & (size - 1):
        raise ValueError(f"size = {size} must be a power of two, at least 2")
    array = as_array(x)
    if not is_floating(array.dtype):
        raise TypeError(f"x of dtype {array.dtype} is no array of floating-point numbers")
    axis_of(axis, array.ndim)
    if array.shape[axis] % size:
        raise ValueError(
            f"axis {axis} of length {array.shape[axis]} is no multiple of size = {size}; pad the array"
        )
    check_processor()
    fmt = get_format(fmt)
    flipped = signs_of(signs, size)
    native = fmt == FORMATS["float32"] and array.itemsize <= 4  # then it has all numbers
    carried = np.asarray(array if native else round_to(array, fmt), carrier_of(fmt))
    if not native and not np.array_equal(carried, array, equal_nan=True):
        raise ValueError(f"x of dtype {array.dtype} has numbers that are no values of {fmt}; round it first")
    rows = np.moveaxis(carried, axis, -1)
    groups = np.ascontiguousarray(rows).reshape(-1, size)
    found, factor = np.empty_like(groups), factor_of(size, fmt)
    if not _by_loops(groups, flipped, found, factor, fmt, inverse=inverse):
        _by_numpy(groups, flipped, found, factor, fmt, inverse=inverse)
    transformed = np.moveaxis(found.reshape(rows.shape), -1, axis)
    return transformed if result is None else np.asarray(round_to(transformed, result))


def _by_loops(groups: Array, signs: Array, out: Array, factor: float, fmt: Format, *, inverse: bool) -> bool:
    """Write transforms by compiled loops, if there are some and they pay; return whether that was done."""
    if fmt != FORMATS["float32"]:
        return False
    loops, name = hadamard_loops(groups.shape[1], factor), "inverse" if inverse else "forward"
    if loops is None or not loops.pays(groups.size, name):
        return False
    loops.transform(name, groups, signs, out)
    return True


def _by_numpy(groups: Array, signs: Array, out: Array, factor: float, fmt: Format, *, inverse: bool) -> None:
    """Write transforms of groups, or their inverses."""
    (add, subtract, multiply), size = _operations(fmt), groups.shape[1]

    def both(first: Array, second: Array) -> Array:
        pair = np.empty((first.shape[0], 2, *first.shape[1:]), first.dtype)
        pair[:, 0], pair[:, 1] = add(first, second), subtract(first, second)
        return pair

    by = np.full((1, 1), factor, groups.dtype)
    some = max(1, BLOCK // size)  # at a time, so that they stay in cache
    with np.errstate(all="ignore"):
        for start in range(0, len(groups), some):
            columns = groups[start : start + some].T
            given = columns.copy() if inverse else columns * signs[:, np.newaxis]
            made = multiply(butterflies(given, size, both), by)
            out[start : start + some] = (made * signs[:, np.newaxis] if inverse else made).T


def _operations(fmt: Format) -> Sequence[Callable[[Array, Array], Array]]:
    """Return addition, subtraction and multiplication in a format, of arrays of any layout."""
    if fmt == FORMATS["float32"]:  # NumPy's own
        return np.add, np.subtract, np.multiply
    ar = arithmetic(fmt)

    def laid(operation: Callable[..., Any]) -> Callable[[Array, Array], Array]:
        def operate(first: Array, second: Array) -> Array:
            pair = [np.ascontiguousarray(x) for x in np.broadcast_arrays(first, second)]
            return np.asarray(operation(*pair)).reshape(pair[0].shape)

        return operate

    return [laid(operation) for operation in (ar.add, ar.sub, ar.mul)]


def butterflies(columns: Any, size: int, both: Callable[[Any, Any], Any]) -> Any:
    """Return sums and differences of rows at strides 1, 2, 4, ... `size / 2`; a group is a column.

    `both` stacks sums and differences along axis 1, of arrays or of tensors.
    """
    shape, stride = columns.shape, 1
    while stride < size:
        pairs = columns.reshape(size // (2 * stride), 2, stride, -1)
        columns = both(pairs[:, 0], pairs[:, 1]).reshape(shape)
        stride *= 2
    return columns


def factor_of(size: int, fmt: Format) -> float:
    """Return ``1 / sqrt(size)`` in a format."""
    return float(round_to(math.sqrt(1 / size), fmt))


def signs_of(signs: RandomWords | ArrayLike | str | None, size: int) -> Array:
    """Return the signs of a group as float32 numbers."""
    if signs is None:
        return np.ones(size, np.float32)
    if isinstance(signs, RandomWords):
        return np.where(signs.words(0, size) >> np.uint32(31), np.float32(-1), np.float32(1))
    if isinstance(signs, str):
        if signs != "transformer_engine":
            raise ValueError(
                f"unknown signs {signs!r}; allowed: transformer_engine, an array, or RandomWords"
            )
        signs = TE_SIGNS
    found = real_array(signs, "signs")
    if found.shape != (size,):
        raise ValueError(f"signs of shape {found.shape} do not fit groups of {size} numbers")
    if not (np.abs(found.astype(np.float64)) == 1).all():
        raise ValueError("signs must be +1 and -1")
    return found.astype(np.float32)
