"""PyTorch's own types beside the emulator: where they have its bits, and where they are known not to."""

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.backends.torch import TorchNativeArithmetic
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.oracle import same
from tests.kernels.test_single import SCALARS
from tests.pytorch.devices import OPERATIONS, here, numbers, there

LONG = ("bfloat16", "float16", "float32", "float64")
SHORT = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
#: From this version on the cast to float8_e4m3fn saturates.
SATURATES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def native(fmt, device, **options):
    return mcf.arithmetic(fmt, backend="native", device=device, **options)


def operands(fmt, ours, device):
    """Return values of the format, of a byte all pairs, in the emulator's carrier and in the dtype."""
    if fmt in SHORT:
        every = mcf.codec.decode(np.arange(256, dtype=np.uint8), fmt)
        a = [np.array(x) for x in np.broadcast_arrays(every[:, None], every)]
    else:
        a = [*mcf.arithmetic(fmt).round(numbers(2, 30_000))]
    t = [there(x, device).to(ours.dtype) for x in a]
    assert all(same(wide(other), one).all() for one, other in zip(a, t, strict=True))
    return a, t


def wide(tensor):
    return here(tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "fma"])
@pytest.mark.parametrize("fmt", [*LONG, *SHORT])
@pytest.mark.sampled(2)
def test_operations_have_the_bits_of_the_emulator(fmt, name, device, assert_same):
    ours = native(fmt, device)
    a, t = (x[: OPERATIONS[name]] for x in operands(fmt, ours, device))
    result = getattr(ours, name)(*t)
    assert (result.dtype, result.device.type) == (ours.dtype, device)
    found, expected = wide(result), getattr(mcf.arithmetic(fmt), name)(*a)
    if fmt == "float8_e4m3fn":
        check_overflow(found, expected, *a, name=name)
    elif name == "sqrt" and fmt in ("float32", "float64"):  # MKL's roots of CPU tensors may be neighbours
        known, bits = np.isfinite(expected) & (expected != 0), f"i{expected.itemsize}"
        assert_same(found[~known], expected[~known])
        assert abs(found[known].view(bits) - expected[known].view(bits)).max() <= 1
    else:
        assert_same(found, expected)


def check_overflow(found, expected, *operands, name):
    """The cast of PyTorch saturates, and before its version 2.12 gave NaN, as the emulator does."""
    within = same(found, expected)
    if not SATURATES:
        assert within.all()
        return
    with np.errstate(all="ignore"):
        infinite = np.isinf(getattr(mcf.arithmetic("float32"), name)(*operands))
    saturating = getattr(mcf.arithmetic("float8_e4m3fn", overflow="saturate"), name)(*operands)
    beyond = np.isnan(expected) & ~np.isnan(found)
    assert (within | beyond).all()
    assert same(found, saturating)[~infinite].all()
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


#: Operations of PyTorch on a tensor of the CPU and a number, and the same here. Sums take the number as the
#: dtype holds it; a number by a tensor is a product with the reciprocals.
BESIDE = {
    "x * s": (lambda x, s: x * s, lambda ar, x, s, held: ar.mul(x, s)),
    "s * x": (lambda x, s: s * x, lambda ar, x, s, held: ar.mul(s, x)),
    "x / s": (lambda x, s: x / s, lambda ar, x, s, held: ar.div(x, s)),
    "s / x": (lambda x, s: s / x, lambda ar, x, s, held: ar.mul(ar.div(1.0, x), s)),
    "x + s": (lambda x, s: x + s, lambda ar, x, s, held: ar.add(x, held)),
    "x - s": (lambda x, s: x - s, lambda ar, x, s, held: ar.sub(x, held)),
    "s - x": (lambda x, s: s - x, lambda ar, x, s, held: ar.sub(held, x)),
}
#: What the policy by itself would make of the last four.
PLAINLY = {
    "s / x": lambda ar, x, s: ar.div(s, x),
    "x + s": lambda ar, x, s: ar.add(x, s),
    "x - s": lambda ar, x, s: ar.sub(x, s),
    "s - x": lambda ar, x, s: ar.sub(s, x),
}
#: Beside a tie of either format, too, on which binary32 puts them.
HARD = [*(x for x in SCALARS if isinstance(x, float | int)), 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40]


@pytest.mark.parametrize("text", BESIDE)
@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.sampled(2)
@pytest.mark.slow
def test_a_number_beside_a_tensor_of_the_cpu_enters_by_way_of_binary32(fmt, text, assert_same):
    """All values beside hard numbers: products and quotients by the policy ``float32``, sums otherwise."""
    ar, codes = mcf.arithmetic(fmt, scalars="float32"), np.arange(2**16, dtype=np.uint16)
    x, t = mcf.codec.decode(codes, fmt), torch.from_numpy(codes.view(np.int16)).view(getattr(torch, fmt))
    (theirs, ours), others = BESIDE[text], set()
    for s in HARD:
        expected = ours(ar, x, s, float(ar.round(mcf.round_to(s, "float32"))))
        assert_same(wide(theirs(t, s)), expected, x)
        if text in PLAINLY and not same(PLAINLY[text](ar, x, s), expected).all():
            others.add(s)
    assert (0.9 in others) == (text in PLAINLY)
