"""What the solver is given: true of numbers; altered, it is not, and the trial of numbers says so."""

import random
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import pytest

from mcfsim.theorems import THEOREMS, logic, value
from mcfsim.theorems.solver import Question, facts, question_of, readable
from mcfsim.theorems.solver.arithmetic import UnknownArithmetic
from mcfsim.theorems.solver.forms import TRUE, ZERO, AllOf, all_of, equal, not_above, within
from mcfsim.theorems.solver.proof import facts_of
from tests.theorems.solving import TIES, Assigned, operands_of

PAIR = (value("a"), value("b"))
TEXTS = {
    "one sum": lambda ar, a, b: ar.add(a, b),
    "two sums": lambda ar, a, b: (ar.add(a, b), ar.sub(a, b)),
    "a sum of a sum": lambda ar, a, b: ar.sub(ar.add(a, b), a),
    "opposite sums": lambda ar, a, b: (ar.sub(a, b), ar.sub(b, a)),
    "cancelling": lambda ar, a, b: ar.add(ar.sub(b, ar.add(a, b)), a),
}


def asked(what):
    """Return what is asked of a statement, or of a text of two numbers, which supposes and claims nothing."""
    text = TEXTS.get(what)
    return Question("text", text, PAIR, (), logic.AllOf(()), 2) if text else question_of(THEOREMS[what])


def trials(question, count, seed, ties=TIES, most=12):
    """Yield the arithmetic of a question with values for its unknowns."""
    draw = random.Random(seed)
    ar, *_ = question.posed()
    for _ in range(count):
        p = draw.randint(question.least, most)
        yield ar, Assigned(ar, operands_of(question, draw, p), p, draw.choice(ties))


