"""Optimizers whose vectors hold codes: the bits of those that hold carrier numbers."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.codec import decode, encode
from mcfsim.formats import Format
from mcfsim.kernels.codes_by_kind import codes_by_kind
from mcfsim.optim.memory import Split, packed_dtype, read, write
from mcfsim.optim.strategies import Stored

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


def split(case):
    """Return the strategy of a case with the other rounding of a parameter that shares its bits."""
    name, *rest = case
    if name != "split by truncation":
        return case
    whole = mcf.strategy("split-master")
    return (replace(whole, parameter=Stored("bfloat16", rounding="toward_zero")), *rest)


def compare(case, compiled, assert_same):
    case = split(case)
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
@pytest.mark.filterwarnings("ignore::mcfsim.optim.vanishing.VanishingScalarWarning")
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32-master"])
@pytest.mark.parametrize("low", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fnuz", "posit16es1"])
@pytest.mark.sampled(30, each=False)
def test_compiled_packed_steps_have_the_same_bits(low, name, mode, assert_same):
    if name == "collage-plus" and low == "posit16es1":
        pytest.skip("a posit is no format for several components")
    compare((name, low, mode), True, assert_same)


@needs_numba
@pytest.mark.slow
def test_the_words_of_packed_steps_are_the_same(assert_same):
    compare(("plain", "bfloat16", "stochastic"), True, assert_same)


#: A format of float32's exponents, of which more than half of the bits follow.
SHORT = Format("short", precision=5, emin=-126, emax=127)


@pytest.mark.parametrize(
    ("name", "low", "compiled"),
    [
        pytest.param("split-master", "bfloat16", True, marks=needs_numba),
        ("split-master", "bfloat16", False),
        ("split by truncation", "bfloat16", False),
        ("split-master", SHORT, False),
        ("split-master", "tf32", False),
        ("stochastic-parameter", "bfloat16", False),
        ("stochastic", "float8_e5m2", False),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::mcfsim.optim.vanishing.VanishingScalarWarning")
@pytest.mark.slow
def test_tensors_with_a_rounding_of_their_own_have_the_same_bits(name, low, compiled, assert_same):
    compare((name, low, "nearest_even"), compiled, assert_same)


@pytest.mark.parametrize(("low", "following"), [("bfloat16", 2), (SHORT, 4)], ids=str)
def test_of_a_split_master_copy_the_bits_that_follow_are_stored(low, following):
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("split-master", low), {"w": np.ones(3)}, packed=True)
    (extra,) = optimizer.state.extra
    assert extra.itemsize == following
    assert extra.leading is optimizer.state.parameter[0]
    size = sum(x.itemsize for items in optimizer.state for x in items)
    if low == "bfloat16":
        assert size + 2 == optimizer.strategy.bytes_per_parameter


@pytest.mark.parametrize("mode", ["nearest_away", "toward_zero"])
def test_split_numbers_are_those_of_the_bits(mode, assert_same):
    """All leading halves with many that follow; the codes beside are the judge's, or by their definition."""
    follow = np.array([0, 1, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1], np.uint32)
    bits = (np.arange(2**16, dtype=np.uint32)[:, None] << 16 | follow).reshape(-1)
    numbers = bits.view(np.float32).copy()
    numbers[np.isnan(numbers)] = np.nan
    leading = mcf.codec.encode(mcf.round_to(numbers, "bfloat16", mode), "bfloat16")
    away = mode == "nearest_away"
    known = ~np.isnan(numbers)
    assert np.array_equal(leading[known], (bits + (2**15 if away else 0) >> 16)[known])
    fmt = mcf.get_format("bfloat16")
    vector = Split.beside(leading, np.zeros(leading.size, Split.form(fmt)), fmt, rounded=away)
    vector.keep(numbers)
    assert np.array_equal(vector.rest[known], (bits & 0xFFFF)[known])
    assert_same(vector.numbers(), numbers)


def test_a_split_master_copy_is_that_of_fp32_master(assert_same):
    """The gradients being the same; what the model sees differs where the copy lies between two numbers."""
    made = [
        mcf.Optimizer(mcf.AdamW(), mcf.strategy(name), {"w": np.linspace(-1, 1, 777)}, packed=packed)
        for name, packed in (("fp32-master", False), ("split-master", False), ("split-master", True))
    ]
    for step in range(5):
        gradient = np.random.default_rng(step).standard_normal(777)
        for optimizer in made:
            optimizer.step(optimizer.receive({"w": gradient}), 1e-2)
    for optimizer in made[1:]:
        assert_same(optimizer.represented()[0], made[0].represented()[0])
        shown = mcf.round_to(made[0].represented()[0], "bfloat16", "nearest_away")
        assert_same(optimizer.weights()["w"], shown)


def test_the_start_of_a_split_master_copy_is_rounded_as_a_step_rounds():
    start = {"w": np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 - 2.0**-24])}
    for packed in (False, True):
        optimizer = mcf.Optimizer(mcf.SGD(), mcf.strategy("split-master"), start, packed=packed)
        # The last is rounded to float32, where it becomes a tie, and then away from zero.
        shown = [1 + 2.0**-7, 1 + 2.0**-6, -1 - 2.0**-7, 1 + 2.0**-7]
        assert optimizer.weights()["w"].tolist() == shown
        expected = start["w"].astype(np.float32)
        assert optimizer.represented()[0].tolist() == expected.tolist()


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
