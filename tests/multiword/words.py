"""Operands of several words, and their exact sums, for the tests of this folder."""

from fractions import Fraction

import numpy as np

from mcfsim.formats import Format
from mcfsim.oracle import round_integers


def unbounded(precision):
    """Return a format in whose range nothing below over- or underflows."""
    return Format(precision=precision, emin=-300, emax=300)


def fractions(x):
    """Return columns of numbers, or of tuples of numbers, as rows of Fractions."""
    if isinstance(x, tuple):
        return list(zip(*map(fractions, x), strict=True))
    return [Fraction(item) for item in np.asarray(x, dtype=np.float64).tolist()]


def total(x):
    """Return the exact sum of the words of a number, or the number itself."""
    return sum(map(Fraction, x), Fraction(0)) if isinstance(x, tuple) else Fraction(x)


def numbers(fmt, size, seed, exponents):
    """Return random numbers of either sign with exponents in a range."""
    rng = np.random.default_rng(seed)
    significands = rng.integers(2 ** (fmt.precision - 1), 2**fmt.precision, size) * 2.0 ** (1 - fmt.precision)
    return significands * 2.0 ** rng.integers(*exponents, size) * rng.choice([-1.0, 1.0], size)


def double_words(fmt, size, seed, exponents=(0, 1)):
    """Return random double words whose words are seldom round numbers, and as seldom zero."""
    rng = np.random.default_rng(seed)
    p = fmt.precision
    high, low = (rng.integers(2 ** (p - 1), 2**p, size) * 2.0 ** (1 - p) for _ in range(2))
    low = np.where(rng.random(size) < 0.2, 1.0, low) * 2.0 ** -(p + rng.integers(0, 5, size))
    low = np.where(rng.random(size) < 0.05, 0.0, low) * rng.choice([-1.0, 1.0], size)
    low = np.where(round_integers(high + low, fmt) == high, low, 0.0)
    scale = 2.0 ** rng.integers(*exponents, size) * rng.choice([-1.0, 1.0], size)
    return scale * high, scale * low
