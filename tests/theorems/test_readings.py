"""One statement, one claim: every interpreter reads the same of it, on results right and wrong."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic import EVERY, Polynomial
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.logic import Predicate, UnreadableError
from mcfsim.theorems.logic.on_numbers import Case, in_ring
from mcfsim.theorems.logic.propositions import nodes
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.solver import question_of, readable
from tests.theorems.reading import (
    altered,
    by_arrays,
    by_fractions,
    by_line,
    by_solver,
    formats_of,
    propositions,
    trial_of,
)
from tests.theorems.trying import rounding_of

#: Lines have no number that is the sum of so many.
LONG = 64


def test_every_statement_is_data():
    for theorem in THEOREMS.values():
        for said in propositions(theorem):
            assert not any(isinstance(node, Predicate) for node in nodes(said)), theorem.name


@pytest.mark.slow
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", THEOREMS)
@pytest.mark.sampled(12, each=False)
def test_arrays_lines_and_fractions_say_the_same(name, count):
    """Of hypotheses and claim, in each mode that a statement is about."""
    theorem, draw = THEOREMS[name], random.Random(f"{name} {count}")
    seen = {True: 0, False: 0}
    modes = sorted(theorem.modes)
    some = max(2, min(count, 4096 // theorem.components) // (len(modes) * len(formats_of(theorem))))
    for fmt in formats_of(theorem):
        for mode in modes:
            bits = {"random_bits": draw.randint(1, 4)} if mode is Mode.STOCHASTIC else {}
            right = trial_of(theorem, fmt, rounding_of(theorem, mode, **bits), draw, some)
            for trial in (right, altered(right, draw), altered(right, draw, 0.15)):
                for said in propositions(theorem):
                    held = by_arrays(said, trial)
                    compare(theorem, said, trial, held)
                for truth in seen:  # of the claim, which is the last
                    seen[truth] += int(np.count_nonzero(held == truth))
    assert min(seen.values()) > 0


def compare(theorem, said, trial, held):
    exactly = by_fractions(theorem, said, trial)
    assert held.tolist() == exactly.tolist(), _first(theorem, said, trial, held != exactly)
    if trial.rounding.stochastic or theorem.components > LONG:
        return
    try:
        on_line, open_ = by_line(theorem, said, trial)
    except TypeError:  # numbers that no line has: then there is none
        return
    wrong = (on_line != exactly) & ~open_
    assert not wrong.any(), _first(theorem, said, trial, wrong)


def _first(theorem, said, trial, wrong):
    place = int(np.argmax(wrong))
    return theorem.written(said), trial.format, trial.rounding.mode, trial.at([place])


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", [name for name, theorem in THEOREMS.items() if readable(theorem)])
@pytest.mark.sampled(5, each=False)
def test_the_solver_is_asked_what_fractions_say(name, count):
    """In the modes to nearest that a statement is about."""
    theorem, draw = THEOREMS[name], random.Random(f"{name} {count}")
    question = question_of(theorem)
    seen = {True: 0, False: 0}
    for mode, ties in ((Mode.NEAREST_EVEN, "even"), (Mode.NEAREST_AWAY, "away")):
        for p in range(max(3, theorem.precision), 8) if mode in theorem.modes else ():
            some = count // 5 // len(theorem.modes) // 2 + 1
            right = trial_of(theorem, unbounded(p), Rounding(mode), draw, some)
            for trial in (altered(right, draw, 0, finite=True), altered(right, draw, finite=True)):
                where = [by_fractions(theorem, hypothesis.said, trial) for hypothesis in theorem.where]
                supposed = np.logical_and.reduce([np.ones(trial.size, bool), *where])
                claimed = by_fractions(theorem, theorem.claim.said, trial)
                for case, found in enumerate(by_solver(question, trial, ties)):
                    assert found == (supposed[case], claimed[case]), (trial.at([case]), mode)
                    seen[bool(claimed[case])] += 1
    assert min(seen.values()) > count / 20


# -- polynomials --------------------------------------------------------------------------------------------
def polynomial(draw, p):
    terms = {k: Fraction(draw.randint(-8, 8), draw.choice((1, 2, 4))) for k in range(-1, 3)}
    return Polynomial.of(terms, EVERY)


@pytest.mark.parametrize(
    "name", [name for name, theorem in THEOREMS.items() if theorem.claim.bound and theorem.claim.bound.unit]
)
def test_errors_of_polynomials_are_those_of_fractions(name):
    theorem, draw = THEOREMS[name], random.Random(name)
    found = theorem.claim.measured
    for _ in range(6):
        words = {
            operand.name: [polynomial(draw, 8) for _ in range(operand.components)]
            for operand in theorem.operands
        }
        results = [polynomial(draw, 8) for _ in range(2)]
        error, reference = (in_ring(x, words, results, EVERY) for x in (found.error, found.reference))
        for p in (30, 45, 60):  # beyond, signs are those of leading terms
            at = {name: [word.at(p) for word in some] for name, some in words.items()}
            case = Case(unbounded(p), Rounding(), at, [(Fraction(1), [x.at(p) for x in results])])
            assert error.at(p) == case.value(found.error)
            assert reference.at(p) == case.value(found.reference)


# -- what cannot be read ------------------------------------------------------------------------------------
def test_predicates_are_read_by_trials_alone():
    own = replace(THEOREMS["two_sum"].claim, said=Predicate("so", lambda t: t["a"] == t["a"]))
    theorem = replace(THEOREMS["two_sum"], claim=own)
    assert not readable(theorem)
    with pytest.raises(UnreadableError, match="'so' is a predicate on arrays, which the solver cannot read"):
        question_of(theorem).posed()
    with pytest.raises(UnreadableError, match="'so' is a predicate on arrays; single numbers are read"):
        Case(unbounded(4), Rounding(), {"a": [1], "b": [1]}, [(1, [2, 0])]).holds(own.said)
