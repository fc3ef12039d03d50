"""Propositions by themselves: what they refuse, what they say of extremes, and false ones not believed."""

import random
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.backends.factory import on_blocks
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.rounding import Rounding, Underflow
from mcfsim.theorems import claim, exactly, hypothesis, relative_error, verify
from mcfsim.theorems import logic as lg
from mcfsim.theorems.claims import bounded, root_error, same_results, sum_of
from mcfsim.theorems.logic.terms import as_term
from mcfsim.theorems.operands import finite_values, unbounded
from mcfsim.theorems.solver import Found, Question, prove, readable
from mcfsim.theorems.statement import Claim, Hypothesis
from mcfsim.theorems.symbolic import Quotient, u
from mcfsim.theorems.trial import Trial
from tests.theorems.reading import by_arrays, by_fractions, trial_of
from tests.theorems.trying import PAIR, add, mine

A, B = lg.Word("a"), lg.Word("b")
FMT = unbounded(4)


def both(said, operands, results, fmt=FMT, rounding=None):
    """Return what arrays and fractions say of single cases, which must agree."""
    theorem = mine(add, claim(said))
    ar = on_blocks(fmt, rounding or Rounding())
    blocks = [np.array(column, ar.carrier) for column in zip(*operands, strict=True)]
    made = tuple(np.array(column, ar.carrier) for column in zip(*results, strict=True))
    trial = Trial(ar, ("a", "b"), tuple(blocks), made)
    found = by_arrays(said, trial).tolist()
    assert by_fractions(theorem, said, trial).tolist() == found
    return found


# -- what is none -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("said", [True, None, A, "a = b", [A <= B], len, np.ones(2, bool)], ids=repr)
def test_what_is_no_proposition_is_no_claim(said):
    for make in (Claim, Hypothesis, claim, hypothesis):
        words = "be a Proposition, not" if isinstance(make, type) else "a proposition, or words and a test"
        with pytest.raises(TypeError, match=words):
            make(said)


NO_TRUTH = "true or false of a case|has no truth value"
TRUTHS = [lambda: A <= B <= A, lambda: not lg.equal(A, B), lambda: (A <= B) or (B <= A), lambda: bool(A)]
TRUTHS += [lambda: max(A, B)]
MIXED = [lambda: A + 0.5, lambda: A <= 1.0, lambda: A * True, lambda: A - "b", lambda: float(A)]
MIXED += [lambda: abs(None) <= A]
ASKED = [*((asked, NO_TRUTH) for asked in TRUTHS), *((asked, None) for asked in MIXED)]


@pytest.mark.parametrize(("asked", "words"), ASKED, ids=range(11))
def test_propositions_and_terms_are_not_asked_for_truth_nor_mixed_with_floats(asked, words):
    with pytest.raises(TypeError, match=words):
        asked()


def of_format(found):
    return lg.InFormat("so", lambda fmt, rounding: found)


def of_number(found):
    return abs(A) <= lg.OfFormat("c", lambda fmt, rounding: found)


def of_bound(constant):
    return relative_error(constant, sum_of("a", "b")).said


#: What no case has, and what is no truth value of every case.
ABSENT = [
    *(lg.equal(lg.Word("c"), A), lg.equal(lg.Word("a", 1), A), lg.equal(lg.Result(1), A)),
    *(lg.equal(lg.Operand("x"), A), lg.IsValue(lg.LowBit(A + B)), lg.UlpTowards(A, B + A) <= A),
    lg.Rounded(A + B, B) <= A,
    lg.IsMultiple(A, lg.OfFormat("3", lambda fmt, _: 3)),
    lg.IsMultiple(A, lg.Ulp(B) * lg.OfFormat("1/3", lambda fmt, _: Fraction(1, 3))),
]
NEGATIVE = (-1, Fraction(-1, 2), 1 - 64 * u, lambda p: -1)
BLOCK = "a test must return a block of 2 truth values"
NO_TRUTHS = [lambda t: True, lambda t: np.ma.array(t["a"] <= t["a"], mask=True), lambda t: t["a"]]
PARTS = [lambda x: lg.AllOf((A <= A, x)), lambda x: lg.AnyOf((x,)), lambda x: ~x]
#: Of no case of float8_e5m2: what is said, and why.
NOTHING = [
    *((of_format(found), "'so' must be") for found in (1, np.True_, None, "yes")),
    *((lg.AnyOf((of_format(found), A <= B)), "'so' must be") for found in (1, np.True_, None)),
    *((of_number(x), "'c' must be an int or a Fraction") for x in (0.5, np.float64(2), None, True)),
    *((said, "^'mine': the claim") for said in ABSENT),
    *((of_bound(c), "the bound .* is negative at p = 3") for c in NEGATIVE),
    (of_bound(lambda p: float("nan")), "raised|Invalid|nan"),
    (same_results().said, "the claim .* raised ValueError"),
    *((part(lg.Predicate("so", test)), BLOCK) for test in NO_TRUTHS for part in PARTS),
]


