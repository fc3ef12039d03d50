"""Codes against the bit patterns of NumPy and ml_dtypes; order, neighbours and ulps by the definition."""

from bisect import bisect_left, bisect_right
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from truth.operands import SMALL_FORMATS, WIDE_FORMATS, label, magnitudes

from mcfsim.backends.carriers import UnsupportedFormatError
from mcfsim.codec import all_values, code_dtype, decode, encode, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format
from mcfsim.truth import round_fraction

IN_LIBRARIES = [fmt for fmt in FORMATS.values() if fmt.bits <= 16]
CUSTOM = [
    Format(precision=9, emin=-62, emax=63),
    Format(precision=2, emin=-1, emax=1),
    Format(precision=5, emin=-1000, emax=-990),
    Format(precision=3, emin=-6, emax=4, specials="fn"),
    Format(precision=3, emin=-6, emax=4, specials="fnuz"),
    Format(precision=3, emin=-6, emax=4, specials="none"),
]
LISTED = [*SMALL_FORMATS, *WIDE_FORMATS, *CUSTOM]


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
    assert code < 2 ** (fmt.bits - 1) or fmt.specials == "fnuz"
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


def test_shapes_are_kept():
    for shape in ((), (0,), (2, 3)):
        codes = encode(np.ones(shape), "bf16")
        assert codes.shape == decode(codes, "bf16").shape == shape
        assert (codes == 0x3F80).all()


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
    ],
)
def test_what_is_no_value_of_the_format_is_not_encoded(number, fmt):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* is no value"):
        encode([1.0, number], fmt)


def test_nan_is_not_encoded_where_there_is_none():
    with pytest.raises(ValueError, match="no code for NaN"):
        encode([np.nan], "e2m1fn")


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
    with pytest.raises(ValueError, match="2 codes stand for no value"):
        decode([0, largest, largest + 1, 2 ** (fmt.bits - 1) - 1], fmt)


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
@pytest.mark.parametrize("fmt", LISTED, ids=label)
def test_all_values_are_every_value_in_order(fmt):
    values = all_values(fmt)
    finite = values[np.isfinite(values)].astype(np.float64)
    positive = magnitudes(fmt)
    assert np.array_equal(finite[finite > 0], positive[1:])
    assert np.array_equal(finite[finite < 0], -positive[:0:-1])
    signs = np.signbit(finite[finite == 0]).tolist()
    assert signs == ([True, False] if fmt.has_negative_zero else [False])
    assert (np.diff(finite) >= 0).all()
    assert values.size - finite.size == 2 * fmt.has_infinity
    if fmt.has_infinity:
        assert (values[0], values[-1]) == (-np.inf, np.inf)


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


@pytest.mark.parametrize("fmt", LISTED, ids=label)
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


@pytest.mark.parametrize("fmt", SMALL_FORMATS, ids=label)
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
