"""What a proof says of every precision, its signs and its bound among it, against fractions at each one."""

import random
from fractions import Fraction

import pytest

from mcfsim.eft import two_sum
from mcfsim.oracle import FractionArithmetic
from mcfsim.rounding import Mode, Rounding
from mcfsim.symbolic import (
    EVEN,
    EVERY,
    ODD,
    Polynomial,
    Quotient,
    SymbolicArithmetic,
    UndecidedError,
    family,
    u,
)
from mcfsim.symbolic.variables import root, unit
from mcfsim.theorems import THEOREMS, Theorem, claim, hypothesis, relative_error, value
from mcfsim.theorems.claims import error_relative_to, exactly, sum_of
from mcfsim.theorems.every_p import EveryCertificate, Sharpness, prove, recheck
from mcfsim.theorems.every_p.proof import LAST
from mcfsim.theorems.hypotheses import ordered

NAMES = ("a", "b", "c")
OPERANDS = [value(name) for name in NAMES]
#: From which limits are told apart, and closer than which they are reached, coefficients being small.
FAR, NEAR = Fraction(2) ** 20, Fraction(1, 2**20)


def parts_of(ar, given, steps, results):
    values = list(given)
    for operation, i, j in steps:
        taken = (values[i],) if operation == "neg" else (values[i], values[j])
        values.append(getattr(ar, operation)(*taken))
    return tuple(values[i] for i in results)


def bound_at_random(draw):
    share = Fraction(draw.randrange(0, 24), 4)
    match draw.randrange(4):
        case 0:
            return Quotient.of(share, 1 - draw.randrange(1, 9) * u)
        case 1:
            return Quotient.of(share + draw.randrange(-9, 9) * u)
        case 2:
            return Quotient.of(share - 4 * u, 1 - draw.randrange(1, 9) * u)
    return Quotient.of(share)


def statement_at_random(draw):
    """Return a statement, its family, and what it measures: names of operands, bound and power of u."""
    steps, count = [], 3
    for _ in range(draw.choice((0, 0, 1, 2, 3))):
        steps.append((draw.choice(("add", "sub", "neg")), draw.randrange(count), draw.randrange(count)))
        count += 1
    results = draw.sample(range(count), draw.choice((1, 2, 2, 3)))
    summed = draw.sample(NAMES, draw.choice((1, 2, 3)))
    other = draw.sample(NAMES, draw.choice((1, 2))) if draw.random() < 0.4 else summed
    bound, power = bound_at_random(draw), draw.choice((1, 1, 2))
    target, reference = sum_of(*summed), sum_of(*other)
    about = (
        relative_error(bound, target, unit=power)
        if other is summed
        else error_relative_to(bound, target, reference, unit=power)
    )

    def text(ar, a, b, c):
        return parts_of(ar, (a, b, c), steps, results)

    over = draw.choice((EVERY, EVERY, EVERY, EVEN, ODD))
    small, t = unit(over), root(over)

    def number():
        head = Polynomial.constant(draw.choice((1, 1, 1, 2, 3)), over)
        if over.step > 1 and draw.random() < 0.5:
            head += draw.randrange(-4, 5) * t
        head += draw.randrange(-4, 5) * 4 * small
        return draw.choice((1, -1)) * head * draw.choice((1, 1, small, 4 * small, 64 * small**2))

    theorem = Theorem("random", text, OPERANDS, about, range="unbounded")
    return theorem, family(**{name: number() for name in NAMES}), (summed, other, bound, power)


