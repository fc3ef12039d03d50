"""Moments as codes and scales in tensors: what PyTorch's operations quantise is what NumPy's do."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import mcfsim as mcf
from mcfsim.codec import decode
from mcfsim.optim.stored import FLOAT8_GROUPS, FLOAT32
from mcfsim.optim.strategies import Stored
from mcfsim.scaled import ScaledFormat
from mcfsim.torch import AdamW, local, tensor_scales
from mcfsim.torch.local import Grouped
from tests.pytorch.runs import dtype_of, give, scaled
from tests.shared.kinds import STORED

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def hostile(size, group, element, seed):
    """Return numbers of all sizes and codes, with quotients by their scales beside ties, equal, and zero."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-40, 3, size)).astype(np.float32)
    for start in range(0, size, group):
        part = x[start : start + group]
        kind = rng.integers(0, 8)
        if kind == 0:  # any codes, NaN and infinities with them
            part[...] = rng.integers(0, 2**32, part.size, dtype=np.uint32).view(np.float32)
        elif kind == 1:
            part[...] = rng.choice([0.0, -0.0], part.size)
        elif kind == 2:  # subnormal numbers, whose scale may be zero
            part[...] = rng.integers(-(2 ** rng.integers(1, 20)), 2**3, part.size) * 2.0**-149
        elif kind in (3, 5):  # about products of the scale and ties, or these products
            largest = np.float32(np.abs(part).max())
            if kind == 5:  # which binary32 holds, if the scale is short
                largest = np.float32(float(element.max) * float(rng.integers(1, 2**12)) * 2.0**-20)
            scale = np.float32(float(largest) / float(element.max))
            values = decode(np.arange(2**element.bits), element)
            values = np.unique(values[np.isfinite(values)])
            ties = (values[1:] + values[:-1]) / 2
            part[1:] = (rng.choice(ties, part.size - 1) * float(scale)).astype(np.float32)
            if kind == 3:
                part[1:] = np.nextafter(part[1:], rng.choice([-np.inf, 0, np.inf], part.size - 1) + part[1:])
            part[0] = largest
        elif kind == 4:
            part[rng.integers(0, part.size)] = rng.choice([np.nan, np.inf, -np.inf, 3.4e38])
    return x


def kept(x, way):
    """Return codes and scales of numbers, and the numbers that these stand for."""
    codes = torch.zeros(x.size, dtype=torch.uint8)
    scales = way.zero_scales(torch.empty(x.size))
    way.keep(torch.from_numpy(x), codes, scales)
    return codes, scales.reshape(-1), way.numbers(codes, scales)


