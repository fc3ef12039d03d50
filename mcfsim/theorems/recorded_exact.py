"""Exact numbers of a line: binary64 numbers, whose operations are exact or in doubt."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.kernels.element.machine import F64, Value
from mcfsim.theorems.elementwise import Elementwise
from mcfsim.theorems.recorded import PredicateRecorder, Recorded

Real = int | float | Fraction
#: The bits of binary64, and the exponents of what it holds.
_BITS, _LEAST, _MOST = 53, -1074, 1023


class RecordedExact(Elementwise):
    """Exact numbers in the place of an `mcfsim.theorems.exact.Exact`.

    Where bounds on their bits do not show that an operation is exact in binary64, the line looks whether it
    is, and notes doubt where it is not.

    Parameters
    ----------
    recorder : Recorder
    value : Value
        Of binary64.
    unit, top : int
        They are multiples of ``2**unit``, of magnitudes up to ``2**top``.
    bits : int
        From the first bit that is set to the last there are at most so many.

    Raises
    ------
    TypeError
        If binary64 has not the range.
    """

    __slots__ = ("bits", "recorder", "top", "unit", "value")

    def __init__(self, recorder: PredicateRecorder, value: Value, unit: int, top: int, bits: int) -> None:
        if unit < _LEAST or top > _MOST:
            raise TypeError(f"binary64 does not hold exact numbers from 2^{unit} to 2^{top}")
        self.recorder, self.value, self.unit, self.top = recorder, value, unit, top
        self.bits = min(bits, top - unit)

    @classmethod
    def of(cls, x: Recorded) -> RecordedExact:
        """Take finite values of a format."""
        fmt = x.format
        if fmt is None or not x.value.type.is_float:
            raise TypeError("only values of a format are known to be exact numbers")
        value = x.value.widen()
        x.recorder.doubt(~(abs(value) < np.inf))
        return cls(x.recorder, value, fmt.emin - fmt.precision + 1, fmt.emax + 1, fmt.precision)

    def __neg__(self) -> RecordedExact:
        return RecordedExact(self.recorder, -self.value, self.unit, self.top, self.bits)

    def __abs__(self) -> RecordedExact:
        return RecordedExact(self.recorder, abs(self.value), self.unit, self.top, self.bits)

    def __add__(self, other: RecordedExact | Real) -> RecordedExact:
        x = self._operand(other)
        a, b = self.value, x.value
        total = a + b
        unit, top = min(self.unit, x.unit), max(self.top, x.top) + 1
        if top - unit > _BITS:
            # What a rounded sum leaves beside the larger operand is exact: if it is the smaller one, so is
            # the sum (Dekker).
            self.recorder.doubt(~((total - a).equals(b) & (total - b).equals(a)))
        return RecordedExact(self.recorder, total, unit, top, _BITS)

    def __radd__(self, other: Real) -> RecordedExact:
        return self + other

    def __sub__(self, other: RecordedExact | Real) -> RecordedExact:
        return self + -self._operand(other)

    def __rsub__(self, other: Real) -> RecordedExact:
        return -self + other

    def __mul__(self, other: RecordedExact | Real) -> RecordedExact:
        other = self._operand(other)
        unit, top = self.unit + other.unit, self.top + other.top
        spare = _BITS - self.bits - other.bits
        if spare < 0:
            # The longer one is to have as many bits as the other leaves; or both about half of all.
            half = _BITS // 2
            for x, y in ((self, other), (other, self)):
                most = max(_BITS - y.bits, half)
                if x.bits > most:
                    mask = (1 << (_BITS - most)) - 1
                    self.recorder.doubt(~(x.value.bits() & mask).equals(0))
        return RecordedExact(self.recorder, self.value * other.value, unit, top, min(_BITS, _BITS - spare))

    def __rmul__(self, other: Real) -> RecordedExact:
        return self * other

    def __le__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value <= self._operand(other).value)

    def __eq__(self, other: Any) -> Any:
        return Recorded(self.recorder, self.value.equals(self._operand(other).value))

    def numbers(self) -> Any:
        """Return the numbers in binary64."""
        return Recorded(self.recorder, self.value)

    def is_zero(self) -> Any:
        """Return where the number is zero."""
        return Recorded(self.recorder, self.value.equals(0.0))

    def ratio(self, other: RecordedExact) -> Any:
        """Return the quotient in binary64, rounded once; 0 where both are zero."""
        if self.unit - other.top <= -1022 or self.top - other.unit > _MOST:
            raise TypeError("a quotient might leave the range of binary64")
        neither = self.value.equals(0.0) & other.value.equals(0.0)
        quotient = neither.select(self.value.like(0.0), self.value / other.value)
        return Recorded(self.recorder, quotient)

    def _operand(self, other: RecordedExact | Real) -> RecordedExact:
        if isinstance(other, RecordedExact):
            return other
        if not isinstance(other, int | float | Fraction) or isinstance(other, bool):
            raise TypeError(f"exact numbers do not go with {type(other).__name__}")
        number = Fraction(other)
        n, d = abs(number.numerator), number.denominator
        zeros = (n & -n).bit_length() - 1 if n else 0
        bits = n.bit_length() - zeros
        if d & (d - 1) or bits > _BITS:
            raise TypeError(f"{number} is no number of binary64")
        unit = zeros - (d.bit_length() - 1)
        value = self.recorder.line.constant(float(number), F64)
        return RecordedExact(self.recorder, value, unit, unit + bits, bits)