@pytest.mark.parametrize(("said", "problem"), NOTHING, ids=range(len(NOTHING)))
def test_what_says_nothing_of_a_case_is_refused(said, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        verify(mine(add, claim(said)), "float8_e5m2")


# -- extremes -----------------------------------------------------------------------------------------------
def test_what_is_said_of_a_result_that_is_not_finite_is_false():
    inf, nan = float("inf"), float("nan")
    cases, made = 3 * [(1.0, 1.0)], [(inf, 1.0), (nan, 1.0), (1.0, inf)]
    r, s = lg.Result(0), lg.Result(1)
    for said, expected in (
        (r >= A, [False, False, True]),
        (~(r >= A), [True, True, False]),
        (lg.equal(r, s), [False] * 3),
        (lg.equal(lg.Results(), A), [False] * 3),
        *((lg.equal(lg.Results(0, 1) - A, B - x), [False, False, True]) for x in (B, A, r)),
        (lg.IsValue(r), [False, False, True]),
        (lg.Finite(r), [False, False, True]),
        (lg.Finite(), [False] * 3),
        (lg.AllOf(()), [True] * 3),
        (~lg.AnyOf(()), [True] * 3),
        (lg.Within(r - A, A, lg.Bound(10**6)), [False] * 3),
        (lg.Same(), [False] * 3),
    ):
        assert both(said, cases, made) == expected, lg.written(said)
    assert both(lg.Same(), 2 * [(1.0, 1.0)], [(inf, inf), (nan, nan)]) == [True] * 2


def test_errors_relative_to_zero():
    cases, made = [(0.0, 1.0)] * 3, [(0.0,), (1.0,), (-1.0,)]
    for strict, of_zero in ((False, True), (True, False)):
        said = lg.Within(lg.Result(0) - A, A, lg.Bound(2, strict=strict))
        assert both(said, cases, made) == [of_zero, False, False]
    assert both(lg.Within(lg.Result(0) - B, B, lg.Bound(1, strict=True)), cases, made) == [False, True, False]
    assert both(lg.Within(lg.Result(0) - B, B, lg.Bound(1)), cases, made) == [True, True, False]


@pytest.mark.slow
def test_bounds_at_random():
    """Of any kind: strict, of squares, in units of u, at what they bound and beside it."""
    draw = random.Random(0)
    for _ in range(40):
        share = Fraction(draw.randrange(0, 40), draw.choice((1, 2, 4, 8, 16)))
        unit, squared, strict = draw.choice((0, 1, 2)), draw.random() < 0.5, draw.random() < 0.5
        bound = lg.Bound(share, unit, squared=squared, strict=strict)
        share /= 16**unit
        cases = [(draw.randrange(-15, 16), draw.randrange(1, 16)) for _ in range(30)]
        made = [(draw.choice((draw.randrange(-15, 16), x, y)),) for x, y in cases]
        error = lg.Result(0) * lg.Result(0) - B if squared else lg.Result(0) - A
        found = both(lg.Within(error, B, bound), cases, made)
        for (a, b), (r,), held in zip(cases, made, found, strict=True):
            if not squared:
                right = abs(r - a) < share * b if strict else abs(r - a) <= share * b
            else:  # |r| is from (1 - share) sqrt(b) to (1 + share) sqrt(b)
                low, high = max(1 - share, 0) ** 2 * b, (1 + share) ** 2 * b
                right = low <= r * r <= high
                if strict and r * r in (low, high):
                    continue
            assert held == right, (bound, a, b, r)


@pytest.mark.slow
def test_the_ulp_of_a_sum_that_cancels_is_that_of_zero():
    cases, made = [(1.0, -1.0), (1.5, -1.5), (1.0, 0.5)], [(2.0**-20,), (2.0**-129,), (1.5625,)]
    error, ulp = lg.Result(0) - (A + B), lg.Ulp(A + B)
    for said in (abs(error) <= ulp, lg.Within(error, ulp, lg.Bound(1))):
        assert both(said, cases, made) == [False, True, True]
    # What is lost beside every sum but zero.
    theorem = mine(
        lambda ar, a, b: ar.add(ar.add(a, b), ar.mul(a, 2.0**-30)),
        bounded(lg.Result(0) - (A + B), lg.Ulp(A + B), Fraction(1, 2)),
        where=[hypothesis((A > 1) & (A < 4) & (abs(B) < 4))],
    )
    assert not verify(theorem, Format("", precision=3, emin=-70, emax=70)).holds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["posit8", "int8", "float8_e5m2"])
