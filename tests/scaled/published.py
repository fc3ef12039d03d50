"""The rules of published code by their definition: binary32 in fractions, one number at a time."""

import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache

import numpy as np

from mcfsim.oracle import round_fraction
from tests.scaled.definition import numbers_of, round_element
from tests.shared.rationals import floor_log2, single

MOST = float(np.finfo(np.float32).max)
INF, NAN = math.inf, math.nan


def mul(a, b):
    if not (math.isfinite(a) and math.isfinite(b)):
        return NAN if 0 in (a, b) else a * b
    return single(Fraction(a) * Fraction(b))


def div(a, b):
    if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0):
        return NAN
    if b == 0:
        return math.copysign(INF, a)
    if not (math.isfinite(a) and math.isfinite(b)):
        return a / b
    return single(Fraction(a) / Fraction(b))


def add(a, b):
    return a + b if not (math.isfinite(a) and math.isfinite(b)) else single(Fraction(a) + Fraction(b))


def root(a):
    if not math.isfinite(a):
        return a
    value = Fraction(a) * 2**400
    whole = math.isqrt(value.numerator // value.denominator)
    exact = whole * whole == value
    return single(Fraction(2 * whole + (not exact), 2**201))


def halved(numbers):
    numbers = list(numbers) + [0.0] * ((1 << max(len(numbers) - 1, 0).bit_length()) - len(numbers))
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [add(x, y) for x, y in zip(numbers[:half], numbers[half:], strict=True)]
    return numbers[0]


def from_left(numbers):
    total = 0.0
    for x in numbers:
        total = add(total, x)
    return total


def rounded(scale, fmt):
    """Return a scale rounded to its format, which saturates."""
    top = float(fmt.scale.max)
    return float(round_fraction(Fraction(min(scale, top)), fmt.scale))


class Blocks:
    """An array of two axes: its blocks, as lists of places in order, and what all of them share."""

    def __init__(self, x, fmt):
        self.x, self.fmt = x, fmt
        rows, columns = x.shape
        height, width = fmt.block if isinstance(fmt.block, tuple) else (1, fmt.block)
        if fmt.block == "axis":
            height, width = 1, max(columns, 1)
        if fmt.block is None:
            height, width = max(rows, 1), max(columns, 1)
        self.grid = (-(-rows // height), -(-columns // width))
        self.rows = {
            (i, j): [
                [(r, c) for c in range(j * width, min((j + 1) * width, columns))]
                for r in range(i * height, min((i + 1) * height, rows))
            ]
            for i in range(self.grid[0])
            for j in range(self.grid[1])
        }
        self.places = {key: [place for row in found for place in row] for key, found in self.rows.items()}
        self.amax = {
            key: max(abs(float(x[place])) for place in found)
            if np.isfinite([x[place] for place in found]).all()
            else NAN
            for key, found in self.places.items()
        }
        self.overall = max((x for x in self.amax.values() if x == x), default=0.0)


def by_published(x, fmt, mode="nearest_even", words=None):
    """Return the scales, the tensor scale and the elements of an array of two axes."""
    blocks = Blocks(x, fmt)
    shared = RULES[str(fmt.rule)](blocks)
    tensor_scale = shared.pop("tensor", None)
    scales, elements = np.zeros(blocks.grid), np.zeros(x.shape)
    for key, places in blocks.places.items():
        amax = blocks.amax[key]
        missing = amax != amax
        scales[key], divide = (NAN, None) if missing else shared["block"](key, amax)
        for place in places:
            number = float(x[place])
            if missing:
                elements[place] = NAN if fmt.element.has_nan else 0.0
                continue
            word = None if mode != "stochastic" else int(words[place])
            elements[place] = element_of(divide(number), number, fmt, mode, word)
    if str(fmt.rule) == "eden":
        eden_corrections(blocks, scales, elements, shared, words)
    return scales, tensor_scale, elements


def element_of(quotient, number, fmt, mode, word=None):
    top = float(fmt.element.max)
    if quotient != quotient:
        quotient = 0.0
    if mode == "stochastic":
        return math.copysign(stochastic(abs(Fraction(quotient)), steps_of(fmt.element), word), number)
    return round_element(
        Fraction(min(max(quotient, -top), top)), math.copysign(1, number) < 0, fmt.element, mode
    )


# -- the rules --------------------------------------------------------------------------------------------
def torchao(blocks):
    top, highest = float(blocks.fmt.element.max), float(blocks.fmt.scale.max)
    tensor = div(blocks.overall, top * highest) if blocks.fmt.tensor_scale else 1.0

    def block(_, amax):
        scale = div(div(amax, top), tensor)
        least = float(blocks.fmt.scale.smallest_normal)
        scale = rounded(scale if scale > least else least, blocks.fmt)
        return scale, lambda x: mul(x, div(div(1.0, tensor), scale))

    return {"tensor": tensor if blocks.fmt.tensor_scale else None, "block": block}


def transformer_engine(blocks):
    top, highest = float(blocks.fmt.element.max), float(blocks.fmt.scale.max)
    encode = min(div(top * highest, blocks.overall), MOST)
    tensor, factor = div(1.0, encode), mul(encode, div(1.0, top))

    def block(_, amax):
        scale = rounded(min(mul(amax, factor), MOST), blocks.fmt)
        return scale, lambda x: mul(x, min(div(1.0, mul(scale, tensor)), MOST))

    return {"tensor": tensor, "block": block}


def four_six(squared):
    def rule(blocks):
        fmt, top = blocks.fmt, float(blocks.fmt.element.max)
        encode = min(div(top * 256, blocks.overall), MOST)
        tensor = div(1.0, encode)

        def candidate(key, amax, expansion):
            scale = mul(div(amax, top), encode)
            scale = rounded(min(mul(scale, expansion), MOST), fmt)
            by = min(div(1.0, mul(scale, tensor)), MOST)
            errors = []
            for row in blocks.rows[key]:
                found = []
                for place in row:
                    x = float(blocks.x[place])
                    q = element_of(mul(x, by), x, fmt, "nearest_even")
                    stored = div(mul(mul(q, scale), blocks.overall), top * 256)
                    difference = add(stored, -x)
                    found.append(mul(difference, difference) if squared else abs(difference))
                errors.append(from_left(found))
            return scale, by, halved(errors)

        def block(key, amax):
            six, four = candidate(key, amax, 1.0), candidate(key, amax, 1.5)
            scale, by, _ = four if four[2] < six[2] else six
            return scale, lambda x: mul(x, by)

        return {"tensor": tensor, "block": block}

    return rule


def eden(blocks):
    six = single(6.0 / (17 / 16 * 0.93))
    tensor = div(div(blocks.overall, single(255.99)), six) if blocks.overall else 1.0

    def block(_, amax):
        scale = rounded(min(div(div(amax, six), tensor), MOST), blocks.fmt) or 1.0
        return scale, lambda x: div(x, mul(scale, tensor))

    return {"tensor": tensor, "block": block}


def eden_corrections(blocks, scales, elements, shared, words):
    fmt = blocks.fmt
    each = fmt.group // fmt.block
    steps = steps_of(fmt.scale)
    for row in range(blocks.grid[0]):
        for first in range(0, blocks.grid[1], each):
            above, below = [], []
            keys = [(row, j) for j in range(first, first + each)]
            for key in keys:
                places = blocks.places.get(key, [])
                missing = not places or blocks.amax[key] != blocks.amax[key]
                divide = None if missing else shared["block"](key, blocks.amax[key])[1]
                values = [(0.0, 0.0)] * fmt.block
                for k, place in enumerate(places):
                    if not missing:
                        quotient = divide(float(blocks.x[place]))
                        values[k] = (quotient, elements[place])
                above += [mul(x, x) for x, _ in values]
                below += [mul(x, y) for x, y in values]
            below = halved(below)
            correction = div(halved(above), below) if below else 1.0
            for key in keys:
                if key in blocks.places and scales[key] == scales[key]:
                    exact = Fraction(mul(scales[key], correction))
                    scales[key] = stochastic(exact, steps, int(words[key]))


@cache
def steps_of(fmt):
    """Return the numbers of a format from zero on, in order."""
    return [x for x in numbers_of(fmt) if x >= 0]


def stochastic(exact, steps, word):
    """Return one of two neighbours among numbers, by a word of 16 bits; what exceeds the last becomes it."""
    if exact >= steps[-1]:
        return float(steps[-1])
    above = bisect_right(steps, exact)
    low, high = steps[above - 1], steps[above]
    return float(high if int((exact - low) / (high - low) * 2**16) + word >= 2**16 else low)


def encode_scale(amax, top):
    return 1.0 if amax == 0 else min(div(top, amax), MOST)


def current(blocks):
    top = float(blocks.fmt.element.max)

    def block(_, amax):
        encode = encode_scale(amax, top)
        return div(1.0, encode), lambda x: mul(x, encode)

    return {"block": block}


def floor_power(blocks):
    top = float(blocks.fmt.element.max)

    def block(_, amax):
        encode = float(Fraction(2) ** floor_log2(Fraction(encode_scale(amax, top))))
        return div(1.0, encode), lambda x: mul(x, encode)

    return {"block": block}


def deepseek(power):
    def rule(blocks):
        def block(_, amax):
            scale = div(max(amax, single(1e-4)), float(blocks.fmt.element.max))
            if power:
                exponent = floor_log2(Fraction(scale))
                exponent += Fraction(2) ** exponent < Fraction(scale)
                scale = float(Fraction(2) ** exponent)
            return scale, lambda x: mul(x, div(1.0, scale))

        return {"block": block}

    return rule


def least_power(exponent, fmt):
    low, high = floor_log2(fmt.scale.smallest_subnormal), floor_log2(fmt.scale.max)
    return float(Fraction(2) ** min(max(exponent, low), high))


def quartet(blocks):
    fmt, tensor = blocks.fmt, div(1.0, 0.75)

    def block(_, amax):
        exponent = floor_log2(Fraction(amax)) - floor_log2(fmt.element.max) if amax else -10000
        scale = least_power(exponent, fmt)
        return scale, lambda x: div(x, mul(scale, tensor))

    return {"tensor": tensor, "block": block}


def quest(blocks):
    fmt = blocks.fmt

    def block(key, _):
        numbers = [float(blocks.x[place]) for place in blocks.places[key]]
        size = float(len(numbers))
        mean = div(halved(numbers), size)
        square = div(halved([mul(x, x) for x in numbers]), size)
        variance = add(square, -mul(mean, mean))
        deviation = root(max(variance, 0.0)) if variance == variance else NAN
        clip = add(mul(single(2.92247856 / float(fmt.element.max)), deviation), single(1e-8))
        finite = math.isfinite(clip)
        scale = least_power(floor_log2(Fraction(clip)) if finite else 10000, fmt)
        return scale, lambda x: Fraction(x) / Fraction(scale)

    return {"block": block}


RULES = {
    "torchao": torchao,
    "transformer_engine": transformer_engine,
    "four_six_mae": four_six(squared=False),
    "four_six_mse": four_six(squared=True),
    "eden": eden,
    "current": current,
    "floor_power": floor_power,
    "deepseek": deepseek(power=False),
    "deepseek_power": deepseek(power=True),
    "quartet": quartet,
    "quest": quest,
}
