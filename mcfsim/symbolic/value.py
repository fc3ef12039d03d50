"""A polynomial as an algorithm has it."""

from __future__ import annotations

from mcfsim.checks.opaque import Opaque
from mcfsim.symbolic.polynomial import Polynomial


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