def check(theorem, one, measuring):
    """Prove a statement and compare; return the proof, or None if there is none."""
    try:
        proof = prove(theorem, one)
    except UndecidedError:
        return None
    summed, other, bound, power = measuring
    beyond = False
    for p in (p for p in range(proof.first, LAST + 1) if p in one.over):
        case = dict(zip(NAMES, one.at(p), strict=True))
        found = theorem.algorithm(FractionArithmetic(p, Rounding(Mode.NEAREST_EVEN)), *case.values())
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [25, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_statements_at_random(count):
    draw, proofs = random.Random(1), []
    while len(proofs) < count:
        proof = check(*statement_at_random(draw))
        if proof is not None:
            proofs.append(proof)
    assert sum("another sign" in proof.below for proof in proofs) > count // 100
    assert count // 10 < sum(proof.sharpness is Sharpness.EXCEEDED for proof in proofs) < count
    assert sum(not proof.error.numerator for proof in proofs) > count // 100


# -- by hand ------------------------------------------------------------------------------------------------
SIGN = "has another sign than for large p"
LEAST = "formats have no smaller such precision"
CHANGING = {"a": 1, "b": -8 * u, "c": 2 * u}
#: A bound, sums of which and to which the error is, the results, and a family; and what is found.
BY_HAND = {
    # 4 u - 64 u^2 is negative at p = 2 and 3, where its magnitude is another one: 12 u at p = 2.
    "the error has its sign": (
        (5, "a", "a", "bc", {"a": 1, "b": 1 + 4 * u, "c": -64 * u**2}),
        ("4 - 64 u", 4, 4, Sharpness.GAP, f"at p = 3 the error -1/2 {SIGN}"),
    ),
    # 1 - 6 u, to which it is relative, is negative at p = 2.
    "no error, a bound": ((1, "a", "abc", "a", CHANGING), ("0", 2, 0, Sharpness.GAP, LEAST)),
    "no error, no bound": ((0, "a", "abc", "a", CHANGING), ("0", 2, 0, Sharpness.SHARP, LEAST)),
    "what it is relative to has its sign": (
        (16, "a", "abc", "ac", CHANGING),
        ("2 / (1 - 6 u)", 3, 2, Sharpness.GAP, f"at p = 2 what the error is relative to, -1/2, {SIGN}"),
    ),
    # From the pole of a bound down nothing is exceeded.
    "a pole": (
        (Quotient.of(2, 1 - 8 * u), "ab", "ab", "a", {"a": 1, "b": u, "c": 0}),
        ("1 / (1 + u)", 2, 1, Sharpness.GAP, LEAST),
    ),
    "a pole that is none": (
        (Quotient.of(2 - 16 * u, 1 - 8 * u), "ab", "ab", "a", {"a": 1, "b": u, "c": 0}),
        ("1 / (1 + u)", 2, 1, Sharpness.GAP, LEAST),
    ),
    "a bound that grows is not sharp": (
        (Quotient.of(2, u), "ab", "a", "a", {"a": 1, "b": 1, "c": 0}),
        ("1 / u", 2, None, Sharpness.GAP, LEAST),
    ),
}


@pytest.mark.parametrize("what", BY_HAND)
def test_where_a_statement_begins_and_how_sharp_it_is(what):
    (bound, target, reference, results, operands), found = BY_HAND[what]
    places = [NAMES.index(name) for name in results]
    theorem = Theorem(
        "passed on",
        lambda ar, a, b, c: parts_of(ar, (a, b, c), (), places),
        OPERANDS,
        error_relative_to(bound, sum_of(*target), sum_of(*reference)),
    )
    proof = prove(theorem, family(**operands))
    assert (str(proof.in_unit), proof.first, proof.limit, proof.sharpness, proof.below) == found
    assert recheck(EveryCertificate.of(proof), theorem) == []


def test_what_is_a_predicate_is_said_not_to_be_read():
    """Neither a claim nor a hypothesis, whose words may promise anything."""
    said = claim("it is exact", lambda t: t.results[0] == t["a"])
    where = (hypothesis("a is odd", lambda t: t["a"] == t["a"]), ordered("b", "a"))
    theorem = Theorem("own", lambda ar, a, b: ar.add(a, b), (value("a"), value("b")), said, where)
    proof = prove(theorem, family(a=1, b=1 + 2 * u))
    assert proof.unread == ("a is odd", "it is exact")
    assert "not read: 'it is exact' is a predicate on arrays" in str(proof)
    assert not prove(THEOREMS["dw_plus_fp"]).unread


# -- texts that branch --------------------------------------------------------------------------------------
def sum_or_twice(ar, a, b):
    return (ar.add(a, a), a) if a == b else two_sum(ar, a, b)


def negated_or_not(ar, a, b):
    return ar.neg(a) if a == b else a


@pytest.mark.parametrize("text", [sum_or_twice, negated_or_not])
def test_what_is_equal_at_one_precision_is_not_compared(text):
    """The number 1 + 2^-69 is 1 + 2 u at p = 70 alone, a value from there on."""
    once = family(a=1 + 2 * u, b=1 + Fraction(1, 2**69))
    within = relative_error(5, sum_of("a", "b"), unit=1)
    with pytest.raises(TypeError, match="SymbolicValue stands for a number that is not known"):
        prove(Theorem("compared", text, OPERANDS[:2], within), once)
    ar, (a, b) = SymbolicArithmetic(), once.structured()
    with pytest.raises(TypeError, match="is not compared"):
        ar.run(text, a, b)
    with pytest.raises(TypeError, match="has not entered"):
        sum_or_twice(ar, a, b)


def test_a_sum_that_is_exact_for_equal_numbers_alone_is_not_proved():
    pytest.importorskip("z3", reason="needs the extra mcfsim[solver]")
    from mcfsim.theorems import solver

    said = exactly(sum_of("a", "b")).said
    with pytest.raises(TypeError, match="Number stands for a number that is not known"):
        solver.prove(solver.Question("branches", sum_or_twice, tuple(OPERANDS[:2]), (), said, 2), seconds=60)
