"""Questions for the solver: the hypotheses and the claim of a statement, about unknown numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcfsim.compile.program import flat
from mcfsim.rounding import NEAREST, Mode, Underflow
from mcfsim.theorems.catalogue import THEOREMS, named
from mcfsim.theorems.logic import LARGEST, IsMultiple, NoOverflow, Proposition, Ulp, UnreadableError
from mcfsim.theorems.logic.terms import nodes
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.solver.facts import IN_RANGE, LEMMAS, STATEMENTS, SUM_IN_RANGE, undecorated
from mcfsim.theorems.solver.reading import Unknowns
from mcfsim.theorems.solver.unknown_numbers import Formula, UnknownArithmetic, UnknownNumber, all_of
from mcfsim.theorems.statement import Theorem, check_proposition, names_of, propositions_of


@dataclass(frozen=True)
class Question:
    """A question for the solver: whether the hypotheses imply the claim for these operands.

    Raises
    ------
    TypeError
        If a hypothesis or the claim is not a proposition.

    Attributes
    ----------
    name : str
    algorithm : callable
    operands : tuple of OperandSpec
    where : tuple of Proposition
    claim : Proposition
    least : int
        The least precision.
    lemmas : bool
        Whether theorems replace 2Sum and Fast2Sum in the algorithm.
    even : bool
        Whether ties go to even. Otherwise they go by any rule.
    """

    name: str
    algorithm: Callable[..., Any]
    operands: tuple[OperandSpec, ...]
    where: tuple[Proposition, ...]
    claim: Proposition
    least: int
    lemmas: bool = True
    even: bool = False

    def __post_init__(self) -> None:
        for hypothesis in self.where:
            check_proposition(f"{self.name!r}: a hypothesis", hypothesis)
        check_proposition(f"{self.name!r}: a claim", self.claim)

    def posed(self) -> tuple[UnknownArithmetic, Formula, Formula]:
        """Run the algorithm, and return its arithmetic, the hypotheses and the claim.

        Raises
        ------
        UnreadableError
            If a hypothesis or the claim is a predicate on arrays, or is not linear.
        """
        ar = UnknownArithmetic(LEMMAS if self.lemmas else None)
        operands = [ar.operand(operand) for operand in self.operands]
        results = flat(ar.evaluate(self.algorithm, *operands))
        return ar, *self.read(ar, operands, results)

    def read(
        self, ar: UnknownArithmetic, operands: Sequence[Any], results: Sequence[UnknownNumber]
    ) -> tuple[Formula, Formula]:
        """Return the hypotheses and the claim as formulas about operands and results."""
        words = {operand.name: flat(given) for operand, given in zip(self.operands, operands, strict=True)}
        claimed = Unknowns(ar, words, results, self.least)
        supposed = replace(claimed, supposing=True)
        return all_of(map(supposed.formula, self.where)), claimed.formula(self.claim)


def question_of(theorem: Theorem) -> Question:
    """Return the question that asks whether a statement holds, with ties by any rule.

    Raises
    ------
    UnreadableError
        If it is not about rounding to nearest with gradual underflow, if it refers to the largest number
        and a step may overflow, or if it compares with an ulp and is not about unbounded exponents.
    """
    speaks_of_range = any(LARGEST in nodes(one.said) for one in theorem.where)
    if speaks_of_range and not any(NoOverflow() in nodes(one.said) for one in theorem.where):
        known = IN_RANGE.get(undecorated(theorem.algorithm), ())
        if not (
            names_of(theorem) == ("a", "b")
            and SUM_IN_RANGE in theorem.where
            and any(one in theorem.where for one in known)
        ):
            raise UnreadableError(
                f"{theorem.name!r} speaks of the largest number, and may overflow on the way; the solver "
                "knows only unbounded exponents: suppose RESULTS_FINITE instead"
            )
    if theorem.underflow is not Underflow.GRADUAL:
        raise UnreadableError(
            f"{theorem.name!r} is about {theorem.underflow}; the solver knows only gradual underflow"
        )
    if theorem.range == "bounded" and any(map(_compares_ulps, propositions_of(theorem))):
        raise UnreadableError(
            f"{theorem.name!r} compares with an ulp; a subnormal number has a larger one than with unbounded "
            "exponents, and the solver knows only these: give range='unbounded' if the statement means them"
        )
    if not theorem.modes <= NEAREST:
        raise UnreadableError(
            f"{theorem.name!r} is about {', '.join(sorted(theorem.modes))}; the solver knows "
            "only rounding to nearest"
        )
    return Question(
        theorem.name,
        theorem.algorithm,
        theorem.operands,
        tuple(hypothesis.said for hypothesis in theorem.where),
        theorem.claim.said,
        theorem.precision,
        lemmas=undecorated(theorem.algorithm) not in STATEMENTS,
    )


def _compares_ulps(said: Proposition) -> bool:
    """Return whether a proposition is about the size of an ulp, and not about multiples alone."""
    multiples = (node for node in nodes(said) if isinstance(node, IsMultiple))
    return _ulps(said) > sum(map(_ulps, multiples))


def _ulps(said: Proposition) -> int:
    return sum(isinstance(node, Ulp) for node in nodes(said))


def of_even_ties_alone(theorem: Theorem) -> bool:
    """Return whether a statement is about ties to even, but not about ties away from zero."""
    return theorem.modes & NEAREST == {Mode.NEAREST_EVEN}


def readable(theorem: Theorem) -> bool:
    """Return whether the solver can be asked about a statement."""
    try:
        question_of(theorem).posed()
    except Exception:  # on unknown numbers a user's algorithm may raise anything
        return False
    return True


def check_readable(names: Collection[str]) -> None:
    """Raise ValueError if there are no ids, or the solver cannot be asked about one of them."""
    for theorem in map(named, names):
        try:
            question_of(theorem).posed()
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"{theorem.name!r}: on unknown numbers its algorithm raised {type(error).__name__}: {error}"
            ) from error
    if not names:
        those = ", ".join(name for name, theorem in THEOREMS.items() if readable(theorem))
        raise ValueError(f"no statement is given; the solver can be asked about these on sums: {those}")
