"""Statements at every precision: errors, limits and signs, against the oracle at each; certificates."""

import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest

from experiments.common import read_result
from mcfsim.compile.program import flat
from mcfsim.formats import Format
from mcfsim.multiword import double_word as dw
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems import THEOREMS, Theorem, claim, hypothesis, relative_error, value
from mcfsim.theorems.claims import error_relative_to, sum_of
from mcfsim.theorems.every_p import EveryCertificate, Sharpness, covering, prove, recheck
from mcfsim.theorems.every_p.family_proof import LAST, members, with_families
from mcfsim.theorems.every_p.trying import Decided
from mcfsim.theorems.hypotheses import RESULTS_FINITE, exponents_ordered, ordered, same_sign
from mcfsim.theorems.logic import EMIN, LARGEST, Exponent, Iff, IsMultiple, Ulp, Word, equal
from mcfsim.theorems.logic.on_numbers import Case
from mcfsim.theorems.symbolic import (
    EVEN,
    EVERY,
    ODD,
    Polynomial,
    Quotient,
    UndecidedError,
    family,
    operand_families,
    u,
)
from mcfsim.theorems.symbolic.operand_families import root, unit
from tests.theorems.trying import add, mine

pytestmark = pytest.mark.slow

CONSTANTS = read_result("worst_constants")["statements"]


# -- the catalogue ------------------------------------------------------------------------------------------
def own(theorem):
    """Return those of its own cases that are polynomials."""
    known = theorem.families
    return getattr(known, "members", (known,) if isinstance(known, operand_families.Family) else ())


IN_PRINT = {"dw_times_dw2": lambda u: 5 / (1 + u) ** 2, "dw_times_dw3": lambda u: (4 + u / 2) / (1 + u) ** 2}


@pytest.mark.parametrize("name", IN_PRINT)
def test_errors_of_products_lie_below_tighter_bounds_in_print(name):
    proof, in_print = prove(THEOREMS[name]), IN_PRINT[name]
    assert in_print(Fraction(0)) == proof.limit
    for p in range(3, 200):
        assert proof.in_unit.at(p) < in_print(Fraction(1, 2**p)) < proof.theorem.claim.bound.at(p)


def test_the_bound_of_the_root_is_sharp():
    proof = prove(THEOREMS["sqrt_dw"])
    assert (proof.limit, proof.sharpness) == (Fraction(25, 8), Sharpness.SHARP)
    rows = [row for row in CONSTANTS["sqrt_dw"]["worst"] if row["p"] >= 7]
    assert len(rows) == 5
    for row in rows:
        assert row["exhaustive"]
        x, oracle = [Fraction(float.fromhex(text)) for text in row["operands"]], FractionArithmetic(row["p"])
        assert sum(dw.sqrt_dw(oracle, tuple(x))) ** 2 / sum(x) - 1 == proof.error.at(row["p"])


def test_what_the_solver_proves_is_called_proved_wherever_the_statement_stands():
    """A statement says that it is proved here exactly if the solver proved it and its source has no proof."""
    answers = read_result("every_p_bounds")["answers"]
    assert {"grow_relaxed", "dw_plus_fp_relaxed"} <= answers.keys()
    for name, theorem in THEOREMS.items():
        proved = answers.get(name, {}).get("found") == "proved"
        assert not (proved and re.search("measured|no proof|conjecture", theorem.source)), name
        if here := re.search(r"proved here for every p >= (\d+) by a solver, ties to even", theorem.source):
            assert proved
            assert (answers[name]["least"], answers[name]["ties"]) == (int(here[1]), "to even")


