"""Scales found by trial: Four Over Six compares two, and EDEN corrects them by what was stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT64
from mcfsim.kernels.element.floats import NAN
from mcfsim.kernels.element.machine import Value
from mcfsim.rounding import Mode, Overflow, Rounding
from mcfsim.scaled.block_quantization import measures, of_each, shared_numbers
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.float32_rules import Float32Algorithm, Shared, overall
from mcfsim.scaled.formats import SMALLER_TOP
from mcfsim.scaled.rules import SATURATING, across, halved_sums
from mcfsim.scaled.scale_rules import FOUR_SIX, ScaleRule

Array = NDArray[Any]
#: How many numbers are summed at a time.
_SOME = 1 << 14
Singles = NDArray[np.float32]


def published_scales(
    parts: Sequence[Array], algorithm: Float32Algorithm, views: BlockViews, encode: np.float32 | None = None
) -> tuple[list[Shared], float | None]:
    """Return the scales of the blocks of each part and what goes with them, and the tensor scale.

    Parameters
    ----------
    parts : sequence of array of float32
        Whose last axis runs within a block.
    algorithm : Float32Algorithm
    views : BlockViews
    encode : float32, optional
        The factor of all numbers, in place of that of the rule ``current``.
    """
    found, fmt = [measures(part, algorithm) for part in parts], algorithm.format
    if encode is not None:
        return [_given(x, encode) for x in found], None
    amax = overall(found) if fmt.tensor_scale is not None else 0.0
    numbers = algorithm.both(amax)
    tensor_scale = None if fmt.tensor_scale is None else numbers[1]
    first = [shared_numbers(x, algorithm, numbers) for x in found]
    if fmt.rule not in FOUR_SIX:
        return first, tensor_scale
    expanded = replace(algorithm, expansion=1.5)
    wider = [shared_numbers(x, expanded, numbers) for x in found]
    given = zip(parts, first, wider, views.widths(parts), strict=True)
    return [
        _better(part, six, four, width, algorithm, amax) for part, six, four, width in given
    ], tensor_scale


def _given(found: NDArray[np.int32], encode: np.float32) -> Shared:
    finite = np.isfinite(found.view(np.float32))
    nan = np.float32(np.nan)
    return np.where(finite, np.float32(1) / encode, nan), np.where(finite, encode, nan)


# -- Four Over Six ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ElementErrors(Float32Algorithm):
    """Computes each element's error, or its square; the first number is the largest magnitude of all."""

    def encoded(self, x: Value, *shared: Value, word: Value | None = None) -> Value:
        """Return the error in binary32 of the element, which is rounded to nearest even."""
        scale, _, amax, _ = shared
        stored = super().encoded(x, *shared) * scale * amax.narrow()
        difference = stored / float(np.float32(self.top * SMALLER_TOP)) - x
        squared = self.format.rule is ScaleRule.FOUR_SIX_MSE
        return difference * difference if squared else abs(difference)


def _better(
    part: Array, six: Shared, four: Shared, width: int, algorithm: Float32Algorithm, amax: float
) -> Shared:
    """Return for each block the scale with the smaller error, and what goes with it; ties go to 6."""
    errors = [_errors(part, *shared, width, algorithm, amax) for shared in (six, four)]
    smaller = errors[1] < errors[0]
    return np.where(smaller, four[0], six[0]), np.where(smaller, four[1], six[1])


