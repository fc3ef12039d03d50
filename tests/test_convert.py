"""Every kind of source, layout and number that can be rounded, and what is refused."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.oracle import round_fraction, round_integers
from mcfsim.rounding import Rounding
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import MODES, ROUNDINGS, SMALL_FORMATS, WIDE_FORMATS, label

E4M3FN, BF16, FP32 = (FORMATS[name] for name in ("float8_e4m3fn", "bfloat16", "float32"))
INTEGERS = [np.dtype(kind + str(size)) for kind in "iu" for size in (1, 2, 4, 8)]
WIDE_PRECISION = Format(precision=51, emin=-100, emax=100)
TARGETS = [*SMALL_FORMATS, *WIDE_FORMATS, FP32, WIDE_PRECISION]


# -- integers ---------------------------------------------------------------------------------------------
def hard_integers(dtype: np.dtype, precision: int) -> np.ndarray:
    """Return the extremes of an integer dtype, and ties of a precision with the integers beside them."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    found = {0, 1, int(info.min), int(info.min) + 1, int(info.max) - 1, int(info.max)}
    for exponent in range(info.bits):
        found |= {2**exponent + d for d in (-1, 0, 1)}
        for _ in range(3 * (exponent > precision)):
            tie = int(rng.integers(2**precision, 2 ** (precision + 1))) << (exponent - precision)
            found |= {tie + d for d in (-1, 0, 1)}
    found |= {-number for number in found}
    return np.array(sorted(n for n in found if info.min <= n <= info.max), dtype=dtype)


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.sampled(6)
def test_integers_round_once(dtype, rounding, assert_same):
    for fmt in TARGETS:
        source = hard_integers(dtype, fmt.precision)
        expected = [round_fraction(Fraction(int(n)), fmt, rounding) for n in source]
        assert_same(round_to(source, fmt, rounding), expected, source.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_all_integers_of_16_bits_round_by_the_definition(dtype, assert_same):
    source = np.arange(2**16, dtype=np.uint16).view(dtype)
    for fmt in TARGETS:
        assert_same(round_to(source, fmt), round_integers(source.astype(np.float64), fmt), source)


def test_integers_of_64_bits_round_to_nearest_even_in_float64_as_in_numpy(assert_same):
    for dtype in (np.int64, np.uint64):
        source = hard_integers(np.dtype(dtype), 53)
        assert_same(round_to(source, "float64"), source.astype(np.float64))


@pytest.mark.parametrize(("precision", "mode"), [(53, "up"), (52, "nearest_even"), (53, "nearest_away")])
def test_integers_that_binary64_cannot_round_once_are_refused(precision, mode):
    fmt = Format(precision=precision, emin=-1022, emax=1023)
    beyond = np.array([2**54 + 11])  # odd: no number of 53 bits; to nearest first, a tie of 52 bits
    with pytest.raises(UnsupportedFormatError, match=r"integers beyond 2\*\*53"):
        round_to(beyond, fmt, mode)
    assert round_to(beyond - 11, fmt, mode) == 2.0**54


# -- single numbers ---------------------------------------------------------------------------------------
def near_ties(fmt: Format) -> list[Fraction]:
    """Return numbers and midpoints of a format, exactly and barely beside, and numbers far out of range."""
    rng = np.random.default_rng(2)
    exponents = [fmt.emin - fmt.precision, fmt.emin, 0, fmt.emax, fmt.emax + 1]
    found = [
        Fraction(10) ** 400,
        Fraction(1, 10**400),
        Fraction(2) ** 1024,
        fmt.max,
        Fraction(1, 3),
        Fraction(0),
    ]
    for exponent in exponents:
        half = Fraction(2) ** (exponent - fmt.precision)
        for significand in rng.integers(2**fmt.precision, 2 ** (fmt.precision + 1), 4).tolist():
            found += [(significand + d) * half for d in (0, Fraction(1, 10**60), -Fraction(1, 10**60))]
    return [sign * x for x in found for sign in (1, -1)]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", TARGETS, ids=label)
@pytest.mark.sampled(6)
def test_fractions_round_once(fmt, rounding, assert_same):
    numbers = near_ties(fmt)
    expected = [round_fraction(x, fmt, rounding) for x in numbers]
    assert_same([round_to(x, fmt, rounding) for x in numbers], expected)


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.sampled(4, each=False)
def test_integers_of_any_size_round_once(rounding, assert_same):
    sizes = (1, 7, 8, 9, 52, 53, 63, 64, 65, 127, 128, 1023, 1024, 5000)
    numbers = [sign * (2**size + d) for size in sizes for d in (-1, 0, 1) for sign in (1, -1)]
    for fmt in TARGETS:
        expected = [round_fraction(Fraction(n), fmt, rounding) for n in numbers]
        assert_same([round_to(n, fmt, rounding) for n in numbers], expected)


@pytest.mark.parametrize("rounding", MODES, ids=label)
@pytest.mark.parametrize("fmt", TARGETS, ids=label)
def test_decimals_and_mpmath_numbers_round_once(fmt, rounding, assert_same):
    tie = 1 + fmt.unit_roundoff
    with localcontext(prec=200), mpmath.workprec(300):
        tiny = Decimal(2) ** -150
        decimals = [sign * (Decimal(float(tie)) + d) for d in (0, tiny, -tiny) for sign in (1, -1)]
        exact = [Fraction(x) for x in decimals]
        mpfs = [mpmath.mpf(x.numerator) / x.denominator for x in exact]
        assert len(set(exact)) == 6
        expected = [round_fraction(x, fmt, rounding) for x in exact]
        assert_same([round_to(x, fmt, rounding) for x in decimals], expected)
        assert_same([round_to(x, fmt, rounding) for x in mpfs], expected)


def test_float64_from_a_fraction_is_pythons_own_division(assert_same):
    rng = np.random.default_rng(3)
    pairs = [(int(a), int(b)) for a, b in rng.integers(1, 2**62, (500, 2))]
    pairs += [(1, 10**400), (10**300 + 1, 10**620), (-1, 3), (2**1100 + 1, 2**90)]
    assert_same([round_to(Fraction(a, b), "float64") for a, b in pairs], [a / b for a, b in pairs])


@pytest.mark.parametrize(
    ("fmt", "rounding", "overflow"),
    [
        (get_format("float64"), "up", "ieee"),
        (get_format("float64"), "nearest_away", "ieee"),
        (Format(precision=52, emin=-1022, emax=1023), "nearest_even", "ieee"),
        (Format(precision=53, emin=-100, emax=100), "nearest_even", "ieee"),  # its subnormals are coarser
    ],
)
def test_numbers_that_binary64_cannot_round_once_are_refused(fmt, rounding, overflow):
    with pytest.raises(UnsupportedFormatError, match="cannot be rounded once"):
        round_to(Fraction(1, 3), fmt, rounding, overflow)
    assert round_to(Fraction(3, 8), fmt, rounding, overflow) == 0.375


def test_overflow_into_float64_is_infinite_and_refused_where_it_should_saturate():
    assert round_to(10**400, "float64") == math.inf
    assert round_to(-(10**400), "float64") == -math.inf
    for policy in (("up", "ieee"), ("nearest_even", "saturate")):
        with pytest.raises(UnsupportedFormatError, match="cannot be rounded once"):
            round_to(10**400, "float64", *policy)


@pytest.mark.parametrize(
    "number",
    [
        *(1.5, 3, Fraction(3, 2), Decimal("1.5"), mpmath.mpf(1.5), True + 0.5),
        *(np.float16(1.5), np.float32(1.5), np.float64(1.5), np.longdouble(1.5), np.int64(3), np.uint8(3)),
        *(ml_dtypes.bfloat16(1.5), ml_dtypes.float8_e5m2(1.5), ml_dtypes.float4_e2m1fn(1.5)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_number_gives_a_float(number):
    rounded = round_to(number, "e4m3fn")
    assert type(rounded) is float
    assert rounded == (3.0 if number == 3 else 1.5)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="here longdouble is no wider than binary64")
def test_a_longdouble_is_taken_exactly():
    number = np.longdouble(1) + np.longdouble(2) ** -8 + np.longdouble(2) ** -60  # in binary64 a tie
    assert round_to(number, "bf16") == 1.0078125


@pytest.mark.parametrize(
    "number",
    [-0.0, np.float32(-0.0), Decimal("-0.0"), ml_dtypes.bfloat16(-0.0)],
    ids=lambda x: type(x).__name__,
)
def test_a_signed_zero_keeps_its_sign(number):
    assert math.copysign(1.0, round_to(number, "bf16")) == -1.0
    assert math.copysign(1.0, round_to(number, "e4m3fnuz")) == 1.0


@pytest.mark.parametrize("kind", [float, Decimal, mpmath.mpf, np.float32, ml_dtypes.bfloat16])
def test_numbers_that_are_not_finite_stay_so(kind):
    for text in ("inf", "-inf", "nan"):
        assert str(round_to(kind(text), "bf16")) == text
        assert math.isnan(round_to(kind(text), "e4m3fn"))


@pytest.mark.parametrize(
    "number", ["1.5", None, 1j, np.complex64(1), np.datetime64(1, "s"), True, np.True_, object()]
)
def test_what_is_no_real_number_is_refused(number):
    with pytest.raises(TypeError, match="no real number"):
        round_to(number, "bf16")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1j]),
        np.array([True]),
        np.array(["1.5"]),
        np.array([Fraction(1, 3)]),
        [Fraction(1, 3)],
        np.array([1], dtype="m8[s]"),
        np.zeros(1, dtype=[("x", "f4")]),
    ],
    ids=lambda x: str(np.asarray(x).dtype),
)
def test_an_array_that_holds_no_reals_of_at_most_64_bits_is_refused(array):
    with pytest.raises(TypeError, match="does not hold real numbers"):
        round_to(array, "bf16")


