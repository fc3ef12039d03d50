"""Obligations: conditions on polynomials, decided exactly for all large precisions; and quotients of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import gcd, lcm

from mcfsim.theorems.symbolic.polynomial import EVERY, Number, Polynomial, Precisions, unit


class UndecidedError(ValueError):
    """A question has no single answer for all large p, or none that polynomials can express."""


class Relation(StrEnum):
    """A condition on the values of a polynomial."""

    POSITIVE = "> 0"
    NOT_NEGATIVE = ">= 0"
    INTEGER = "is an integer"
    EVEN = "is even"
    ODD = "is odd"

    def holds(self, value: Fraction) -> bool:
        """Return whether a number meets the condition."""
        match self:
            case Relation.POSITIVE:
                return value > 0
            case Relation.NOT_NEGATIVE:
                return value >= 0
            case Relation.INTEGER:
                return value.denominator == 1
            case Relation.EVEN | Relation.ODD:
                return value.denominator == 1 and value.numerator % 2 == (self is Relation.ODD)


@dataclass(frozen=True)
class Obligation:
    """A condition on a polynomial that a decision rests on.

    Attributes
    ----------
    about : str
        The operation and the decision.
    relation : Relation
    polynomial : Polynomial
    first : int
        The least precision p from which it holds.
    """

    about: str
    relation: Relation
    polynomial: Polynomial
    first: int

    def __str__(self) -> str:
        return f"{self.about}: {self.polynomial} {self.relation} for p >= {self.first}"


class Ledger:
    """The obligations of a run, in order."""

    def __init__(self, over: Precisions) -> None:
        self.over = over
        self.obligations: list[Obligation] = []
        self._about: list[str] = []

    @property
    def first(self) -> int:
        """The least precision from which all obligations hold."""
        least = self.over.precision(self.over.least)
        return max((one.first for one in self.obligations), default=least)

    @contextmanager
    def about(self, subject: str) -> Iterator[None]:
        """Name the subject of all obligations and undecided questions within the block."""
        self._about.append(subject)
        try:
            yield
        except UndecidedError as problem:
            raise UndecidedError(f"{subject}: {problem}") from problem
        finally:
            self._about.pop()

    def require(self, relation: Relation, polynomial: Polynomial, decision: str) -> None:
        """Add an obligation, with the least precision from which it holds.

        Raises
        ------
        UndecidedError
            If there is no such precision.
        """
        with self.about(decision):
            p = self.over.precision(first(relation, polynomial))
            self.obligations.append(Obligation(", ".join(self._about), relation, polynomial, p))


def first(relation: Relation, polynomial: Polynomial) -> int:
    """Return the least n, at least `over.least`, such that a relation holds at ``t = 2**-m`` for all m >= n.

    Raises
    ------
    UndecidedError
        If it fails for infinitely many n.
    """
    signed = relation in (Relation.POSITIVE, Relation.NOT_NEGATIVE)
    n = (_settled_sign if signed else _settled_integer)(relation, polynomial)
    while n > polynomial.over.least and relation.holds(polynomial.at_index(n - 1)):
        n -= 1
    return n


def _settled_sign(relation: Relation, polynomial: Polynomial) -> int:
    """Return an n from which the leading term outweighs all others."""
    n = polynomial.over.least
    if not polynomial:
        if relation is Relation.POSITIVE:
            raise UndecidedError("0 is not > 0")
        return n
    if polynomial.sign < 0:
        raise UndecidedError(f"{polynomial} {relation} is false for every large p")
    (power, leading), *others = polynomial.terms
    rest = Polynomial.of({k - power: abs(c) for k, c in others}, polynomial.over)
    while rest.at_index(n) >= leading:
        n += 1
    return n


def _settled_integer(relation: Relation, polynomial: Polynomial) -> int:
    """Return an n from which all terms but the constant are even, or integers for the relation INTEGER."""
    n = polynomial.over.least
    constant = dict(polynomial.terms).get(0, Fraction(0))
    if not relation.holds(constant) or any(power > 0 for power, _ in polynomial.terms):
        raise UndecidedError(f"{polynomial} {relation} is false for every large p")
    wanted = 0 if relation is Relation.INTEGER else 1
    for power, coefficient in polynomial.terms:
        if power < 0:
            twos = (coefficient.numerator & -coefficient.numerator).bit_length() - 1
            twos -= coefficient.denominator.bit_length() - 1
            n = max(n, -((twos - wanted) // -power))
    return n


# -- quotients --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Quotient:
    """A rational function: the quotient of two polynomials over the same precisions.

    Parameters
    ----------
    numerator, denominator : Polynomial or number
        The denominator is not zero.

    Raises
    ------
    ZeroDivisionError
        If the denominator is the polynomial zero, or has the value zero at the given precision.
    """

    numerator: Polynomial
    denominator: Polynomial

    def __post_init__(self) -> None:
        if not self.denominator:
            raise ZeroDivisionError("a quotient by the polynomial zero")
        if self.numerator.over != self.denominator.over:
            raise ValueError("the polynomials of a quotient are over different precisions")

    @staticmethod
    def of(numerator: Polynomial | Number, denominator: Polynomial | Number = 1) -> Quotient:
        """Return a quotient of polynomials or rational numbers, over the precisions of either."""
        given = [part for part in (numerator, denominator) if isinstance(part, Polynomial)]
        over = given[0].over if given else EVERY
        # Fractions need not be dyadic.
        factor = lcm(*(part.denominator for part in (numerator, denominator) if isinstance(part, Fraction)))
        return Quotient(*(Polynomial.from_any(part * factor, over) for part in (numerator, denominator)))

    def __str__(self) -> str:
        over = str(self.denominator)
        if over == "1":
            return str(self.numerator)
        parts = (f"({part})" if " " in part else part for part in (str(self.numerator), over))
        return " / ".join(parts)

    def at(self, p: int) -> Fraction:
        """Return the value at a precision."""
        return self.numerator.at(p) / self.denominator.at(p)

    def __abs__(self) -> Quotient:
        """Return the absolute value for large p: the quotient or its negative."""
        return Quotient(abs(self.numerator), abs(self.denominator))

    def over_unit(self, power: int) -> Quotient:
        """Return the quotient in units of ``u**power``."""
        return Quotient(self.numerator, self.denominator * unit(self.numerator.over) ** power).reduced

    @property
    def limit(self) -> Fraction | None:
        """The limit as p grows, or None if the quotient is unbounded."""
        if not self.numerator:
            return Fraction(0)
        (k, c), (j, d) = self.numerator.leading, self.denominator.leading
        return c / d if k == j else Fraction(0) if k > j else None

    @property
    def reduced(self) -> Quotient:
        """The same quotient with integer coefficients, without common factors and common powers of t."""
        if not self.numerator:
            return Quotient(self.numerator, Polynomial.constant(1, self.numerator.over))
        parts = (self.numerator, self.denominator)
        low = min(part.leading[0] for part in parts)
        coefficients = [c for part in parts for _, c in part.terms]
        common = lcm(*(c.denominator for c in coefficients))
        shared = gcd(*(int(c * common) for c in coefficients))
        factor = Fraction(self.denominator.sign * common, shared)
        numerator, denominator = (
            Polynomial.of({k - low: c * factor for k, c in part.terms}, part.over) for part in parts
        )
        return Quotient(numerator, denominator)
