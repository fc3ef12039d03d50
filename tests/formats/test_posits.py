"""Posits against the definition: codes, rounding in every mode, and operations through binary64 made odd."""

import copy
import math
import pickle
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from mcfsim.formats import Format, Posit, format_table, get_format
from mcfsim.kernels import residuals
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, holds
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.kernels.posit_codes import decode, encode
from mcfsim.oracle.posits import operate_posit, posit_value, round_posit, truncated_code
from mcfsim.rounding import DETERMINISTIC, Mode, Overflow, Rounding, Rule, Underflow

SMALL = [Posit(bits, es) for es in range(4) for bits in range(3, 11)]
LARGE = [Posit(16), Posit(16, 1), Posit(24), Posit(28), Posit(32), Posit(32, 3), Posit(32, 5), Posit(57)]


def rounded(x, fmt, rounding="nearest_even", words=None):
    """Round an array in the carrier of its own dtype."""
    rounding = rounding if isinstance(rounding, Rounding) else Rounding(rounding)
    out = np.empty_like(x)
    get_kernel(fmt, rounding, x.dtype)(x, out, words)
    return out


def by_definition(x, fmt, mode):
    return np.array([operate_posit("round", [float(item)], fmt, Rounding(mode)) for item in x])


def threshold(code, fmt):
    """Return the boundary above a positive posit: the posit of one bit more, that bit set."""
    return posit_value(2 * code + 1, Posit(fmt.bits + 1, fmt.es))


def hard_numbers(codes, fmt, dtype=np.float64):
    """Return positive posits, the boundaries above them, the carrier's numbers beside both, and extremes."""
    exact = np.array([float(f(int(code), fmt)) for code in codes for f in (posit_value, threshold)], dtype)
    info = np.finfo(dtype)
    extremes = np.array([0, info.smallest_subnormal, info.smallest_normal, info.max, np.inf, np.nan], dtype)
    x = np.concatenate([exact, *(np.nextafter(exact, dtype(end)) for end in (0, np.inf)), extremes])
    return np.concatenate([x, -x])


@cache
def some_codes(fmt):
    """Return positive codes: those at both ends, beside the turn of a regime, and random ones."""
    top = 2 ** (fmt.bits - 1) - 1
    turns = {2**place + step for place in range(fmt.bits - 1) for step in (-1, 0, 1)}
    turns |= {top + 1 - turn for turn in turns}
    return sorted({turn for turn in turns if 1 <= turn <= top} | set(random_codes(fmt, 50).tolist()))


def random_codes(fmt, size, seed=1):
    return np.random.default_rng(seed).integers(1, 2 ** (fmt.bits - 1), size)


# -- the format -------------------------------------------------------------------------------------------
def test_the_standards_formats_have_its_fields():
    for bits in (8, 16, 32):
        fmt = Posit(bits)
        assert (fmt.bits, fmt.es, fmt.precision, fmt.emax) == (bits, 2, bits - 4, 4 * bits - 8)
        assert fmt.max == -fmt.lowest == 1 / fmt.smallest_normal == 2 ** (4 * bits - 8)
        assert fmt.smallest_subnormal == fmt.smallest_normal
        assert fmt.has_nan
        assert not fmt.has_infinity
        assert not fmt.has_subnormals
        assert not fmt.has_negative_zero


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_fields_are_what_the_codes_say(fmt):
    positive = [posit_value(code, fmt) for code in range(1, 2 ** (fmt.bits - 1))]
    assert (positive[0], positive[-1]) == (fmt.smallest_subnormal, fmt.max)
    assert fmt.max == fmt.max_significand * Fraction(2) ** (fmt.emax - fmt.precision + 1)
    assert fmt.precision == max(
        (value.numerator // (value.numerator & -value.numerator)).bit_length() for value in positive
    )
    row = format_table([fmt])[0]
    assert (row["format"], row["bits"], row["p"]) == (fmt.name, str(fmt.bits), str(fmt.precision))


def test_names_are_read_and_given():
    for name, fmt in {
        "posit16": Posit(16),
        "Posit8": Posit(8),
        "posit16es1": Posit(16, 1),
        "posit16es2": Posit(16),
        "posit<16>": Posit(16),
        "posit<16,1>": Posit(16, 1),
        "posit<8, 0>": Posit(8, 0),
    }.items():
        assert get_format(name) == fmt
        assert get_format(fmt.name) == fmt
    assert [Posit(16).name, Posit(16, 1).name] == ["posit16", "posit16es1"]
    assert eval(repr(Posit(16, 1))) == Posit(16, 1)


def test_formats_are_equal_by_bits_and_es_and_are_no_floats():
    formats = [Posit(bits, es) for bits in range(3, 65) for es in range(6)]
    assert len(set(formats)) == len(formats)
    assert Posit(16, 2) == Posit(16)
    assert hash(Posit(16, 2)) == hash(Posit(16))
    float_ = Format(precision=12, emin=-56, emax=56, specials="fnuz")
    assert Posit(16) != float_
    for again in (pickle.loads(pickle.dumps(Posit(16, 1))), copy.copy(Posit(16, 1))):
        assert again == Posit(16, 1)
        assert again.name == "posit16es1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((2,), "bits = 2"), ((65,), "bits = 65"), ((8, -1), "es = -1"), ((8, 6), "es = 6")],
)
def test_a_number_out_of_range_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"{message} of a posit must lie between"):
        Posit(*arguments)