@pytest.mark.parametrize("theorem", with_families(), ids=lambda t: t.name)
@pytest.mark.sampled(24, each=False)
def test_every_family(theorem):
    """Reproduced from the least precision on and in the range stated; as good as the statement says."""
    for one in members(theorem):
        proof = prove(theorem, one)
        latest = 19 if theorem.name == "dw_div_dw3" else 16
        assert 2 <= proof.first <= proof.decided <= latest
        for p in range(2, LAST + 1):
            if p in one.over and p >= proof.first - one.over.step:
                problem = proof.difference(p)
                assert (problem is None) == (p >= proof.first), p
        assert prove(theorem, one, proof.mode) == proof
        for p in (p for p in range(proof.decided, 25) if p in one.over):
            least = proof.emin.at(p)
            fmt = Format(precision=p, emin=least, emax=max(proof.emax.at(p), least + 1))
            given = [tuple(map(float, x)) if isinstance(x, tuple) else float(x) for x in one.structured(p)]
            found = flat(theorem.algorithm(OracleArithmetic(fmt, Rounding(proof.mode)), *given))
            assert list(map(Fraction, found)) == [result.at(p) for result in proof.results]
    proofs, bound = covering(theorem), theorem.claim.bound
    assert all(proof.as_expected for proof in proofs)
    if bound is not None and bound.unit and bound.formula is not None:
        exceeded = any(proof.sharpness is Sharpness.EXCEEDED for proof in proofs)
        assert exceeded != theorem.holds
    if theorem.worst and own(theorem):
        proof = prove(theorem)
        assert all(proof.constant(p) == theorem.worst(p) for p in range(max(proof.first, 3), LAST + 1))
    for p in range(2, 12) if own(theorem) else ():
        known = [one.at(p) for one in own(theorem) if p in one.over and p >= one.first]
        assert list(theorem.families(p)) == known


# -- what is refused, and what is not read ------------------------------------------------------------------
NUMBERS = mine(add, relative_error(1, sum_of("a", "b"), unit=1))
A, B, TINY = Word("a"), Word("b"), Fraction(1, 2**70)


def supposing(said):
    return replace(NUMBERS, where=[hypothesis(said)])


NOT_PROVED = [
    (lambda: prove(NUMBERS, family(a=1, c=u)), "takes operands"),
    (lambda: prove(NUMBERS, family(a=(1, u), b=u)), "takes operands"),
    (lambda: prove(NUMBERS, family(a=1 + u, b=1)), "a = 1 [+] u is no value"),
    (lambda: prove(NUMBERS, family(a=1 + 2 * u, b=-1 - 2 * u)), "is zero for every large p"),
    (lambda: prove(NUMBERS, family(a=1, b=u), "stochastic"), "stochastic"),
    (lambda: prove(NUMBERS, family(a=1, b=u), "upwards"), "upwards"),
    (lambda: prove(THEOREMS["dw_times_fp3"], family(x=(1, u + 2 * u**2), y=1)), "no double word"),
    (lambda: prove(THEOREMS["grow_relaxed"], family(x=(1, u + 2 * u**2), a=1)), "is a relaxed pair"),
    (lambda: prove(THEOREMS["grow"], family(x=(1, 0), a=4)), "a hypothesis fails"),
    (lambda: prove(supposing(abs(B) >= TINY), family(a=1, b=-u)), "fails for large p: [|]b[|] >= 1"),
    (lambda: prove(supposing((B >= TINY) | (2**30 * B <= TINY)), family(a=1, b=u)), "p = 60 and 100: "),
    (lambda: prove(THEOREMS["sqrt_dw"], family(x=(2, 0))), "no rational root"),
    (lambda: prove(THEOREMS["sqrt_dw"], family(x=(-1, 0))), "negative"),
    (lambda: prove(THEOREMS["dw_div_fp3"], family(x=(1, 0), y=3)), "not dyadic"),
    (lambda: prove(THEOREMS["dw_div_fp3"], family(x=(1, 0), y=0)), "zero"),
    (lambda: prove(THEOREMS["dw_times_fp3"], family(x=(1 + 2 * u, u), y=1)), "no double word"),  # a tie
    (lambda: prove(THEOREMS["two_sum"]), "no family of operands"),
]


