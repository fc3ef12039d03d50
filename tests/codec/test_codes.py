"""Codes by the definition, as in ml_dtypes and gfloat, and seen as NumPy's arrays; neighbours and ulps."""

import math
import re
from bisect import bisect_left, bisect_right
from fractions import Fraction

import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from mcfsim.codec import all_values, as_dtype, code_dtype, codes_of, decode, encode, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format, Grid, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle.posits import posit_value
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, WIDE_FORMATS, label
from tests.shared.formats import GRIDS, LARGE_POSITS, VARIANTS, p3109_formats, p3109_of_gfloat, some_codes
from tests.shared.rationals import floor_log2
from tests.shared.refusals import check, refusals, refused

# -- the definition ---------------------------------------------------------------------------------------
P3109_FORMATS = p3109_formats(range(2, 11))
WIDE = Format(precision=9, emin=-62, emax=63)
CUSTOM = [
    Format(precision=2, emin=-1, emax=1),
    Format(precision=5, emin=-1000, emax=-990),
    *(Format(precision=3, emin=-6, emax=4, specials=specials) for specials in ("fn", "fnuz", "none")),
]
POSITS = [Posit(bits, es) for bits in (3, 4, 6, 8, 11) for es in (0, 1, 2, 3)] + [Posit(17)]
MORE_GRIDS = [
    *GRIDS,
    Grid(low=-5, high=9, fraction_bits=2),
    Grid(low=0, high=5, fraction_bits=-3),
    Grid(low=-8, high=7, fraction_bits=1025),
    Grid(low=-(2**16), high=2**16 - 1),  # decoded without a table
]
DEFINED = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *CUSTOM, WIDE, *VARIANTS, *P3109_FORMATS, *POSITS, *MORE_GRIDS]


def value_of(code, fmt):
    """Return what a code stands for, or None for nothing.

    Of a floating-point format the sign lies on top, then the exponent field, then the fraction. Fields count
    from emin, those of formats with zero from emin - 1, which is the field of the subnormal numbers.
    """
    if isinstance(fmt, Posit):
        exact = posit_value(code, fmt)
        return math.nan if exact is None else float(exact)
    if isinstance(fmt, Grid):
        k = code - 2**fmt.bits if fmt.low < 0 and code >= 2 ** (fmt.bits - 1) else code
        return float(k * fmt.quantum) if fmt.low <= k <= fmt.high else None
    magnitude_bits = fmt.bits - fmt.signed
    negative, magnitude = divmod(code, 2**magnitude_bits)
    sign, top = 1 - 2 * negative, 2**magnitude_bits - 1
    field, fraction = divmod(magnitude, 2 ** (fmt.precision - 1))
    match fmt.specials, fmt.signed:
        case "ieee", _ if field == top >> (fmt.precision - 1):
            return math.nan if fraction else sign * math.inf
        case "fn", _ if magnitude == top:
            return math.nan
        case "nuz", True if magnitude == top:
            return sign * math.inf
        case "nuz", False if magnitude >= top - 1:
            return math.nan if magnitude == top else math.inf
        case (("nuz" | "fnuz"), True) if (negative, magnitude) == (1, 0):
            return math.nan
    if fmt.zero and field == 0:
        exponent, significand = fmt.emin, Fraction(fraction)
    else:
        exponent, significand = fmt.emin + field - fmt.zero, Fraction(2 ** (fmt.precision - 1) + fraction)
    if exponent > fmt.emax:
        return None
    value = float(significand * Fraction(2) ** (exponent - fmt.precision + 1))
    return -value if negative else value


@pytest.mark.parametrize("fmt", DEFINED, ids=label)
@pytest.mark.sampled(12, each=False)
def test_every_code_is_that_of_the_definition_both_ways_and_values_come_in_order(fmt, assert_same):
    expected = [value_of(code, fmt) for code in range(2**fmt.bits)]
    codes = np.array([code for code, value in enumerate(expected) if value is not None])
    values = np.array([value for value in expected if value is not None])
    assert_same(decode(codes, fmt), values, codes)
    number = ~np.isnan(values)
    assert np.array_equal(encode(values[number], fmt), codes[number])
    in_order = sorted(values[number].tolist(), key=lambda value: (value, math.copysign(1.0, value)))
    assert_same(all_values(fmt), in_order)
    assert fmt.has_nan == (not number.all())
    assert fmt.has_infinity == np.isinf(values).any()
    assert fmt.has_negative_zero == ((values == 0) & np.signbit(values)).any()
    if fmt.has_nan:
        assert math.isnan(expected[int(encode(np.nan, fmt))])
        assert encode([-np.nan], fmt) == encode([np.nan], fmt)
    if not fmt.has_negative_zero and fmt.zero:
        assert encode([-0.0], fmt) == encode([0.0], fmt)
    for code in sorted(set(range(2**fmt.bits)) - set(codes.tolist()))[:20]:
        with pytest.raises(ValueError, match=rf"element \(1,\) = {code} stands for no value"):
            decode(np.array([codes[0], code]), fmt)


