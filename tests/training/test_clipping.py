"""Clipping at the ends of binary32 and binary64, and where neither end is near the plain formula."""

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

from mcfsim import SGD, Schedule, simulate
from mcfsim.kernels.real_numbers import nearest_binary64, to_fraction
from mcfsim.training.schedule import clipped
from tests.training.problems import Made, Watched

CONSTANT = Schedule(2.0**-4, 0, 1.0)


@np.errstate(invalid="ignore")  # mpmath looks at an infinity with operations that are none
def exactly(x, e):
    """Return ``x 2**e`` in mpmath's numbers."""
    exact = np.frompyfunc(lambda number: mpmath.ldexp(number, e), 1, 1)
    return exact(np.asarray(x, object))


#: How to make an array of a kind from Python's floats and a power of two, and the exponents to try.
KINDS = {
    "binary32": (lambda x, e: np.ldexp(np.asarray(x, np.float32), e), range(-120, 125, 7)),
    "binary64": (lambda x, e: np.ldexp(np.asarray(x, np.float64), e), range(-1020, 1021, 40)),
    "mpmath": (exactly, range(-5000, 5001, 250)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip", [1.0, 0.5, 2.0**-20, 2.0**40])
def test_a_gradient_of_norm_five_times_a_power_of_two(kind, clip):
    """(3, 4) 2**e in two tensors: its squares overflow or underflow for most e."""
    make, exponents = KINDS[kind]
    for e in exponents:
        gradients = {"a": make([3.0], e), "b": make([[4.0], [-0.0]], e)}
        kept, norm = clipped(gradients, clip)
        size = 5 * Fraction(2) ** e
        assert norm == (nearest_binary64(size) if size < 2**1024 else math.inf)
        shrink = min(Fraction(1), Fraction(clip) / size)
        for name, whole in gradients.items():
            assert kept[name].dtype == whole.dtype
            for x, y in zip(whole.flat, kept[name].flat, strict=True):
                expected = to_fraction(x) * shrink
                # Two roundings, of the factor and of the product; of float32's subnormal numbers a half unit.
                room = abs(expected) * Fraction(1, 2**23) + (Fraction(1, 2**150) if kind == "binary32" else 0)
                assert abs(to_fraction(y) - expected) <= room, (e, x)


@pytest.mark.parametrize("precision", [64, 400])
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.exhaustive)])
def test_exact_numbers_are_clipped_to_their_last_bits(precision, seeds):
    """By a factor of their own precision: its square, and the norm, are compared in fractions."""
    context = mpmath.MPContext()
    context.prec = precision
    for seed in seeds:
        random = np.random.default_rng(seed)
        scale = int(random.integers(-300, 300)) - 62
        drawn = random.integers(-(2**62), 2**62, 8).tolist()
        numbers = np.array([context.ldexp(context.mpf(x), scale) for x in drawn])
        gradients = {"a": numbers[:3], "b": numbers[3:]}
        whole = [to_fraction(x) for x in numbers]
        square = sum(x * x for x in whole)
        norm = context.sqrt(context.mpf(square.numerator) / square.denominator)
        clip = float(norm) * random.uniform(0.01, 0.99)
        kept, found_norm = clipped(gradients, clip)
        found = [to_fraction(x) for g in kept.values() for x in g]
        room = Fraction(1, 2 ** (precision - 5))
        assert abs(sum(x * x for x in found) / Fraction(clip) ** 2 - 1) < room
        for x, y in zip(whole, found, strict=True):  # all by one factor, clip / |g|
            assert x * y >= 0
            assert abs((y * y * square) - (Fraction(clip) * x) ** 2) <= room * (Fraction(clip) * x) ** 2
        assert found_norm == float(context.sqrt(sum(x * x for x in numbers)))


def test_exact_numbers_a_hair_above_the_clip_are_clipped():
    """The norm rounds to the clip in binary64, and is above it."""
    with mpmath.workprec(400):
        kept, norm = clipped({"x": np.array([mpmath.mpf(1) + mpmath.ldexp(1, -100)])}, 1.0)
        assert norm == 1.0
        assert kept["x"][0] == 1


