"""Neighbours and ulps, against lists of all values, the definition and NumPy."""

from bisect import bisect_left, bisect_right
from fractions import Fraction

import numpy as np
import pytest

from mcfsim.codec import all_values, code_dtype, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format, Posit
from mcfsim.kernels.carriers import UnsupportedFormatError
from tests.codec.definition import CUSTOM, MORE_GRIDS, P3109_FORMATS, POSITS, WIDE
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, WIDE_FORMATS, label
from tests.shared.formats import VARIANTS

LISTED = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS, WIDE, *CUSTOM, *VARIANTS[::5], *P3109_FORMATS[::7]]


def probes(fmt):
    """Return the values of a format, numbers between, beside and beyond them."""
    values = np.unique(all_values(fmt).astype(np.float64))
    values = values[np.isfinite(values)]
    if values.size > 900:
        middle = values.size // 2
        values = np.concatenate([values[:200], values[middle - 200 : middle + 200], values[-200:]])
    beside = [np.nextafter(values, end) for end in (-np.inf, np.inf)]
    between = values[1:] / 2 + values[:-1] / 2
    return np.concatenate([values, *beside, between, values[[0, -1]] * 3, [-1e300, 1e300]])


@pytest.mark.parametrize("fmt", [*LISTED, *MORE_GRIDS, *POSITS], ids=label)
@pytest.mark.sampled(3, each=False)
def test_neighbours_are_the_next_in_the_list(fmt):
    listed = np.unique(all_values(fmt).astype(np.float64)).tolist()
    numbers = probes(fmt)
    last = len(listed) - 1
    above = [listed[min(bisect_right(listed, x), last)] for x in numbers.tolist()]
    below = [listed[max(bisect_left(listed, x) - 1, 0)] for x in numbers.tolist()]
    assert np.array_equal(next_up(numbers, fmt), above)
    assert np.array_equal(next_down(numbers, fmt), below)
    if fmt.zero and fmt.signed:  # a zero has the sign of the number
        least = float(fmt.smallest_subnormal)
        assert np.signbit(next_up([-least, -least / 2], fmt)).tolist() == [fmt.has_negative_zero] * 2
        assert np.signbit(next_down([least], fmt)).tolist() == [False]


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_neighbours_are_numpys(name, assert_same):
    fmt = FORMATS[name]
    x = np.random.default_rng(2).integers(0, 2**fmt.bits, 2**14, dtype=code_dtype(fmt)).view(name)
    edges = np.array([0.0, fmt.max, np.inf, fmt.smallest_subnormal], dtype=name)
    x = np.concatenate([x[np.isfinite(x)], edges, -edges, [np.float32(np.nan)]])
    with np.errstate(all="ignore"):
        for function, end in ((next_up, np.inf), (next_down, -np.inf)):
            assert_same(function(x, fmt), np.nextafter(x, np.array(end, name)), x)


MAX = float(FORMATS["bfloat16"].max)
ABSENT = [(np.inf, "e4m3fn"), (-np.inf, "e8m0fnu"), (-np.inf, "binary8p3ue")]


@pytest.mark.parametrize(
    ("function", "x", "fmt", "expected"),
    [
        (next_up, [-np.inf, np.inf, np.nan], "bf16", [-MAX, np.inf, np.nan]),
        (next_down, [np.inf], "binary8p3ue", [1.25 * 2**31]),
        (next_down, [np.inf, -np.inf, np.nan], "bf16", [MAX, -np.inf, np.nan]),
        # What the format has not has no neighbour.
        *((f, [x], fmt, [np.nan]) for f in (next_up, next_down) for x, fmt in ABSENT),
        (ulp, [1e30, -1e300, 0.0, 2.0**-1074], "e4m3fn", [32.0, 32.0, 2.0**-9, 2.0**-9]),
        (ulp, [np.inf, -np.inf, np.nan], "bf16", [np.nan] * 3),
    ],
)
def test_ends_zeros_and_what_is_not_finite(function, x, fmt, expected, assert_same):
    assert_same(function(x, fmt), expected, x)


@pytest.mark.parametrize("fmt", [*LISTED, FORMATS["float32"], FORMATS["float64"]], ids=label)
@pytest.mark.sampled(3, each=False)
def test_the_ulp_is_that_of_the_definition(fmt):
    rng = np.random.default_rng(3)
    exponents = rng.integers(max(fmt.emin - fmt.precision, -1074), fmt.emax + 1, 200)
    x = np.ldexp(1 + rng.random(200), exponents) * rng.choice([-1, 1], 200)
    x = np.concatenate([x, 2.0 ** np.array([fmt.emin, fmt.emax, max(fmt.emin - 1, -1074)])])
    for number, step in zip(x.tolist(), ulp(x, fmt).tolist(), strict=True):
        numerator, denominator = abs(number).as_integer_ratio()  # the latter is a power of two
        exponent = numerator.bit_length() - denominator.bit_length()
        assert Fraction(step) == Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)


@pytest.mark.parametrize("fmt", MORE_GRIDS, ids=label)
def test_the_ulp_of_a_grid_is_its_quantum(fmt):
    x = np.array([0.0, 0.1, 1.0, -1.0, float(fmt.max), float(fmt.lowest), 1e9])
    assert ulp(x, fmt).tolist() == [float(fmt.quantum)] * x.size
    assert np.isnan(ulp([np.inf, np.nan], fmt)).all()


@pytest.mark.parametrize("fmt", POSITS, ids=label)
def test_the_ulp_of_a_posit_is_the_distance_to_the_next_above(fmt):
    values = all_values(fmt).astype(np.float64)
    values = values[values >= 0]
    steps = np.diff(values)
    middles = values[1:] / 2 + values[:-1] / 2
    assert np.array_equal(ulp(values, fmt), np.append(steps, steps[-1]))
    assert np.array_equal(ulp(-middles, fmt), steps)
    assert np.array_equal(ulp([-values[-1], 4 * values[-1]], fmt), steps[[-1, -1]])
    assert np.isnan(ulp([np.inf, np.nan], fmt)).all()


@pytest.mark.parametrize("function", [ulp, next_up, next_down])
@pytest.mark.parametrize("fmt", [Format("wide", precision=60, emin=-2000, emax=2000), Posit(58)])
def test_formats_beyond_binary64_have_no_neighbours_here(function, fmt):
    with pytest.raises(UnsupportedFormatError, match=str(fmt)):
        function([0.0], fmt)
