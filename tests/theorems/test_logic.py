"""Propositions by themselves: what they refuse, what they say of extremes, and false ones not believed."""

import random
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.backends.factory import on_blocks
from mcfsim.formats import FORMATS
from mcfsim.rounding import Rounding
from mcfsim.symbolic import Quotient, u
from mcfsim.theorems import Theorem, claim, double_word, exactly, hypothesis, relative_error, value, verify
from mcfsim.theorems.claims import bounded, root_error, same_results, sum_of
from mcfsim.theorems.logic import (
    AllOf,
    AnyOf,
    Bound,
    Exponent,
    Finite,
    Iff,
    InFormat,
    IsValue,
    LowBit,
    Mean,
    OfFormat,
    Operand,
    Predicate,
    Result,
    Results,
    Rounded,
    Same,
    Step,
    Ulp,
    UnreadableError,
    Within,
    Word,
    equal,
    written,
)
from mcfsim.theorems.logic.on_numbers import Case
from mcfsim.theorems.operands import unbounded
from mcfsim.theorems.solver import Found, Question, prove, readable
from mcfsim.theorems.statement import Claim, Hypothesis
from mcfsim.theorems.trial import Trial
from tests.theorems.reading import by_arrays, by_fractions, trial_of

A, B = Word("a"), Word("b")
PAIR = (value("a"), value("b"))
FMT = unbounded(4)


def statement(said, algorithm=lambda ar, a, b: ar.add(a, b), **facts):
    return Theorem("own", algorithm, facts.pop("operands", PAIR), claim(said), **facts)


def both(said, operands, results, fmt=FMT, rounding=None):
    """Return what arrays and fractions say of single cases, which must agree."""
    theorem, rounding = statement(said), rounding or Rounding()
    blocks = [np.array(column, np.float32) for column in zip(*operands, strict=True)]
    made = tuple(np.array(column, np.float32) for column in zip(*results, strict=True))
    trial = Trial(on_blocks(fmt, rounding), ("a", "b"), tuple(blocks), made)
    found = by_arrays(said, trial).tolist()
    assert by_fractions(theorem, said, trial).tolist() == found
    return found


# -- what is none -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("said", [True, None, 1.0, A, "a = b", [A <= B], len, np.ones(2, bool)], ids=repr)
def test_what_is_no_proposition_is_no_claim(said):
    for make in (Claim, Hypothesis):
        with pytest.raises(TypeError, match="is a Proposition, not"):
            make(said)
    for make in (claim, hypothesis):
        with pytest.raises(TypeError, match="a proposition, or words and a test"):
            make(said)


def test_propositions_and_terms_are_not_asked_for_truth():
    for asked in (
        lambda: A <= B <= A,
        lambda: not equal(A, B),
        lambda: (A <= B) and (B <= A),
        lambda: (A <= B) or (B <= A),
        lambda: bool(A),
        lambda: max(A, B),
        lambda: min(A, B),
        lambda: sorted([A, B]),
        lambda: 1 if A < B else 0,
    ):
        with pytest.raises(TypeError, match=r"true or false of a case|has no truth value"):
            asked()
    for asked in (
        lambda: A + 0.5,
        lambda: A <= 1.0,
        lambda: A * True,
        lambda: A - "b",
        lambda: float(A),
        lambda: abs(None) <= A,
    ):
        with pytest.raises(TypeError):
            asked()


@pytest.mark.parametrize("found", [1, np.True_, None, "yes", 1.0], ids=repr)
def test_what_depends_on_the_format_is_true_or_false(found):
    for said in (
        InFormat("so", lambda fmt, rounding: found),
        AnyOf((InFormat("so", lambda fmt, rounding: found), A <= B)),
    ):
        with pytest.raises((TypeError, ValueError), match="'so' must be True or False of a format"):
            verify(statement(said), "float8_e5m2")


@pytest.mark.parametrize("found", [0.5, np.float64(2), None, "1", True], ids=repr)
def test_numbers_of_a_format_are_exact(found):
    with pytest.raises(ValueError, match="'c' must be an int or a Fraction"):
        verify(statement(abs(A) <= OfFormat("c", lambda fmt, rounding: found)), "float8_e5m2")


@pytest.mark.parametrize(
    "said",
    [
        equal(Word("c"), A),
        equal(Word("a", 1), A),
        equal(Result(1), A),
        equal(Operand("x"), A),
        IsValue(LowBit(A + B)),
        Step(A, B + A) <= A,
        Rounded(A + B, B) <= A,
    ],
    ids=written,
)
def test_what_is_not_there_is_refused(said):
    with pytest.raises(ValueError, match=r"^'own': the claim"):
        verify(statement(said), "float8_e5m2")


