"""Quantising an array into a scaled format, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks.arguments import as_array, check_int
from mcfsim.codec import encode
from mcfsim.convert import word_source
from mcfsim.kernels.blocks import for_each_block
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.random import RandomWords, Words
from mcfsim.rounding import Overflow, Rounding, get_rounding
from mcfsim.scaled.formats import ScaledFormat, ScaleRule, get_scaled_format
from mcfsim.scaled.quotient import Floats, factors, quotient
from mcfsim.scaled.rules import POWERS, scales

Array = NDArray[Any]
RandomSource = RandomWords | NDArray[np.unsignedinteger[Any]] | None


@dataclass(frozen=True, eq=False)
class Scaled:
    """An array in a scaled format.

    Parameters
    ----------
    format : ScaledFormat
        The format.
    elements : array
        Values of the element format in its carrier, of the shape of the array. In a block whose scale is NaN
        they are NaN, or zero if the element format has no NaN.
    scale : array
        Values of the scale format in its carrier: of the shape of the array with the number of blocks in
        place of the length of the axis; of shape ``()`` if the whole tensor shares a scale.
    tensor_scale : float or None
        The scale of the tensor, if the format has one.
    axis : int
        Along which blocks lie.
    """

    format: ScaledFormat
    elements: Array
    scale: Array
    tensor_scale: float | None
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    @property
    def codes(self) -> Array:
        """Codes of the elements, one an item, in the shortest unsigned dtype.

        Raises
        ------
        ValueError
            If an element is NaN by overflow and its format has no code for it.
        """
        return encode(self.elements, self.format.element)

    @property
    def scale_codes(self) -> Array:
        """Codes of the scales, in the shortest unsigned dtype."""
        return encode(self.scale, self.format.scale)

    def dequantize(self) -> Array:
        """Return the numbers, exactly: each element times its scales.

        The dtype is `ScaledFormat.carrier`. A NaN scale makes every number of its block NaN, and a scale of
        zero makes it zero. Zeros keep the sign of their element.
        """
        result = np.empty(self.shape, self.format.carrier)
        tensor_scale = 1.0 if self.tensor_scale is None else self.tensor_scale

        def on_block(start: int, elements: Floats, scale: Floats, out: Floats) -> None:
            np.multiply(elements, scale * tensor_scale, out=out)

        layout = self.format.block, self.axis
        views, targets = in_blocks(self.elements, *layout), in_blocks(result, *layout)
        for view, scale, target in zip(views, shared(self.scale, views, *layout), targets, strict=True):
            for_each_block(on_block, [view, scale], FLOAT64, 1, out=target)
        return result


def quantize(
    x: ArrayLike,
    fmt: ScaledFormat | str,
    *,
    axis: int = -1,
    rounding: Rounding | str = "nearest_even",
    rule: ScaleRule | str | None = None,
    random: RandomSource = None,
) -> Scaled:
    """Quantise an array: a scale for each block, and each ``x / scale`` rounded once, exactly.

    Parameters
    ----------
    x : array_like of float32 or float64
        Any shape, layout and byte order. A number counts as an array of one element.
    fmt : ScaledFormat or str
        The format, or a name of `SCALED`.
    axis : int, optional
        Along which neighbours share a scale; without effect if the whole tensor shares one.
    rounding : str or Rounding, optional
        How elements are rounded. By the name of a mode, overflow saturates; a `Rounding` has its own policy.
        Scales are rounded as their rule says.
    rule : str, optional
        A `ScaleRule` in place of the format's own.
    random : RandomWords or array of uint32 or uint16, optional
        For stochastic rounding: a stream, whose word of an element is that of its index in row-major order,
        or one word for each element.

    Returns
    -------
    Scaled
        Elements and scales.

    Notes
    -----
    The scale of a block that holds a NaN or an infinity is NaN, and so is then each of its numbers; other
    blocks are not affected, and a tensor scale is made from them alone. Where a scale is zero, because
    it or the tensor's underflowed, all elements are zero. Zeros keep their sign in element formats with both.

    Raises
    ------
    TypeError
        If x is no array of float32 or float64, or is masked, or the axis is no int.
    ValueError
        If a name is unknown, stochastic rounding has no words, or the rule does not apply, see `ScaleRule`.
    UnsupportedFormatError
        If quotients of elements cannot be rounded once with so many random bits.
    numpy.exceptions.AxisError
        If there is no such axis.

    Examples
    --------
    >>> quantize([1.0, 2.9, -7.0, 0.2], "mxfp4").dequantize()
    array([ 1.,  3., -6.,  0.])
    """
    fmt = get_scaled_format(fmt)
    if rule is not None:
        fmt = fmt.with_rule(rule)
    if not isinstance(rounding, Rounding):
        rounding = get_rounding(rounding, Overflow.SATURATE)
    array = as_array(x)
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise TypeError(
            f"x of dtype {array.dtype} is no array of float32 or float64; convert it exactly first"
        )
    check_int("axis", axis)
    dimensions = max(array.ndim, 1)
    if not -dimensions <= axis < dimensions:
        raise np.exceptions.AxisError(axis, dimensions)
    axis %= dimensions
    views = in_blocks(array, fmt.block, axis)
    scale, tensor_scale = scales(views, fmt)
    elements = np.empty(array.shape, carrier_of(fmt.element))
    if array.ndim == 0:
        scale = scale.reshape(())
    elif fmt.block is not None:
        scale = np.moveaxis(scale, -1, axis)
    if fmt.element.precision + rounding.guard_bits > 53 and fmt.rule not in POWERS:
        raise UnsupportedFormatError(
            f"{rounding.random_bits} random bits are more than binary64 holds of a quotient beyond the "
            f"{fmt.element.precision} of {fmt.element}"
        )
    kernel = get_kernel(fmt.element, rounding, FLOAT64)
    words = _words(random, rounding, array.shape)

    def on_block(start: int, numbers: Floats, power: Floats, significand: Floats, *rest: Floats) -> None:
        *drawn, out = rest
        exact = quotient(numbers, power, significand)
        kernel(exact, exact, drawn[0].astype(words[0].dtype) if drawn else None)
        if not fmt.element.has_nan:
            np.copyto(exact, 0.0, where=np.isnan(exact))
        np.copyto(out, exact)

    targets = in_blocks(elements, fmt.block, axis)
    draws = [in_blocks(item, fmt.block, axis) for item in words]
    for place, by in enumerate(shared(scale, views, fmt.block, axis)):
        divisor = by if tensor_scale is None else by * FLOAT64.type(tensor_scale)
        operands = [views[place], *factors(divisor), *(item[place] for item in draws)]
        for_each_block(on_block, operands, FLOAT64, 1, out=targets[place])
    return Scaled(fmt, elements, scale, tensor_scale, axis)


def _words(random: RandomSource, rounding: Rounding, shape: tuple[int, ...]) -> list[Words]:
    """Return the random words of all elements, in a list that is empty if none are needed.

    They are made at once, since blocks along an axis take them in another order than that of their indices.
    """
    draw = word_source(random, rounding, shape)
    words = draw(0, math.prod(shape))
    return [] if words is None else [words.reshape(shape)]


# -- blocks ----------------------------------------------------------------------------------------------
def in_blocks(array: Array, block: int | Literal["axis"] | None, axis: int) -> list[Array]:
    """Return an array as views whose last axis runs within a block: the full blocks, then the one left over.

    The axis before counts the blocks. If all elements are one block, the array is its own and only view.
    """
    array = array.reshape(1) if array.ndim == 0 else array
    if block is None:
        return [array]
    rows = np.moveaxis(array, axis, -1)
    length = rows.shape[-1]
    size = max(length, 1) if block == "axis" else block
    count, rest = divmod(length, size)
    full = rows[..., : count * size].reshape(*rows.shape[:-1], count, size)  # a view: one axis is split
    return [full, rows[..., np.newaxis, count * size :]] if rest else [full]


def shared(
    scale: Array, views: Sequence[Array], block: int | Literal["axis"] | None, axis: int
) -> list[Array]:
    """Return scales as views that broadcast with those of the elements."""
    if block is None:
        return [scale.reshape(1)]
    rows = np.moveaxis(scale.reshape(1) if scale.ndim == 0 else scale, axis, -1)[..., np.newaxis]
    ends = accumulate(view.shape[-2] for view in views)
    return np.split(rows, list(ends)[:-1], axis=-2)
