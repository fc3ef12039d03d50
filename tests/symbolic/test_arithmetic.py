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
    for _ in range(12):
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
            for p in range(ar.first, LAST + 1):
                if p in over:
                    truth = FractionArithmetic(p, Rounding(mode))
                    assert getattr(truth, name)(*(x.at(p) for x in given)) == result.at(p)
    assert decided > 12 * 6


def test_it_is_an_arithmetic():
    assert isinstance(SymbolicArithmetic(), Arithmetic)
    assert repr(SymbolicArithmetic("up", ODD)) == "SymbolicArithmetic(up, 2 n + 1)"


@pytest.mark.slow
def test_texts_run_unchanged():
    x, y, a = (1 + 2 * u, u - 3 * u**2), (1 + 4 * u, -u + u**2), 1 - u
    texts = {
        "two_sum": (eft.two_sum, (x[0], a)),
        "fast_two_sum": (eft.fast_two_sum, (x[0], a)),
        "two_prod_fma": (eft.two_prod_fma, (x[0], a)),
        "err_fma": (eft.err_fma, (x[0], a, y[0])),
        "grow": (expansion.grow, (x, a)),
        "add": (expansion.add, (x, y)),
        "mul": (expansion.mul, (x, y)),
        "add three": (expansion.add, ((*x, u**3), (*y, u**3))),
        "dw_div_dw1": (dw.dw_div_dw1, (x, y)),
        "dw_div_dw2_fma": (dw.dw_div_dw2_fma, (x, y)),
        "dw_div_dw3": (dw.dw_div_dw3, (x, y)),
        "sqrt_dw": (dw.sqrt_dw, (x,)),
        "dw_div_fp1": (dw.dw_div_fp1, (x, y[0])),
    }
    for name, (text, given) in texts.items():
        ar = SymbolicArithmetic()
        results = ar.run(text, *given)
        for p in range(ar.first, LAST + 1):
            fractions = text(FractionArithmetic(p), *evaluated(given, p))
            assert fractions == evaluated(results, p), (name, p)


def evaluated(nested, p):
    return tuple(evaluated(item, p) for item in nested) if isinstance(nested, tuple) else nested.at(p)


def test_below_the_first_precision_results_are_others():
    # 1 + 3 u is between 1 + 2 u and 1 + 4 u, and the tie goes to the even one; 5/2 u is below the middle.
    assert done(SymbolicArithmetic(), "add", 1, 3 * u) == 1 + 4 * u
    assert done(SymbolicArithmetic(), "add", 1, 5 * u / 2) == 1 + 2 * u
    others = 0
    for k in range(1, 60):
        ar = SymbolicArithmetic()
        result, before = done(ar, "add", 1 + 2 * u, k * u), ar.first - 1
        exact = (1 + (2 + k) * u).at(before)
        others += FractionArithmetic(before).round(exact) != result.at(before)
    assert others > 10


@pytest.mark.parametrize(
    ("mode", "above", "below"),
    [
        (Mode.NEAREST_EVEN, 1, -1),
        (Mode.NEAREST_AWAY, 1 + 2 * u, -1 - 2 * u),
        (Mode.TOWARD_ZERO, 1, -1),
        (Mode.UP, 1 + 2 * u, -1),
        (Mode.DOWN, 1, -1 - 2 * u),
        (Mode.TO_ODD, 1 + 2 * u, -1 - 2 * u),
    ],
)
def test_a_tie_in_every_mode(mode, above, below):
    ar = SymbolicArithmetic(mode)
    assert done(ar, "add", 1, u) - above == 0 * u
    assert done(ar, "sub", -1, u) - below == 0 * u


def test_what_cannot_be_decided_is_refused_with_the_reason():
    ar = SymbolicArithmetic()
    with pytest.raises(UndecidedError, match=r"1\. div: a coefficient 2/3 of the result is not dyadic"):
        ar.div(1, 3)
    with pytest.raises(UndecidedError, match="leading coefficient 2 of 2 has no rational root"):
        ar.sqrt(2)
    with pytest.raises(UndecidedError, match="its leading power is odd"):
        done(ar, "sqrt", u)
    with pytest.raises(UndecidedError, match=r"operand = 1 \+ u is no value of precision p"):
        done(ar, "add", 1 + u, 1)
    with pytest.raises(UndecidedError, match="no other format"):
        ar.like("bfloat16", Rounding())
    assert done(SymbolicArithmetic(over=EVEN), "sqrt", unit(EVEN)) == root(EVEN)


def test_other_refusals():
    ar = SymbolicArithmetic()
    with pytest.raises(ZeroDivisionError):
        done(ar, "div", 1, 0 * u)
    with pytest.raises(ValueError, match="negative number -1"):
        ar.sqrt(-1)
    with pytest.raises(ValueError, match="1/3 is not dyadic"):
        done(ar, "add", u, Fraction(1, 3))
    with pytest.raises(ValueError, match="nan is no finite number"):
        done(ar, "add", u, float("nan"))
    with pytest.raises(TypeError, match="is no polynomial"):
        done(ar, "add", u, "1")
    with pytest.raises(ValueError, match="stochastic"):
        SymbolicArithmetic("stochastic")
    with pytest.raises(ValueError, match=r"2 n in an arithmetic of p"):
        done(ar, "add", u, unit(EVEN))
    with pytest.raises(ValueError, match="needs an arithmetic with a format"):
        ar.run(eft.two_prod, 1 + 2 * u, 1 + 2 * u)


def test_zeros_and_signs():
    ar = SymbolicArithmetic()
    zero = done(ar, "sub", 1 + 2 * u, 1 + 2 * u)
    assert not zero
    assert done(ar, "mul", zero, u) == done(ar, "div", zero, u) == zero
    assert done(ar, "sqrt", zero) == done(ar, "neg", zero) == done(ar, "sign", zero) == zero
    assert done(ar, "sign", u - 2 * u) == -1 + 0 * u
    assert done(ar, "abs", 2 * u - 1) == 1 - 2 * u
    assert ar.run(lambda ar, x: (x, (1.5, 0)), u) == (u, (1.5 + 0 * u, zero))
    assert ar.run(lambda ar: ar.round(1 + u)) == 1 + 0 * u


def test_what_has_not_entered_is_refused():
    ar, other = SymbolicArithmetic(), SymbolicArithmetic()
    with pytest.raises(TypeError, match=r"1 \+ 2 u has not entered: hand it to an algorithm by run"):
        ar.add(1 + 2 * u, 1)
    with pytest.raises(ValueError, match="1 - u is a value of another arithmetic"):
        ar.neg(other.value(1 - u))
    with pytest.raises(TypeError, match="has not entered"):
        eft.two_sum(ar, 1 + 2 * u, 1)
    assert ar.run(lambda ar, x: ar.add(*eft.fast_two_sum(ar, x, 1)), 2 + 0 * u) == 3 + 0 * u
    assert repr(eft.two_sum(ar, ar.value(1 - u), ar.value(u))) == "(1, 0)"
