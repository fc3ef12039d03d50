"""PyTorch's own types beside the emulator: where they have its bits, and where they are known not to."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.backends.native_torch import TorchNativeArithmetic
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import same
from tests.pytorch.devices import OPERATIONS, here, numbers, there

LONG = ("bfloat16", "float16", "float32", "float64")
SHORT = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
#: From this version on the cast to float8_e4m3fn saturates.
SATURATES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def native(fmt, device, **options):
    return mcf.arithmetic(fmt, backend="native", device=device, **options)


def operands(fmt, ours, device):
    """Return values of the format, of a byte all pairs, in the emulator's carrier and in the dtype."""
    every = mcf.codec.decode(np.arange(256, dtype=np.uint8), fmt) if fmt in SHORT else None
    a = mcf.arithmetic(fmt).round(numbers(2, 30_000)) if every is None else (every[:, None], every)
    a = [np.array(x) for x in np.broadcast_arrays(*a)]
    t = [there(x, device).to(ours.dtype) for x in a]
    for one, other in zip(a, t, strict=True):
        assert same(wide(other), one).all()
    return a, t


def wide(tensor):
    return here(tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "fma"])
@pytest.mark.parametrize("fmt", [*LONG, *SHORT])
@pytest.mark.sampled(2)
def test_operations_have_the_bits_of_the_emulator(fmt, name, device, assert_same):
    ours, theirs = native(fmt, device), mcf.arithmetic(fmt)
    a, t = operands(fmt, ours, device)
    found = getattr(ours, name)(*t[: OPERATIONS[name]])
    assert (found.dtype, found.device.type) == (ours.dtype, device)
    expected = getattr(theirs, name)(*a[: OPERATIONS[name]])
    if fmt == "float8_e4m3fn":
        check_overflow(wide(found), expected, *a[: OPERATIONS[name]], name=name)
    elif name == "sqrt" and fmt in ("float32", "float64"):  # MKL's roots of CPU tensors may be neighbours
        known = np.isfinite(expected) & (expected != 0)
        assert_same(wide(found)[~known], expected[~known])
        bits = {4: np.int32, 8: np.int64}[expected.itemsize]
        apart = wide(found)[known].view(bits) - expected[known].view(bits)
        assert abs(apart).max() <= 1
    else:
        assert_same(wide(found), expected)


def check_overflow(found, expected, *operands, name):
    """The cast of PyTorch saturates, and before its version 2.12 gave NaN, as the emulator does."""
    saturating = mcf.arithmetic("float8_e4m3fn", overflow="saturate")
    with np.errstate(all="ignore"):
        infinite = np.isinf(getattr(mcf.arithmetic("float32"), name)(*operands))
    within = same(found, expected)
    if not SATURATES:
        assert within.all()
        return
    beyond = np.isnan(expected) & ~np.isnan(found)
    assert (within | beyond).all()
    assert same(found, getattr(saturating, name)(*operands))[~infinite].all()
    assert (abs(found[infinite]) == 448).all()
    assert beyond.any() == (name in ("add", "sub", "mul", "div"))


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_tensors_of_binary64_are_cast_by_way_of_binary32(fmt, device):
    """So they are rounded twice; the emulator, and Python numbers, round once."""
    ours, theirs = native(fmt, device), mcf.arithmetic(fmt)
    hard = 1 + 2.0**-theirs.format.precision + 2.0**-40
    x = torch.tensor([hard], dtype=torch.float64, device=device)
    assert wide(ours.round(x)).tolist() == [1.0]
    assert theirs.round(np.array([hard])).tolist() == [1 + 2.0 ** (1 - theirs.format.precision)]
    assert float(ours.round(hard)) == float(ours.evaluate(lambda ar, x: 0.0 + hard, x)) == theirs.round(hard)


@pytest.mark.parametrize("fmt", [*LONG, *SHORT])
def test_texts_and_python_numbers(fmt, device, assert_same):
    ours, theirs = native(fmt, device), mcf.arithmetic(fmt, scalars="rounded")
    assert isinstance(ours, TorchNativeArithmetic)
    assert isinstance(ours, mcf.Arithmetic)
    x = np.array([0.5, -1.5, 0.0, -0.0, 3.0], theirs.carrier)
    x = theirs.add(x, 0.0) if not theirs.format.has_negative_zero else x
    t = ours.round(there(x, device))
    for text in (
        lambda ar, x: mcf.two_sum(ar, x, 0.3),
        lambda ar, x: (ar.div(x, 13.0), ar.sub(1 / 3, x), ar.mul(ar.neg(x), 1e-3), ar.sign(x)),
    ):
        for one, other in zip(ours.evaluate(text, t), theirs.evaluate(text, x), strict=True):
            assert_same(wide(one), other)
    assert float(ours.evaluate(lambda ar, x: (x, 0.1), t)[1]) == theirs.round(0.1)
    assert float(ours.add(0.1, 0.2)) == theirs.add(0.1, 0.2)


def test_what_is_refused(device):
    """For tensors that no arithmetic takes see test_torch_kernels."""
    ours, x = native("bfloat16", device), torch.ones(2, device=device)
    with pytest.raises(TypeError, match=r"of torch\.float32, and this arithmetic .* torch\.bfloat16"):
        ours.add(x.bfloat16(), x)
    for fmt in ("tf32", "posit8", "float6_e2m3fn"):
        with pytest.raises(UnsupportedFormatError, match="no torch dtype holds"):
            native(fmt, device)
    with pytest.raises(ValueError, match="rounds to nearest even"):
        mcf.arithmetic("bfloat16", "up", backend="native", device=device)
    with pytest.raises(UnsupportedFormatError, match="rounds to nearest even"):
        ours.like(ours.format, mcf.Rounding("up"))
    with pytest.raises(ValueError, match="'cuda:99' cannot be used"):
        native("bfloat16", "cuda:99")


def test_two_roundings_of_a_product_and_a_sum_must_be_agreed_to(device):
    with pytest.raises(UnsupportedFormatError, match=r"PyTorch has no fused multiply-add.*backend='torch'"):
        native("bfloat16", device).fma(1.0, 1.0, 1.0)
    ours = native("bfloat16", device, fused=False)
    x, c = 1 + 2.0**-7, -(1 + 2.0**-6)
    assert float(ours.fma(x, x, c)) == 0.0
    assert mcf.arithmetic("bfloat16").fma(x, x, c) == 2.0**-14
    half = ours.like(mcf.get_format("float16"), mcf.Rounding())
    assert repr(half) == f"TorchNativeArithmetic(torch.float16, device='{half.device}')"
    assert (half.carrier, half.rounding, half.scalars) == (torch.float16, mcf.Rounding(), "rounded")
    assert float(half.fma(2.0, 3.0, 1.0)) == 7.0
    assert ours.on_block(3, 5) is ours
