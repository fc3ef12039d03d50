"""The oracle as an arithmetic: algorithms run on single numbers, each operation rounded by the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcfsim.formats import Format
from mcfsim.rounding import Rounding, Underflow
from mcfsim.truth.definition import NEAREST_EVEN, NO_ONE_RESULT, operate, round_float


class TruthArithmetic:
    """Operations on Python floats that round each exact result once, by the definition.

    It offers what `mcfsim.arithmetic.Arithmetic` asks for, so that any algorithm written against that runs on
    the oracle. NaN, infinities, signed zeros, overflow and underflow are those of `operate`.

    Parameters
    ----------
    fmt : Format
        Where every result is rounded. Its numbers must be binary64 numbers.
    rounding : Rounding, optional
        Mode and policies; by default to nearest, ties to even.

    Notes
    -----
    An operand is a Python float, or an int that is a binary64 number. One that is no value of the format is
    a real number: it enters exactly, but for `neg` and `abs`, which round it.

    Raises
    ------
    TypeError
        If the format is no Format or the rounding no Rounding; in an operation, if an operand is no Python
        number.
    ValueError
        If the mode is stochastic, or binary64 does not hold the format; in an operation, if an int is no
        binary64 number.
    """

    def __init__(self, fmt: Format, rounding: Rounding = NEAREST_EVEN) -> None:
        if not isinstance(fmt, Format):
            raise TypeError(f"the format must be a Format, not {fmt!r}")
        if not isinstance(rounding, Rounding):
            raise TypeError(f"the rounding must be a Rounding, not {rounding!r}")
        if rounding.stochastic:
            raise ValueError(NO_ONE_RESULT)
        operate("mul", (1.0, 1.0), fmt, rounding)  # refuses a format that binary64 does not hold
        self.format, self.rounding = fmt, rounding

    def __repr__(self) -> str:
        return f"TruthArithmetic({self.format}, {self.rounding.mode}, {self.rounding.overflow})"

    def add(self, a: float, b: float) -> float:
        """Return ``a + b``."""
        return self._operate("add", a, b)

    def sub(self, a: float, b: float) -> float:
        """Return ``a - b``."""
        return self._operate("sub", a, b)

    def mul(self, a: float, b: float) -> float:
        """Return ``a * b``; 0 times infinity is NaN."""
        return self._operate("mul", a, b)

    def div(self, a: float, b: float) -> float:
        """Return ``a / b``; x / 0 is an infinity (NaN in a format without), 0 / 0 is NaN."""
        return self._operate("div", a, b)

    def sqrt(self, a: float) -> float:
        """Return the square root; NaN below zero, and -0 of -0."""
        return self._operate("sqrt", a)

    def fma(self, a: float, b: float, c: float) -> float:
        """Return ``a * b + c``, rounded once."""
        return self._operate("fma", a, b, c)

    def neg(self, a: float) -> float:
        """Return ``-a``; where that is no value of the format, what the rounding makes of it."""
        negative = -self._value(a)
        if self.format.signed or self.rounding.underflow is Underflow.FLUSH_INPUTS:
            return self._value(negative)
        return self.round(negative)

    def abs(self, a: float) -> float:
        """Return ``|a|``; where that is no value of the format, what the rounding makes of it."""
        return self._value(abs(self._value(a)))

    def round(self, x: float) -> float:
        """Round a real number into the format."""
        return round_float(_number(x), self.format, self.rounding)

    def evaluate(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return ``function(self, *operands)``."""
        return function(self, *operands)

    def _operate(self, name: str, *operands: float) -> float:
        return operate(name, [_number(operand) for operand in operands], self.format, self.rounding)

    def _value(self, x: float) -> float:
        """Return a value of the format as it is, subnormal or not, and another number rounded."""
        return round_float(_number(x), self.format, replace(self.rounding, underflow=Underflow.GRADUAL))


def _number(x: Any) -> float:
    if not isinstance(x, float | int) or isinstance(x, bool):
        raise TypeError(f"an operand must be a Python float, not {x!r} of type {type(x).__name__}")
    try:
        number = float(x)
    except OverflowError:
        number = float("inf")
    if number != x and isinstance(x, int):
        raise ValueError(f"the operand {x} is no binary64 number")
    return number
