"""Clipping at the ends of binary32 and binary64, and where neither end is near the plain formula."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mcfsim import SGD, Schedule, simulate
from mcfsim.kernels.real_numbers import nearest_binary64, to_fraction
from mcfsim.training.clipping import clipped


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


def plainly(gradients, clip):
    """Clip by the formula, without a thought for overflow."""
    norm = float(np.sqrt(float(sum((g * g).sum() for g in gradients.values()))))
    if norm > clip:
        return {name: g * g.dtype.type(clip / norm) for name, g in gradients.items()}, norm
    return gradients, norm


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
                assert abs(to_fraction(y) - expected) <= room


@pytest.mark.parametrize("precision", [64, 400])
@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(10, 500))]
)
def test_exact_numbers_are_clipped_to_their_last_bits(precision, seed):
    """By a factor of their own precision: its square, and the norm, are compared in fractions."""
    random, context = np.random.default_rng(seed), mpmath.MPContext()
    context.prec = precision
    scale = int(random.integers(-300, 300))

    def number():
        return context.ldexp(context.mpf(int(random.integers(-(2**62), 2**62))), scale - 62)

    gradients = {name: np.array([number() for _ in range(size)]) for name, size in (("a", 3), ("b", 5))}
    whole = [to_fraction(x) for g in gradients.values() for x in g]
    square = sum(x * x for x in whole)
    clip = float(context.sqrt(context.mpf(square.numerator) / square.denominator)) * random.uniform(
        0.01, 0.99
    )
    kept, norm = clipped(gradients, clip)
    found = [to_fraction(x) for g in kept.values() for x in g]
    room = Fraction(1, 2 ** (precision - 5))
    assert abs(sum(x * x for x in found) / Fraction(clip) ** 2 - 1) < room
    for x, y in zip(whole, found, strict=True):  # all by one factor, clip / |g|
        assert x * y >= 0
        assert abs((y * y * square) - (Fraction(clip) * x) ** 2) <= room * (Fraction(clip) * x) ** 2
    assert norm == float(context.sqrt(sum(x * x for g in gradients.values() for x in g)))


def test_exact_numbers_a_hair_above_the_clip_are_clipped():
    """The norm rounds to the clip in binary64, and is above it."""
    one = mpmath.mpf(1)
    with mpmath.workprec(400):
        kept, norm = clipped({"x": np.array([one + mpmath.ldexp(1, -100)])}, 1.0)
        assert norm == 1.0
        assert kept["x"][0] == 1


def test_an_exact_run_that_is_clipped_has_the_digits_of_its_precision():
    """A constant gradient (1, 1), clipped to 1, moves both parameters by ``rate / sqrt(2)`` a step."""
    problem = Even()
    simulate(problem, SGD(0.0), ["exact"], 4, Schedule(2.0**-4, 0, 1.0), clip=1.0, precision=400)
    ((moved, other),) = problem.finals
    exact = 1 - to_fraction(moved)
    assert moved == other
    assert abs(exact * exact / Fraction(1, 32) - 1) < Fraction(1, 10**115)


def test_a_norm_beyond_binary64_is_infinite_and_clips_all_the_same():
    g = np.full(10_000, 1.7e308)
    kept, norm = clipped({"x": g}, 1.0)
    assert norm == math.inf
    np.testing.assert_allclose(kept["x"], 0.01, rtol=1e-15)
    kept, norm = clipped({"x": g}, None)
    assert norm == math.inf
    assert kept["x"] is g


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(20))
def test_the_plain_formula_to_the_bit_where_it_neither_overflows_nor_underflows(dtype, seed):
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.uniform(-8, 8)
    shapes = [(int(random.integers(1, 400)), int(random.integers(1, 40))) for _ in range(3)]
    gradients = {
        str(i): (random.standard_normal(shape) * scale).astype(dtype) for i, shape in enumerate(shapes)
    }
    for clip in (scale / 3, 10 * scale, 1e9 * scale):
        (ours, norm), (theirs, expected) = clipped(gradients, clip), plainly(gradients, clip)
        assert norm == expected
        for name in gradients:
            assert ours[name].dtype == dtype
            np.testing.assert_array_equal(ours[name], theirs[name])


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


class Steep:
    """A constant gradient ``(3, 4) * scale``, and a loss that does not overflow."""

    name, exact_capable, decayed = "steep", True, frozenset()

    def __init__(self, scale):
        self.scale, self.finals = scale, []

    def settings(self):
        return {"kind": self.name, "scale": self.scale}

    def initial_parameters(self, seed):
        return {"x": np.ones(2)}

    def loss_and_gradient(self, parameters, step, seed):
        return 1.0, {"x": 0 * parameters["x"] + np.array([3.0, 4.0]) * self.scale}

    def validation_loss(self, parameters):
        self.finals.append(parameters["x"].tolist())
        return 1.0


class Even(Steep):
    """A constant gradient ``(1, 1)``."""

    def __init__(self):
        super().__init__(1.0)

    def loss_and_gradient(self, parameters, step, seed):
        return 1.0, {"x": 0 * parameters["x"] + 1}


@pytest.mark.parametrize("name", ["plain", "collage-plus", "fp32", "exact"])
@pytest.mark.parametrize("exponent", [10, 63, 128, 300, 511, 532, 900, 1020])
def test_a_run_with_huge_gradients_goes_as_one_of_ordinary_ones(name, exponent):
    finals = []
    for scale in (1.0, 2.0**exponent):
        problem = Steep(scale)
        run = simulate(problem, SGD(0.0), [name], 3, Schedule(2.0**-4, 0, 1.0), clip=0.5)
        assert "diverged_at" not in run.results[name]
        assert run.series[name]["gradient_norm"].tolist() == [5 * scale, 5 * scale]
        finals.append(problem.finals[-1])
    assert finals[0] == finals[1] != [1.0, 1.0]
