"""The second oracle: published libraries, and what each of them gets wrong.

gfloat is compared in its modes, ml_dtypes and NumPy in what `test_rounding` and `test_backends` leave out.
Where a library differs, a test of its own pins the difference and shows by rational numbers who is right.
"""

import itertools
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cache

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import Domain, RoundMode, Signedness, formats

import mcfsim as mcf
from mcfsim import round_to
from mcfsim.formats import FORMATS, Grid, Parity, p3109
from mcfsim.oracle import round_fraction
from mcfsim.rounding import Mode, Overflow, Rounding, Rule
from tests.oracle.operands import count, label, magnitudes, random_tuples, values

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
    replace(E8M0, parity=Parity.CODE): formats.format_info_ocp_e8m0,  # what is even there, see below
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


def p3109_formats(*widths):
    """Return the formats of IEEE P3109 of these widths that have a normal number, and gfloat's."""
    found = {}
    for bits, signed, extended in itertools.product(widths, (True, False), (True, False)):
        signedness = Signedness.Signed if signed else Signedness.Unsigned
        domain = Domain.Extended if extended else Domain.Finite
        for precision in range(1, bits + 1):
            with suppress(ValueError):  # there is no such format, or it has no normal number
                fmt = p3109(bits, precision, signed=signed, extended=extended)
                found[fmt] = formats.format_info_p3109(bits, precision, signedness, domain)
    return found


P3109 = p3109_formats(3, 4, 5, 6, 7, 8)
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
    """Return the numbers about which gfloat and we mean the same; the others have tests of their own."""
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
def test_every_boundary_rounds_as_in_gfloat(fmt, assert_same):
    for mode, overflow in itertools.product(MODES, OVERFLOWS):
        x = comparable(boundaries(fmt), fmt, overflow is Overflow.SATURATE)
        assert_same(round_to(x, fmt, mode, overflow), by_gfloat(x, fmt, MODES[mode], overflow), x)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", [*INFO, *p3109_formats(4, 8), *WIDE_P3109], ids=label)
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


@pytest.mark.parametrize(("number", "by_code"), [(1.5, 2.0), (3.0, 2.0), (6.0, 8.0), (12.0, 8.0)])
def test_of_powers_of_two_alone_gfloat_calls_those_of_even_code_even(number, by_code):
    """The significands are all 1: by IEEE 754-2019, 4.3.1, the larger magnitude is taken, as in ml_dtypes."""
    away = Fraction(number) * 4 / 3
    assert away - Fraction(number) == Fraction(number) - away / 2
    assert gfloat.round_float(formats.format_info_ocp_e8m0, number) == by_code
    assert float(np.float32(number).astype(ml_dtypes.float8_e8m0fnu)) == away
    assert round_to(number, E8M0) == away
    assert round_to(number, replace(E8M0, parity=Parity.CODE)) == by_code


def test_gfloat_leaves_numbers_below_the_smallest_and_zero_as_they_are_in_a_format_without_them():
    """2**-140 and 0 are no values of e8m0; ours become its smallest number and NaN."""
    x = np.array([2.0**-140, 2.0**-128, 0.0])
    assert gfloat.round_ndarray(formats.format_info_ocp_e8m0, x).tolist() == x.tolist()
    codes = [gfloat.decode_float(formats.format_info_ocp_e8m0, code).fval for code in range(256)]
    assert not set(x.tolist()) & set(codes)
    np.testing.assert_array_equal(round_to(x, E8M0), [2.0**-127, 2.0**-127, np.nan])


def test_gfloat_makes_an_infinity_finite_where_it_saturates():
    x = np.array([np.inf, -np.inf])
    for fmt, kept in ((FORMATS["float8_e5m2"], [np.inf, -np.inf]), (FORMATS["float8_e4m3fn"], [np.nan] * 2)):
        assert by_gfloat(x, fmt, RoundMode.TiesToEven, Overflow.SATURATE).tolist() == [fmt.max, -fmt.max]
        np.testing.assert_array_equal(round_to(x, fmt, overflow="saturate"), kept)