def test_parts_of_propositions_are_truth_values_of_every_case():
    for strange in (
        lambda t: True,
        lambda t: None,
        lambda t: np.ma.array(t["a"] <= t["a"], mask=True),
        lambda t: t["a"],
    ):
        for said in (
            AllOf((A <= A, Predicate("so", strange))),
            AnyOf((Predicate("so", strange),)),
            ~Predicate("so", strange),
        ):
            with pytest.raises(ValueError, match="a test must return a block of 2 truth values"):
                verify(statement(said), "float8_e5m2")
    odd = statement(same_results().said)
    with pytest.raises(ValueError, match=r"the claim .* raised ValueError"):
        verify(odd, "float8_e5m2")


# -- extremes -----------------------------------------------------------------------------------------------
def test_what_is_said_of_a_result_that_is_not_finite_is_false():
    inf, nan = float("inf"), float("nan")
    cases, made = 3 * [(1.0, 1.0)], [(inf, 1.0), (nan, 1.0), (1.0, inf)]
    r, s = Result(0), Result(1)
    assert both(r >= A, cases, made) == [False, False, True]
    assert both(~(r >= A), cases, made) == [True, True, False]
    assert both(equal(r, s), cases, made) == [False] * 3
    assert both(equal(Results(), A), cases, made) == [False] * 3
    assert both(IsValue(r), cases, made) == [False, False, True]
    assert both(Finite(r), cases, made) == [False, False, True]
    assert both(Finite(), cases, made) == [False] * 3
    assert (
        both(Same(), [*cases, (1.0, 1.0), (1.0, 1.0)], [*made, (inf, inf), (nan, nan)])
        == [False] * 3 + [True] * 2
    )
    assert both(AllOf(()), cases, made) == both(~AnyOf(()), cases, made) == [True] * 3
    within = Within(r - A, A, Bound(10**6))
    assert both(within, cases, made) == [False] * 3


def test_errors_relative_to_zero():
    cases, made = [(0.0, 1.0)] * 3, [(0.0,), (1.0,), (-1.0,)]
    for strict, of_zero in ((False, True), (True, False)):
        said = Within(Result(0) - A, A, Bound(2, strict=strict))
        assert both(said, cases, made) == [of_zero, False, False]
    assert both(Within(Result(0) - B, B, Bound(1, strict=True)), cases, made) == [False, True, False]
    assert both(Within(Result(0) - B, B, Bound(1)), cases, made) == [True, True, False]


@pytest.mark.parametrize("seed", range(4))
def test_bounds_at_random(seed):
    """Of any kind: strict, of squares, in units of u, at what they bound and beside it."""
    draw = random.Random(seed)
    for _ in range(60):
        constant = Fraction(draw.randrange(0, 40), draw.choice((1, 2, 4, 8, 16)))
        bound = Bound(
            constant, draw.choice((0, 1, 2)), squared=draw.random() < 0.5, strict=draw.random() < 0.5
        )
        cases = [(draw.randrange(-15, 16), draw.randrange(1, 16)) for _ in range(30)]
        made = [(draw.choice((draw.randrange(-15, 16), x, y)),) for x, y in cases]
        error = Result(0) * Result(0) - B if bound.squared else Result(0) - A
        said = Within(error, B, bound)
        found = both(said, cases, made)
        share = constant / 16**bound.unit
        for (a, b), (r,), held in zip(cases, made, found, strict=True):
            if not bound.squared:
                right = abs(r - a) < share * b if bound.strict else abs(r - a) <= share * b
            else:  # |r| is from (1 - share) sqrt(b) to (1 + share) sqrt(b)
                low, high = max(1 - share, 0) ** 2 * b, (1 + share) ** 2 * b
                right = low <= r * r <= high
                if bound.strict and r * r in (low, high):
                    continue
            assert held == right, (bound, a, b, r)


def test_bounds_that_are_none_are_refused():
    for constant in (-1, Fraction(-1, 2), 1 - 64 * u, lambda p: -1):
        with pytest.raises(ValueError, match=r"the bound .* is negative at p = 3"):
            verify(statement(relative_error(constant, sum_of("a", "b")).said), "float8_e5m2")
    with pytest.raises(ValueError, match=r"raised|Invalid|nan"):
        verify(statement(relative_error(lambda p: float("nan"), sum_of("a", "b")).said), "float8_e5m2")


def test_a_root_with_the_wrong_sign_is_none():
    wrong = Theorem(
        "own",
        lambda ar, a: ar.neg(ar.sqrt(a)),
        (value("a"),),
        root_error(4, Operand("a")),
        (hypothesis(A > 0),),
    )
    certificate = verify(wrong, "float8_e5m2")
    assert certificate.violations == certificate.applicable > 0


# -- what the solver is told --------------------------------------------------------------------------------
def asked(said, where=(), algorithm=lambda ar, a, b: (ar.add(a, b), a), **facts):
    return Question("asked", algorithm, PAIR, tuple(where), said, 2, **facts)