@pytest.mark.parametrize(("call", "problem"), NOT_PROVED, ids=range(17))
def test_refusals(call, problem):
    with pytest.raises((ValueError, ZeroDivisionError), match=problem):
        call()


def test_a_predicate_is_said_not_to_be_read_and_measures_nothing():
    """Neither a claim nor a hypothesis, whose words may promise anything."""
    said = claim("it is so", lambda t: t.results[0] > 0)
    where = (hypothesis("a is odd", lambda t: t["a"] == t["a"]), ordered("a", "b"))
    adds = replace(NUMBERS, claim=said, where=where)
    proof = prove(adds, family(a=1, b=3 * u))
    assert (proof.results, proof.error, proof.sharpness) == ((1 + 4 * u,), None, Sharpness.OPEN)
    assert proof.unread == ("a is odd", "it is so")
    assert "not read: 'it is so' is a predicate on arrays" in str(proof)
    assert recheck(EveryCertificate.of(proof), adds) == []
    with pytest.raises(ValueError, match="measures no error"):
        proof.constant(8)
    assert not prove(THEOREMS["dw_plus_fp"]).unread


#: Of 1 and u: what is true for every large p, false, and not decided.
DECIDED = {
    True: [
        *(ordered("a", "b").said, exponents_ordered("a", "b").said, same_sign("a", "b").said),
        *(equal(A + A, 2 * A), Iff(B < 0, A < B), ~(A <= B), RESULTS_FINITE.said, Ulp(B) < abs(B - A)),
        *(abs(B) < A, IsMultiple(A, Ulp(B))),
    ],
    False: [A < A, Exponent(A) < Exponent(B), equal(A, B), Exponent(A) <= Exponent(A - A), B * A > A],
    None: [A <= LARGEST, Exponent(A) < EMIN, equal(A, Fraction(1, 3)), IsMultiple(B, Ulp(A)), Ulp(A - A) < A],
}


@pytest.mark.parametrize("right", DECIDED)
def test_hypotheses_are_decided_for_every_large_p(right):
    run = prove(NUMBERS, family(a=1, b=u))
    for said in DECIDED[right]:
        try:
            found = Decided(run).holds(said)
        except ValueError:
            found = None
        assert found is right, said
        for p in (LAST, 2 * LAST, 9 * LAST) if right is not None else ():
            wide = Format("", precision=p, emin=-20 * p, emax=20 * p)
            case = Case(wide, Rounding(), {"a": [Fraction(1)], "b": [Fraction(1, 2**p)]}, [(1, [1])])
            assert case.holds(said) is right


def test_a_hypothesis_that_is_not_decided_is_said_to_be_asked_up_to_60_alone():
    proof = prove(supposing(A <= LARGEST), family(a=1, b=u))
    assert proof.undecided == ("a <= max",)
    assert "supposed, and asked up to p = 60 alone: a <= max" in str(proof)


def test_nothing_is_exceeded_in_a_mode_for_which_nothing_is_stated():
    proof = prove(NUMBERS, family(a=1, b=u**2), "up")
    assert (proof.limit, proof.sharpness) == (2, Sharpness.OPEN)
    assert "limit: 2, bound: 1, open; nothing is stated for up" in str(proof)


CHOICES = [lambda ar, a, b: ar.add(a, a if a == b else b), lambda ar, a, b: ar.neg(a) if a == b else a]


@pytest.mark.parametrize("text", CHOICES, ids=["sum or twice", "negated or not"])
def test_what_is_equal_at_one_precision_is_not_compared(text):
    """The number 1 + 2^-69 is 1 + 2 u at p = 70 alone, a value from there on."""
    with pytest.raises(TypeError, match="SymbolicValue stands for a number that is not known"):
        prove(replace(NUMBERS, algorithm=text), family(a=1 + 2 * u, b=1 + Fraction(1, 2**69)))


# -- statements at random, and by hand ----------------------------------------------------------------------
NAMES = ("a", "b", "c")
#: From which limits are told apart, and closer than which they are reached, coefficients being small.
FAR, NEAR = Fraction(2) ** 20, Fraction(1, 2**20)


