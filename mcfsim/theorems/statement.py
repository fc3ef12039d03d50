"""A theorem about a rounded algorithm as data, and the predicates that statements are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.native import NativeArithmetic
from mcfsim.eft import two_sum
from mcfsim.formats import Format
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding, Underflow

Numbers = NDArray[np.float64]
BINARY64 = NativeArithmetic(np.float64)
#: An array of booleans.
Truth = Any

NEAREST = frozenset({Mode.NEAREST_EVEN, Mode.NEAREST_AWAY})
EVERY_MODE = frozenset(DETERMINISTIC)


@dataclass(frozen=True)
class Theorem:
    """A claim about the results of an algorithm on all operands that meet a hypothesis.

    Parameters
    ----------
    name : str
        Its id.
    algorithm : callable
        ``algorithm(ar, *operands)``; returns a tuple of values.
    operands : int
        How many values of the format it takes: 1 or 2.
    where, claim : callable
        ``where(fmt, operands, results)`` says where the hypothesis holds, ``claim(fmt, operands, results)``
        where the claim does; blocks of binary64 numbers in, booleans out, both exact.
    statement : str
        Hypothesis and claim in words.
    source : str
        Author, venue, theorem number.
    modes : frozenset of Mode
        For which it is claimed.
    precision : int, optional
        The least precision for which it is claimed.
    holds : bool, optional
        False for a statement that is often made, and false.
    """

    name: str
    algorithm: Callable[..., Any]
    operands: int
    where: Callable[[Format, tuple[Numbers, ...], tuple[Numbers, ...]], Truth]
    claim: Callable[[Format, tuple[Numbers, ...], tuple[Numbers, ...]], Truth]
    statement: str
    source: str
    modes: frozenset[Mode] = field(default=NEAREST)
    precision: int = 2
    holds: bool = True

    def claimed(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether it is claimed to hold: only of floats with sign and zero, underflow gradual."""
        usual = type(fmt) is Format and fmt.signed and fmt.zero and rounding.underflow is Underflow.GRADUAL
        return usual and self.holds and rounding.mode in self.modes and fmt.precision >= self.precision


# -- hypotheses ------------------------------------------------------------------------------------------
# That nothing overflows is said of the exact result, since a directed mode may round it to the largest
# finite number.
def sum_in_range(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``|a + b|`` is at most the largest finite number."""
    total, residual = two_sum(BINARY64, *operands)
    largest = float(fmt.max)
    return (np.abs(total) < largest) | ((np.abs(total) == largest) & (residual * total <= 0))


def ordered(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``|a| >= |b|`` and the sum is in range."""
    return (np.abs(operands[0]) >= np.abs(operands[1])) & sum_in_range(fmt, operands, results)


def first_not_largest(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where the sum is in range and ``|a|`` is not the largest finite number."""
    return (np.abs(operands[0]) != float(fmt.max)) & sum_in_range(fmt, operands, results)


def within_factor_two(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``b / 2 <= a <= 2 b`` for numbers of one sign."""
    a, b = operands
    return (a * b >= 0) & (np.abs(b) <= 2 * np.abs(a)) & (np.abs(a) <= 2 * np.abs(b))


def product_in_range(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``|a b|`` is at most the largest finite number."""
    return np.abs(operands[0] * operands[1]) <= float(fmt.max)


def product_of_quanta(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``a b`` is in range and a multiple of the smallest subnormal number."""
    # Exact: the product is a binary64 number, and fmod rounds nothing.
    multiple = np.fmod(operands[0] * operands[1], float(fmt.smallest_subnormal)) == 0
    return multiple & product_in_range(fmt, operands, results)


def splits_in_range(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``(2**s + 1) |x|`` is at most the largest finite number."""
    return np.abs(operands[0]) * (2.0 ** -(-fmt.precision // 2) + 1) <= float(fmt.max)


# -- claims ----------------------------------------------------------------------------------------------
def exact_sum(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``s + e == a + b`` exactly."""
    a, b = operands
    s, e = results
    swap = np.abs(a) < np.abs(b)
    big, small = np.where(swap, b, a), np.where(swap, a, b)
    # s is a rounding of the sum, so big - s is exact in binary64; what is left is a sum with its residual.
    error, residual = two_sum(BINARY64, big - s, small)
    return (e == error) & (residual == 0)


def exact_product(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``p + e == a b`` exactly.

    The product of two 26-bit numbers is a binary64 number, and so is its distance to p.
    """
    return operands[0] * operands[1] - results[0] == results[1]


def exact_split(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where ``high + low == x`` exactly, with at most ``floor(p / 2)`` bits in high."""
    high, low = results
    significand = np.frexp(high)[0] * 2.0 ** (fmt.precision // 2)
    return (high + low == operands[0]) & (significand == np.rint(significand))


def exact_difference(fmt: Format, operands: tuple[Numbers, ...], results: tuple[Numbers, ...]) -> Truth:
    """Return where the difference is not rounded."""
    return operands[0] - operands[1] == results[0]
