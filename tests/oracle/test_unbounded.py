"""The oracle on fractions: it rounds as the oracle of a wide format does, and numbers of any length."""

import random
from fractions import Fraction

import pytest

from mcfsim.formats import Format
from mcfsim.oracle import FractionArithmetic, OracleArithmetic
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding

OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3, "neg": 1, "abs": 1, "sign": 1}


@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_it_rounds_as_a_wide_format(mode):
    for p in (2, 3, 8, 24):
        check(p, mode)


def check(p, mode):
    rng = random.Random(p)
    wide = OracleArithmetic(Format(precision=p, emin=-400, emax=400), Rounding(mode))
    free = FractionArithmetic(p, Rounding(mode))
    for name, count in OPERATIONS.items():
        for _ in range(10):
            given = [
                rng.choice((-1, 1)) * rng.randrange(2 ** (p - 1), 2**p) * 2.0 ** rng.randrange(-p, p)
                for _ in range(count)
            ]
            if name == "sqrt":
                given = [abs(x) for x in given]
            assert getattr(free, name)(*map(Fraction, given)) == Fraction(getattr(wide, name)(*given))


@pytest.mark.parametrize("mode", [Mode.NEAREST_EVEN, Mode.DOWN, Mode.UP])
def test_roots_of_many_bits(mode):
    for x in (Fraction(2), Fraction(3, 2**41), Fraction(2**100 + 1)):
        root = FractionArithmetic(200, Rounding(mode)).sqrt(x)
        ulp = Fraction(2) ** (root.numerator.bit_length() - root.denominator.bit_length() - 199)
        if mode is Mode.DOWN:
            assert root**2 <= x < (root + 2 * ulp) ** 2
        elif mode is Mode.UP:
            assert (root - 2 * ulp) ** 2 < x <= root**2
        assert abs(root**2 - x) <= 4 * root * ulp


def test_what_it_refuses():
    with pytest.raises(ValueError, match="one bit"):
        FractionArithmetic(0)
    with pytest.raises(ValueError, match="stochastic"):
        FractionArithmetic(3, Rounding(Mode.STOCHASTIC, random_bits=8))
    with pytest.raises(ValueError, match="negative"):
        FractionArithmetic(3).sqrt(-1)
    with pytest.raises(ZeroDivisionError):
        FractionArithmetic(3).div(1, 0)
