"""Propositions as data: statements that are true or false of a case.

An atom about a result that is infinite or NaN is false, except `Same` and atoms that test for it.
Combine propositions with ``&`` and ``|``; negate one with ``~``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import mpmath

from mcfsim.formats import Format
from mcfsim.rounding import Overflow, Rounding
from mcfsim.theorems.logic.terms import AllOf, AnyOf, OfFormat, OfTwo, Proposition, Result, Term, nodes
from mcfsim.theorems.symbolic import Polynomial, Quotient

#: The constant of a bound: a number, a function of u, or a function of the precision.
Constant = int | Fraction | Polynomial | Quotient | Callable[[int], Fraction]


#: The exponent of infinity, above all others: that of the last bit of zero.
BEYOND = 1 << 30


class UnreadableError(ValueError):
    """Raised if an interpreter cannot read a proposition, as the solver cannot read a predicate on arrays."""


# -- combinations -------------------------------------------------------------------------------------------
class Iff(Proposition):
    """The equivalence of two propositions."""

    first: Proposition
    second: Proposition


class EveryDraw(Proposition):
    """A proposition on every draw; without stochastic rounding, the proposition itself."""

    part: Proposition


class SameSign(OfTwo):
    """The proposition that two words or results do not have opposite signs: ``x y >= 0``."""


class Same(Proposition):
    """The proposition that both halves of the results are equal, up to signs of zero; NaN equals NaN.

    Attributes
    ----------
    one, other : str
        Descriptions of the halves.
    """

    one: str = "the first half of the results"
    other: str = "the second"


# -- properties of numbers ----------------------------------------------------------------------------------
class Finite(Proposition):
    """The proposition that a result is finite; by default, that all results are."""

    of: Result | None = None


class NoOverflow(Proposition):
    """The proposition that no result is infinite or NaN.

    Results that saturate, by policy or for lack of both, do not show overflow; the proposition ignores it.
    """


class IsValue(Proposition):
    """The proposition that a number is a finite value of the format."""

    x: Term


class IsMultiple(Proposition):
    """The proposition that a number is an integer multiple of a power of two."""

    x: Term
    of: Term


class HasBits(Proposition):
    """The proposition that a number has at most `bits` significant bits; only zero has none."""

    x: Term
    bits: OfFormat


class Nonoverlapping(Proposition):
    """The proposition that each nonzero term, times the factor, is below the last bit of every later one.

    By default the terms are all results. With the factor 2 they are nonadjacent.
    """

    terms: tuple[Term, ...] = ()
    factor: int = 1


class StronglyNonoverlapping(Proposition):
    """No results overlap; adjacent ones are powers of two, and none is adjacent to two others."""


# -- of the format, and by predicate ------------------------------------------------------------------------
class InFormat(Proposition):
    """A proposition that depends on format and rounding alone."""

    text: str
    of: Callable[[Format, Rounding], bool]

    def holds(self, fmt: Format, rounding: Rounding) -> bool:
        """Return whether it holds for a format and a rounding.

        Raises
        ------
        TypeError
            If `of` returns no bool.
        """
        found = self.of(fmt, rounding)
        if not isinstance(found, bool):
            raise TypeError(f"{self.text!r} must be True or False of a format, not {found!r}")
        return found


class Predicate(Proposition):
    """A custom test of a `Trial`. Only arrays and recorded programs can evaluate it."""

    text: str
    test: Callable[[Any], Any]


# -- errors -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bound:
    """A bound on an error relative to a reference.

    Attributes
    ----------
    constant : number, Polynomial, Quotient or callable
        In units of ``u**unit``: a number, a function of u, or a callable of the precision.
    unit : int
    squared : bool
        Whether error and reference are of squares. It then bounds ``|sqrt(1 + error / reference) - 1|``.
    strict : bool
        Whether the error is below the bound, not at it.
    text : str
        Its notation, if the constant is a callable.
    """

    constant: Constant
    unit: int = 0
    squared: bool = False
    strict: bool = False
    text: str = ""

    @cached_property
    def formula(self) -> Quotient | None:
        """The constant as a function of u, or None if it is a callable."""
        if isinstance(self.constant, Quotient):
            return self.constant
        return None if callable(self.constant) else Quotient.of(self.constant)

    def at(self, p: int) -> Fraction:
        """Return the constant at a precision; at and below a pole of the formula, one that bounds nothing.

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
        """Return the largest magnitudes of positive and negative ``error / reference`` in the bound."""
        share = self.at(p) / 2 ** (self.unit * p)
        if not self.squared:
            return share, share
        # No square is below zero: the whole radicand is the most that can be missing.
        return (1 + share) ** 2 - 1, 1 - (1 - share) ** 2 if share < 1 else Fraction(1)

    def size(self, ratio: Fraction, p: int) -> Fraction | mpmath.mpf:
        """Return the constant that a signed ``error / reference`` attains."""
        if not self.squared:
            return abs(ratio) * Fraction(2) ** (self.unit * p)
        with mpmath.workdps(60):
            exact = mpmath.mpf(ratio.numerator) / ratio.denominator
            return abs(mpmath.sqrt(1 + exact) - 1) * 2 ** (self.unit * p)


class Within(Proposition):
    """The proposition that ``|error| <= bound |reference|`` and all results are finite.

    Attributes
    ----------
    error, reference : Term
        If the exact result is a quotient, both are multiplied by its denominator.
    bound : Bound
    """

    error: Term
    reference: Term
    bound: Bound


# -- analysis -----------------------------------------------------------------------------------------------
def possible(said: Proposition, fmt: Format, rounding: Rounding) -> bool:
    """Return whether a proposition can hold for some case in a format and rounding."""
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


def measured(said: Proposition) -> Within | None:
    """Return the first error bound in a proposition or conjunction, or None."""
    if isinstance(said, Within):
        return said
    parts = said.parts if isinstance(said, AllOf) else ()
    return next((found for part in parts if (found := measured(part)) is not None), None)


def halves(results: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each result of the first half with its counterpart of the second; see `Same`."""
    half = len(results) // 2
    return zip(results[:half], results[half:], strict=True)


def predicates(said: Any) -> Iterator[Predicate]:
    """Yield the predicates on arrays in a proposition."""
    return (node for node in nodes(said) if isinstance(node, Predicate))