@pytest.mark.parametrize("arguments", [(8.0,), (True,), ("8",), (8, 1.0), (8, False)])
def test_what_is_no_int_is_refused(arguments):
    with pytest.raises(TypeError, match="must be an int"):
        Posit(*arguments)


def test_names_of_formats_that_do_not_exist_are_refused():
    for name in ("posit2", "posit65", "posit<16,9>"):
        with pytest.raises(ValueError, match="of a posit must lie between"):
            get_format(name)
    for name in ("posit", "posit16es", "posit<16", "posit16,1", "posit<16,1>x"):
        with pytest.raises(ValueError, match=r"unknown format .*'posit16'"):
            get_format(name)


# -- the oracle, and codes --------------------------------------------------------------------------------
def test_the_oracle_reads_the_published_table_of_five_bits():
    """Gustafson and Yonemoto 2017, the positive posits with n = 5, es = 1."""
    values = ["1/64", "1/16", "1/8", "1/4", "3/8", "1/2", "3/4", 1, "3/2", 2, 3, 4, 8, 16, 64]
    assert [posit_value(code, Posit(5, 1)) for code in range(1, 16)] == list(map(Fraction, values))


def test_the_oracle_rounds_between_the_last_two_posits_of_eight_bits():
    below, above = Fraction(2**20), Fraction(2**24)
    fmt, tiny = Posit(8), Fraction(1, 2**500)
    assert (posit_value(0x7E, fmt), posit_value(0x7F, fmt), threshold(0x7E, fmt)) == (below, above, 2**22)
    for number, even, away in (
        (Fraction(2**22), below, above),
        (2**22 - tiny, below, below),
        (2**22 + tiny, above, above),
        (Fraction(2**23), above, above),
    ):
        assert round_posit(number, fmt) == even
        assert round_posit(-number, fmt) == -even
        assert round_posit(number, fmt, Rounding("nearest_away")) == away


# Results of the C library SoftPosit 0.3.4, whose posits of 8 and 16 bits with es = 2 are its posit_2.
PUBLISHED = [
    ("posit8", "round", ["0x1.7p-1"], "0x1.8p-1"),
    ("posit8", "add", ["0x1.ep+3", "0x1.8p+4"], "0x1.4p+5"),
    ("posit8", "mul", ["0x1.ap-3", "-0x1.cp-5"], "-0x1.8p-7"),
    ("posit8", "div", ["0x1.ap-3", "-0x1.cp-5"], "-0x1.ep+1"),
    ("posit8", "sqrt", ["0x1.ap-3"], "0x1.cp-2"),
    ("posit16es1", "round", ["0x1.fffffffffffffp-27"], "0x1p-26"),
    ("posit16es1", "add", ["0x1.64p-4", "-0x1.916p-3"], "-0x1.becp-4"),
    ("posit16es1", "mul", ["0x1.324p+5", "0x1.04p+3"], "0x1.37p+8"),
    ("posit16", "round", ["0x1.16p-22"], "0x1.18p-22"),
    ("posit16", "add", ["0x1.0bp+5", "-0x1.7p+8"], "-0x1.4e8p+8"),
    ("posit16", "mul", ["0x1.0bp+5", "-0x1.7p+8"], "-0x1.8p+13"),
    ("posit16", "div", ["0x1.22ep-1", "-0x1.57p-1"], "-0x1.b24p-1"),
    ("posit32", "round", ["0x1.a90cc3fp+0"], "0x1.a90cc4p+0"),
    ("posit32", "add", ["0x1.f86001ap-3", "0x1.8711a0ap-4"], "0x1.5df469p-2"),
    ("posit32", "mul", ["0x1.199d136p+3", "0x1.63c454cp+2"], "0x1.875ccb4p+5"),
    ("posit32", "div", ["0x1.199d136p+3", "0x1.63c454cp+2"], "0x1.95485a4p+0"),
    ("posit32", "sqrt", ["0x1.199d136p+3"], "0x1.7bb7f0ap+1"),
]


