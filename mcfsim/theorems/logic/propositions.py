"""Propositions: what holds of a case or does not, as data.

An atom that speaks of a result that is infinite or NaN is false, but for `Same` and what says so itself.
Propositions are joined by ``&`` and ``|``, and denied by ``~``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

import mpmath

from mcfsim.formats import Format
from mcfsim.rounding import Overflow, Rounding
from mcfsim.symbolic import Polynomial, Quotient
from mcfsim.theorems.logic.algebra import AllOf, AnyOf, Not, Proposition, Term
from mcfsim.theorems.logic.terms import OfFormat, Result, Results

#: A constant, or one that depends on the precision: as a function of u, or of the precision.
Constant = int | Fraction | Polynomial | Quotient | Callable[[int], Fraction]


class UnreadableError(ValueError):
    """A proposition that an interpreter cannot read, such as a predicate on arrays by the solver."""


# -- joined -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Iff(Proposition):
    """Both or neither."""

    first: Proposition
    second: Proposition


@dataclass(frozen=True)
class EveryDraw(Proposition):
    """What holds whatever is drawn; without stochastic rounding, the proposition itself."""

    part: Proposition


@dataclass(frozen=True)
class SameSign(Proposition):
    """Two words or results do not have opposite signs: ``x y >= 0``."""

    x: Term
    y: Term


@dataclass(frozen=True)
class Same(Proposition):
    """The first half of the results is the second, bit for bit but for signs of zero; NaN is NaN.

    Attributes
    ----------
    one, other : str
        What the halves are.
    """

    one: str = "the first half of the results"
    other: str = "the second"


# -- what numbers are ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Finite(Proposition):
    """A result is finite, or, without one, all results are."""

    of: Result | None = None


@dataclass(frozen=True)
class NoOverflow(Proposition):
    """No result is infinite or NaN.

    Where numbers saturate, by policy or for want of both, results do not show it: nothing is said there.
    """


@dataclass(frozen=True)
class IsValue(Proposition):
    """A number is a finite value of the format."""

    x: Term


@dataclass(frozen=True)
class IsMultiple(Proposition):
    """A number is an integer times a power of two."""

    x: Term
    of: Term


@dataclass(frozen=True)
class HasBits(Proposition):
    """A number has at most so many significant bits; of none, it is zero."""

    x: Term
    bits: OfFormat


@dataclass(frozen=True)
class Nonoverlapping(Proposition):
    """Each term that is not zero, times the factor, is below the last bit of every later one.

    The terms are given, or all results. With the factor 2 they are nonadjacent.
    """

    terms: tuple[Term, ...] = ()
    factor: int = 1


@dataclass(frozen=True)
class StronglyNonoverlapping(Proposition):
    """The results do not overlap, and adjacent ones are powers of two, none adjacent to two others."""


# -- of the format, and by predicate ------------------------------------------------------------------------
@dataclass(frozen=True)
class InFormat(Proposition):
    """What depends on format and rounding alone."""

    text: str
    of: Callable[[Format, Rounding], bool]

    def holds(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether it is so in a format and a rounding.

        Raises
        ------
        TypeError
            If what is returned is no bool.
        """
        found = self.of(fmt, rounding)
        if not isinstance(found, bool):
            raise TypeError(f"{self.text!r} must be True or False of a format, not {found!r}")
        return found


@dataclass(frozen=True)
class Predicate(Proposition):
    """A test of one's own of a `Trial`, in words. Arrays and recorded lines alone can read it."""

    text: str
    test: Callable[[Any], Any]