@pytest.mark.parametrize("fmt", [*LARGE_POSITS, FORMATS["tf32"]], ids=str)
def test_some_codes_of_large_formats_are_those_of_the_definition_both_ways(fmt, assert_same):
    codes = some_codes(fmt)
    codes = np.array([0, 2 ** (fmt.bits - 1), *codes, *(2**fmt.bits - code for code in codes)], np.uint64)
    values = decode(codes, fmt)
    assert_same(values, [value_of(code, fmt) for code in codes.tolist()], codes)
    there = ~np.isnan(values) | (type(fmt) is Posit)
    assert np.array_equal(encode(values[there], fmt), codes[there])


@pytest.mark.parametrize("fmt", [*P3109_FORMATS, FORMATS["float8_e8m0fnu"]], ids=label)
@pytest.mark.sampled(12, each=False)
def test_every_code_decodes_as_in_gfloat(fmt, assert_same):
    assert len(P3109_FORMATS) == 196
    info = p3109_of_gfloat(fmt) if fmt in P3109_FORMATS else gfloat.formats.format_info_ocp_e8m0
    codes = range(2**fmt.bits)
    assert_same(decode(codes, fmt), [gfloat.decode_float(info, code).fval for code in codes])


WITH_DTYPE = [fmt for fmt in FORMATS.values() if fmt.name != "tf32"]


@pytest.mark.parametrize("fmt", WITH_DTYPE, ids=label)
def test_codes_are_those_of_the_library(fmt, assert_same):
    """All, or some of 32 and 64 bits; the NaN that is encoded has no sign where there is one without."""
    dtype = getattr(ml_dtypes, fmt.name, None) or getattr(np, fmt.name)
    codes = np.arange(2 ** min(fmt.bits, 16), dtype=code_dtype(fmt))
    if fmt.bits > 16:
        drawn = np.random.default_rng(1).integers(0, 2**fmt.bits, 2**16, dtype=codes.dtype)
        codes = np.concatenate([codes[:2], codes[:2] + codes.dtype.type(2 ** (fmt.bits - 1)), drawn])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = codes.view(dtype).astype(np.float64)
    assert_same(decode(codes, fmt), values, codes)
    number = ~np.isnan(values)
    encoded = encode(values[number], fmt)
    assert encoded.dtype == codes.dtype
    assert np.array_equal(encoded, codes[number])
    if fmt.has_nan:
        code = encode([np.nan], fmt)
        assert np.isnan(code.view(dtype).astype(float)).all()
        assert code < 2 ** (fmt.bits - 1) or fmt.specials == "fnuz" or not fmt.signed


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_integers_are_values(dtype):
    x = np.array([[0, 1], [64, 96]], dtype=dtype)
    assert np.array_equal(encode(x, "bf16"), encode(x.astype(np.float64), "bf16"))


def test_codes_take_the_shortest_unsigned_dtype():
    for bits, size in ((8, 1), (9, 2), (16, 2), (17, 4), (32, 4), (33, 8), (64, 8)):
        fmt = next(x for p in (4, 5) if (x := Format(precision=bits - p, emin=-6, emax=7)).bits == bits)
        assert code_dtype(fmt) == np.dtype(f"u{size}")


# -- seen as arrays of the libraries, and the other way, in the same memory ----------------------------------
@pytest.mark.parametrize("fmt", WITH_DTYPE, ids=label)
def test_codes_and_arrays_of_the_library_share_their_memory(fmt):
    whole = (np.arange(24).reshape(4, 6) % 16).astype(code_dtype(fmt)) << (fmt.bits - 4)
    for codes in (whole, whole.T, whole[::-2, 1::3], whole[2, 3:4].reshape(()), whole[:0], whole[::-1].T):
        array = as_dtype(codes, fmt)
        back = codes_of(array)
        assert array.dtype.name == fmt.name
        for one in (array, back):
            assert np.shares_memory(one, codes) or not codes.size
            assert (one.shape, one.strides, one.tobytes()) == (codes.shape, codes.strides, codes.tobytes())
        assert back.dtype == codes.dtype
    codes_of(as_dtype(whole, fmt))[1, 2] = 0
    assert whole[1, 2] == 0
    whole.flags.writeable = False
    assert not as_dtype(whole, fmt).flags.writeable
    assert not codes_of(as_dtype(whole, fmt)).flags.writeable
    # An array of the other byte order is converted.
    swapped = whole.astype(whole.dtype.newbyteorder("S")).view(array.dtype.newbyteorder("S"))
    given = codes_of(swapped[::3])
    assert (given.dtype, given.dtype.isnative) == (whole.dtype, True)
    assert np.array_equal(given, whole[::3])
    assert np.shares_memory(given, swapped) == (whole.itemsize == 1)


