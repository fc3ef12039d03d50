"""A family at one precision, by the oracle: whether polynomials give what rounding by the definition does."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mcfsim.formats import Format
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic import Family, Polynomial, Quotient
from mcfsim.theorems.by_oracle import trial_of
from mcfsim.theorems.every_p.measured import measured
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import flat

#: Up to here binary64 holds the operands, so that hypotheses, which are predicates of arrays, can be asked.
IN_BINARY64 = 53
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
    if problem := _other_error(measured(theorem, given, tuple(found)), error, p):
        return problem
    return _hypothesis_violated(theorem, family, found, mode, p) if p <= IN_BINARY64 else None


def _other_error(found: tuple[Fraction, Fraction] | None, error: Quotient | None, p: int) -> str | None:
    if found is None or error is None:
        return None if found is None and error is None else "an error is measured on one side alone"
    wrong, reference = found
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


def _hypothesis_violated(
    theorem: Theorem, family: Family, results: list[Fraction], mode: Mode, p: int
) -> str | None:
    fmt = Format(f"p{p}", precision=p, emin=_RANGE[0], emax=_RANGE[1])
    case, found = ([float(x) for x in numbers] for numbers in (family.at(p), results))
    trial = trial_of(theorem, OracleArithmetic(fmt, Rounding(mode)), [case], [found])
    for hypothesis in theorem.where:
        if not bool(hypothesis.test(trial)[0]):
            return f"a hypothesis fails: {hypothesis.text}"
    return None


def _is_pair(kind: str, high: Fraction, low: Fraction, p: int) -> bool:
    """Return whether two numbers are a double word or a relaxed pair."""
    if kind == "double word":
        return FractionArithmetic(p).add(high, low) == high
    # Half an ulp of the high word is u times its binade, which one bit of it tells.
    binade: Fraction = FractionArithmetic(1, Rounding(Mode.TOWARD_ZERO)).round(abs(high))
    return bool(abs(low) <= binade / 2**p)


def _listed(numbers: list[Fraction]) -> str:
    return f"({', '.join(map(str, numbers))})"
