"""The error of a family as polynomials in u, its check by the oracle at one p; families found by search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.logic import UnreadableError
from mcfsim.theorems.logic.on_numbers import Case, Ring
from mcfsim.theorems.logic.propositions import Bound, Finite, IsMultiple, NoOverflow, SameSign
from mcfsim.theorems.logic.terms import (
    AtMost,
    Below,
    Equal,
    Exponent,
    Magnitude,
    Proposition,
    SumOfMagnitudes,
    Term,
    Ulp,
)
from mcfsim.theorems.retry import trial_of
from mcfsim.theorems.statement import Hypothesis, Theorem
from mcfsim.theorems.symbolic import EVEN, ODD, Family, Polynomial, Quotient, Relation, family, u
from mcfsim.theorems.symbolic.decisions import Ledger, first
from mcfsim.theorems.symbolic.operand_families import root, unit
from mcfsim.theorems.symbolic.polynomial import Precisions
from mcfsim.theorems.symbolic.symbolic_rounding import Exactly, binade


# -- on polynomials ---------------------------------------------------------------------------------------
def measured(
    theorem: Theorem, operands: tuple[Any, ...], results: tuple[Any, ...], over: Precisions | None = None
) -> tuple[Any, Any] | None:
    """Return the error and reference of a claim, or None if it measures nothing in u.

    Numbers are of any kind that can be added and multiplied, such as polynomials over precisions, or arrays.

    Raises
    ------
    UnreadableError
        If the claim computes them from trials.
    """
    found = theorem.claim.measured
    if found is None or not found.bound.unit:
        return None
    ring = Ring(words_of(theorem, operands), results, over)
    return ring.value(found.error), ring.value(found.reference)


def words_of(theorem: Theorem, operands: tuple[Any, ...]) -> dict[str, list[Any]]:
    """Return the words of each operand, by name."""
    return {operand.name: flat(words) for operand, words in zip(theorem.operands, operands, strict=True)}


def limit_of(error: Quotient, bound: Bound) -> Fraction | None:
    """Return the limit of a statement's constant, in its unit, or None if it is unbounded."""
    found = abs(error).over_unit(bound.unit).limit
    # For squares: sqrt(1 + d) - 1 is d / 2 up to higher powers of d, as d tends to 0.
    return None if found is None else found / (2 if bound.squared else 1)


def excess(error: Quotient, bound: Bound) -> Polynomial | None:
    """Return a polynomial that is positive where the error exceeds the bound, and negative where it does not.

    Return None if the bound is not a function of u.
    """
    if bound.formula is None:
        return None
    numerator, denominator = error.numerator, abs(error.denominator)
    n, d = (_over(part, numerator) for part in (bound.formula.numerator, bound.formula.denominator))
    share = n * unit(numerator.over) ** bound.unit
    if not bound.squared:
        return abs(numerator) * d - share * denominator
    # (1 + s)^2 - 1 = s (2 + s) above, and 1 - (1 - s)^2 = s (2 - s) below.
    far = share * (2 * d + share * numerator.sign)
    return abs(numerator) * d * d - far * denominator


def exceeds(error: Quotient, bound: Bound, p: int) -> bool:
    """Return whether the error exceeds the bound at a precision.

    At and below a pole of the formula there is no bound. Any error exceeds a negative bound.
    """
    if bound.formula is not None:
        if bound.formula.denominator.at(p) <= 0:
            return False
        if bound.formula.at(p) < 0:
            return True
    wrong = error.at(p)
    above, below = bound.limits(p)
    size, most = abs(wrong), above if wrong >= 0 else below
    return bool(size >= most if bound.strict else size > most)


def holds_from(polynomial: Polynomial, *, strict: bool = False) -> tuple[bool, int]:
    """Return whether a bound holds for large p, by its `excess`, and the least p from which this is so.

    A strict bound must not be reached, either.
    """
    beyond = polynomial.sign > 0 or (strict and not polynomial)
    relation = Relation.POSITIVE if beyond is not strict else Relation.NOT_NEGATIVE
    n = first(relation, polynomial if beyond else -polynomial)
    return not beyond, polynomial.over.precision(n)


