"""Scales of blocks by each rule, exact means of magnitudes, and quotients by a scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels import native
from mcfsim.kernels.blocks import for_each_block, get_kernel
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.rounding import Overflow, Rounding
from mcfsim.scaled.formats import ScaledFormat, ScaleRule

# -- exact sums, from which a mean is rounded once --------------------------------------------------------
#: Significands of binary64 are summed in two halves; the sum of each over a block is exact in binary64.
_HALF, _AT_ONCE = 27, 2**15
_LEAST_EXPONENT = -1073  # of the smallest subnormal number, as frexp returns it
_EXPONENTS = 1024 - _LEAST_EXPONENT + 1


def sum_of_magnitudes(x: NDArray[Any]) -> Fraction | None:
    """Return the exact sum of the magnitudes of float32 or float64 numbers; None if one is not finite."""
    halves = np.zeros((2, _EXPONENTS), dtype=np.int64)
    numbers = x.reshape(-1)
    for start in range(0, numbers.size, _AT_ONCE):
        block = numbers[start : start + _AT_ONCE].astype(np.float64)
        if not np.isfinite(block).all():
            return None
        significand, exponent = np.frexp(np.abs(block))
        integers = (significand * 2.0**53).astype(np.int64)
        place = exponent - _LEAST_EXPONENT
        parts = integers >> _HALF, integers & (2**_HALF - 1)
        for total, part in zip(halves, parts, strict=True):
            total += np.bincount(place, weights=part, minlength=_EXPONENTS).astype(np.int64)
    quanta = 0
    for shift in np.flatnonzero(halves.any(axis=0)).tolist():
        high, low = halves[:, shift].tolist()
        quanta += ((high << _HALF) + low) << shift
    return Fraction(quanta) * Fraction(2) ** (_LEAST_EXPONENT - 53)


# -- quotients by scales ----------------------------------------------------------------------------------
Floats = NDArray[np.float64]

# Scales lie between 2**-200 and 2**200. A quotient above 2**300 is far beyond the largest number of every
# element format; one below 2**-300 is too small for random bits to resolve beside the smallest number. So
# clipping operands to these limits changes no result, and between them no residual underflows.
_SMALL, _LARGE = 2.0**-500, 2.0**500


def factors(scale: ArrayLike) -> tuple[Floats, Floats]:
    """Split a scale into a power of two and a significand: ``x / scale`` is ``x * power / significand``.

    The significand is in [1, 2). A scale of zero gives a power of zero, so the quotient is a zero with the
    sign of x. A NaN scale gives NaN.
    """
    scale = np.asarray(scale, dtype=np.float64)
    half, exponent = np.frexp(scale)
    positive = scale > 0
    power = np.ldexp(1.0, np.where(positive, 1 - exponent, 0))
    return np.where(positive, power, scale), np.where(positive, 2 * half, 1.0)


def quotient(x: Floats, power: Floats, significand: Floats) -> Floats:
    """Return ``x * power / significand`` rounded to odd in binary64, in a new array."""
    magnitude = np.abs(x)
    if magnitude.size and not (magnitude.max() <= _LARGE and magnitude.min() >= _SMALL):
        nonzero = np.clip(magnitude, _SMALL, _LARGE)
        x = np.copysign(np.where(magnitude == 0, magnitude, nonzero), x)
    scaled = x * power
    if (significand == 1).all():
        return scaled
    return native.make_odd(*native.div(scaled, significand))


# -- the rules --------------------------------------------------------------------------------------------
Array = NDArray[Any]
OnBlock = Callable[[int, Floats, Floats], None]

#: The rule ``absmean`` replaces smaller means by this one.
LEAST_MEAN = Fraction(1, 100_000)
_NEAREST = Rounding(overflow=Overflow.SATURATE)
#: The rules whose scales are powers of two.
POWERS = (ScaleRule.FLOOR, ScaleRule.ROUND_UP, ScaleRule.EVEN)


def scales(parts: Sequence[Array], fmt: ScaledFormat) -> tuple[Array, float | None]:
    """Return the scale of each block, and the tensor scale if the format has one.

    Parameters
    ----------
    parts : sequence of array
        Arrays whose last axis runs within a block; all axes do if the whole tensor shares a scale.
    fmt : ScaledFormat
        Format and rule.

    Returns
    -------
    array, float or None
        Scales in the carrier of their format, one for each block; those of successive parts follow each other
        along the last axis. A block with a NaN or an infinity has scale NaN; the tensor scale ignores it.

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
        divisor, tensor_scale = divisors(largest, fmt)
        on_block = _quotients(divisor, fmt.scale)
    result = np.empty(largest.shape, carrier_of(fmt.scale))
    for_each_block(on_block, [largest], FLOAT64, 1, out=result)
    return result, tensor_scale


