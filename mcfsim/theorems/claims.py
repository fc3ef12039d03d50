"""What statements say of results: tests of the cases of a trial, all of them exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from mcfsim.symbolic import Polynomial, Quotient
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.identities import equal_sums
from mcfsim.theorems.statement import Claim
from mcfsim.theorems.trial import Measured, Trial, Truth, all_hold, only, rarely, total

#: What a result should be: an exact number, or the quotient of two.
Target = Callable[[Trial], Exact | tuple[Exact, Exact]]
#: A constant, or one that depends on the precision: as a function of u, or of the precision.
Constant = int | Fraction | Polynomial | Quotient | Callable[[int], Fraction]

#: Binary64 quotients are wrong by less than this share: beyond it they decide, within it integers do.
_SHARE = 2.0**-45


def claim(text: str, test: Callable[[Trial], Truth]) -> Claim:
    """Return a claim of one's own: its words, and a test that says of each case whether it holds."""
    return Claim(text, test)


# -- targets ------------------------------------------------------------------------------------------------
def sum_of(*names: str) -> Target:
    """Return the sum of operands, components included."""

    def target(t: Trial) -> Exact:
        return total(map(t.exact, names))

    return target


def product_of(a: str, b: str) -> Target:
    """Return the product of two operands."""
    return lambda t: t.exact(a) * t.exact(b)


def quotient_of(a: str, b: str) -> Target:
    """Return the quotient of two operands."""
    return lambda t: (t.exact(a), t.exact(b))


# -- exactness ----------------------------------------------------------------------------------------------
def exact_sum(a: str = "a", b: str = "b") -> Claim:
    """Claim that two results s and e have exactly the sum of two values."""

    def test(t: Trial) -> Truth:
        (x, y), (s, e) = (t[a], t[b]), t.results
        # If s is one of the operands, e must be the other.
        is_x, is_y = s == x, s == y
        rest = only(~(is_x | is_y), equal_sums, x, y, s, e)
        return (is_x & (e == y)) | (is_y & (e == x)) | rest

    return Claim(f"s + e = {a} + {b} exactly", test)


def exactly(target: Target, text: str) -> Claim:
    """Claim that the sum of the results is exactly the target."""
    measure = _error_of(target)
    return Claim(text, lambda t: t.once(measure).error.is_zero() & t.finite, measure)


def is_representable(t: Trial, x: Exact) -> Truth:
    """Return where exact numbers are values of the format."""
    fmt = t.format
    n = np.abs(x.integers())
    # The odd part is below 2**p, the last bit no less than the quantum, and the whole no more than max.
    last = np.where(n == 0, 1, n & -n)
    short = n // last < 1 << fmt.precision
    quantum = fmt.emin - fmt.precision + 1
    q = np.broadcast_to(np.asarray(x.q), n.shape)
    shift = np.clip(quantum - q, 0, 62)
    coarse = (n & ((1 << shift) - 1)) == 0
    largest = Exact.of(np.full(n.shape, float(fmt.max)), fmt.precision)
    result: Any = (n == 0) | (short & coarse & (abs(x) <= largest))
    return result.astype(np.bool_)


def normalised(first: int = 0) -> Claim:
    """Claim that results ``first`` and ``first + 1`` are a double word: ``high = RN(high + low)``."""

    def test(t: Trial) -> Truth:
        high, low = t.results[first : first + 2]
        return t.ar.add(high, low) == high

    return Claim("the result is normalised: high = RN(high + low)", test)


def same_results(text: str) -> Claim:
    """Claim that the first half of the results equals the second, bit for bit but for signs of zero."""

    def test(t: Trial) -> Truth:
        half = len(t.results) // 2
        pairs = zip(t.results[:half], t.results[half:], strict=True)
        return all_hold(*((a == b) | (np.isnan(a) & np.isnan(b)) for a, b in pairs))

    return Claim(text, test)


def all_of(*claims: Claim) -> Claim:
    """Claim several things at once; what the first one measures is measured."""

    def test(t: Trial) -> Truth:
        return all_hold(*(each.test(t) for each in claims))

    first = claims[0]
    text = "; ".join(each.text for each in claims)
    return replace(first, text=text, test=test)


