"""Hypotheses that contradict one another prove nothing: the solver says so, whatever is claimed."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from typer.testing import CliRunner

pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")

from mcfsim.cli import app
from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.theorems import THEOREMS, double_word, relaxed_pair, value
from mcfsim.theorems.claims import exactly, sum_of
from mcfsim.theorems.logic import AllOf, Exponent, IsMultiple, LowBit, NoOverflow, U, Ulp, Word, equal
from mcfsim.theorems.solver import Answer, Found, Question, proof, prove, prove_all, question_of, readable
from tests.theorems.test_solver_attacks import HYPOTHESES, PAIR, at_random

A, B, X = Word("a"), Word("b"), Word("x")
FALSE, EXACT = ~AllOf(()), exactly(sum_of("a", "b")).said
THERE, ZERO = ~equal(A, 0), equal(A, 0)


def passed_on(ar, *operands):
    return operands


def asked(where, *, operands=PAIR, algorithm=passed_on, claim=FALSE):
    return prove(Question("asked", algorithm, operands, tuple(where), claim, 2), seconds=60).found


#: By what is wrong with them.
CONTRADICTIONS = {
    "|a| < |b| < |a|": (abs(A) < abs(B), abs(B) < abs(A)),
    "|a| < |b|, both zero": (abs(A) < abs(B), ZERO & equal(B, 0)),
    "|a| < |b| = 0": (abs(A) < abs(B), equal(B, 0)),
    "|a| < |a|": (abs(A) < abs(A),),
    "a > 0 > a": (A > 0, A < 0),
    "a > b > a": (A > B, B > A),
    "a > 0 >= b >= a": ((A > 0) & (B <= 0), B >= A),
    "e(a) < e(b), |a| >= 2 |b|": ((Exponent(A) < Exponent(B)) & ~equal(B, 0), 2 * abs(B) <= abs(A)),
    "e(a) > e(b), |a| < |b|": ((Exponent(B) < Exponent(A)) & THERE & ~equal(B, 0), abs(A) < abs(B)),
    "a = 2 b, e(a) = e(b)": (equal(A, 2 * B), equal(Exponent(A), Exponent(B)) & THERE & ~equal(B, 0)),
    "0 < a < ulp(a)": (A > 0, Ulp(A) > A),
    "a below its last bit": (THERE, abs(A) < LowBit(A)),
    "more than p bits": (LowBit(A) < U * abs(A) * Fraction(1, 2),),
    "a not a multiple of its ulp": (~IsMultiple(A, Ulp(A)),),
    "|a| <= u |b|, |b| <= u |a|": ((abs(A) <= U * abs(B)) & ~equal(B, 0), abs(B) <= U * abs(A)),
    "nothing is finite": (~NoOverflow(),),
}


@pytest.mark.parametrize("text", [passed_on, fast_two_sum], ids=["passed on", "fast_two_sum"])
@pytest.mark.parametrize("claim", [FALSE, EXACT], ids=["false", "exact"])
@pytest.mark.parametrize("why", CONTRADICTIONS)
def test_contradictions_are_vacuous(why, claim, text):
    assert asked(CONTRADICTIONS[why], algorithm=text, claim=claim) is Found.VACUOUS


@pytest.mark.parametrize("why", [why for why, parts in CONTRADICTIONS.items() if len(parts) > 1])
def test_half_of_a_contradiction_is_met(why):
    for part in CONTRADICTIONS[why]:
        assert asked([part]) is Found.NOT_PROVED


@pytest.mark.parametrize("hypothesis", HYPOTHESES)
def test_a_hypothesis_and_its_contrary_are_vacuous(hypothesis):
    assert asked([hypothesis]) is Found.NOT_PROVED
    contrary = [hypothesis, ~hypothesis]
    assert asked(contrary) is asked(contrary[::-1], claim=EXACT) is Found.VACUOUS


def test_operands_of_pairs_may_contradict_a_hypothesis():
    """It is asked of a high word, which is zero only if the low one is."""
    pair = (double_word("x"), value("a"))
    assert asked([equal(X, 0)], operands=pair) is Found.NOT_PROVED
    for kind in (double_word, relaxed_pair):
        contrary = [equal(X, 0), abs(A) < abs(X)]
        assert asked(contrary, operands=(kind("x"), value("a"))) is Found.VACUOUS


@pytest.mark.parametrize("name", [name for name, theorem in THEOREMS.items() if readable(theorem)])
def test_no_statement_of_the_catalogue_is_vacuous(name):
    """Of its operands and hypotheses, whatever the text makes of them."""
    question = replace(question_of(THEOREMS[name]), algorithm=passed_on, claim=FALSE)
    assert prove(question, seconds=60).found is Found.NOT_PROVED


def check_vacuous(seed, count, texts=(fast_two_sum, two_sum)):
    draw = random.Random(seed)
    answers = []
    for _ in range(count):
        question = at_random(draw, texts)
        added = CONTRADICTIONS[draw.choice(list(CONTRADICTIONS))]
        where = draw.sample((*question.where, *added), len(question.where) + len(added))
        answers.append(prove(replace(question, where=tuple(where)), seconds=60).found)
    assert set(answers) <= {Found.VACUOUS, Found.NO_ANSWER}
    assert answers.count(Found.NO_ANSWER) <= count // 10


@pytest.mark.slow
def test_statements_at_random_with_contradictions_are_vacuous():
    check_vacuous(1, 3, (fast_two_sum,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 5))
def test_a_hundred_statements_with_contradictions_are_vacuous(seed):
    check_vacuous(seed, 34)


# -- what is said of it -------------------------------------------------------------------------------------
def _answered(statement, found, rests_on=()):
    return Answer(statement, found, 2, "any", rests_on, 0.0, 0, "")


def test_what_is_vacuous_is_said_so_and_nothing_rests_on_it(monkeypatch):
    found = {
        "two_sum": _answered("two_sum", Found.VACUOUS),
        "grow": _answered("grow", Found.PROVED, ("two_sum",)),
    }
    monkeypatch.setattr(proof, "prove", lambda theorem, **_: found[theorem.name])
    first, second = prove_all(["grow"])
    assert (first.found, second.found) == (Found.VACUOUS, Found.NOT_PROVED)
    assert str(first) == "two_sum: vacuous for every p >= 2, as no operands meet the hypotheses, 0.0 s"


@pytest.mark.parametrize("name", ["two_sum", "fast_two_sum_unordered"])
def test_the_status_is_one_where_a_statement_is_vacuous(name, monkeypatch):
    monkeypatch.setattr(proof, "prove", lambda theorem, **_: _answered(name, Found.VACUOUS))
    result = CliRunner().invoke(app, ["verify", "--upper", name])
    assert result.exit_code == 1
    assert "vacuous" in result.output


@pytest.mark.parametrize("said", [True, False, None, 1, [THERE], len], ids=repr)
def test_what_is_no_proposition_is_refused(said):
    for parts in ({"where": (said,), "claim": EXACT}, {"where": (), "claim": said}):
        with pytest.raises(TypeError, match=r"'asked': a (hypothesis|claim) is a Proposition, not"):
            Question("asked", passed_on, PAIR, least=2, **parts)