@pytest.mark.parametrize(("name", "operation", "operands", "expected"), PUBLISHED)
def test_the_oracle_computes_what_a_published_library_does(name, operation, operands, expected):
    fmt, exact = get_format(name), [float.fromhex(operand) for operand in operands]
    assert operate_posit(operation, exact, fmt) == float.fromhex(expected)


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_all_codes_decode_by_the_definition_and_encode_back(fmt):
    codes = np.arange(2**fmt.bits, dtype=np.uint64)
    values = decode(codes, fmt)
    for code, value in zip(codes.tolist(), values.tolist(), strict=True):
        exact = posit_value(code, fmt)
        assert math.isnan(value) if exact is None else Fraction(value) == exact
    assert not np.signbit(values[0])
    back = encode(values, fmt)
    assert back.dtype == np.uint64
    assert np.array_equal(back, codes)


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_posits_are_ordered_as_integers_in_twos_complement(fmt):
    half = 2 ** (fmt.bits - 1)
    integers = np.arange(-half + 1, half)  # but that of NaR
    values = decode((integers & (2 * half - 1)).astype(np.uint64), fmt)
    assert (np.diff(values) > 0).all()
    assert np.array_equal(values, -values[::-1])


@pytest.mark.parametrize("fmt", LARGE, ids=str)
def test_codes_of_large_formats_decode_by_the_definition_and_encode_back(fmt):
    codes = np.array(
        [0, 2 ** (fmt.bits - 1), *some_codes(fmt), *(2**fmt.bits - code for code in some_codes(fmt))],
        np.uint64,
    )
    values = decode(codes, fmt)
    exact = [posit_value(code, fmt) for code in codes.tolist()]
    assert all(a != a if b is None else Fraction(a) == b for a, b in zip(values.tolist(), exact, strict=True))
    assert np.array_equal(encode(values, fmt), codes)


def test_codes_keep_the_shape_and_zero_has_one_code():
    values = np.array([[0.0, -0.0, np.nan], [1.0, -1.0, -np.nan]])
    codes = encode(values, Posit(8))
    assert codes.tolist() == [[0, 0, 0x80], [0x40, 0xC0, 0x80]]
    assert decode(codes, Posit(8)).shape == (2, 3)
    assert encode(np.float64(1.0), Posit(8)).shape == ()


@pytest.mark.parametrize("value", [1.0 + 2.0**-4, 2.0**-25, 2.0**25, 5e-324, np.inf, -np.inf, -(2.0**21)])
def test_what_is_no_posit_has_no_code(value):
    with pytest.raises(ValueError, match=r"element \(1,\) = .* is no value of posit8"):
        encode(np.array([1.0, value]), Posit(8))


def test_a_code_of_too_many_bits_is_refused():
    with pytest.raises(ValueError, match=r"codes of posit8 lie in \[0, 2\*\*8\)"):
        decode(np.array([0, 256]), Posit(8))


@pytest.mark.parametrize("fmt", [Posit(64), Posit(58), Posit(40, 5)], ids=str)
def test_what_binary64_does_not_hold_is_refused(fmt):
    for call in (
        lambda: encode(np.ones(1), fmt),
        lambda: decode(np.zeros(1, np.uint64), fmt),
        lambda: get_kernel(fmt, Rounding(), FLOAT64),
    ):
        with pytest.raises(UnsupportedFormatError, match="cannot hold"):
            call()
    with pytest.raises(ValueError, match="binary64 does not hold"):
        operate_posit("round", [1.0], fmt)


