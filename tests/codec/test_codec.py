"""Codes, order, neighbours and ulps by the definition, and codes as in NumPy, ml_dtypes and gfloat."""

import math
import tracemalloc
from bisect import bisect_left, bisect_right
from fractions import Fraction

import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from mcfsim import round_to
from mcfsim.codec import (
    all_values,
    as_dtype,
    code_dtype,
    codes_of,
    decode,
    encode,
    next_down,
    next_up,
    ulp,
)
from mcfsim.formats import FORMATS, Format, p3109
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import round_fraction
from mcfsim.oracle.posits import posit_value
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import SMALL_FORMATS, UNUSUAL_FORMATS, WIDE_FORMATS, label, magnitudes

IN_LIBRARIES = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]
IN_ML_DTYPES = [fmt for fmt in FORMATS.values() if hasattr(ml_dtypes, fmt.name)]
WITH_DTYPE = [fmt for fmt in FORMATS.values() if fmt.name != "tf32"]


def p3109_formats(widest):
    """Return every P3109 format of at most so many bits that has a normal number."""
    formats = []
    for bits in range(2, widest + 1):
        for precision in range(1, bits + 1):
            for signed in (True, False):
                for extended in (True, False):
                    try:
                        formats.append(p3109(bits, precision, signed=signed, extended=extended))
                    except ValueError:  # too few bits
                        continue
    return formats


P3109_FORMATS = p3109_formats(10)
CUSTOM = [
    Format(precision=9, emin=-62, emax=63),
    Format(precision=2, emin=-1, emax=1),
    Format(precision=5, emin=-1000, emax=-990),
    Format(precision=3, emin=-6, emax=4, specials="fn"),
    Format(precision=3, emin=-6, emax=4, specials="fnuz"),
    Format(precision=3, emin=-6, emax=4, specials="none"),
]
#: Every choice of specials, sign and zero, with exponents that fill their field and that do not.
VARIANTS = [
    Format(precision=precision, emin=-3, emax=emax, specials=specials, signed=signed, zero=zero)
    for specials in ("ieee", "fn", "fnuz", "nuz", "none")
    for signed in (True, False)
    for zero in (True, False)
    for precision in (1, 2, 3)
    for emax in (0, 2, 3, 4)
    if not (specials == "ieee" and precision == 1)
    and not (specials == "fnuz" and not signed)
    and not (specials in ("fnuz", "nuz") and signed and not zero)
]
DEFINED = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *CUSTOM[1:], *VARIANTS, *P3109_FORMATS]
LISTED = [*SMALL_FORMATS, *UNUSUAL_FORMATS, *WIDE_FORMATS, *CUSTOM, *VARIANTS[::5], *P3109_FORMATS[::7]]
GRIDS = [
    Grid(low=-8, high=7),
    Grid(low=-5, high=9, fraction_bits=2),
    Grid(low=0, high=5, fraction_bits=-3),
    Grid(low=-1, high=1),
    Grid(low=-(2**16), high=2**16 - 1),  # decoded without a table
]
POSITS = [Posit(bits, es) for bits in (3, 4, 6, 8, 11) for es in (0, 1, 2, 3)] + [Posit(17)]


def by_definition(code, fmt):
    """Return what a code stands for: a float, or None for nothing.

    The sign lies on top, then the exponent field, then the fraction. Fields count from emin, those of
    formats with zero from emin - 1, which is the field of the subnormal numbers.
    """
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


# -- codes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", DEFINED, ids=label)
def test_every_code_is_that_of_the_definition_both_ways(fmt, assert_same):
    expected = [by_definition(code, fmt) for code in range(2**fmt.bits)]
    codes = np.array([code for code, value in enumerate(expected) if value is not None])
    values = np.array([value for value in expected if value is not None])
    assert_same(decode(codes, fmt), values, codes)
    number = ~np.isnan(values)
    assert np.array_equal(encode(values[number], fmt), codes[number])
    assert fmt.has_nan == (not number.all())
    if fmt.has_nan:
        assert math.isnan(expected[int(encode(np.nan, fmt))])
    for code in set(range(2**fmt.bits)) - set(codes.tolist()):
        with pytest.raises(ValueError, match=rf"element \(1,\) = {code} stands for no value"):
            decode(np.array([0, code], dtype=np.uint16), fmt)


def test_the_p3109_formats_are_all_there():
    assert len(P3109_FORMATS) == 196


