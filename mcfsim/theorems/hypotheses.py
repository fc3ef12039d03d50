"""What statements suppose of operands: predicates on the cases of a trial, all of them exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.rounding import Overflow
from mcfsim.theorems.identities import product
from mcfsim.theorems.statement import Hypothesis
from mcfsim.theorems.trial import Block, Trial, Truth, all_hold, rarely


def hypothesis(text: str, test: Callable[[Trial], Truth]) -> Hypothesis:
    """Return a hypothesis of one's own: its words, and a test that says of each case whether it holds."""
    return Hypothesis(text, test)


def ordered(a: str, b: str) -> Hypothesis:
    """Suppose ``|a| >= |b|``; of expansions, of their first components."""
    return Hypothesis(f"|{a}| >= |{b}|", lambda t: np.abs(t.head(a)) >= np.abs(t.head(b)))


def exponents_ordered(a: str, b: str) -> Hypothesis:
    """Suppose that the exponent of a is at least that of b, or that a is zero."""

    def test(t: Trial) -> Truth:
        x, y = t.head(a), t.head(b)
        return (x == 0) | (exponent(x, t.format) >= exponent(y, t.format)) | (y == 0)

    return Hypothesis(f"e({a}) >= e({b}) or {a} = 0", test)


def multiple_of_ulp(a: str, b: str) -> Hypothesis:
    """Suppose that a is an integer multiple of ulp(b)."""

    def test(t: Trial) -> Truth:
        x, y = t.head(a).astype(np.float64), t.head(b)
        place = np.maximum(exponent(y, t.format), t.format.emin) - t.format.precision + 1
        return _is_whole(np.ldexp(x, -place))  # a power of two is taken out exactly

    return Hypothesis(f"{a} is a multiple of ulp({b})", test)


def exponent_gap(a: str, b: str, most: Callable[[int], int], text: str) -> Hypothesis:
    """Suppose that the exponents of nonzero a and b differ by at most ``most(p)``."""

    def test(t: Trial) -> Truth:
        x, y = t.head(a), t.head(b)
        gap = np.abs(exponent(x, t.format) - exponent(y, t.format))
        return (gap <= most(t.format.precision)) | (x == 0) | (y == 0)

    return Hypothesis(f"|e({a}) - e({b})| <= {text}", test)


def nonzero(*names: str) -> Hypothesis:
    """Suppose that operands are not zero."""

    def test(t: Trial) -> Truth:
        return all_hold(*(t.head(name) != 0 for name in names))

    return Hypothesis(" != 0, ".join(names) + " != 0", test)


def positive(name: str) -> Hypothesis:
    """Suppose that an operand is positive."""
    return Hypothesis(f"{name} > 0", lambda t: t.head(name) > 0)


def within_factor_two(a: str, b: str) -> Hypothesis:
    """Suppose ``b / 2 <= a <= 2 b`` for numbers of one sign."""

    def test(t: Trial) -> Truth:
        x, y = t.head(a).astype(np.float64), t.head(b).astype(np.float64)
        same = np.sign(x) * np.sign(y) >= 0
        return same & (np.abs(y) <= 2 * np.abs(x)) & (np.abs(x) <= 2 * np.abs(y))

    return Hypothesis(f"{b}/2 <= {a} <= 2 {b}", test)


def same_sign(a: str, b: str) -> Hypothesis:
    """Suppose that two numbers, or the first components of two expansions, have no opposite signs."""
    return Hypothesis(f"{a} {b} >= 0", lambda t: np.sign(t.head(a)) * np.sign(t.head(b)) >= 0)


def sum_in_range(a: str, b: str) -> Hypothesis:
    """Suppose ``|a + b| <= max``: that the exact sum does not overflow, whichever way it is rounded."""

    def test(t: Trial) -> Truth:
        x, y = t.head(a), t.head(b)
        largest = float(t.format.max)

        def up_to_it(x: Block, y: Block) -> Truth:
            u, v = np.abs(x), np.abs(y)
            room = largest - np.maximum(u, v)
            return (np.signbit(x) != np.signbit(y)) | (np.minimum(u, v) <= room)

        with np.errstate(over="ignore"):
            total = np.abs(np.add(x, y))
        # A faithful sum below the maximum comes from one in range, and one beyond it does not. At the
        # maximum, of numbers of one sign, what the larger one leaves to it is exact.
        return (total < largest) | rarely(total == largest, up_to_it, x, y)

    return Hypothesis(f"|{a} + {b}| <= max", test)


def product_in_range(a: str, b: str) -> Hypothesis:
    """Suppose ``|a b| <= max``; values of at most 26 bits have an exact product in binary64."""

    def test(t: Trial) -> Truth:
        return np.abs(product(t.head(a), t.head(b))) <= float(t.format.max)

    return Hypothesis(f"|{a} {b}| <= max", test)


def product_of_quanta(a: str, b: str) -> Hypothesis:
    """Suppose that ``a b`` is a multiple of the smallest subnormal number."""
    return Hypothesis(f"{a} {b} is a multiple of the smallest subnormal", lambda t: is_of_quanta(t, a, b))


def is_of_quanta(t: Trial, a: str, b: str) -> Truth:
    """Return where ``a b`` is a multiple of the smallest subnormal number."""
    fmt = t.format
    return _is_whole(np.ldexp(product(t.head(a), t.head(b)), fmt.precision - 1 - fmt.emin))


def not_largest(name: str) -> Hypothesis:
    """Suppose that a value is not the largest finite number, of either sign."""
    return Hypothesis(f"|{name}| < max", lambda t: np.abs(t.head(name)) != float(t.format.max))


#: Suppose that no result is infinite or NaN: of nearest modes, that nothing overflows. Where numbers
#: saturate, by policy or for want of both, results do not show it.
RESULTS_FINITE = Hypothesis(
    "no overflow",
    lambda t: t.finite,
    of_format=lambda fmt: fmt.has_nan or fmt.has_infinity,
    of_rounding=lambda rounding: rounding.overflow is not Overflow.SATURATE,
)


def exponent(x: Block, fmt: Format) -> Any:
    """Return ``floor(log2 |x|)``, subnormal numbers included; of zero a number below all others."""
    found = np.frexp(x)[1].astype(np.int64) - 1
    return np.where(x == 0, fmt.emin - 2 * fmt.precision - 2, found)


def _is_whole(x: Any) -> Any:
    return np.floor(x) == x
