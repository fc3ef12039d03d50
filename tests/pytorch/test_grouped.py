"""Moments as codes and scales in tensors: what PyTorch's operations quantise is what NumPy's do."""

import math
from fractions import Fraction

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from mcfsim.codec import decode  # noqa: E402
from mcfsim.optim.stored import FLOAT8_GROUPS, FLOAT32, Stored  # noqa: E402
from mcfsim.scaled import ScaledFormat  # noqa: E402
from mcfsim.torch import AdamW, grouped  # noqa: E402
from mcfsim.torch.grouped import Grouped, zero_scales  # noqa: E402

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def scaled(element, group=128):
    options = {"element": element, "block": group, "scale": "float32", "rule": "absmax"}
    return ScaledFormat(f"{element} in groups of {group}", **options)


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
    scales = zero_scales(torch.empty(x.size), way.size, torch.float32)
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
@pytest.mark.parametrize(("size", "group"), [(4096, 128), (1000, 128), (1000, 7), (5, 128), (300, 1)])
def test_operations_of_pytorch_quantise_as_numpy_does(element, size, group, monkeypatch):
    monkeypatch.setattr(grouped, "AT_ONCE", 300)
    way = Grouped(scaled(element, group), FLOAT32)
    assert way._there
    for seed in range(20):
        assert not differs(hostile(size, group, way.kept.element, seed), way)


def test_elements_are_the_nearest_by_fractions():
    way = Grouped(FLOAT8_GROUPS, FLOAT32)
    x = hostile(1024, 128, FLOAT8_GROUPS.element, 3)
    x = np.where(np.isfinite(x), x, np.float32(1))
    codes, scales, _ = kept(x, way)
    values = [float(v) for v in decode(np.arange(256), FLOAT8_GROUPS.element) if math.isfinite(v)]
    chosen = decode(codes.numpy(), FLOAT8_GROUPS.element)
    for number, scale, value in zip(x, np.repeat(scales.numpy(), 128), chosen, strict=True):
        if scale:
            quotient = Fraction(float(number)) / Fraction(float(scale))
            nearest = min(abs(Fraction(v) - quotient) for v in values)
            assert abs(Fraction(float(value)) - quotient) == nearest


