"""The oracle as an arithmetic: algorithms run on single numbers, each operation rounded by the definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from mcfsim.formats import Format, Posit
from mcfsim.oracle.definition import NEAREST_EVEN, NO_ONE_RESULT, Number, operate, round_float, round_fraction
from mcfsim.rounding import Rounding, Underflow

#: A real number: float, int, Fraction, Decimal or mpf.
Real = Any


class _Result(float):
    """What an operation made: a value of its format, which is rounded no more."""

    __slots__ = ()


class OracleArithmetic:
    """Operations on Python floats that round each exact result once, by the definition.

    It offers what `mcfsim.protocol.Arithmetic` asks for, so that any algorithm written against that runs on
    the oracle. NaN, infinities, signed zeros, overflow and underflow are those of `operate`.

    Parameters
    ----------
    fmt : Format
        Where every result is rounded. Its numbers must be binary64 numbers.
    rounding : Rounding, optional
        Mode and policies; by default to nearest, ties to even.

    Notes
    -----
    An operand is a Python float, an int of any size, a Fraction, a Decimal or an mpf. One that is no value of
    the format is a real number, which enters exactly.

    Raises
    ------
    TypeError
        If the format is no Format or the rounding no Rounding; in an operation, if an operand is no Python
        number.
    ValueError
        If the mode is stochastic, or binary64 does not hold the format.
    """

    #: What its numbers are.
    carrier = float

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
        return f"OracleArithmetic({self.format}, {self.rounding.mode}, {self.rounding.overflow})"

    def like(self, fmt: Format, rounding: Rounding) -> OracleArithmetic:
        """Return the oracle of another format and rounding."""
        return OracleArithmetic(fmt, rounding)

    def on_block(self, step: int, start: int) -> OracleArithmetic:
        """Return itself: elements of a block are as any."""
        return self

    def add(self, a: Real, b: Real) -> float:
        """Return ``a + b``."""
        return self._operate("add", a, b)

    def sub(self, a: Real, b: Real) -> float:
        """Return ``a - b``."""
        return self._operate("sub", a, b)

    def mul(self, a: Real, b: Real) -> float:
        """Return ``a * b``; 0 times infinity is NaN."""
        return self._operate("mul", a, b)

    def div(self, a: Real, b: Real) -> float:
        """Return ``a / b``; x / 0 is an infinity (NaN in a format without), 0 / 0 is NaN."""
        return self._operate("div", a, b)

    def sqrt(self, a: Real) -> float:
        """Return the square root; NaN below zero, and -0 of -0."""
        return self._operate("sqrt", a)

    def fma(self, a: Real, b: Real, c: Real) -> float:
        """Return ``a * b + c``, rounded once."""
        return self._operate("fma", a, b, c)

    def neg(self, a: Real) -> float:
        """Return ``-a``; where that is no value of the format, what the rounding makes of it."""
        return _Result(self._settled(-_number(a)))

    def abs(self, a: Real) -> float:
        """Return ``|a|``; where that is no value of the format, what the rounding makes of it."""
        number: Any = _number(a)
        return _Result(self._settled(abs(number)))

    def sign(self, a: Real) -> float:
        """Return 1 or -1 by the sign; where that is no value of the format, what the rounding makes of it."""
        number: Any = _number(a)
        if isinstance(self.format, Posit) and abs(number) == math.inf:
            return _Result(math.nan)  # an infinity stands for NaR
        unit: Any = Fraction(1) if number > 0 else Fraction(-1) if number < 0 else number
        return _Result(self._settled(unit))

    def round(self, x: Real) -> float:
        """Round a real number into the format."""
        return _Result(self._round(_number(x), self.rounding))

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``.

        A number that is no value of the format leaves rounded, but for what an operation made.
        """
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        if isinstance(results, tuple):
            return tuple(map(self._leave, results))
        if type(results) is _Result:
            return float(results)
        return self._settled(_number(results)) if _is_real(results) else results

    def _operate(self, name: str, *operands: Real) -> float:
        numbers = [_number(operand) for operand in operands]
        return _Result(operate(name, numbers, self.format, self.rounding))

    def _settled(self, exact: Number) -> float:
        """Return a value of the format as it is, subnormal or not, and another number rounded."""
        value = self._round(exact, replace(self.rounding, underflow=Underflow.GRADUAL))
        if value == exact or self.rounding.underflow is Underflow.FLUSH_INPUTS:
            return value
        return self._round(exact, self.rounding)

    def _round(self, x: Number, rounding: Rounding) -> float:
        if isinstance(x, Fraction):
            return round_fraction(x, self.format, rounding)
        return round_float(x, self.format, rounding)


def _is_real(x: Any) -> bool:
    known = isinstance(x, float | int | Fraction | Decimal) and not isinstance(x, bool)
    return known or hasattr(type(x), "man_exp")  # mpmath's


def _number(x: Any) -> Number:
    """Return a real number as a fraction; a zero, an infinity, NaN and any float as a float."""
    if not _is_real(x):
        raise TypeError(f"an operand must be a Python float, not {x!r} of type {type(x).__name__}")
    if isinstance(x, float):
        return float(x)
    if isinstance(x, Decimal):
        finite = x.is_finite()
        return Fraction(x) if finite and x else float("nan") if x.is_nan() else float(x)
    if isinstance(x, int | Fraction):
        return Fraction(x) if x else 0.0
    if x == 0 or x - x != 0:
        return float(x)
    mantissa, exponent = map(int, x.man_exp)
    magnitude = abs(mantissa) * Fraction(2) ** exponent
    return -magnitude if x < 0 else magnitude