@pytest.mark.parametrize(("dtype", "largest"), [("f4", 3e38), ("f8", 1.7e308)])
def test_the_largest_numbers_a_hair_above_the_clip_stay_finite(dtype, largest):
    g = np.array([largest], dtype)
    kept, _ = clipped({"x": g}, float(g[0]) * (1 - 1e-9))
    assert kept["x"][0] == pytest.approx(g[0], rel=1e-6)


def test_a_norm_beyond_binary64_is_infinite_and_clips_all_the_same():
    g = np.full(10_000, 1.7e308)
    kept, norm = clipped({"x": g}, 1.0)
    assert norm == math.inf
    np.testing.assert_allclose(kept["x"], 0.01, rtol=1e-15)
    kept, norm = clipped({"x": g}, None)
    assert (kept["x"] is g, norm) == (True, math.inf)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f2", 1000), ("i1", -128), ("u1", 255), ("i2", -(2**15)), ("i8", 2**62), (ml_dtypes.bfloat16, 1000)],
)
def test_numbers_of_few_bits_have_the_norm_of_the_same_numbers_in_more(dtype, value):
    g = np.full(4, value, dtype)
    assert clipped({"x": g}, None)[1] == abs(value) * 2.0
    kept, norm = clipped({"x": g}, 1.0)
    assert norm == abs(value) * 2.0
    assert kept["x"].tolist() == [math.copysign(0.5, value)] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64, object])
def test_a_number_without_axes_keeps_its_shape(dtype):
    g = np.array(mpmath.mpf(3) if dtype is object else 3, dtype)
    for clip, expected in ((None, 3), (1.5, 1.5)):
        kept, norm = clipped({"x": g}, clip)
        assert (kept["x"].shape, kept["x"].dtype, kept["x"], norm) == ((), g.dtype, expected, 3.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_plain_formula_to_the_bit_where_it_neither_overflows_nor_underflows(dtype):
    for seed in range(10):
        random = np.random.default_rng(seed)
        scale = 10.0 ** random.uniform(-8, 8)
        shapes = random.integers(1, [200, 40], (3, 2)).tolist()
        gradients = {str(i): (random.standard_normal(x) * scale).astype(dtype) for i, x in enumerate(shapes)}
        norm = float(np.sqrt(float(sum((g * g).sum() for g in gradients.values()))))
        for clip in (scale / 3, 10 * scale, 1e9 * scale):
            ours, found = clipped(gradients, clip)
            assert found == norm
            for name, g in gradients.items():
                assert ours[name].dtype == dtype
                plain = g * g.dtype.type(clip / norm) if norm > clip else g
                np.testing.assert_array_equal(ours[name], plain)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_visible(kind):
    make = KINDS[kind][0]
    for bad in (math.nan, math.inf, -math.inf):
        for order in (("bad", "good"), ("good", "bad")):
            tensors = {"bad": make([1e30, bad], 0), "good": make([1.0, 1.0], 0)}
            kept, norm = clipped({name: tensors[name] for name in order}, 1.0)
            assert not math.isfinite(norm)
            assert not math.isfinite(float(kept["bad"][1]))


def test_zero_and_empty_gradients_have_norm_zero():
    for gradients in ({"x": np.zeros(3)}, {"x": np.zeros(0)}, {"x": np.zeros(2), "y": np.zeros(0)}, {}):
        assert clipped(gradients, 1.0) == (gradients, 0.0)


# -- in a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, math.inf, 10.0, 5.0, 2.5, 0.625])
@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32", "exact"])
@pytest.mark.sampled(2, each=False)
def test_a_gradient_of_norm_five_is_scaled_down_to_the_clip_and_huge_ones_go_as_it_does(name, clip):
    shrink = min(1.0, (clip or math.inf) / 5)
    for exponent in (0, 63, 128, 532, 1020) if shrink < 1 else (0,):
        scale = 2.0**exponent
        watched = Watched(Made(lambda x, step, scale=scale: 0 * x + np.array([3.0, 4.0]) * scale))
        run = simulate(watched, SGD(0.0), [name], 1, CONSTANT, clip=clip)
        moved = [x - 1 for x in watched.finals[0]["x"]]
        assert moved == [-(2.0**-4) * shrink * 3, -(2.0**-4) * shrink * 4], exponent
        assert run.series[name]["gradient_norm"].tolist() == [5 * scale]  # before clipping
        assert "diverged_at" not in run.results[name]
