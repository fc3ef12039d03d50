"""Dot products by the definition of their accumulator, in fractions, and operands that are hard to sum."""

import math
from fractions import Fraction

import numpy as np

from mcfsim.convert import round_to
from mcfsim.oracle import round_fraction
from mcfsim.oracle.definition import infinity_value
from mcfsim.rounding import Mode


def negative(x):
    return math.copysign(1.0, x) < 0


def sum_once(terms, fmt, rounding):
    """Round the exact sum of terms once; each is a product of two floats."""
    floats = [x * y for x, y in terms]  # for NaN and infinity only
    if any(map(math.isnan, floats)) or {math.inf, -math.inf} <= set(floats):
        return math.nan
    for x, y in terms:
        if math.isinf(x) or math.isinf(y):
            return infinity_value(negative(x) != negative(y), fmt)
    signs = [negative(x) != negative(y) for x, y in terms]
    share = any if rounding.mode is Mode.DOWN else all
    total = sum((Fraction(x) * Fraction(y) for x, y in terms), Fraction(0))
    return round_fraction(total, fmt, rounding, negative_zero=bool(signs) and share(signs))


def model(a, b, accumulator, c=None):
    """Return one dot product of lists of floats, as `Accumulator` describes it."""
    fmt, rounding = accumulator.format, accumulator.rounding

    def add(*terms):
        return sum_once(terms, fmt, rounding)

    terms = list(zip(a, b, strict=True))
    if accumulator.products == "rounded":
        terms = [(add(term), 1.0) for term in terms]
    length = accumulator.block or max(1, len(terms))
    blocks = [terms[i : i + length] for i in range(0, len(terms), length)]
    first = [] if c is None else [(c, 1.0)]
    if not blocks:
        return add(*first)
    if accumulator.order == "pairwise":
        level = [add(*(first if not i else []), *block) for i, block in enumerate(blocks)]
    else:
        level = []
        for lane in range(min(accumulator.lanes, len(blocks))):
            carried = [] if lane else first
            for block in blocks[lane :: accumulator.lanes]:
                carried = [(add(*carried, *block), 1.0)]
            level.append(carried[0][0])
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [add(*((x, 1.0) for x in pair)) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def by_definition(a, b, accumulator, c=None):
    """Return dot products of rows."""
    a, b = np.asarray(a, dtype=np.float64).tolist(), np.asarray(b, dtype=np.float64).tolist()
    c = [None] * len(a) if c is None else np.asarray(c, dtype=np.float64).tolist()
    return [model(x, y, accumulator, z) for x, y, z in zip(a, b, c, strict=True)]


# -- operands that are hard to sum ------------------------------------------------------------------------
def number(fmt, rng, size, low, high):
    """Return numbers of a format with exponents in a range, few of their significand bits set."""
    significand = rng.integers(2 ** (fmt.precision - 1), 2**fmt.precision, size).astype(np.float64)
    significand = np.where(rng.random(size) < 0.5, 2.0 ** (fmt.precision - 1), significand)
    exponents = rng.integers(max(low, fmt.emin), min(high, fmt.emax) + 1, size)
    x = np.ldexp(significand, exponents - fmt.precision + 1)
    x = np.minimum(x, float(fmt.max)) * rng.choice([-1.0, 1.0], size)
    return np.asarray(round_to(x, fmt, "toward_zero"), dtype=np.float64)


def hard_rows(fmt, target, length, rows, seed):
    """Return rows whose products cancel, tie for the target, go beyond its range, or are special."""
    rng = np.random.default_rng(seed)
    shape = (rows, length)
    spread = rng.choice([1, 4, 12, 60, 400], (rows, 1))
    centre = np.where(rng.random((rows, 1)) < 0.3, rng.integers(-90, 90, (rows, 1)), 0)
    a = np.empty(shape)
    b = np.empty(shape)
    for row in range(rows):
        low, high = int(centre[row, 0] - spread[row, 0]), int(centre[row, 0] + spread[row, 0])
        low, high = min(low, fmt.emax), max(high, fmt.emin)
        a[row], b[row] = number(fmt, rng, length, low, high), number(fmt, rng, length, low, high)
        kind = rng.integers(0, 8)
        half = length // 2
        if kind == 0:  # cancels exactly but for a few terms
            a[row, half : 2 * half], b[row, half : 2 * half] = a[row, :half], -b[row, :half]
            order = rng.permutation(length)
            a[row], b[row] = a[row, order], b[row, order]
        elif kind == 1 and length:  # a tie of the target near 1, and something small that may decide it
            a[row], b[row] = 0.0, rng.choice([1.0, -1.0])
            decider = rng.choice([0.0, float(fmt.smallest_subnormal), -float(fmt.smallest_subnormal)])
            tie = [1.0, 2.0 ** -(target.precision // 2), decider]
            factors = [1.0, 2.0 ** (target.precision // 2 - target.precision), float(fmt.smallest_normal)]
            for place, x, y in zip(rng.permutation(length)[:3], tie, factors, strict=False):
                a[row, place], b[row, place] = round_to(x, fmt), round_to(y, fmt)
        elif kind == 2:  # zeros of both signs
            a[row] = np.copysign(0.0, rng.choice([-1.0, 1.0, 1.0], length))
            if rng.random() < 0.5:
                a[row], b[row] = -0.0, np.abs(b[row])
        elif kind == 3 and length:  # specials
            specials = [math.inf, -math.inf, math.nan, 0.0] if fmt.has_infinity else [math.nan, 0.0]
            places = rng.integers(0, length, 2)
            a[row, places[0]] = rng.choice(specials)
            (a if rng.random() < 0.5 else b)[row, places[1]] = rng.choice(specials)
        elif kind == 4 and length:  # overflows, and would come back
            a[row, :] = float(fmt.max) * rng.choice([1.0, -1.0], length)
    return a, b
