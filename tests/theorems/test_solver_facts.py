"""What the solver is given: true of numbers; altered, it is not, and the trial of numbers says so."""

import random
from fractions import Fraction
from itertools import combinations

import pytest

from mcfsim.theorems import THEOREMS, logic, value
from mcfsim.theorems.solver import Question, facts, question_of, readable
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.solver.forms import TRUE, ZERO, AllOf, all_of, equal, not_above, within
from mcfsim.theorems.solver.proof import facts_of
from tests.theorems.solving import TIES, Assigned, Nearest, operands_of

PAIR = (value("a"), value("b"))
TEXTS = {
    "one sum": lambda ar, a, b: ar.add(a, b),
    "two sums": lambda ar, a, b: (ar.add(a, b), ar.sub(a, b)),
    "a sum of a sum": lambda ar, a, b: ar.sub(ar.add(a, b), a),
    "opposite sums": lambda ar, a, b: (ar.sub(a, b), ar.sub(b, a)),
    "cancelling": lambda ar, a, b: ar.add(ar.sub(b, ar.add(a, b)), a),
}


def asked(text, least=2):
    """Return a question about a text of two numbers that supposes and claims nothing."""
    return Question("text", text, PAIR, (), logic.AllOf(()), least)


def trials(question, count, seed, ties=TIES, most=12):
    """Yield the arithmetic of a question with values for its unknowns."""
    draw = random.Random(seed)
    ar, *_ = question.posed()
    for _ in range(count):
        p = draw.randint(question.least, most)
        yield ar, Assigned(ar, operands_of(question, draw, p), p, draw.choice(ties))


# -- facts --------------------------------------------------------------------------------------------------
def check_facts(question, count, seed):
    told = {}
    for ar, values in trials(question, count, seed):
        even = values.nearest.ties == "even"
        if even not in told:
            told[even] = [*facts_of(ar, question.least, even=even), *ar.known]
        wrong = [formula for formula in told[even] if not values.meet(formula)]
        assert not wrong, (values.p, values.nearest.ties, dict(values), wrong[0])


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_facts_hold_of_numbers(text):
    check_facts(asked(TEXTS[text]), 1000, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", TEXTS)
def test_facts_hold_of_very_many_numbers(text):
    check_facts(asked(TEXTS[text]), 20_000, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, theorem in THEOREMS.items() if readable(theorem)])
def test_all_that_is_told_of_a_statement_holds_of_numbers(name):
    """Facts and lemmas, with operands that are double words and results of texts for which lemmas stand."""
    check_facts(question_of(THEOREMS[name]), 12, seed=3)


def cases(fact_of):
    """Yield what a fact may be asked about: from the text of two sums and one of a sum of sums."""
    for text, ties in [(text, ties) for text in ("two sums", "a sum of a sum") for ties in TIES]:
        for ar, values in trials(asked(TEXTS[text]), 250, seed=4, ties=(ties,), most=7):
            powers = [power for x in ar.numbers for power in (x.first, x.last)]
            subjects = {
                "number": ((x,) for x in ar.numbers),
                "value": ((x.value, 2) for x in ar.numbers),
                "power": ((power, 2) for power in powers),
                "powers": combinations(powers, 2),
                "sum": ((r,) for r in ar.sums),
                "sums": combinations(ar.sums, 2),
            }
            yield values, subjects[fact_of]


def refused(fact_of, altered):
    """Return whether numbers are found of which an altered fact is not true."""
    return any(
        not values.meet(altered(*subject)) for values, subjects in cases(fact_of) for subject in subjects
    )


def _bits(low, top, power):
    def altered(x):
        least, most = low(x), top(x)
        up, down = (least <= x.value) & (x.value <= most), (least <= -x.value) & (-x.value <= most)
        return x.zero | (power(x) & equal(x.last, x.first)) | up | down

    return altered


def _off(r, bound):
    return r.result.zero | within(r.off, bound)