# -- errors -------------------------------------------------------------------------------------------------
def relative_error(
    constant: Constant, target: Target, *, unit: int = 2, text: str = "", of: str = ""
) -> Claim:
    """Claim that the sum of the results has at most so large a relative error.

    Parameters
    ----------
    constant : int, Fraction, Polynomial, Quotient or callable
        The bound in units of ``u**unit``: a number, a function of u, or one that gets the precision. Where
        the denominator of a `Quotient` is not positive the bound is that of a number: it bounds nothing.
    target : callable
        Returns the exact result: an `Exact`, or numerator and denominator.
    unit : int, optional
        1 or 2.
    text : str, optional
        The bound as it is written, such as ``3u^2/(1-4u)``.
    of : str, optional
        What it is relative to, if not the exact result.
    """
    measure = _error_of(target)
    scale = f"u^{unit}" if unit > 1 else "u"
    return bounded(measure, constant, unit, f"{text or f'{constant} {scale}'} |{of or 'exact result'}|")


def error_relative_to(
    constant: Constant, target: Target, reference: Target, *, unit: int = 1, text: str = ""
) -> Claim:
    """Claim a bound on the error of the results' sum, relative to something else than the exact result."""
    of_target = _error_of(target)

    def measure(t: Trial) -> Measured:
        other = reference(t)
        assert not isinstance(other, tuple)
        return Measured(of_target(t).error, other)

    return bounded(measure, constant, unit, text)


def root_error(constant: Constant, radicand: Target, *, text: str = "") -> Claim:
    """Claim that the sum of the results has at most so large an error relative to a square root.

    The root is irrational, but ``s**2 / x`` is not, and lies between ``(1 - c u**2)**2`` and
    ``(1 + c u**2)**2`` if and only if s is so near.
    """
    bound, formula = _function(constant)

    def measure(t: Trial) -> Measured:
        x, root = radicand(t), t.result()
        assert not isinstance(x, tuple)
        return Measured(root * root - x, x)

    def test(t: Trial) -> Truth:
        p = t.format.precision
        share = bound(p) / 4**p
        above, below = (_within(t.once(measure), abs((1 + d) ** 2 - 1)) for d in (share, -share))
        return np.where(t.once(measure).ratio >= 0, above, below) & t.finite

    def size(ratio: Fraction, p: int) -> mpmath.mpf:
        with mpmath.workdps(60):
            exact = mpmath.mpf(ratio.numerator) / ratio.denominator
            return abs(mpmath.sqrt(1 + exact) - 1) * 4**p

    said = f"|error| <= {text or f'{constant} u^2'} |exact result|"
    return Claim(said, test, measure, size, bound, formula, unit=2, squared=True)


def bounded(measure: Callable[[Trial], Measured], constant: Constant, unit: int, text: str) -> Claim:
    """Claim that a measured error is at most so many ``u**unit`` of its reference."""
    bound, formula = _function(constant)

    def test(t: Trial) -> Truth:
        p = t.format.precision
        return _within(t.once(measure), bound(p) / 2 ** (unit * p)) & t.finite

    def size(ratio: Fraction, p: int) -> Fraction:
        return abs(ratio) * Fraction(2) ** (unit * p)

    return Claim(f"|error| <= {text}", test, measure, size, bound, formula, unit)


def _error_of(target: Target) -> Callable[[Trial], Measured]:
    """Return what measures the error of the results' sum, multiplied by a quotient's denominator."""

    def measure(t: Trial) -> Measured:
        exact = target(t)
        if isinstance(exact, tuple):
            numerator, denominator = exact
            return Measured(t.result() * denominator - numerator, numerator)
        return Measured(t.result() - exact, exact)

    return measure


def _within(measured: Measured, limit: Fraction) -> Any:
    """Return where ``|error| <= limit |reference|``."""
    ratio = np.abs(measured.ratio)
    near = np.abs(ratio - float(limit)) <= _SHARE * float(limit)

    def exactly_within(some: Measured) -> Truth:
        return abs(some.error) * limit.denominator <= abs(some.reference) * limit.numerator

    decided = (ratio <= float(limit)) & ~near
    return decided | rarely(near, exactly_within, measured)


def _function(constant: Constant) -> tuple[Callable[[int], Fraction], Quotient | None]:
    """Return a constant at a precision, and as a function of u if it is known as one."""
    if callable(constant):
        return constant, None
    formula = constant if isinstance(constant, Quotient) else Quotient.of(constant)

    def at(p: int) -> Fraction:
        # From a pole of the formula down it bounds nothing.
        return formula.at(p) if formula.denominator.at(p) > 0 else Fraction(4**p)

    return at, formula
