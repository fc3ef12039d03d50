"""Groups that share numbers, and powers: what is compiled has the bits of NumPy, and both those of judges."""

import importlib.util
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.compile import objects
from mcfsim.compile.group_algorithm import Places
from mcfsim.compile.group_loops import GroupLoops, uniform
from mcfsim.kernels.element.binary32 import integer_element, log2_element, number_element, power_element
from mcfsim.kernels.element.machine import F32, I32, recorded, run
from mcfsim.scaled import ScaledFormat
from mcfsim.scaled.quantisers import DynamicMap, RangeExpansion
from mcfsim.scaled.quantization import LargestMagnitude

needs_llvm = pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="LLVM is not installed")
FLOAT32 = mcf.get_format("float32")


def largest(element, fmt="float32"):
    kept = ScaledFormat("mine", element=element, block=128, scale="float32", rule="absmax")
    return LargestMagnitude.of(kept, mcf.get_format(fmt))


TEXTS = {
    "float8_e4m3fn": largest("float8_e4m3fn"),
    "float8_e5m2fnuz of bfloat16": largest("float8_e5m2fnuz", "bfloat16"),
    "signed map": DynamicMap("signed", signed=True),
    "unsigned map": DynamicMap("unsigned", signed=False),
    "expansion": RangeExpansion("expansion"),
    "expansion of long groups": RangeExpansion("long", block=1024),
    "expansion of three warps": RangeExpansion("three", block=96, steps=5),
}
#: One of each kind, and what is left.
USUAL = ("float8_e4m3fn", "signed map", "expansion")
CASES = [pytest.param(x, marks=() if x in USUAL else pytest.mark.exhaustive) for x in TEXTS]
#: What stretches are made of.
FEW = np.array([[0.0, -0.0, 0.0], [1.5, -1.5, 1.5], [1e-44, -3e-45, 2e-40], [-np.nan, 1.0, 0.0]])