def divisors(largest: Array, fmt: ScaledFormat) -> tuple[float, float | None]:
    """Return what largest magnitudes of blocks are divided by, and the tensor scale if the format has one."""
    divisor = float(fmt.element.max)
    if fmt.tensor_scale is None:
        return divisor, None
    overall = np.fmax.reduce(largest, axis=None, initial=0.0)  # of blocks without NaN
    to_tensor_scale = _quotients(divisor * float(fmt.scale.max), fmt.tensor_scale)
    ((found,),) = for_each_block(to_tensor_scale, [np.array([overall])], FLOAT64, 1)
    return divisor * float(found), float(found)


def _joined(found: Sequence[Array], fmt: ScaledFormat) -> Array:
    return found[0] if fmt.block is None else np.concatenate(found, axis=-1)


def _largest(part: Array, fmt: ScaledFormat) -> Array:
    """Return each block's largest magnitude (rule ``max``: largest number); NaN unless all are finite."""
    within = None if fmt.block is None else -1
    top = np.asarray(part.max(axis=within, initial=0))
    bottom = np.asarray(part.min(axis=within, initial=0))
    amax: Array = np.maximum(top, -bottom)
    largest = top if fmt.rule is ScaleRule.MAX else amax
    return np.where(np.isfinite(amax), largest, amax.dtype.type("nan"))


def carried(fmt: ScaledFormat) -> float:
    """Return from which significand on, in [1/2, 1), a power of two is one larger; 1 if it never is."""
    top, _ = math.frexp(float(fmt.element.max))
    return {
        ScaleRule.FLOOR: 1.0,
        ScaleRule.ROUND_UP: math.nextafter(top, 1.0),
        ScaleRule.EVEN: 1 - 2.0 ** -(fmt.top_precision + 1),
    }[fmt.rule]


def exponents(fmt: ScaledFormat) -> tuple[int, int, int]:
    """Return the largest element's exponent, as frexp has it, and the least and the largest of a scale."""
    lowest = math.frexp(float(fmt.scale.smallest_subnormal))[1] - 1
    highest = math.frexp(float(fmt.scale.max))[1] - 1
    return math.frexp(float(fmt.element.max))[1], lowest, highest


def _powers(fmt: ScaledFormat) -> OnBlock:
    """Return a function that turns a block of largest magnitudes into powers of two."""
    least, (top_exponent, lowest, highest) = carried(fmt), exponents(fmt)

    def on_block(start: int, amax: Floats, out: Floats) -> None:
        significand, exponent = np.frexp(amax)
        exponent = exponent - top_exponent + (significand >= least)
        exponent = np.where(amax > 0, np.clip(exponent, lowest, highest), lowest)
        np.copyto(out, np.where(np.isnan(amax), np.nan, np.ldexp(1.0, exponent)))

    return on_block


def _quotients(divisor: float, target: Format) -> OnBlock:
    """Return a function that divides a block of numbers and rounds to nearest even, saturating."""
    kernel = get_kernel(target, _NEAREST, FLOAT64)
    power, significand = factors(divisor)
    least = 0.0 if target.zero else float(target.smallest_normal)

    def on_block(start: int, numbers: Floats, out: Floats) -> None:
        kernel(np.maximum(quotient(numbers, power, significand), least), out)

    return on_block


def _by_mean(part: Array, fmt: ScaledFormat) -> Array:
    """Return the scale of each block from the exact mean of its magnitudes."""
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
