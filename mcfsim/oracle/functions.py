"""Elementary functions by the definition: the real value is enclosed until both ends round alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

Number = float | Fraction
#: Precisions of the enclosures, in bits.
_FIRST, _LAST = 64, 1 << 15
#: A magnitude above, and one below, those of all nonzero numbers of binary64.
_VAST, _TINY = Fraction(2) ** 5000, Fraction(1, 2**5000)


def function_value(name: str, x: Number, settle: Callable[[Number], float]) -> float:
    """Return an elementary function of a number, rounded once.

    Parameters
    ----------
    name : {"exp", "log", "expm1", "log1p", "tanh", "erf", "sin", "cos"}
        The function.
    x : float or Fraction
        Any number.
    settle : callable
        Rounds a fraction, a zero, an infinity or NaN into a format. It must be monotone.

    Returns
    -------
    float
        The value, rounded. At a nonzero rational number every value is irrational, except that of log at 1.

    Raises
    ------
    ValueError
        If there is no such function.
    """
    if name not in _BETWEEN:
        raise ValueError(f"there is no function {name!r}")
    if (exact := _exactly(name, x)) is not None:
        return settle(exact)
    precision = _FIRST
    while precision <= _LAST:
        low, high = map(settle, enclosure(name, Fraction(x), precision))
        if low != low and high != high:  # an overflow, in a format without infinity
            return math.nan
        if low == high and math.copysign(1, low) == math.copysign(1, high):
            return low
        precision *= 2
    raise ArithmeticError(f"{name} of {x} is not decided by {_LAST} bits")


#: Values at the two infinities.
_AT_INFINITY = {
    **{"exp": (0.0, math.inf), "log": (math.nan, math.inf), "expm1": (-1.0, math.inf)},
    **{"log1p": (math.nan, math.inf), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0)},
    **{"sin": (math.nan, math.nan), "cos": (math.nan, math.nan)},
}
#: Rational values, and poles, at numbers; at a zero the other functions are a zero of the same sign.
_AT_NUMBER: Mapping[tuple[str, Number], float] = {
    ("exp", 0): 1.0,
    ("cos", 0): 1.0,
    ("log", 1): 0.0,
    ("log", 0): -math.inf,
    ("log1p", -1): -math.inf,
}
#: Below these numbers there is no real value.
_LEAST = {"log": 0, "log1p": -1}


def _exactly(name: str, x: Number) -> float | None:
    """Return a value that is rational, infinite or no real number; None for all others."""
    if x != x or (name in _LEAST and x < _LEAST[name]):
        return math.nan
    if isinstance(x, float) and math.isinf(x):
        return _AT_INFINITY[name][x > 0]
    if x == 0 and (name, 0) not in _AT_NUMBER:
        return float(x)
    return _AT_NUMBER.get((name, x))


@lru_cache(maxsize=1 << 16)
def enclosure(name: str, x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    """Return fractions below and above a value, or fractions that round like such in every format."""
    return _BETWEEN[name](x, precision)


def _interval(function: Callable[[Any, Any], Any], x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    """Return the ends of an expression of mpmath's intervals, moved apart by 2**8 units.

    mpmath's ends do not always enclose the value: at 64 bits mpmath 1.3 encloses exp(2**-79) in [1, 1].
    """
    iv = _context()
    iv.prec = precision
    ends = map(_fraction, function(iv, iv.mpf(x.numerator) / iv.mpf(x.denominator))._mpi_)
    low, high = ((end, abs(end) / (1 << (precision - 8))) for end in ends)
    return low[0] - low[1], high[0] + high[1]


@lru_cache(maxsize=1)
def _context() -> Any:
    from mpmath.ctx_iv import MPIntervalContext

    return MPIntervalContext()


def _fraction(x: Any) -> Fraction:
    sign, significand, exponent, _ = x
    magnitude = Fraction(int(significand)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


def _exp(x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    if abs(x) > 4096:
        return (_VAST, _VAST) if x > 0 else (_TINY, _TINY)
    return _interval(lambda iv, y: iv.exp(y), x, precision)


def _expm1(x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    low, high = _exp(x, precision)
    return low - 1, high - 1


def _tanh(x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    low, high = _exp(2 * x, precision)
    return 1 - 2 / (low + 1), 1 - 2 / (high + 1)


def _erf(x: Fraction, precision: int) -> tuple[Fraction, Fraction]:
    """Sum the series ``2 / sqrt(pi) * sum (-1)**n x**(2 n + 1) / (n! (2 n + 1))`` in fractions."""
    if x < 0:
        low, high = _erf(-x, precision)
        return -high, -low
    if x > 8:  # 0 < erfc(x) < exp(-64) < 2**-92: too little for any boundary of 90 bits
        return 1 - _TINY, 1 - _TINY
    unit = Fraction(1, 1 << (precision + 2 * math.ceil(x * x) + 8))
    power, total, n = x, x, 0
    while power > unit * x or n < 2 * x * x:  # from there on terms decrease, and alternate
        n += 1
        power = _down(power * x * x / n, unit * x)
        total += (-power if n % 2 else power) / (2 * n + 1)
    error = (n + 2) * x / (1 << (precision + 8))  # rounding errors grow like the terms, to exp(x * x) at most
    low, high = _interval(lambda iv, y: y / iv.sqrt(iv.pi), Fraction(2), precision + 8)
    return (total - error) * low, (total + error) * high


def _down(x: Fraction, unit: Fraction) -> Fraction:
    return x // unit * unit


_BETWEEN: Mapping[str, Callable[[Fraction, int], tuple[Fraction, Fraction]]] = {
    "exp": _exp,
    "log": lambda x, precision: _interval(lambda iv, y: iv.log(y), x, precision),
    "expm1": _expm1,
    "log1p": lambda x, precision: _interval(lambda iv, y: iv.log(y), 1 + x, precision),
    "tanh": _tanh,
    "erf": _erf,
    "sin": lambda x, precision: _interval(lambda iv, y: iv.sin(y), x, precision),
    "cos": lambda x, precision: _interval(lambda iv, y: iv.cos(y), x, precision),
}

#: The names of the functions.
FUNCTIONS = frozenset(_BETWEEN)