def hostile(size, seed):
    """Return numbers of all sizes, NaN and infinities, and stretches of zeros, or of few numbers."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * 2.0 ** rng.integers(-40, 3, size)).astype(np.float32)
    x[rng.integers(0, size, 3)] = np.nan, np.inf, -np.inf
    x[rng.integers(0, size, 40)] = rng.choice([0.0, -0.0, 1e-45, 3e38], 40)
    for place, start in enumerate(range(0, size - 200, 1000)):
        x[start : start + 200] = rng.choice(FEW[place % 4], 200)
    return x


@needs_llvm
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
@pytest.mark.costly("loops of groups are compiled")
def test_compiled_loops_have_the_bits_of_numpy(name, monkeypatch):
    text, loops = TEXTS[name], GroupLoops(TEXTS[name])
    lengths = np.resize([getattr(text, "block", 128), 1, 37, 96, 64], 300)
    bounds = np.concatenate([[0], np.cumsum(np.minimum(lengths, getattr(text, "block", 128)))])
    x = hostile(int(bounds[-1]), 1)
    found = []
    for worth in (np.inf, 0):
        monkeypatch.setattr(objects, "_WORTH_LOADING", worth)
        monkeypatch.setattr(objects, "_WORTH_COMPILING", worth)
        codes, shared = np.empty(x.size, np.uint8), np.empty((300, text.shared), np.float32)
        loops.encode(x, bounds, codes, shared)
        every = np.resize(np.arange(256), x.size).astype(np.uint8)  # those too that no number has
        read = [np.empty(x.size, np.float32) for _ in range(2)]
        for given, out in zip((codes, every), read, strict=True):
            loops.decode(given, shared, bounds, out)
        found.append([codes, *(y.view(np.int32) for y in (shared, *read))])
    assert loops._made.keys() == {"encode", "decode"}
    for by_numpy, compiled in zip(*found, strict=True):
        np.testing.assert_array_equal(compiled, by_numpy)


@pytest.mark.parametrize("name", [name for name in TEXTS if "float8" in name])
def test_a_text_quantises_as_the_scaled_format_does(name):
    text = TEXTS[name]
    kept = ScaledFormat("mine", element=text.element, block=128, scale="float32", rule="absmax")
    for size in (1, 127, 128, 5000):
        x = hostile(max(size, 300), size)[:size]
        expected = mcf.quantize(x, kept)
        codes, shared = np.empty(size, np.uint8), np.empty(-(-size // 128), np.float32)
        out = np.empty(size, np.float32)
        loops = GroupLoops(text)
        loops.encode(x, uniform(size, 128), codes, shared)
        loops.decode(codes, shared, uniform(size, 128), out)
        np.testing.assert_array_equal(codes, expected.codes)
        np.testing.assert_array_equal(shared, expected.scale)
        with np.errstate(all="ignore"):
            read = np.asarray(mcf.round_to(expected.dequantize(), text.format), np.float32)
        np.testing.assert_array_equal(out, read)
        np.testing.assert_array_equal(np.signbit(out[out == 0]), np.signbit(read[read == 0]))


def test_other_scales_are_of_no_text():
    for scale, rule in (("float8_e8m0fnu", "floor"), ("float32", "absmean")):
        kept = ScaledFormat("mine", element="float8_e4m3fn", block=128, scale=scale, rule=rule)
        assert LargestMagnitude.of(kept, FLOAT32) is None


# -- places --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("signed", [False, True])
def test_places_begin_where_the_upper_number_is_the_nearest(signed):
    text = DynamicMap("map", signed=signed)
    bounds, table = text.places, text.table
    below, half = table[:-1], (table[1:] - table[:-1]) * np.float32(0.5)
    assert (bounds - below >= half).all()
    assert (np.nextafter(bounds, np.float32(-2)) - below < half).all()
    places = Places(bounds)
    assert places.find(bounds).tolist() == [*range(1, 256)]
    assert places.find(np.array([-2, 2, np.nan], np.float32)).tolist() == [0, 255, 0]
    assert text.table[text.zero] == 0


# -- powers --------------------------------------------------------------------------------------------------
POWER, LOG2 = recorded(power_element, x=F32, exponent=F32), recorded(log2_element, x=F32)


def power(x, exponent):
    return run(*POWER, x=np.asarray(x, np.float32), exponent=np.asarray(exponent, np.float32))[0]


def nearest(x):
    """Return a number of mpmath, rounded to float32; none of those here is a tie."""
    mantissa, exponent = abs(x).man_exp
    return float(mcf.round_to((1 if x > 0 else -1) * Fraction(mantissa) * Fraction(2) ** exponent, "float32"))


@pytest.mark.slow
def test_powers_and_logarithms_are_rounded_once():
    rng = np.random.default_rng(2)
    x = np.exp2(rng.uniform(-149, 128, 1500)).astype(np.float32)
    x[:300] = (1 + rng.integers(-4000, 4000, 300) * 2.0**-23).astype(np.float32)
    steps = rng.integers(1, 300, 1500) / np.float32(16)
    exponent = np.where(rng.random(1500) < 0.5, steps, 1 / steps).astype(np.float32)
    with mpmath.workprec(200):
        logs = [nearest(mpmath.log(mpmath.mpf(a), 2)) for a in x.tolist()]
        both = zip(x.tolist(), exponent.tolist(), strict=True)
        powers = [nearest(mpmath.power(mpmath.mpf(a), mpmath.mpf(e))) for a, e in both]
    assert run(*LOG2, x=x)[0].tolist() == logs
    assert power(x, exponent).tolist() == powers


@pytest.mark.slow
def test_powers_that_are_ties_go_to_even():
    count = 0
    for p, q in product(range(2, 17), (1, 2, 4, 8, 16)):
        odd = [m for m in range(3, 8193, 2) if m**p < 2**26 and m**q < 2**24]
        for shift in (-2, 0, 1) if odd else ():
            x, exact = ([float(Fraction(m) ** n * Fraction(2) ** (shift * n)) for m in odd] for n in (q, p))
            np.testing.assert_array_equal(power(x, np.full(len(x), p / q)), np.float32(exact))  # rounded once
            count += len(x)
    assert count > 15000


def test_special_powers_are_those_of_c():
    x = np.array([0, 1e-45, 0.5, 1, 1.5, 3e38, np.inf, np.nan], np.float32)
    exponent = np.array([0, -0.0, 1, -1, 0.5, -0.5, 1000, -1000, np.inf, -np.inf, np.nan], np.float32)
    x, exponent = (y.ravel() for y in np.meshgrid(x, exponent))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(float), exponent.astype(float)).astype(np.float32)
        logs = np.log2(x.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(power(x, exponent), expected)
    np.testing.assert_array_equal(run(*LOG2, x=x)[0], logs)


# -- integers as bits ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("bits", [8, 16])
def test_integers_are_read_and_kept(bits):
    codes = np.arange(2**bits, dtype=np.int32)
    line, results = recorded(lambda code: number_element(code, bits), code=I32)
    (numbers,) = run(line, results, code=codes)
    np.testing.assert_array_equal(numbers, codes.astype(f"i{bits // 8}").astype(np.float32))
    line, results = recorded(lambda x: integer_element(x, bits), x=F32)
    np.testing.assert_array_equal(run(line, results, x=np.append(numbers, np.float32("nan")))[0], [*codes, 0])