def adding(steps, results, about):
    """Return a statement on three numbers: sums of two, or negated ones, and which of all are its results."""

    def text(ar, *given):
        values = list(given)
        for operation, *places in steps:
            values.append(getattr(ar, operation)(*(values[i] for i in places)))
        return tuple(values[i] for i in results)

    operands = [value(name) for name in NAMES]
    return Theorem("added", text, operands, about, range="unbounded", modes=DETERMINISTIC)


def statement_at_random(draw):
    """Return a statement, its family, and what it measures: names of operands, bound and power of u."""
    steps, count = [], 3
    for _ in range(draw.choice((0, 0, 1, 2, 3))):
        places = [draw.randrange(count), draw.randrange(count)]
        operation = draw.choice(("add", "sub", "neg"))
        steps.append((operation, *places[: 1 if operation == "neg" else 2]))
        count += 1
    results = draw.sample(range(count), draw.choice((1, 2, 2, 3)))
    summed = draw.sample(NAMES, draw.choice((1, 2, 3)))
    other = draw.sample(NAMES, draw.choice((1, 2))) if draw.random() < 0.4 else summed
    share, pole = Fraction(draw.randrange(0, 24), 4), 1 - draw.randrange(1, 9) * u
    bounds = ((share, 1), (share + draw.randrange(-9, 9) * u, 1), (share, pole), (share - 4 * u, pole))
    bound, power = Quotient.of(*draw.choice(bounds)), draw.choice((1, 1, 2))
    target = sum_of(*summed)
    about = relative_error(bound, target, unit=power)
    if other is not summed:
        about = error_relative_to(bound, target, sum_of(*other), unit=power)
    over = draw.choice((EVERY, EVERY, EVERY, EVEN, ODD))
    small, t = unit(over), root(over)

    def number():
        head = Polynomial.constant(draw.choice((1, 1, 1, 2, 3)), over)
        if over.step > 1 and draw.random() < 0.5:
            head += draw.randrange(-4, 5) * t
        head += draw.randrange(-4, 5) * 4 * small
        return draw.choice((1, -1)) * head * draw.choice((1, 1, small, 4 * small, 64 * small**2))

    measuring = (summed, other, bound, power)
    return adding(steps, results, about), family(**{name: number() for name in NAMES}), measuring


def check(mode, theorem, one, measuring):
    """Prove a statement and compare; return the proof, or None if there is none."""
    try:
        proof = prove(theorem, one, mode)
    except UndecidedError:
        return None
    summed, other, bound, power = measuring
    beyond = False
    for p in (p for p in range(proof.first, LAST + 1) if p in one.over):
        case = dict(zip(NAMES, one.at(p), strict=True))
        found = theorem.algorithm(FractionArithmetic(p, Rounding(mode)), *case.values())
        assert list(found) == [result.at(p) for result in proof.results]
        wrong = abs(sum(found) - sum(case[name] for name in summed))
        share = abs(sum(case[name] for name in other)) / 2 ** (power * p)
        assert wrong == proof.in_unit.at(p) * share, p
        pole = bound.denominator.at(p) <= 0
        beyond |= not pole and wrong > bound.at(p) * share
    assert (proof.sharpness is Sharpness.EXCEEDED) == beyond
    last = proof.family.over.precision(proof.family.over.index(p if p in one.over else p - 1))
    if proof.limit is None:
        assert proof.in_unit.at(last) > FAR
    else:
        assert abs(proof.in_unit.at(last) - proof.limit) < NEAR
        reached = abs(proof.in_unit.at(last) - bound.at(last)) < NEAR
        assert beyond or (proof.sharpness is Sharpness.SHARP) == reached
    return proof


