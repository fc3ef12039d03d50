"""A statement for every precision at once: facts, hypotheses, and the contrary of the claim have no model.

Nor have facts and hypotheses alone if these contradict one another: then nothing is proved.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

from mcfsim.checks.arguments import check_int
from mcfsim.theorems.catalogue import THEOREMS
from mcfsim.theorems.solver.encoding import Solver
from mcfsim.theorems.solver.facts import (
    EVEN_TIES,
    OF_A_NUMBER,
    OF_A_POWER,
    OF_A_SUM,
    OF_A_VALUE,
    OF_TWO_POWERS,
    OF_TWO_SUMS,
)
from mcfsim.theorems.solver.lemmas import STATEMENTS
from mcfsim.theorems.solver.linear_forms import Formula
from mcfsim.theorems.solver.question import Question, of_even_ties_alone, question_of
from mcfsim.theorems.solver.unknown_arithmetic import UnknownArithmetic
from mcfsim.theorems.statement import Theorem

#: What a proof supposes besides the hypotheses.
ASSUMED = "radix 2, rounding to nearest, ties by any rule if none is said, no overflow, gradual underflow"

#: Seconds that the solver counts to, and a precision far above all formats.
_LONGEST, _MOST = 1_000_000, 1_000


class Found(StrEnum):
    """What came of a question.

    ``not proved`` is no counterexample: what the facts leave open need not occur. ``vacuous``: the hypotheses
    contradict one another, so that no operands meet them and every claim would hold. Of what is ``proved``
    the hypotheses have a model beside the facts, which again need not be numbers of any precision.
    """

    PROVED = "proved"
    VACUOUS = "vacuous"
    NOT_PROVED = "not proved"
    NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Answer:
    """What the solver said of a statement.

    Attributes
    ----------
    statement : str
        Its id.
    found : Found
    least : int
        It was asked for every p from here on.
    ties : str
        ``any`` or ``to even``: how they go.
    rests_on : tuple of str
        Statements that were proved before, whose texts were not run again.
    seconds : float
        By the clock, that it took, these statements not included.
    comparisons : int
        How many different ones the question has.
    solver : str
        Which one, and its version.
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
        A statement of sums. It is run as it is, but for 2Sum and Fast2Sum within it, of which `rests_on`
        says what is used; that must be proved, too.
    seconds : int, optional
        The longest that the answer may take, by the clock. Of a statement about ties to even alone it is
        asked for any rule first, for half of the time, and then, if that is not proved, for that rule.
    least : int, optional
        The least precision, by default that of the statement.

    Raises
    ------
    ImportError
        If z3 is not installed.
    ValueError
        If the statement cannot be read (`UnreadableError`), or its algorithm does not only add, subtract and
        change signs.
    """
    question = question_of(theorem) if isinstance(theorem, Theorem) else theorem
    question = question if least is None else replace(question, least=least)
    for name, given, low, high in (("seconds", seconds, 1, _LONGEST), ("least", question.least, 2, _MOST)):
        check_int(name, given)
        if not low <= given <= high:
            raise ValueError(f"{name} = {given}: it goes from {low} to {high:,}")
    even_alone = isinstance(theorem, Theorem) and of_even_ties_alone(theorem)
    start = time.monotonic()
    answer = _asked(question, start + seconds / (2 if even_alone else 1))
    if even_alone and answer.found is not Found.PROVED:
        with_even = _asked(replace(question, even=True), start + seconds)
        answer = with_even if with_even.found is Found.PROVED else answer
    return replace(answer, seconds=time.monotonic() - start)


def _asked(question: Question, until: float) -> Answer:
    """Return what the solver says until then, by `time.monotonic`; how long that took is yet to be said."""
    ar, supposed, claimed = question.posed()
    solver = Solver(until)
    told = facts_of(ar, question.least, even=question.even)
    for known in (*told, *ar.known, supposed):
        solver.add(known)
    supposing = solver.told
    solver.add(claimed.denied())
    found = {True: Found.NOT_PROVED, False: Found.PROVED, None: Found.NO_ANSWER}[solver.has_model()]
    if found is Found.PROVED:
        found = {True: Found.PROVED, False: Found.VACUOUS, None: Found.NO_ANSWER}[
            solver.before(supposing).has_model()
        ]
    rests_on = tuple(dict.fromkeys(STATEMENTS[call.text] for call in ar.called))
    return Answer(
        question.name,
        found,
        question.least,
        "to even" if question.even else "any",
        rests_on,
        0.0,
        solver.comparisons,
        solver.version,
    )


def prove_all(names: Iterable[str], *, seconds: int = 600, least: int | None = None) -> Iterator[Answer]:
    """Ask about statements of the catalogue, and before each about those that it rests on.

    What rests on a statement that is not proved is not proved.
    """
    answers: dict[str, Answer] = {}

    def answer(name: str) -> Iterator[Answer]:
        if name in answers:
            return
        found = prove(THEOREMS[name], seconds=seconds, least=least)
        for other in found.rests_on:
            yield from answer(other)
        rests = found.found is not Found.PROVED or _stands(found, answers)
        answers[name] = found if rests else replace(found, found=Found.NOT_PROVED)
        yield answers[name]

    for name in names:
        yield from answer(name)


def facts_of(ar: UnknownArithmetic, least: int, *, even: bool = False) -> Iterator[Formula]:
    """Return all facts about the numbers of an arithmetic, for precisions from some on."""
    powers = [power for x in ar.numbers for power in (x.first, x.last)]
    for x in ar.numbers:
        yield from (fact.of(x) for fact in OF_A_NUMBER)
        yield from (fact.of(x.value, least) for fact in OF_A_VALUE)
    for power in powers:
        yield from (fact.of(power, least) for fact in OF_A_POWER)
    for a, b in combinations(powers, 2):
        # u times a power of two is one, too.
        yield from (fact.of(a, b.times_u(k)) for fact in OF_TWO_POWERS for k in (-1, 0, 1))
    for r in ar.sums:
        yield from (fact.of(r) for fact in (*OF_A_SUM, *(EVEN_TIES if even else ())))
    for r, s in combinations(ar.sums, 2):
        yield from (fact.of(r, s) for fact in OF_TWO_SUMS)


def _stands(answer: Answer, others: dict[str, Answer]) -> bool:
    below = [others[name] for name in answer.rests_on]
    return all(one.found is Found.PROVED and one.least <= answer.least for one in below)
