"""What a claim measures, of single numbers of any kind: polynomials, or fractions at one precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Any

from mcfsim.symbolic import Polynomial, Quotient, Relation
from mcfsim.symbolic.decisions import first
from mcfsim.theorems.statement import Claim, Theorem
from mcfsim.theorems.trial import flat


@dataclass(frozen=True)
class Single:
    """One case as the measures of claims see it: sums and products of operands and results.

    Attributes
    ----------
    names : tuple of str
    operands : tuple
        Of each name a number, or a tuple of them.
    results : tuple
        What the algorithm returned, laid flat.
    """

    names: tuple[str, ...]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]

    def once(self, function: Callable[[Any], Any]) -> Any:
        """Return ``function(self)``."""
        return function(self)

    def __getitem__(self, name: str) -> Any:
        return self.operands[self.names.index(name)]

    def exact(self, name: str) -> Any:
        """Return the exact value of an operand, components summed."""
        return reduce(add, flat(self[name]))

    def result(self, start: int = 0, stop: int | None = None) -> Any:
        """Return the exact sum of results."""
        return reduce(add, self.results[start:stop])


def measured(theorem: Theorem, operands: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, Any] | None:
    """Return error and reference of a case, or None if the claim measures nothing."""
    if theorem.claim.measure is None or not theorem.claim.unit:
        return None
    case: Any = Single(tuple(operand.name for operand in theorem.operands), operands, results)
    found = theorem.claim.measure(case)
    return found.error, found.reference


def limit_of(error: Quotient, claim: Claim) -> Fraction | None:
    """Return the limit of a statement's constant, in its unit, or None if it grows beyond all bounds."""
    found = abs(error).over_unit(claim.unit).limit
    # Of squares: sqrt(1 + d) - 1 is d / 2 but for higher powers of d, if d vanishes.
    if found is None and claim.squared:
        return None
    return found if found is None else found / (2 if claim.squared else 1)


def excess(error: Quotient, claim: Claim) -> Polynomial | None:
    """Return a polynomial that is positive where the error exceeds the bound, and negative where it does not.

    None stands for a bound that is no function of u.
    """
    if claim.formula is None:
        return None
    numerator, denominator = error.numerator, abs(error.denominator)
    unit = _unit(claim.unit, error.numerator)
    n, d = (_over(part, numerator) for part in (claim.formula.numerator, claim.formula.denominator))
    share = n * unit
    if not claim.squared:
        return abs(numerator) * d - share * denominator
    # (1 + s)^2 - 1 = s (2 + s) above, and 1 - (1 - s)^2 = s (2 - s) below.
    far = share * (2 * d + share * numerator.sign)
    return abs(numerator) * d * d - far * denominator


def exceeds(error: Quotient, claim: Claim, p: int) -> bool:
    """Return whether the error is beyond the bound at a precision; from a pole down there is none."""
    assert claim.formula is not None
    if claim.formula.denominator.at(p) <= 0:
        return False
    wrong, share = error.at(p), claim.formula.at(p) / 2 ** (claim.unit * p)
    if claim.squared:
        share = abs((1 + (share if wrong >= 0 else -share)) ** 2 - 1)
    return bool(abs(wrong) > share)


def holds_from(polynomial: Polynomial) -> tuple[bool, int]:
    """Return whether a bound holds for every large p, by its `excess`, and the least p from which on."""
    beyond = polynomial.sign > 0
    relation = Relation.POSITIVE if beyond else Relation.NOT_NEGATIVE
    n = first(relation, polynomial if beyond else -polynomial)
    return not beyond, polynomial.over.precision(n)


def _unit(power: int, like: Polynomial) -> Polynomial:
    return Polynomial((like.over.unit,), like.over) ** power


def _over(part: Polynomial, like: Polynomial) -> Polynomial:
    """Return a polynomial in u over the precisions of another."""
    if part.over == like.over:
        return part
    step, unit = like.over.unit
    return Polynomial.of({k * step: c * unit**k for k, c in part.terms}, like.over)
