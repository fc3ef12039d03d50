"""Numbers that share scales by their definition, in fractions, and blocks that are hard to quantise."""

import dataclasses
import itertools
import math
from fractions import Fraction
from functools import cache

import numpy as np

from mcfsim.codec import all_values
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Rounding
from mcfsim.scaled import ScaleRule
from tests.shared.rationals import floor_log2

SATURATING = Rounding(overflow="saturate")


@cache
def numbers_of(element):
    """Return the numbers of an element format in order."""
    values = all_values(element).astype(float)
    return sorted({Fraction(x) for x in values[np.isfinite(values)].tolist()})


def round_element(quotient, negative, element, mode):
    """Round a rational number to an element by the mode, with saturation."""
    value = round_fraction(quotient, element, Rounding(mode, "saturate"))
    return -0.0 if value == 0 and negative and element.has_negative_zero else value + 0.0


def power_scale(amax, element, rule, scale):
    """Return the scale of a rule of powers of two by its definition, among all powers the format has."""
    largest = Fraction(element.max)
    low, high = floor_log2(scale.smallest_subnormal), floor_log2(scale.max)
    if amax == 0:
        return Fraction(2) ** low
    exponent = floor_log2(amax) - floor_log2(largest)
    if rule is ScaleRule.EVEN:
        quantum = Fraction(2) ** floor_log2(amax) / 2 ** (top_precision(element) - 1)
        exponent = floor_log2(round(amax / quantum) * quantum) - floor_log2(largest)
    if rule is ScaleRule.CEIL:
        exponent += amax != Fraction(2) ** floor_log2(amax)
    if rule is ScaleRule.ROUND_UP:
        exponent = next(e for e in itertools.count(exponent - 1) if amax <= largest * Fraction(2) ** e)
    return Fraction(2) ** min(max(exponent, low), high)


def top_precision(element):
    """Return the significand bits at the top, from the distance of the largest two numbers."""
    below, largest = numbers_of(element)[-2:]
    return floor_log2(largest) - floor_log2(largest - below) + 1


def real_scale(value, scale):
    value = value if scale.zero else max(value, scale.smallest_normal)
    return Fraction(round_fraction(value, scale, SATURATING))


def block_scale(block, fmt, tensor_scale):
    """Return the scale of one block of floats; NaN if one is not finite."""
    if not np.isfinite(block).all():
        return math.nan
    numbers = [Fraction(float(x)) for x in block]
    largest, amax = Fraction(fmt.element.max), max(map(abs, numbers))
    match fmt.rule:
        case ScaleRule.ABSMAX:
            return real_scale(amax / (largest * tensor_scale) if tensor_scale else Fraction(0), fmt.scale)
        case ScaleRule.ABSMEAN:
            mean = sum(map(abs, numbers)) / len(numbers)
            return real_scale(max(mean, Fraction("0.00001")) / largest, fmt.scale)
        case ScaleRule.MAX:
            return real_scale(max(numbers) / largest, fmt.scale)
    return power_scale(amax, fmt.element, fmt.rule, fmt.scale)


def by_definition(rows, fmt, modes):
    """Return scales of rows of blocks, the tensor scale, and for each mode elements and numbers."""
    tensor_scale = Fraction(1)
    if fmt.tensor_scale:
        whole = [row for row in rows if np.isfinite(row).all()]
        amax = max((Fraction(float(abs(x))) for row in whole for x in row), default=Fraction(0))
        divisor = Fraction(fmt.element.max) * fmt.scale.max
        tensor_scale = Fraction(round_fraction(amax / divisor, fmt.tensor_scale, SATURATING))
    scales = [block_scale(row, fmt, tensor_scale) for row in rows]
    results = [(np.empty(rows.shape), np.empty(rows.shape)) for _ in modes]
    for (i, j), x in np.ndenumerate(rows):
        x = float(x)
        missing = isinstance(scales[i], float)
        by = Fraction(0) if missing else scales[i] * tensor_scale
        quotient = Fraction(x) / by if by else Fraction(0)
        for mode, (elements, numbers) in zip(modes, results, strict=True):
            if missing:
                elements[i, j], numbers[i, j] = math.nan if fmt.element.has_nan else 0.0, math.nan
                continue
            elements[i, j] = round_element(quotient, math.copysign(1, x) < 0, fmt.element, mode)
            product = Fraction(elements[i, j]) * by
            numbers[i, j] = float(product) if product else math.copysign(0.0, elements[i, j])
            assert Fraction(numbers[i, j]) == product
    return np.array([float(scale) for scale in scales]), float(tensor_scale), results


# -- hard blocks -----------------------------------------------------------------------------------------
def hard_rows(fmt, dtype, width):
    """Return blocks whose largest magnitude is hard for the scale, or whose quotients are hard to round."""
    rng = np.random.default_rng(len(fmt.name))
    dtype = np.dtype(dtype)
    info = np.finfo(dtype)
    top = math.frexp(float(fmt.element.max))[0] * 2
    significands = [1.0, top, 2 - 2.0 ** -top_precision(fmt.element), 1.5, 2 - 2.0**-23]
    largest = np.array([s * 2.0**e for s in significands for e in (0, -7, 118)], dtype)
    neighbours = (np.nextafter(largest, dtype.type(end)) for end in (0, np.inf))
    ends = [info.max, info.tiny, info.smallest_subnormal, 3 * info.smallest_subnormal]
    ends += [1e-38, 2.0**-133, 2.0**-126]
    if dtype.itemsize == 8:
        ends += [2.0**128, 1e200, 1e-50, 1e-300]
    largest = np.concatenate([largest, *neighbours, np.array(ends, dtype)])
    rows = np.zeros((largest.size, width), dtype)
    rows[:, 0] = largest
    rows[:, 1] = -largest
    middles = np.array([float(x + y) / 2 for x, y in itertools.pairwise(numbers_of(fmt.element))])
    for row in rows:
        by = block_scale(row[:1], dataclasses.replace(fmt, tensor_scale=None), Fraction(1))
        with np.errstate(all="ignore"):
            ties = (rng.choice(middles, width) * float(by)).astype(dtype)
        nudged = np.nextafter(ties, rng.choice(np.array([-1, 1], dtype), width) * dtype.type(np.inf))
        near = np.where(rng.random(width) < 0.5, ties, nudged)
        uniform = row[0] * rng.uniform(-1, 1, width).astype(dtype)
        filled = np.where(rng.random(width) < 0.7, near, uniform)[2:]
        row[2:] = np.where(np.abs(filled) <= row[0], filled, dtype.type(-0.0))
    return rows


def special_rows(dtype, width):
    """Return blocks of zeros, and with NaN and infinities in them."""
    rows = np.ones((5, width), dtype)
    rows[0], rows[1, 1::2] = 0.0, -0.0
    rows[2, 1], rows[3, 0], rows[4, :2] = np.nan, -np.inf, (np.inf, np.nan)
    return rows