def test_to_fraction_is_exact_and_none_of_what_is_not_finite():
    assert to_fraction(0.1) == Fraction(3602879701896397, 2**55)
    assert to_fraction(np.float32(0.1)) == Fraction(13421773, 2**27)
    assert to_fraction(Decimal("0.1")) == Fraction(1, 10)
    assert to_fraction(-mpmath.mpf(0.75)) == Fraction(-3, 4)
    for kind in (float, Decimal, mpmath.mpf, np.float32):
        assert [to_fraction(kind(text)) for text in ("inf", "-inf", "nan")] == [None] * 3


# -- dtypes of arrays -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "fmt", "target"),
    [
        (np.float32, "bf16", np.float32),
        (np.float64, "bf16", np.float64),
        (np.float16, "bf16", np.float32),
        (ml_dtypes.bfloat16, "e4m3fn", np.float32),
        (ml_dtypes.float8_e5m2, "float64", np.float64),
        (np.int64, "bf16", np.float32),
        (np.uint8, "float64", np.float64),
        (np.float32, "float64", np.float64),
        (np.float32, Format(precision=25, emin=-10, emax=10), np.float64),
        (np.float16, Format(precision=8, emin=-127, emax=127), np.float64),
    ],
)
def test_the_result_has_the_dtype_that_is_promised(source, fmt, target):
    rounded = round_to(np.ones(3, source), fmt)
    assert rounded.dtype == target
    assert (rounded == 1).all()


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float4_e2m1fn"]
)
def test_every_code_of_an_ml_dtypes_array_is_taken_exactly(dtype, assert_same):
    fmt = get_format(dtype)
    raw = np.arange(2**fmt.bits, dtype=np.uint8 if fmt.bits <= 8 else np.uint16)
    source = raw.view(getattr(ml_dtypes, dtype))
    with np.errstate(invalid="ignore"):
        wide = source.astype(np.float32)
    for target in (E4M3FN, BF16):
        assert_same(round_to(source, target), round_integers(wide, target), wide)


