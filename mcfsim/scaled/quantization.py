"""Quantization of arrays into scaled formats and back, and the same for groups in compiled steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.checks import as_array, check_int, real_array
from mcfsim.codec import encode
from mcfsim.compile.group_algorithm import GroupAlgorithm
from mcfsim.convert import word_source
from mcfsim.formats import FORMATS, Format
from mcfsim.kernels.blocks import for_each_block, get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of, holds, is_floating
from mcfsim.kernels.element.codes import decode_element, encode_element, has_codes
from mcfsim.kernels.element.floats import INFINITY, NAN
from mcfsim.kernels.element.machine import F32, Value
from mcfsim.kernels.element.operations import Into, change_element
from mcfsim.rounding import Overflow, Rounding, get_rounding
from mcfsim.scaled.block_quantization import RandomSource, decoded, encoded, filled, quotient_element
from mcfsim.scaled.block_views import BlockViews, axis_of
from mcfsim.scaled.float32_rules import Float32Algorithm, quotients
from mcfsim.scaled.formats import ScaledFormat, get_scaled_format
from mcfsim.scaled.rules import SATURATING, Floats, factors, quotient, scales
from mcfsim.scaled.scale_rules import POWERS, ScaleRule
from mcfsim.scaled.searched_scales import corrected_scales, published_scales, rounding_of_scales

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Scaled:
    """An array in a scaled format.

    Parameters
    ----------
    format : ScaledFormat
        The format.
    elements : array
        Values of the element format in its carrier, in the shape of the array. In a block whose scale is NaN
        they are NaN, or zero if the element format has no NaN.
    scale : array
        Values of the scale format in its carrier. The shape is that of the array, with the number of blocks
        in place of the length of each axis along which they lie (tiles: the last two); it is ``()`` if the
        whole tensor shares a scale.
    tensor_scale : float or None
        The scale of the tensor, if the format has one.
    axis : int
        The axis along which blocks lie, unless they are tiles.
    """

    format: ScaledFormat
    elements: Array
    scale: Array
    tensor_scale: float | None
    axis: int

    def __post_init__(self) -> None:
        if not (isinstance(self.elements, np.ndarray) and isinstance(self.scale, np.ndarray)):
            kinds = f"{type(self.elements).__name__} and {type(self.scale).__name__}"
            raise TypeError(f"elements and scale are arrays, not {kinds}")
        check_int("axis", self.axis)
        if not 0 <= self.axis < max(1, self.elements.ndim):
            raise ValueError(f"axis = {self.axis} does not exist in shape {self.shape}, counted from 0")
        if (self.tensor_scale is None) is not (self.format.tensor_scale is None):
            one = "none" if self.format.tensor_scale is None else "one"
            raise ValueError(f"tensor_scale = {self.tensor_scale}, and the format {self.format} has {one}")
        shape = BlockViews(self.shape, self.format.block, self.axis).scales_shape
        if self.scale.shape != shape:
            raise ValueError(
                f"scales of elements of shape {self.shape} have shape {shape}, not {self.scale.shape}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.elements.shape

    @property
    def codes(self) -> Array:
        """Codes of the elements, one per item, in the shortest unsigned dtype.

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
        found = decoded(self.elements, self.scale, self.format, self.tensor_scale, self.axis)
        if found is not None:
            return found
        result = np.empty(self.shape, self.format.carrier)
        tensor_scale = 1.0 if self.tensor_scale is None else self.tensor_scale

        def on_block(start: int, elements: Floats, scale: Floats, out: Floats) -> None:
            np.multiply(elements, scale * tensor_scale, out=out)

        for part, scale, target in self._parts(self.elements, self.scale, result):
            for_each_block(on_block, [part, scale], FLOAT64, 1, out=target)
        return result

    def in_binary32(self) -> NDArray[np.float32]:
        """Return the numbers, each rounded once to float32, to nearest even.

        In most formats elements times scales of blocks are numbers of float32, and products are made there.
        """
        fmt, tensor_scale = self.format, np.float32(1 if self.tensor_scale is None else self.tensor_scale)
        with np.errstate(all="ignore"):
            scales = self.scale.astype(np.float32)
            held = np.array_equal(scales, self.scale, equal_nan=True) and self.elements.dtype == np.float32
            once = self.tensor_scale is None or (
                self.tensor_scale == float(tensor_scale) and holds(FLOAT32, fmt.block_values)
            )
            if not (held and once):
                return self.dequantize().astype(np.float32)
            result = np.empty(self.shape, np.float32)
            for part, scale, target in self._parts(self.elements, scales, result):
                np.multiply(part, scale, out=target)
            if self.tensor_scale is not None:
                result *= tensor_scale
        return result

    def inside(self, x: ArrayLike) -> Array:
        """Return where the magnitudes of the quantised array's quotients are below the largest element.

        Magnitudes are compared exactly. Gradients pass there: this is QuEST's mask, for the rule ``quest``.

        Raises
        ------
        TypeError
            If x is not an array of real numbers.
        ValueError
            If x has another shape.
        """
        return self._where(x, lambda part, scale: np.abs(part) < scale * float(self.format.element.max))

    def clipped(self, x: ArrayLike) -> Array:
        """Return where the quantised array's quotients lie beyond the elements of either sign.

        Quotients are compared exactly; where the scale is NaN, nothing is clipped.

        Raises
        ------
        TypeError
            If x is not an array of real numbers.
        ValueError
            If x has another shape.
        """
        least, largest = float(self.format.element.lowest), float(self.format.element.max)
        return self._where(x, lambda part, scale: (part > scale * largest) | (part < scale * least))

    def _where(self, x: ArrayLike, compare: Callable[[Floats, Floats], Array]) -> Array:
        array = real_array(x)
        if array.shape != self.shape:
            raise ValueError(f"x of shape {array.shape} must have the quantised array's shape, {self.shape}")
        result = np.empty(self.shape, np.bool_)
        by = 1.0 if self.tensor_scale is None else self.tensor_scale
        with np.errstate(invalid="ignore"):  # of signalling NaN
            for part, scale, target in self._parts(array, self.scale, result):
                target[...] = compare(part.astype(np.float64), scale.astype(np.float64) * by)
        return result

    def _parts(self, x: Array, scale: Array, result: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield parts of an array of this shape, their scales, and parts of a result, which are then kept."""
        views = BlockViews(self.shape, self.format.block, self.axis)
        targets = views.parts(result)
        yield from zip(views.parts(x), views.shared(scale), targets, strict=True)
        views.put(targets, result)


def quantize(
    x: ArrayLike,
    fmt: ScaledFormat | str,
    *,
    axis: int = -1,
    rounding: Rounding | str = "nearest_even",
    rule: ScaleRule | str | None = None,
    random: RandomSource = None,
) -> Scaled:
    """Quantise an array: choose a scale for each block, then round each exact ``x / scale`` once.

    Parameters
    ----------
    x : array_like of a NumPy or ml_dtypes floating dtype of at most 64 bits
        Any shape, layout and byte order; of at most 32 bits by rules that compute in binary32. A number
        counts as an array of one element.
    fmt : ScaledFormat or str
        The format, or a name of `SCALED`.
    axis : int, optional
        The axis along which neighbours share a scale; ignored if a tile or the whole tensor shares one.
    rounding : str or Rounding, optional
        How elements are rounded. With the name of a mode, overflow saturates; a `Rounding` has its own
        policy, but rules that compute in binary32 clip quotients. Scales are rounded as their rule says.
    rule : str, optional
        A `ScaleRule` in place of the format's own.
    random : RandomWords or array of uint32 or uint16, optional
        For stochastic rounding: one word for each element, or a stream. From a stream an element takes the
        word of its index in row-major order. For the rule ``eden``, words are for the scales instead.

    Returns
    -------
    Scaled
        Elements and scales.

    Notes
    -----
    A block that holds a NaN or an infinity has scale NaN, and all its numbers become NaN. Other blocks are
    not affected, and a tensor scale depends on them alone. If a scale is zero, because it or the tensor's
    underflowed, all numbers are zero, and by rules with exact quotients all elements. Zeros keep their sign
    in element formats that have both zeros.

    Raises
    ------
    TypeError
        If x is not an array of such a dtype, or is masked, or the axis is not an int.
    ValueError
        If a name is unknown, stochastic rounding has no words, the rule does not apply (see `ScaleRule`), or
        blocks are tiles and x has fewer than two axes.
    UnsupportedFormatError
        If quotients of elements cannot be rounded once with that many random bits.
    numpy.exceptions.AxisError
        If there is no such axis.

    Examples
    --------
    >>> quantize([1.0, 2.9, -7.0, 0.2], "mxfp4").dequantize()
    array([ 1.,  3., -6.,  0.])
    """
    fmt, rounding, array, axis = prepared(x, fmt, axis, rounding, rule)
    if (found := encoded(array, fmt, rounding, axis, random)) is not None:
        return Scaled(fmt, *found, axis)
    return quantized(array, fmt, axis, rounding, random)


def prepared(
    x: ArrayLike, fmt: ScaledFormat | str, axis: int, rounding: Rounding | str, rule: ScaleRule | str | None
) -> tuple[ScaledFormat, Rounding, Array, int]:
    """Return the arguments of `quantize`, checked: the format, the rounding, the array, and the axis."""
    fmt = get_scaled_format(fmt)
    if rule is not None:
        fmt = fmt.with_rule(rule)
    if not isinstance(rounding, Rounding):
        rounding = get_rounding(rounding, Overflow.SATURATE)
    array = as_array(x)
    if not is_floating(array.dtype):
        raise TypeError(f"x of dtype {array.dtype} is no array of floating-point numbers of at most 64 bits")
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    if fmt.rule.in_binary32:
        if array.dtype.itemsize > 4:
            raise TypeError(f"rule '{fmt.rule}' computes in binary32; x of dtype {array.dtype} is longer")
        array = array.astype(np.float32, copy=False)  # native
    return fmt, rounding, array, axis_of(axis, max(array.ndim, 1))


def quantized(
    array: Array,
    fmt: ScaledFormat,
    axis: int,
    rounding: Rounding,
    random: RandomSource,
    encode: np.float32 | None = None,
) -> Scaled:
    """Return an array quantised by NumPy; arguments as `prepared` returns them.

    By the rule ``current``, `encode` may be the number by which all numbers are multiplied.
    """
    views = BlockViews(array.shape, fmt.block, axis)
    if fmt.rule.exact and fmt.element.precision + rounding.guard_bits > 53 and fmt.rule not in POWERS:
        raise UnsupportedFormatError(
            f"{rounding.random_bits} random bits are more than binary64 holds of a quotient beyond the "
            f"{fmt.element.precision} of {fmt.element}"
        )
    if fmt.rule is ScaleRule.EDEN and rounding.stochastic:
        raise ValueError("rule 'eden' rounds scales stochastically, and elements to nearest or directed")
    drawing = rounding_of_scales(rounding) if fmt.rule is ScaleRule.EDEN else rounding
    parts = views.parts(array)
    elements = np.empty(array.shape, carrier_of(fmt.element))
    kernel = get_kernel(fmt.element, rounding, FLOAT64)

    # All at once: blocks along an axis do not take them in the order of the indices.
    shape = array.shape if fmt.rule is not ScaleRule.EDEN else views.scales_shape
    drawn = word_source(random, drawing, shape)(0, math.prod(shape))
    words = None if drawn is None else drawn.reshape(shape)
    draws = [views.parts(words)] if words is not None and rounding.stochastic else []
    targets = views.parts(elements)

    def fill(place: int, divide: Callable[..., Floats], *operands: Array) -> None:
        def on_block(start: int, *given: Floats) -> None:
            *numbers, out = given
            word = numbers.pop().astype(words.dtype) if draws and words is not None else None
            exact = divide(*numbers)
            kernel(exact, exact, word)
            np.copyto(out, exact if fmt.element.has_nan else np.where(np.isnan(exact), 0.0, exact))

        given = [*operands, *(item[place] for item in draws)]
        for_each_block(on_block, given, FLOAT64, 1, out=targets[place])

    if fmt.rule.exact:
        scale, tensor_scale = scales(parts, fmt, views)
        for place, by in enumerate(views.shared(scale)):
            divisor = by if tensor_scale is None else by * FLOAT64.type(tensor_scale)
            fill(place, quotient, parts[place], *factors(divisor))
    else:
        algorithm = Float32Algorithm(fmt, rounding)
        found, tensor_scale = published_scales(parts, algorithm, views, encode)
        for place, shared in enumerate(found):
            made = filled(parts[place], shared, algorithm, draws[0][place] if draws else None)
            if made is None:
                fill(place, np.copy, quotients(parts[place], shared[1], algorithm))
            else:
                np.copyto(targets[place], made)
        by_part = [scale for scale, _ in found]
        if fmt.rule is ScaleRule.EDEN:
            assert words is not None
            by_part = corrected_scales(parts, targets, found, algorithm, drawing, words, views)
        scale = views.joined(by_part).astype(carrier_of(fmt.scale), copy=False)
    views.put(targets, elements)
    return Scaled(fmt, elements, scale, tensor_scale, axis)


# -- groups in compiled steps -----------------------------------------------------------------------------
_FLOAT32 = FORMATS["float32"]


@dataclass(frozen=True)
class LargestMagnitude(GroupAlgorithm):
    """A group algorithm whose scale is the group's largest magnitude over the format's largest number.

    Parameters
    ----------
    element : Format
        Format of the elements, at most a byte each, with zero and NaN.
    format : Format
        Format of the numbers, whose values are binary32 numbers.

    Notes
    -----
    Quotients are computed in binary64 and rounded once more. Let x and s be numbers of 24 bits and t a tie of
    p + 1 bits. Either ``x / s`` is t itself, or ``x - t s`` is a multiple of the last bit of x or of ``t s``,
    and no less than 2^-(p + 26) of x. So binary64 rounds no other quotient onto a tie. The same holds for the
    scale, a quotient of 24 bits whose divisor is the largest element.
    """

    element: Format
    format: Format

    #: The scale.
    shared = 1

    @classmethod
    def of(cls, kept: ScaledFormat, fmt: Format) -> LargestMagnitude | None:
        """Return the algorithm of a scaled format, or None if the format is not of this kind."""
        element = kept.element
        plain = kept.rule is ScaleRule.ABSMAX and kept.scale == _FLOAT32 and kept.tensor_scale is None
        served = has_codes(element) and element.bits <= 8 and element.zero
        return cls(element, fmt) if plain and served and isinstance(kept.block, int) else None

    def shares(self, greatest: Value, *least: Value) -> tuple[Value, ...]:
        """Return the scale, or NaN if a number of the group is not finite."""
        largest = greatest.as_number()
        largest = (largest < INFINITY).select(largest, NAN)
        by = largest.widen() / float(self.element.max)
        return (change_element("round", by, Into(_FLOAT32, SATURATING, F32)),)

    def encoded(self, x: Value, *shared: Value) -> Value:
        """Return the code of the quotient, or of zero if the scale is zero."""
        (scale,) = shared
        quotient = quotient_element(x, scale.widen())
        element = change_element("round", quotient, Into(self.element, SATURATING, F32))
        return encode_element(element, self.element)

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the element times the scale, rounded to nearest even."""
        element, (scale,) = decode_element(code, self.element, F32), shared
        if self.format == _FLOAT32:
            return element * scale
        return change_element("round", element.widen() * scale.widen(), Into(self.format, Rounding(), F32))