#: What looks like the rule and is not.
WRONG = {
    "quotients in binary32": lambda x, y: (x.float() / y.float()).double(),
    "the inverse of the scale": lambda x, y: x * (1 / y),
    "the inverse in binary32": lambda x, y: (x.float() * (1 / y.float())).double(),
    "rounded toward zero": lambda x, y: torch.nextafter(x / y, torch.zeros_like(x)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_quotients_are_noticed(wrong, monkeypatch):
    way = Grouped(FLOAT8_GROUPS, FLOAT32)

    def quotients(x, y, fmt, rounding):
        found = WRONG[wrong](x, y)
        found = torch.where(y == 0, x * 0.0, found).numpy()
        return torch.from_numpy(np.asarray(mcf.round_to(found, fmt, rounding)))

    given = [hostile(4096, 128, FLOAT8_GROUPS.element, seed) for seed in range(20)]
    monkeypatch.setattr(grouped, "quotients", quotients)
    assert any(differs(x, way) for x in given)


def test_quotients_in_their_place_are_right(monkeypatch):
    """The same in fractions, which shows that the test before fails for what is wrong alone."""
    way = Grouped(FLOAT8_GROUPS, FLOAT32)

    def quotients(x, y, fmt, rounding):
        found = []
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            exact = math.isfinite(a) and math.isfinite(b) and b
            found.append(Fraction(a) / Fraction(b) if exact and a else a * 0.0 if b == 0 else a / b)
        made = [float(mcf.round_to(q, fmt, rounding)) for q in found]
        return torch.tensor(made, dtype=torch.float32)

    monkeypatch.setattr(grouped, "quotients", quotients)
    for seed in range(3):
        assert not differs(hostile(1024, 128, FLOAT8_GROUPS.element, seed), way)


# -- in optimizers -------------------------------------------------------------------------------------------
STORED = [name for name in mcf.STRATEGIES if name != "exact"]


def made(name, shape, fill=1.0):
    """Return an optimizer of one parameter."""
    chosen = mcf.strategy(name)
    p = torch.nn.Parameter(torch.full(shape, fill, dtype=getattr(torch, chosen.parameter.format.name)))
    p.grad = torch.ones_like(p)
    return AdamW([p], 1e-2, strategy=name), p


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("shape", [(6, 256), (33, 19)], ids=str)
def test_tensors_take_the_bytes_of_the_declaration(name, shape):
    """Of each group that is not full its numbers are counted whole."""
    chosen = mcf.strategy(name)
    optimizer, p = made(name, shape)
    optimizer.step()
    state = [x for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
    expected = chosen.bytes_per_parameter * p.numel()
    for kept in (chosen.m.scaled, chosen.v.scaled):
        if kept is not None:
            missing = -(-p.numel() // kept.block) - Fraction(p.numel(), kept.block)
            expected += missing * (kept.bits_per_element - 8) * kept.block / 8
    assert sum(x.untyped_storage().nbytes() for x in (p.detach(), p.grad, *state)) == expected


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_all_weights_start_as_those_of_the_simulated_optimizer(name, steps):
    """Infinities, zeros of either sign, NaN and subnormal numbers among them."""
    optimizer, p = made(name, (9, 37))
    given = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.3e38, 2.0**-126, 0.3]
    with torch.no_grad():
        p.copy_(torch.tensor(given).repeat(28)[: p.numel()].view(p.shape))
        p.grad.copy_(torch.tensor([1.0, -1.0, 0.0, -0.0, 1e-3]).repeat(67)[: p.numel()].view(p.shape))
    weights = {"w": p.detach().float().numpy().ravel().copy()}
    reference = mcf.Optimizer(mcf.AdamW(weight_decay=0.01), mcf.strategy(name), weights, {"w"})
    for _ in range(steps):
        optimizer.step()
        reference.step(reference.receive({"w": p.grad.float().numpy().ravel()}), 1e-2)
    found = p.detach().float().numpy().ravel()
    np.testing.assert_array_equal(found, reference.weights()["w"])
    with np.errstate(all="ignore"):
        meant = sum(x.astype(float) for x in reversed(reference.represented()))
    represented = optimizer.represented(p).numpy().ravel()
    np.testing.assert_array_equal(represented, meant)
    if name != "mcf-3":
        np.testing.assert_array_equal(
            np.signbit(found[found == 0]), np.signbit(reference.weights()["w"][found == 0])
        )


@pytest.mark.parametrize(
    ("bits", "low"), [(2, "bfloat16"), (5, "float16"), (8, "float16"), (9, "bfloat16"), (16, "float16")]
)
@pytest.mark.parametrize("size", [300, 5000])
def test_remainders_of_all_lengths_have_the_bits_of_the_simulated_optimizer(bits, low, size):
    moment = Stored(FLOAT32)
    extra = Stored(FLOAT32, remainder=bits)
    mine = mcf.strategy(mcf.Strategy("mine", m=moment, v=moment, extra=extra, addition="master"), low)
    generator = torch.Generator().manual_seed(1)
    p = torch.nn.Parameter(torch.randn(size, generator=generator).to(getattr(torch, low)))
    optimizer = AdamW([p], 1e-2, strategy=mine)
    hyper = mcf.AdamW(weight_decay=0.01)
    reference = mcf.Optimizer(hyper, mine, {"w": p.detach().float().numpy()}, {"w"})
    for step in range(3):
        p.grad = (torch.randn(size, generator=generator) * 10.0**-step).to(p.dtype)
        optimizer.step()
        reference.step(reference.receive({"w": p.grad.float().numpy()}), 1e-2)
    assert optimizer.state[p]["remainder"].itemsize == (1 if bits <= 8 else 2)
    np.testing.assert_array_equal(p.detach().float().numpy(), reference.weights()["w"])
    np.testing.assert_array_equal(optimizer.represented(p).numpy(), reference.represented()[0])


def test_scales_have_the_shape_of_rows_where_these_have_whole_groups():
    def shape(*given):
        return tuple(zero_scales(torch.empty(given), 128, torch.float32).shape)

    assert shape(3, 5, 256) == (3, 5, 2)
    assert shape(3, 5, 100) == (12,)
    assert shape(128) == (1,)
    assert shape() == (1,)
    assert shape(0, 256) == (0, 2)
    assert shape(4, 0) == (0,)


#: Kept as codes and scales by PyTorch's operations, by NumPy's, and as the numbers that they are.
FORMATS = {
    "float8_e5m2 in groups of 128": (scaled("float8_e5m2"), True),
    "mxfp8_e4m3": ("mxfp8_e4m3", True),
    "int8 in groups of 64": (scaled("int8", 64), True),
    "int8 with a scale a tensor": ("int8", False),
    "nvfp4": ("nvfp4", False),
    "float8_e4m3fn of bfloat16": (FLOAT8_GROUPS, True),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("shape", [(9, 65), (33, 128)], ids=str)
@pytest.mark.parametrize("there", [False, True], ids=["NumPy", "operations"])
def test_other_scaled_formats_have_the_bits_of_the_simulated_optimizer(kind, shape, there, monkeypatch):
    fmt, packed = FORMATS[kind]
    kept = Stored("bfloat16" if "of bfloat16" in kind else FLOAT32, scaled=fmt)
    mine = mcf.strategy(mcf.Strategy("mine", m=kept, v=kept), "bfloat16")
    monkeypatch.setattr("mcfsim.torch.step._is_host", lambda device: not there)
    generator = torch.Generator().manual_seed(1)
    p = torch.nn.Parameter(torch.randn(shape, generator=generator).bfloat16())
    optimizer = AdamW([p], 1e-2, eps=1e-3, strategy=mine)
    hyper = mcf.AdamW(epsilon=1e-3, weight_decay=0.01)
    reference = mcf.Optimizer(hyper, mine, {"w": p.detach().float().numpy().ravel()}, {"w"})
    for step in range(3):
        p.grad = (torch.randn(shape, generator=generator) * 10.0**-step).bfloat16()
        optimizer.step()
        reference.step(reference.receive({"w": p.grad.float().numpy().ravel()}), 1e-2)
    np.testing.assert_array_equal(p.detach().float().numpy().ravel(), reference.weights()["w"])
    stores = optimizer.steps_of(optimizer.param_groups[0]).stores
    for name, vectors in (("m", reference.state.m), ("v", reference.state.v)):
        state = optimizer.state[p]
        assert (f"{name}_scales" in state) == packed
        np.testing.assert_array_equal(stores.numbers(state, name).float().numpy(), vectors[0])