@pytest.mark.parametrize("count", [12, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_statements_at_random(count):
    draw, proofs = random.Random(1), []
    while len(proofs) < count:
        statement = statement_at_random(draw)
        proof = check(draw.choice(DETERMINISTIC), *statement)
        if proof is not None:
            proofs.append(proof)
            if len(proofs) % 5 == 0:
                assert recheck(EveryCertificate.of(proof), statement[0]) == []
    assert sum("another sign" in proof.below for proof in proofs) > count // 100
    assert count // 10 < sum(proof.sharpness is Sharpness.EXCEEDED for proof in proofs) < count
    assert sum(not proof.error.numerator for proof in proofs) > count // 100


SIGN = "has another sign than for large p"
LEAST = "formats have no smaller such precision"
GAP, SHARP = Sharpness.GAP, Sharpness.SHARP
#: Families: 4 u - 64 u^2 is negative at p = 2 and 3, where its magnitude is another one; 1 - 6 u at p = 2.
SMALL, CHANGING = {"a": 1, "b": 1 + 4 * u, "c": -64 * u**2}, {"a": 1, "b": -8 * u, "c": 2 * u}
LAST_BIT, TWICE = {"a": 1, "b": u, "c": 0}, {"a": 1, "b": 1, "c": 0}
#: From the pole of a bound down nothing is exceeded.
POLE, NO_POLE = Quotient.of(2, 1 - 8 * u), Quotient.of(2 - 16 * u, 1 - 8 * u)
SIGNED = f"at p = 3 the error -1/2 {SIGN}"
RELATIVE = f"at p = 2 what the error is relative to, -1/2, {SIGN}"
#: A bound, sums of which and to which the error is, the results, and a family; and what is found.
BY_HAND = {
    "the error has its sign": (5, "a", "a", "bc", SMALL, "4 - 64 u", 4, 4, GAP, SIGNED),
    "no error, a bound": (1, "a", "abc", "a", CHANGING, "0", 2, 0, GAP, LEAST),
    "no error, no bound": (0, "a", "abc", "a", CHANGING, "0", 2, 0, SHARP, LEAST),
    "another sign below": (16, "a", "abc", "ac", CHANGING, "2 / (1 - 6 u)", 3, 2, GAP, RELATIVE),
    "a pole": (POLE, "ab", "ab", "a", LAST_BIT, "1 / (1 + u)", 2, 1, GAP, LEAST),
    "a pole that is none": (NO_POLE, "ab", "ab", "a", LAST_BIT, "1 / (1 + u)", 2, 1, GAP, LEAST),
    "a bound that grows": (Quotient.of(2, u), "ab", "a", "a", TWICE, "1 / u", 2, None, GAP, LEAST),
}

EXCEEDED, REACHED = Sharpness.EXCEEDED, (4 - 64 * u, 5 - 96 * u, 4)
STRICT = [*zip(REACHED, 3 * [True], (EXCEEDED, EXCEEDED, SHARP), strict=True)]
STRICT += zip(REACHED, 3 * [False], (SHARP, GAP, SHARP), strict=True)


@pytest.mark.parametrize("what", BY_HAND)
def test_where_a_statement_begins_and_how_sharp_it_is(what):
    bound, target, reference, results, given, *found = BY_HAND[what]
    about = error_relative_to(bound, sum_of(*target), sum_of(*reference))
    theorem = adding((), [NAMES.index(name) for name in results], about)
    proof = prove(theorem, family(**given))
    assert [str(proof.in_unit), proof.first, proof.limit, proof.sharpness, proof.below] == found
    assert recheck(EveryCertificate.of(proof), theorem) == []


@pytest.mark.parametrize(("bound", "strict", "found"), STRICT)
def test_a_strict_bound_is_exceeded_where_it_is_reached(bound, strict, found):
    """The error is the first bound at every p, the second at p = 5 alone, and tends to the third."""
    said = error_relative_to(bound, sum_of("a"), sum_of("a")).said
    about = claim(replace(said, bound=replace(said.bound, strict=strict)))
    theorem = replace(adding((), [1, 2], about), precision=5)
    assert prove(theorem, family(**SMALL)).sharpness is found
