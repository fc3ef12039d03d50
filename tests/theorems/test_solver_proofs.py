"""What the solver proves for every precision, what it refuses, and what is said of it."""

import doctest
import re
import time
from dataclasses import replace

import pytest

pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")

from experiments.common import ROOT, read_result
from mcfsim.eft import two_sum
from mcfsim.theorems import THEOREMS, double_word, relaxed_pair, value
from mcfsim.theorems.claims import exactly, sum_of
from mcfsim.theorems.logic import AllOf, Word
from mcfsim.theorems.solver import ASSUMED, Found, Question, prove, prove_all, question_of, readable
from mcfsim.theorems.solver.encoding import Solver
from mcfsim.theorems.solver.forms import Form
from mcfsim.theorems.solver.question import of_even_ties_alone

SECONDS = 200
QUICK = ("fast_two_sum", "fast_two_sum_exponents", "fast_two_sum_multiple", "grow_zero_high")
LONG = (
    "two_sum",
    "fast_two_sum_unordered_error",
    "grow",
    "grow_multiple_of_ulp",
    "grow_same_exponent",
    "grow_equals_dw_plus_fp",
    "grow_relaxed",
    "dw_plus_fp",
    "dw_plus_fp_relaxed",
)
PAIR = (value("a"), value("b"))
EXACT = exactly(sum_of("a", "b")).said


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_short_texts_are_proved_for_every_precision(name):
    answer = prove(THEOREMS[name], seconds=SECONDS)
    assert (answer.found, answer.least) == (Found.PROVED, THEOREMS[name].precision)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG)
def test_longer_texts_are_proved_for_every_precision(name):
    *below, answer = prove_all([name], seconds=SECONDS)
    assert all(one.found is Found.PROVED for one in (*below, answer))
    assert (answer.statement, answer.least) == (name, THEOREMS[name].precision)
    assert {one.statement for one in below} == set(answer.rests_on)


# -- what is asked ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_facts_without_a_claim_contradict_nothing():
    """They have a model: a proof is not one of anything."""
    nothing = Question("nothing", two_sum, PAIR, (), ~AllOf(()), 2, lemmas=False)
    assert prove(nothing, seconds=SECONDS).found is Found.NOT_PROVED
    pair = replace(
        nothing, operands=(double_word("a"), relaxed_pair("b")), algorithm=lambda ar, a, b: ar.add(*a)
    )
    assert prove(pair, seconds=SECONDS).found is Found.NOT_PROVED


@pytest.mark.slow
def test_a_proof_takes_its_hypothesis():
    question = question_of(THEOREMS["fast_two_sum"])
    assert prove(replace(question, where=()), seconds=SECONDS).found is Found.NOT_PROVED


@pytest.mark.slow
def test_what_rests_on_nothing_proved_is_not_proved(monkeypatch):
    from mcfsim.theorems.solver import proof

    told = proof.prove

    def doubtful(theorem, **options):
        answer = told(theorem, **options)
        return (
            replace(answer, found=Found.NO_ANSWER) if answer.statement == "fast_two_sum_multiple" else answer
        )

    monkeypatch.setattr(proof, "prove", doubtful)
    below, answer = prove_all(["grow_zero_high"], seconds=SECONDS)
    assert (below.found, answer.found) == (Found.NO_ANSWER, Found.NOT_PROVED)


def test_products_and_constants_are_refused():
    product = Question("product", lambda ar, a, b: ar.mul(a, b), PAIR, (), EXACT, 2)
    with pytest.raises(
        ValueError, match="products, quotients, roots, signs and other formats have no linear"
    ):
        prove(product)
    with pytest.raises(ValueError, match="products, quotients, roots"):
        prove(THEOREMS["dw_times_dw1"])
    constant = replace(product, algorithm=lambda ar, a, b: ar.add(a, 1.0))
    with pytest.raises(ValueError, match=r"the operand 1\.0 is no unknown"):
        prove(constant)


def test_a_chain_of_comparisons_is_refused():
    """Python would drop the first one."""
    a, b = Form.unknown("a"), Form.unknown("b")
    with pytest.raises(TypeError, match="neither true nor false"):
        assert a <= b <= a
    with pytest.raises(TypeError, match="true or false of a case"):
        assert Word("a") <= Word("b") <= Word("a")


@pytest.mark.parametrize("names", [("x", "xh"), ("a", "a.first"), ("a", "t2")])
def test_unknowns_of_one_name_are_refused(names):
    """They would be one number, of which more is known than of two."""
    first = double_word("x") if names[0] == "x" else value(names[0])
    question = Question("names", lambda ar, x, y: ar.add(y, y), (first, value(names[1])), (), EXACT, 2)
    with pytest.raises(ValueError, match="an operand cannot be called"):
        prove(question)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 1}, "least = 1: it goes from 2 to 1,000"),
        ({"least": 10**9}, "least = 1000000000: it goes from 2 to"),
        ({"seconds": 0}, "seconds = 0: it goes from 1 to 1,000,000"),
        ({"seconds": 10**30}, "seconds = 10+: it goes"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prove(THEOREMS["fast_two_sum"], **options)
    with pytest.raises(TypeError):
        prove(THEOREMS["fast_two_sum"], **dict.fromkeys(options, "3"))


@pytest.mark.slow
def test_no_answer_comes_of_too_little_time():
    answer = prove(THEOREMS["accurate_dw_plus_dw"], seconds=1)
    assert answer.found is Found.NO_ANSWER
    assert str(answer).startswith(
        "accurate_dw_plus_dw: no answer for every p >= 3, after two_sum, fast_two_sum_"
    )


@pytest.mark.parametrize("name", ["two_sum", "grow_relaxed"])
@pytest.mark.slow
def test_the_seconds_are_those_of_the_clock_and_of_the_whole_answer(name, monkeypatch):
    """Of each statement: whatever it is asked, one question has what those before it have left."""
    left, slept = [], 0.2

    def sleep(solver: Solver) -> None:
        left.append(solver.left)
        time.sleep(slept)

    monkeypatch.setattr(Solver, "has_model", sleep)
    start = time.monotonic()
    answer = prove(THEOREMS[name], seconds=60)
    taken = time.monotonic() - start
    assert answer.found is Found.NO_ANSWER
    assert len(left) * slept <= answer.seconds <= taken
    alone = of_even_ties_alone(THEOREMS[name])
    assert len(left) == 1 + alone
    assert left[0] < (30 if alone else 60)
    assert left[-1] <= 60 - slept * alone
    solver = Solver(time.monotonic() + 60)
    time.sleep(slept)
    assert solver.before(0).left <= 60 - slept


# -- the page -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_page_shows_real_output():
    page = (ROOT / "docs" / "every_bound.md").read_text()
    runner, blocks = doctest.DocTestRunner(), re.findall(r"```pycon\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        runner.run(doctest.DocTestParser().get_doctest(block, {}, "every_bound.md", None, None))
    assert runner.summarize().failed == 0
    assert blocks


def test_recorded_answers_prove_nothing_that_is_known_to_be_false():
    result = read_result("every_p_bounds")
    assert result["assumed"] == ASSUMED
    assert all(readable(THEOREMS[name]) for name in result["answers"])
    for name, answer in result["answers"].items():
        question = question_of(THEOREMS[name])
        assert THEOREMS[name].holds or answer["found"] != Found.PROVED
        assert answer["least"] == question.least
        assert answer["ties"] == "any" or of_even_ties_alone(THEOREMS[name])
        assert answer["found"] == Found.PROVED or name not in (*QUICK, *LONG)
