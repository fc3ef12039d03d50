"""What the solver is given is true of numbers; what it proves and refuses, and what is said of that."""

import random
import sys
import time
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from itertools import combinations, product

import pytest

from experiments.common import read_result
from mcfsim.eft import fast_two_sum
from mcfsim.theorems import THEOREMS, claim, double_word, hypothesis, logic, solver, value, verify
from mcfsim.theorems.claims import exactly, relative_error, sum_of
from mcfsim.theorems.hypotheses import nonzero, not_largest, sum_in_range
from mcfsim.theorems.solver import ASSUMED, Answer, Found, Question, facts, proof, prove, prove_all, readable
from mcfsim.theorems.solver.proof import Solver, facts_of, facts_of_powers
from mcfsim.theorems.solver.question import of_even_ties_alone
from mcfsim.theorems.solver.unknown_numbers import TRUE, ZERO, Comparison, Disjunction, UnknownArithmetic
from tests.cli import runner
from tests.theorems.reading import TIES, Assigned, unknowns_of
from tests.theorems.trying import PAIR, add, mine

TEXTS = {
    "one sum": add,
    "two sums": lambda ar, a, b: (ar.add(a, b), ar.sub(a, b)),
    "a sum of a sum": lambda ar, a, b: ar.sub(ar.add(a, b), a),
    "opposite sums": lambda ar, a, b: (ar.sub(a, b), ar.sub(b, a)),
    "cancelling": lambda ar, a, b: ar.add(ar.sub(b, ar.add(a, b)), a),
}


def asked(what):
    """Return what is asked of a statement, or of a text of two numbers, which supposes and claims nothing."""
    text, said = TEXTS.get(what), logic.AllOf(())
    return Question("text", text, PAIR, (), said, 2) if text else solver.question_of(THEOREMS[what])


def trials(question, count, seed, ties=TIES, most=12):
    draw = random.Random(seed)
    ar, *_ = question.posed()
    for _ in range(count):
        p = draw.randint(question.least, most)
        yield ar, Assigned(ar, unknowns_of(question, draw, p), p, draw.choice(ties))


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("what", [*TEXTS, *(name for name, theorem in THEOREMS.items() if readable(theorem))])
@pytest.mark.sampled(28, each=False)
@pytest.mark.costly("each fact on hundreds of fractions")
def test_facts_hold_of_numbers(what, count):
    """Facts and lemmas, with double words as operands and results of algorithms that have lemmas."""
    question, told = asked(what), {}
    for ar, values in trials(question, count if what in TEXTS else count // 20, seed=count):
        even = values.nearest.ties == "even"
        if even not in told:
            told[even] = [*facts_of(ar, question.least, even=even), *facts_of_powers(ar), *ar.known]
        wrong = [formula for formula in told[even] if not values.meet(formula)]
        assert not wrong, (values.p, values.nearest.ties, dict(values), wrong[0])


# -- sharper facts ------------------------------------------------------------------------------------------
@lru_cache
def some(text, ties):
    return list(trials(asked(text), 160, seed=4, ties=(ties,), most=7))


def sharper(said):
    """Yield a formula with one of its parts sharper: a comparison without its end, or an alternative less."""
    if isinstance(said, Comparison):
        yield Disjunction(()) if said.strict else replace(said, strict=True)
        return
    for i, part in enumerate(said.parts):
        before, after = said.parts[:i], said.parts[i + 1 :]
        yield from (replace(said, parts=(*before, x, *after)) for x in sharper(part))
        if isinstance(said, Disjunction):
            yield Disjunction((*before, *after))


def powers_of(ar):
    return [power for x in ar.numbers for power in (x.first, x.last)]


#: Facts, and what of an arithmetic they are about.
ABOUT = [
    (facts.OF_A_NUMBER, lambda ar: ((x,) for x in ar.numbers)),
    (facts.OF_A_VALUE, lambda ar: ((x.value, 2) for x in ar.numbers)),
    (facts.OF_A_POWER, lambda ar: ((power, 2) for power in powers_of(ar))),
    (facts.OF_TWO_POWERS, lambda ar: combinations(powers_of(ar), 2)),
    ((*facts.OF_A_SUM, *facts.EVEN_TIES), lambda ar: ((r,) for r in ar.sums)),
    (facts.OF_TWO_SUMS, lambda ar: combinations(ar.sums, 2)),
]
#: Of how many parts a sharper one would be true, too: as others imply it, or for want of a case, as of zero.
SPARE = {"_small_share": 2, "_half_ulp": 3, "_below_power": 5, "_nearest": 1, "_representable": 4}
SPARE |= {"_error_multiple": 4, "_last_of_sum": 4, "_last_of_exact_sum": 11, "_even": 7, "_monotone": 2}


@pytest.mark.slow
@pytest.mark.sampled(14, each=False)
@pytest.mark.parametrize(("fact", "subjects"), [(fact, of) for some, of in ABOUT for fact in some])
def test_no_part_of_a_fact_can_be_sharper(fact, subjects):
    """Numbers reach the end of each bound and need each alternative; of other ties they are not so."""
    parts, refuted, even = set(), set(), fact in facts.EVEN_TIES
    for text, ties in product(("two sums", "a sum of a sum"), ("even",) if even else TIES):
        tried = some(text, ties)
        for one in subjects(tried[0][0]):
            for part, said in enumerate(sharper(fact.of(*one))):
                parts.add(part)
                if part not in refuted and not all(values.meet(said) for _, values in tried):
                    refuted.add(part)
    assert len(parts - refuted) == SPARE.get(fact.of.__name__, 0), sorted(parts - refuted)
    others = (one for ties in TIES for one in some("two sums", ties))
    assert not even or not all(values.meet(fact.of(ar.sums[0])) for ar, values in others)


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


NEEDS_SOLVER = pytest.mark.skipif(find_spec("z3") is None, reason="needs the extra mcfsim[solver]")
SECONDS = 600
PROVED = (
    *("fast_two_sum", "fast_two_sum_exponents", "fast_two_sum_multiple", "grow_zero_high", "two_sum"),
    *("fast_two_sum_unordered_error", "grow", "grow_multiple_of_ulp", "grow_same_exponent"),
    *("grow_equals_dw_plus_fp", "grow_relaxed", "dw_plus_fp", "dw_plus_fp_relaxed"),
)
EXACT = exactly(sum_of("a", "b")).said
QUESTION = Question("question", add, PAIR, (), EXACT, 2)


def call(*arguments, status=0):
    return runner.call("verify", "--upper", *arguments, status=status).output


NO_ARGUMENTS = {
    "": "asked about these on sums: two_sum, fast_two_sum",
    "two_sun": "unknown theorem 'two_sun' (did you mean 'two_sum'",
    "dw_times_dw1": "products, quotients, roots, signs and other formats have no linear facts",
    "two_sum --format bfloat16": "speaks of every precision: --format is no use",
    "two_sum --output .": "--output is no use",
    "two_sum --dask tcp://x:1": "--dask is no use",
}


@pytest.mark.parametrize(("arguments", "message"), NO_ARGUMENTS.items())
def test_what_the_command_cannot_ask_is_refused_in_one_line(arguments, message):
    assert message in call(*arguments.split(), status=2)


def test_without_the_solver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    assert "need z3: pip install 'mcfsim[solver]'" in call("two_sum", status=2)


@NEEDS_SOLVER
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.exhaustive] * (x != PROVED[3])) for x in PROVED]
)
@pytest.mark.costly("the solver proves")
def test_a_true_statement_is_proved_after_what_it_rests_on(name):
    answer = prove(THEOREMS[name], seconds=SECONDS)
    assert (answer.statement, answer.found, answer.least) == (name, Found.PROVED, THEOREMS[name].precision)
    assert {*answer.rests_on} <= {*PROVED}


