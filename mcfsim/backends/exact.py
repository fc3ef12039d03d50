"""Multiple-precision arithmetic in mpmath, in which the same algorithms give reference results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mcfsim.checks import check_int
from mcfsim.kernels.native import Settling
from mcfsim.kernels.real_numbers import as_float, to_fraction
from mcfsim.protocol import Value

#: Operations that numbers of mpmath and arrays of them have themselves.
_ALIKE: dict[str, Callable[..., Any]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul},
    **{"neg": operator.neg, "abs": operator.abs},
}
#: The binary logarithm of the largest operand of functions that first divide it by pi or by ln 2.
_LONGEST = 1 << 16


class ExactArithmetic(Settling):
    """Operations in mpmath with ``precision`` bits, without a format, overflow or underflow.

    Values are mpf numbers or object arrays of them. Operands may also be Python numbers and other arrays of
    numbers, taken exactly. Division by zero, the square root of a negative number and the logarithm of one
    that is not positive raise, as they have no real result; so do exponentials, sines and cosines of numbers
    beyond ``2**65536``, which would take too many digits.

    Parameters
    ----------
    precision : int, optional
        Significand bits of each result, at least 64; 400 bits are 120 decimal digits.
    """

    scalars = "exact"
    format = rounding = None
    carrier = np.dtype(object)

    def __init__(self, precision: int = 400) -> None:
        import mpmath

        check_int("precision", precision)
        if precision < 64:
            raise ValueError(f"precision = {precision} bits: exact arithmetic takes at least 64")
        self.precision = precision
        self.context = mpmath.MPContext()
        self.context.prec = precision
        self._mpf = self.context.mpf
        self._rational = mpmath.libmp.from_rational  # rounds once
        self._binary = mpmath.libmp.from_float
        self._convert = np.frompyfunc(self._number, 1, 1)
        self._others: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"ExactArithmetic(precision={self.precision})"

    def _number(self, x: Any) -> Any:
        if isinstance(x, self._mpf):
            return x if x._mpf_[3] <= self.precision else +x  # its bits: most are results of operations here
        if type(x) is float:  # which is exact in 64 bits
            return self.context.make_mpf(self._binary(x))
        exact = to_fraction(x)
        if exact is None:
            return self._mpf(as_float(x))
        return self.context.make_mpf(self._rational(exact.numerator, exact.denominator, self.precision, "n"))

    def _square_root(self, x: Any) -> Any:
        if x < 0:
            raise ValueError(f"square root of the negative number {x}")
        return self.context.sqrt(x)

    def round(self, x: Value) -> Value:
        """Return numbers as mpf, exactly, or rounded to ``precision`` bits if they have more."""
        if type(x) is float or isinstance(x, self._mpf):
            return self._number(x)
        if isinstance(x, np.ndarray | list) and np.asarray(x).dtype.kind in "mM":  # NumPy makes them integers
            raise TypeError("a time is no real number")
        with np.errstate(invalid="ignore"):  # NaN
            return self._convert(x)

    def like(self, fmt: Any, rounding: Any) -> ExactArithmetic:
        """Return itself: nothing is rounded to a format."""
        return self

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``; raises ZeroDivisionError for b = 0."""
        try:
            return self.round(a) / self.round(b)
        except ZeroDivisionError:
            raise ZeroDivisionError("a quotient by zero has no exact value") from None

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``; the product is rounded too, to ``precision`` bits."""
        return self.add(self.mul(a, b), c)

    def _operate(self, name: str, *operands: Value) -> Value:
        """Return an operation; elementary functions are within a few units of the last bit."""
        if name in _ALIKE:
            return _ALIKE[name](*map(self.round, operands))
        if name not in self._others:
            own: dict[str, Callable[..., Any]] = {
                "sqrt": self._square_root,
                "log": self._logarithm,
                "log1p": self._logarithm_beside_one,
                "maximum": lambda a, b: a if a != a else b if b != b else max(a, b),
                "minimum": lambda a, b: a if a != a else b if b != b else min(a, b),
                "choose": lambda s, x, y: s if s != s else x if s >= 0 else y,
            }
            function = own.get(name) or getattr(self.context, name)
            if name in ("exp", "expm1", "sin", "cos"):
                function = partial(self._reduced, name, function)
            self._others[name] = np.frompyfunc(function, len(operands), 1)
        return self._others[name](*map(self.round, operands))

    def _reduced(self, name: str, function: Callable[[Any], Any], x: Any) -> Any:
        if self.context.isnormal(x) and self.context.mag(x) > _LONGEST:
            raise OverflowError(f"{name} of a number beyond 2**{_LONGEST}")
        return function(x)

    def _logarithm(self, x: Any) -> Any:
        if x < 0 or not x:
            raise ValueError(f"logarithm of {x}, which is not positive")
        return self.context.log(x)

    def _logarithm_beside_one(self, x: Any) -> Any:
        if self.context.isnormal(x) and self.context.mag(x) < -self.precision:
            return self.context.log1p(x)  # 1 + x might have more digits than there is memory
        return self._logarithm(self.context.fadd(1, x, exact=True))
