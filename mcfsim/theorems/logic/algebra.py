"""The algebra of terms and propositions: what is joined by ``+``, ``<=``, ``&`` and their like.

``equal(x, y)`` says that two terms are equal, since ``==`` compares the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

#: What may stand beside a term: a number that is the same in every format.
Constant = int | Fraction


# -- terms --------------------------------------------------------------------------------------------------
class Term:
    """A real number for each case. It has no truth value."""

    def __bool__(self) -> bool:
        raise TypeError("a term is a number of every case, and has no truth value")

    def __add__(self, other: Term | Constant) -> Term:
        return Sum((self, as_term(other)))

    def __radd__(self, other: Constant) -> Term:
        return as_term(other) + self

    def __sub__(self, other: Term | Constant) -> Term:
        return self + -as_term(other)

    def __rsub__(self, other: Constant) -> Term:
        return as_term(other) - self

    def __neg__(self) -> Term:
        return Negative(self)

    def __abs__(self) -> Term:
        return Magnitude(self)

    def __mul__(self, other: Term | Constant) -> Term:
        return Product(self, as_term(other))

    def __rmul__(self, other: Constant) -> Term:
        return Product(as_term(other), self)

    def __le__(self, other: Term | Constant) -> Proposition:
        return AtMost(self, as_term(other))

    def __lt__(self, other: Term | Constant) -> Proposition:
        return Below(self, as_term(other))

    def __ge__(self, other: Term | Constant) -> Proposition:
        return as_term(other) <= self

    def __gt__(self, other: Term | Constant) -> Proposition:
        return as_term(other) < self


def as_term(x: Any) -> Term:
    """Return a term, or a number as one.

    Raises
    ------
    TypeError
        If it is neither: floats are written as fractions.
    """
    if isinstance(x, Term):
        return x
    if isinstance(x, bool) or not isinstance(x, int | Fraction):
        raise TypeError(
            f"a term goes with terms, int and Fraction, not with {x!r} of type {type(x).__name__}"
        )
    return Number(Fraction(x))


@dataclass(frozen=True)
class Number(Term):
    """A number that is the same in every format."""

    value: Fraction


@dataclass(frozen=True)
class Sum(Term):
    """An exact sum."""

    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Negative(Term):
    """A number with the other sign."""

    term: Term


@dataclass(frozen=True)
class Product(Term):
    """An exact product."""

    first: Term
    second: Term


@dataclass(frozen=True)
class Magnitude(Term):
    """A magnitude."""

    term: Term


# -- propositions --------------------------------------------------------------------------------------------
class Proposition:
    """What is true or false of each case. It has no truth value by itself."""

    def __bool__(self) -> bool:
        raise TypeError("a proposition is true or false of a case: join two by & and |, deny one by ~")

    def __and__(self, other: Proposition) -> Proposition:
        return AllOf((self, other))

    def __or__(self, other: Proposition) -> Proposition:
        return AnyOf((self, other))

    def __invert__(self) -> Proposition:
        return Not(self)


@dataclass(frozen=True)
class AllOf(Proposition):
    """All of several."""

    parts: tuple[Proposition, ...]


@dataclass(frozen=True)
class AnyOf(Proposition):
    """One or more of several."""

    parts: tuple[Proposition, ...]


@dataclass(frozen=True)
class Not(Proposition):
    """The contrary."""

    part: Proposition


@dataclass(frozen=True)
class AtMost(Proposition):
    """``x <= y``."""

    x: Term
    y: Term


@dataclass(frozen=True)
class Below(Proposition):
    """``x < y``."""

    x: Term
    y: Term


@dataclass(frozen=True)
class Equal(Proposition):
    """``x = y`` exactly."""

    x: Term
    y: Term


def equal(x: Any, y: Any) -> Proposition:
    """Say that two terms are equal."""
    return Equal(as_term(x), as_term(y))
