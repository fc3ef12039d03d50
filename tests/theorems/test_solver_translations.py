"""What the solver is asked of a statement is what its predicates say, on results right and wrong."""

import math
import random
from fractions import Fraction

import pytest

from mcfsim.oracle import OracleArithmetic
from mcfsim.rounding import Rounding
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.by_oracle import trial_of
from mcfsim.theorems.judge import applicable, violating
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.solver import CLAIMS, question_of
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.solver.forms import AllOf, all_of
from mcfsim.theorems.solver.questions import HYPOTHESES, flat
from tests.theorems.solving import Assigned, name_of, operands_of


def check_translation(name, count, seed):
    """Compare hypotheses and claim with the predicates of the statement, on results right and wrong."""
    theorem, question, draw = THEOREMS[name], question_of(THEOREMS[name]), random.Random(seed)
    seen = {True: 0, False: 0}
    for _ in range(count):
        p = draw.randint(max(3, question.least), 9)
        truth = OracleArithmetic(unbounded(p), Rounding())
        given = operands_of(question, draw, p)
        ar = UnknownArithmetic()
        operands = [ar.operand(operand) for operand in question.operands]
        results = flat(question.algorithm(ar, *operands))
        values = Assigned(ar, given, p, "even")
        made = [values.of(x) for x in results]
        if draw.random() < 0.7:
            wrong = draw.randrange(len(made))
            made[wrong] = draw.choice((Fraction(0), -made[wrong], *made, *given.values()))
        heads = [x[0] if isinstance(x, tuple) else x for x in operands]
        supposed = all_of(where(*heads) for where in question.where)
        meets = values.meet(supposed)
        # The results are those given, be they right or not.
        claimed = question.claim(ar, flat(tuple(operands)), results)
        values = Assigned(ar, given | dict(zip(map(name_of, results), made, strict=True)), p, "even")
        held = values.meet(claimed)
        trial = trial_of(theorem, truth, [list(map(float, given.values()))], [list(map(float, made))])
        there = applicable(theorem, trial)
        assert meets == (there is None or bool(there[0])), given
        assert held == (not violating(theorem, trial, None)[0]), (given, made)
        seen[held] += 1
    assert min(seen.values()) > count / 20


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_translations_say_what_the_statements_say(name):
    check_translation(name, 60, seed=5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CLAIMS)
def test_translations_say_what_the_statements_say_of_many_numbers(name):
    check_translation(name, 3000, seed=6)


@pytest.mark.parametrize("name", [name for name in CLAIMS if THEOREMS[name].claim.bound])
def test_bounds_are_those_of_the_statements_for_every_precision(name):
    """At the bound, and a little to either side of it."""
    theorem, question = THEOREMS[name], question_of(THEOREMS[name])
    unit = 1 if name == "fast_two_sum_unordered_error" else 2
    ar = UnknownArithmetic()
    operands = flat(tuple(map(ar.operand, question.operands)))
    results = [ar.number(), ar.number()]
    said = question.claim(ar, operands, results)
    error = said.parts[0] if isinstance(said, AllOf) else said
    for p in range(theorem.precision, 40):
        bound = theorem.claim.bound(p) / 2 ** (unit * p)
        for share, within_it in ((1, True), (Fraction(999, 1000), True), (Fraction(1001, 1000), False)):
            for sign, size in ((1, 1), (-1, 1), (1, -1)):
                unknowns = dict.fromkeys(map(name_of, (*operands, *results)), Fraction(0))
                unknowns[name_of(operands[0])] = Fraction(size)
                unknowns[name_of(results[0])] = size * (1 + sign * share * bound)
                common = math.lcm(*(x.denominator for x in unknowns.values()))
                values = {name: int(x * common) for name, x in unknowns.items()}
                assert error.holds(values, p) == within_it, (p, share, sign)


def test_every_hypothesis_is_translated_for_a_statement():
    used = {hypothesis.text for name in CLAIMS for hypothesis in THEOREMS[name].where}
    assert used == HYPOTHESES.keys()