def differs(x, way):
    """Return whether codes, scales or numbers are not those of NumPy."""
    fmt = way.kept
    whole = [mcf.quantize(part, fmt) for part in np.split(x, [x.size // way.size * way.size])]
    codes, scales, numbers = kept(x, way)
    expected = np.concatenate([item.scale.reshape(-1) for item in whole])
    read = mcf.round_to(np.concatenate([item.dequantize() for item in whole]), "float32")
    same = np.array_equal(scales.numpy(), expected, equal_nan=True)
    same &= np.array_equal(numbers.numpy(), read, equal_nan=True)
    same &= np.array_equal(np.signbit(numbers.numpy()) & ~np.isnan(read), np.signbit(read) & ~np.isnan(read))
    return not (same and np.array_equal(codes.numpy(), np.concatenate([item.codes for item in whole])))


@pytest.mark.parametrize("element", FLOAT8)
@pytest.mark.parametrize(("size", "group"), [(1000, 128), (500, 7), (5, 128), (300, 1)])
@pytest.mark.sampled(4, each=False)
def test_operations_of_pytorch_quantise_as_numpy_does(element, size, group, monkeypatch):
    monkeypatch.setattr(local, "AT_ONCE", 300)
    way = Grouped(scaled(element, group), FLOAT32)
    assert way.algorithm is not None
    for seed in range(5):
        assert not differs(hostile(size, group, way.kept.element, seed), way), seed


@pytest.mark.parametrize("name", ["int8-moments", "coat-moments"])
@pytest.mark.parametrize("slot", ["m", "v"])
def test_codes_of_no_format_are_those_of_the_loops(name, slot, monkeypatch, assert_same):
    monkeypatch.setattr(local, "AT_ONCE", 300)
    stored = getattr(mcf.strategy(name), slot)
    way = Grouped(stored.scaled, stored.format)
    for seed, size in enumerate((1000, 256, 257, 5, 1)):
        x = hostile(size, way.size, mcf.get_format("float8_e4m3fn"), seed)
        x = np.abs(x) if slot == "v" else x
        codes, scales, numbers = kept(x, way)
        expected, *shared = stored.scaled.encode(x)
        assert np.array_equal(codes.numpy(), expected)
        assert_same(scales.numpy(), np.stack(shared, 1).reshape(-1))
        assert_same(numbers.numpy(), stored.scaled.decode(expected, *shared))


def toward_zero(x, by):
    quotient = x.widen() / by
    return quotient.equals(0.0).select(quotient, (quotient.bits() - 1).as_number())


#: What looks like the rule and is not, on values of lines.
WRONG = {
    "quotients in binary32": lambda x, by: (x / by.narrow()).widen(),
    "the inverse of the scale": lambda x, by: x.widen() * (by.like(1.0) / by),
    "the inverse in binary32": lambda x, by: (x * (x.like(1.0) / by.narrow())).widen(),
    "rounded toward zero": toward_zero,
}


@pytest.mark.parametrize("way", [None, *WRONG])
@pytest.mark.slow
def test_quotients_are_noticed_if_they_are_wrong_and_only_then(way, monkeypatch):
    if way is not None:
        wrong = lambda x, by: by.equals(0.0).select(x.widen() * 0.0, WRONG[way](x, by))  # noqa: E731
        monkeypatch.setattr("mcfsim.scaled.quantization.quotient_element", wrong)
    kept, (count, size) = Grouped(FLOAT8_GROUPS, FLOAT32), (3, 512) if way is None else (20, 4096)
    tensor_scales.algorithm_calls.cache_clear()
    try:
        found = any(differs(hostile(size, 128, kept.kept.element, seed), kept) for seed in range(count))
    finally:
        tensor_scales.algorithm_calls.cache_clear()
    assert found == (way is not None)


# -- in optimizers -------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("shape", [(6, 256), (33, 19)], ids=str)
def test_tensors_take_the_bytes_of_the_declaration(name, shape):
    """Of each group that is not full its numbers are counted whole."""
    chosen = mcf.strategy(name)
    p = torch.nn.Parameter(torch.ones(shape, dtype=dtype_of(name)))
    optimizer = AdamW([p], 1e-2, strategy=name)
    give([p], 0)
    optimizer.step()
    state = [x for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
    expected = chosen.bytes_per_parameter * p.numel()
    for kept in (chosen.m.scaled, chosen.v.scaled):
        if kept is not None:
            missing = -(-p.numel() // kept.block) - Fraction(p.numel(), kept.block)
            expected += missing * (kept.bits_per_element - 8) * kept.block / 8
    assert sum(x.untyped_storage().nbytes() for x in (p.detach(), p.grad, *state)) == expected


#: Of groups of 128: shapes, and those of their scales.
SCALES = {(3, 5, 256): (3, 5, 2), (3, 5, 100): (12,), (128,): (1,), (): (1,), (0, 256): (0, 2), (4, 0): (0,)}


@pytest.mark.parametrize("shape", SCALES)
def test_scales_have_the_shape_of_rows_where_these_have_whole_groups(shape):
    assert tuple(Grouped(FLOAT8_GROUPS, FLOAT32).zero_scales(torch.empty(shape)).shape) == SCALES[shape]


LONG = ScaledFormat("long", element=FLOAT32, block=32, scale=FLOAT32, rule="absmax")


@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "int8", "nvfp4", LONG])
def test_other_scaled_formats_have_the_bits_of_the_simulated_optimizer(fmt):
    """Those that lie as codes and scales, and those that lie as the numbers that they are."""
    kept = Stored(FLOAT32, scaled=fmt)
    mine = mcf.strategy(mcf.Strategy("mine", m=kept, v=kept), "bfloat16")
    generator = torch.Generator().manual_seed(1)
    p = torch.nn.Parameter(torch.randn((9, 65), generator=generator).bfloat16())
    ours = AdamW([p], 1e-2, eps=1e-3, strategy=mine)
    hyper = mcf.AdamW(epsilon=1e-3, weight_decay=0.01)
    judge = mcf.Optimizer(hyper, mine, {"w": p.detach().float().numpy().ravel()}, {"w"})
    for step in range(3):
        p.grad = (torch.randn((9, 65), generator=generator) * 10.0**-step).bfloat16()
        ours.step()
        judge.step(judge.receive({"w": p.grad.float().numpy().ravel()}), 1e-2)
    np.testing.assert_array_equal(p.detach().float().numpy().ravel(), judge.weights()["w"])
    assert ("m_scales" in ours.state[p]) == (fmt == "mxfp8_e4m3")