def test_gfloat_gives_negative_numbers_to_an_unsigned_format():
    """For a number that the format has not, ours is NaN, or the least one where it saturates."""
    fmt = p3109(8, 3, signed=False)
    info = P3109[fmt]
    x = np.array([-1.0, -(2.0**-30), -np.inf])
    assert gfloat.round_ndarray(info, x).tolist() == x.tolist()
    assert min(gfloat.decode_float(info, code).fval for code in range(255)) == 0
    assert np.isnan(round_to(x, fmt)).all()
    np.testing.assert_array_equal(round_to(x, fmt, overflow="saturate"), [0, 0, np.nan])


@pytest.mark.parametrize("fmt", [fmt for fmt in INFO if not fmt.has_nan], ids=label)
def test_gfloat_raises_for_an_overflow_where_there_is_neither_infinity_nor_nan(fmt):
    """Ours is the maximum: for such a format no other policy makes sense."""
    with pytest.raises(ValueError, match="No Infs or NaNs"):
        by_gfloat(np.array([100.0]), fmt, RoundMode.TiesToEven, Overflow.IEEE)
    assert round_to(np.array([100.0, -100.0]), fmt).tolist() == [fmt.max, -fmt.max]


@pytest.mark.parametrize("r", [1, 8, 13])
@pytest.mark.parametrize("rule", [Rule.CENTRED, Rule.TRUNCATE])
def test_gfloat_rounds_the_sum_of_fraction_and_draw_and_so_rounds_up_too_often(rule, r):
    """A fraction just short of what the largest draw lacks to 1 stays below 1, but not in binary64."""
    fmt = FORMATS["bfloat16"]
    bits = r + (rule is Rule.CENTRED)
    fraction = np.nextafter(2.0**-bits, 0)
    assert Fraction(fraction) + 1 - Fraction(1, 2**bits) < 1
    x, draw = np.array([fraction * 2.0**-133]), np.array([2**r - 1])
    rounding = Rounding("stochastic", random_bits=r, rule=rule)
    assert by_gfloat(x, fmt, RULES[rule], Overflow.IEEE, draw, r) == 2.0**-133
    assert round_to(x, fmt, rounding, random=(draw << (32 - r)).astype(np.uint32)) == 0


def test_gfloat_doubles_draws_in_their_own_type_and_overflows_in_uint8():
    """0.5 + (2 * 255 + 1) / 512 exceeds 1."""
    x, draw = np.array([1.125]), np.array([255], dtype=np.uint8)
    fmt, mode = p3109(8, 3), RoundMode.StochasticFast
    rounding = Rounding("stochastic", random_bits=8, rule="centred")
    assert by_gfloat(x, fmt, mode, Overflow.IEEE, draw, 8) == 1.0
    assert by_gfloat(x, fmt, mode, Overflow.IEEE, draw.astype(np.int64), 8) == 1.25
    assert round_to(x, fmt, rounding, random=np.array([255 << 24], np.uint32)) == 1.25


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


@pytest.mark.parametrize("fmt", [fmt for fmt in SHORT if not fmt.has_nan], ids=label)
def test_ml_dtypes_makes_numbers_of_nan_and_infinity_where_the_format_lacks_them(fmt):
    x = np.float32([np.nan, np.inf, -np.inf])
    with np.errstate(all="ignore"):
        assert x.astype(dtype_of(fmt)).astype(float).tolist() == [0, fmt.max, -fmt.max]
        one = np.ones(1, dtype_of(fmt))
        assert (one / (one - one)).astype(float) == fmt.max
        assert np.sqrt(-one).astype(float) == 0
    assert np.isnan(round_to(x, fmt)).all()
    assert np.isnan(mcf.arithmetic(fmt).div(1.0, 0.0))
    assert np.isnan(mcf.arithmetic(fmt).sqrt(-1.0))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_e8m0_arithmetic_is_that_of_ml_dtypes_unless_float32_underflows(name, assert_same):
    """A product below half of 2**-149 is 0 in float32, and 0 is NaN; ours is rounded once, to 2**-127."""
    a, b = np.broadcast_arrays(magnitudes(E8M0)[:, None], magnitudes(E8M0)[None, :])
    native = getattr(mcf.arithmetic(E8M0, backend="native"), name)
    with np.errstate(all="ignore"):
        theirs = native(a.astype(dtype_of(E8M0)), b.astype(dtype_of(E8M0))).astype(np.float64)
    ours = getattr(mcf.arithmetic(E8M0), name)(a, b)
    in_binary64 = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[name]
    lost = (in_binary64 > 0) & (in_binary64 <= 2.0**-150)
    assert lost.any() == (name in ("mul", "div"))
    assert_same(ours[~lost], theirs[~lost], a[~lost], b[~lost])
    assert np.isnan(theirs[lost]).all()
    assert (ours[lost] == 2.0**-127).all()


