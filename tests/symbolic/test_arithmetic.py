"""Polynomials in u, rounded for every precision at once: the same as fractions at each precision."""

import random
from fractions import Fraction

import pytest

from mcfsim import eft
from mcfsim.multiword import double_word as dw
from mcfsim.multiword import expansion
from mcfsim.oracle import FractionArithmetic
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from mcfsim.symbolic import EVEN, EVERY, ODD, Polynomial, SymbolicArithmetic, UndecidedError, u
from mcfsim.symbolic.variables import root, unit
from tests.shared.refusals import check, refusals, refused

OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "sign": 1}
LAST = 60


def done(ar, operation, *operands):
    """Return what an operation makes of polynomials."""
    return ar.run(lambda ar, *values: getattr(ar, operation)(*values), *operands)


def values(rng: random.Random, over, count: int) -> list[Polynomial]:
    """Return random values of precision p for every large p: few bits high up, few low down."""
    t, small = root(over), unit(over)
    found = []
    for _ in range(count):
        high = Fraction(rng.choice((1, 1, 1, 2, 3, 4, 5)) * rng.choice((-1, 1)))
        number = Polynomial.constant(high, over)
        if over.step > 1 and rng.random() < 0.5:
            number += rng.randrange(-3, 4) * t
        number += rng.randrange(-3, 4) * 8 * small
        found.append(number * small ** rng.choice((0, 0, 0, 1)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("over", [EVERY, EVEN, ODD], ids=str)
@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_every_operation_is_that_of_fractions(mode, over):
    rng = random.Random(f"{mode}{over}")
    decided = 0
    for _ in range(3):
        for name, count in OPERATIONS.items():
            given = values(rng, over, count)
            if name == "sqrt" and given[0].sign < 0:
                continue
            ar = SymbolicArithmetic(mode, over)
            try:
                result = done(ar, name, *given)
            except UndecidedError:
                assert name in ("div", "sqrt")
                continue
            decided += 1
            assert ar.first <= 20
            # Just above the first precision, where the polynomials might not be right yet, and far beyond.
            for p in (*range(ar.first, ar.first + 8), LAST - 1, LAST):
                if p in over:
                    truth = FractionArithmetic(p, Rounding(mode))
                    assert getattr(truth, name)(*(x.at(p) for x in given)) == result.at(p)
    assert decided > 3 * 6


X, Y, A = (1 + 2 * u, u - 3 * u**2), (1 + 4 * u, -u + u**2), 1 - u


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (eft.err_fma, (X[0], A, Y[0])),
        (expansion.mul, (X, Y)),
        (expansion.add, ((*X, u**3), (*Y, u**3))),
        (dw.dw_div_dw3, (X, Y)),
        (dw.sqrt_dw, (X,)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_texts_run_unchanged(text, given):
    ar = SymbolicArithmetic()
    results = ar.run(text, *given)
    for p in (ar.first, ar.first + 1, ar.first + 2, 31, LAST):
        assert text(FractionArithmetic(p), *evaluated(given, p)) == evaluated(results, p), p


def evaluated(nested, p):
    return tuple(evaluated(item, p) for item in nested) if isinstance(nested, tuple) else nested.at(p)


def test_below_the_first_precision_results_are_others():
    others = 0
    for k in range(1, 60):
        ar = SymbolicArithmetic()
        result, before = done(ar, "add", 1 + 2 * u, k * u), ar.first - 1
        others += FractionArithmetic(before).round((1 + (2 + k) * u).at(before)) != result.at(before)
    assert others > 10


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_a_tie_in_every_mode(mode):
    outward = 2 * u * int(mode in (Mode.NEAREST_AWAY, Mode.UP, Mode.TO_ODD))
    assert done(SymbolicArithmetic(mode), "add", 1, u) == 1 + outward
    outward = 2 * u * int(mode in (Mode.NEAREST_AWAY, Mode.DOWN, Mode.TO_ODD))
    assert done(SymbolicArithmetic(mode), "sub", -1, u) == -1 - outward


AR, FOREIGN = SymbolicArithmetic(), SymbolicArithmetic().value(1 - u)


@refusals(
    refused(
        UndecidedError,
        r"1\. div: a coefficient 2/3 of the result is not dyadic",
        SymbolicArithmetic().div,
        (1, 3),
    ),
    refused(UndecidedError, "leading coefficient 2 of 2 has no rational root", AR.sqrt, 2),
    refused(UndecidedError, "its leading power is odd", done, (AR, "sqrt", u)),
    refused(UndecidedError, r"operand = 1 \+ u is no value of precision p", done, (AR, "add", 1 + u, 1)),
    refused(UndecidedError, "no other format", AR.like, ("bfloat16", Rounding())),
    refused(ZeroDivisionError, "zero", done, (AR, "div", 1, 0 * u)),
    refused(ValueError, "negative number -1", AR.sqrt, -1),
    refused(ValueError, "1/3 is not dyadic", done, (AR, "add", u, Fraction(1, 3))),
    refused(ValueError, "nan is no finite number", done, (AR, "add", u, float("nan"))),
    refused(TypeError, "is no polynomial", done, (AR, "add", u, "1")),
    refused(ValueError, "stochastic", SymbolicArithmetic, "stochastic"),
    refused(ValueError, r"2 n in an arithmetic of p", done, (AR, "add", u, unit(EVEN))),
    refused(ValueError, "needs an arithmetic with a format", AR.run, (eft.two_prod, 1 + 2 * u, 1)),
    refused(TypeError, r"1 \+ 2 u has not entered: hand it to an algorithm by", AR.add, (1 + 2 * u, 1)),
    refused(TypeError, "has not entered", eft.two_sum, (AR, 1 + 2 * u, 1)),
    refused(ValueError, "1 - u is a value of another arithmetic", AR.neg, FOREIGN),
)
def test_what_is_undecided_or_none_is_refused_with_the_reason(rows):
    check(rows)


def test_what_can_be_decided_is_not_refused():
    ar = SymbolicArithmetic()
    assert isinstance(ar, Arithmetic)
    assert repr(SymbolicArithmetic("up", ODD)) == "SymbolicArithmetic(up, 2 n + 1)"
    assert done(SymbolicArithmetic(over=EVEN), "sqrt", unit(EVEN)) == root(EVEN)
    assert ar.run(lambda ar, x: ar.add(*eft.fast_two_sum(ar, x, 1)), 2 + 0 * u) == 3 + 0 * u
    assert repr(eft.two_sum(ar, ar.value(1 - u), ar.value(u))) == "(1, 0)"
    assert ar.run(lambda ar, x: (x, (1.5, 0)), u) == (u, (1.5 + 0 * u, 0 * u))
    assert ar.run(lambda ar: ar.round(1 + u)) == 1 + 0 * u


def test_zeros():
    ar = SymbolicArithmetic()
    zero = done(ar, "sub", 1 + 2 * u, 1 + 2 * u)
    assert not zero
    assert done(ar, "mul", zero, u) == done(ar, "div", zero, u) == zero
    assert done(ar, "sqrt", zero) == done(ar, "neg", zero) == done(ar, "sign", zero) == zero
