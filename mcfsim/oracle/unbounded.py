"""The oracle with exponents unbounded: algorithms run on fractions, of any precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mcfsim.oracle.definition import NEAREST_EVEN, NO_ONE_RESULT, floor_log2, round_integer
from mcfsim.rounding import Rounding

#: A real number that is rational: int, float or Fraction.
Real = Any


class FractionArithmetic:
    """Operations on fractions that round each exact result once to so many bits, by the definition.

    There is no format: nothing overflows or underflows, there are no infinities, no NaN and one zero.

    Parameters
    ----------
    precision : int
        Significand bits, at least 1.
    rounding : Rounding, optional
        Its mode counts alone.

    Raises
    ------
    ValueError
        If the precision is below 1 or the mode stochastic; in an operation, for the square root of a negative
        number, an infinity or NaN.
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

    def on_block(self, step: int, start: int) -> FractionArithmetic:
        """Return itself: elements of a block are as any."""
        return self

    def add(self, a: Real, b: Real) -> Fraction:
        """Return ``a + b``."""
        return self.round(Fraction(a) + Fraction(b))

    def sub(self, a: Real, b: Real) -> Fraction:
        """Return ``a - b``."""
        return self.round(Fraction(a) - Fraction(b))

    def mul(self, a: Real, b: Real) -> Fraction:
        """Return ``a * b``."""
        return self.round(Fraction(a) * Fraction(b))

    def fma(self, a: Real, b: Real, c: Real) -> Fraction:
        """Return ``a * b + c``, rounded once."""
        return self.round(Fraction(a) * Fraction(b) + Fraction(c))

    def div(self, a: Real, b: Real) -> Fraction:
        """Return ``a / b``."""
        return self.round(Fraction(a) / Fraction(b))

    def sqrt(self, a: Real) -> Fraction:
        """Return the square root."""
        x = Fraction(a)
        if x < 0:
            raise ValueError(f"square root of the negative number {x}")
        if x == 0:
            return x
        # In units far below half an ulp of the root, all modes round what lies between two integers as they
        # round the middle of the two.
        scale = self.precision + 2 - floor_log2(x) // 2
        square = x * Fraction(4) ** scale
        root = math.isqrt(math.floor(square))
        twice = 2 * root + (root * root != square)
        return self.round(Fraction(twice) / Fraction(2) ** (scale + 1))

    def neg(self, a: Real) -> Fraction:
        """Return ``-a``."""
        return self.round(-Fraction(a))

    def abs(self, a: Real) -> Fraction:
        """Return ``|a|``."""
        return self.round(abs(Fraction(a)))

    def sign(self, a: Real) -> Fraction:
        """Return 1 or -1 by the sign of `a`, and zero as it is."""
        return Fraction((a > 0) - (a < 0))

    def round(self, x: Real) -> Fraction:
        """Round a rational number."""
        exact = Fraction(x)
        if exact == 0:
            return exact
        quantum = Fraction(2) ** (floor_log2(abs(exact)) - self.precision + 1)
        return round_integer(exact / quantum, self.rounding.mode) * quantum

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``; a Python number leaves rounded."""
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        return tuple(map(self._leave, results)) if isinstance(results, tuple) else self.round(results)
