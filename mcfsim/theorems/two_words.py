"""Integers of up to 124 bits in arrays, two int64 words each, and base classes of arrays of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import Opaque

Integers = NDArray[np.int64]

#: Bits of the low word.
BITS = 62
_MASK = np.int64((1 << BITS) - 1)
_HALF = np.int64(31)
_HALF_MASK = np.int64((1 << 31) - 1)


class Elementwise(Opaque):
    """A base class for arrays of ordered numbers, which derives all comparisons from two.

    A subclass defines ``__le__`` and ``__eq__``. Each returns an array of booleans, or raises TypeError if
    it cannot compare with the other operand.
    """

    __slots__ = ()
    opaque = "holds one number per case: it has no single truth value, and cannot be searched or hashed"

    def __ne__(self: Any, other: object) -> Any:
        return ~(self == other)

    def __lt__(self: Any, other: Any) -> Any:
        return (self <= other) & ~(self == other)

    def __gt__(self: Any, other: Any) -> Any:
        return ~(self <= other)

    def __ge__(self: Any, other: Any) -> Any:
        return ~(self <= other) | (self == other)


class ExactNumbers(Elementwise):
    """A base class for exact numbers, which derives differences and operators with a number on the left.

    A subclass defines ``__add__``, ``__neg__`` and ``__mul__``, and `_operand`, which converts the other
    operand.
    """

    __slots__ = ()

    def __radd__(self: Any, other: Any) -> Any:
        return self + other

    def __sub__(self: Any, other: Any) -> Any:
        return self + -self._operand(other)

    def __rsub__(self: Any, other: Any) -> Any:
        return -self + other

    def __rmul__(self: Any, other: Any) -> Any:
        return self * other


class TwoWords(Elementwise):
    """An array of integers ``high * 2**62 + low``, ``0 <= low < 2**62``; the caller ensures that they fit.

    Parameters
    ----------
    high, low : array of int64
        Of the same shape.
    """

    __slots__ = ("high", "low")

    def __init__(self, high: Integers, low: Integers) -> None:
        self.high, self.low = high, low

    @classmethod
    def of(cls, n: Integers) -> TwoWords:
        """Return integers of one word in two words."""
        return cls(n >> BITS, n & _MASK)

    @classmethod
    def product(cls, a: Integers, b: Integers) -> TwoWords:
        """Return the product of integers of magnitude at most ``2**62``."""
        x, y = np.abs(a), np.abs(b)
        x1, x0, y1, y0 = x >> _HALF, x & _HALF_MASK, y >> _HALF, y & _HALF_MASK
        middle = x1 * y0 + x0 * y1  # below 2**63
        low = x0 * y0 + ((middle & _HALF_MASK) << _HALF)
        magnitude = cls(x1 * y1 + (middle >> _HALF) + (low >> BITS), low & _MASK)
        return magnitude._negated((a < 0) != (b < 0))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.high.shape

    def __getitem__(self, index: Any) -> TwoWords:
        return TwoWords(self.high[index], self.low[index])

    def __neg__(self) -> TwoWords:
        return TwoWords(-self.high - (self.low != 0), -self.low & _MASK)

    def __abs__(self) -> TwoWords:
        return self._negated(self.high < 0)

    def __add__(self, other: TwoWords) -> TwoWords:
        _refuse_other(other)
        low = self.low + other.low
        return TwoWords(self.high + other.high + (low >> BITS), low & _MASK)

    def __lshift__(self, by: int | Integers) -> TwoWords:
        first = np.minimum(by, BITS)
        shifted, rest = self._shifted(first), by - first
        return shifted._shifted(rest) if np.any(rest) else shifted

    def __eq__(self, other: TwoWords) -> NDArray[np.bool_]:  # type: ignore[override]
        _refuse_other(other)
        same: NDArray[np.bool_] = (self.high == other.high) & (self.low == other.low)
        return same

    def __le__(self, other: TwoWords) -> NDArray[np.bool_]:
        _refuse_other(other)
        same = self.high == other.high
        below: NDArray[np.bool_] = (self.high < other.high) | (same & (self.low <= other.low))
        return below

    def is_zero(self) -> NDArray[np.bool_]:
        """Return where the integer is zero."""
        result: NDArray[np.bool_] = (self.high | self.low) == 0
        return result

    def lengths(self) -> Integers:
        """Return how many bits the magnitude of each integer has; 0 for zero."""
        magnitude = abs(self)
        return np.where(magnitude.high > 0, BITS + lengths(magnitude.high), lengths(magnitude.low))

    def numbers(self) -> NDArray[np.float64]:
        """Return the integers in binary64, with a relative error below ``2**-51``."""
        magnitude = abs(self)  # its words do not cancel
        wide = magnitude.high.astype(np.float64) * 2.0**BITS + magnitude.low.astype(np.float64)
        return np.where(self.high < 0, -wide, wide)

    def integers(self) -> NDArray[Any]:
        """Return the integers as Python integers."""
        result: NDArray[Any] = (self.high.astype(object) << BITS) + self.low.astype(object)
        return result

    def integer(self, index: int) -> int:
        """Return the integer at an index."""
        return (int(self.high[index]) << BITS) + int(self.low[index])

    def _negated(self, where: NDArray[np.bool_]) -> TwoWords:
        other = -self
        return TwoWords(np.where(where, other.high, self.high), np.where(where, other.low, self.low))

    def _shifted(self, by: Any) -> TwoWords:
        rest = BITS - by
        # Bits that int64 shifts out lie above the mask, which would drop them, too.
        return TwoWords((self.high << by) | (self.low >> rest), (self.low << by) & _MASK)


def lengths(n: Integers) -> Integers:
    """Return how many bits integers of magnitude at most ``2**62`` have; 0 for zero."""
    n = np.abs(n)
    # binary64 holds either half, and so it does not round one up to a power of two.
    upper, lower = (np.frexp(half.astype(np.float64))[1] for half in (n >> _HALF, n & _HALF_MASK))
    return np.where(upper > 0, _HALF + upper, lower).astype(np.int64)


def _refuse_other(other: object) -> None:
    if not isinstance(other, TwoWords):
        raise TypeError(f"integers of two words go with each other, not with {type(other).__name__}")
