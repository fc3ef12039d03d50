"""Stand-ins for real scalars, against the oracle on every value that can tell; and scalars without one."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcfsim.backends.block_arithmetic import BlockArithmetic
from mcfsim.formats import Format, get_format
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, carrier_of
from mcfsim.kernels.stand_ins import addend_for, factor_for, neighbours
from mcfsim.oracle import OracleArithmetic, same
from mcfsim.rounding import DETERMINISTIC, Mode, Rounding, Underflow
from tests.oracle.operands import values

USUAL = [0.9, 0.999, 1 - 0.999, 1e-8, -3e-4, 1 / 3, 1e-30, 1e30, 3.0, 257.0]
#: Beside a boundary by less than binary32 resolves, beside a value, and beside a number half-way between two.
HARD = [0.9 * (1 + 2.0**-45), 1.4 - 2.0**-50, 9 / 7, 1 - 2.0**-53, 0.5 + 2.0**-40, 1 + 2.0**-9]
FORMATS = [
    *map(get_format, ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "tf32")),
    *(Format(precision=p, emin=-126, emax=127) for p in (9, 10, 11)),
    Format(precision=3, emin=-6, emax=7, zero=False, signed=False),
    Format(precision=4, emin=-126, emax=120, specials="none"),
]
policies = [Rounding(mode) for mode in DETERMINISTIC] + [
    Rounding("toward_zero", "saturate"),
    Rounding("nearest_even", "saturate", underflow=Underflow.FLUSH_BEFORE),
    Rounding("nearest_even", underflow=Underflow.FLUSH_INPUTS),
]


def telling(fmt: Format) -> np.ndarray:
    """Return all significands at the ends of the range and beside one, and all subnormal numbers."""
    p = fmt.precision
    significands = np.arange(2.0 ** (p - 1), 2.0**p)
    exponents = {*range(fmt.emin, fmt.emin + p + 2), -p, -1, 0, 5, fmt.emax - 1, fmt.emax}
    exponents = [e for e in exponents if fmt.emin <= e <= fmt.emax]
    numbers = np.multiply.outer([2.0 ** (e - p + 1) for e in exponents], significands).reshape(-1)
    small = np.arange(0.0, 2.0 ** (p - 1)) * 2.0 ** (fmt.emin - p + 1) if fmt.zero else numbers[:0]
    found = np.concatenate([small, numbers[numbers <= float(fmt.max)]])
    return np.concatenate([found, -found] if fmt.signed else [found])


def check(x, fmt, rounding, scalar):
    ar, judge = BlockArithmetic(fmt, rounding, "exact"), OracleArithmetic(fmt, rounding)
    block = np.resize(x, max(x.size, 1 << 12)).astype(carrier_of(fmt))  # large enough for a search
    for name, turn in (("mul", 1), ("mul", -1), ("div", 1), ("add", 1), ("sub", 1), ("sub", -1)):
        with np.errstate(all="ignore"):
            found = getattr(ar, name)(*(block, scalar)[::turn])[: x.size].astype(np.float64)
        expected = np.array([getattr(judge, name)(*(a, scalar)[::turn]) for a in x.tolist()])
        wrong = ~same(found, expected)
        witness = (fmt, rounding, scalar, name, x[wrong][:1], found[wrong][:1], expected[wrong][:1])
        assert not wrong.any(), witness


@pytest.mark.parametrize("part", range(240))
@pytest.mark.sampled(240, each=False)
@pytest.mark.slow
def test_operations_with_a_scalar_are_the_oracles(part):
    """Scalars that have a stand-in and scalars that have none."""
    every = [*product(FORMATS, policies, USUAL + HARD)]
    for place in np.random.default_rng(1).permutation(len(every))[part::240]:
        x = telling(every[place][0])
        check(x if x.size <= 150 else np.random.default_rng(0).choice(x, 150, replace=False), *every[place])


@pytest.mark.parametrize(
    ("name", "mode", "scalar"),
    [
        ("bfloat16", "nearest_even", 1 - 0.999),
        ("float16", "nearest_even", 0.9 * (1 + 2.0**-45)),
        ("float16", "up", 1 - 0.999),
        ("bfloat16", "to_odd", 0.999),
    ],
)
@pytest.mark.exhaustive
def test_all_values(name, mode, scalar):
    check(values(get_format(name)), get_format(name), Rounding(mode), scalar)


@pytest.mark.parametrize("precision", [2, 4, 8, 9, 10])
@pytest.mark.slow
def test_there_is_one_where_the_theorem_says_so(precision):
    """Binary32 has 24 bits, 2p + 5 or more up to p = 9, and mostly enough for p = 10."""
    fmt = Format(precision=precision, emin=-20, emax=20)
    rng = np.random.default_rng(precision)
    drawn = [*rng.uniform(0.5, 2, 100), *HARD, *(9 / 7 * (1 + k * 2.0**-50) for k in range(1, 30))]
    missing = [s for s in drawn if factor_for(s, fmt, Rounding(), FLOAT32) is None]
    assert len(missing) <= (0 if precision < 10 else len(drawn) // 4)
    wide = get_format("float32")
    assert all(factor_for(s, wide, Rounding(), FLOAT64) is not None for s in drawn if s not in (1 + 2.0**-9,))


@pytest.mark.slow
def test_quotients_of_significands_have_one_that_rounds_alike():
    """Their products lie beside a boundary; the nearest number of binary32 brings many to its other side."""
    fmt, significands, failed = get_format("bfloat16"), np.arange(128, 256, dtype=np.float32), 0
    kernel, judge = get_kernel(fmt, Rounding(), FLOAT32), OracleArithmetic(fmt)
    for m, n in product(range(129, 256, 12), range(257, 512, 34)):
        scalar = n / m * (1 + 2.0**-40)
        factors = factor_for(scalar, fmt, Rounding(), FLOAT32), np.float32(scalar)
        found, nearest = (significands * x for x in factors)
        for products in (found, nearest):
            kernel(products, products)
        expected = [judge.mul(x, scalar) for x in significands.tolist()]
        np.testing.assert_array_equal(found, expected)
        failed += not np.array_equal(nearest, expected)
    assert failed > 8


@pytest.mark.slow
def test_neighbours_are_those_of_all_fractions():
    rng = np.random.default_rng(0)
    for most in (1, 2, 7, 16, 31):
        every = sorted({Fraction(n, d) for d in range(1, most + 1) for n in range(4 * d + 1)})
        for s in rng.uniform(0.1, 3.5, 40):
            exact = Fraction(float(s))
            below = max(x for x in every if x < exact)
            above = min(x for x in every if x > exact)
            assert neighbours(exact, most) == (below, above)


@pytest.mark.parametrize(
    ("scalar", "fmt", "rounding"),
    [
        *((x, "bfloat16", Rounding()) for x in (0.0, -0.0, math.inf, math.nan)),
        *((0.9, fmt, Rounding()) for fmt in ("posit16", "int8")),
        (0.9, "bfloat16", Rounding("stochastic")),
        (0.9, "bfloat16", Rounding(underflow=Underflow.FLUSH_AFTER)),
    ],
)
def test_what_is_no_nonzero_number_and_where_nothing_is_proved_there_is_none(scalar, fmt, rounding):
    for find in (factor_for, addend_for):
        assert find(scalar, get_format(fmt), rounding, FLOAT32) is None


def test_sums_that_cancel_or_lie_beside_a_tie_have_none_in_binary32():
    """Of these, bits beyond those of binary32 decide."""
    fmt = get_format("bfloat16")
    for scalar in (1 + 2.0**-40, 0.5 + 2.0**-40, 2.0**-100 * (1 - 2.0**-40)):
        assert addend_for(scalar, fmt, Rounding(), FLOAT32) is None
    assert addend_for(257.0, fmt, Rounding(), FLOAT64) is None  # with 2**-100 it is no tie
    for mode in (Mode.UP, Mode.TO_ODD):
        assert addend_for(1e-8, fmt, Rounding(mode), FLOAT64) is None
