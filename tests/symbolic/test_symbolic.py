"""Polynomials in u, families, decisions, and what is rounded for every precision at once: as fractions."""

import operator
import random
from fractions import Fraction

import pytest

from mcfsim import eft
from mcfsim.multiword import double_word as dw
from mcfsim.multiword import expansion
from mcfsim.oracle import FractionArithmetic
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import DETERMINISTIC, Rounding
from mcfsim.theorems.symbolic import EVEN, EVERY, ODD, Polynomial, Precisions, Quotient, families, family, u
from mcfsim.theorems.symbolic.decisions import Relation, UndecidedError, first
from mcfsim.theorems.symbolic.operand_families import root, unit
from mcfsim.theorems.symbolic.polynomial_arithmetic import SymbolicArithmetic
from tests.shared.refusals import check, refusals, refused


def polynomials(seed, count, over=EVERY, low=-2, high=4, most=9):
    rng = random.Random(seed)
    for _ in range(count):
        terms = {k: Fraction(rng.randrange(-most, most + 1), 2 ** rng.randrange(4)) for k in range(low, high)}
        yield Polynomial.of({k: c for k, c in terms.items() if rng.random() < 0.6}, over)


@pytest.mark.parametrize("over", [EVERY, EVEN, ODD], ids=str)
@pytest.mark.slow
def test_algebra_is_that_of_their_values(over):
    for a, b in zip(polynomials(1, 60, over), polynomials(2, 60, over), strict=True):
        for p in (over.precision(3), over.precision(9)):
            x, y = a.at(p), b.at(p)
            t = Fraction(2) ** (over.index(p) - 1)  # half of what 1 / root is
            found = (a + b, a - b, a * b, -a, a**3, (3 - a) * 2 / 4 + 1.5, b / (2 * root(over)))
            expected = [x + y, x - y, x * y, -x, x**3, (3 - x) / 2 + Fraction(3, 2), y * t]
            assert [one.at(p) for one in found] == expected


def test_the_unit_roundoff_of_each_precision():
    for over in (EVERY, EVEN, ODD, Precisions(3, 2)):
        assert all(unit(over).at(p) == Fraction(1, 2**p) for p in range(2, 30) if p in over)
        others = [p for p in range(2, 30) if p not in over]
        check(refused(ValueError, "none of the precisions", unit(over).at, *others))


@pytest.mark.slow
def test_signs_and_integers_are_decided_as_trying_shows():
    decided = 0
    for one in polynomials(3, 200):
        for relation in Relation:
            held = [relation.holds(one.at_index(n)) for n in range(EVERY.least, 30)]
            try:
                n = first(relation, one)
            except UndecidedError:
                assert not held[-1]
                continue
            decided += 1
            assert all(held[n - EVERY.least :])
            assert n == EVERY.least or not held[n - EVERY.least - 1]
    assert decided > 200


def test_a_large_first_precision_is_found():
    tiny = Fraction(1, 2**40)
    assert [first(x, 1 - u / tiny) for x in (Relation.POSITIVE, Relation.NOT_NEGATIVE)] == [41, 40]
    assert (first(Relation.INTEGER, tiny / u), first(Relation.EVEN, tiny / u**2)) == (40, 21)
    assert first(Relation.POSITIVE, (u - Fraction(1, 64)) ** 2) == 7


def test_text():
    written = [1 + 2 * u - 3 * u**2 / 4, -u + u**2, 0 * u, 2 / u - 1, unit(ODD) * 3, 1 + root(ODD)]
    assert list(map(str, written)) == ["1 + 2 u - 3/4 u^2", "-u + u^2", "0", "2 u^-1 - 1", "3 u", "1 + t"]
    assert str(Quotient.of(3, 1 - 4 * u)) == "3 / (1 - 4 u)"
    assert str(Quotient.of(Fraction(3, 2) + 4 * u)) == "3/2 + 4 u"


@pytest.mark.slow
def test_quotients():
    rng = random.Random(4)
    for a, b in zip(polynomials(5, 200), polynomials(6, 200), strict=True):
        if not b:
            continue
        one = Quotient(a, b)
        p = rng.randrange(12, 40)
        assert one.reduced.at(p) == one.at(p)
        assert one.over_unit(2).at(p) == one.at(p) * 4**p
        assert one.reduced.reduced == one.reduced
        assert abs(one).at(200) == abs(one.at(200))
        if one.limit is None:
            assert abs(one.at(400)) > 2**300
        else:
            assert abs(one.at(400) - one.limit) < Fraction(1, 2**300)
    assert Quotient.of(Fraction(49, 5)).at(7) == Fraction(49, 5)


