"""An arithmetic on polynomials in u: each operation is rounded once, for all large precisions together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.checks import Opaque
from mcfsim.compile.program import mapped
from mcfsim.formats.floating import floor_log2
from mcfsim.protocol import Forwarding
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.symbolic.decisions import Ledger, Relation, UndecidedError
from mcfsim.theorems.symbolic.decisions import first as decided
from mcfsim.theorems.symbolic.polynomial import EVERY, Polynomial, Precisions
from mcfsim.theorems.symbolic.symbolic_rounding import (
    MIRRORED,
    Exactly,
    Ratio,
    Real,
    Root,
    binade,
    rounded,
)

#: An operand: a `SymbolicValue`, or a dyadic int, float or Fraction.
Operand = Any


class SymbolicArithmetic(Forwarding):
    """An arithmetic on polynomials in ``u = 2**-p``, rounded to precision p with unbounded exponents.

    It runs the same algorithms as any arithmetic, and the results are right for every ``p >= first``. `run`
    converts polynomials to the algorithm's `SymbolicValue` operands and its results back. An operand must be
    a value of precision p, which is decided, too. A Python number is a real scalar and enters exactly. There
    are no infinities and no NaN, and there is one zero.

    Parameters
    ----------
    rounding : str or Mode, optional
        Any mode but stochastic.
    over : Precisions, optional
        The precisions that its polynomials cover; by default all.

    Attributes
    ----------
    ledger : Ledger
        All obligations so far.
    range : Range
        The exponents of all values so far.

    Raises
    ------
    UndecidedError
        In an operation whose result is not one polynomial with dyadic coefficients for every large p.
    ZeroDivisionError
        In a division by zero.
    TypeError
        In an operation other than `round` on a bare polynomial, which must enter by `run` or `value`.
    ValueError
        For stochastic rounding; for the square root of a negative number; for scalars that are not dyadic.

    Examples
    --------
    >>> from mcfsim.eft import two_prod_fma
    >>> from mcfsim.theorems.symbolic import SymbolicArithmetic, u
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
        """The least p from which all results so far are right."""
        return self.ledger.first

    def like(self, fmt: Any, rounding: Any) -> SymbolicArithmetic:
        """Raise UndecidedError: another format has no precision p."""
        raise UndecidedError(f"precision p cannot be combined with another format, such as {fmt}")

    def on_block(self, step: int, start: int) -> SymbolicArithmetic:
        """Return the arithmetic itself: it treats all elements of a block alike."""
        return self

    def _operate(self, name: str, *operands: Operand) -> SymbolicValue:
        self._operations += 1
        with self.ledger.about(f"{self._operations}. {name}"):
            rounds = name == "round"  # which takes bare polynomials, too
            match name, [self._taken(x, bare=rounds) for x in operands]:
                case "add", [x, y]:
                    return self._exactly(x + y)
                case "sub", [x, y]:
                    return self._exactly(x - y)
                case "mul", [x, y]:
                    return self._exactly(x * y)
                case "fma", [x, y, z]:
                    return self._exactly(x * y + z)
                case "div", [x, y]:
                    if not y:
                        raise ZeroDivisionError("division by the polynomial zero")
                    self.ledger.require(Relation.POSITIVE, abs(y), "divisor")
                    if x:
                        return self._rounded(Ratio(abs(x), abs(y)), x.sign * y.sign)
                    return SymbolicValue(x)
                case "sqrt", [x]:
                    if x.sign < 0:
                        raise ValueError(f"square root of the negative number {x}")
                    return self._rounded(Root(x), 1) if x else SymbolicValue(x)
                case "neg", [x]:
                    return self._exactly(-x)
                case "abs", [x]:
                    return self._exactly(abs(x))
                case "sign", [x]:
                    if x:
                        self.ledger.require(Relation.POSITIVE, abs(x), "sign")
                    return self._exactly(Polynomial.constant(x.sign, self.over))
                case "round", [x]:
                    return self._exactly(x)
        raise UndecidedError(f"{name} of polynomials in u is not a polynomial in general")

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``, with Python numbers among the results rounded."""
        results = function(self, *operands, **options)
        return mapped(lambda x: x if isinstance(x, SymbolicValue) else self.round(x), results)

    def run(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Run an algorithm on polynomials, and return its results as polynomials."""
        given = mapped(lambda x: self.value(x) if isinstance(x, Polynomial) else x, operands)
        return mapped(polynomial_of, self.evaluate(function, *given, **options))

    def value(self, x: Polynomial, name: str = "operand") -> SymbolicValue:
        """Return a polynomial as a value, after deciding that it fits in precision p for all large p.

        Raises
        ------
        UndecidedError
            If that does not hold.
        """
        if self._over(x) not in self._values:
            with self.ledger.about(f"{name} is a value"):
                magnitude = abs(x)
                if rounded(Exactly(magnitude), Mode.TOWARD_ZERO, self.ledger) != magnitude:
                    raise UndecidedError(f"{name} = {x} is no value of precision p for every large p")
            self._keep(x)
        return SymbolicValue(x)

    def _taken(self, x: Operand, bare: bool) -> Polynomial:
        """Return the polynomial of an operand: of a value of this arithmetic, of a real scalar, or itself."""
        if isinstance(x, SymbolicValue):
            if polynomial_of(x) not in self._values:
                raise ValueError(f"{x} is a value of another arithmetic")
            return polynomial_of(x)
        if isinstance(x, Polynomial) and not bare:
            raise TypeError(f"{x} has not entered: hand it to an algorithm by run, or take value({x})")
        return self._over(Polynomial.from_any(x, self.over))

    def _over(self, x: Polynomial) -> Polynomial:
        if x.over != self.over:
            raise ValueError(f"a polynomial over the precisions {x.over} in an arithmetic of {self.over}")
        return x

    def _exactly(self, x: Polynomial) -> SymbolicValue:
        """Return a polynomial rounded; a known value stays as it is."""
        if x in self._values or not x:
            return SymbolicValue(x)
        return self._rounded(Exactly(abs(x)), x.sign)

    def _rounded(self, x: Real, sign: int) -> SymbolicValue:
        """Round a positive number, and return it with a sign."""
        mode = MIRRORED.get(self.mode, self.mode) if sign < 0 else self.mode
        result = rounded(x, mode, self.ledger) * sign
        self._keep(result)
        return SymbolicValue(result)

    def _keep(self, value: Polynomial) -> None:
        """Record a polynomial and its negative as values, and its exponent in the range."""
        self._values |= {value, -value}
        self.range.add(value)