# -- facts --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("what", [*TEXTS, *(name for name, theorem in THEOREMS.items() if readable(theorem))])
@pytest.mark.sampled(14, each=False)
@pytest.mark.costly("each fact on hundreds of fractions")
def test_facts_hold_of_numbers(what, count):
    """Facts and lemmas, with operands that are double words and results of texts for which lemmas stand."""
    question, told = asked(what), {}
    for ar, values in trials(question, count if what in TEXTS else count // 20, seed=count):
        even = values.nearest.ties == "even"
        if even not in told:
            told[even] = [*facts_of(ar, question.least, even=even), *ar.known]
        wrong = [formula for formula in told[even] if not values.meet(formula)]
        assert not wrong, (values.p, values.nearest.ties, dict(values), wrong[0])


# -- altered facts ------------------------------------------------------------------------------------------
@lru_cache
def some(text, ties):
    """Return numbers that altered facts are tried on, made once."""
    return list(trials(asked(text), 160, seed=4, ties=(ties,), most=7))


def cases(fact_of):
    """Yield what a fact may be asked about: from the text of two sums and one of a sum of sums."""
    rules = ("even",) if fact_of == "sum, even ties" else TIES
    for text, ties in [(text, ties) for text in ("two sums", "a sum of a sum") for ties in rules]:
        for ar, values in some(text, ties):
            powers = [power for x in ar.numbers for power in (x.first, x.last)]
            subjects = {
                "number": ((x,) for x in ar.numbers),
                "value": ((x.value, 2) for x in ar.numbers),
                "power": ((power, 2) for power in powers),
                "powers": combinations(powers, 2),
                "sum": ((r,) for r in ar.sums),
                "sum, even ties": ((r,) for r in ar.sums),
                "sums": combinations(ar.sums, 2),
            }
            yield values, subjects[fact_of]


NEVER = AllOf(()).denied()


def _bits(x, low, top, power=TRUE):
    """Return that a number lies between two, in size, or is a power of two."""
    up, down = (low <= x.value) & (x.value <= top), (low <= -x.value) & (-x.value <= top)
    return x.zero | (power & equal(x.last, x.first)) | up | down


def _off(r, bound, where=TRUE):
    return r.result.zero | where.implies(within(r.off, bound))


def _half(r, share=Fraction(1)):
    """Return a share of half an ulp of a result."""
    return share * r.result.first.times_u()


def _representable(r, share, least=facts._is_least):
    return all_of(
        (least(x, r) & within(share * r.exact.times_u(), x.last)).implies(equal(r.off, ZERO)) for x in r.terms
    )


def _last(r, of):
    return all_of(facts._is_least(x, r).implies(of(x)) for x in r.terms)


def _exact_last(r, where, of):
    """Return what is said of the last bit of an exact sum, by the last bits of its terms."""
    inexact = (r.off > ZERO) | (r.off < ZERO) | r.result.zero
    a, b = (x.last for x in r.terms)
    return where(a, b).implies(inexact | of(r.result.last, a, b))


def _tie(r):
    half = _half(r)
    return equal(r.off, half) | equal(-r.off, half)


def _apart(a, b, times=2):
    return (times * a <= b) | (times * b <= a)


#: By what a fact is about: altered ones, by their law.
ALTERED = {
    "number": {
        "bits: from the first one on a last one more": lambda x: _bits(
            x, x.first + 2 * x.last, 2 * x.first - x.last
        ),
        "bits: to the last one more": lambda x: _bits(x, x.first + x.last, 2 * x.first - 2 * x.last),
        "bits: no power of two": lambda x: _bits(x, x.first + x.last, 2 * x.first - x.last, NEVER),
        "bits: the last one above the ulp": lambda x: x.zero | (2 * x.ulp <= x.last),
        "bits: the ulp of half a binade": lambda x: x.zero | (2 * x.first - 2 * x.ulp >= x.value),
        "bits: zero has some": lambda x: (x.first <= x.value) | (x.first <= -x.value),
    },
    "power": {"u is smaller": lambda x, least: facts._small(x, least + 1)},
    "value": {
        "u is smaller": lambda x, least: facts._small_share(x, least + 1),
        "all are positive": lambda x, least: x >= ZERO,
    },
    "powers": {
        "four times as large": lambda a, b: equal(a, b) | _apart(a, b, 4),
        "never equal": _apart,
        "in order": lambda a, b: equal(a, b) | (2 * a <= b),
    },
    "sum": {
        "sign: the opposite": lambda r: (r.exact <= ZERO) | (r.result.value < ZERO),
        "sign: of the first term": lambda r: (r.terms[0].value <= ZERO) | (r.result.value >= ZERO),
        "error: less than half an ulp": lambda r: r.result.zero | ((r.off < _half(r)) & (-r.off < _half(r))),
        "error: half an ulp of a term": lambda r: _off(r, r.terms[0].first.times_u()),
        "error: a quarter of an ulp, the sum above the power of two": lambda r: _off(
            r, _half(r, Fraction(1, 4)), r.exact <= r.result.first
        ),
        "error: an eighth of an ulp below the power of two": lambda r: _off(
            r, _half(r, Fraction(1, 4)), (r.exact < r.result.first) & (-r.exact < r.result.first)
        ),
        "nearest: half the distance to a term": lambda r: all_of(
            not_above(2 * r.off, r.exact - x.value) for x in r.terms
        ),
        "nearest: to what is no number": lambda r: not_above(r.off, r.exact - 3 * r.terms[0].value),
        "representable: up to twice as much": lambda r: _representable(r, Fraction(1, 2)),
        "representable: by any term": lambda r: _representable(r, 1, lambda x, r: TRUE),
        "error: a multiple of twice the last bit": lambda r: (
            equal(r.off, ZERO) | _last(r, lambda x: (2 * x.last <= r.off) | (2 * x.last <= -r.off))
        ),
        "last bit: above that of the terms": lambda r: _last(r, lambda x: 2 * x.last <= r.result.last),
        "last bit: of the greater term": lambda r: all_of(x.last <= r.result.last for x in r.terms),
        "exact sum: last bits differ, the greater one": lambda r: _exact_last(
            r, lambda a, b: a < b, lambda last, a, b: equal(last, b)
        ),
        "exact sum: last bits equal, the same": lambda r: _exact_last(
            r, equal, lambda last, a, b: equal(last, a)
        ),
        "exact sum: last bits equal, four times as large": lambda r: _exact_last(
            r, equal, lambda last, a, b: 4 * a <= last
        ),
        "ties: to even, with any rule": facts.EVEN_TIES[0].of,
    },
    "sum, even ties": {
        "the last bit is higher still": lambda r: _tie(r).implies(
            r.result.zero | (4 * r.result.ulp <= r.result.last)
        ),
        "without a tie, too": lambda r: r.result.zero | _tie(r) | (2 * r.result.ulp <= r.result.last),
        "the last bit is left": lambda r: _tie(r).implies(r.result.zero | equal(r.result.ulp, r.result.last)),
    },
    "sums": {
        "monotone: strictly": lambda r, s: (r.exact < s.exact).implies(r.result.value < s.result.value),
        "monotone: downward": lambda r, s: (r.exact < s.exact).implies(s.result.value <= r.result.value),
        "same: of sums that are as large": lambda r, s: not_above(r.exact, s.exact).implies(
            equal(r.result.value, s.result.value)
        ),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fact_of", "altered"), [(about, name) for about, some in ALTERED.items() for name in some]
)
def test_altered_facts_are_refused(fact_of, altered):
    """Numbers are found of which they are not true."""
    fact = ALTERED[fact_of][altered]
    assert any(not values.meet(fact(*one)) for values, subjects in cases(fact_of) for one in subjects)


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


def test_forms_go_with_forms():
    for mixed in (lambda: ZERO + 1, lambda: ZERO - 0.5):
        with pytest.raises(TypeError, match="is no form: forms go with forms"):
            mixed()
