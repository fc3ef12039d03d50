"""Codes by the definition of each kind of format, and as in NumPy, ml_dtypes and gfloat."""

import math

import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from mcfsim.codec import all_values, code_dtype, decode, encode
from mcfsim.formats import FORMATS, Format, Grid, Posit
from mcfsim.kernels import grid_codes, posit_codes
from mcfsim.kernels.carriers import UnsupportedFormatError
from tests.codec.definition import DEFINED, P3109_FORMATS, WIDE, value_of, values_of
from tests.oracle.operands import WIDE_FORMATS, label, magnitudes
from tests.shared.formats import LARGE_POSITS, p3109_of_gfloat, some_codes
from tests.shared.refusals import check, refusals, refused


@pytest.mark.parametrize("fmt", DEFINED, ids=label)
@pytest.mark.sampled(6, each=False)
def test_every_code_is_that_of_the_definition_both_ways_and_values_come_in_order(fmt, assert_same):
    expected = values_of(fmt)
    codes = np.array([code for code, value in enumerate(expected) if value is not None])
    values = np.array([value for value in expected if value is not None])
    assert_same(decode(codes, fmt), values, codes)
    number = ~np.isnan(values)
    assert np.array_equal(encode(values[number], fmt), codes[number])
    in_order = sorted(values[number].tolist(), key=lambda value: (value, math.copysign(1.0, value)))
    assert_same(all_values(fmt), in_order)
    assert fmt.has_nan == (not number.all())
    if fmt.has_nan:
        assert math.isnan(expected[int(encode(np.nan, fmt))])
        assert encode([-np.nan], fmt) == encode([np.nan], fmt)
    for code in sorted(set(range(2**fmt.bits)) - set(codes.tolist()))[:20]:
        with pytest.raises(ValueError, match=rf"element \(1,\) = {code} stands for no value"):
            decode(np.array([codes[0], code]), fmt)


def test_the_p3109_formats_are_all_there():
    assert len(P3109_FORMATS) == 196


