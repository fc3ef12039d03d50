"""Every kind of source, layout and number that can be rounded, and what is refused."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from mcfsim.convert import round_to
from mcfsim.formats import FORMATS, Format, Posit, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.oracle import round_fraction
from tests.oracle.operands import MODES, ROUNDINGS, SMALL_FORMATS, WIDE_FORMATS, label
from tests.shared.refusals import check, refusals, refused

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
@pytest.mark.sampled(48, each=False)
def test_integers_round_once(dtype, rounding, assert_same):
    for fmt in TARGETS:
        source = hard_integers(dtype, fmt.precision)
        expected = [round_fraction(Fraction(int(n)), fmt, rounding) for n in source]
        assert_same(round_to(source, fmt, rounding), expected, source.astype(np.float64))


def test_what_python_and_numpy_round_to_float64_is_the_same(assert_same):
    """Integers of 64 bits and quotients, to nearest even."""
    for dtype in (np.int64, np.uint64):
        source = hard_integers(np.dtype(dtype), 53)
        assert_same(round_to(source, "float64"), source.astype(np.float64))
    pairs = np.random.default_rng(3).integers(1, 2**62, (500, 2)).tolist()
    pairs += [(1, 10**400), (10**300 + 1, 10**620), (-1, 3), (2**1100 + 1, 2**90)]
    assert_same([round_to(Fraction(a, b), "float64") for a, b in pairs], [a / b for a, b in pairs])


# -- single numbers ---------------------------------------------------------------------------------------
def near_ties(fmt: Format) -> list[Fraction]:
    """Return numbers and midpoints of a format, exactly and barely beside, and numbers far out of range."""
    rng = np.random.default_rng(2)
    exponents = [fmt.emin - fmt.precision, fmt.emin, 0, fmt.emax, fmt.emax + 1]
    found = [Fraction(10) ** 400, Fraction(1, 10**400), Fraction(2) ** 1024, fmt.max, Fraction(1, 3), 0]
    for exponent in exponents:
        half = Fraction(2) ** (exponent - fmt.precision)
        for significand in rng.integers(2**fmt.precision, 2 ** (fmt.precision + 1), 4).tolist():
            found += [(significand + d) * half for d in (0, Fraction(1, 10**60), -Fraction(1, 10**60))]
    return [sign * x for x in found for sign in (1, -1)]


def of_other_kinds(fmt: Format) -> list[tuple[object, Fraction]]:
    """Return integers, decimals and numbers of mpmath that are beside a tie, and what they are exactly."""
    sizes = (1, 7, 8, 9, 52, 53, 63, 64, 65, 127, 128, 1023, 1024, 5000)
    integers = [sign * (2**size + d) for size in sizes for d in (-1, 0, 1) for sign in (1, -1)]
    with localcontext(prec=200), mpmath.workprec(300):
        tie, tiny = Decimal(float(1 + fmt.unit_roundoff)), Decimal(2) ** -150
        decimals = [sign * (tie + d) for d in (0, tiny, -tiny) for sign in (1, -1)]
        exact = [Fraction(x) for x in decimals]
        assert len(set(exact)) == 6
        mpfs = [mpmath.mpf(x.numerator) / x.denominator for x in exact]
    return [*((n, Fraction(n)) for n in integers), *zip(decimals + mpfs, exact * 2, strict=True)]


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=label)
@pytest.mark.parametrize("fmt", TARGETS, ids=label)
@pytest.mark.sampled(32, each=False)
def test_single_numbers_round_once(fmt, rounding, assert_same):
    pairs = [*((x, x) for x in near_ties(fmt)), *of_other_kinds(fmt)]
    expected = [round_fraction(exact, fmt, rounding) for _, exact in pairs]
    assert_same([round_to(x, fmt, rounding) for x, _ in pairs], expected)


KINDS = [
    *(float, Decimal, mpmath.mpf, np.longdouble, np.float16, np.float32, np.float64),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn),
]


@pytest.mark.parametrize(
    "number",
    [*(kind(1.5) for kind in KINDS), Fraction(3, 2), 2, np.int64(2), np.uint8(2)],
    ids=lambda x: type(x).__name__,
)
def test_a_number_of_any_kind_gives_a_float_and_keeps_what_is_no_fraction(number):
    rounded, kind = round_to(number, "e4m3fn"), type(number)
    assert type(rounded) is float
    assert rounded == (1.5 if number == 1.5 else 2)
    if kind is Fraction or number == 2:
        return
    assert math.copysign(1.0, round_to(kind("-0.0"), "bf16")) == (1.0 if kind is mpmath.mpf else -1.0)
    assert math.copysign(1.0, round_to(kind("-0.0"), "e4m3fnuz")) == 1.0
    for text in ("inf", "-inf", "nan") if kind is not ml_dtypes.float4_e2m1fn else ():
        assert str(round_to(kind(text), "bf16")) == text
        assert math.isnan(round_to(kind(text), "e4m3fn"))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="here longdouble is no wider than binary64")
def test_a_longdouble_is_taken_exactly():
    number = np.longdouble(1) + np.longdouble(2) ** -8 + np.longdouble(2) ** -60  # in binary64 a tie
    assert round_to(number, "bf16") == 1.0078125
    assert round_to(np.finfo(np.longdouble).max, "int8") == 127


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
        (ml_dtypes.bfloat16, "e4m3fn", np.float32),
        (ml_dtypes.float8_e5m2, "float64", np.float64),
        (np.int64, "bf16", np.float32),
        (np.float32, "float64", np.float64),
        (np.float32, Format(precision=25, emin=-10, emax=10), np.float64),
        (np.float16, Format(precision=8, emin=-127, emax=127), np.float64),
        (np.float32, Format(precision=4, emin=107, emax=120), np.float32),  # just held, and just not
        (np.float32, Format(precision=4, emin=108, emax=120), np.float64),
    ],
)
def test_the_result_has_the_dtype_that_is_promised(source, fmt, target):
    number = 2.0 ** max(get_format(fmt).emin, 0)
    rounded = round_to(np.full(3, number).astype(source), fmt)
    assert rounded.dtype == target
    assert (rounded == number).all()


def test_lists_are_arrays(assert_same):
    assert_same(round_to([[1.001, 2], [3, 4]], "bf16"), [[1.0, 2.0], [3.0, 4.0]])
    assert round_to([2**60 + 2**52 + 1], "bf16") == 2.0**60 + 2.0**53


# -- what is refused --------------------------------------------------------------------------------------
def full_range(precision):
    return Format(precision=precision, emin=-1022, emax=1023)


ODD = np.array([2**54 + 11])  # no number of 53 bits; to nearest first, a tie of 52 bits
COARSE = Format(precision=53, emin=-100, emax=100)  # of which subnormal numbers are coarser than binary64's
THIRD, READ_ONLY = Fraction(1, 3), np.ones(3)
READ_ONLY.flags.writeable = False
LONG = [(ODD, full_range(p), x) for p, x in ((53, "up"), (52, "nearest_even"), (53, "nearest_away"))]
#: Of 53 bits, but with fewer of long integers: these would be rounded twice.
LONG += [(ODD << 8, fmt) for fmt in (Format(precision=53, emin=70, emax=100), Posit(59, 4))]
TWICE = [*((THIRD, "float64", mode) for mode in ("up", "nearest_away")), (THIRD, full_range(52))]
TWICE += [(THIRD, COARSE), (10**400, "float64", "nearest_even", "saturate")]
BEYOND = [
    (x, Format("mine", precision=p, emin=emin, emax=emax))
    for x in (1.0, np.ones(2), np.ones(2, np.int8), THIRD)
    for p, emin, emax in ((54, -1022, 1023), (8, -1023, 127), (8, -126, 1024), (4, 980, 990))
]
NO_PLACES = [np.empty(3, "f8"), np.empty(3, ">f4"), np.empty(3, ml_dtypes.float8_e5m2), np.empty(4, "f4")]


def into(out, x=None):
    return round_to(np.ones(3, np.float32) if x is None else x, BF16, out=out)


@refusals(
    refused(UnsupportedFormatError, r"integers beyond 2\*\*53", round_to, *LONG),
    refused(UnsupportedFormatError, "cannot be rounded once", round_to, *TWICE),
    refused(UnsupportedFormatError, "number of 16610 bits cannot be", round_to, (10**5000, "float64", "up")),
    refused(UnsupportedFormatError, "mine", round_to, *BEYOND),
    refused(ValueError, "unknown format 'bf61'", round_to, (1.0, "bf61")),
    refused(ValueError, r"out must be float32 of shape \(3,\)", into, *NO_PLACES),
    refused(ValueError, "read-only", into, (READ_ONLY, np.ones(3))),
    *(
        refused(
            ValueError,
            "several of its elements share",
            into,
            as_strided(np.empty(9, "f4")[4:], (3,), (step,)),
        )
        for step in (0, 2, -3)
    ),
    refused(TypeError, "out must be an array without a mask", into, [1.0, 2.0, 3.0], np.ma.array(np.ones(3))),
    refused(ValueError, "out is for arrays", into, (np.empty(()), 1.0)),
)
def test_refusals(rows):
    check(rows)


def test_numbers_that_need_no_rounding_are_not_refused():
    assert round_to(ODD - 11, full_range(53), "up") == 2.0**54
    assert round_to(Fraction(3, 8), full_range(52)) == round_to(Fraction(3, 8), "float64", "up") == 0.375
    assert [round_to(x, "float64") for x in (10**400, -(10**400))] == [math.inf, -math.inf]
