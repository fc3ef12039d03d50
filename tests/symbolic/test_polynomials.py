"""Polynomials, quotients, families and decisions on them, against fractions at single precisions."""

import operator
import random
from fractions import Fraction

import pytest

from mcfsim.symbolic import (
    EVEN,
    EVERY,
    ODD,
    Polynomial,
    Precisions,
    Quotient,
    Relation,
    UndecidedError,
    families,
    family,
    u,
)
from mcfsim.symbolic.decisions import first
from mcfsim.symbolic.variables import root, unit
from tests.shared.refusals import check, refusals, refused


def polynomials(seed, count, over=EVERY, low=-2, high=4, most=9):
    rng = random.Random(seed)
    for _ in range(count):
        terms = {k: Fraction(rng.randrange(-most, most + 1), 2 ** rng.randrange(4)) for k in range(low, high)}
        yield Polynomial.of({k: c for k, c in terms.items() if rng.random() < 0.6}, over)


@pytest.mark.parametrize("over", [EVERY, EVEN, ODD], ids=str)
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
        for p in range(2, 30):
            if p in over:
                assert unit(over).at(p) == Fraction(1, 2**p)
            else:
                with pytest.raises(ValueError, match="none of the precisions"):
                    unit(over).at(p)


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
    assert first(Relation.POSITIVE, 1 - 2**40 * u) == 41
    assert first(Relation.NOT_NEGATIVE, 1 - 2**40 * u) == 40
    assert first(Relation.INTEGER, Fraction(1, 2**40) / u) == 40
    assert first(Relation.EVEN, Fraction(1, 2**40) / u**2) == 21
    assert first(Relation.POSITIVE, (u - Fraction(1, 64)) ** 2) == 7


def test_text():
    written = [1 + 2 * u - 3 * u**2 / 4, -u + u**2, 0 * u, 2 / u - 1, unit(ODD) * 3, 1 + root(ODD)]
    assert list(map(str, written)) == ["1 + 2 u - 3/4 u^2", "-u + u^2", "0", "2 u^-1 - 1", "3 u", "1 + t"]
    assert str(Quotient.of(3, 1 - 4 * u)) == "3 / (1 - 4 u)"
    assert str(Quotient.of(Fraction(3, 2) + 4 * u)) == "3/2 + 4 u"


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
)
def test_refusals(rows):
    check(rows)
