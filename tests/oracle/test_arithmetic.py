"""The oracle as an arithmetic, of a format and on fractions: the definition's results; what it refuses."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.oracle import FractionArithmetic, OracleArithmetic, operate, round_float, same
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding
from tests.shared.refusals import check, refusals, refused

from .operands import FLUSHING, ROUNDINGS, SMALL_FORMATS, label, values

BF16, E5M2 = FORMATS["bfloat16"], FORMATS["float8_e5m2"]
SAMPLES = (-math.inf, -3.0, -0.0, 0.0, 2.0**-16, 0.7, 1.25, 57344.0, math.inf, math.nan)
ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}


@pytest.mark.parametrize("rounding", [*ROUNDINGS, *FLUSHING[:3]], ids=label)
@pytest.mark.sampled(5, each=False)
def test_an_operation_is_that_of_the_definition(rounding):
    ar = OracleArithmetic(E5M2, rounding)
    for name, arity in ARITY.items():
        for operands in itertools.product(SAMPLES if arity < 3 else SAMPLES[::2], repeat=arity):
            found, expected = getattr(ar, name)(*operands), operate(name, operands, E5M2, rounding)
            assert isinstance(found, float)
            assert same(found, expected).all(), (name, operands)
    for x in (*SAMPLES, 1e6, 1e-9):
        assert same(ar.round(x), round_float(x, E5M2, rounding)).all()


@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_neg_and_abs_change_the_sign_alone(fmt):
    """In every mode and under every policy: no subnormal number is flushed."""
    for rounding in (Rounding(), Rounding("up"), *FLUSHING[:3]):
        ar = OracleArithmetic(fmt, rounding)
        for x in values(fmt).tolist():
            assert same(ar.neg(x), -x if x != 0 or fmt.has_negative_zero else 0.0).all()
            assert same(ar.abs(x), abs(x)).all()


def test_two_s_complement_has_no_number_opposite_to_its_least():
    ar = OracleArithmetic(get_format("int8"))
    assert (ar.neg(-128.0), ar.abs(-128.0), ar.neg(127.0)) == (127.0, 127.0, -127.0)


def test_an_algorithm_runs_on_it_and_real_numbers_enter_exactly():
    ar = OracleArithmetic(BF16)
    assert isinstance(ar, mcf.Arithmetic)
    assert ar.format is BF16
    assert mcf.two_sum(ar, 256.0, 1.0) == (256.0, 1.0)
    assert ar.evaluate(lambda inner, x: (inner.add(x[0], x[1]), inner is ar), (1.0, 2.0)) == (3.0, True)
    assert repr(OracleArithmetic(BF16, Rounding("up"))) == "OracleArithmetic(bfloat16, up, ieee)"
    assert ar.mul(3, 1.004) == 3.015625  # and 3.03125, had 1.004 been rounded first
    assert ar.neg(0.1) == -round_float(0.1, BF16)


# -- on fractions -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", DETERMINISTIC)
def test_fractions_are_rounded_as_in_a_wide_format(mode):
    operations = ARITY | {"neg": 1, "abs": 1, "sign": 1}
    for p, (name, count) in itertools.product((2, 3, 8, 24), operations.items()):
        rng = random.Random(p)
        wide = OracleArithmetic(Format(precision=p, emin=-400, emax=400), Rounding(mode))
        for _ in range(10):
            signs = (1,) if name == "sqrt" else (-1, 1)
            given = [
                rng.choice(signs) * rng.randrange(2 ** (p - 1), 2**p) * 2.0 ** rng.randrange(-p, p)
                for _ in range(count)
            ]
            found = getattr(FractionArithmetic(p, Rounding(mode)), name)(*map(Fraction, given))
            assert found == Fraction(getattr(wide, name)(*given))


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


# -- what is refused --------------------------------------------------------------------------------------
AR, BITS = OracleArithmetic(BF16), FractionArithmetic(3)


@refusals(
    refused(TypeError, "the format must be a Format, not 'bfloat16'", OracleArithmetic, "bfloat16"),
    refused(TypeError, "the rounding must be a Rounding, not 'up'", OracleArithmetic, (BF16, "up")),
    refused(ValueError, "has no one result", OracleArithmetic, (BF16, Rounding("stochastic"))),
    refused(ValueError, "binary64 does not hold", OracleArithmetic, Format(precision=60, emin=-14, emax=15)),
    refused(TypeError, "must be a Python float, not array", AR.add, (1.0, np.ones(2))),
    refused(TypeError, "not True of type bool", AR.add, (True, 1.0)),
    refused(TypeError, "not '1' of type str", AR.round, "1"),
    refused(TypeError, "of type tuple", AR.neg, ((1.0, 2.0),)),
    refused(ValueError, "one bit", FractionArithmetic, 0),
    refused(ValueError, "stochastic", FractionArithmetic, (3, Rounding(Mode.STOCHASTIC, random_bits=8))),
    refused(ValueError, "negative", BITS.sqrt, -1),
    refused(ValueError, "NaN", BITS.add, (math.nan, 1)),
    refused(OverflowError, "Infinity", BITS.add, (math.inf, 1)),
    refused(ZeroDivisionError, None, BITS.div, (1, 0)),
)
def test_what_it_cannot_do_is_refused(rows):
    check(rows)
