"""The second oracle: published libraries, and what each of them gets wrong.

gfloat is compared in its modes, ml_dtypes and NumPy in what `test_rounding` and `test_backends` leave out.
What they round otherwise than IEEE 754 or twice is left out; the definition judges that.
"""

import itertools
from dataclasses import replace
from fractions import Fraction
from functools import cache

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import RoundMode, formats

import mcfsim as mcf
from mcfsim import round_to
from mcfsim.formats import FORMATS, Grid, Parity, p3109
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Overflow, Rounding, Rule
from tests.oracle.operands import count, label, magnitudes, random_tuples, values
from tests.shared.formats import p3109_formats, p3109_of_gfloat

E8M0 = FORMATS["float8_e8m0fnu"]
INFO = {
    FORMATS["float8_e5m2"]: formats.format_info_ocp_e5m2,
    FORMATS["float8_e4m3fn"]: formats.format_info_ocp_e4m3,
    FORMATS["float6_e3m2fn"]: formats.format_info_ocp_e3m2,
    FORMATS["float6_e2m3fn"]: formats.format_info_ocp_e2m3,
    FORMATS["float4_e2m1fn"]: formats.format_info_ocp_e2m1,
    FORMATS["bfloat16"]: formats.format_info_bfloat16,
    FORMATS["float16"]: formats.format_info_binary16,
    FORMATS["float32"]: formats.format_info_binary32,
    replace(E8M0, parity=Parity.CODE): formats.format_info_ocp_e8m0,  # where 2 of 1, 2, 4 is even
}
MODES = {
    Mode.TOWARD_ZERO: RoundMode.TowardZero,
    Mode.UP: RoundMode.TowardPositive,
    Mode.DOWN: RoundMode.TowardNegative,
    Mode.NEAREST_EVEN: RoundMode.TiesToEven,
    Mode.NEAREST_AWAY: RoundMode.TiesToAway,
}
RULES = {
    Rule.NEAREST_FIRST: RoundMode.Stochastic,
    Rule.CENTRED: RoundMode.StochasticFast,
    Rule.TRUNCATE: RoundMode.StochasticFastest,
}
OVERFLOWS = (Overflow.IEEE, Overflow.SATURATE)


P3109 = {fmt: p3109_of_gfloat(fmt) for fmt in p3109_formats(range(3, 9))}
WIDE_P3109 = {
    p3109(bits, precision): formats.format_info_p3109(bits, precision)
    for bits, precision in ((10, 1), (12, 4), (14, 13), (16, 8), (16, 11))
}
ALL = INFO | P3109 | WIDE_P3109


@cache
def between(fmt, steps):
    """Return numbers of a format, what divides the gap above each into so many steps, also the last one's."""
    size = count(fmt)
    places = np.arange(min(size, 300))
    if size > 300:
        inner = np.random.default_rng(1).integers(0, size, 300)
        places = np.unique(np.concatenate([places, inner, size - 1 - places]))
    numbers = magnitudes(fmt, places)
    above = np.append(magnitudes(fmt, places[:-1] + 1), float(fmt.max) + float(fmt.max / fmt.max_significand))
    share = np.arange(0, 1, 1 / steps)
    return np.unique(numbers[:, None] + (above - numbers)[:, None] * share)


@cache
def boundaries(fmt):
    """Return values and midpoints, the float64 next to each, extreme numbers and NaN, negative ones too."""
    extreme = [2.0**-1000, 2.0**1000, 1.5 * float(fmt.max), 4 * float(fmt.max)]
    exact = np.concatenate([between(fmt, 2), extreme])
    source = np.unique(np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)]))
    return np.concatenate([source, -source, [np.nan, np.inf, -np.inf]])


def comparable(x, fmt, saturates):
    """Return the numbers about which gfloat and we mean the same; the definition says the others."""
    if saturates or not fmt.has_nan:
        x = x[~np.isinf(x)]
    if not fmt.signed:
        x = x[~(np.signbit(x) & (x != 0))]
    if not fmt.has_nan and not saturates:
        x = x[~(np.abs(x) > float(fmt.max))]
    if not fmt.zero:
        x = x[~(np.abs(x) < float(fmt.smallest_normal))]
    return x


def by_gfloat(x, fmt, mode, overflow, *draw):
    with np.errstate(all="ignore"):
        return gfloat.round_ndarray(ALL[fmt], x, mode, overflow is Overflow.SATURATE, *draw)


# -- gfloat -----------------------------------------------------------------------------------------------
def test_the_formats_of_p3109_are_all_there():
    assert len(P3109) == sum(4 * bits - 2 for bits in range(3, 9))


