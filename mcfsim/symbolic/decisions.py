"""Obligations: what must hold of polynomials at every precision, decided exactly.

An inequality at ``t = 2**-n`` holds from some n on if and only if it holds of the leading term. It holds as
soon as this term exceeds the sum of the others' magnitudes, which fall faster: a root bound. Below it there
are finitely many n, which are tried. Integers are similar: a term ``c t**-k`` is one from some n on. So each
obligation has the least n from which on it holds, and no decision rests on floating point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from mcfsim.symbolic.polynomial import Polynomial
from mcfsim.symbolic.precisions import Precisions


class UndecidedError(ValueError):
    """What was asked has no one answer for every large p, or none that polynomials express."""


class Relation(StrEnum):
    """What is demanded of a polynomial's values."""

    POSITIVE = "> 0"
    NOT_NEGATIVE = ">= 0"
    INTEGER = "is an integer"
    EVEN = "is even"
    ODD = "is odd"

    def holds(self, value: Fraction) -> bool:
        """Return whether a number is so."""
        match self:
            case Relation.POSITIVE:
                return value > 0
            case Relation.NOT_NEGATIVE:
                return value >= 0
            case Relation.INTEGER:
                return value.denominator == 1
            case Relation.EVEN:
                return value.denominator == 1 and value.numerator % 2 == 0
            case Relation.ODD:
                return value.denominator == 1 and value.numerator % 2 == 1


@dataclass(frozen=True)
class Obligation:
    """What a decision rests on.

    Attributes
    ----------
    about : str
        The operation and the decision.
    relation : Relation
    polynomial : Polynomial
    first : int
        The least precision p from which on it holds.
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
        """The least precision from which on all of them hold."""
        least = self.over.precision(self.over.least)
        return max((one.first for one in self.obligations), default=least)

    @contextmanager
    def about(self, subject: str) -> Iterator[None]:
        """Name what the obligations within are about, and what is undecided there."""
        self._about.append(subject)
        try:
            yield
        except UndecidedError as problem:
            raise UndecidedError(f"{subject}: {problem}") from problem
        finally:
            self._about.pop()

    def require(self, relation: Relation, polynomial: Polynomial, decision: str) -> None:
        """Demand something from some precision on.

        Raises
        ------
        UndecidedError
            If there is no such precision.
        """
        try:
            n = first(relation, polynomial)
        except UndecidedError as problem:
            raise UndecidedError(f"{decision}: {problem}") from None
        about = ", ".join((*self._about, decision))
        self.obligations.append(Obligation(about, relation, polynomial, self.over.precision(n)))


def first(relation: Relation, polynomial: Polynomial) -> int:
    """Return the least n from which on a relation holds at ``t = 2**-n``, among those that formats have.

    Raises
    ------
    UndecidedError
        If it fails for every large n, or for infinitely many.
    """
    signed = relation in (Relation.POSITIVE, Relation.NOT_NEGATIVE)
    n = (_settled_sign if signed else _settled_integer)(relation, polynomial)
    while n > polynomial.over.least and relation.holds(polynomial.at_index(n - 1)):
        n -= 1
    return n


def _settled_sign(relation: Relation, polynomial: Polynomial) -> int:
    """Return an n from which on the leading term outweighs all others."""
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
    """Return an n from which on all terms but the constant one are even, or, of integers, integers."""
    n = polynomial.over.least
    constant = dict(polynomial.terms).get(0, Fraction(0))
    if not relation.holds(constant):
        raise UndecidedError(f"{polynomial} {relation} is false for every large p")
    wanted = 0 if relation is Relation.INTEGER else 1
    for power, coefficient in polynomial.terms:
        if power > 0:
            raise UndecidedError(f"{polynomial} {relation} is false for every large p")
        if power < 0:
            twos = (coefficient.numerator & -coefficient.numerator).bit_length() - 1
            twos -= coefficient.denominator.bit_length() - 1
            n = max(n, -((twos - wanted) // -power))
    return n