def _answers(monkeypatch, **found):
    """Let statements be answered so; of two, the second one rests on the first."""
    rests = dict(zip(found, [(), *((name,) for name in found)], strict=False))
    made = {name: Answer(name, found[name], 2, "any", rests[name], 0.0, 0, "") for name in found}
    monkeypatch.setattr(proof, "prove", lambda theorem, **_: made[theorem.name])


def test_proofs_are_printed_with_what_they_assume(monkeypatch):
    _answers(monkeypatch, fast_two_sum_multiple=Found.PROVED, grow_zero_high=Found.PROVED)
    assert call("grow_zero_high", "--seconds", "200").splitlines() == [
        "fast_two_sum_multiple: proved for every p >= 2, 0.0 s",
        "grow_zero_high: proved for every p >= 2, after fast_two_sum_multiple, 0.0 s",
        f"Assumed: {ASSUMED}. What is not proved need not be false.",
    ]
    assert ASSUMED.startswith("radix 2, rounding to nearest, ties by any rule if none is said")


@pytest.mark.parametrize("found", [Found.NO_ANSWER, Found.NOT_PROVED, Found.VACUOUS])
def test_what_rests_on_nothing_proved_is_not_proved(found, monkeypatch):
    _answers(monkeypatch, two_sum=found, grow=Found.PROVED)
    first, second = prove_all(["grow"])
    assert (first.found, second.found) == (found, Found.NOT_PROVED)
    why = ", as no operands meet the hypotheses" if found is Found.VACUOUS else ""
    assert str(first) == f"two_sum: {found} for every p >= 2{why}, 0.0 s"
    assert str(found) in call("two_sum", status=1)
    # That a false statement is vacuous is no success.
    _answers(monkeypatch, lost_up_to_u=found)
    assert str(found) in call("lost_up_to_u", status=int(found is Found.VACUOUS))


