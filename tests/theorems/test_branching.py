"""Texts that branch are proved of nothing: not of families at every precision, nor by the solver."""

import random
from fractions import Fraction

import pytest

from mcfsim.eft import two_sum
from mcfsim.symbolic import SymbolicArithmetic, family, u
from mcfsim.theorems import Theorem, relative_error, value
from mcfsim.theorems.claims import exactly, sum_of
from mcfsim.theorems.every_p import prove as prove_family
from tests.shared.branching import DECISIONS, branching

PAIR = (value("a"), value("b"))
WITHIN = relative_error(5, sum_of("a", "b"), unit=1)


def sum_or_twice(ar, a, b):
    return (ar.add(a, a), a) if a == b else two_sum(ar, a, b)


def negated_or_not(ar, a, b):
    return ar.neg(a) if a == b else a


#: 1 + 2^-69 is 1 + 2 u at p = 70 alone, a value from there on.
EQUAL_ONCE = family(a=1 + 2 * u, b=1 + Fraction(1, 2**69))


@pytest.mark.parametrize("text", [sum_or_twice, negated_or_not])
def test_what_is_equal_at_one_precision_is_not_compared(text):
    with pytest.raises(TypeError, match="SymbolicValue stands for a number that is not known"):
        prove_family(Theorem("compared", text, PAIR, WITHIN), EQUAL_ONCE)
    ar, (a, b) = SymbolicArithmetic(), EQUAL_ONCE.structured()
    with pytest.raises(TypeError, match="is not compared"):
        ar.run(text, a, b)
    with pytest.raises(TypeError, match="has not entered"):
        sum_or_twice(ar, a, b)


def family_at_random(draw):
    def number():
        return draw.choice((1, -1, 2, 3)) + draw.randrange(-3, 4) * 4 * u

    return family(a=number(), b=draw.choice((1, u)) * number())


def check_families(seed, count):
    draw = random.Random(seed)
    for _ in range(count):
        text = branching(draw, 2)
        with pytest.raises((TypeError, AttributeError)):
            prove_family(Theorem("branches", text, PAIR, WITHIN), family_at_random(draw))


@pytest.mark.parametrize("decision", DECISIONS)
def test_no_decision_is_proved_of_a_family(decision):
    draw = random.Random(1)
    text = branching(draw, 2, decision=decision)
    with pytest.raises((TypeError, AttributeError)):
        prove_family(Theorem("branches", text, PAIR, WITHIN), family_at_random(draw))


def test_texts_at_random_that_branch_are_not_proved_of_a_family():
    check_families(2, 60)


@pytest.mark.exhaustive
def test_two_thousand_texts_that_branch_are_not_proved_of_a_family():
    check_families(3, 2000)


# -- by the solver ------------------------------------------------------------------------------------------
def question(text):
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    from mcfsim.theorems.solver import Question

    return Question("branches", text, PAIR, (), exactly(sum_of("a", "b")).said, 2)


def prove(text):
    from mcfsim.theorems.solver import prove

    return prove(question(text), seconds=60)


def test_a_sum_that_is_exact_for_equal_numbers_alone_is_not_proved():
    question(sum_or_twice)
    with pytest.raises(TypeError, match="Number stands for a number that is not known"):
        prove(sum_or_twice)


def check_unknowns(seed, count):
    draw = random.Random(seed)
    for _ in range(count):
        text = branching(draw, 2)
        question(text)
        with pytest.raises((TypeError, AttributeError)):
            prove(text)


@pytest.mark.parametrize("decision", DECISIONS)
def test_no_decision_is_proved_of_unknowns(decision):
    text = branching(random.Random(4), 2, decision=decision)
    question(text)
    with pytest.raises((TypeError, AttributeError)):
        prove(text)


def test_texts_at_random_that_branch_are_not_proved_of_unknowns():
    check_unknowns(5, 60)


@pytest.mark.exhaustive
def test_two_thousand_texts_that_branch_are_not_proved_of_unknowns():
    check_unknowns(6, 2000)
