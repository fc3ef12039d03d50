"""Claims about stochastic rounding: expectation, variance and bias of results, over all draws."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.hypotheses import exponent, hypothesis
from mcfsim.theorems.statement import Claim
from mcfsim.theorems.trial import Measured, Trial, Truth

#: What a result stands for, exactly.
Target = Callable[[Trial], Exact]


def unbiased(target: Target, text: str) -> Claim:
    """Claim that the sum of the results has the target as its expectation."""
    return Claim(text, lambda t: (t.mean(t.result()) - target(t)).is_zero() & t.finite)


def unbiased_iff_resolved(rounded: Target, text: str) -> Claim:
    """Claim that a rounded number is the expectation if and only if r random bits resolve it."""

    def test(t: Trial) -> Truth:
        x = rounded(t)
        return (t.mean(t.result()) - x).is_zero() == is_resolved(x, t)

    return Claim(f"E[s] = {text} if and only if {text} is a multiple of ulp({text}) / 2^r", test)


def bias_inward(rounded: Target, text: str) -> Claim:
    """Claim that the expectation is less than ``ulp / 2**r`` from a rounded number, toward zero."""
    measure = _bias_of(rounded)

    def test(t: Trial) -> Truth:
        found = t.once(measure)
        inward = abs(t.mean(t.result())) <= abs(rounded(t))
        return inward & ~(found.reference <= abs(found.error))

    return Claim(text, test, measure, lambda ratio, p: abs(ratio), lambda p: Fraction(1))


def bias_of_half(rounded: Target, text: str) -> Claim:
    """Claim that the expectation is at most ``ulp / 2**(r + 1)`` from a rounded number."""
    measure = _bias_of(rounded)

    def test(t: Trial) -> Truth:
        found = t.once(measure)
        return abs(found.error) * 2 <= found.reference

    return Claim(text, test, measure, lambda ratio, p: abs(ratio), lambda p: Fraction(1, 2))


def variance_of_quarter(rounded: Target, text: str) -> Claim:
    """Claim that the variance is at most ``ulp**2 / 4``."""

    def measure(t: Trial) -> Measured:
        x = rounded(t)
        error, ulp = t.result() - x, units(x, t)
        mean = t.mean(error)
        return Measured(t.mean(error * error) - mean * mean, ulp * ulp)

    def test(t: Trial) -> Truth:
        found = t.once(measure)
        return found.error * 4 <= found.reference

    return Claim(text, test, measure, lambda ratio, p: ratio, lambda p: Fraction(1, 4))


def _bias_of(rounded: Target) -> Callable[[Trial], Measured]:
    def measure(t: Trial) -> Measured:
        x = rounded(t)
        return Measured(t.mean(t.result()) - x, units(x, t, t.rounding.random_bits))

    return measure


# -- units in the last place --------------------------------------------------------------------------------
def units(x: Exact, t: Trial, bits: int = 0) -> Exact:
    """Return the units in the last place of exact numbers, over ``2**bits``."""
    exponents = _ulp_exponent(x, t) - bits
    return Exact(np.ones(exponents.shape), exponents, 1)


def is_resolved(x: Exact, t: Trial) -> Truth:
    """Return where exact numbers have at most r bits below their unit in the last place."""
    below = np.maximum(_ulp_exponent(x, t) - t.rounding.random_bits - x.q, 0)
    n = x.integers()
    if n.dtype != object:
        return n & ((np.int64(1) << np.minimum(below, 62)) - 1) == 0
    return (n & np.array([(1 << int(k)) - 1 for k in below], object) == 0).astype(np.bool_)


def _ulp_exponent(x: Exact, t: Trial) -> Any:
    if x.bits <= 53:
        length = np.frexp(x.integers().astype(np.float64))[1].astype(np.int64)
    else:
        length = np.array([int(n).bit_length() for n in x.integers()], np.int64)
    fmt = t.format
    return np.maximum(length - 1 + x.q, fmt.emin) - fmt.precision + 1


# -- hypotheses ---------------------------------------------------------------------------------------------
def _resolving(t: Trial) -> Truth:
    last = np.minimum(_last_bit(t["a"], t), _last_bit(t["b"], t))
    first = np.maximum(*(exponent(t[name], t.format) for name in ("a", "b")))
    return first - last <= t.format.precision + t.rounding.random_bits - 3


def _last_bit(x: Any, t: Trial) -> Any:
    p = t.format.precision
    significand, exponents = np.frexp(x)
    n = np.ldexp(significand, p).astype(np.int64)
    last = np.frexp((n & -n).astype(np.float64))[1] - 1 + exponents - p
    return np.where(x == 0, np.iinfo(np.int32).max, last)  # zero has none


#: No operation of 2Sum or Fast2Sum then has a result of more than p + r bits, down to the last of a and b.
RESOLVED = hypothesis("first bit of a, b <= 2^(p+r-3) last bit of a, b", _resolving)
