"""A family guessed from worst cases at several precisions: polynomials through their components.

A guess is no proof: `mcfsim.theorems.every_p.prove` makes one of it, or refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from mcfsim.theorems.counterexamples import Case
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.statement import Scaling, Theorem
from mcfsim.theorems.symbolic import EVERY, Family, Polynomial, Precisions
from mcfsim.theorems.symbolic.polynomial import is_dyadic

#: So many precisions determine a polynomial, and it has at most so many terms.
_FITTED = 3
#: Numerators and denominators of coefficients do not exceed it.
_LARGEST = 64
#: The powers of u with which a component may begin.
_POWERS = range(-2, 6)


class NoFitError(ValueError):
    """Cases at several precisions follow no polynomial of few terms and small coefficients."""


@dataclass(frozen=True)
class Fit:
    """A family through worst cases.

    Attributes
    ----------
    family : Family
    fitted : tuple of int
        The precisions that determine it.
    confirmed, others : tuple of int
        Those of the other precisions at which the case is the family's, and at which it is another one.
    """

    family: Family
    fitted: tuple[int, ...]
    confirmed: tuple[int, ...]
    others: tuple[int, ...]


def fit(theorem: Theorem, cases: Mapping[int, Sequence[Fraction]], over: Precisions = EVERY) -> Fit:
    """Guess a family from one case at each of several precisions.

    Parameters
    ----------
    theorem : Theorem
        The statement whose worst cases they are: by its scaling they are brought to one sign and binade.
    cases : mapping of int to sequence of Fraction
        Of each precision one case: a number for every component.
    over : Precisions, optional
        Only these precisions count; polynomials are in their t.

    Returns
    -------
    Fit
        Through the three largest precisions in a row through which there is one. No polynomial is
        determined by just as many precisions as it has terms: where it has three, a fourth must confirm it.

    Raises
    ------
    NoFitError
        If there are fewer than three precisions, or no such polynomials. The message says of which component.
    ValueError
        If a case has another number of components.
    """
    known = {p: normalised(theorem, case) for p, case in sorted(cases.items()) if p in over}
    rows = [list(known)[i : i + _FITTED] for i in range(len(known) - _FITTED + 1)]
    rows = [row for row in rows if all(q - p == over.step for p, q in pairwise(row))]
    if not rows:
        raise NoFitError(f"{theorem.name!r}: there are no {_FITTED} cases at neighbouring precisions {over}")
    problem = ""
    for row in reversed(rows):
        try:
            return _through(theorem, known, row, over)
        except NoFitError as reason:
            problem = problem or str(reason)
    raise NoFitError(problem)


def normalised(theorem: Theorem, case: Sequence[Fraction]) -> Case:
    """Return a case of which first components are positive and in the binade of 1, as far as it scales.

    Under a root the binades of 1 and 2 remain two; operands that scale together have the first one's.

    Raises
    ------
    ValueError
        If it has another number of components than the operands.
    """
    if len(case) != theorem.components:
        raise ValueError(f"{theorem.name!r} takes {theorem.components} numbers, not {len(case)}")
    groups = list(_grouped(theorem.operands, list(map(Fraction, case))))
    scaling = theorem.scaling
    if scaling is Scaling.NONE:
        return tuple(part for group in groups for part in group)
    together = [group[0] for group in groups][:1] * len(groups)
    heads = [group[0] for group in groups] if scaling is Scaling.EACH else together
    return tuple(
        part / _scale(head, square=scaling is Scaling.SQUARE)
        for group, head in zip(groups, heads, strict=True)
        for part in group
    )


def _grouped(operands: tuple[OperandSpec, ...], numbers: list[Fraction]) -> Iterator[list[Fraction]]:
    start = 0
    for operand in operands:
        yield numbers[start : start + operand.components]
        start += operand.components


def _scale(head: Fraction, *, square: bool) -> Fraction:
    """Return the power of two, with the sign, that a number is divided by to lie in the binade of 1."""
    if head == 0:
        return Fraction(1)
    exponent = abs(head.numerator).bit_length() - head.denominator.bit_length()
    exponent -= abs(head) < Fraction(2) ** exponent
    if square:
        return Fraction(2) ** (exponent // 2 * 2)
    return Fraction(2) ** exponent * (1 if head > 0 else -1)


def _through(theorem: Theorem, known: Mapping[int, Case], row: list[int], over: Precisions) -> Fit:
    """Return the family through the cases of a row of precisions."""
    parts: list[Polynomial] = []
    names = [operand.name for operand in theorem.operands for _ in range(operand.components)]
    agreeing = set(known)
    for i, name in enumerate(names):
        values = {p: case[i] for p, case in known.items()}
        found = polynomial({p: values[p] for p in row}, over, values)
        if found is None:
            raise NoFitError(
                f"{theorem.name!r}: a component of {name} follows no polynomial of at most {_FITTED} terms "
                f"at p = {', '.join(map(str, row))}"
            )
        parts.append(found)
        agreeing &= {p for p, value in values.items() if found.at(p) == value}
    groups, start = [], 0
    for operand in theorem.operands:
        groups.append((operand.name, tuple(parts[start : start + operand.components])))
        start += operand.components
    confirmed = tuple(sorted(agreeing - set(row)))
    if any(len(part.terms) >= len(row) for part in parts) and not confirmed:
        raise NoFitError(f"{theorem.name!r}: no other precision confirms the polynomials through {row}")
    others = tuple(p for p in known if p not in agreeing)
    return Fit(Family(tuple(groups), over), tuple(row), confirmed, others)


def polynomial(
    values: Mapping[int, Fraction], over: Precisions, confirming: Mapping[int, Fraction] | None = None
) -> Polynomial | None:
    """Return the polynomial of fewest terms with small dyadic coefficients through all values, or None.

    Parameters
    ----------
    values : mapping of int to Fraction
        A number at each precision, of `over`.
    over : Precisions
        What t is.
    confirming : mapping of int to Fraction, optional
        More values: among polynomials of as many terms that with most of them is taken.
    """
    if not any(values.values()):
        return Polynomial((), over)
    points = {Fraction(1, 2 ** over.index(p)): value for p, value in values.items()}
    for terms in range(1, len(points) + 1):
        found = []
        for power in range(_POWERS.start * over.step, _POWERS.stop * over.step):
            coefficients = _solved(dict(list(points.items())[-terms:]), power)
            if all(map(_is_small, coefficients)):
                one = Polynomial.of(dict(enumerate(coefficients, power)), over)
                if all(one.at(p) == value for p, value in values.items()):
                    found.append(one)
        if found:
            more = confirming or {}
            return max(found, key=lambda one: sum(one.at(p) == value for p, value in more.items()))
    return None


def _solved(points: Mapping[Fraction, Fraction], power: int) -> list[Fraction]:
    """Return the coefficients of ``t**power`` and so on, as many as points, by divided differences."""
    at = list(points)
    row = [value / t**power for t, value in points.items()]
    newton = [row[0]]
    for order in range(1, len(at)):
        row = [(b - a) / (at[i + order] - at[i]) for i, (a, b) in enumerate(pairwise(row))]
        newton.append(row[0])
    result: list[Fraction] = []
    for t, leading in zip(reversed(at), reversed(newton), strict=True):
        # result * (x - t) + leading
        shifted = [Fraction(0), *result]
        result = [a - t * b for a, b in zip(shifted, [*result, Fraction(0)], strict=True)]
        result[0] += leading
    return result


def _is_small(coefficient: Fraction) -> bool:
    return (
        is_dyadic(coefficient)
        and abs(coefficient.numerator) <= _LARGEST
        and coefficient.denominator <= _LARGEST
    )