# -- rounding ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", SMALL, ids=str)
@pytest.mark.sampled(8)
def test_every_posit_and_boundary_and_what_is_beside_them_round_by_the_definition(fmt, mode, assert_same):
    for dtype in [np.float64] + [np.float32] * (fmt.bits <= 8):
        x = hard_numbers(range(1, 2 ** (fmt.bits - 1)), fmt, dtype)
        assert_same(rounded(x, fmt, mode), by_definition(x, fmt, mode), x)


@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("fmt", LARGE, ids=str)
@pytest.mark.sampled(8)
@pytest.mark.slow
def test_large_formats_round_by_the_definition(fmt, mode, assert_same):
    rng = np.random.default_rng(2)
    for dtype in [np.float64] + [np.float32] * holds(FLOAT32, fmt):
        near_one = np.ldexp(rng.uniform(-2, 2, 100), rng.integers(-fmt.emax // 8, fmt.emax // 8, 100))
        anywhere = np.ldexp(rng.uniform(-2, 2, 100), rng.integers(-fmt.emax - 3, fmt.emax + 3, 100))
        x = np.concatenate(
            [hard_numbers(some_codes(fmt), fmt, dtype), *(y.astype(dtype) for y in (near_one, anywhere))]
        )
        assert_same(rounded(x, fmt, mode), by_definition(x, fmt, mode), x)


@pytest.mark.parametrize("overflow", [Overflow.IEEE, Overflow.SATURATE])
@pytest.mark.parametrize("mode", Mode)
def test_nothing_underflows_to_zero_or_overflows(mode, overflow):
    x = np.array([5e-324, 2.0**-25, 2.0**-1000, 2.0**25, 1.7e308])
    x = np.concatenate([x, -x])
    words = np.zeros(x.size, np.uint16)
    y = rounded(x, Posit(8), Rounding(mode, overflow), words)
    assert y.tolist() == [2.0**-24] * 3 + [2.0**24] * 2 + [-(2.0**-24)] * 3 + [-(2.0**24)] * 2


@pytest.mark.parametrize("mode", Mode)
def test_nan_keeps_its_sign_and_infinity_becomes_nan_and_zero_positive(mode):
    for dtype in (np.float64, np.float32):
        x = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
        y = rounded(x, Posit(16), mode, np.full(x.size, 0xFFFF, np.uint16))
        assert np.isnan(y[:4]).all()
        assert np.signbit(y).tolist() == [False, True, False, True, False, False]
        assert y[4:].tolist() == [0, 0]


def test_the_named_vectors():
    x = np.ldexp(1.0, np.array([20, 21, 22, 23, 24, 25]))
    assert np.log2(rounded(x, Posit(8))).tolist() == [20, 20, 20, 24, 24, 24]
    assert np.log2(rounded(x, Posit(8), "nearest_away")).tolist() == [20, 20, 24, 24, 24, 24]
    assert encode(rounded(x, Posit(8)), Posit(8)).tolist() == [0x7E, 0x7E, 0x7E, 0x7F, 0x7F, 0x7F]


def test_rounding_in_place_and_of_nothing(assert_same):
    x = hard_numbers(some_codes(Posit(16)), Posit(16))
    expected, given = rounded(x, Posit(16)), x.copy()
    get_kernel(Posit(16), Rounding(), FLOAT64)(given, given)
    assert_same(given, expected, x)
    assert rounded(np.empty(0), Posit(16)).size == 0


@pytest.mark.parametrize("underflow", list(Underflow)[1:])
def test_a_posit_is_not_flushed(underflow):
    with pytest.raises(UnsupportedFormatError, match=r"posit8 does not underflow: .*not flush"):
        get_kernel(Posit(8), Rounding(underflow=underflow), FLOAT64)


def test_a_carrier_that_does_not_hold_the_format_is_refused():
    with pytest.raises(UnsupportedFormatError, match="posit32 has values that float32 cannot hold"):
        get_kernel(Posit(32), Rounding(), FLOAT32)


@pytest.mark.parametrize("fmt", [*SMALL, *LARGE], ids=str)
def test_values_of_the_format_stay_and_are_known(fmt):
    codes = some_codes(fmt) if fmt.bits > 10 else range(1, 2 ** (fmt.bits - 1))
    positive = decode(np.array(codes, np.uint64), fmt)
    words = np.random.default_rng(3).integers(0, 2**32, 2 * positive.size + 3, dtype=np.uint32)
    words[::2] = 0xFFFFFFFF
    for carrier in [FLOAT64] + [FLOAT32] * holds(FLOAT32, fmt):
        values = np.concatenate([positive, -positive, [0.0, -0.0, np.nan]]).astype(carrier)
        for mode in DETERMINISTIC:
            assert np.array_equal(rounded(values, fmt, mode), values, equal_nan=True)
        for rule in Rule:
            for bits in (1, 16, 32):
                random = Rounding("stochastic", random_bits=bits, rule=rule)
                assert np.array_equal(rounded(values, fmt, random, words), values, equal_nan=True)
        assert get_kernel(fmt, Rounding(), carrier).keeps(values)


@pytest.mark.parametrize("fmt", SMALL, ids=str)
@pytest.mark.sampled(6, each=False)
def test_what_is_no_value_is_not_kept(fmt):
    kernel = get_kernel(fmt, Rounding(), FLOAT64)
    x = hard_numbers(range(1, 2 ** (fmt.bits - 1)), fmt)
    posits = {float(posit_value(code, fmt)) for code in range(2 ** (fmt.bits - 1))}
    for number in x:
        assert kernel.keeps(np.array([number])) == (abs(number) in posits or math.isnan(number))


# -- at random --------------------------------------------------------------------------------------------
def outward_draws(magnitude, fmt, bits, rule):
    """Return which of the 2**bits draws round a number between posits away from zero, by the definition."""
    below = truncated_code(magnitude, fmt)
    longer, one_more = Posit(fmt.bits + bits, fmt.es), Posit(fmt.bits + bits + 1, fmt.es)
    truncated = truncated_code(magnitude, longer) - (below << bits)
    truncated_further = truncated_code(magnitude, one_more) - (below << (bits + 1))
    nearest = truncated + (round_posit(magnitude, longer) > posit_value((below << bits) + truncated, longer))
    carries = {
        Rule.TRUNCATE: lambda draw: truncated + draw >= 2**bits,
        Rule.CENTRED: lambda draw: truncated_further + 2 * draw + 1 >= 2 ** (bits + 1),
        Rule.NEAREST_FIRST: lambda draw: nearest + draw >= 2**bits,
    }[rule]
    return [carries(draw) for draw in range(2**bits)]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("fmt", [Posit(4, 0), Posit(5, 1), Posit(6, 3), Posit(7), Posit(8)], ids=str)
@pytest.mark.sampled(6)
def test_every_draw_rounds_as_the_rule_says(fmt, rule, bits):
    """Between every two neighbours, on the boundaries that so many bits make, and beside them."""
    finer = Posit(fmt.bits + bits + 2, fmt.es)
    codes = range(1 << (bits + 2), (2 ** (fmt.bits - 1) - 1) << (bits + 2))
    exact = np.array([float(posit_value(code, finer)) for code in codes])
    x = np.unique(np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf)]))
    x = x[x >= float(fmt.smallest_normal)]
    x = np.random.default_rng(bits).choice(x, 400, replace=x.size < 400)
    expected = [outward_draws(Fraction(item), fmt, bits, rule) for item in x.tolist()]
    below = rounded(x, fmt, "toward_zero")
    rng = np.random.default_rng(5)
    for carrier in (FLOAT64, FLOAT32):
        kept = x.astype(carrier) == x
        for draw in range(2**bits):
            for word in (np.uint16, np.uint32):
                spare = 8 * np.dtype(word).itemsize - bits  # the lower bits of a word play no part
                words = (draw << spare | rng.integers(0, 2**spare, kept.sum())).astype(word)
                rounding = Rounding("stochastic", random_bits=bits, rule=rule)
                for sign in (1, -1):
                    source = (sign * x[kept]).astype(carrier)
                    outward = rounded(source, fmt, rounding, words) != sign * below[kept]
                    assert outward.tolist() == [
                        item[draw] for item, keep in zip(expected, kept, strict=True) if keep
                    ]