@pytest.mark.parametrize("fmt", [*P3109_FORMATS, FORMATS["float8_e8m0fnu"]], ids=label)
@pytest.mark.sampled(12, each=False)
def test_every_code_decodes_as_in_gfloat(fmt, assert_same):
    info = p3109_of_gfloat(fmt) if fmt in P3109_FORMATS else gfloat.formats.format_info_ocp_e8m0
    codes = range(2**fmt.bits)
    assert_same(decode(codes, fmt), [gfloat.decode_float(info, code).fval for code in codes])


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS.values() if fmt.bits != 19], ids=label)
def test_codes_are_those_of_the_library(fmt, assert_same):
    """All, or some of 32 and 64 bits; the NaN that is encoded has no sign where there is one without."""
    dtype = getattr(ml_dtypes, fmt.name, None) or getattr(np, fmt.name)
    codes = np.arange(2 ** min(fmt.bits, 16), dtype=code_dtype(fmt))
    if fmt.bits > 16:
        drawn = np.random.default_rng(1).integers(0, 2**fmt.bits, 2**16, dtype=code_dtype(fmt))
        codes = np.concatenate([drawn, [0, 1, 2**fmt.bits // 2, 2**fmt.bits // 2 + 1]]).astype(
            code_dtype(fmt)
        )
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


@pytest.mark.parametrize("fmt", [*WIDE_FORMATS, WIDE], ids=label)
def test_codes_and_values_of_wide_formats_are_in_order(fmt, assert_same):
    positive = magnitudes(fmt)
    codes = encode(positive, fmt)
    assert np.array_equal(codes, np.arange(positive.size))
    assert_same(decode(codes, fmt), positive)
    assert np.array_equal(encode(-positive, fmt), codes + codes.dtype.type(2 ** (fmt.bits - 1)))
    positive = np.append(positive, np.inf)
    assert_same(all_values(fmt), np.concatenate([-positive[::-1], positive]))


@pytest.mark.parametrize("fmt", LARGE_POSITS, ids=str)
def test_some_codes_of_large_posits_are_those_of_the_definition_both_ways(fmt, assert_same):
    codes = some_codes(fmt)
    codes = np.array([0, 2 ** (fmt.bits - 1), *codes, *(2**fmt.bits - code for code in codes)], np.uint64)
    values = decode(codes, fmt)
    assert_same(values, [value_of(code, fmt) for code in codes.tolist()], codes)
    assert np.array_equal(encode(values, fmt), codes)


def test_negative_zero_encodes_as_zero_where_there_is_only_one():
    for fmt, code in (("e4m3fnuz", 0), ("e4m3fn", 0x80), ("posit8", 0), ("int4", 0)):
        assert encode([-0.0], fmt) == code


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_integers_are_values(dtype):
    x = np.array([[0, 1], [64, 96]], dtype=dtype)
    assert np.array_equal(encode(x, "bf16"), encode(x.astype(np.float64), "bf16"))


@pytest.mark.parametrize(("bits", "size"), [(8, 1), (9, 2), (16, 2), (17, 4), (32, 4), (33, 8), (64, 8)])
def test_codes_take_the_shortest_unsigned_dtype(bits, size):
    fmt = Format(precision=bits - 5, emin=-6, emax=7) if bits < 60 else FORMATS["float64"]
    fmt = fmt if fmt.bits == bits else Format(precision=bits - 4, emin=-6, emax=7)
    assert fmt.bits == bits
    assert code_dtype(fmt) == np.dtype(f"u{size}")


# -- what is refused --------------------------------------------------------------------------------------
GRID = Grid(low=-5, high=9, fraction_bits=2)
GAPS = Format(precision=3, emin=-6, emax=4, specials="none")  # 12 exponents of 16
LARGEST = int(encode([float(GAPS.max)], GAPS)[0])
TALL = Format(precision=20, emin=-6, emax=4, specials="none")  # decoded without a table
LARGE = np.ones((700, 500))
LARGE[600, 7] = 1.1
WRONG_CODES = np.where(LARGE == 1, 0, 300)
HIGHEST = np.array([2**63], np.uint64)
GAP_CODES = [0, LARGEST, LARGEST + 1, 2 ** (GAPS.bits - 1) - 1]
NO_VALUE = {
    "bf16": [1.1, 2.0**-150],
    "e4m3fn": [480.0, np.inf],
    "e2m1fn": [7.0, -np.inf],
    "e8m0fnu": [0.0, -1.0, 3.0, np.inf, 2.0**-128],
    "binary8p3ue": [-1.0, -np.inf],
    "binary8p3sf": [np.inf],
    "posit8": [0.3, 1.0 + 2.0**-4, 2.0**25, 2.0**-25, 5e-324, math.inf, -math.inf, -(2.0**21)],
    GRID: [10.0, 0.125, -5.5, math.inf],
    "int4": [0.5, 8.0, -9.0, math.inf, -math.inf, 1e300],
}


def rows(fmt, *lists):
    return [(x, fmt) for x in lists]


@refusals(
    *(
        refused(
            ValueError, r"element \(1,\) = .* is no value", encode, *rows(fmt, *([1.0, x] for x in numbers))
        )
        for fmt, numbers in NO_VALUE.items()
    ),
    refused(ValueError, r"element \(2,\) = .*no code for NaN", encode, ([1.0, 2.0, np.nan], "e2m1fn")),
    refused(ValueError, r"element \(1,\) = .*no code for NaN", encode, ([1.0, np.nan], GRID)),
    refused(
        ValueError, r"element \(600, 7\) = .*1\.1", encode, *rows("bf16", LARGE, np.asfortranarray(LARGE))
    ),
    refused(ValueError, r"beyond 2\*\*53", encode, ([2**60 + 1], "bf16")),
    refused(
        UnsupportedFormatError, "float64", encode, *((np.ones(1), Posit(*x)) for x in ((64,), (58,), (40, 5)))
    ),
    refused(UnsupportedFormatError, "float64", decode, ([0], Posit(58))),
    *(
        refused(ValueError, r"lie in \[0, 2\*\*8\)", decode, *rows(fmt, [-1], [256], [2**40], HIGHEST))
        for fmt in ("e5m2", "posit8", "int8")
    ),
    refused(ValueError, r"element \(1,\) = 256", decode, ([0, 256], "e5m2")),
    refused(TypeError, "codes must be integers", decode, *rows("e5m2", [1.0], ["1"], [True], [None])),
    refused(ValueError, r"element \(600, 7\) = .*300", decode, (WRONG_CODES.T.copy().T, "e5m2")),
    refused(
        ValueError, rf"element \(2,\) = .*{LARGEST + 1}.* stands for no value", decode, (GAP_CODES, GAPS)
    ),
    refused(
        ValueError, r"element \(0,\) = .* stands for no value", decode, ([2 ** (TALL.bits - 1) - 1], TALL)
    ),
    refused(ValueError, r"at most 2\*\*24", all_values, "float32"),
    refused(UnsupportedFormatError, "at most 64", code_dtype, Format(precision=60, emin=-100, emax=100)),
    refused(
        ValueError, r"\(1,\) = .* no value of posit8", posit_codes.encode, (np.array([1, 0.3]), Posit(8))
    ),
    refused(ValueError, r"posit8 lie in \[0, 2\*\*8\)", posit_codes.decode, (np.array([0, 256]), Posit(8))),
    refused(UnsupportedFormatError, "cannot hold", posit_codes.encode, (np.ones(1), Posit(58))),
    refused(UnsupportedFormatError, "cannot hold", posit_codes.decode, (np.zeros(1, np.uint64), Posit(58))),
    refused(
        ValueError,
        r"\(1,\) = .* no value of int",
        grid_codes.encode,
        *((np.array([1.0, x]), GRID) for x in (0.125, 10.0, math.nan, math.inf)),
    ),
    refused(ValueError, r"code 10 at \(1,\)", grid_codes.decode, (np.array([1, 10]), GRID)),
)
def test_refusals(rows):
    check(rows)