# -- errors -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bound:
    """The bound on an error relative to a reference.

    Attributes
    ----------
    constant : number, Polynomial, Quotient or callable
        In units of ``u**unit``: a number, a function of u, or one that gets the precision.
    unit : int
    squared : bool
        Whether error and reference are of squares: then it bounds ``|sqrt(1 + error / reference) - 1|``.
    strict : bool
        Whether it is not reached.
    text : str
        As it is written, where the constant is a callable.
    """

    constant: Constant
    unit: int = 0
    squared: bool = False
    strict: bool = False
    text: str = ""

    @cached_property
    def formula(self) -> Quotient | None:
        """The constant as a function of u, or None if it is none."""
        if isinstance(self.constant, Quotient):
            return self.constant
        return None if callable(self.constant) else Quotient.of(self.constant)

    def at(self, p: int) -> Fraction:
        """Return the constant at a precision; from a pole of the formula down it bounds nothing.

        Raises
        ------
        ValueError
            If it is negative there.
        """
        formula = self.formula
        if formula is None:
            assert callable(self.constant)
            found = Fraction(self.constant(p))
        else:
            found = formula.at(p) if formula.denominator.at(p) > 0 else Fraction(4**p)
        if found < 0:
            raise ValueError(f"the bound {self.text or formula} is negative at p = {p}: {found}")
        return found

    def limits(self, p: int) -> tuple[Fraction, Fraction]:
        """Return the largest quotient of error and reference above zero, and the largest below."""
        share = self.at(p) / 2 ** (self.unit * p)
        if not self.squared:
            return share, share
        # No square is below zero: the whole radicand is the most that can be missing.
        return (1 + share) ** 2 - 1, 1 - (1 - share) ** 2 if share < 1 else Fraction(1)

    def size(self, ratio: Fraction, p: int) -> Fraction | mpmath.mpf:
        """Return what a signed quotient of error and reference amounts to, as a constant."""
        if not self.squared:
            return abs(ratio) * Fraction(2) ** (self.unit * p)
        with mpmath.workdps(60):
            exact = mpmath.mpf(ratio.numerator) / ratio.denominator
            return abs(mpmath.sqrt(1 + exact) - 1) * 2 ** (self.unit * p)


@dataclass(frozen=True)
class Within(Proposition):
    """An error is at most a bound times what it is relative to, in magnitude, and all results are finite.

    Attributes
    ----------
    error, reference : Term
        If the exact result is a quotient, both are multiplied by its denominator.
    bound : Bound
    """

    error: Term
    reference: Term
    bound: Bound


# -- looked through -----------------------------------------------------------------------------------------
def possible(said: Proposition, fmt: Format, rounding: Rounding) -> bool:
    """Return whether a proposition can hold of any case in a format and rounding."""
    match said:
        case InFormat():
            return said.holds(fmt, rounding)
        case NoOverflow():
            shown = fmt.has_nan or fmt.has_infinity
            return shown and rounding.overflow is not Overflow.SATURATE
        case AllOf(parts):
            return all(possible(part, fmt, rounding) for part in parts)
        case AnyOf(parts):
            return any(possible(part, fmt, rounding) for part in parts)
    return True


def settled(said: Proposition, fmt: Format, rounding: Rounding) -> bool | None:
    """Return what a format and a rounding alone say of a proposition, or None if they do not settle it."""
    match said:
        case InFormat():
            return said.holds(fmt, rounding)
        case AllOf(parts) | AnyOf(parts):
            found = {settled(part, fmt, rounding) for part in parts}
            decisive = isinstance(said, AnyOf)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case Not(part):
            held = settled(part, fmt, rounding)
            return None if held is None else not held
    return None


def measured(said: Proposition) -> Within | None:
    """Return the first bound on an error that a proposition says, alone or together with others."""
    if isinstance(said, Within):
        return said
    parts = said.parts if isinstance(said, AllOf) else ()
    return next((found for part in parts if (found := measured(part)) is not None), None)


def nodes(said: Any) -> Iterator[Any]:
    """Yield a proposition or term and all that it is made of."""
    yield said
    for field in fields(said):
        part = getattr(said, field.name)
        for item in part if isinstance(part, tuple) else (part,):
            if isinstance(item, Term | Proposition):
                yield from nodes(item)


def predicates(said: Any) -> Iterator[Predicate]:
    """Yield the predicates on arrays in a proposition."""
    return (node for node in nodes(said) if isinstance(node, Predicate))


def spoken_of(said: Any) -> tuple[Result | Results, ...]:
    """Return the results that a proposition or term speaks of."""
    return tuple(dict.fromkeys(node for node in nodes(said) if isinstance(node, Result | Results)))