@pytest.mark.parametrize("fmt", ALL, ids=label)
@pytest.mark.sampled(6, each=False)
def test_every_boundary_rounds_as_in_gfloat(fmt, assert_same):
    for mode, overflow in itertools.product(MODES, OVERFLOWS):
        x = comparable(boundaries(fmt), fmt, overflow is Overflow.SATURATE)
        assert_same(round_to(x, fmt, mode, overflow), by_gfloat(x, fmt, MODES[mode], overflow), x)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", [*INFO, *p3109_formats((4, 8)), *WIDE_P3109], ids=label)
@pytest.mark.sampled(8, each=False)
def test_random_draws_round_as_in_gfloat(fmt, rule, assert_same):
    """Sixteenths of the gaps, ties of the rules among them; in gfloat their sums with the draws are exact."""
    for r, overflow in itertools.product((1, 3), OVERFLOWS):
        x = between(fmt, 16)
        x = comparable(np.concatenate([x, -x, [np.nan]]), fmt, overflow is Overflow.SATURATE)
        draws = np.random.default_rng(r).integers(0, 2**r, x.size)
        x, draws = np.concatenate([x, x]), np.concatenate([draws, 2**r - 1 - draws])
        words = (draws << (32 - r)).astype(np.uint32)
        rounding = Rounding("stochastic", overflow, random_bits=r, rule=rule)
        expected = by_gfloat(x, fmt, RULES[rule], overflow, draws, r)
        assert_same(round_to(x, fmt, rounding, random=words), expected, x, draws)


@pytest.mark.parametrize("mode", MODES)
def test_mxint8_rounds_as_in_gfloat(mode, assert_same):
    exact = np.arange(-300, 301) / 128
    x = np.concatenate([exact, np.nextafter(exact, -9), np.nextafter(exact, 9), [1e9, -1e9, 1e-300]])
    expected = gfloat.round_ndarray(formats.format_info_ocp_int8, x, MODES[mode], True)
    assert_same(round_to(x, Grid(low=-128, high=127, fraction_bits=6), mode), expected, x)


# -- ml_dtypes --------------------------------------------------------------------------------------------
SHORT = [fmt for fmt in FORMATS.values() if fmt.bits <= 16 and fmt.zero]


def dtype_of(fmt):
    return np.dtype(getattr(ml_dtypes, fmt.name, fmt.name))


@pytest.mark.parametrize("source", [fmt for fmt in SHORT if fmt.has_nan], ids=label)
@pytest.mark.parametrize("target", SHORT, ids=label)
def test_every_value_is_cast_from_format_to_format_as_in_ml_dtypes(source, target, assert_same):
    x = values(source)
    if not target.has_nan:
        x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        given = x.astype(np.float32).astype(dtype_of(source))
        expected = given.astype(dtype_of(target)).astype(np.float64)
    assert_same(round_to(given, target), expected, x)


def test_e8m0_is_that_of_ml_dtypes_but_between_its_two_smallest_numbers(assert_same):
    """There, among the subnormal numbers of float32, ml_dtypes rounds all up, and not only the upper half."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 2**18, dtype=np.uint32).view(np.float32)
    exact = between(E8M0, 2).astype(np.float32)
    x = np.concatenate([x, exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)])
    x = np.concatenate([x, -x, np.float32([0.0, -0.0, 2.0**-149])])
    with np.errstate(all="ignore"):
        theirs = x.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    upward = (x > 2.0**-127) & (x < 1.5 * 2.0**-127)
    assert_same(round_to(x[~upward], E8M0), theirs[~upward], x[~upward])
    assert upward.any()
    assert set(theirs[upward].tolist()) == {2.0**-126}
    for number in map(Fraction, x[upward][:100].tolist()):
        assert number - Fraction(1, 2**127) < Fraction(1, 2**126) - number
        assert round_fraction(number, E8M0) == round_to(number, E8M0) == 2.0**-127


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("fmt", [fmt for fmt in SHORT if not fmt.has_nan], ids=label)
def test_all_pairs_without_nan_give_the_bits_of_ml_dtypes(fmt, name, assert_same):
    a, b = values(fmt)[:, None], values(fmt)[None, :]
    if name == "div":
        b = b[b != 0][None, :]
    native = getattr(mcf.arithmetic(fmt, backend="native"), name)
    expected = native(a.astype(dtype_of(fmt)), b.astype(dtype_of(fmt))).astype(np.float64)
    assert_same(getattr(mcf.arithmetic(fmt), name)(a, b), expected, a, b)


# -- NumPy ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["float16", "float32"])
def test_float64_is_cast_as_in_numpy(name, assert_same):
    fmt = FORMATS[name]
    patterns = np.random.default_rng(2).integers(0, 2**64, 2**18, dtype=np.uint64).view(np.float64)
    x = np.concatenate([boundaries(fmt), patterns, *random_tuples(FORMATS["float64"], 2**16, 1, seed=3)])
    with np.errstate(all="ignore"):
        assert_same(round_to(x, name), x.astype(name).astype(np.float64), x)
