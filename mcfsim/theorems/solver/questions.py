"""Statements of the catalogue as the solver is asked about them.

Predicates on arrays cannot be run on unknowns, so hypotheses are translated by their words and claims by the
statement's id. Tests compare every translation with the predicate, case by case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mcfsim.checks.names import hint
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.operands import Operand
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.solver.forms import TRUE, ZERO, Form, Formula, all_of, equal, not_above
from mcfsim.theorems.solver.lemmas import LEMMAS, STATEMENTS, multiple_of_ulp, text_of
from mcfsim.theorems.solver.numbers import Number
from mcfsim.theorems.statement import Theorem

#: Says something of operands, in their order, a double word by its high word.
Supposed = Callable[..., Formula]
#: Says something of an arithmetic's operands and results, tuples laid flat; it may round on.
Claimed = Callable[[UnknownArithmetic, Sequence[Number], Sequence[Number]], Formula]


@dataclass(frozen=True)
class Question:
    """What the solver is to prove: of these operands, if all this is so, then that is claimed.

    Attributes
    ----------
    name : str
    algorithm : callable
    operands : tuple of Operand
    where : tuple of callable
    claim : callable
    least : int
        The least precision.
    lemmas : bool
        Whether theorems stand for 2Sum and Fast2Sum in the text.
    even : bool
        Whether ties go to even; if not, by any rule.
    """

    name: str
    algorithm: Callable[..., Any]
    operands: tuple[Operand, ...]
    where: tuple[Supposed, ...]
    claim: Claimed
    least: int
    lemmas: bool = True
    even: bool = False

    def posed(self) -> tuple[UnknownArithmetic, Formula, Formula]:
        """Return the arithmetic that the text was run on, what is supposed, and what is claimed."""
        ar = UnknownArithmetic(LEMMAS if self.lemmas else None)
        operands = [ar.operand(operand) for operand in self.operands]
        results = flat(ar.evaluate(self.algorithm, *operands))
        heads = [x[0] if isinstance(x, tuple) else x for x in operands]
        supposed = all_of(where(*heads) for where in self.where)
        return ar, supposed, self.claim(ar, flat(tuple(operands)), results)


# -- hypotheses ---------------------------------------------------------------------------------------------
def _ordered(a: Number, b: Number) -> Formula:
    return not_above(b.value, a.value)


def _exponents_ordered(a: Number, b: Number) -> Formula:
    return a.zero | (b.first <= a.first) | b.zero


def _above(x: Number, a: Number) -> Formula:
    return x.zero.denied() & equal(a.first, x.first) & not_above(a.value, x.value).denied()


def _beyond(x: Number, a: Number) -> Formula:
    return (x.first < a.first) & x.zero.denied() & a.zero.denied()


def _same_sign(x: Number, y: Number) -> Formula:
    return ((x.value >= ZERO) & (y.value >= ZERO)) | ((x.value <= ZERO) & (y.value <= ZERO))


def _unbounded(*_: Number) -> Formula:
    return TRUE


#: By their words; the operands are those of the statement, in their order.
HYPOTHESES: Mapping[str, Supposed] = {
    "|a| >= |b|": _ordered,
    "e(a) >= e(b) or a = 0": _exponents_ordered,
    "e(x) >= e(a) or x = 0": _exponents_ordered,
    "a is a multiple of ulp(b)": multiple_of_ulp,
    "x is a multiple of ulp(a)": multiple_of_ulp,
    "e(a) = e(x), |a| > |x|": _above,
    "e(a) > e(x), x != 0": _beyond,
    "x y >= 0": _same_sign,
    # With unbounded exponents there is no overflow.
    "|a + b| <= max": _unbounded,
    "|a| < max": _unbounded,
    "no overflow": _unbounded,
}


# -- claims -------------------------------------------------------------------------------------------------
def exact(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
    """Claim that the results add up to exactly the operands."""
    return equal(total(results), total(operands))


def normalised(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
    """Claim that two results are a double word, by the rule for ties of the arithmetic."""
    high, low = results
    return equal(ar.add(high, low).value, high.value)


def error_within(bound: int | Fraction, power: int = 2, less: int = 0) -> Claimed:
    """Claim ``|error| <= bound u**power / (1 - less u) |exact sum|``."""

    def claim(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
        exactly = total(operands)
        error = total(results) - exactly
        return not_above(error - less * error.times_u(), bound * exactly.times_u(power))

    return claim


def absolute_error_within(bound: int | Fraction) -> Claimed:
    """Claim ``|error| <= bound u**2 (|x| + |y|)`` of two double words."""

    def claim(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
        x, y = total(operands[:2]), total(operands[2:])
        error = total(results) - x - y
        # The larger one of |x + y| and |x - y| is |x| + |y|.
        return not_above(error, bound * (x + y).times_u(2)) | not_above(error, bound * (x - y).times_u(2))

    return claim


def same(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
    """Claim that the first half of the results equals the second."""
    half = len(results) // 2
    return all_of(equal(a.value, b.value) for a, b in zip(results[:half], results[half:], strict=True))


def both(*claims: Claimed) -> Claimed:
    """Claim several things."""

    def claim(ar: UnknownArithmetic, operands: Sequence[Number], results: Sequence[Number]) -> Formula:
        return all_of([each(ar, operands, results) for each in claims])

    return claim


_TWO, _THREE = both(error_within(2), normalised), both(error_within(3), normalised)

#: By the id of the statement.
CLAIMS: Mapping[str, Claimed] = {
    "two_sum": exact,
    "fast_two_sum": exact,
    "fast_two_sum_exponents": exact,
    "fast_two_sum_multiple": exact,
    "fast_two_sum_unordered": exact,
    "fast_two_sum_unordered_error": error_within(1, 1),
    "grow": _TWO,
    "grow_multiple_of_ulp": _TWO,
    "grow_relaxed": _TWO,
    "grow_same_exponent": _TWO,
    "grow_zero_high": exact,
    "grow_equals_dw_plus_fp": same,
    "grow_unordered": _TWO,
    "dw_plus_fp": _TWO,
    "dw_plus_fp_relaxed": _TWO,
    "dw_plus_fp_relaxed_ties_away": error_within(2),
    "sloppy_dw_plus_dw": _THREE,
    "sloppy_dw_plus_dw_any_signs": _THREE,
    "sloppy_dw_plus_dw_absolute": both(absolute_error_within(3), normalised),
    "accurate_dw_plus_dw": both(error_within(3, less=4), normalised),
    "accurate_dw_plus_dw_relaxed": both(error_within(3, less=4), normalised),
    "add222": both(error_within(Fraction(3, 2)), normalised),
    "add222_relaxed": both(error_within(Fraction(3, 2)), normalised),
}

#: Asked with ties to even: with other ties some of them are false, and of others nothing is known.
TIES_TO_EVEN = frozenset(
    {"grow_relaxed", "dw_plus_fp_relaxed", "accurate_dw_plus_dw_relaxed", "add222", "add222_relaxed"}
)


def question_of(theorem: Theorem) -> Question:
    """Return what the solver is asked of a statement.

    Raises
    ------
    ValueError
        If its claim or a hypothesis has no translation, or it is another statement than the catalogue has by
        that id: of one's own make a `Question`.
    """
    check_known([theorem.name])
    if THEOREMS[theorem.name] is not theorem:
        raise ValueError(
            f"{theorem.name!r} is not the statement of that id in the catalogue: pose a Question"
        )
    for hypothesis in theorem.where:
        if hypothesis.text not in HYPOTHESES:
            raise ValueError(f"{theorem.name!r}: the hypothesis {hypothesis.text!r} is not translated")
    return Question(
        theorem.name,
        theorem.algorithm,
        theorem.operands,
        tuple(HYPOTHESES[hypothesis.text] for hypothesis in theorem.where),
        CLAIMS[theorem.name],
        theorem.precision,
        lemmas=text_of(theorem.algorithm) not in STATEMENTS,
        even=theorem.name in TIES_TO_EVEN,
    )


def check_known(names: Collection[str]) -> None:
    """Raise ValueError if there are no ids, or one that the solver was not told of."""
    unknown = [name for name in names if name not in CLAIMS]
    if unknown or not names:
        wrong = f"{unknown[0]!r} is not one{hint(unknown[0], CLAIMS)}" if unknown else "none is given"
        raise ValueError(
            f"the solver is asked about some statements on sums, and {wrong}: {', '.join(CLAIMS)}"
        )


def total(numbers: Sequence[Number]) -> Form:
    """Return the sum of numbers."""
    return sum((x.value for x in numbers), ZERO)


def flat(nested: Any) -> tuple[Number, ...]:
    """Return the numbers of nested tuples, in order."""
    return tuple(x for item in nested for x in flat(item)) if isinstance(nested, tuple) else (nested,)