def _over(part: Polynomial, like: Polynomial) -> Polynomial:
    """Return a polynomial in u as one over the precisions of another."""
    if part.over == like.over:
        return part
    step, unit = like.over.unit
    return Polynomial.of({k * step: c * unit**k for k, c in part.terms}, like.over)


class Decided(Ring):
    """A family's operands and results, about which propositions are decided for every large p.

    Attributes
    ----------
    ledger : Ledger
        What the decisions rest on.
    """

    def __init__(self, run: FamilyRun) -> None:
        self.precisions = run.family.over
        super().__init__(words_of(run.theorem, run.family.structured()), run.results, self.precisions)
        self.ledger = Ledger(self.precisions)

    def atom_holds(self, said: Proposition) -> bool:
        """Return whether an atom holds for every large p, where exponents are unbounded.

        Raises
        ------
        ValueError
            If that is not decided.
        """
        match said:
            case NoOverflow() | Finite():
                return True
            case SameSign(x, y):
                return self._is_positive(self.value(x) * self.value(y), or_zero=True)
            case IsMultiple(x, of):
                whole = Polynomial.from_any(self.value(x) / self.value(of), self.precisions)
                self.ledger.require(Relation.INTEGER, whole, "multiple")
                return True
            case AtMost(x, y) | Below(x, y) | Equal(x, y):
                read = self._binade if isinstance(x, Exponent) and isinstance(y, Exponent) else self.value
                more = read(y) - read(x)
                if isinstance(said, Equal):
                    return not (more and self._is_positive(abs(more)))
                return self._is_positive(more, or_zero=isinstance(said, AtMost))
        raise UnreadableError(f"{type(said).__name__} is not decided for every p")

    def value(self, x: Term) -> Any:
        """Return the value of a term, a polynomial for every large p or a number."""
        match x:
            case Magnitude(term):
                return self._magnitude(self.value(term))
            case Ulp(of) if low := self._binade(Exponent(of)):
                return 2 * unit(self.precisions) * low
            case SumOfMagnitudes():
                raise UnreadableError("magnitudes are decided one by one")
        return super().value(x)

    def _magnitude(self, x: Any) -> Any:
        self._is_positive(abs(x), or_zero=True)
        return abs(x)

    def _binade(self, x: Any) -> Polynomial:
        """Return the power of two with the exponent of a term; that of zero is below all others."""
        size = Polynomial.from_any(self._magnitude(self.value(x.of)), self.precisions)
        if not size:
            return size
        low = binade(Exactly(size))
        self.ledger.require(Relation.NOT_NEGATIVE, size - low, "not below its binade")
        self.ledger.require(Relation.POSITIVE, 2 * low - size, "below the next binade")
        return low

    def _is_positive(self, x: Any, *, or_zero: bool = False) -> bool:
        x = Polynomial.from_any(x, self.precisions)
        held = x.sign > 0 or (or_zero and not x)
        relation = Relation.NOT_NEGATIVE if held is or_zero else Relation.POSITIVE
        self.ledger.require(relation, x if held else -x, "sign")
        return held


# -- at one precision -------------------------------------------------------------------------------------
#: Up to this precision binary64 holds the operands, so that predicates on arrays can be evaluated.
IN_BINARY64 = 53
#: Exponents up to this multiple of the precision stand for unbounded ones.
_REACH = 64
#: Exponents that no case of the catalogue leaves at precisions up to `IN_BINARY64`.
_RANGE = (-900, 900)