def test_values_are_those_of_the_format_and_no_others_of_its_bits(name):
    r, fmt = lg.Result(0), get_format(name)
    exact = lg.IsValue(r) & (lg.equal(r, A + B) | ~lg.IsValue(A + B))
    finite = hypothesis(lg.NoOverflow() | lg.Finite())
    certificate = verify(mine(add, claim(exact), where=[finite]), fmt)
    assert certificate.verdict == "verified"
    values = finite_values(fmt).tolist()
    numbers = values[::5]
    cases = [(a, b) for a in numbers for b in numbers]
    made = [(b,) for _, b in cases]
    found = both(lg.IsValue(A + B), cases, made, fmt)
    assert found == both(lg.IsValue(A + B + r - r), cases, made, fmt)
    known = set(values)
    assert found == [a + b in known for a, b in cases]


def test_what_lies_far_below_the_last_bit_of_a_format_is_no_value():
    fmt, x = Format("", precision=4, emin=-40, emax=10), [2.0**-15, 2.0**-14, 2.0**-43]
    said = lg.IsValue(A * B * lg.Result(0))
    assert both(said, list(zip(x, x, strict=True)), list(zip(x, strict=True)), fmt) == [False, True, False]


def test_bits_of_subnormal_numbers_of_binary64():
    two, few = lg.OfFormat("2", lambda fmt, _: 2), (3 * 2.0**-1074, 5 * 2.0**-1074, 1.5, 1.25)
    cases = [(x, 1.0) for x in few]
    assert both(lg.HasBits(A, two), cases, [(1.0,)] * 4, FORMATS["float64"]) == [True, False] * 2


def test_multiples_of_several_ulps():
    cases, made = [(1.5, 1.0), (1.25, 1.0), (0.0, 3.0)], [(1.0,)] * 3
    four = lg.OfFormat("4", lambda fmt, _: 4)
    assert both(lg.IsMultiple(A, lg.Ulp(B) * four), cases, made) == [True, False, True]
    assert both(lg.IsMultiple(A, four), cases, made) == [False, False, True]
    far = [(2.0**-1074, 2.0**1023), (0.0, 2.0**1023), (2.0**971, 2.0**1023)]
    assert both(lg.IsMultiple(A, lg.Ulp(B)), far, made, FORMATS["float64"]) == [False, True, True]


def test_multiples_that_binary64_does_not_hold():
    tiny, a, b = 2.0**-1074, 1 + 2.0**-52, 3 + 2.0**-51
    cases, made = (
        [(a, b), (a * 2.0**-485, b * 2.0**-485), (tiny, tiny), (3.0, 2.0), (0.0, tiny)],
        [(1.0,)] * 5,
    )
    fmt, four = FORMATS["float64"], lg.OfFormat("4", lambda fmt, _: 4)
    for of, expected in (
        (lg.SMALLEST, [True, True, False, True, True]),
        (lg.Ulp(B), [False, False, False, True, True]),
        (2 * lg.Ulp(lg.Result(0)), [False, False, False, True, True]),
        (four, [False, False, False, False, True]),
        (lg.Ulp(B) * four, [False, False, False, True, True]),
    ):
        assert both(lg.IsMultiple(A * B, of), cases, made, fmt) == expected


def test_the_last_bit_of_zero_has_an_exponent_above_all_others():
    cases = [(0.0, 1.0), (1.5, 1.0)]
    for said in (lg.Exponent(lg.LowBit(A)) >= 200, ~(lg.Exponent(lg.LowBit(A)) <= lg.Exponent(B))):
        assert both(said, cases, [(1.0,)] * 2) == [True, False]


def test_neighbours_in_a_grid_are_equally_far():
    cases, fmt = [(100.0, 1.0), (-3.0, 1.0), (-128.0, 1.0), (1.0, -1.0)], get_format("int8")
    for step in (1, Fraction(1, 2)):
        said = lg.equal(lg.UlpTowards(A, B), lg.OfFormat("step", lambda fmt, _, step=step: step))
        assert both(said, cases, [(1.0,)] * 4, fmt) == [step == 1] * 4