def test_scalars_have_codes_and_codes_of_a_like_format_are_seen_as_the_dtypes():
    assert codes_of(np.float32(1.0)).tolist() == 0x3F800000
    assert codes_of(ml_dtypes.bfloat16(1.0)).tolist() == 0x3F80
    codes, mine = np.array([0x3F80], np.uint16), Format("mine", precision=8, emin=-126, emax=127)
    assert as_dtype(codes, mine).dtype.name == "bfloat16"
    assert as_dtype(codes.astype(np.uint8), "binary8p4sf").dtype.name == "float8_e4m3fnuz"


# -- what is refused --------------------------------------------------------------------------------------
GRID = Grid(low=-5, high=9, fraction_bits=2)
TALL = Format(precision=20, emin=-6, emax=4, specials="none")  # decoded without a table
LARGE = np.ones((700, 500))
LARGE[600, 7] = 1.1
WRONG_CODES = np.where(LARGE == 1, 0, 300)
NAN, U1, U4 = [1.0, np.nan], np.zeros(1, np.uint8), np.zeros(1, np.uint32)
NO_VALUE = {
    "bf16": [1.1, 2.0**-150],
    "e4m3fn": [480.0, np.inf],
    "e2m1fn": [7.0, -np.inf],
    "e8m0fnu": [0.0, -1.0, 3.0, np.inf, 2.0**-128],
    "binary8p3ue": [-1.0, -np.inf],
    "posit8": [0.3, 1.0 + 2.0**-4, 2.0**25, 2.0**-25, 5e-324, math.inf, -(2.0**21)],
    GRID: [10.0, 0.125, -5.5, math.inf],
}


@refusals(
    *(
        refused(
            ValueError, rf"\(1,\) = .* is no value of {name};", encode, *(([1.0, x], fmt) for x in numbers)
        )
        for fmt, numbers in NO_VALUE.items()
        for name in [re.escape(str(get_format(fmt)))]
    ),
    refused(ValueError, r"\(1,\) = .*no code for NaN", encode, (NAN, "e2m1fn"), (NAN, GRID)),
    refused(ValueError, r"\(600, 7\) = .*1\.1", encode, (LARGE, "bf16"), (np.asfortranarray(LARGE), "bf16")),
    refused(
        ValueError,
        r"element \(1,\) = 1152921504606846977 is an integer that binary64 does not hold",
        *(encode, ([1, 2**60 + 1], "bf16"), (np.uint64([2**63, 2**60 + 1]), "float64")),
    ),
    refused(UnsupportedFormatError, "float64", encode, (np.ones(1), Posit(58)), (np.ones(1), Posit(40, 5))),
    refused(UnsupportedFormatError, "float64", decode, ([0], Posit(58))),
    *(
        refused(
            ValueError,
            rf"codes of {fmt} lie in \[0, 2\*\*8\)",
            decode,
            *(([x], fmt) for x in (-1, 256, 2**40, 2**63)),
        )
        for fmt in ("float8_e5m2", "posit8", "int8")
    ),
    refused(ValueError, r"element \(600, 7\) = .*300", decode, (WRONG_CODES.T.copy().T, "e5m2")),
    refused(ValueError, r"\(0,\) = .* stands for no value", decode, ([2**24 - 1], TALL)),
    refused(ValueError, r"at most 2\*\*24", all_values, "float32"),
    refused(UnsupportedFormatError, "at most 64", code_dtype, Format(precision=60, emin=-100, emax=100)),
    refused(ValueError, r"element \(1,\) = 10 stands for no value", decode, (np.array([1, 10]), GRID)),
    # Views.
    refused(UnsupportedFormatError, "no dtype of NumPy or ml_dtypes", as_dtype, (U4, "tf32"), (U1, "int4")),
    refused(TypeError, "an array of uint16, not", as_dtype, (U1, "bf16"), (U4.view(">u2"), "bf16")),
    refused(ValueError, r"\(1,\) = .*16.* in \[0, 2\*\*4\)", as_dtype, (np.array([15, 16], "u1"), "e2m1fn")),
)
def test_refusals(rows):
    check(rows)


# -- neighbours and ulps, against lists of all values, the definition and NumPy ---------------------------
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
        assert Fraction(step) == Fraction(2) ** (max(floor_log2(number), fmt.emin) - fmt.precision + 1)


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