@NEEDS_SOLVER
@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.costly("the solver proves")
def test_the_seconds_are_those_of_the_clock_and_of_the_whole_answer(alone, monkeypatch):
    """Of each statement: whatever it is asked, one question has what those before it have left."""
    left, slept, asked = [], 0.02, Solver.has_model

    def sleep(self):
        left.append(self.left)
        time.sleep(slept)
        self._until = time.monotonic()  # of which nothing is left to the solver
        return asked(self)

    theorem = replace(THEOREMS["fast_two_sum"], algorithm=lambda ar, a, b: (ar.add(a, b), b), where=())
    theorem = replace(theorem, modes={"nearest_even"}) if alone else theorem
    assert of_even_ties_alone(theorem) == alone
    monkeypatch.setattr(Solver, "has_model", sleep)
    start = time.monotonic()
    answer = prove(theorem, seconds=60)
    taken = time.monotonic() - start
    assert answer.found is Found.NO_ANSWER
    assert len(left) * slept <= answer.seconds <= taken
    assert len(left) == 1 + alone
    assert left[0] < (30 if alone else 60)
    assert left[-1] <= 60 - slept * alone


#: Unknowns of one name would be one number, of which more is known than of two.
TWICE = [(double_word("x"), value("xh")), (value("a"), value("a.first")), (value("a"), value("t2"))]
NOT_ASKED = [
    ({"algorithm": lambda ar, a, b: ar.mul(a, b)}, ValueError, "roots, signs and other formats"),
    ({"algorithm": lambda ar, a, b: ar.add(a, 1.0)}, ValueError, r"operand 1\.0 is no unknown"),
    *(({"operands": operands}, ValueError, "an operand cannot be called") for operands in TWICE),
    ({"least": 1}, ValueError, "least = 1: it must be from 2 to 1,000"),
    ({"least": 10**9}, ValueError, "least = 1000000000: it must be from 2 to"),
    ({"seconds": 0}, ValueError, "seconds = 0: it must be from 1 to 1,000,000"),
    ({"seconds": 10**30}, ValueError, "seconds = 10+: it must be"),
    *(({name: "3"}, TypeError, None) for name in ("least", "seconds")),
    ({"where": (True,)}, TypeError, "'question': a hypothesis must be a Proposition, not"),
    ({"claim": None}, TypeError, "'question': a claim must be a Proposition, not"),
]


@pytest.mark.parametrize(("given", "error", "message"), NOT_ASKED, ids=range(13))
def test_what_cannot_be_asked_is_refused(given, error, message):
    options = {name: given[name] for name in given.keys() & {"least", "seconds"}}
    with pytest.raises(error, match=message):
        prove(replace(QUESTION, **({} if options else given)), **options)


@pytest.mark.slow
def test_ulps_are_compared_where_no_number_is_subnormal():
    """Where one is, |b| <= ulp(a) says less: of the smallest number, that b is no larger."""
    a, b = logic.Word("a"), logic.Word("b")
    where = [hypothesis(abs(b) <= logic.Ulp(a)), nonzero("a")]
    theorem = mine(lambda ar, a, b: ar.add(a, b), claim(abs(b) <= logic.U * abs(a) * 2), where=where)
    assert verify(theorem, "float8_e5m2").verdict == "refuted"
    with pytest.raises(logic.UnreadableError, match="'mine' compares with an ulp"):
        prove(theorem, seconds=60)
    unbounded = replace(theorem, range="unbounded")
    assert prove(unbounded, seconds=60).found is Found.PROVED
    assert verify(unbounded, "float8_e5m2", samples=1000).verdict == "no counterexample"


OVER, SHARE = sum_in_range("a", "b"), relative_error(1, sum_of("a", "b"), unit=1)


@pytest.mark.parametrize(
    "theorem",
    [mine(fast_two_sum, SHARE, where=[OVER]), mine(operands=PAIR[::-1], where=[OVER, not_largest("a")])],
    ids=["operands in any order", "the second operand is not the largest number"],
)
def test_sums_that_may_overflow_on_the_way_are_not_asked(theorem):
    """In range the sum is half an ulp off, so that the next one, beside the largest number, overflows."""
    assert verify(theorem, "float8_e5m2").verdict == "refuted"
    with pytest.raises(logic.UnreadableError, match="may overflow on the way"):
        prove(theorem, seconds=60)


def test_recorded_answers_prove_nothing_that_is_known_to_be_false():
    result = read_result("every_p_bounds")
    assert result["assumed"] == ASSUMED
    assert all(readable(THEOREMS[name]) for name in result["answers"])
    for name, answer in result["answers"].items():
        question = solver.question_of(THEOREMS[name])
        assert THEOREMS[name].holds or answer["found"] != Found.PROVED
        assert answer["least"] == question.least
        assert answer["ties"] == "any" or of_even_ties_alone(THEOREMS[name])
        assert answer["found"] == Found.PROVED or name not in PROVED
