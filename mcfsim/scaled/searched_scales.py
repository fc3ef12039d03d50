"""Scales that are found by trying: Four Over Six compares two, EDEN corrects them by what was stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64
from mcfsim.rounding import Rounding
from mcfsim.scaled.block_quantization import filled
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import (
    SATURATING,
    SMALLER_TOP,
    Float32Text,
    Shared,
    measures,
    overall,
    quotients,
    shared_numbers,
)
from mcfsim.scaled.rules import halved_sums
from mcfsim.scaled.scale_rules import FOUR_SIX, ScaleRule

Array = NDArray[Any]
Singles = NDArray[np.float32]


def published_scales(
    parts: Sequence[Array], text: Float32Text, views: BlockViews, encode: np.float32 | None = None
) -> tuple[Shared, float | None]:
    """Return the scales of the blocks of each part and what goes with them, and the tensor scale.

    Parameters
    ----------
    parts : sequence of array of float32
        Whose last axis runs within a block.
    text : Float32Text
    views : BlockViews
    encode : float32, optional
        The number by which all are multiplied, in place of what the rule ``current`` says.
    """
    found, fmt = measures(parts, text), text.format
    if encode is not None:
        return [_given(x, encode) for x in found], None
    amax = overall(found) if fmt.tensor_scale is not None else 0.0
    numbers = text.both(amax)
    tensor_scale = None if fmt.tensor_scale is None else numbers[1]
    first = shared_numbers(found, text, numbers)
    if fmt.rule not in FOUR_SIX:
        return first, tensor_scale
    wider = shared_numbers(found, replace(text, expansion=1.5), numbers)
    given = zip(parts, first, wider, views.widths(parts), strict=True)
    return [_better(part, six, four, width, text, amax) for part, six, four, width in given], tensor_scale


def _given(found: NDArray[np.int32], encode: np.float32) -> tuple[Singles, Singles]:
    finite = np.isfinite(found.view(np.float32))
    nan = np.float32(np.nan)
    return np.where(finite, np.float32(1) / encode, nan), np.where(finite, encode, nan)


# -- Four Over Six ----------------------------------------------------------------------------------------
def _better(
    part: Array,
    six: tuple[Singles, Singles],
    four: tuple[Singles, Singles],
    width: int,
    text: Float32Text,
    amax: float,
) -> tuple[Singles, Singles]:
    """Return for each block the scale with the smaller error, and what goes with it; at a tie that of 6."""
    errors = [_errors(part, *shared, width, text, amax) for shared in (six, four)]
    smaller = errors[1] < errors[0]
    return np.where(smaller, four[0], six[0]), np.where(smaller, four[1], six[1])


def _errors(part: Array, scale: Singles, by: Singles, width: int, text: Float32Text, amax: float) -> Singles:
    """Return the sum of the errors of each block, in binary32; its rows have a width."""
    elements = filled(part, (scale, by), replace(text, rounding=SATURATING, expansion=1.0))
    if elements is None:
        elements = quotients(part, by, text).astype(np.float32)
        get_kernel(text.format.element, SATURATING, FLOAT32)(elements.reshape(-1), elements.reshape(-1))
    with np.errstate(all="ignore"):
        stored = elements * scale[..., np.newaxis] * np.float32(amax)
        difference = stored / np.float32(text.top * SMALLER_TOP) - part
        squared = text.format.rule is ScaleRule.FOUR_SIX_MSE
        errors = difference * difference if squared else np.abs(difference)
        rows = errors.reshape(*part.shape[:-1], part.shape[-1] // max(width, 1), width)
        return halved_sums(_from_left(rows))


def _from_left(x: Singles) -> Singles:
    total = np.zeros(x.shape[:-1], np.float32)
    for place in range(x.shape[-1]):
        total = total + x[..., place]
    return total


# -- EDEN -------------------------------------------------------------------------------------------------
def corrected_scales(
    parts: Sequence[Array],
    elements: Sequence[Array],
    found: Shared,
    text: Float32Text,
    rounding: Rounding,
    words: Array,
    views: BlockViews,
) -> list[Singles]:
    """Return the scales of blocks, corrected by their group and rounded stochastically.

    Parameters
    ----------
    parts, elements : sequence of array
        Numbers and elements of blocks along the last axis, the axis before counts the blocks.
    found : Shared
        Scales, and by what numbers were divided.
    text : Float32Text
    rounding : Rounding
        Of the scales.
    words : array
        One for each scale, in the shape of `BlockViews.scales_shape`.
    views : BlockViews
    """
    size, fmt = text.format.block, text.format
    assert isinstance(size, int)
    assert fmt.group is not None
    flat = []
    for part, element, (_, by) in zip(parts, elements, found, strict=True):
        numbers = quotients(part, by, text, clipped=False)
        flat.append([_filled_up(x.astype(np.float32), 0, size - x.shape[-1]) for x in (numbers, element)])
    quotient, stored = (np.concatenate(x, axis=-2) for x in zip(*flat, strict=True))
    each, blocks = fmt.group // size, quotient.shape[-2]
    groups = -(-blocks // each)
    shape, missing = (*quotient.shape[:-2], groups, fmt.group), groups * each - blocks
    quotient, stored = (_filled_up(_finite(x), missing, 0).reshape(shape) for x in (quotient, stored))
    with np.errstate(all="ignore"):
        above, below = halved_sums(quotient * quotient), halved_sums(quotient * stored)
        correction = np.where(below == 0, np.float32(1), above / below)
        scale = np.concatenate([scale for scale, _ in found], axis=-1)
        made = scale * np.repeat(correction, each, axis=-1)[..., :blocks]
    rounded = np.ascontiguousarray(made, np.float64)
    lying = np.ascontiguousarray(np.moveaxis(words, views.axis, -1)) if words.ndim else words
    get_kernel(fmt.scale, rounding, FLOAT64)(rounded.reshape(-1), rounded.reshape(-1), lying.reshape(-1))
    return np.split(rounded, np.cumsum([x.shape[-1] for x, _ in found])[:-1], axis=-1)


def _filled_up(x: Singles, blocks: int, elements: int) -> Singles:
    """Return blocks of numbers with so many blocks of zeros more, and so many zeros more in each."""
    if not (blocks or elements):
        return x
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, blocks), (0, elements)])


def _finite(x: Singles) -> Singles:
    """Return numbers with 0 in place of NaN, and the largest ones in place of infinities."""
    return x if np.isfinite(x).all() else np.nan_to_num(x)
