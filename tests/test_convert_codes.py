"""Numbers rounded straight into codes: the codes of what is rounded, by every way."""

from __future__ import annotations

from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import as_dtype, code_dtype, encode
from mcfsim.formats import FORMATS
from mcfsim.rounding import Mode
from mcfsim.storage.buffers import BLOCK
from tests.oracle.operands import corners

NAMES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "tf32")
OTHERS = ("int8", "posit16", "float4_e2m1fn", "float6_e3m2fn", "float32", "float64")
COMPILED = [False, pytest.param(True, marks=pytest.mark.skipif(not find_spec("llvmlite"), reason="no LLVM"))]


def numbers(fmt, dtype=np.float32, size=3000):
    """Return numbers of all sizes, and those about the ends of a format's range, without NaN."""
    rng, fmt = np.random.default_rng(3), mcf.get_format(fmt)
    with np.errstate(all="ignore"):
        x = (rng.standard_normal(size) * 2.0 ** rng.integers(-40, 40, size)).astype(dtype)
        ends = np.array([float(y) for y in corners(fmt)]).astype(dtype)
    ends = ends[np.isfinite(ends)]
    x[: ends.size] = ends[:size]
    return x


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("fmt", [*NAMES, *OTHERS])
@pytest.mark.sampled(8)
@pytest.mark.slow
def test_codes_are_those_of_what_is_rounded(fmt, mode, compiled):
    options = {"overflow": "saturate", "random": mcf.RandomWords(5) if mode is Mode.STOCHASTIC else None}
    for dtype in (np.float32, np.float64):
        x = numbers(fmt, dtype)
        if mcf.get_format(fmt).has_nan:
            x[-3:] = np.nan, -np.nan, np.inf
        out = np.full(x.shape, 77, code_dtype(fmt))
        assert mcf.round_to(x, fmt, mode, compiled=compiled, out=out, **options) is out
        assert np.array_equal(out, encode(mcf.round_to(x, fmt, mode, compiled=False, **options), fmt))


@pytest.mark.parametrize("fmt", ["float16", *(name for name in FORMATS if hasattr(ml_dtypes, name))])
def test_arrays_of_the_formats_dtype_are_filled(fmt):
    x = numbers(fmt)
    expected, out = encode(mcf.round_to(x, fmt, overflow="saturate"), fmt), np.zeros(x.shape, fmt)
    assert mcf.round_to(x, fmt, overflow="saturate", out=out) is out
    assert np.array_equal(out.view(expected.dtype), expected)
    assert np.array_equal(out.view(np.uint8), as_dtype(expected, fmt).view(np.uint8))


@pytest.mark.parametrize("threads", [1, 2])
def test_codes_lie_as_their_array_does(threads):
    x = numbers("bfloat16", size=3 * BLOCK).reshape(3, -1)
    expected = encode(mcf.round_to(x, "bfloat16"), "bfloat16")
    turned = np.zeros(x.shape[::-1], np.uint16).T
    striped = np.zeros((3, 2 * x.shape[1]), np.uint16)[:, ::2]
    for out in (turned, striped):
        mcf.round_to(x, "bfloat16", out=out, threads=threads)
        assert np.array_equal(out, expected)
    words = mcf.RandomWords(2)
    mcf.round_to(x, "bfloat16", "stochastic", random=words, out=turned, threads=threads)
    assert np.array_equal(turned, encode(mcf.round_to(x, "bfloat16", "stochastic", random=words), "bfloat16"))
    same = x.copy()  # the lower halves of its own numbers
    mcf.round_to(same, "bfloat16", out=same.view(np.uint16)[:, ::2])
    assert np.array_equal(same.view(np.uint16)[:, ::2], expected)


def test_integers_numbers_without_a_code_and_other_arrays():
    out = np.zeros(4, np.uint8)
    mcf.round_to(np.array([1, -3, 17, 10**6]), "float8_e5m2", out=out)
    assert np.array_equal(out, encode(mcf.round_to([1.0, -3.0, 17.0, 1e6], "float8_e5m2"), "float8_e5m2"))
    alone = np.zeros((), np.uint8)
    assert mcf.round_to(np.array(-3), "float8_e5m2fnuz", out=alone) is alone
    assert alone == encode(-3.0, "float8_e5m2fnuz")
    for compiled in (None, False):
        with pytest.raises(ValueError, match="float4_e2m1fn has no code for NaN"):
            mcf.round_to(np.array([1.0, np.nan]), "float4_e2m1fn", out=out[:2], compiled=compiled)
    for wrong in (np.int8, np.uint16, np.float16, ">f4"):
        with pytest.raises(ValueError, match="out must be float32 of shape"):
            mcf.round_to(np.ones(4, np.float32), "float8_e5m2", out=np.zeros(4, wrong))
    with pytest.raises(ValueError, match=r"out must be uint8 of shape \(3,\), not uint8 of shape \(4,\)"):
        mcf.round_to(np.ones(3, np.float32), "float8_e5m2", out=out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        mcf.round_to(np.ones(4, np.float32), "float8_e5m2", out=out)


def test_tensors_are_filled():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="out is a view that PyTorch negates"):
        mcf.round_to(torch.ones(2), "bfloat16", out=torch.tensor([1 + 2j, 3 + 4j]).conj().imag)
    if hasattr(torch, "float8_e8m0fnu"):
        powers = torch.tensor([0.25, 2.0**100]).to(torch.float8_e8m0fnu)
        out = torch.empty_like(powers)
        assert mcf.round_to(powers, "float8_e8m0fnu", out=out).tolist() == [0.25, 2.0**100]
    x = torch.from_numpy(numbers("bfloat16"))
    for fmt in ("bfloat16", "float16", "float8_e4m3fn"):
        dtype = getattr(torch, fmt)
        rounded = mcf.round_to(x, fmt, "toward_zero")
        for out in (torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=torch.uint8)):
            if out.dtype.itemsize == dtype.itemsize:
                assert mcf.round_to(x, fmt, "toward_zero", out=out) is out
                assert torch.equal(out.view(dtype).to(torch.float32), rounded)