@pytest.mark.parametrize("fmt", P3109_FORMATS, ids=label)
def test_every_p3109_code_decodes_as_in_gfloat(fmt, assert_same):
    signedness = gfloat.Signedness.Signed if fmt.signed else gfloat.Signedness.Unsigned
    domain = gfloat.Domain.Extended if fmt.has_infinity else gfloat.Domain.Finite
    info = gfloat.formats.format_info_p3109(fmt.bits, fmt.precision, signedness, domain)
    codes = range(2**fmt.bits)
    assert_same(decode(codes, fmt), [gfloat.decode_float(info, code).fval for code in codes])


def test_every_e8m0_code_decodes_as_in_gfloat(assert_same):
    info = gfloat.formats.format_info_ocp_e8m0
    assert_same(decode(range(256), "e8m0fnu"), [gfloat.decode_float(info, code).fval for code in range(256)])


def library_values(fmt):
    """Return the values of all codes in order, as the library has them."""
    dtype = getattr(ml_dtypes, fmt.name, None) or getattr(np, fmt.name)
    codes = np.arange(2**fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        return codes.astype(np.float64)


@pytest.mark.parametrize("fmt", IN_LIBRARIES, ids=label)
def test_every_code_decodes_as_in_the_library(fmt, assert_same):
    assert_same(decode(np.arange(2**fmt.bits), fmt), library_values(fmt))


@pytest.mark.parametrize("fmt", IN_LIBRARIES, ids=label)
def test_every_value_encodes_as_in_the_library(fmt):
    values = library_values(fmt)
    codes = encode(values, fmt)
    number = ~np.isnan(values)
    assert codes.dtype == (np.uint8 if fmt.bits <= 8 else np.uint16)
    assert np.array_equal(codes[number], np.arange(2**fmt.bits)[number])


@pytest.mark.parametrize("fmt", [fmt for fmt in IN_LIBRARIES if fmt.has_nan], ids=label)
def test_nan_encodes_as_a_nan_without_sign_where_there_is_one(fmt):
    code = int(encode([np.nan], fmt)[0])
    assert np.isnan(library_values(fmt)[code])
    assert code < 2 ** (fmt.bits - 1) or fmt.specials == "fnuz" or not fmt.signed
    assert encode([-np.nan], fmt) == code


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_patterns_of_32_and_64_bits_are_numpys(name, assert_same):
    fmt = FORMATS[name]
    patterns = np.random.default_rng(1).integers(0, 2**fmt.bits, 2**16, dtype=code_dtype(fmt))
    edges = np.array([0, 1, 2**fmt.bits // 2, 2**fmt.bits // 2 + 1], dtype=code_dtype(fmt))
    patterns = np.concatenate([patterns, edges])
    values = patterns.view(name)
    finite = np.isfinite(values)
    assert_same(decode(patterns, fmt), values)
    assert np.array_equal(encode(values[finite], fmt), patterns[finite])


@pytest.mark.parametrize("fmt", CUSTOM, ids=label)
def test_codes_of_custom_formats_go_there_and_back(fmt, assert_same):
    values = magnitudes(fmt)
    codes = encode(values, fmt)
    assert np.array_equal(codes, np.arange(values.size))
    assert_same(decode(codes, fmt), values)
    negative = -values[1:] if not fmt.has_negative_zero else -values
    assert_same(decode(encode(negative, fmt), fmt), negative)
    assert (encode(negative, fmt) >= 2 ** (fmt.bits - 1)).all()


@pytest.mark.parametrize("fmt", GRIDS, ids=label)
def test_codes_of_grids_are_their_integers_in_twos_complement(fmt, assert_same):
    integers = np.arange(fmt.low, fmt.high + 1)
    values = np.array([float(k * fmt.quantum) for k in integers.tolist()])
    codes = encode(values, fmt)
    assert codes.tolist() == [k % 2**fmt.bits for k in integers.tolist()]
    assert_same(decode(codes, fmt), values)
    assert_same(all_values(fmt), values)
    unassigned = np.setdiff1d(np.arange(2**fmt.bits), codes)
    assert unassigned.size == 2**fmt.bits - integers.size
    for code in unassigned.tolist():
        with pytest.raises(ValueError, match=rf"element \(0,\) = {code} stands for no value"):
            decode([code], fmt)


@pytest.mark.parametrize("fmt", POSITS, ids=label)
def test_every_code_of_a_posit_is_that_of_the_definition_both_ways(fmt, assert_same):
    exact = [posit_value(code, fmt) for code in range(2**fmt.bits)]
    values = np.array([math.nan if value is None else float(value) for value in exact])
    codes = np.arange(2**fmt.bits)
    assert_same(decode(codes, fmt), values)
    assert np.array_equal(encode(values, fmt), codes)
    assert_same(all_values(fmt), np.sort(values[~np.isnan(values)]))


@pytest.mark.parametrize("number", [0.3, 2.0**25, 2.0**-25, math.inf])
def test_what_is_no_posit_is_not_encoded(number):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* is no value of posit8"):
        encode([1.0, number], Posit(8))


@pytest.mark.parametrize("number", [10.0, 0.125, -5.5, math.inf, math.nan])
def test_what_is_no_number_of_a_grid_is_not_encoded(number):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* no (value|code)"):
        encode([1.0, number], Grid(low=-5, high=9, fraction_bits=2))


def test_negative_zero_encodes_as_zero_where_there_is_only_one():
    assert encode([-0.0], "e4m3fnuz") == 0
    assert encode([-0.0], "e4m3fn") == 0x80


@pytest.mark.parametrize(
    ("number", "fmt"),
    [
        (1.1, "bf16"),
        (480.0, "e4m3fn"),
        (np.inf, "e4m3fn"),
        (2.0**-150, "bf16"),
        (7.0, "e2m1fn"),
        (-np.inf, "e2m1fn"),
        (0.0, "e8m0fnu"),
        (-1.0, "e8m0fnu"),
        (3.0, "e8m0fnu"),
        (np.inf, "e8m0fnu"),
        (2.0**-128, "e8m0fnu"),
        (-1.0, "binary8p3ue"),
        (-np.inf, "binary8p3ue"),
        (np.inf, "binary8p3sf"),
    ],
)
def test_what_is_no_value_of_the_format_is_not_encoded(number, fmt):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* is no value"):
        encode([1.0, number], fmt)


def test_nan_is_not_encoded_where_there_is_none():
    with pytest.raises(ValueError, match=r"element \(2,\) = .*no code for NaN"):
        encode([1.0, 2.0, np.nan], "e2m1fn")


def test_the_first_of_the_wrong_elements_is_named_in_a_large_array():
    x = np.ones((700, 500))
    x[600, 7] = 1.1
    for array in (x, np.asfortranarray(x)):
        with pytest.raises(ValueError, match=r"element \(600, 7\) = .*1\.1"):
            encode(array, "bf16")
    codes = np.zeros((700, 500), dtype=np.int64)
    codes[600, 7] = 300
    with pytest.raises(ValueError, match=r"element \(600, 7\) = .*300"):
        decode(codes.T.copy().T, "e5m2")


def test_integers_are_encoded_and_those_beyond_binary64_refused():
    assert encode([1, 256], "bf16").tolist() == encode([1.0, 256.0], "bf16").tolist()
    with pytest.raises(ValueError, match=r"beyond 2\*\*53"):
        encode([2**60 + 1], "bf16")


@pytest.mark.parametrize("x", [["1.5"], [True], [1j], [None]], ids=str)
@pytest.mark.parametrize("function", [encode, next_up, next_down, ulp])
def test_what_is_no_number_has_no_code_no_neighbour_and_no_ulp(function, x):
    with pytest.raises(TypeError, match="does not hold real numbers"):
        function(x, "bf16")


@pytest.mark.parametrize("codes", [[-1], [256], [2**40], np.array([2**63], np.uint64)], ids=str)
def test_codes_out_of_range_are_refused(codes):
    with pytest.raises(ValueError, match=r"lie in \[0, 2\*\*8\)"):
        decode(codes, "e5m2")


@pytest.mark.parametrize("codes", [[1.0], ["1"], [True], [None]], ids=str)
def test_codes_that_are_no_integers_are_refused(codes):
    with pytest.raises(TypeError, match="codes must be integers"):
        decode(codes, "e5m2")


def test_a_code_that_stands_for_nothing_is_refused():
    fmt = Format(precision=3, emin=-6, emax=4, specials="none")  # 12 exponents of 16
    largest = int(encode([float(fmt.max)], fmt)[0])
    assert largest < 2 ** (fmt.bits - 1) - 1
    with pytest.raises(ValueError, match=rf"element \(2,\) = .*{largest + 1}.* stands for no value"):
        decode([0, largest, largest + 1, 2 ** (fmt.bits - 1) - 1], fmt)
    wide = Format(precision=20, emin=-6, emax=4, specials="none")  # decoded without a table
    with pytest.raises(ValueError, match=r"element \(0,\) = .* stands for no value"):
        decode([2 ** (wide.bits - 1) - 1], wide)


def test_codes_of_more_than_64_bits_are_refused():
    with pytest.raises(UnsupportedFormatError, match="at most 64"):
        code_dtype(Format("wide", precision=60, emin=-100, emax=100))


@pytest.mark.parametrize(("bits", "size"), [(8, 1), (9, 2), (16, 2), (17, 4), (32, 4), (33, 8), (64, 8)])
def test_codes_take_the_shortest_unsigned_dtype(bits, size):
    fmt = Format(precision=bits - 5, emin=-6, emax=7) if bits < 60 else FORMATS["float64"]
    fmt = fmt if fmt.bits == bits else Format(precision=bits - 4, emin=-6, emax=7)
    assert fmt.bits == bits
    assert code_dtype(fmt) == np.dtype(f"u{size}")


# -- in order ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", DEFINED, ids=label)
def test_all_values_are_those_of_the_definition_in_order(fmt, assert_same):
    values = [by_definition(code, fmt) for code in range(2**fmt.bits)]
    values = [value for value in values if value is not None and not math.isnan(value)]
    assert_same(all_values(fmt), sorted(values, key=lambda value: (value, math.copysign(1.0, value))))


@pytest.mark.parametrize("fmt", [*WIDE_FORMATS, CUSTOM[0]], ids=label)
def test_all_values_of_wide_formats_are_every_value_in_order(fmt, assert_same):
    positive = magnitudes(fmt)
    positive = np.append(positive, np.inf) if fmt.has_infinity else positive
    assert_same(all_values(fmt), np.concatenate([-positive[::-1], positive]))


def test_formats_too_large_to_list_are_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*24"):
        all_values("float32")


def probes(fmt):
    """Return the values of a format, numbers between, beside and beyond them, and the infinities."""
    values = np.unique(all_values(fmt).astype(np.float64))
    values = values[np.isfinite(values)]
    if values.size > 3000:
        values = np.concatenate(
            [values[:500], values[values.size // 2 - 600 : values.size // 2 + 600], values[-500:]]
        )
    beside = [np.nextafter(values, end) for end in (-np.inf, np.inf)]
    return np.concatenate(
        [values, *beside, values[1:] / 2 + values[:-1] / 2, values[[0, -1]] * 3, [-1e300, 1e300]]
    )


@pytest.mark.parametrize("fmt", [*LISTED, *GRIDS, *POSITS], ids=label)
def test_neighbours_are_the_next_in_the_list(fmt):
    listed = np.unique(all_values(fmt).astype(np.float64)).tolist()
    numbers = probes(fmt)
    last = len(listed) - 1
    above = [listed[min(bisect_right(listed, x), last)] for x in numbers.tolist()]
    below = [listed[max(bisect_left(listed, x) - 1, 0)] for x in numbers.tolist()]
    assert np.array_equal(next_up(numbers, fmt), above)
    assert np.array_equal(next_down(numbers, fmt), below)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_neighbours_are_numpys(name, assert_same):
    fmt = FORMATS[name]
    rng = np.random.default_rng(2)
    x = rng.integers(0, 2**fmt.bits, 2**14, dtype=code_dtype(fmt)).view(name)
    x = np.concatenate(
        [x[np.isfinite(x)], np.array([0.0, -0.0, fmt.max, -fmt.max, np.inf, -np.inf], dtype=name)]
    )
    smallest = np.array([fmt.smallest_subnormal, -fmt.smallest_subnormal], dtype=name)
    x = np.concatenate([x, smallest, [np.nan]]).astype(name)
    with np.errstate(all="ignore"):
        up, down = np.nextafter(x, np.array(np.inf, name)), np.nextafter(x, np.array(-np.inf, name))
    assert_same(next_up(x, fmt), up, x)
    assert_same(next_down(x, fmt), down, x)


def test_neighbours_of_infinities_are_the_largest_numbers():
    assert next_up([-np.inf], "bf16") == -float(FORMATS["bfloat16"].max)
    assert next_down([np.inf], "bf16") == float(FORMATS["bfloat16"].max)
    assert next_up([np.inf], "bf16") == np.inf


def test_unsigned_formats_end_at_their_lowest_number():
    assert next_down([0.0, 1e-300, -5.0, np.inf], "binary8p3ue").tolist() == [0.0, 0.0, 0.0, 1.25 * 2**31]
    assert next_up([-5.0, -1e300, -0.0], "binary8p3uf").tolist() == [0.0, 0.0, 2.0**-33]
    assert next_down([2.0**-127, 0.0, -1.0, 2.0], "e8m0fnu").tolist() == [2.0**-127] * 3 + [1.0]
    assert next_up([-1.0, -0.0, 0.0, 2.0**-128, 1.0], "e8m0fnu").tolist() == [2.0**-127] * 4 + [2.0]


def test_zero_lies_between_the_neighbours_of_a_signed_format_without_it():
    fmt = Format(precision=2, emin=0, emax=1, specials="none", zero=False)
    assert next_up([-1.0, -0.5, -0.0, 0.0, 0.5], fmt).tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert next_down([1.0, 0.5, 0.0, -0.0, -0.5], fmt).tolist() == [-1.0, -1.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize("function", [next_up, next_down])
@pytest.mark.parametrize(
    ("x", "fmt"), [(np.inf, "e4m3fn"), (-np.inf, "e8m0fnu"), (-np.inf, "binary8p3ue"), (np.nan, "bf16")]
)
def test_what_the_format_has_not_has_no_neighbour(function, x, fmt):
    assert np.isnan(function([1.0, x], fmt)).tolist() == [False, True]


@pytest.mark.parametrize("fmt", LISTED, ids=label)
def test_a_neighbour_that_is_zero_has_the_sign_of_the_number(fmt):
    smallest = float(fmt.smallest_subnormal)
    if fmt.zero and fmt.signed:
        assert np.signbit(next_up([-smallest, -smallest / 2], fmt)).tolist() == [fmt.has_negative_zero] * 2
        assert np.signbit(next_down([smallest], fmt)).tolist() == [False]


@pytest.mark.parametrize("fmt", GRIDS, ids=label)
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


@pytest.mark.parametrize("fmt", [*LISTED, FORMATS["float32"], FORMATS["float64"]], ids=label)
def test_the_ulp_is_that_of_the_definition(fmt):
    rng = np.random.default_rng(3)
    exponents = rng.integers(max(fmt.emin - fmt.precision, -1074), fmt.emax + 1, 500)
    x = np.ldexp(1 + rng.random(500), exponents) * rng.choice([-1, 1], 500)
    x = np.concatenate([x, 2.0 ** np.array([fmt.emin, fmt.emax, max(fmt.emin - 1, -1074)])])
    for number, step in zip(x.tolist(), ulp(x, fmt).tolist(), strict=True):
        numerator, denominator = abs(number).as_integer_ratio()  # the latter is a power of two
        exponent = numerator.bit_length() - denominator.bit_length()
        assert Fraction(step) == Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)


@pytest.mark.parametrize("fmt", [*SMALL_FORMATS, *UNUSUAL_FORMATS], ids=label)
def test_the_ulp_is_the_distance_to_the_next_value_above(fmt):
    values = magnitudes(fmt)
    assert np.array_equal(ulp(values, fmt)[:-1], np.diff(values))


def test_the_ulp_beyond_the_range_is_that_of_the_largest_exponent_and_nan_has_none():
    assert ulp([1e30, -1e300], "e4m3fn").tolist() == [32.0, 32.0]
    assert ulp([0.0, 2.0**-1074], "e4m3fn").tolist() == [2.0**-9, 2.0**-9]
    assert np.isnan(ulp([np.inf, -np.inf, np.nan], "bf16")).all()


@pytest.mark.parametrize("function", [ulp, next_up, next_down])
def test_formats_beyond_binary64_have_no_neighbours_here(function):
    with pytest.raises(UnsupportedFormatError, match="wide"):
        function([0.0], Format("wide", precision=60, emin=-2000, emax=2000))


@pytest.mark.parametrize("fmt", WIDE_FORMATS, ids=label)
def test_no_value_lies_between_neighbours(fmt):
    x = magnitudes(fmt)[::37]
    for number, above in zip(x.tolist(), next_up(x, fmt).tolist(), strict=True):
        middle = (Fraction(number) + Fraction(above)) / 2
        assert round_fraction(middle, fmt) in (number, above)


# -- the libraries' arrays --------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", WITH_DTYPE, ids=label)
def test_codes_and_arrays_of_the_library_share_their_memory(fmt):
    codes = np.arange(2 ** min(fmt.bits, 16), dtype=code_dtype(fmt)) << max(fmt.bits - 16, 0)
    array = as_dtype(codes, fmt)
    assert array.dtype.name == fmt.name
    assert np.shares_memory(array, codes)
    back = codes_of(array)
    assert back.dtype == codes.dtype
    assert np.shares_memory(back, codes)
    assert np.array_equal(back, codes)


@pytest.mark.parametrize("fmt", [fmt for fmt in IN_ML_DTYPES if fmt.bits <= 16], ids=label)
def test_an_array_of_the_library_has_the_values_of_its_codes(fmt, assert_same):
    codes = np.arange(2**fmt.bits, dtype=code_dtype(fmt))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assert_same(as_dtype(codes, fmt).astype(np.float64), decode(codes, fmt))
    values = decode(codes, fmt)
    values = values[~np.isnan(values)].astype(np.float32)
    assert np.array_equal(codes_of(values.astype(getattr(ml_dtypes, fmt.name))), encode(values, fmt))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", "float16", "float64"])
def test_views_keep_shape_strides_and_writability(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    whole = np.arange(24).reshape(4, 6) % 5
    whole = whole.astype(dtype)
    for array in (whole, whole.T, whole[::-2, 1::3], whole[2, 3:4].reshape(()), whole[:0], whole[::-1].T):
        codes = codes_of(array)
        assert (codes.shape, codes.strides) == (array.shape, array.strides)
        assert np.shares_memory(codes, array) or not array.size
        assert as_dtype(codes, name).strides == array.strides
        assert codes.tobytes() == as_dtype(codes, name).tobytes() == array.tobytes()
    codes_of(whole)[1, 2] = 0
    assert whole[1, 2] == 0
    whole.flags.writeable = False
    assert not codes_of(whole).flags.writeable
    assert not as_dtype(codes_of(whole), name).flags.writeable


@pytest.mark.parametrize("fmt", WITH_DTYPE, ids=label)
def test_an_array_of_foreign_byte_order_is_converted(fmt, assert_same):
    codes = np.arange(2 ** min(fmt.bits, 16), dtype=code_dtype(fmt)) << max(fmt.bits - 16, 0)
    native = as_dtype(codes, fmt)
    swapped = codes.astype(codes.dtype.newbyteorder("S")).view(native.dtype.newbyteorder("S"))
    given = codes_of(swapped[::3])
    assert given.dtype == codes.dtype
    assert given.dtype.isnative
    assert np.array_equal(given, codes[::3])
    assert np.shares_memory(given, swapped) == (codes.itemsize == 1)


def test_a_scalar_of_a_library_has_a_code():
    assert codes_of(np.float32(1.0)).tolist() == 0x3F800000
    assert codes_of(ml_dtypes.bfloat16(1.0)).tolist() == 0x3F80


def test_a_custom_format_with_the_codes_of_a_dtype_is_seen_as_that():
    codes = np.array([0x3F80], dtype=np.uint16)
    assert as_dtype(codes, Format("mine", precision=8, emin=-126, emax=127)).dtype.name == "bfloat16"
    assert as_dtype(codes.astype(np.uint8), "binary8p4sf").dtype.name == "float8_e4m3fnuz"


@pytest.mark.parametrize("fmt", ["tf32", "e6m9", "binary8p3", Grid(low=-8, high=7)], ids=str)
def test_a_format_without_a_dtype_has_no_such_view(fmt):
    with pytest.raises(UnsupportedFormatError, match="no dtype of NumPy or ml_dtypes"):
        as_dtype(np.zeros(1, dtype=code_dtype(fmt)), fmt)


@pytest.mark.parametrize(
    "codes",
    [[1], 1, np.zeros(2, np.int16), np.zeros(2, np.uint8), np.zeros(2, ">u2"), np.zeros(2, np.float16)],
    ids=repr,
)
def test_what_are_no_codes_is_not_seen_as_an_array(codes):
    with pytest.raises(TypeError, match="codes of bfloat16 are an array of uint16, not"):
        as_dtype(codes, "bf16")


def test_a_code_of_too_many_bits_is_not_seen_as_a_number():
    with pytest.raises(ValueError, match=r"element \(1,\) = .*16.* lie in \[0, 2\*\*4\)"):
        as_dtype(np.array([15, 16], dtype=np.uint8), "e2m1fn")


@pytest.mark.parametrize(
    "array",
    [
        [1.0],
        1.0,
        None,
        *(
            np.zeros(2, dtype)
            for dtype in (np.int32, bool, complex, object, "U3", "V2", np.longdouble, "f4,f4")
        ),
        np.zeros(2, ml_dtypes.int4),
    ],
    ids=lambda array: str(getattr(array, "dtype", array)),
)
def test_what_is_no_floating_array_has_no_codes(array):
    with pytest.raises(TypeError, match=r"has (no )?codes"):
        codes_of(array)


# -- arrays of every kind ---------------------------------------------------------------------------------
def laid_out(array):
    """Yield an array in every layout, under its name, with the contiguous array of the same elements."""
    spread = np.zeros((2 * array.shape[0], 3 * array.shape[1]), dtype=array.dtype)
    spread[::2, ::3] = array
    read_only = array.copy()
    read_only.flags.writeable = False
    swapped = array.astype(array.dtype.newbyteorder("S"))
    unaligned = np.frombuffer(b"\0" + array.tobytes(), dtype=array.dtype, offset=1).reshape(array.shape)
    yield "transposed", array.T, array.T.copy()
    yield "strided", spread[::2, ::3], array
    yield "reversed", array[::-1, ::-1], array[::-1, ::-1].copy()
    yield "Fortran order", np.asfortranarray(array), array
    yield "read-only", read_only, array
    yield "foreign byte order", swapped, array
    yield "unaligned", unaligned, array
    yield "broadcast", np.broadcast_to(array[:1], array.shape), np.repeat(array[:1], array.shape[0], axis=0)
    yield "0-d", array[1, 1], array[1, 1].copy()
    yield "0-d array", array[1:2, 1:2].reshape(()), np.array(array[1, 1])
    yield "empty", array[:0], array[:0].copy()


LARGE = (400, 500)  # more than one block


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "function", [round_to, encode, next_up, next_down, ulp], ids=lambda function: function.__name__
)
@pytest.mark.sampled(4)
def test_values_are_taken_in_any_layout(function, dtype, assert_same):
    fmt = FORMATS["float8_e5m2"]
    dtype = getattr(ml_dtypes, dtype, dtype)
    array = all_values(fmt)[np.random.default_rng(4).integers(0, 240, LARGE)].astype(dtype)
    for _, given, plain in laid_out(array):
        actual, expected = function(given, fmt), function(plain, fmt)
        assert np.shape(actual) == given.shape
        if isinstance(actual, np.ndarray):
            assert actual.dtype == expected.dtype
            assert actual.dtype.isnative
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("name", ["float8_e5m2", "tf32"])
def test_codes_are_taken_in_any_layout(name, dtype, assert_same):
    codes = np.random.default_rng(5).integers(0, 128, LARGE).astype(dtype)
    for _, given, plain in laid_out(codes):
        actual = decode(given, name)
        assert actual.shape == given.shape
        assert_same(actual, decode(plain, name))
        assert_same(
            actual.ravel()[:200],
            [by_definition(code, FORMATS[name]) for code in plain.ravel()[:200].tolist()],
        )


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_integers_are_values(dtype):
    x = np.array([[0, 1], [64, 96]], dtype=dtype)
    assert np.array_equal(encode(x, "bf16"), encode(x.astype(np.float64), "bf16"))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 2), dtype)
        for dtype in (bool, complex, np.complex64, object, "U1", "S1", "V4", "f4,f4", "M8[s]", "m8[s]")
    ]
    + [np.zeros((2, 2), np.longdouble), np.zeros(0, object), np.array([Fraction(1, 2), 1.0])],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.parametrize("function", [round_to, encode, next_up, next_down, ulp])
def test_arrays_that_hold_no_real_numbers_are_refused(function, array):
    with pytest.raises(TypeError, match="does not hold real numbers of at most 64 bits"):
        function(array, "bf16")


@pytest.mark.parametrize("function", [encode, decode])
def test_memory_beyond_the_result_is_a_few_blocks(function):
    values = np.tile(all_values("float8_e5m2"), (4000, 4)).T  # 4 M elements, not contiguous
    given = encode(values, "float8_e5m2") if function is decode else values
    function(given, "float8_e5m2")  # what is kept between calls
    tracemalloc.start()
    result = function(given, "float8_e5m2")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < result.nbytes + 48 * BLOCK
