"""The scales of blocks, by rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.blocks import for_each_block
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.kernels.codes_by_kind import power_of_two
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.rounding import Overflow, Rounding
from mcfsim.scaled.formats import ScaledFormat, ScaleRule
from mcfsim.scaled.mean import sum_of_magnitudes
from mcfsim.scaled.quotient import Floats, factors, quotient

Array = NDArray[Any]
OnBlock = Callable[[int, Floats, Floats], None]

#: Means below this one are taken for it by the rule ``absmean``.
LEAST_MEAN = Fraction(1, 100_000)
_NEAREST = Rounding(overflow=Overflow.SATURATE)
#: The rules whose scales are powers of two.
POWERS = (ScaleRule.FLOOR, ScaleRule.ROUND_UP, ScaleRule.EVEN)


def scales(parts: Sequence[Array], fmt: ScaledFormat) -> tuple[Array, float | None]:
    """Return the scales of blocks, and that of the tensor.

    Parameters
    ----------
    parts : sequence of array
        Numbers, whose last axis runs within a block; all axes do if the whole tensor shares a scale.
    fmt : ScaledFormat
        Format and rule.

    Returns
    -------
    array, float or None
        Scales in the carrier of their format: one for each block, the parts' one after the other along the
        last axis. The scale of a block with a NaN or an infinity is NaN. The tensor scale leaves these out.

    Raises
    ------
    ValueError
        If the rule is ``max`` and a block without NaN has no positive number.
    """
    if fmt.rule is ScaleRule.ABSMEAN:
        return _joined([_by_mean(part, fmt) for part in parts], fmt), None
    largest = _joined([_largest(part, fmt) for part in parts], fmt)
    if fmt.rule is ScaleRule.MAX and (largest == 0).any():
        index = tuple(int(i) for i in np.argwhere(largest == 0)[0])
        raise ValueError(
            f"rule 'max' needs a positive number in each block; block {index} of {largest.shape} has none"
        )
    tensor_scale = None
    if fmt.rule in POWERS:
        on_block = _powers(fmt)
    else:
        divisor = float(fmt.element.max)
        if fmt.tensor_scale is not None:
            overall = np.fmax.reduce(largest, axis=None, initial=0.0)  # of blocks without NaN
            to_tensor_scale = _quotients(divisor * float(fmt.scale.max), fmt.tensor_scale)
            (found,) = for_each_block(to_tensor_scale, [np.array([overall])], FLOAT64, 1)
            tensor_scale = float(found[0])
            divisor *= tensor_scale
        on_block = _quotients(divisor, fmt.scale)
    result = np.empty(largest.shape, carrier_of(fmt.scale))
    for_each_block(on_block, [largest], FLOAT64, 1, out=result)
    return result, tensor_scale


def _joined(found: Sequence[Array], fmt: ScaledFormat) -> Array:
    return found[0] if fmt.block is None else np.concatenate(found, axis=-1)


def _largest(part: Array, fmt: ScaledFormat) -> Array:
    """Return the largest magnitude, or number, of each block; NaN if it holds a NaN or an infinity."""
    within = None if fmt.block is None else -1
    top = np.asarray(part.max(axis=within, initial=0))
    bottom = np.asarray(part.min(axis=within, initial=0))
    amax: Array = np.maximum(top, -bottom)
    largest = top if fmt.rule is ScaleRule.MAX else amax
    return np.where(np.isfinite(amax), largest, amax.dtype.type("nan"))


def _powers(fmt: ScaledFormat) -> OnBlock:
    """Return the function of a block of largest magnitudes that gives powers of two."""
    top, top_exponent = math.frexp(float(fmt.element.max))
    # Whether the exponent is one more depends on the significand alone, in [1/2, 1) here.
    carried = {
        ScaleRule.FLOOR: 1.0,
        ScaleRule.ROUND_UP: math.nextafter(top, 1.0),
        ScaleRule.EVEN: 1 - 2.0 ** -(fmt.top_precision + 1),
    }[fmt.rule]
    lowest = math.frexp(float(fmt.scale.smallest_subnormal))[1] - 1
    highest = math.frexp(float(fmt.scale.max))[1] - 1

    def on_block(start: int, amax: Floats, out: Floats) -> None:
        significand, exponent = np.frexp(amax)
        exponent = exponent - top_exponent + (significand >= carried)
        exponent = np.where(amax > 0, np.clip(exponent, lowest, highest), lowest)
        np.copyto(out, np.where(np.isnan(amax), np.nan, power_of_two(exponent)))

    return on_block


def _quotients(divisor: float, target: Format) -> OnBlock:
    """Return the function of a block of numbers that divides them and rounds to nearest even, saturating."""
    kernel = get_kernel(target, _NEAREST, FLOAT64)
    power, significand = factors(divisor)
    least = 0.0 if target.zero else float(target.smallest_normal)

    def on_block(start: int, numbers: Floats, out: Floats) -> None:
        kernel(np.maximum(quotient(numbers, power, significand), least), out)

    return on_block


def _by_mean(part: Array, fmt: ScaledFormat) -> Array:
    """Return the scale of each block by the exact mean of its magnitudes."""
    within = 0 if fmt.block is None else part.ndim - 1
    result = np.empty(part.shape[:within], carrier_of(fmt.scale))
    for index in np.ndindex(result.shape):
        block = part[index]
        total = sum_of_magnitudes(block)
        if total is None:
            result[index] = np.nan
            continue
        mean = total / block.size if block.size else Fraction(0)
        result[index] = round_to(max(mean, LEAST_MEAN) / fmt.element.max, fmt.scale, _NEAREST)
    return result