@pytest.mark.parametrize("underflow", Underflow)
def test_a_rounded_sum_is_the_sum_of_the_arithmetic(underflow):
    least = 2.0**FMT.emin
    cases = [(least, -least / 2), (least / 2, least / 2), (-least / 2, 0.0), (1.5 * least, -least)]
    rounding, gradual = Rounding(underflow=underflow), underflow is Underflow.GRADUAL
    sums = [(a + b,) for a, b in cases]
    found = both(lg.equal(lg.Rounded(A, B), lg.Result(0)), cases, sums, rounding=rounding)
    inputs = underflow is Underflow.FLUSH_INPUTS
    assert found == [gradual, not inputs, gradual, gradual or inputs]


def test_a_neighbour_towards_a_zero_of_either_sign_is_the_outer_one():
    eps = lg.OfFormat("2u", lambda fmt, _: Fraction(2) ** (1 - fmt.precision))
    cases = [(1.0, 0.0), (1.0, -0.0), (1.0, -1.0), (4.0, 1.0)]
    for given in (cases, [(-a, -b) for a, b in cases]):
        found = both(lg.equal(lg.UlpTowards(A, B), eps * abs(A)), given, [(1.0,)] * 4)
        assert found == [True, True, False, True]


def test_constants_stand_for_terms_and_are_judged_or_refused_alone():
    assert lg.IsMultiple(2, A) == lg.IsMultiple(as_term(2), A)
    assert lg.UlpTowards(A, 1) == lg.UlpTowards(A, as_term(1))
    four, cases = lg.OfFormat("4", lambda *_: 4), [(1.0, 2.0)] * 2
    assert both(lg.IsMultiple(four, four), cases, [(1.0,)] * 2) == [True, True]
    assert both(lg.IsMultiple(1, four), cases, [(1.0,)] * 2) == [False, False]
    for said, message in (
        (lg.IsValue(four), "a constant is the same in every case; write .* as InFormat"),
        (lg.IsMultiple(1, A), "multiples are read of a power of two, of ulp"),
    ):
        with pytest.raises(ValueError, match=message):
            verify(mine(add, claim(said)), "float8_e4m3fn")
    for wrong in (0.5, "1", None, True):
        with pytest.raises(TypeError, match="a term goes with terms, int and Fraction, not with"):
            lg.IsValue(wrong)


def test_a_root_with_the_wrong_sign_is_none():
    root, error = (lambda ar, a: ar.neg(ar.sqrt(a))), root_error(4, lg.Operand("a"))
    wrong = mine(root, error, PAIR[:1], where=[hypothesis(A > 0)])
    certificate = verify(wrong, "float8_e5m2")
    assert certificate.violations == certificate.applicable > 0


def test_constants_are_compared_with_one_another_and_with_any_fraction():
    cases, made = [(1.0, 1.0), (3.0, 2.0)], [(3.0,), (1.5,)]
    one, third = lg.OfFormat("one", lambda fmt, _: 1), Fraction(1, 3)
    assert both(lg.equal(one, 1), cases, made) == [True, True]
    assert both(one < third * one, cases, made) == [False, False]
    assert both(third * one <= one, cases, made) == [True, True]
    assert both(lg.equal(A + B - lg.Result(0), Fraction(-1, 3)), cases, made) == [False, False]
    assert both(A + B - lg.Result(0) <= Fraction(10, 3), cases, made) == [True, False]
    assert both(lg.equal(A + A, lg.Result(0) * 2 + Fraction(-4)), cases, made) == [True, False]
    for large in (2**24 + 1, 2**60 + 1):  # beside what binary32 and binary64 make of them
        number = lg.OfFormat("c", lambda fmt, _, large=large: large)
        case = [(float(large - 1), 1.0)]
        assert both(number <= A, case, [(1.0,)]) == both(lg.equal(number, A), case, [(1.0,)]) == [False]


