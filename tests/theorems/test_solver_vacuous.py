"""Hypotheses that contradict one another prove nothing: the solver says so, whatever is claimed."""

import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")

from mcfsim.cli import app
from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.theorems import THEOREMS, double_word, relaxed_pair, value
from mcfsim.theorems.solver import CLAIMS, Answer, Found, Question, proof, prove, prove_all, question_of
from mcfsim.theorems.solver.forms import TRUE, ZERO, AnyOf, equal, not_above
from mcfsim.theorems.solver.lemmas import multiple_of_ulp
from mcfsim.theorems.solver.questions import exact
from tests.theorems.test_solver_attacks import HYPOTHESES, PAIR, at_random

FALSE = AnyOf(())


def passed_on(ar, *operands):
    return operands


def nothing(ar, operands, results):
    return FALSE


def asked(where, *, operands=PAIR, algorithm=passed_on, claim=nothing):
    return prove(Question("asked", algorithm, operands, tuple(where), claim, 2), seconds=60).found


def below(a, b):
    """Say that |a| < |b|."""
    return not_above(b.value, a.value).denied()


def there(x):
    return x.zero.denied()


#: By what is wrong with them.
CONTRADICTIONS = {
    "|a| < |b| < |a|": (below, lambda a, b: below(b, a)),
    "|a| < |b|, both zero": (below, lambda a, b: a.zero & b.zero),
    "|a| < |b| = 0": (below, lambda a, b: b.zero),
    "|a| < |a|": (lambda a, b: below(a, a),),
    "a > 0 > a": (lambda a, b: a.value > ZERO, lambda a, b: a.value < ZERO),
    "a > b > a": (lambda a, b: a.value > b.value, lambda a, b: b.value > a.value),
    "a > 0 >= b >= a": (lambda a, b: (a.value > ZERO) & (b.value <= ZERO), lambda a, b: b.value >= a.value),
    "e(a) < e(b), |a| >= 2 |b|": (
        lambda a, b: (a.first < b.first) & there(b),
        lambda a, b: not_above(2 * b.value, a.value),
    ),
    "e(a) > e(b), |a| < |b|": (lambda a, b: (b.first < a.first) & there(a) & there(b), below),
    "a = 2 b, e(a) = e(b)": (
        lambda a, b: equal(a.value, 2 * b.value),
        lambda a, b: equal(a.first, b.first) & there(a) & there(b),
    ),
    "0 < a < ulp(a)": (lambda a, b: a.value > ZERO, lambda a, b: a.value < a.ulp),
    "a below its last bit": (lambda a, b: there(a), lambda a, b: below_form(a.value, a.last)),
    "more than p bits": (lambda a, b: there(a), lambda a, b: a.last < a.first.times_u()),
    "a not a multiple of its ulp": (lambda a, b: multiple_of_ulp(a, a).denied(),),
    "|a| <= u |b|, |b| <= u |a|": (
        lambda a, b: not_above(a.value, b.value.times_u()) & there(b),
        lambda a, b: not_above(b.value, a.value.times_u()),
    ),
}


def below_form(x, bound):
    return (x < bound) & (-x < bound)


@pytest.mark.parametrize("text", [passed_on, fast_two_sum], ids=["passed on", "fast_two_sum"])
@pytest.mark.parametrize("claim", [nothing, exact], ids=["false", "exact"])
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
    contrary = [hypothesis, lambda a, b: hypothesis(a, b).denied()]
    assert asked(contrary) is asked(contrary[::-1], claim=exact) is Found.VACUOUS


def test_operands_of_pairs_may_contradict_a_hypothesis():
    """It is asked of a high word, which is zero only if the low one is."""
    pair = (double_word("x"), value("a"))
    assert asked([lambda x, a: x.zero], operands=pair) is Found.NOT_PROVED
    for kind in (double_word, relaxed_pair):
        contrary = [lambda x, a: x.zero, lambda x, a: below(a, x)]
        assert asked(contrary, operands=(kind("x"), value("a"))) is Found.VACUOUS


@pytest.mark.parametrize("name", CLAIMS)
def test_no_statement_of_the_catalogue_is_vacuous(name):
    """Of its operands and hypotheses, whatever the text makes of them."""
    question = replace(question_of(THEOREMS[name]), algorithm=passed_on, claim=nothing)
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


@pytest.mark.parametrize("said", [True, False, None, 1, [TRUE]], ids=repr)
def test_what_is_no_formula_is_refused(said):
    for question in (
        Question("asked", passed_on, PAIR, (lambda a, b: said,), nothing, 2),
        Question("asked", passed_on, PAIR, (lambda a, b: below(a, b) & said,), nothing, 2),
        Question("asked", passed_on, PAIR, (), lambda ar, operands, results: said, 2),
    ):
        with pytest.raises(TypeError, match="is no formula: hypotheses and claims are comparisons of forms"):
            prove(question)