def test_lists_are_arrays(assert_same):
    assert_same(round_to([[1.001, 2], [3, 4]], "bf16"), [[1.0, 2.0], [3.0, 4.0]])
    assert round_to([2**60 + 2**52 + 1], "bf16") == 2.0**60 + 2.0**53


# -- layouts ----------------------------------------------------------------------------------------------
def misaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "contiguous": lambda x: x,
    "every third": lambda x: np.repeat(x, 3, axis=-1)[..., ::3],
    "reversed": lambda x: np.flip(np.array(np.flip(x))) if x.ndim else x,
    "Fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "misaligned": misaligned,
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}
SHAPES = [(), (0,), (3, 0, 2), (7,), (3, 5, 7), (3, BLOCK - 1), (BLOCK + 1, 3), (2 * BLOCK,)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint64", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sampled(6)
def test_the_layout_of_a_source_makes_no_difference(layout, dtype, assert_same):
    rng = np.random.default_rng(4)
    for shape in SHAPES:
        if layout == "broadcast" and not shape:
            continue
        values = np.asarray(100 * rng.random(shape))
        if dtype == "bfloat16":
            if layout == "swapped bytes":  # ml_dtypes has its types in native byte order only
                continue
            values = values.astype(ml_dtypes.bfloat16)
        else:
            values = values.astype(dtype)
        source = LAYOUTS[layout](values)
        before = source.copy()
        rounded = round_to(source, E4M3FN)
        assert rounded.dtype.isnative
        assert_same(rounded, round_integers(source.astype(np.float64), E4M3FN))
        assert np.array_equal(source, before)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
def test_out_takes_the_result_and_may_be_the_source(rounding, threads, assert_same):
    for shape in ((), (5,), (3, BLOCK), (0,)):
        source = np.asarray(np.random.default_rng(5).standard_normal(shape))
        expected = round_integers(source, BF16, Rounding(rounding))
        for out in (np.empty(shape), np.empty(shape[::-1]).T, np.empty((*shape, 2))[..., 0], source):
            result = round_to(source, BF16, rounding, out=out, threads=threads)
            assert result is out
            assert_same(out, expected)


def test_out_takes_integers_rounded():
    out = np.empty(2, np.float32)
    assert round_to(np.array([257, 259]), BF16, out=out) is out
    assert out.tolist() == [256.0, 260.0]


@pytest.mark.parametrize(
    "out",
    [
        np.empty(3, np.float64),
        np.empty(4, np.float32),
        np.empty((1, 3), np.float32),
        np.empty(3, np.dtype(np.float32).newbyteorder()),
        np.empty(3, ml_dtypes.bfloat16),
    ],
    ids=lambda x: f"{x.dtype}-{x.shape}",
)
def test_an_out_that_does_not_fit_is_refused(out):
    with pytest.raises(ValueError, match=r"out must be float32 of shape \(3,\)"):
        round_to(np.ones(3, np.float32), BF16, out=out)


def test_an_out_that_is_read_only_is_refused():
    with pytest.raises(ValueError, match="read-only"):
        round_to(np.ones(3), BF16, out=read_only(np.ones(3)))


def test_out_is_refused_for_a_single_number():
    with pytest.raises(ValueError, match="out is for arrays"):
        round_to(1.0, BF16, out=np.empty(()))


@pytest.mark.parametrize("rounding", ["nearest_even", "to_odd"])
@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.sampled(6, each=False)
@pytest.mark.slow
def test_threads_give_the_same_bits(threads, rounding, assert_same):
    rng = np.random.default_rng(6)
    for shape, layout in itertools.product([(5 * BLOCK + 17,), (3, 2 * BLOCK + 1)], LAYOUTS.values()):
        source = layout(rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32))
        assert_same(round_to(source, "fp16", rounding, threads=threads), round_to(source, "fp16", rounding))


# -- formats ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [(54, -1022, 1023), (8, -1023, 127), (8, -126, 1024), (4, 980, 990)],
    ids=["precision", "emin", "emax", "huge numbers only"],
)
def test_a_format_that_float64_does_not_carry_is_refused_by_name(fields):
    fmt = Format("mine", precision=fields[0], emin=fields[1], emax=fields[2])
    for source in (1.0, np.ones(2), np.ones(2, np.int8), Fraction(1, 3)):
        with pytest.raises(UnsupportedFormatError, match="mine"):
            round_to(source, fmt)


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="unknown format 'bf61'"):
        round_to(1.0, "bf61")
