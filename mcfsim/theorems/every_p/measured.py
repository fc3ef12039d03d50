"""What a claim measures of polynomials, and how that compares with its bound."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mcfsim.symbolic import Polynomial, Quotient, Relation
from mcfsim.symbolic.decisions import first
from mcfsim.symbolic.precisions import Precisions
from mcfsim.theorems.logic.on_numbers import in_ring
from mcfsim.theorems.logic.propositions import Bound
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import flat


def measured(
    theorem: Theorem, operands: tuple[Any, ...], results: tuple[Any, ...], over: Precisions | None = None
) -> tuple[Any, Any] | None:
    """Return error and reference of a case, or None if the claim measures nothing in u.

    Numbers are of any kind that is added and multiplied: polynomials over precisions, arrays.

    Raises
    ------
    UnreadableError
        If the claim computes them from trials.
    """
    found = theorem.claim.measured
    if found is None or not found.bound.unit:
        return None
    words = words_of(theorem, operands)
    return in_ring(found.error, words, results, over), in_ring(found.reference, words, results, over)


def words_of(theorem: Theorem, operands: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Return the words of each operand by its name."""
    return {operand.name: flat(words) for operand, words in zip(theorem.operands, operands, strict=True)}


def limit_of(error: Quotient, bound: Bound) -> Fraction | None:
    """Return the limit of a statement's constant, in its unit, or None if it grows beyond all bounds."""
    found = abs(error).over_unit(bound.unit).limit
    # Of squares: sqrt(1 + d) - 1 is d / 2 but for higher powers of d, if d vanishes.
    if found is None and bound.squared:
        return None
    return found if found is None else found / (2 if bound.squared else 1)


def excess(error: Quotient, bound: Bound) -> Polynomial | None:
    """Return a polynomial that is positive where the error exceeds the bound, and negative where it does not.

    None stands for a bound that is no function of u.
    """
    if bound.formula is None:
        return None
    numerator, denominator = error.numerator, abs(error.denominator)
    unit = _unit(bound.unit, error.numerator)
    n, d = (_over(part, numerator) for part in (bound.formula.numerator, bound.formula.denominator))
    share = n * unit
    if not bound.squared:
        return abs(numerator) * d - share * denominator
    # (1 + s)^2 - 1 = s (2 + s) above, and 1 - (1 - s)^2 = s (2 - s) below.
    far = share * (2 * d + share * numerator.sign)
    return abs(numerator) * d * d - far * denominator


def exceeds(error: Quotient, bound: Bound, p: int) -> bool:
    """Return whether the error is beyond the bound at a precision.

    From a pole of the formula down there is no bound; beyond a negative one is any error.
    """
    if bound.formula is not None:
        if bound.formula.denominator.at(p) <= 0:
            return False
        if bound.formula.at(p) < 0:
            return True
    wrong = error.at(p)
    above, below = bound.limits(p)
    return bool(abs(wrong) > (above if wrong >= 0 else below))


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