@pytest.mark.parametrize("rule", Rule)
def test_more_random_bits_than_are_cut_off_give_the_exact_probability(rule):
    """float32 has 11 bits more than posit16 next to 1, and fewer than the 32 random bits anywhere."""
    fmt = Posit(16)
    x = np.float32([1 + 2.0**-12, 1 + 3 * 2.0**-13, 2.0**54, 1 + 2.0**-23])
    fractions = [Fraction(1, 2), Fraction(3, 4), Fraction(1, 2), Fraction(1, 2**12)]
    for carrier in (FLOAT32, FLOAT64):
        for number, fraction in zip(x, fractions, strict=True):
            last_down = int(2**32 * (1 - fraction)) - 1
            for draw, outward in ((0, False), (last_down, False), (last_down + 1, True), (2**32 - 1, True)):
                source = np.array([number], carrier)
                rounding = Rounding("stochastic", random_bits=32, rule=rule)
                y = rounded(source, fmt, rounding, np.array([draw], np.uint32))
                assert (y > source)[0] == outward


def test_a_word_is_needed_for_each_element():
    for words in (None, np.zeros(2, np.uint16)):
        with pytest.raises(ValueError, match="a random word for each element"):
            rounded(np.ones(3), Posit(8), "stochastic", words)


# -- operations by way of binary64 made odd -----------------------------------------------------------------
OPERATIONS = {
    "add": residuals.add,
    "mul": residuals.mul,
    "div": residuals.div,
    "sqrt": residuals.sqrt,
    "fma": residuals.fma,
}


