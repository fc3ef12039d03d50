"""Single real numbers of any kind: exactly, and rounded to binary64."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

import numpy as np

#: Decimal or binary; far beyond every format, and few enough digits to work with.
_LARGEST_EXPONENT = 1_000_000


def to_fraction(x: Any) -> Fraction | None:
    """Return a real number exactly; None for NaN and the infinities.

    Parameters
    ----------
    x : float, int, Fraction, Decimal, NumPy or ml_dtypes scalar, or mpf
        The number.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it is a Decimal or an mpf with too many digits to be written out.
    """
    if isinstance(x, bool | np.bool_):
        raise TypeError("a truth value is no real number")
    if isinstance(x, np.timedelta64):  # an np.integer to NumPy
        raise TypeError("a time is no real number")
    if isinstance(x, int | Rational | np.integer):
        return Fraction(int(x)) if isinstance(x, np.integer) else Fraction(x)
    if isinstance(x, Decimal):
        if not x.is_finite():
            return None
        _check_exponent(x, x.adjusted())
        return Fraction(x)
    if hasattr(type(x), "man_exp"):  # an mpf of any mpmath context
        if x - x != 0:  # NaN or infinite
            return None
        mantissa, exponent = x.man_exp  # of the magnitude
        _check_exponent(x, int(exponent))
        return Fraction(-int(mantissa) if x < 0 else int(mantissa)) * Fraction(2) ** int(exponent)
    if isinstance(x, float | np.floating):
        return Fraction(*x.as_integer_ratio()) if math.isfinite(x) else None
    if type(x).__module__ == "ml_dtypes":
        return Fraction(float(x)) if math.isfinite(x) else None
    raise TypeError(f"{x!r} of type {type(x).__name__} is no real number")


def _check_exponent(x: Any, exponent: int) -> None:
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"{x!r} has too large an exponent to be taken exactly: beyond {_LARGEST_EXPONENT}")


def nearest_binary64(exact: Fraction) -> float:
    """Round a rational number to nearest even in binary64."""
    try:
        return float(exact)
    except OverflowError:
        return -math.inf if exact < 0 else math.inf


def odd_binary64(exact: Fraction) -> float:
    """Round a rational number to odd in binary64, or to its largest or smallest number beyond its range."""
    largest, smallest = Fraction(np.finfo(np.float64).max), Fraction(5e-324)
    magnitude = min(abs(exact), largest)
    if magnitude and magnitude < smallest:
        return -5e-324 if exact < 0 else 5e-324
    y = float(magnitude)
    if Fraction(y) != magnitude:
        truncated = y if Fraction(y) < magnitude else math.nextafter(y, 0.0)
        bits = np.float64(truncated).view(np.int64) | 1
        y = float(bits.view(np.float64))
    return -y if exact < 0 else y
