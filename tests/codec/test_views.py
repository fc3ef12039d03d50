"""Codes seen as arrays of the libraries, and the other way, in the same memory."""

import ml_dtypes
import numpy as np
import pytest

from mcfsim.codec import as_dtype, code_dtype, codes_of
from mcfsim.formats import FORMATS, Format, Grid, get_format
from mcfsim.kernels.carriers import UnsupportedFormatError
from tests.oracle.operands import label
from tests.shared.refusals import check, refusals, refused

WRONG, BYTE = np.array([15, 16], dtype=np.uint8), get_format("binary8p3")
WITH_DTYPE = [fmt for fmt in FORMATS.values() if fmt.name != "tf32"]


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


@refusals(
    refused(
        UnsupportedFormatError,
        "no dtype of NumPy or ml_dtypes",
        as_dtype,
        *((np.zeros(1, code_dtype(fmt)), fmt) for fmt in (FORMATS["tf32"], BYTE, Grid(low=-8, high=7))),
    ),
    refused(
        TypeError,
        "codes of bfloat16 are an array of uint16, not",
        as_dtype,
        *((codes, "bf16") for codes in ([1], 1, *(np.zeros(2, x) for x in ("i2", "u1", ">u2", "f2")))),
    ),
    refused(ValueError, r"element \(1,\) = .*16.* lie in \[0, 2\*\*4\)", as_dtype, (WRONG, "e2m1fn")),
    refused(TypeError, r"has (no )?codes", codes_of, [1.0], 1.0, None, np.zeros(2, ml_dtypes.int4)),
    refused(
        TypeError,
        r"has (no )?codes",
        codes_of,
        *(np.zeros(2, x) for x in ("i4", bool, complex, object, "U3", "V2", np.longdouble, "f4,f4")),
    ),
)
def test_refusals(rows):
    check(rows)