@pytest.mark.parametrize("fmt", [*SMALL, Posit(16), Posit(32), Posit(32, 3), Posit(31, 0)], ids=str)
def test_boundaries_have_as_many_bits_as_binary64_is_trusted_with(fmt):
    """With j bits more a posit has at most j significant bits more."""
    for extra in (1, 2, 5, 17):
        longer = Posit(fmt.bits + extra, fmt.es)
        values = [posit_value(code, longer) for code in some_codes(longer)]
        for value in values:
            odd_part = value.numerator // (value.numerator & -value.numerator)
            assert odd_part.bit_length() <= fmt.precision + extra


def operands(fmt, arity, size, seed):
    """Return tuples of posits, every second one of codes near those of the first."""
    rng = np.random.default_rng(seed)
    top = 2 ** (fmt.bits - 1) - 1
    first = random_codes(fmt, size, seed)
    codes = [first]
    for _ in range(arity - 1):
        near = first + rng.integers(-(top // 8) - 2, top // 8 + 3, size)
        inverse = top + 1 - first + rng.integers(-2, 3, size)
        picked = np.choose(rng.integers(0, 3, size), [near, inverse, rng.integers(1, top + 1, size)])
        codes.append(np.clip(picked, 1, top))
    return [decode(code.astype(np.uint64), fmt) * rng.choice([-1.0, 1.0], size) for code in codes]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "fmt",
    [Posit(5), Posit(8), Posit(8, 0), Posit(10, 3), Posit(16), Posit(16, 1), Posit(32), Posit(32, 3)],
    ids=str,
)
@pytest.mark.sampled(4)
def test_an_operation_made_odd_in_binary64_rounds_like_the_exact_result(fmt, operation, assert_same):
    arity = {"sqrt": 1, "fma": 3}.get(operation, 2)
    numbers = operands(fmt, arity, 300, seed=len(operation) + fmt.bits)
    if operation == "sqrt":
        numbers = [np.abs(numbers[0])]
    odd = residuals.make_odd(*OPERATIONS[operation](*numbers))
    for mode in DETERMINISTIC:
        expected = [
            operate_posit(operation, item, fmt, Rounding(mode))
            for item in zip(*(x.tolist() for x in numbers), strict=True)
        ]
        assert_same(rounded(odd, fmt, mode), expected, *numbers)


def test_the_oracles_operations_at_nar():
    fmt = Posit(8)
    for operation, given in {
        "div": (1.0, 0.0),
        "sqrt": (-1.0,),
        "add": (math.nan, 1.0),
        "mul": (math.inf, 0.0),
        "fma": (1.0, 1.0, math.nan),
    }.items():
        assert math.isnan(operate_posit(operation, given, fmt))
    assert math.copysign(1, operate_posit("mul", (-1.0, 0.0), fmt)) == 1
    assert operate_posit("sqrt", (0.0,), fmt) == 0
    with pytest.raises(ValueError, match="no operation 'add' of 1"):
        operate_posit("add", (1.0,), fmt)
    with pytest.raises(ValueError, match="no one result"):
        operate_posit("add", (1.0, 1.0 / 3), fmt, Rounding("stochastic"))
