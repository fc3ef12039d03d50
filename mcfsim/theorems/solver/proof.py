"""Proofs for every precision: the solver is given facts, hypotheses and the negated claim."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice
from math import ceil, lcm
from typing import Any

from mcfsim.checks import check_int
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.solver.facts import (
    EVEN_TIES,
    OF_A_NUMBER,
    OF_A_POWER,
    OF_A_SUM,
    OF_A_VALUE,
    OF_TWO_POWERS,
    OF_TWO_SUMS,
    STATEMENTS,
)
from mcfsim.theorems.solver.question import Question, of_even_ties_alone, question_of
from mcfsim.theorems.solver.unknown_numbers import (
    Comparison,
    Conjunction,
    Formula,
    Junction,
    LinearForm,
    Term,
    UnknownArithmetic,
)
from mcfsim.theorems.statement import Theorem

# -- formulas, as the solver takes them -------------------------------------------------------------------
#: Each comparison is multiplied by powers of u, so that it bears on products with u**0 to u**_TOP.
_TOP = 2
#: How many of the postponed formulas that a model violates are asserted at once. Few are needed for a proof,
#: and each makes every step of the solver slower.
_AT_ONCE = 16


class Solver:
    """A Z3 solver that decides whether formulas have a model.

    Each product of an unknown with a power of u is a separate variable, and comparisons are also multiplied
    by powers of u. Formulas that hold for some u > 0 have a model; those without one hold for no u.

    Parameters
    ----------
    until : float
        Deadline for its answer, by `time.monotonic`.

    Raises
    ------
    ImportError
        If z3 is not installed.
    """

    def __init__(self, until: float) -> None:
        try:
            import z3
        except ImportError as missing:
            raise ImportError("theorems for every p need z3: pip install 'mcfsim[solver]'") from missing
        self._z3, self._until = z3, until
        self._solver = z3.SolverFor("QF_LRA")
        #: Name and version of the solver.
        self.version = f"Z3 {z3.get_version_string()}"
        #: The different comparisons in its assertions, as truth values.
        self.comparisons: dict[tuple[Any, bool], Any] = {}
        self._variables: dict[Term, Any] = {}
        self._postponed: list[Formula] = []

    @property
    def left(self) -> float:
        """Seconds left until the deadline."""
        return self._until - time.monotonic()

    def add(self, formula: Formula) -> None:
        """Assert a formula."""
        self._solver.add(self._translated(formula))

    def postpone(self, formulas: Iterable[Formula]) -> None:
        """Assert formulas, but only once a model of the other assertions violates them."""
        self._postponed += formulas

    def has_model(self) -> bool | None:
        """Return whether the assertions have a model; None if the time did not suffice."""
        while True:
            if (left := self.left) <= 0:
                return None
            self._solver.set("timeout", ceil(1000 * left))
            found = self._solver.check()
            if found == self._z3.unknown:
                return None
            if found == self._z3.unsat:
                return False
            model = self._model()
            violated = (place for place, one in enumerate(self._postponed) if not _met(one, model))
            if not (some := [*islice(violated, _AT_ONCE)]):
                return True
            for place in reversed(some):
                self.add(self._postponed.pop(place))

    def _model(self) -> dict[Term, int]:
        """Return the values of a model, in a common unit."""
        model = self._solver.model()
        found = {
            term: model.eval(variable, model_completion=True).as_fraction()
            for term, variable in self._variables.items()
        }
        unit = lcm(*(value.denominator for value in found.values()))
        return {term: int(value * unit) for term, value in found.items()}

    def _translated(self, formula: Formula) -> Any:
        if isinstance(formula, Comparison):
            return self._comparison(formula)
        assert isinstance(formula, Junction)
        combine = self._z3.And if isinstance(formula, Conjunction) else self._z3.Or
        return combine([self._translated(part) for part in formula.parts])

    def _comparison(self, comparison: Comparison) -> Any:
        """Return a truth value that equals that of the comparison times each power of u."""
        form, strict = comparison.form.primitive, comparison.strict
        if not form.terms:
            return self._z3.BoolVal(not strict)
        # One truth value for a comparison and its negation.
        if negative := form.terms[0][1] < 0:
            form, strict = -form, not strict
        key = form.terms, strict
        if key not in self.comparisons:
            truth = self._z3.Bool(f"comparison {len(self.comparisons)}")
            for power in _powers(form):
                side = self._sum(form.times_u(power))
                self._solver.add(truth == (side > 0 if strict else side >= 0))
            self.comparisons[key] = truth
        truth = self.comparisons[key]
        return self._z3.Not(truth) if negative else truth

    def _sum(self, form: LinearForm) -> Any:
        z3 = self._z3
        return z3.Sum([z3.Q(c.numerator, c.denominator) * self._variable(term) for term, c in form.terms])

    def _variable(self, term: Term) -> Any:
        if term not in self._variables:
            name, power = term
            self._variables[term] = self._z3.Real(f"u^{power} {name}")
        return self._variables[term]


def _powers(form: LinearForm) -> range:
    """Return the powers of u that a primitive form is multiplied by."""
    return range(max(_TOP + 2 - form.powers.stop, 1))


def _met(formula: Formula, model: dict[Term, int]) -> bool | None:
    """Return whether a formula holds in a model; None if powers of u change a comparison."""
    if isinstance(formula, Comparison):
        form, strict = formula.form.primitive, formula.strict
        sides = (
            sum(c.numerator * model.get((name, k + power), 0) for (name, k), c in form.terms)
            for power in _powers(form)
        )
        found = {side > 0 if strict else side >= 0 for side in sides}
        return found.pop() if len(found) == 1 else None
    assert isinstance(formula, Junction)
    parts = [_met(part, model) for part in formula.parts]
    if None in parts:
        return None
    return all(parts) if isinstance(formula, Conjunction) else any(parts)


# -- proofs -----------------------------------------------------------------------------------------------
#: Assumptions of every proof besides the hypotheses.
ASSUMED = "radix 2, rounding to nearest, ties by any rule if none is said, no overflow, gradual underflow"

#: Largest `seconds`, and largest `least`, which is far above the precision of all formats.
_LONGEST, _MOST = 1_000_000, 1_000


class Found(StrEnum):
    """The outcome of a question to the solver.

    ``not proved``: this is not a counterexample, since a model of the facts need not consist of numbers of
    any precision. ``vacuous``: the hypotheses contradict one another, so no operands meet them and every
    claim would hold. ``proved``: facts and hypotheses also have a model, of which the same is true.
    """

    PROVED = "proved"
    VACUOUS = "vacuous"
    NOT_PROVED = "not proved"
    NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Answer:
    """The solver's answer about a statement.

    Attributes
    ----------
    statement : str
        Its id.
    found : Found
    least : int
        The least p: the question is about every p from it on.
    ties : str
        The rule for ties: ``any`` or ``to even``.
    rests_on : tuple of str
        Statements taken as proved, whose algorithms were not run again.
    seconds : float
        Wall-clock time, without that of `rests_on`.
    comparisons : int
        Number of different comparisons that the solver was given.
    solver : str
        Name and version of the solver.
    """

    statement: str
    found: Found
    least: int
    ties: str
    rests_on: tuple[str, ...]
    seconds: float
    comparisons: int
    solver: str

    def __str__(self) -> str:
        after = f", after {', '.join(self.rests_on)}" if self.rests_on else ""
        ties = "" if self.ties == "any" else f", ties {self.ties}"
        why = ", as no operands meet the hypotheses" if self.found is Found.VACUOUS else ""
        found = f"{self.found} for every p >= {self.least}{ties}{why}{after}"
        return f"{self.statement}: {found}, {self.seconds:.1f} s"


def prove(theorem: Theorem | Question, *, seconds: int = 600, least: int | None = None) -> Answer:
    """Ask the solver whether a statement holds for every precision.

    Parameters
    ----------
    theorem : Theorem or Question
        A statement about sums. Its algorithm is run as it is, except that theorems replace 2Sum and
        Fast2Sum in it. `rests_on` names these theorems; they must be proved, too.
    seconds : int, optional
        Limit of the wall-clock time. A statement about ties to even alone is first tried for ties by any
        rule, in half of the time, and then, if not proved, for ties to even.
    least : int, optional
        The least precision, by default that of the statement.

    Raises
    ------
    ImportError
        If z3 is not installed.
    ValueError
        If the statement cannot be read (`UnreadableError`), or its algorithm does more than add, subtract
        and change signs.
    """
    question = question_of(theorem) if isinstance(theorem, Theorem) else theorem
    question = question if least is None else replace(question, least=least)
    for name, given, low, high in (("seconds", seconds, 1, _LONGEST), ("least", question.least, 2, _MOST)):
        check_int(name, given)
        if not low <= given <= high:
            raise ValueError(f"{name} = {given}: it must be from {low} to {high:,}")
    even_alone = isinstance(theorem, Theorem) and of_even_ties_alone(theorem)
    start = time.monotonic()
    answer = _asked(question, start + seconds / (2 if even_alone else 1))
    if even_alone and answer.found is not Found.PROVED:
        with_even = _asked(replace(question, even=True), start + seconds)
        answer = with_even if with_even.found is Found.PROVED else answer
    return replace(answer, seconds=time.monotonic() - start)


def _asked(question: Question, until: float) -> Answer:
    """Return the answer by a deadline of `time.monotonic`; its `seconds` are yet to be set."""
    ar, supposed, claimed = question.posed()

    def supposing() -> Solver:
        solver = Solver(until)
        for known in (*facts_of(ar, question.least, even=question.even), *ar.known, supposed):
            solver.add(known)
        solver.postpone(facts_of_powers(ar))
        return solver

    solver = supposing()
    solver.add(claimed.denied())
    found = {True: Found.NOT_PROVED, False: Found.PROVED, None: Found.NO_ANSWER}[solver.has_model()]
    if found is Found.PROVED:
        met = supposing().has_model()
        found = {True: Found.PROVED, False: Found.VACUOUS, None: Found.NO_ANSWER}[met]
    ties = "to even" if question.even else "any"
    rests_on = tuple(dict.fromkeys(STATEMENTS[call.algorithm] for call in ar.called))
    asked = len(solver.comparisons), solver.version
    return Answer(question.name, found, question.least, ties, rests_on, 0.0, *asked)


def prove_all(names: Iterable[str], *, seconds: int = 600, least: int | None = None) -> Iterator[Answer]:
    """Yield the answers about statements of the catalogue, each after those that it rests on.

    A statement counts as proved only if those that it rests on are proved, too.
    """
    answers: dict[str, Answer] = {}

    def answer(name: str) -> Iterator[Answer]:
        if name in answers:
            return
        found = prove(THEOREMS[name], seconds=seconds, least=least)
        for other in found.rests_on:
            yield from answer(other)
        below = [answers[other] for other in found.rests_on]
        stands = all(one.found is Found.PROVED and one.least <= found.least for one in below)
        if found.found is Found.PROVED and not stands:
            found = replace(found, found=Found.NOT_PROVED)
        answers[name] = found
        yield found

    for name in names:
        yield from answer(name)


def facts_of(ar: UnknownArithmetic, least: int, *, even: bool = False) -> Iterator[Formula]:
    """Yield the facts about the numbers of an arithmetic, for every p >= least, except `facts_of_powers`."""
    for x in ar.numbers:
        yield from (fact.of(x) for fact in OF_A_NUMBER)
        yield from (fact.of(x.value, least) for fact in OF_A_VALUE)
        yield from (fact.of(power, least) for power in (x.first, x.last) for fact in OF_A_POWER)
    yield from (fact.of(r) for r in ar.sums for fact in (*OF_A_SUM, *(EVEN_TIES if even else ())))
    yield from (fact.of(r, s) for r, s in combinations(ar.sums, 2) for fact in OF_TWO_SUMS)


def facts_of_powers(ar: UnknownArithmetic) -> Iterator[Formula]:
    """Yield the facts about two powers of two in an arithmetic: most of all facts, and few are needed."""
    powers = [power for x in ar.numbers for power in (x.first, x.last)]
    # u times a power of two is a power of two as well.
    shifted = ((a, b.times_u(k)) for a, b in combinations(powers, 2) for k in (-1, 0, 1))
    yield from (fact.of(*pair) for pair in shifted for fact in OF_TWO_POWERS)