@dataclass(frozen=True)
class FamilyRun:
    """A run of a statement's algorithm on a family of operands, at every precision at once.

    Attributes
    ----------
    theorem : Theorem
    family : Family
    mode : Mode
    results : tuple of Polynomial
        What the algorithm returns.
    error : Quotient or None
        The signed error relative to the statement's reference; that of squares for a root.
    """

    theorem: Theorem
    family: Family
    mode: Mode
    results: tuple[Polynomial, ...]
    error: Quotient | None

    def difference(self, p: int) -> str | None:
        """Return how a run at one precision differs from the polynomials, or None if it does not.

        Operands must be numbers of p bits and of their kinds. Hypotheses must hold, and the algorithm must
        return the results. Its error, if one is measured, must be that function of u; error and reference
        must have the signs that they have for large p.
        """
        oracle = FractionArithmetic(p, Rounding(self.mode))
        given: Any = self.family.structured(p)
        for operand, words in zip(self.theorem.operands, given, strict=True):
            parts: Any = flat(words)
            for part in parts:
                if FractionArithmetic(p).round(part) != part:
                    return f"{operand.name} has {part}, no number of {p} bits"
            if operand.paired and not _is_pair(operand.kind, parts[0], parts[1], p):
                return f"{operand.name} = ({parts[0]}, {parts[1]}) is no {operand.kind}"
        try:
            found: Any = flat(self.theorem.algorithm(oracle, *given))
        except (ValueError, ZeroDivisionError) as failure:
            return f"the algorithm fails: {failure}"
        wanted = [result.at(p) for result in self.results]
        if found != wanted:
            return f"the algorithm returns {_listed(found)}, not {_listed(wanted)}"
        fmt = Format(f"p{p}", precision=p, emin=-_REACH * p, emax=_REACH * p)
        case = Case(fmt, Rounding(self.mode), words_of(self.theorem, given), [(Fraction(1), found)])
        if problem := self._other_error(case, p):
            return problem
        failing = (one.text for one in self.theorem.where if not self._holds(one, case))
        return next((f"a hypothesis fails: {text}" for text in failing), None)

    def _other_error(self, case: Case, p: int) -> str | None:
        measured, error = self.theorem.claim.measured, self.error
        if measured is None or not measured.bound.unit or error is None:
            return None if error is None else "no error is measured"
        wrong, reference = case.value(measured.error), case.value(measured.reference)
        if reference == 0:
            return "what the error is relative to is zero"
        wanted = error.at(p)
        if wrong != wanted * reference:
            return f"the error is {wrong / reference}, not {wanted}"
        # Magnitudes, and whether they are within a bound, are derived from the signs for large p.
        if not error.numerator:
            return None
        if abs(error.numerator).at(p) < 0:
            return f"the error {wanted} has another sign than for large p"
        if abs(error.denominator).at(p) < 0:
            return f"what the error is relative to, {reference}, has another sign than for large p"
        return None

    def _holds(self, hypothesis: Hypothesis, case: Case) -> bool:
        try:
            return case.holds(hypothesis.said)
        except UnreadableError:
            p, rounding = case.format.precision, case.rounding
            if p > IN_BINARY64:
                return True
        fmt = Format(f"p{p}", precision=p, emin=_RANGE[0], emax=_RANGE[1])
        ((_, results),) = case.paths
        numbers, found = ([float(x) for x in some] for some in (self.family.at(p), results))
        trial = trial_of(self.theorem, OracleArithmetic(fmt, rounding), [numbers], [found])
        return bool(hypothesis.test(trial)[0])


def _is_pair(kind: str, high: Fraction, low: Fraction, p: int) -> bool:
    """Return whether two numbers are a double word or a relaxed pair."""
    if kind == "double word":
        return FractionArithmetic(p).add(high, low) == high
    # Half an ulp of the high word is u times its leading power of two.
    binade: Fraction = FractionArithmetic(1, Rounding(Mode.TOWARD_ZERO)).round(abs(high))
    return bool(abs(low) <= binade / 2**p)


def _listed(numbers: list[Fraction]) -> str:
    return f"({', '.join(map(str, numbers))})"


