"""Exact numbers in arrays: integers times powers of two, with as many bits as they need.

The integers are held in binary64 while they stay below ``2**53``, in int64 below ``2**62``, in two words
below ``2**124``, and as Python integers beyond. Each array carries a bound on its bits, which settles the
type before any operation could round or overflow.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.theorems.two_words import ExactNumbers, TwoWords, lengths

Array = NDArray[Any]
#: Storage of integers: an array of float64, of int64 or of Python integers; or two words.
Held = Any

#: A number that is used for every element.
Real = int | float | Fraction | np.integer[Any] | np.floating[Any]

#: Exponent of zeros in an array without a common exponent; those of other numbers are smaller.
_NONE = 1 << 20
_length_of_one = np.frompyfunc(int.bit_length, 1, 1)


class Exact(ExactNumbers):
    """An array of exact numbers ``n * 2**q``, with exact elementwise operators and comparisons.

    The other operand is an `Exact` of the same shape, or one number for all elements: an int, a finite float
    or a Fraction. In a sum, difference or product it must be an integer times a power of two. Anything else
    raises TypeError: an array of floats may hold infinities or NaN.

    Parameters
    ----------
    n : array of float64, int64 or int objects, or TwoWords
        Integers.
    q : int or array of int64
        Exponents: one for all, or one each.
    bits : int
        Every ``|n|`` is at most ``2**bits``.
    """

    __slots__ = ("bits", "n", "q")

    def __init__(self, n: Held, q: int | Array, bits: int) -> None:
        self.n, self.q, self.bits = _hold(n, bits), q, bits

    @classmethod
    def of(cls, x: Array, precision: int = 53) -> Exact:
        """Return finite binary32 or binary64 numbers of at most `precision` significant bits, exactly."""
        integer = np.dtype(f"i{x.dtype.itemsize}")
        info = np.finfo(x.dtype)
        code = x.view(integer) & np.iinfo(integer).max
        # A zero wraps around to the largest code, so it is not the smallest.
        least = int((code - 1).view(f"u{x.dtype.itemsize}").min(initial=np.iinfo(integer).max)) + 1
        most = int(code.max(initial=0))
        if most == 0:
            return cls(np.zeros(x.shape), 0, 1)
        bias = int(info.maxexp) - 1
        low = max(least >> info.nmant, 1) - bias - info.nmant
        if least >> info.nmant:  # a normal number: its last bits are zeros
            low += info.nmant - precision + 1
        bits = max(most >> info.nmant, 1) - bias + 1 - low
        if bits <= 53 and low >= -1023:
            return cls(np.multiply(x, _power(-low), dtype=np.float64), low, bits)
        significand, exponent = np.frexp(x.astype(np.float64))
        # Each number is scaled by itself: a common power of two need not be a binary64 number.
        n = np.ldexp(significand, precision)
        return cls(n, np.where(n == 0, _NONE, exponent.astype(np.int64) - precision), precision)

    def __getitem__(self, index: Any) -> Exact:
        if isinstance(index, int | np.integer):
            raise TypeError(f"an Exact is an array: its element {index} is .fraction({index})")
        return Exact(self.n[index], self.q if isinstance(self.q, int) else self.q[index], self.bits)

    def __neg__(self) -> Exact:
        return Exact(-self.n, self.q, self.bits)

    def __abs__(self) -> Exact:
        return Exact(abs(self.n), self.q, self.bits)

    def __add__(self, other: Exact | Real) -> Exact:
        a, b, q, bits = self._aligned(self._operand(other))
        bits += 1
        return Exact(_hold(a, bits) + _hold(b, bits), q, bits)

    def __mul__(self, other: Exact | Real) -> Exact:
        other = self._operand(other)
        bits, q = self.bits + other.bits, self.q + other.q
        if 62 < bits <= 124 and max(self.bits, other.bits) <= 62:
            return Exact(TwoWords.product(_hold(self.n, 62), _hold(other.n, 62)), q, bits)
        if bits > 62:  # two words cannot be multiplied; 125 bits mean Python integers
            return Exact(_hold(self.n, 125) * _hold(other.n, 125), q, max(bits, 125))
        return Exact(_hold(self.n, bits) * _hold(other.n, bits), q, bits)

    def __le__(self, other: Exact | Real) -> Array:
        a, b = self._sides(other)
        return np.asarray(a <= b, dtype=np.bool_)

    def __eq__(self, other: Exact | Real) -> Array:  # type: ignore[override]
        a, b = self._sides(other)
        return np.asarray(a == b, dtype=np.bool_)

    def is_zero(self) -> Array:
        """Return where the number is zero."""
        zero = self.n.is_zero() if isinstance(self.n, TwoWords) else self.n == 0
        return np.asarray(zero, dtype=np.bool_)

    def lengths(self) -> NDArray[np.int64]:
        """Return how many bits the magnitude of each integer has; 0 for zero."""
        return _lengths(self.n)

    def ratio(self, other: Exact) -> NDArray[np.float64]:
        """Return the quotient in binary64, with a relative error below ``2**-50``; 0 where both are zero."""
        (numerator, up), (denominator, down) = _leading(self.n), _leading(other.n)
        with np.errstate(divide="ignore", invalid="ignore"):
            quotient = numerator / denominator
        quotient[(numerator == 0) & (denominator == 0)] = 0.0
        shift = self.q - other.q + up - down
        if isinstance(shift, int) and abs(shift) < 1000:
            return quotient * _power(shift)
        shift = np.clip(shift, -2000, 2000)
        return np.ldexp(quotient, np.broadcast_to(shift, quotient.shape).astype(np.int32))

    def numbers(self) -> NDArray[np.float64]:
        """Return the numbers in binary64, exactly.

        Raises
        ------
        OverflowError
            If one has more than 53 bits.
        """
        wide, up = _leading(self.n)
        back = [int(w) << int(s) for w, s in np.broadcast(wide, up)]
        if self.bits > 53 and back != self.integers().ravel().tolist():
            raise OverflowError("a number has more bits than binary64 holds")
        q = np.where(wide == 0, 0, self.q + up)
        return np.ldexp(wide, np.broadcast_to(q, wide.shape).astype(np.int32))

    def integers(self) -> Array:
        """Return the integers n, as int64 or as Python integers."""
        if isinstance(self.n, TwoWords):
            return self.n.integers()
        n: Array = self.n.astype(np.int64) if self.n.dtype == np.float64 else self.n
        return n

    def fraction(self, index: int) -> Fraction:
        """Return the number at an index."""
        n = self.n.integer(index) if isinstance(self.n, TwoWords) else int(self.n[index])
        if n == 0:
            return Fraction(0)
        q = self.q if isinstance(self.q, int) else int(self.q[index])
        return Fraction(n) * Fraction(2) ** q

    def _sides(self, other: Exact | Real) -> tuple[Held, Held]:
        """Return two arrays of integers that compare as the two numbers do."""
        if isinstance(other, Exact):
            a, b, _, _ = self._aligned(self._operand(other))
            return a, b
        number = _fraction(other)
        odd = number.denominator // (number.denominator & -number.denominator)
        a, b, _, _ = (self * odd if odd > 1 else self)._aligned(self._constant(number * odd))
        return a, b

    def _operand(self, other: Exact | Real) -> Exact:
        """Return the other operand as an array of the same shape."""
        if not isinstance(other, Exact):
            return self._constant(_fraction(other))
        if other.n.shape != self.n.shape:
            raise ValueError(f"exact numbers of shapes {self.n.shape} and {other.n.shape} cannot be combined")
        return other

    def _constant(self, number: Fraction) -> Exact:
        """Return a number as an array of the same shape."""
        n, d = number.numerator, number.denominator
        if d & (d - 1):
            raise TypeError(f"{number} is not an integer times a power of two, and can only be compared")
        bits = n.bit_length()
        if bits <= 53:
            return Exact(np.full(self.n.shape, n, np.float64), 1 - d.bit_length(), bits)
        return Exact(np.full(self.n.shape, n, object), 1 - d.bit_length(), max(bits, 125))

    def _aligned(self, other: Exact) -> tuple[Held, Held, int | Array, int]:
        """Return both integers at the smaller exponent, then this exponent and a bound on their bits."""
        if isinstance(self.q, int) and isinstance(other.q, int):
            q = min(self.q, other.q)
            up, down = self.q - q, other.q - q
            bits = max(self.bits + up, other.bits + down)
            return _shifted(self.n, up, bits), _shifted(other.n, down, bits), q, bits
        least = np.minimum(self.q, other.q)
        ups, downs = (np.where(x.is_zero(), 0, x.q - least) for x in (self, other))
        bits = max(self.bits + int(ups.max(initial=0)), other.bits + int(downs.max(initial=0)))
        return _shifted(self.n, ups, bits), _shifted(other.n, downs, bits), least, bits


def _fraction(number: object) -> Fraction:
    """Return a number as an exact Fraction.

    Raises
    ------
    TypeError
        If it is not a finite real number: an infinity, NaN, an array, or a truth value.
    """
    if isinstance(number, bool | np.bool_) or not isinstance(
        number, int | float | Fraction | np.integer | np.floating
    ):
        raise TypeError(
            f"an exact number goes with exact numbers, such as t.exact(name) and t.result(), and with int, "
            f"float and Fraction, not with {type(number).__name__}"
        )
    if isinstance(number, float | np.floating):
        number = float(number)
        if not np.isfinite(number):
            raise TypeError(f"an exact number goes with finite numbers, not with {number}")
    return Fraction(int(number)) if isinstance(number, np.integer) else Fraction(number)


def _power(exponent: int) -> float:
    return float(np.ldexp(1.0, exponent))


def _hold(n: Held, bits: int) -> Held:
    """Return integers in a type that holds this many bits; never narrow them."""
    if bits <= 53 or (isinstance(n, np.ndarray) and n.dtype == object):
        return n
    if bits > 124:
        return n.integers() if isinstance(n, TwoWords) else n.astype(np.int64).astype(object)
    if isinstance(n, TwoWords):
        return n
    if n.dtype == np.float64:
        n = n.astype(np.int64)  # it has at most 53 bits
    return n if bits <= 62 else TwoWords.of(n)


def _leading(n: Held) -> tuple[NDArray[np.float64], int | Array]:
    """Return integers as binary64 numbers and exponents of 2, with a relative error below ``2**-51``."""
    if isinstance(n, TwoWords):
        return n.numbers(), 0
    if n.dtype != object:
        return n.astype(np.float64), 0
    # Python integers may exceed binary64. Cutting them has a relative error below 2**-60.
    spare = np.maximum(_lengths(n) - 62, 0)
    cut = (np.abs(n) >> spare.astype(object)).astype(np.float64)  # the same for both signs
    return np.where(n < 0, -cut, cut), spare


def _lengths(n: Held) -> NDArray[np.int64]:
    if isinstance(n, TwoWords):
        return n.lengths()
    if n.dtype == object:
        each: NDArray[np.int64] = np.asarray(_length_of_one(n)).astype(np.int64)
        return each
    if n.dtype == np.float64:
        return np.asarray(np.frexp(n)[1], np.int64)
    return lengths(n)


def _shifted(n: Held, by: int | Array, bits: int) -> Held:
    n = _hold(n, bits)
    if isinstance(n, TwoWords):
        return n << by
    if n.dtype == np.float64:
        return n * _power(by) if isinstance(by, int) else np.ldexp(n, by.astype(np.int32))
    return n << (by if isinstance(by, int) or n.dtype != object else by.astype(object))