def test_families():
    one = family(x=(1, u / 2 + u**2), y=-(1 - u) / 2, first=4)
    assert list(one(3)) == []
    assert list(one(4)) == [(Fraction(1), Fraction(9, 256), Fraction(-15, 32))]
    assert one.structured(4) == ((Fraction(1), Fraction(9, 256)), Fraction(-15, 32))
    both = families(one, family(x=(2, 0), y=1))
    assert [case[0] for case in both(5)] == [1, 2]
    odd = family(x=1 + root(ODD))
    assert list(odd(4)) == []
    assert list(odd(5)) == [(Fraction(5, 4),)]


# -- rounded for every precision at once ------------------------------------------------------------------
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "sign": 1}
LAST = 60


def done(ar, operation, *operands):
    """Return what an operation makes of polynomials."""
    return ar.run(lambda ar, *values: getattr(ar, operation)(*values), *operands)


def drawn_values(rng: random.Random, over, count: int) -> list[Polynomial]:
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
@pytest.mark.sampled(3)
def test_every_operation_is_that_of_fractions(mode, over):
    rng, one = random.Random(f"{mode}{over}"), Polynomial.constant(Fraction(1), over)
    cases = [(name, drawn_values(rng, over, n)) for _ in range(3) for name, n in OPERATIONS.items()]
    ties = [("add", [one, unit(over)]), ("sub", [-one, unit(over)])]
    decided = 0
    for name, given in [*cases, *ties]:
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


@pytest.mark.slow
def test_below_the_first_precision_results_are_others():
    others = 0
    for k in range(1, 60):
        ar = SymbolicArithmetic()
        result, before = done(ar, "add", 1 + 2 * u, k * u), ar.first - 1
        others += FractionArithmetic(before).round((1 + (2 + k) * u).at(before)) != result.at(before)
    assert others > 10


AR, FOREIGN = SymbolicArithmetic(), SymbolicArithmetic().value(1 - u)


@refusals(
    refused(TypeError, "without an operand", family, ()),
    refused(TypeError, "no polynomial, int, float or Fraction", lambda x: family(x=x), "1", True),
    refused(ValueError, "not dyadic", lambda x: family(x=x), Fraction(1, 3)),
    refused(ValueError, "no finite number", lambda x: family(x=x), float("inf")),
    refused(ValueError, "over the precisions 2 n [+] 1 and p at once", lambda x: family(x=u, y=x), root(ODD)),
    refused(ValueError, "do not mix", operator.add, (u, root(EVEN))),
    refused(ValueError, "a Quotient takes it", operator.truediv, (1, 1 + u), (u, 3)),
    refused(ZeroDivisionError, "division by the polynomial zero", operator.truediv, (u, 0)),
    refused(ValueError, "ascending", Polynomial, (((1, Fraction(1)), (0, Fraction(1))),)),
    refused(ValueError, "zero or not dyadic", Polynomial, (((1, Fraction(0)),),)),
    refused(ValueError, "allowed", Precisions, 0, (2, 2)),
    refused(TypeError, "step", Precisions, True),
    refused(ValueError, "no leading term", lambda x: x.leading, 0 * u),
    refused(ZeroDivisionError, "zero", Quotient.of, (u, 0 * u)),
    refused(UndecidedError, r"\. div: a coefficient 2/3 of the result is not dyadic", AR.div, (1, 3)),
    refused(UndecidedError, "leading coefficient 2 of 2 has no rational root", AR.sqrt, 2),
    refused(UndecidedError, "its leading power is odd", done, (AR, "sqrt", u)),
    refused(UndecidedError, r"operand = 1 \+ u is no value of precision p", done, (AR, "add", 1 + u, 1)),
    refused(UndecidedError, "cannot be combined with another format", AR.like, ("bfloat16", Rounding())),
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
    zero = done(ar, "sub", 1 + 2 * u, 1 + 2 * u)
    assert not zero
    results = [done(ar, "mul", zero, u), done(ar, "div", zero, u)]
    assert {*results, *(done(ar, name, zero) for name in ("sqrt", "neg", "sign"))} == {zero}
