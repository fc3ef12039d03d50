"""Scales of blocks by exact rules: powers of two, exact means of magnitudes, and quotients by a scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from operator import add
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.compile.group_algorithm import halved
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels import native
from mcfsim.kernels.blocks import for_each_block, get_kernel
from mcfsim.kernels.carriers import FLOAT64, carrier_of
from mcfsim.kernels.element.machine import Value, greatest, least
from mcfsim.rounding import Overflow, Rounding
from mcfsim.scaled.block_views import BlockViews
from mcfsim.scaled.formats import ScaledFormat
from mcfsim.scaled.scale_rules import POWERS, ScaleRule

SATURATING = Rounding(overflow=Overflow.SATURATE)


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
        with np.errstate(invalid="ignore"):  # of signalling NaN
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


# -- powers of two: the exponent of a largest magnitude, and when it is increased -------------------------
def carried(fmt: ScaledFormat) -> float:
    """Return the significand, in [1/2, 1), from which on the exponent is one larger; 1 if it never is."""
    top, _ = math.frexp(float(fmt.element.max))
    found: Mapping[ScaleRule, float] = {
        ScaleRule.CEIL: math.nextafter(0.5, 1.0),
        ScaleRule.ROUND_UP: math.nextafter(top, 1.0),
        ScaleRule.EVEN: 1 - 2.0 ** -(fmt.top_precision + 1),
    }
    return found.get(fmt.rule, 1.0)


def exponents(fmt: ScaledFormat) -> tuple[int, int, int]:
    """Return the largest element's exponent, as frexp has it, and a scale's least and largest exponents."""
    lowest = math.frexp(float(fmt.scale.smallest_subnormal))[1] - 1
    highest = math.frexp(float(fmt.scale.max))[1] - 1
    return math.frexp(float(fmt.element.max))[1], lowest, highest


def power_element(largest: Value, fmt: ScaledFormat) -> Value:
    """Return the power of two for a largest magnitude of binary32, within the range of the scales."""
    bits = largest.widen().bits()
    exponent = bits.shr(52).cut() - 1022  # as frexp has it
    fraction = int(carried(fmt) * 2**53) & (2**52 - 1)
    over = (bits & (2**52 - 1)) >= fraction
    exponent = exponent + over.count() if carried(fmt) < 1 else exponent
    top, lowest, highest = exponents(fmt)
    exponent = least(greatest(exponent - top, lowest), highest)
    return ((exponent + 1023).extend() << 52).as_number().narrow()


# -- the rules --------------------------------------------------------------------------------------------
Array = NDArray[Any]
OnBlock = Callable[[int, Floats, Floats], None]

#: The rule ``absmean`` replaces smaller means by this one.
LEAST_MEAN = Fraction(1, 100_000)


def scales(parts: Sequence[Array], fmt: ScaledFormat, views: BlockViews) -> tuple[Array, float | None]:
    """Return the scale of each block by an exact rule, and the tensor scale if the format has one.

    Parameters
    ----------
    parts : sequence of array
        The array's parts, as `views` gives them.
    fmt : ScaledFormat
        Format and rule.
    views : BlockViews

    Returns
    -------
    array, float or None
        Scales in the carrier of their format, in the shape of `BlockViews.scales`. A block with a NaN or an
        infinity has scale NaN; the tensor scale ignores it.

    Raises
    ------
    ValueError
        If the rule is ``max`` and a block without NaN has no positive number.
    """
    if fmt.rule in _BY_BLOCK:
        return views.joined([_BY_BLOCK[fmt.rule](part, fmt) for part in parts]), None
    largest = views.joined([largest_magnitudes(part, fmt.rule is ScaleRule.MAX) for part in parts])
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
    """Return the divisor of blocks' largest magnitudes, and the tensor scale if the format has one."""
    divisor = float(fmt.element.max)
    if fmt.tensor_scale is None:
        return divisor, None
    overall = np.fmax.reduce(largest, axis=None, initial=0.0)  # of blocks without NaN
    to_tensor_scale = _quotients(divisor * float(fmt.scale.max), fmt.tensor_scale)
    ((found,),) = for_each_block(to_tensor_scale, [np.array([overall])], FLOAT64, 1)
    return divisor * float(found), float(found)


