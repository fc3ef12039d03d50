"""Optimizers whose vectors hold codes: the bits of those that hold carrier numbers."""

import importlib.util

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode, encode
from mcfsim.formats import Format
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.optim.memory import packed_dtype, read, write

needs_numba = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("numba", "platformdirs")),
    reason="Numba is not installed",
)
SIZE = 5000
#: As bfloat16, but for the largest numbers, whose codes stand for nothing.
GAPS = Format("gaps", precision=8, emin=-126, emax=126)
#: With a code for NaN, without; of a posit; longer than 16 bits; of a subnormal format in binary64.
LOW = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "posit16es1", "tf32", "int8"]


def hostile(rng):
    """Return numbers of all sizes, zeros, infinities and NaN among them."""
    x = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-12, 1, SIZE)
    x[:500] *= 1e-30
    x[500:600], x[600:620], x[620:640], x[640:660] = 0.0, np.inf, np.nan, -0.0
    x[660:700] = 1e37
    rng.shuffle(x)
    return x.astype(np.float32)


def trained(name, low, mode, packed, compiled, hyper=None):
    """Return what three steps leave and ask for, as carrier numbers."""
    rng, options = np.random.default_rng(7), {}
    if mode == "stochastic":
        options["random"] = mcf.RandomWords(3)
    start = {"w": hostile(rng)[:4000], "b": hostile(rng)}
    optimizer = mcf.Optimizer(
        hyper or mcf.AdamW(),
        mcf.strategy(name, low),
        start,
        ["w"],
        mode,
        packed=packed,
        compiled=compiled,
        **options,
    )
    asked = []
    for _ in range(3):
        gradient = optimizer.receive({"w": hostile(rng)[:4000], "b": hostile(rng)})
        asked.append(read(optimizer.step(gradient, 1e-3), optimizer.roles.update.format))
    return optimizer, (*asked, *optimizer.represented(), *optimizer.weights().values())


def compare(case, compiled, assert_same):
    _, expected = trained(*case, packed=False, compiled=False)
    optimizer, found = trained(*case, packed=True, compiled=compiled)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == other.dtype
        assert_same(mine, other)
    fmt = optimizer.strategy.parameter.format
    assert optimizer.state.parameter[0].dtype == packed_dtype(fmt)


@pytest.mark.filterwarnings("ignore::mcfsim.optim.vanishing.VanishingScalarWarning")
@pytest.mark.parametrize("mode", ["nearest_even", "up", "stochastic"])
@pytest.mark.parametrize("name", ["plain", "kahan", "fp32-master"])
@pytest.mark.parametrize("low", LOW)
@pytest.mark.sampled(12)
def test_packed_steps_have_the_same_bits(low, name, mode, assert_same):
    compare((name, low, mode), False, assert_same)


@needs_numba
@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::mcfsim.optim.vanishing.VanishingScalarWarning")
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32-master"])
@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fnuz", "posit16es1"])
@pytest.mark.sampled(6)
def test_compiled_packed_steps_have_the_same_bits(low, name, mode, assert_same):
    if name == "collage-plus" and low == "posit16es1":
        pytest.skip("a posit is no format for several components")
    compare((name, low, mode), True, assert_same)


@needs_numba
@pytest.mark.usefixtures("own_cache")
def test_the_words_of_packed_steps_are_the_same(assert_same):
    compare(("plain", "bfloat16", "stochastic"), True, assert_same)


@pytest.mark.parametrize(
    ("low", "size"), [("bfloat16", 2), ("float8_e4m3fn", 1), ("tf32", 4), ("float4_e2m1fn", 4)]
)
def test_codes_take_the_bytes_of_a_code_where_there_is_one_for_nan(low, size):
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain", low), {"w": np.ones(3)}, packed=True)
    assert {x.itemsize for items in optimizer.state for x in items} == {size}
    assert optimizer.step(optimizer.receive({"w": np.ones(3)}), 0.5).itemsize == size
    assert optimizer.weights()["w"].tolist() == [0.5] * 3


@pytest.mark.parametrize("fmt", ["bfloat16", "e8m2", "float16", "float8_e4m3fn", GAPS, "posit16es1"])
def test_all_codes_are_read_as_their_values_and_written_again(fmt, assert_same):
    """Those that are the upper bits of a carrier's numbers, too, and those that nearly are."""
    fmt = mcf.get_format(fmt)
    codes = np.arange(1 << fmt.bits, dtype=packed_dtype(fmt))
    codes = codes[~codes_by_kind(fmt).unassigned(codes)] if codes_by_kind(fmt).gaps else codes
    values = decode(codes, fmt)
    assert_same(read(codes, fmt), values)
    written = np.zeros_like(codes)
    write(written, read(codes, fmt), fmt)
    nan = np.isnan(values)
    np.testing.assert_array_equal(written[~nan], codes[~nan])
    assert set(written[nan]) == set(encode([np.nan], fmt))


def test_a_gradient_may_be_carrier_numbers(assert_same):
    found = []
    for packed in (True, False):
        optimizer = mcf.Optimizer(
            mcf.SGD(), mcf.strategy("plain", "bfloat16"), {"w": np.ones(9)}, packed=packed
        )
        optimizer.step(np.linspace(-1, 1, 9, dtype=np.float32), 0.3)
        found.append(optimizer.weights()["w"])
    assert_same(*found)


def test_what_is_no_code_is_refused_before_anything_changes():
    gaps = Format("gaps", precision=4, emin=-3, emax=0)
    optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("plain", gaps), {"w": np.ones(3)}, packed=True)
    before = optimizer.state.parameter[0].copy()
    for codes in ([0, 255, 0], [0, 0b0101000, 0]):
        with pytest.raises(ValueError, match="element"):
            optimizer.step(np.array(codes, np.uint8), 0.1)
    with pytest.raises(TypeError, match="codes of gaps are an array of uint8, not uint16"):
        optimizer.step(np.zeros(3, np.uint16), 0.1)
    assert optimizer.count == 0
    assert np.array_equal(optimizer.state.parameter[0], before)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"packed": 1}, TypeError, "packed must be True or False"),
        ({"packed": True, "name": "exact"}, ValueError, "exact numbers have no codes"),
    ],
)
def test_what_cannot_be_packed_is_refused(options, error, text):
    options = dict(options)
    chosen = mcf.strategy(options.pop("name", "plain"), "bfloat16")
    with pytest.raises(error, match=text):
        mcf.Optimizer(mcf.SGD(), chosen, {"w": np.ones(3)}, **options)