def _errors(
    part: Array, scale: Singles, by: Singles, width: int, algorithm: Float32Algorithm, amax: float
) -> Singles:
    """Return the sum of the errors of each block, in binary32; its rows have a width."""
    errors = of_each(part, (scale, by), ElementErrors(algorithm.format, SATURATING), (amax, 1.0))
    rows = errors.reshape(math.prod(scale.shape), part.shape[-1] // max(width, 1), width)
    return _by_some(lambda x: halved_sums(_from_left(x)), rows).reshape(scale.shape)


def _by_some(sums: Callable[..., Singles], *rows: Array) -> Singles:
    """Return one number for each row of arrays, a few rows at a time, which stay in cache."""
    found, some = np.empty(len(rows[0]), np.float32), max(1, _SOME * len(rows[0]) // max(rows[0].size, 1))
    with np.errstate(all="ignore"):
        for start in range(0, len(found), some):
            part = slice(start, start + some)
            found[part] = sums(*(x[part] for x in rows))
    return found


def _from_left(x: Singles) -> Singles:
    total = np.zeros(x.shape[:-1], np.float32)
    for each in across(x):
        total += each
    return total


# -- EDEN -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Quotients(Float32Algorithm):
    """Computes each element's quotient, not clipped; NaN where there is no scale."""

    def encoded(self, x: Value, *shared: Value, word: Value | None = None) -> Value:
        """Return the quotient in binary32."""
        by = shared[1]
        return by.equals(by).select(self.quotient(x, by), NAN)


def rounding_of_scales(rounding: Rounding) -> Rounding:
    """Return how scales are rounded, from how elements are."""
    return replace(rounding, mode=Mode.STOCHASTIC, overflow=Overflow.SATURATE)


def corrected_scales(
    parts: Sequence[Array],
    elements: Sequence[Array],
    found: Sequence[Shared],
    algorithm: Float32Algorithm,
    rounding: Rounding,
    words: Array,
    views: BlockViews,
) -> list[Singles]:
    """Return the scales of blocks, corrected by their group and rounded stochastically.

    Parameters
    ----------
    parts, elements : sequence of array
        Numbers and elements of blocks along the last axis; the axis before it counts the blocks.
    found : sequence of Shared
        Scales, and the divisors of numbers.
    algorithm : Float32Algorithm
    rounding : Rounding
        Of the scales.
    words : array
        One for each scale, in the shape of `BlockViews.scales_shape`.
    views : BlockViews
    """
    size, fmt = parts[0].shape[-1], algorithm.format
    assert isinstance(fmt.block, int)
    assert fmt.group is not None
    flat = []
    for part, element, shared in zip(parts, elements, found, strict=True):
        numbers = of_each(part, shared, Quotients(fmt, SATURATING))
        flat.append([_filled_up(x.astype(np.float32), 0, size - x.shape[-1]) for x in (numbers, element)])
    quotient, stored = (np.concatenate(x, axis=-2) for x in zip(*flat, strict=True))
    blocks = quotient.shape[-2]
    each = min(fmt.group // fmt.block, max(blocks, 1))
    groups = -(-blocks // each)
    shape, missing = (*quotient.shape[:-2], groups), groups * each - blocks
    rows = [_filled_up(_finite(x), missing, 0).reshape(-1, each * size) for x in (quotient, stored)]
    correction = _by_some(_correction, *rows).reshape(shape)
    with np.errstate(all="ignore"):
        scale = np.concatenate([scale for scale, _ in found], axis=-1)
        made = scale * np.repeat(correction, each, axis=-1)[..., :blocks]
    rounded = np.ascontiguousarray(made, np.float64)
    lying = np.ascontiguousarray(np.moveaxis(words, views.axis, -1)) if words.ndim else words
    get_kernel(fmt.scale, rounding, FLOAT64)(rounded.reshape(-1), rounded.reshape(-1), lying.reshape(-1))
    return np.split(rounded, np.cumsum([x.shape[-1] for x, _ in found])[:-1], axis=-1)


def _correction(quotient: Singles, stored: Singles) -> Singles:
    above, below = halved_sums(quotient * quotient), halved_sums(quotient * stored)
    # Quotients are infinite where the scale of the tensor has underflowed.
    return np.where((below == 0) | np.isinf(above), np.float32(1), above / below)


def _filled_up(x: Singles, blocks: int, elements: int) -> Singles:
    """Return blocks padded with `blocks` blocks of zeros, and each block padded with `elements` zeros."""
    if not (blocks or elements):
        return x
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, blocks), (0, elements)])


def _finite(x: Singles) -> Singles:
    """Return numbers with 0 in place of NaN, and the largest ones in place of infinities."""
    return x if np.isfinite(x).all() else np.nan_to_num(x)