def _representable(r, share, least=facts._is_least):
    return all_of(
        (least(x, r) & within(share * r.exact.times_u(), x.last)).implies(equal(r.off, ZERO)) for x in r.terms
    )


def _last(r, of):
    return all_of(facts._is_least(x, r).implies(of(x)) for x in r.terms)


def _inexact(r):
    return (r.off > ZERO) | (r.off < ZERO) | r.result.zero


ALTERED = {
    "bits: from the first one on a last one more": (
        "number",
        _bits(lambda x: x.first + 2 * x.last, lambda x: 2 * x.first - x.last, lambda x: TRUE),
    ),
    "bits: to the last one more": (
        "number",
        _bits(lambda x: x.first + x.last, lambda x: 2 * x.first - 2 * x.last, lambda x: TRUE),
    ),
    "bits: no power of two": (
        "number",
        _bits(lambda x: x.first + x.last, lambda x: 2 * x.first - x.last, lambda x: AllOf(()).denied()),
    ),
    "bits: the last one above the ulp": ("number", lambda x: x.zero | (2 * x.ulp <= x.last)),
    "bits: the ulp of half a binade": ("number", lambda x: x.zero | (2 * x.first - 2 * x.ulp >= x.value)),
    "bits: zero has some": ("number", lambda x: (x.first <= x.value) | (x.first <= -x.value)),
    "powers: u is smaller": ("power", lambda x, least: facts._small(x, least + 1)),
    "values: u is smaller": ("value", lambda x, least: facts._small_share(x, least + 1)),
    "values: all are positive": ("value", lambda x, least: x >= ZERO),
    "powers: four times as large": ("powers", lambda a, b: equal(a, b) | (4 * a <= b) | (4 * b <= a)),
    "powers: never equal": ("powers", lambda a, b: (2 * a <= b) | (2 * b <= a)),
    "powers: in order": ("powers", lambda a, b: equal(a, b) | (2 * a <= b)),
    "sign: the opposite": ("sum", lambda r: (r.exact <= ZERO) | (r.result.value < ZERO)),
    "sign: of the first term": ("sum", lambda r: (r.terms[0].value <= ZERO) | (r.result.value >= ZERO)),
    "error: a quarter of an ulp": ("sum", lambda r: _off(r, Fraction(1, 2) * r.result.first.times_u())),
    "error: less than half an ulp": (
        "sum",
        lambda r: r.result.zero | ((r.off < r.result.first.times_u()) & (-r.off < r.result.first.times_u())),
    ),
    "error: half an ulp of a term": ("sum", lambda r: _off(r, r.terms[0].first.times_u())),
    "error: a quarter of an ulp, the sum above the power of two": (
        "sum",
        lambda r: (
            r.result.zero
            | (r.exact <= r.result.first).implies(
                within(2 * r.off, Fraction(1, 2) * r.result.first.times_u())
            )
        ),
    ),
    "error: an eighth of an ulp below the power of two": (
        "sum",
        lambda r: (
            r.result.zero
            | ((r.exact < r.result.first) & (-r.exact < r.result.first)).implies(
                within(4 * r.off, r.result.first.times_u())
            )
        ),
    ),
    "nearest: half the distance to a term": (
        "sum",
        lambda r: all_of(not_above(2 * r.off, r.exact - x.value) for x in r.terms),
    ),
    "nearest: to what is no number": ("sum", lambda r: not_above(r.off, r.exact - 3 * r.terms[0].value)),
    "representable: up to twice as much": ("sum", lambda r: _representable(r, Fraction(1, 2))),
    "representable: by any term": ("sum", lambda r: _representable(r, 1, lambda x, r: TRUE)),
    "error: a multiple of twice the last bit": (
        "sum",
        lambda r: equal(r.off, ZERO) | _last(r, lambda x: (2 * x.last <= r.off) | (2 * x.last <= -r.off)),
    ),
    "error: never zero": ("sum", lambda r: _last(r, lambda x: (x.last <= r.off) | (x.last <= -r.off))),
    "last bit: above that of the terms": ("sum", lambda r: _last(r, lambda x: 2 * x.last <= r.result.last)),
    "last bit: of the greater term": (
        "sum",
        lambda r: all_of(x.last <= r.result.last for x in r.terms),
    ),
    "exact sum: last bits differ, the greater one": (
        "sum",
        lambda r: (r.terms[0].last < r.terms[1].last).implies(
            _inexact(r) | equal(r.result.last, r.terms[1].last)
        ),
    ),
    "exact sum: last bits equal, the same": (
        "sum",
        lambda r: equal(r.terms[0].last, r.terms[1].last).implies(
            _inexact(r) | equal(r.result.last, r.terms[0].last)
        ),
    ),
    "exact sum: last bits equal, four times as large": (
        "sum",
        lambda r: equal(r.terms[0].last, r.terms[1].last).implies(
            _inexact(r) | (4 * r.terms[0].last <= r.result.last)
        ),
    ),
    "exact sum: where it is not exact": (
        "sum",
        lambda r: (r.terms[0].last < r.terms[1].last).implies(
            r.result.zero | equal(r.result.last, r.terms[0].last)
        ),
    ),
    "ties: to even, with any rule": ("sum", facts.EVEN_TIES[0].of),
    "monotone: strictly": (
        "sums",
        lambda r, s: (r.exact < s.exact).implies(r.result.value < s.result.value),
    ),
    "monotone: downward": (
        "sums",
        lambda r, s: (r.exact < s.exact).implies(s.result.value <= r.result.value),
    ),
    "monotone: of the first terms": (
        "sums",
        lambda r, s: (r.terms[0].value <= s.terms[0].value).implies(r.result.value <= s.result.value),
    ),
    "same: of sums that are as large": (
        "sums",
        lambda r, s: not_above(r.exact, s.exact).implies(equal(r.result.value, s.result.value)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("altered", ALTERED)
def test_altered_facts_are_refused(altered):
    assert refused(*ALTERED[altered])


@pytest.mark.slow
def test_altered_facts_about_ties_to_even_are_refused():
    """That the last bit is higher still, that it is so without a tie, and that a tie leaves the last bit."""
    fact, altered = facts.EVEN_TIES[0], [0, 0, 0]
    for values, subjects in cases("sum"):
        if values.nearest.ties != "even":
            continue
        for (r,) in subjects:
            x, half = r.result, r.result.first.times_u()
            assert values.meet(fact.of(r))
            tie = values.meet(equal(r.off, half) | equal(-r.off, half))
            altered[0] += tie and not values.meet(x.zero | (4 * x.ulp <= x.last))
            altered[1] += not tie and not values.meet(x.zero | (2 * x.ulp <= x.last))
            altered[2] += tie and not values.meet(x.zero | equal(x.ulp, x.last))
    assert all(altered)


def test_opposite_sums_may_be_rounded_to_numbers_that_are_not():
    """Ties may go up: that RN(-t) = -RN(t) is no fact."""
    ar = Nearest(3, "up")
    assert ar.sub(Fraction(8), Fraction(-1)) == 10
    assert ar.sub(Fraction(-1), Fraction(8)) == -8


@pytest.mark.slow
def test_sums_with_ties_of_their_own_may_differ():
    """A double word may have been made by another rule for ties than that of the arithmetic."""
    ar = UnknownArithmetic()
    high, low = ar.operand(THEOREMS["grow"].operands[0])
    ar.add(high, low)
    made, again = ar.sums
    same = facts.OF_TWO_SUMS[1].of(made, again)
    assert same is TRUE
    values = Assigned(ar, {"xh": Fraction(8), "xl": Fraction(1)}, 3, "away")
    assert values.of(again.result) == 10
    assert all(values.meet(formula) for formula in facts_of(ar, 2))
