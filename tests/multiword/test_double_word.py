"""Double-word algorithms: their steps in exact rationals, costs and specials.

Their bounds and hardest operands are theorems of the catalogue: see tests/theorems.
"""

import itertools
import re

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.formats import FORMATS
from mcfsim.multiword import double_word
from mcfsim.oracle import round_integers
from tests.multiword.words import double_words, fractions, unbounded
from tests.oracle.operands import label
from tests.oracle.steps import Steps

E4M3FN, E5M2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]
ALGORITHMS = {name: getattr(double_word, name) for name in double_word.__all__ if name != "DoubleWord"}
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def operands_of(name, x, y):
    """Return the double words x and y as an algorithm's operands: y may be a number, or none."""
    if name == "sqrt_dw":
        return (x,)
    return (x, y[0]) if "fp" in name else (x, y)


def of_same_sign(name, x, y):
    """Return operands with the same sign if the algorithm is to be trusted with those alone."""
    if name not in ("sloppy_dw_plus_dw", "sqrt_dw"):
        return x, y
    return tuple(tuple(np.copysign(1.0, z[0]) * part for part in z) for z in (x, y))


@every_algorithm
def test_the_steps_are_those_of_exact_rationals(name):
    """Even where Fast2Sum takes the place of 2Sum: the errors are the exact ones."""
    for precision in (3, 4, 8):
        x, y = (double_words(unbounded(precision), 24, seed, exponents=(-4, 5)) for seed in (6, 7))
        operands = operands_of(name, *of_same_sign(name, x, y))
        rows = zip(*map(fractions, operands), strict=True)
        expected = [getattr(Steps(precision), name)(*row) for row in rows]
        result = ALGORITHMS[name](mcf.arithmetic(unbounded(precision)), *operands)
        assert fractions(result) == expected
        high, low = (part.astype(np.float64) for part in result)
        assert np.array_equal(round_integers(high + low, unbounded(precision)), high)  # a double word


@every_algorithm
def test_the_operations_are_as_many_as_its_docstring_says(name):
    meter = mcf.Meter(mcf.arithmetic("bf16"))
    ALGORITHMS[name](meter, *operands_of(name, (3.0, 2.0**-9), (1.5, 2.0**-10)))
    count = len([operation for operation in meter.trace if operation != "neg"])
    assert re.search(r" (\d+) operations", ALGORITHMS[name].__doc__)[1] == str(count)


# -- specials and refusals --------------------------------------------------------------------------------
@every_algorithm
@pytest.mark.parametrize("fmt", [E5M2, E4M3FN], ids=label)
def test_specials_and_overflow_leave_nans(name, fmt):
    one, largest = (1.5, 0.0), (float(fmt.max), 0.0)
    specials = [(x, 0.0) for x in ((np.nan, np.inf, -np.inf) if fmt.has_infinity else (np.nan,))]
    leave_nan = [((1.5, np.nan), one), *((x, one) for x in specials)]
    if name == "sqrt_dw":
        leave_nan += [((x, 0.0), one) for x in (0.0, -0.0, -1.5)]
    else:
        leave_nan += [(one, x) for x in specials]
        # Where the result overflows the low word is not finite.
        y = float(fmt.smallest_normal if "div" in name else fmt.max)
        operands = operands_of(name, largest, (y, 0.0))
        assert not np.isfinite(ALGORITHMS[name](mcf.arithmetic(fmt), *operands)[1])
    if "div" in name:
        leave_nan += itertools.product((one, (0.0, 0.0)), ((0.0, 0.0), (-0.0, 0.0)))
    for x, y in leave_nan:
        assert np.isnan(ALGORITHMS[name](mcf.arithmetic(fmt), *operands_of(name, x, y))).all(), (x, y)


@every_algorithm
def test_what_is_no_pair_of_words_is_refused(name):
    good, of_bf16 = (1.5, 0.0), mcf.arithmetic("bf16")
    for bad, error, message in (
        ((1.0, 0.0, 0.0), ValueError, r"a tuple \(high, low\), not one of 3 components"),
        (np.array([1.5, 0.0]), TypeError, r"a tuple \(high, low\), not of type ndarray"),
    ):
        with pytest.raises(error, match=message):
            ALGORITHMS[name](of_bf16, *operands_of(name, bad, good))
    if operands_of(name, good, good)[1:] == (good,):
        with pytest.raises(ValueError, match="not one of 1 components"):
            ALGORITHMS[name](of_bf16, good, (1.0,))


def test_the_root_of_zero_is_an_error_in_exact_arithmetic():
    with pytest.raises(ZeroDivisionError):
        double_word.sqrt_dw(mcf.arithmetic(None, backend="exact"), (0.0, 0.0))