@pytest.mark.parametrize(
    "constant",
    [-1, 1 - 8 * u, Quotient.of(3, 1 - 4 * u), Quotient.of(1, 8 * u - 1), 8 * u - 1, len],
    ids=str,
)
def test_bounds_that_are_none_at_some_precision_are_not_read(constant):
    """|n(u)| would be read as a bound where n(u) is negative: 1 - 8 u at p = 2."""
    with pytest.raises(UnreadableError):
        asked(bounded(Result(0) - A, A, constant, unit=0).said).posed()


@pytest.mark.parametrize(
    "said",
    [
        Finite(),
        Finite(Result(0)),
        IsValue(A + B - Result(0)),
        equal(A * B, Result(0)),
        equal(Result(7), A),
        equal(Word("a", 3), A),
        abs(abs(A) - abs(B)) <= abs(A),
        Predicate("so", lambda t: t.finite),
        equal(Ulp(A + B), A),
        equal(Exponent(A), 3),
    ],
    ids=written,
)
def test_what_is_not_linear_is_not_read(said):
    with pytest.raises(UnreadableError):
        asked(said).posed()


def test_what_claims_of_the_range_is_not_read():
    from mcfsim.theorems.logic import LARGEST, NoOverflow

    for said in (abs(Result(0)) <= LARGEST, ~equal(abs(A), LARGEST), NoOverflow()):
        with pytest.raises(UnreadableError):
            asked(said).posed()
    assert not readable(
        Theorem("own", lambda ar, a, b: ar.add(a, b), PAIR, exactly(sum_of("a", "b")), modes=["up"])
    )


@pytest.mark.slow
def test_logic_is_read_as_it_is_meant():
    """Of operands alone, so that each has a proof or a model at once."""
    true, false = A <= A, A < A
    for said, holds in (
        (Iff(A <= B, ~(B < A)), True),
        (Iff(A <= B, B < A), False),
        (AnyOf((A <= B, B <= A)), True),
        (AllOf((A <= B, B <= A)), False),
        (AnyOf(()), False),
        (AllOf(()), True),
        (~AnyOf((true, false)), False),
        (abs(A + B) <= abs(A) + abs(B), True),
        (abs(A) - abs(B) <= abs(A + B), True),
        (abs(A) + abs(B) <= abs(A + B), False),
        (2 * abs(A) <= abs(A) + abs(A), True),
        (abs(A - B) < abs(A) + abs(B), False),
    ):
        found = prove(asked(said), seconds=60).found
        assert (found is Found.PROVED) == holds, written(said)


# -- case by case -------------------------------------------------------------------------------------------
def test_words_of_pairs_are_read_as_such():
    said = AllOf((equal(Operand("x"), Word("x") + Word("x", 1)), abs(Word("x", 1)) <= abs(Word("x"))))
    theorem = Theorem("own", lambda ar, x: x[0], (double_word("x"),), claim(said), range="bounded")
    assert verify(theorem, "float6_e3m2fn").verdict == "verified"
    assert theorem.statement == "x = xh + xl, |xl| <= |xh|"
    case = Case(FMT, Rounding(), {"x": [Fraction(8), Fraction(1, 2)]}, [(Fraction(1), [Fraction(8)])])
    assert case.holds(said)


def test_constants_are_compared_with_one_another_and_with_any_fraction():
    cases, made = [(1.0, 1.0), (3.0, 2.0)], [(3.0,), (1.5,)]
    one, third = OfFormat("one", lambda fmt, _: 1), Fraction(1, 3)
    assert both(equal(one, 1), cases, made) == [True, True]
    assert both(one < third * one, cases, made) == [False, False]
    assert both(third * one <= one, cases, made) == [True, True]
    assert both(equal(A + B - Result(0), Fraction(-1, 3)), cases, made) == [False, False]
    assert both(A + B - Result(0) <= Fraction(10, 3), cases, made) == [True, False]
    assert both(equal(A + A, Result(0) * 2 + Fraction(-4)), cases, made) == [True, False]


def test_expectations_are_those_of_all_paths_wherever_they_are_asked():
    """Among alternatives, too, a part of which is asked of few cases alone."""
    unbiased = equal(Mean(Results()), Operand("a") + Operand("b"))
    alternatives = AnyOf((AllOf((A < B, unbiased)), AllOf((B <= A, ~unbiased))))
    theorem = Theorem("own", lambda ar, a, b: ar.add(a, b), PAIR, claim(alternatives), modes=["stochastic"])
    draw, fmt, rounding = random.Random(5), FORMATS["float6_e3m2fn"], Rounding("stochastic", random_bits=2)
    trial = trial_of(theorem, fmt, rounding, draw, 200)
    found = by_arrays(theorem.claim.said, trial)
    assert 0 < np.count_nonzero(found) < found.size
    assert found.tolist() == by_fractions(theorem, theorem.claim.said, trial).tolist()
