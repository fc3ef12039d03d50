"""The arithmetic of polynomials in u: every operation rounded once, for every precision at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mcfsim.checks.opaque import Opaque
from mcfsim.compile.program import mapped
from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic.decisions import Ledger, Relation, UndecidedError
from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import EVERY, Precisions
from mcfsim.symbolic.range import Range
from mcfsim.symbolic.reals import Exactly, Ratio, Real, Root
from mcfsim.symbolic.symbolic_rounding import MIRRORED, rounded

#: What an operand may be: a value, or an int, float or Fraction that is dyadic.
Operand = Any


class SymbolicArithmetic:
    """Operations on polynomials in ``u = 2**-p``, each result rounded to precision p, exponents unbounded.

    The same text as on any arithmetic gives results that are right for every ``p >= first``. Polynomials
    enter and leave by `run`, as operands and results of a text, which itself has `SymbolicValue` objects
    alone. A polynomial that enters must be a value of precision p, which is decided, too; a Python number is
    a real scalar, and enters exactly. There are no infinities, no NaN and one zero.

    Parameters
    ----------
    rounding : str or Mode, optional
        Any mode but stochastic.
    over : Precisions, optional
        The precisions that its polynomials are over: by default all.

    Attributes
    ----------
    ledger : Ledger
        The obligations so far.
    range : Range
        The exponents of the values so far.

    Raises
    ------
    UndecidedError
        In an operation, where no polynomial with dyadic coefficients is the result for every large p.
    ZeroDivisionError
        In a division by zero.
    TypeError
        In an operation of polynomials: they have not entered.
    ValueError
        For stochastic rounding; for the square root of a negative number; for scalars that are not dyadic.

    Examples
    --------
    >>> from mcfsim.eft import two_prod_fma
    >>> from mcfsim.symbolic import SymbolicArithmetic, u
    >>> ar = SymbolicArithmetic()
    >>> product, error = ar.run(two_prod_fma, 1 + 2 * u, 1 + 2 * u)
    >>> print(product, "and", error, "from p =", ar.first)
    1 + 4 u and 4 u^2 from p = 3
    """

    scalars = "exact"
    format = None
    carrier = np.dtype(object)

    def __init__(self, rounding: str | Mode = Mode.NEAREST_EVEN, over: Precisions = EVERY) -> None:
        self.mode = Mode(rounding)
        if self.mode is Mode.STOCHASTIC:
            raise ValueError("stochastic rounding has no one result; allowed are the other modes")
        self.rounding = Rounding(self.mode)
        self.over = over
        self.ledger = Ledger(over)
        self.range = Range(over)
        self._values: set[Polynomial] = {Polynomial((), over)}
        self._operations = 0

    def __repr__(self) -> str:
        return f"SymbolicArithmetic({self.mode}, {self.over})"

    @property
    def first(self) -> int:
        """The least p from which on all results so far are right."""
        return self.ledger.first

    def like(self, fmt: Any, rounding: Any) -> SymbolicArithmetic:
        """Refuse: of another format there is no precision p."""
        raise UndecidedError(f"precision p stands beside no other format, such as {fmt}")

    def on_block(self, step: int, start: int) -> SymbolicArithmetic:
        """Return itself: elements of a block are as any."""
        return self

    def add(self, a: Operand, b: Operand) -> SymbolicValue:
        """Return ``a + b``."""
        with self._operation("add"):
            return self._exactly(self._taken(a) + self._taken(b))

    def sub(self, a: Operand, b: Operand) -> SymbolicValue:
        """Return ``a - b``."""
        with self._operation("sub"):
            return self._exactly(self._taken(a) - self._taken(b))

    def mul(self, a: Operand, b: Operand) -> SymbolicValue:
        """Return ``a * b``."""
        with self._operation("mul"):
            return self._exactly(self._taken(a) * self._taken(b))

    def fma(self, a: Operand, b: Operand, c: Operand) -> SymbolicValue:
        """Return ``a * b + c``, rounded once."""
        with self._operation("fma"):
            return self._exactly(self._taken(a) * self._taken(b) + self._taken(c))

    def div(self, a: Operand, b: Operand) -> SymbolicValue:
        """Return ``a / b``; raises ZeroDivisionError for b = 0."""
        with self._operation("div"):
            x, y = self._taken(a), self._taken(b)
            if not y:
                raise ZeroDivisionError("division by the polynomial zero")
            self.ledger.require(Relation.POSITIVE, y * y.sign, "divisor")
            if not x:
                return SymbolicValue(x)
            return self._rounded(Ratio(x * x.sign, y * y.sign), x.sign * y.sign)

    def sqrt(self, a: Operand) -> SymbolicValue:
        """Return the square root; raises ValueError below zero."""
        with self._operation("sqrt"):
            x = self._taken(a)
            if x.sign < 0:
                raise ValueError(f"square root of the negative number {x}")
            return self._rounded(Root(x), 1) if x else SymbolicValue(x)

    def neg(self, a: Operand) -> SymbolicValue:
        """Return ``-a``."""
        with self._operation("neg"):
            return self._exactly(-self._taken(a))

    def abs(self, a: Operand) -> SymbolicValue:
        """Return ``|a|``."""
        with self._operation("abs"):
            return self._exactly(abs(self._taken(a)))

    def sign(self, a: Operand) -> SymbolicValue:
        """Return 1 or -1 by the sign of `a`, and zero as it is."""
        with self._operation("sign"):
            x = self._taken(a)
            if x:
                self.ledger.require(Relation.POSITIVE, x * x.sign, "sign")
            return self._exactly(Polynomial.constant(x.sign, self.over))

    def round(self, x: Operand) -> SymbolicValue:
        """Round any polynomial or dyadic number to precision p."""
        with self._operation("round"):
            return self._exactly(self._over(x) if isinstance(x, Polynomial) else self._taken(x))

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``; a Python number leaves rounded."""
        results = function(self, *operands, **options)
        return mapped(lambda x: x if isinstance(x, SymbolicValue) else self.round(x), results)

    def run(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return what a text makes of polynomials, as polynomials."""
        given = mapped(lambda x: self.value(x) if isinstance(x, Polynomial) else x, operands)
        return mapped(polynomial_of, self.evaluate(function, *given, **options))

    def value(self, x: Polynomial, name: str = "operand") -> SymbolicValue:
        """Return a polynomial as a value of precision p from some p on, which is decided.

        Raises
        ------
        UndecidedError
            If it is none.
        """
        if self._over(x) not in self._values:
            with self.ledger.about(f"{name} is a value"):
                magnitude = abs(x)
                if rounded(Exactly(magnitude), Mode.TOWARD_ZERO, self.ledger) != magnitude:
                    raise UndecidedError(f"{name} = {x} is no value of precision p for every large p")
            self._keep(x)
        return SymbolicValue(x)

    def _operation(self, name: str) -> Any:
        self._operations += 1
        return self.ledger.about(f"{self._operations}. {name}")

    def _taken(self, x: Operand) -> Polynomial:
        """Return an operand: a value of precision p, or a real scalar exactly."""
        if isinstance(x, SymbolicValue):
            if polynomial_of(x) not in self._values:
                raise ValueError(f"{x} is a value of another arithmetic")
            return polynomial_of(x)
        if isinstance(x, Polynomial):
            raise TypeError(f"{x} has not entered: hand it to an algorithm by run, or take value({x})")
        return Polynomial.constant(x, self.over)

    def _over(self, x: Polynomial) -> Polynomial:
        if x.over != self.over:
            raise ValueError(f"a polynomial over the precisions {x.over} in an arithmetic of {self.over}")
        return x

    def _exactly(self, x: Polynomial) -> SymbolicValue:
        """Return a polynomial rounded; one that is a value already stays as it is."""
        if x in self._values or not x:
            return SymbolicValue(x)
        return self._rounded(Exactly(abs(x)), x.sign)

    def _rounded(self, x: Real, sign: int) -> SymbolicValue:
        """Return a positive number rounded, with a sign."""
        mode = MIRRORED.get(self.mode, self.mode) if sign < 0 else self.mode
        result = rounded(x, mode, self.ledger) * sign
        self._keep(result)
        return SymbolicValue(result)

    def _keep(self, value: Polynomial) -> None:
        """Note a value: itself and its negative are values from now on, and its exponent is in range."""
        self._values |= {value, -value}
        self.range.add(value)


class SymbolicValue(Opaque):
    """A value of precision p, for every p from some one on.

    What holds of a polynomial, that it is positive or is another one, need not hold at every precision. So an
    algorithm has no way to ask: it can but hand the value to operations, which decide what they need, and
    note it.
    """

    __slots__ = ("_polynomial",)

    def __init__(self, polynomial: Polynomial) -> None:
        self._polynomial = polynomial

    def __repr__(self) -> str:
        return str(self._polynomial)


def polynomial_of(value: SymbolicValue) -> Polynomial:
    """Return what a value is: not for algorithms."""
    return value._polynomial