@pytest.mark.parametrize("integer", [np.int32, np.int64, np.uint32, np.uint64])
def test_ml_dtypes_rounds_an_integer_twice(integer):
    """Through float32, in which 2**30 + 2**22 + 1 is 2**30 + 2**22, a tie of bfloat16."""
    x = np.array([2**30 + 2**22 + 1], dtype=integer)
    assert x.astype(ml_dtypes.bfloat16).astype(float) == 2**30
    assert round_fraction(Fraction(int(x[0])), FORMATS["bfloat16"]) == round_to(x, "bf16") == 2**30 + 2**23


# -- NumPy ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["float16", "float32"])
def test_float64_is_cast_as_in_numpy(name, assert_same):
    fmt = FORMATS[name]
    patterns = np.random.default_rng(2).integers(0, 2**64, 2**18, dtype=np.uint64).view(np.float64)
    x = np.concatenate([boundaries(fmt), patterns, *random_tuples(FORMATS["float64"], 2**16, 1, seed=3)])
    with np.errstate(all="ignore"):
        assert_same(round_to(x, name), x.astype(name).astype(np.float64), x)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="longdouble is no longer than binary64")
def test_numpy_rounds_a_longdouble_twice():
    """Through binary64, in which 1 + 2**-11 + 2**-60 is 1 + 2**-11, a tie of float16."""
    x = np.longdouble(1) + np.longdouble(2) ** -11 + np.longdouble(2) ** -60
    assert np.float16(x) == 1
    exact = 1 + Fraction(1, 2**11) + Fraction(1, 2**60)
    assert round_to(x, "float16") == round_fraction(exact, FORMATS["float16"]) == 1 + 2.0**-10


# -- fixed examples from another emulator, pychop 0.6.2 ----------------------------------------------------
# Format, mode, number, our result; in comments, its result.
ANOTHER = [
    ("float16", "nearest_even", 1.9712302 * 2**16, np.inf),  # 0: the exponent field is cut to its largest
    ("float16", "toward_zero", 1.9712302 * 2**16, 65504.0),  # 0
    ("float8_e5m2", "nearest_even", 1.95 * 2**15, np.inf),  # 65536, which is no value of the format
    ("float16", "toward_zero", np.nextafter(32.0, 0), 31.984375),  # 31.96875: log2 was rounded up
    ("bfloat16", "nearest_even", np.nextafter(1.5 * 2.0**-133, 0), 2.0**-133),  # 2**-132: so it was
    ("float8_e5m2", "nearest_away", np.nextafter(1.625, 0), 1.5),  # 1.75: it is nearer to 1.5
    ("float8_e5m2", "to_odd", 96.0, 96.0),  # 112: a value has moved
    ("float16", "nearest_even", 1.001 * 2.0**-25, 2.0**-24),  # 0: just above half of the smallest number
    ("float16", "up", 2.0**-1074, 2.0**-24),  # NaN
]


@pytest.mark.parametrize(("name", "mode", "number", "expected"), ANOTHER)
def test_what_another_emulator_gets_wrong(name, mode, number, expected):
    exact = round_fraction(Fraction(number), FORMATS[name], Rounding(mode))
    assert round_to(np.array([number]), name, mode) == exact == expected
