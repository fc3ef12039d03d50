"""Texts that branch are proved of nothing: not of families at every precision, nor by the solver."""

import random
from fractions import Fraction
from functools import partial

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


def of_family(text, draw):
    """Return the proof of a text of a family of two numbers at random."""

    def number():
        return draw.choice((1, -1, 2, 3)) + draw.randrange(-3, 4) * 4 * u

    one = family(a=number(), b=draw.choice((1, u)) * number())
    return partial(prove_family, Theorem("branches", text, PAIR, WITHIN), one)


def of_unknowns(text, draw=None):
    """Return the proof of a text by the solver."""
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    from mcfsim.theorems.solver import Question, prove

    return partial(prove, Question("branches", text, PAIR, (), exactly(sum_of("a", "b")).said, 2), seconds=60)


def test_a_sum_that_is_exact_for_equal_numbers_alone_is_not_proved():
    proved = of_unknowns(sum_or_twice)
    with pytest.raises(TypeError, match="Number stands for a number that is not known"):
        proved()


@pytest.mark.parametrize("decision", [*DECISIONS, 50, pytest.param(600, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("proof", [of_family, of_unknowns])
def test_no_decision_is_proved(proof, decision):
    """One of each way to decide, and texts at random."""
    at_random = isinstance(decision, int)
    draw = random.Random(1)
    for _ in range(decision if at_random else 1):
        proved = proof(branching(draw, 2, decision=None if at_random else decision), draw)
        with pytest.raises((TypeError, AttributeError)):
            proved()
