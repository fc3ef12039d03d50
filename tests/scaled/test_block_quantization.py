"""Blocks of scaled formats in compiled loops: the bits of NumPy, for every format, rule and rounding."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="LLVM is not installed")

import mcfsim as mcf
from mcfsim.compile import objects
from mcfsim.compile.group_loops import BlockLoops
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError, holds
from mcfsim.rounding import DETERMINISTIC, Rule
from mcfsim.scaled import SCALED, ScaledFormat, ScaleRule, block_quantization, quantize

FORMATS = {name: fmt for name, fmt in SCALED.items() if isinstance(fmt.block, int)}
FORMATS["rows of 7 in e5m2"] = ScaledFormat(
    "mine", element="float8_e5m2", block=7, scale="float32", rule="absmax"
)
FORMATS["pairs by e4m3"] = ScaledFormat(
    "pairs", element="float6_e2m3fn", block=2, scale="float8_e4m3fn", rule="absmax"
)
POWERS = ("floor", "ceil", "round_up", "even")
#: Rules that look at a block more than once, or at its mean, have no loop; where they are those of published
#: code, elements have one.
WITHOUT = ("max", "absmean", "quest", "four_six_mae", "four_six_mse", "eden")


def with_rule(name, rule):
    """Return a format with a rule, or None if the rule does not go with it."""
    try:
        return FORMATS[name] if rule is None else FORMATS[name].with_rule(rule)
    except ValueError:
        return None


PAIRS = [(name, rule) for name in FORMATS for rule in (None, *ScaleRule) if with_rule(name, rule) is not None]
PAIRS = [(name, rule) for name, rule in PAIRS if with_rule(name, rule).rule not in WITHOUT]


def hostile(shape, seed, block):
    """Return numbers of all sizes, and zeros, infinities and NaN of both signs, some blocks without them."""
    rng = np.random.default_rng(seed)
    size, part = int(np.prod(shape)), 4 * block
    wide = rng.standard_normal(size) * 2.0 ** rng.integers(-140, 120, size)
    near = rng.standard_normal(size) * 2.0 ** rng.integers(-8, 8, size)
    kinds = np.resize(np.repeat(rng.integers(0, 4, size // part + 1), part), size)
    with np.errstate(over="ignore"):
        x = np.select([kinds == 0, kinds == 1], [wide, near], np.ldexp(rng.integers(-9, 10, size), -1))
        x = x.astype(np.float32)
    x[kinds == 3] *= rng.random() < 0.5
    payload = np.uint32(0xFFC12345).view(np.float32)
    special = np.array([0.0, -0.0, np.nan, payload, np.inf, -np.inf, 1e-45, 3.4e38], np.float32)
    x[rng.integers(0, size, size // 200)] = rng.choice(special, size // 200)
    return x.reshape(shape)


@pytest.fixture
def both(monkeypatch):
    """Return a function that quantises by NumPy and by a loop, and says whether there was one."""
    monkeypatch.setattr(objects, "_WORTH_LOADING", 0)
    monkeypatch.setattr(objects, "_WORTH_COMPILING", 0)

    def quantised(x, *given, **options):
        with monkeypatch.context() as patch:
            patch.setattr(block_quantization, "_blocks", lambda *_: None)
            expected = quantize(x, *given, **options)
            numbers = expected.dequantize()
        used, loops = [], block_quantization._blocks
        with monkeypatch.context() as patch:
            patch.setattr(
                block_quantization, "_blocks", lambda *given: used.append(loops(*given)) or used[-1]
            )
            found = quantize(x, *given, **options)
            pairs = [(found.dequantize(), numbers), (found.elements, expected.elements)]
        assert found.tensor_scale == expected.tensor_scale
        for own, other in (*pairs, (found.scale, expected.scale)):
            assert (own.dtype, own.shape) == (other.dtype, other.shape)
            codes = [np.ascontiguousarray(x).view(np.uint8) for x in (own, other)]
            places = np.flatnonzero(codes[0] != codes[1])
            assert not places.size, (places[:5], own.ravel()[:5], other.ravel()[:5])
        return bool(used) and used[0] is not None

    return quantised


@pytest.mark.parametrize(("name", "rule"), PAIRS)
@pytest.mark.sampled(25, each=False)
@pytest.mark.slow
def test_loops_have_the_bits_of_numpy(name, rule, both):
    fmt = with_rule(name, rule)
    powers, short = fmt.rule in POWERS, holds(np.dtype(np.float32), fmt.scale)
    # To nearest even by both policies, by each other mode in turn.
    policies = [("nearest_even", "ieee"), *zip(DETERMINISTIC, cycle(["saturate", "ieee"]), strict=False)]
    for place, (mode, overflow) in enumerate(policies):
        rounding = mcf.Rounding(mode, overflow=overflow)
        compiled = both(hostile((3, 40 * fmt.block), place, fmt.block), fmt, rounding=rounding)
        assert compiled == (powers or short or not fmt.rule.exact), mode


@pytest.mark.parametrize("bits", [(1, 9, 16), (17, 30), (31, 32)], ids=str)
@pytest.mark.parametrize(("name", "rule"), PAIRS)
@pytest.mark.sampled(80, each=False)
@pytest.mark.slow
def test_loops_draw_the_words_of_numpy(name, rule, bits, both):
    """Words of a stream, and words of both sizes that are given; of them the upper bits count."""
    fmt = with_rule(name, rule)
    powers, short = fmt.rule in POWERS, holds(np.dtype(np.float32), fmt.scale)
    scales = sum(x.precision for x in (fmt.scale, fmt.tensor_scale) if x is not None)
    for place, each in enumerate(bits):
        x = hostile((3, 40 * fmt.block), each, fmt.block)
        rounding = mcf.Rounding("stochastic", random_bits=each, rule=list(Rule)[(place + len(bits)) % 3])
        long = fmt.element.precision + rounding.guard_bits + scales > 50
        words = [mcf.RandomWords(each, 3), mcf.RandomWords(2).words(9, x.size).reshape(x.shape)]
        words += [np.ascontiguousarray(words[1] >> 16, np.uint16)] if each <= 16 else []
        for random in words:
            try:
                compiled = both(x, fmt, rounding=rounding, random=random)
            except UnsupportedFormatError:
                assert not powers
                assert fmt.element.precision + rounding.guard_bits > 53
                continue
            assert compiled == (powers or (short and not long) or not fmt.rule.exact), each


SEARCHED = [
    *((name, rule) for name in FORMATS for rule in ("four_six_mae", "four_six_mse") if with_rule(name, rule)),
    ("nvfp4_eden", None),
    *(("nvfp4_16x16", rule) for rule in ("four_six_mae", "four_six_mse")),
]


@pytest.mark.parametrize(("name", "rule"), SEARCHED)
@pytest.mark.sampled(4, each=False)
@pytest.mark.slow
def test_elements_of_searched_scales_have_the_bits_of_numpy(name, rule, monkeypatch):
    fmt = (SCALED | FORMATS)[name]
    fmt = fmt if rule is None else fmt.with_rule(rule)
    eden, made = fmt.rule is ScaleRule.EDEN, []
    roundings = [mcf.Rounding("nearest_even", "saturate"), mcf.Rounding("down"), mcf.Rounding("up", "ieee")]
    if not eden:
        roundings += [mcf.Rounding("stochastic", random_bits=bits) for bits in (3, 16, 20)]
    monkeypatch.setattr(objects, "_WORTH_LOADING", 0)
    monkeypatch.setattr(objects, "_WORTH_COMPILING", 0)
    by_loops = BlockLoops._run
    monkeypatch.setattr(BlockLoops, "_run", lambda *given: made.append(given[1]) or by_loops(*given))
    calls = ["fill", "fill", "measure", "share"] if eden else [*["fill"] * 3, "measure", "share", "share"]
    for place, rounding in enumerate(roundings):
        size = fmt.block if isinstance(fmt.block, int) else fmt.block[0]
        shape = (3 * size, 40 * size)
        x = hostile(shape, place, size)
        words = [mcf.RandomWords(place), np.asarray(mcf.RandomWords(1).words(0, x.size)).reshape(shape)]
        for random in words[:1] if eden else words:
            made.clear()
            found = quantize(x, fmt, rounding=rounding, random=random)
            assert sorted(made) == calls
            with monkeypatch.context() as patch:
                patch.setattr(BlockLoops, "pays", lambda *_: False)
                expected = quantize(x, fmt, rounding=rounding, random=random)
            assert found.tensor_scale == expected.tensor_scale
            for own, other in ((found.elements, expected.elements), (found.scale, expected.scale)):
                nan = np.isnan(own) & np.isnan(other)
                assert ((own.view(f"i{own.itemsize}") == other.view(f"i{own.itemsize}")) | nan).all(), (
                    rounding
                )


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_every_bit_pattern_of_a_binade_and_ties(name, both):
    """Elements at and beside each tie, at each of the scales that a significand of the largest gives."""
    fmt = FORMATS[name]
    rng, rows = np.random.default_rng(1), []
    for _ in range(300):
        top = np.float32(1 + rng.integers(0, 2**23) / 2**23)
        ties = top * np.float32(rng.integers(0, 25, fmt.block) / 24)
        rows.append(np.nextafter(ties, np.float32(rng.choice([-9, 0, 9]))) * np.sign(rng.standard_normal()))
        rows[-1][0] = top
    assert both(np.array(rows, np.float32).reshape(10, -1), fmt)
    assert both(np.zeros((2, 4 * fmt.block), np.float32), fmt)


@pytest.mark.parametrize("shape", [(0, 32), (32,), (2, 3, 64)])
def test_shapes(shape, both):
    assert both(np.ones(shape, np.float32), "mxfp8_e5m2")


def test_what_no_loop_takes_is_numpys(both):
    x = hostile((4, 64), 1, 32)
    assert not both(x[:, :50], "mxfp4")
    assert not both(x[:, :50], "nvfp4_16x16")
    assert not both(x, "mxfp4", axis=0)
    assert not both(x, "int8")
    assert not both(x.astype(np.float64), "mxfp4")
    assert not both(
        x, "nvfp4", rounding=mcf.Rounding("stochastic", random_bits=20), random=mcf.RandomWords(1)
    )
    with pytest.raises(ValueError, match="stochastic rounding needs random="):
        both(x, "mxfp4", rounding="stochastic")
    for words in (np.zeros(x.size, np.uint32), np.zeros((64, 4), np.uint16)):
        with pytest.raises(ValueError, match=r"random words of shape .* do not fit"):
            quantize(x, "mxfp4", rounding="stochastic", random=words)
    assert not both(np.abs(np.nan_to_num(x)) + 1, "int4", rule="absmean")
    assert both(x[:, ::2].copy(), "mxfp4")


def test_quotients_that_binary32_lacks(both):
    """They lie beside the smallest elements, or beyond its range where all scales are small."""
    tiny, x = Format(precision=8, emin=-126, emax=0), np.full((2, 32), 1.5 * 2.0**127, np.float32)
    x[:, 1] = (2.5 + 2.0**-20) * 2.0**-6  # 2.5 smallest elements and a little, which binary32 would drop
    fmt = ScaledFormat("tiny", element=tiny, block=32, scale="float8_e8m0fnu", rule="floor")
    assert both(x, fmt)
    assert quantize(x, fmt).elements[0, 1] == np.float32(3 * 2.0**-133)
    small = Format(precision=2, emin=-20, emax=-10)
    assert both(x, ScaledFormat("small", element="float8_e4m3fn", block=32, scale=small, rule="floor"))
    some = Format(precision=3, emin=-10, emax=10, zero=False)
    x[:, 2] = 1e-45  # becomes the smallest element, and binary32 would make it zero
    assert both(x, ScaledFormat("zeroless", element=some, block=32, scale="float8_e8m0fnu", rule="floor"))


@pytest.mark.parametrize("rule", POWERS)
def test_scales_that_binary32_lacks(rule, both):
    wide, x = Format(precision=2, emin=-190, emax=190), hostile((3, 64), 1, 32)
    assert not both(x, ScaledFormat("wide", element="bfloat16", block=32, scale=wide, rule=rule))


@pytest.mark.parametrize("rule", [None, "torchao", "transformer_engine"])
def test_blocks_that_lie_elsewhere(rule, both):
    """Along another axis, in tiles, and in arrays of other layouts."""
    x = hostile((3, 48, 64), 1, 16)
    at_random = {"rounding": "stochastic", "random": mcf.RandomWords(8)}
    assert both(x, "nvfp4", axis=1, rule=rule, **at_random)
    assert both(x, "nvfp4_16x16", rule=rule, **at_random)
    assert both(x, "nvfp4", axis=1, rule=rule)
    assert both(x, "nvfp4_16x16", rule=rule)
    assert both(np.asfortranarray(x), "nvfp4_16x16", rule=rule)
    assert both(x[:, ::-1, ::2], "nvfp4", rule=rule)
    assert both(x[0].T, "nvfp4", axis=0, rule=rule)


@pytest.mark.parametrize(
    "shape", [(16, 16), (32, 16), (10, 12), (16, 5), (3, 16), (1, 1), (17, 16), (0, 16), (16, 0)]
)
@pytest.mark.parametrize("fmt", ["nvfp4_16x16", SCALED["nvfp4_16x16"].with_rule("absmax")], ids=str)
def test_a_matrix_of_one_short_tile_is_left_to_numpy(shape, fmt, both):
    whole = not shape[0] % 16 and not shape[1] % 16
    assert both(hostile(shape, 0, 16), fmt) is whole
