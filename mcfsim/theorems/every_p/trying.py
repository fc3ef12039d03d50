"""A family at one precision, by the oracle: whether polynomials give what rounding by the definition does."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mcfsim.formats import Format
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic import Family, Polynomial, Quotient
from mcfsim.theorems.by_oracle import trial_of
from mcfsim.theorems.every_p.measured import words_of
from mcfsim.theorems.logic import UnreadableError
from mcfsim.theorems.logic.on_numbers import Case
from mcfsim.theorems.statement import Hypothesis, Theorem
from mcfsim.theorems.trial import flat

#: Up to here binary64 holds the operands, so that hypotheses can be asked that are predicates on arrays.
IN_BINARY64 = 53
#: Exponents up to so many times the precision stand for unbounded ones.
_REACH = 64
#: Exponents that no case of a catalogue leaves at such a precision.
_RANGE = (-900, 900)


def difference(
    theorem: Theorem,
    family: Family,
    results: tuple[Polynomial, ...],
    error: Quotient | None,
    mode: Mode,
    p: int,
) -> str | None:
    """Return what is not as the polynomials say at a precision, or None if all is.

    Operands must be numbers of p bits and of their kinds, hypotheses must hold, the algorithm must return the
    results, and its error, if one is measured, must be that function of u, with the signs that it and what it
    is relative to have for large p.
    """
    oracle = FractionArithmetic(p, Rounding(mode))
    given: Any = family.structured(p)
    for operand, words in zip(theorem.operands, given, strict=True):
        parts: Any = flat(words)
        for part in parts:
            if FractionArithmetic(p).round(part) != part:
                return f"{operand.name} has {part}, no number of {p} bits"
        if operand.paired and not _is_pair(operand.kind, parts[0], parts[1], p):
            return f"{operand.name} = ({parts[0]}, {parts[1]}) is no {operand.kind}"
    try:
        found: Any = flat(theorem.algorithm(oracle, *given))
    except (ValueError, ZeroDivisionError) as failure:
        return f"the algorithm fails: {failure}"
    wanted = [result.at(p) for result in results]
    if found != wanted:
        return f"the algorithm returns {_listed(found)}, not {_listed(wanted)}"
    fmt = Format(f"p{p}", precision=p, emin=-_REACH * p, emax=_REACH * p)
    case = Case(fmt, Rounding(mode), words_of(theorem, given), [(Fraction(1), found)])
    return _other_error(theorem, case, error, p) or _hypothesis_violated(theorem, family, case)


def _other_error(theorem: Theorem, case: Case, error: Quotient | None, p: int) -> str | None:
    measured = theorem.claim.measured
    if measured is None or not measured.bound.unit or error is None:
        return None if error is None else "no error is measured"
    wrong, reference = case.value(measured.error), case.value(measured.reference)
    if reference == 0:
        return "what the error is relative to is zero"
    wanted = error.at(p)
    if wrong != wanted * reference:
        return f"the error is {wrong / reference}, not {wanted}"
    # Its magnitude, and whether that is within a bound, are told by the signs that they have for large p.
    if not error.numerator:
        return None
    if abs(error.numerator).at(p) < 0:
        return f"the error {wanted} has another sign than for large p"
    if abs(error.denominator).at(p) < 0:
        return f"what the error is relative to, {reference}, has another sign than for large p"
    return None


def _hypothesis_violated(theorem: Theorem, family: Family, case: Case) -> str | None:
    for hypothesis in theorem.where:
        if not _holds(theorem, family, hypothesis, case):
            return f"a hypothesis fails: {hypothesis.text}"
    return None


def _holds(theorem: Theorem, family: Family, hypothesis: Hypothesis, case: Case) -> bool:
    try:
        return case.holds(hypothesis.said)
    except UnreadableError:
        p, rounding = case.format.precision, case.rounding
        if p > IN_BINARY64:
            return True
    fmt = Format(f"p{p}", precision=p, emin=_RANGE[0], emax=_RANGE[1])
    ((_, results),) = case.paths
    numbers, found = ([float(x) for x in some] for some in (family.at(p), results))
    return bool(hypothesis.test(trial_of(theorem, OracleArithmetic(fmt, rounding), [numbers], [found]))[0])


def _is_pair(kind: str, high: Fraction, low: Fraction, p: int) -> bool:
    """Return whether two numbers are a double word or a relaxed pair."""
    if kind == "double word":
        return FractionArithmetic(p).add(high, low) == high
    # Half an ulp of the high word is u times its binade, which one bit of it tells.
    binade: Fraction = FractionArithmetic(1, Rounding(Mode.TOWARD_ZERO)).round(abs(high))
    return bool(abs(low) <= binade / 2**p)


def _listed(numbers: list[Fraction]) -> str:
    return f"({', '.join(map(str, numbers))})"