# -- found by search ----------------------------------------------------------------------------------------
def _of_even_p(t: Polynomial) -> dict[str, Family]:
    """Return families in ``t = 2**(-p/2)``, so that ``u = t**2``."""
    return {
        "dw_times_fp2": family(x=(1 + t - 2 * t**2, t**2 - 3 * t**4), y=1 + t + 2 * t**2),
        "dw_times_fp3": family(x=(1 + t, t**2 - t**3 + 3 * t**4), y=2 + 2 * t),
        "dw_div_fp2": family(x=(1 + t / 2 + 4 * t**2, t**2 - t**3 + 25 * t**4), y=2 - 4 * t + 8 * t**2),
        "dw_div_fp3": family(x=(1 + t / 2 + 4 * t**2, t**2 - t**3 + 25 * t**4), y=2 - 4 * t + 8 * t**2),
        "dw_div_dw2": family(
            x=(1 + 2 * t, -(t**2) + 3 * t**3 / 2 + 10 * t**4), y=(1 + t, t**2 - 5 * t**3 / 2 + t**4)
        ),
        "dw_div_dw2_fma": family(x=(1 + 8 * t + 4 * t**2, -(t**2) + 2 * t**4), y=(1 + t, t**2)),
        "dw_div_dw3": family(
            x=(1 + t + 2 * t**2, -(t**2) + 2 * t**3 - 5 * t**4),
            y=(2 - 2 * t + 4 * t**2, -(t**2) + 21 * t**4),
        ),
    }


def _of_odd_p(t: Polynomial) -> dict[str, Family]:
    """Return families in ``t = 2**(-(p-1)/2)``, so that ``u = t**2 / 2``."""
    return {
        "dw_times_fp2": family(x=(1 + 3 * t / 4 - t**2, t**2 / 2 - t**3 / 8), y=2 + 4 * t + 4 * t**2),
        "dw_times_fp3": family(x=(2 + t, -(t**2) + t**3), y=1 + 3 * t),
        "dw_div_fp2": family(
            x=(2 + 3 * t - 12 * t**2, -(t**2) + 2 * t**3 + 11 * t**4 / 2), y=2 - 5 * t + 3 * t**2
        ),
        "dw_div_fp3": family(x=(1 + t / 4 - 2 * t**2, -(t**2) / 2 + 5 * t**4 / 4), y=2 - 4 * t + 2 * t**2),
        "dw_div_dw2": family(
            x=(1 + 3 * t / 2 + 2 * t**2, t**2 / 2 - t**4 / 2), y=(1 + t, -(t**2) / 2 + t**3 / 4 + t**4)
        ),
        "dw_div_dw2_fma": family(
            x=(1 + 9 * t / 4 + 6 * t**2, -(t**2) / 2 + t**3 / 8 + t**4 / 2),
            y=(1 + t / 4 - t**2, t**2 / 2 - t**3 / 4 + 3 * t**4 / 2),
        ),
        "dw_div_dw3": family(
            x=(2 - t / 2 + 2 * t**2, -(t**2) / 2 + 11 * t**3 / 4 - 3 * t**4),
            y=(2 - 4 * t + 7 * t**2, -(t**2) / 2 + 3 * t**3 / 8 + t**4 / 2),
        ),
    }


_EVEN, _ODD = _of_even_p(root(EVEN)), _of_odd_p(root(ODD))
#: Families of a statement besides those that it declares: one for every p, or one for even and one for odd p.
#: They are from `experiments.families.search`, and each is proved. Certificates of formats do not try them.
#: Where worst cases follow no polynomial in u, high words differ from a power of two by multiples of the root
#: of u. A product or remainder then has arbitrary last bits, and the operands hardly exceed the power of two.
FOUND: Mapping[str, tuple[Family, ...]] = MappingProxyType(
    {
        "dw_times_fp1": (family(x=(2 + 24 * u, u + 4 * u**2), y=2 - 2 * u),),
        "sqrt_dw": (family(x=(1 + 6 * u, u - 6 * u**2)),),
        **{name: (one, _ODD[name]) for name, one in _EVEN.items()},
    }
)