def test_products_that_binary64_rounds_are_compared_exactly():
    """Of three numbers of 24 bits, of a constant and two, and of a constant and a sum."""
    one, fmt = 1 + 2.0**-23, FORMATS["float32"]
    exact, r = Fraction(one), lg.Result(0)
    for said, near in (
        (A * B * r, exact**3),
        ((1023 * A) * B, 1023 * exact**2),
        (5 * abs(A - B * Fraction(1, 2**30)), 5 * exact * (1 - Fraction(1, 2**30))),
    ):
        rounded = Fraction(float(near))
        assert rounded != near
        for claimed, right in ((said < rounded, near < rounded), (rounded < said, rounded < near)):
            assert both(claimed, [(one, one)], [(one,)], fmt) == [right]
    # A constant may stand in a magnitude or be negated, and need be no number of the carrier.
    for factor in (Fraction(1, 2**160), Fraction(3**20)):
        constant = lg.OfFormat("c", lambda fmt, _, factor=factor: factor)
        said = (lg.equal(A * -constant, A * -factor), A * abs(constant) >= A * factor)
        for claimed in said:
            assert both(claimed, [(1.5, 1.0)], [(1.0,)], FORMATS["bfloat16"]) == [True]
    tiny = 2.0**-52
    assert both(5 * abs(A + B) > 5 + Fraction(2) ** -50, [(1.0, tiny)], [(1.0,)], fmt) == [True]


def test_expectations_are_those_of_all_paths_wherever_they_are_asked():
    """Among alternatives, too, a part of which is asked of few cases alone."""
    unbiased = lg.equal(lg.Expectation(lg.Results()), lg.Operand("a") + lg.Operand("b"))
    alternatives = lg.AnyOf((lg.AllOf((A < B, unbiased)), lg.AllOf((B <= A, ~unbiased))))
    theorem = mine(add, claim(alternatives), modes=["stochastic"])
    rounding = Rounding("stochastic", random_bits=2)
    trial = trial_of(theorem, FORMATS["float6_e3m2fn"], rounding, random.Random(5), 200)
    found = by_arrays(theorem.claim.said, trial)
    assert 0 < np.count_nonzero(found) < found.size
    assert found.tolist() == by_fractions(theorem, theorem.claim.said, trial).tolist()


# -- what the solver is told --------------------------------------------------------------------------------
def asked(said):
    return Question("asked", lambda ar, a, b: (ar.add(a, b), a), PAIR, (), said, 2)


#: |n(u)| would be read as a bound where n(u) is negative: 1 - 8 u at p = 2.
BOUNDS = [-1, 1 - 8 * u, Quotient.of(3, 1 - 4 * u), Quotient.of(1, 8 * u - 1), len]
NOT_READ = [
    *(bounded(lg.Result(0) - A, A, constant, unit=0).said for constant in BOUNDS),
    # What is not linear.
    *(lg.Finite(), lg.Finite(lg.Result(0)), lg.IsValue(A + B - lg.Result(0)), lg.equal(A * B, lg.Result(0))),
    *(lg.equal(lg.Result(7), A), lg.equal(lg.Word("a", 3), A), abs(abs(A) - abs(B)) <= abs(A)),
    *(lg.Predicate("so", lambda t: t.finite), lg.equal(lg.Ulp(A + B), A), lg.equal(lg.Exponent(A), 3)),
    # What claims something of the range.
    *(abs(lg.Result(0)) <= lg.LARGEST, ~lg.equal(abs(A), lg.LARGEST), lg.NoOverflow()),
]


@pytest.mark.parametrize("said", NOT_READ, ids=range(len(NOT_READ)))
def test_what_the_solver_is_not_told(said):
    with pytest.raises(lg.UnreadableError):
        asked(said).posed()


def test_what_is_claimed_upward_is_not_readable():
    assert not readable(mine(add, exactly(sum_of("a", "b")), modes=["up"]))


@pytest.mark.slow
def test_logic_is_read_as_it_is_meant():
    """What is true of all operands at once, and what is false of a = 1 and b = -1, any of it."""
    true = [
        *(lg.Iff(A <= B, ~(B < A)), lg.AnyOf((A <= B, B <= A)), lg.AllOf(())),
        *(abs(A + B) <= abs(A) + abs(B), abs(A) - abs(B) <= abs(A + B), 2 * abs(A) <= abs(A) + abs(A)),
    ]
    false = [
        *(lg.Iff(A <= B, B < A), lg.AllOf((A <= B, B <= A)), lg.AnyOf(()), ~lg.AnyOf((A <= A, A < A))),
        *(abs(A) + abs(B) <= abs(A + B), abs(A - B) < abs(A) + abs(B)),
    ]
    assert prove(asked(lg.AllOf(tuple(true))), seconds=60).found is Found.PROVED
    assert prove(asked(lg.AnyOf(tuple(false))), seconds=60).found is not Found.PROVED