def largest_magnitudes(part: Array, signed: bool = False) -> Array:
    """Return each block's largest magnitude, or its largest number; NaN unless all are finite."""
    top = np.asarray(part.max(axis=-1, initial=0))
    bottom = np.asarray(part.min(axis=-1, initial=0))
    amax: Array = np.maximum(top, -bottom)
    return np.where(np.isfinite(amax), top if signed else amax, amax.dtype.type("nan"))


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
    kernel = get_kernel(target, SATURATING, FLOAT64)
    power, significand = factors(divisor)
    least = 0.0 if target.zero else float(target.smallest_normal)

    def on_block(start: int, numbers: Floats, out: Floats) -> None:
        kernel(np.maximum(quotient(numbers, power, significand), least), out)

    return on_block


def _by_mean(part: Array, fmt: ScaledFormat) -> Array:
    """Return the scale of each block from the exact mean of its magnitudes."""
    result = np.empty(part.shape[:-1], carrier_of(fmt.scale))
    for index in np.ndindex(result.shape):
        block = part[index]
        total = sum_of_magnitudes(block)
        if total is None:
            result[index] = np.nan
            continue
        mean = total / block.size if block.size else Fraction(0)
        result[index] = round_to(max(mean, LEAST_MEAN) / fmt.element.max, fmt.scale, SATURATING)
    return result


#: Rows of at most this many numbers are added across rows.
_SHORT = 16
#: In standard deviations of a block: where QuEST clips normally distributed numbers to 4 bits.
_CLIPPED = 2.92247856


def halved_sums(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return sums along the last axis in binary32, by halving: element i is added to element ``i + n/2``.

    n is the next power of two; elements that do not exist are 0.
    """
    size = 1 << max(x.shape[-1] - 1, 0).bit_length()
    if size != x.shape[-1]:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], size - x.shape[-1]), x.dtype)], axis=-1)
    turned = across(halved(x, add, _SHORT))
    while len(turned) > 1:
        half = len(turned) // 2
        turned = turned[:half] + turned[half:]
    result: NDArray[np.float32] = turned[0]
    return result


def across(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an array whose last axis is the first, also in memory: such rows are added up faster."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 0))


def clips_by_deviation(
    x: Any, size: Any, fmt: ScaledFormat, sums: Callable[[Any], Any], root: Callable[[Any], Any]
) -> Any:
    """Return the binary32 number of each block from which the rule ``quest`` takes the scale.

    Parameters
    ----------
    x : array or tensor of float32
        Blocks along the last axis.
    size : number or tensor of float32
        The numbers of a block.
    fmt : ScaledFormat
    sums, root : callable
        The sum of each block by halving, and the square root, rounded once.
    """
    mean, square = sums(x) / size, sums(x * x) / size
    deviation = root((square - mean * mean).clip(0))
    return deviation * float(np.float32(_CLIPPED / float(fmt.element.max))) + float(np.float32(1e-8))


def _by_deviation(part: Array, fmt: ScaledFormat) -> Array:
    """Return the scale of each block by the rule ``quest``."""
    with np.errstate(all="ignore"):
        clip = clips_by_deviation(part, np.float32(part.shape[-1]), fmt, halved_sums, np.sqrt)
        exponent = np.frexp(clip.astype(np.float64))[1] - 1
    _, lowest, highest = exponents(fmt)
    # Where squares overflow there is no deviation, and the scale is the largest one.
    exponent = np.where(np.isfinite(clip), np.clip(exponent, lowest, highest), highest)
    finite = np.isfinite(part).all(axis=-1)
    return np.where(finite, np.ldexp(1.0, exponent), np.nan).astype(carrier_of(fmt.scale))


_BY_BLOCK = {ScaleRule.ABSMEAN: _by_mean, ScaleRule.QUEST: _by_deviation}