class SymbolicValue(Opaque):
    """A number that is a value of precision p for all large p.

    Whether it is positive, or equals another one, can depend on the precision. So an algorithm cannot ask. It
    can only pass the value to operations, which decide what they need and record the obligation.
    """

    __slots__ = ("_polynomial",)

    def __init__(self, polynomial: Polynomial) -> None:
        self._polynomial = polynomial

    def __repr__(self) -> str:
        return str(self._polynomial)


def polynomial_of(value: SymbolicValue) -> Polynomial:
    """Return the polynomial of a value; not for use in algorithms."""
    return value._polynomial


# -- exponents, as functions of p -------------------------------------------------------------------------
@dataclass(frozen=True)
class LinearExponent:
    """An exponent ``slope * n + offset`` at the precisions ``p = step * n + rest``."""

    slope: int
    offset: int
    over: Precisions

    def at(self, p: int) -> int:
        """Return the exponent at a precision."""
        return self.slope * self.over.index(p) + self.offset

    def __str__(self) -> str:
        slope = Fraction(self.slope, self.over.step)
        offset = self.offset - slope * self.over.rest
        number = "p" if abs(slope) == 1 else f"{abs(slope)} p"
        moving = f"-{number}" if slope < 0 else number
        if not slope or not offset:
            return moving if slope else str(offset)
        return f"{moving} {'-' if offset < 0 else '+'} {abs(offset)}"


class Range:
    """The range of exponents of all nonzero values of a run.

    In a format with these ``emin`` and ``emax`` all values are normal and finite at every p where the
    obligations hold, so it rounds as with unbounded exponents. Larger ranges do, too. Smaller ones may, since
    subnormal sums are exact.
    """

    def __init__(self, over: Precisions) -> None:
        self._over = over
        self._values = {Polynomial.constant(1, over)}

    def add(self, value: Polynomial) -> None:
        """Include a value."""
        if value:
            self._values.add(abs(value))

    def emin(self, first: int) -> LinearExponent:
        """Return the largest ``emin`` that suffices at every precision from `first`."""
        return self._line(first, min)

    def emax(self, first: int) -> LinearExponent:
        """Return the smallest ``emax`` that suffices at every precision from `first`."""
        return self._line(first, max)

    def _line(self, first: int, extreme: Callable[[Iterable[int]], int]) -> LinearExponent:
        start, lines, single = self._over.index(first), [], []
        for value in self._values:
            low = binade(Exactly(value))
            ((power, size),) = low.terms
            settled = max(
                decided(Relation.NOT_NEGATIVE, value - low), decided(Relation.POSITIVE, 2 * low - value)
            )
            lines.append((-power, floor_log2(size)))
            # At small p a value may lie in another binade, as 1 + 8 u = 2 does for p = 3.
            values = ((n, abs(value.at_index(n))) for n in range(start, settled))
            single += [(n, floor_log2(number)) for n, number in values if number]
        slope = extreme(slope for slope, _ in lines)
        offsets = [offset + (other - slope) * start for other, offset in lines]
        offsets += [exponent - slope * n for n, exponent in single]
        return LinearExponent(slope, extreme(offsets), self._over)
