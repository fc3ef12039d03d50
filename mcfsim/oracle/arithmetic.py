"""The oracle as an arithmetic: it runs algorithms on single numbers, each operation rounded by definition."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, Self, TypeVar

from mcfsim.formats import Format, Posit
from mcfsim.oracle.definition import Number, operate, round_float
from mcfsim.oracle.rationals import (
    NEAREST_EVEN,
    NO_ONE_RESULT,
    exact_result,
    floor_log2,
    root_between,
    round_integer,
    times_power,
)
from mcfsim.rounding import Rounding, Underflow

#: A real number: float, int, Fraction, Decimal or mpf.
Real = Any
_Made = TypeVar("_Made", float, Fraction)


class _Result(float):
    """The result of an operation: a value of its format, not rounded again."""

    __slots__ = ()


class _OfNumbers(ABC, Generic[_Made]):
    """An arithmetic on single numbers that carries out each operation by its name."""

    @abstractmethod
    def _operate(self, name: str, *operands: Real) -> _Made:
        """Return the rounded result of an operation."""

    @abstractmethod
    def _left(self, number: Any) -> Any:
        """Return one number of an algorithm's result, rounded if it needs to be."""

    def on_block(self, step: int, start: int) -> Self:
        """Return itself: a block is not treated specially."""
        return self

    def add(self, a: Real, b: Real) -> _Made:
        """Return ``a + b``."""
        return self._operate("add", a, b)

    def sub(self, a: Real, b: Real) -> _Made:
        """Return ``a - b``."""
        return self._operate("sub", a, b)

    def mul(self, a: Real, b: Real) -> _Made:
        """Return ``a * b``."""
        return self._operate("mul", a, b)

    def div(self, a: Real, b: Real) -> _Made:
        """Return ``a / b``."""
        return self._operate("div", a, b)

    def sqrt(self, a: Real) -> _Made:
        """Return the square root."""
        return self._operate("sqrt", a)

    def fma(self, a: Real, b: Real, c: Real) -> _Made:
        """Return ``a * b + c``, rounded once."""
        return self._operate("fma", a, b, c)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``; numbers that are no results are rounded."""
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        return tuple(map(self._leave, results)) if isinstance(results, tuple) else self._left(results)


class OracleArithmetic(_OfNumbers[float]):
    """Operations on Python floats that round each exact result once, by the definition.

    It implements `mcfsim.protocol.Arithmetic`, so that every algorithm runs on the oracle. `operate` defines
    NaN, infinities, signed zeros, overflow and underflow.

    Parameters
    ----------
    fmt : Format
        Format of every result. Binary64 must hold its numbers.
    rounding : Rounding, optional
        Mode and policies; by default to nearest, ties to even.

    Notes
    -----
    An operand is a Python float, an int of any size, a Fraction, a Decimal or an mpf. An operand that is no
    value of the format enters exactly, as a real number. 0 times infinity and 0 / 0 are NaN; x / 0 is an
    infinity, or NaN in a format without one; the square root is NaN below zero, and -0 for -0.

    Raises
    ------
    TypeError
        If `fmt` is no Format or `rounding` no Rounding; in an operation, if an operand is no Python number.
    ValueError
        If the mode is stochastic, or binary64 does not hold the format.
    """

    #: The type of its numbers.
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

    def neg(self, a: Real) -> float:
        """Return ``-a``, rounded if it is no value of the format."""
        return _Result(self._settled(-_number(a)))

    def abs(self, a: Real) -> float:
        """Return ``|a|``, rounded if it is no value of the format."""
        return _Result(self._settled(abs(_number(a))))

    def sign(self, a: Real) -> float:
        """Return 1 or -1 by the sign of `a`, or a zero or NaN; rounded if it is no value of the format."""
        number = _number(a)
        if isinstance(self.format, Posit) and abs(number) == math.inf:
            return _Result(math.nan)  # an infinity stands for NaR
        unit = Fraction(1) if number > 0 else Fraction(-1) if number < 0 else number
        return _Result(self._settled(unit))

    def exp(self, a: Real) -> float:
        """Return the exponential function."""
        return self._operate("exp", a)

    def log(self, a: Real) -> float:
        """Return the natural logarithm: NaN below zero, and minus infinity at zero."""
        return self._operate("log", a)

    def expm1(self, a: Real) -> float:
        """Return ``exp(a) - 1``, rounded once."""
        return self._operate("expm1", a)

    def log1p(self, a: Real) -> float:
        """Return the natural logarithm of ``1 + a``, rounded once."""
        return self._operate("log1p", a)

    def tanh(self, a: Real) -> float:
        """Return the hyperbolic tangent."""
        return self._operate("tanh", a)

    def erf(self, a: Real) -> float:
        """Return the error function."""
        return self._operate("erf", a)

    def sin(self, a: Real) -> float:
        """Return the sine of an angle in radians."""
        return self._operate("sin", a)

    def cos(self, a: Real) -> float:
        """Return the cosine of an angle in radians."""
        return self._operate("cos", a)

    def maximum(self, a: Real, b: Real) -> float:
        """Return the greater of two numbers, rounded if it is no value; NaN if either is; +0 of +0 and -0."""
        return self._extreme(a, b, greatest=True)

    def minimum(self, a: Real, b: Real) -> float:
        """Return the lesser of two numbers, rounded if it is no value; NaN if either is; -0 of +0 and -0."""
        return self._extreme(a, b, greatest=False)

    def choose(self, s: Real, x: Real, y: Real) -> float:
        """Return `x` where ``s >= 0``, `y` where ``s < 0``, and NaN where `s` is NaN."""
        if self.rounding.underflow is not Underflow.GRADUAL:
            raise ValueError("choose needs the sign of a difference, which is lost where results are flushed")
        sign = _number(s)
        return _Result(self._settled(math.nan if sign != sign else _number(x if sign >= 0 else y)))

    def _extreme(self, a: Real, b: Real, *, greatest: bool) -> float:
        x, y = _number(a), _number(b)
        if x != x or y != y:
            return _Result(self._settled(math.nan))
        if x == y == 0:  # a positive zero is the greater one
            signs = [math.copysign(1, zero) for zero in (x, y)]
            return _Result(self._settled(math.copysign(0.0, max(signs) if greatest else min(signs))))
        return _Result(self._settled(max(x, y) if greatest else min(x, y)))

    def round(self, x: Real) -> float:
        """Return a real number rounded to the format."""
        return _Result(round_float(_number(x), self.format, self.rounding))

    def _left(self, number: Any) -> Any:
        if type(number) is _Result:
            return float(number)
        return self._settled(_number(number)) if _is_real(number) else number

    def _operate(self, name: str, *operands: Real) -> float:
        numbers = [_number(operand) for operand in operands]
        return _Result(operate(name, numbers, self.format, self.rounding))

    def _settled(self, exact: Number) -> float:
        """Return a value of the format, subnormal or not, as it is; round any other number."""
        value = round_float(exact, self.format, replace(self.rounding, underflow=Underflow.GRADUAL))
        if value == exact or self.rounding.underflow is Underflow.FLUSH_INPUTS:
            return value
        return round_float(exact, self.format, self.rounding)


def _is_real(x: Any) -> bool:
    known = isinstance(x, float | int | Fraction | Decimal) and not isinstance(x, bool)
    return known or hasattr(type(x), "man_exp")  # mpmath's


def _number(x: Any) -> Any:
    """Return a real number as a fraction; a zero, an infinity, NaN and any float as a float."""
    if isinstance(x, float):
        return float(x)
    if not _is_real(x):
        raise TypeError(f"an operand must be a Python float, not {x!r} of type {type(x).__name__}")
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


# -- unbounded exponents and any precision ----------------------------------------------------------------


class FractionArithmetic(_OfNumbers[Fraction]):
    """Operations on fractions that round each exact result once to `precision` bits, by the definition.

    There is no format: nothing overflows or underflows, there are no infinities, no NaN and one zero.

    Parameters
    ----------
    precision : int
        Significand bits, at least 1.
    rounding : Rounding, optional
        Only its mode is used.

    Raises
    ------
    ValueError
        If the precision is below 1 or the mode stochastic; in an operation, for the square root of a negative
        number, or NaN.
    OverflowError
        In an operation, for an infinity.
    ZeroDivisionError
        In a division by zero.
    """

    scalars = "exact"
    format = None
    carrier = object

    def __init__(self, precision: int, rounding: Rounding = NEAREST_EVEN) -> None:
        if precision < 1:
            raise ValueError(f"precision = {precision}: a number has at least one bit")
        if rounding.stochastic:
            raise ValueError(NO_ONE_RESULT)
        self.precision, self.rounding = precision, rounding

    def __repr__(self) -> str:
        return f"FractionArithmetic({self.precision}, {self.rounding.mode})"

    def like(self, fmt: Any, rounding: Rounding) -> FractionArithmetic:
        """Return the arithmetic of a format's precision in another rounding."""
        return FractionArithmetic(fmt.precision, rounding)

    def _operate(self, name: str, *operands: Real) -> Fraction:
        numbers = list(map(Fraction, operands))
        if name != "sqrt":
            return self.round(exact_result(name, numbers))
        (x,) = numbers
        if x < 0:
            raise ValueError(f"square root of the negative number {x}")
        # The unit is far below half an ulp of the root.
        return self.round(root_between(x, self.precision + 2 - floor_log2(x) // 2)) if x else x

    def neg(self, a: Real) -> Fraction:
        """Return ``-a``."""
        return self.round(-Fraction(a))

    def abs(self, a: Real) -> Fraction:
        """Return ``|a|``."""
        return self.round(abs(Fraction(a)))

    def sign(self, a: Real) -> Fraction:
        """Return the sign of `a`: 1, -1 or 0."""
        return Fraction((a > 0) - (a < 0))

    def round(self, x: Real) -> Fraction:
        """Return a rational number rounded to `precision` bits."""
        exact = Fraction(x)
        if exact == 0:
            return exact
        scale = floor_log2(abs(exact)) - self.precision + 1
        return times_power(Fraction(round_integer(times_power(exact, -scale), self.rounding.mode)), scale)

    def _left(self, number: Any) -> Fraction:
        return self.round(number)
