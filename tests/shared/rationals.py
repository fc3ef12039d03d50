"""Rational numbers: how large they are, and what is left of them once they are rounded."""

from __future__ import annotations

import math
from fractions import Fraction

from mcfsim.formats import FORMATS
from mcfsim.oracle import round_fraction


def floor_log2(x: Fraction | float) -> int:
    """Return the exponent of the leading bit of a number that is not zero."""
    above, below = abs(x).as_integer_ratio()
    exponent = above.bit_length() - below.bit_length()
    return exponent - (above << max(-exponent, 0) < below << max(exponent, 0))


def rounded(x: Fraction, precision: int, emin: int, emax: int, *, nearest: bool = True) -> float:
    """Return a rational number that is not zero to nearest even or cut, infinite from 2^(emax + 1) on."""
    place = max(floor_log2(x), emin) - precision + 1
    below = x.denominator << max(place, 0)
    whole, rest = divmod(abs(x.numerator) << max(-place, 0), below)
    whole += nearest and (2 * rest > below or (2 * rest == below and whole % 2))
    size = math.inf if whole.bit_length() + place > emax + 1 else math.ldexp(whole, place)
    return size if x > 0 else -size


def single(x: Fraction | float) -> float:
    """Return a number rounded to binary32 by the oracle; infinities and NaN are kept."""
    rational = isinstance(x, Fraction) or math.isfinite(x)
    return float(round_fraction(Fraction(x), FORMATS["float32"])) if rational else x
