"""Weights put on a grid by the definition: one at a time, in fractions, from the documented formulas."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mcfsim.formats import FORMATS
from mcfsim.optim.strategies import strategy
from mcfsim.oracle import operate, round_fraction
from mcfsim.random import RandomWords

FLOAT32 = FORMATS["float32"]
#: Of the words that grids draw, see docs/howto/dqt.md.
OPERATION = 1 << 24


def scale(numbers, high, reach, fmt=FLOAT32):
    """Return ``RN(high / RN(reach))`` of some numbers, as Python floats."""
    if any(map(math.isnan, numbers)):
        return math.nan
    if reach == "max":
        reached = max(numbers) + 0.0
    elif reach == "absmax" or any(map(math.isinf, numbers)):
        reached = max(map(abs, numbers))
    else:
        mean = sum(abs(Fraction(x)) for x in numbers) / len(numbers)
        reached = round_fraction(max(mean, Fraction(1, 100000)), fmt)
    return operate("div", [float(high), float(reached)], fmt)


def put(x, s, low, high, word=None, fmt=FLOAT32):
    """Return where a number comes to lie, by a random word of 32 bits or to nearest even, and its integer."""
    x = operate("mul", [float(x), float(s)], fmt)
    if math.isnan(x):
        return math.nan, math.nan
    exact = Fraction(min(max(x, low), high))
    if word is None:
        integer = round(exact)
    else:
        below = math.floor(abs(exact))
        up = math.floor((abs(exact) - below) * 2**32) + word >= 2**32
        integer = (below + up) * (1 if exact > 0 else -1)
    return operate("div", [float(integer), float(s)], fmt), integer


def words(seed, step, first, count):
    """Return the words of some elements in a step."""
    return RandomWords(seed, step).of(OPERATION).words(first, count, 32).tolist()


def same(found, expected):
    """Whether numbers are equal, NaN to NaN."""
    return np.array_equal(np.asarray(found, float), np.asarray(expected, float), equal_nan=True)


def placed(name, **changes):
    """Return a strategy on a grid, with some of the grid's fields changed."""
    chosen = strategy(name)
    grid = replace(chosen.parameter.grid, **changes)
    return replace(chosen, parameter=replace(chosen.parameter, grid=grid))
