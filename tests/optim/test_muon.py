"""Muon: by a judge in scalars, in every strategy; its iterations, and how good they are."""

from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from mpmath import MPContext

import mcfsim as mcf
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.native import NativeArithmetic
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.optim import newton_schulz
from mcfsim.optim.muon import Muon
from mcfsim.optim.newton_schulz import (
    COEFFICIENTS,
    NewtonSchulz,
    lost_orthogonality,
    orthogonalize,
    polar_distance,
)
from mcfsim.optim.torchmuon import TorchMuon
from mcfsim.products import Accumulator
from tests.optim.stored import numbers
from tests.training.problems import Folded

from .orthogonal import Iteration, Judge
from .reference import assert_course, course

SHAPES = {
    "w": (3, 4),
    "tall": (5, 2),
    "b": (3,),
    "t": (2, 2, 3),
    "s": (),
    "e": (3, 0),
    "n": (1, 3),
    "emb": (4, 2),
}
DECAYED = {"w", "s", "t", "emb"}
RATES = (2.0**-4, 2.0, 2.0**-6)
STORED = [name for name in mcf.STRATEGIES if name not in ("exact", "eco")]
BY_BF16 = Accumulator("bfloat16", block=2)
ITERATIONS = {
    "default": NewtonSchulz(),
    "unfused": NewtonSchulz(fused=False, added=True),
    "polar-express": NewtonSchulz("polar-express", margin=1.02, epsilon=1e-6, added=True),
    "float16": NewtonSchulz("dion", iterate="float16"),
    "float32": NewtonSchulz(iterate="float32"),
    "two": NewtonSchulz("deepseek-v4", components=2),
    "in order": NewtonSchulz(accumulator=Accumulator("float32", block=1)),
    "of another range": NewtonSchulz(iterate="float16", accumulator=BY_BF16, epsilon=0.001),
    "short sums": NewtonSchulz(iterate="float8_e4m3fn", accumulator=BY_BF16),
}
KINDS = {
    "default": Muon(others=("emb",)),
    "plain momentum": Muon(nesterov=False, averaged=False, scale="match_rms_adamw", others=("em*",)),
    "moonlight": Muon(averaged=False, scale="spectral", momentum=0.5, share=0.5, weight_decay=0.0),
}


def given(step):
    return numbers(step, shapes=SHAPES)


@lru_cache
def situation(hyper, strategy, rounding, steps, make=given):
    start, *gradients = map(make, (100, *range(1, steps + 1)))
    start = strategy, start, DECAYED & start.keys(), rounding
    judge = Judge(hyper, *start, others=("emb",) if hyper.others else ())
    return start, course(judge, gradients, RATES[:steps]), gradients, RATES[:steps]


def assert_judged(assert_same, hyper, strategy, rounding="nearest_even", steps=3, judge=None, make=given):
    start, *rest = situation(judge or hyper, mcf.strategy(strategy), rounding, steps, make)
    assert_course(assert_same, mcf.Optimizer(hyper, *start), *rest)


@pytest.mark.parametrize("strategy", STORED)
@pytest.mark.sampled(18, each=False)
@pytest.mark.slow
def test_steps_are_those_of_the_judge(strategy, assert_same):
    assert_judged(assert_same, KINDS["default"], strategy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["plain", "collage-plus", "fp32-master"])
@pytest.mark.slow
@pytest.mark.sampled(3, each=False)
def test_every_kind_of_step_is_that_of_the_judge(kind, strategy, assert_same):
    assert_judged(assert_same, KINDS[kind], strategy, steps=2)


@pytest.mark.parametrize("rounding", ["up", "toward_zero"])
@pytest.mark.slow
def test_other_roundings_are_those_of_the_judge(rounding, assert_same):
    assert_judged(assert_same, KINDS["default"], "plain", rounding, steps=2)


@lru_cache
def iterated_by_the_judge(how, shape, scale):
    """Return a matrix and what the judge makes of it."""
    x = np.float32(scale * np.random.default_rng(shape).standard_normal(shape))
    # The matrix enters in the format of what comes out.
    fmt = how.accumulator.format if how.components > 1 else how.iterate
    return x, np.array(Iteration(how)(mcf.round_to(x, fmt).tolist()))


def assert_iterated(assert_same, how, own, shape, iterated=orthogonalize):
    """Compare with what the judge has for an iteration, or for that of another text."""
    for scale in (1.0, 2.0**-40, 0.0)[: 1 if own == ITERATIONS["short sums"] else 3]:
        x, expected = iterated_by_the_judge(own, shape, scale)
        assert_same(iterated(x, how), expected)


@pytest.mark.parametrize("name", ITERATIONS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 3), (5, 5), (3, 11)])
@pytest.mark.sampled(16, each=False)
def test_iterations_are_those_of_the_judge(name, shape, assert_same):
    assert_iterated(assert_same, ITERATIONS[name], ITERATIONS[name], shape)


def test_zeros_stay_unless_epsilon_is_zero_in_the_format():
    assert not orthogonalize(np.zeros((2, 3))).any()
    assert np.isnan(orthogonalize(np.zeros((2, 3)), ITERATIONS["short sums"])).all()


def test_stacks_are_matrices_one_by_one(assert_same):
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 6)).astype(np.float32)
    found = orthogonalize(x)
    assert found.shape == x.shape
    for i, j in np.ndindex(2, 3):
        assert_same(found[i, j], orthogonalize(x[i, j]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_matrix_alone(bad, assert_same):
    x = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)
    x[0, 1, 2] = bad
    found = orthogonalize(x)
    assert np.isnan(found[0]).all()
    assert_same(found[1], orthogonalize(x[1]))


def test_exact_steps_are_the_formulas():
    random, c = np.random.default_rng(2), MPContext()
    c.dps = 60
    start, mu = {"w": random.standard_normal((3, 4))}, 0.75
    hyper = Muon(momentum=mu, weight_decay=0.25)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("exact"), start, ["w"])
    w, b = c.matrix(start["w"].tolist()), c.matrix(3, 4)
    for _ in range(2):
        g = random.standard_normal((3, 4))
        optimizer.step(optimizer.receive({"w": g}), 0.125)
        g = c.matrix(g.tolist())
        b = mu * b + (1 - mu) * g
        x = mu * b + (1 - mu) * g
        x /= c.sqrt(sum(e * e for e in x))
        for p, q, r in COEFFICIENTS["keller-jordan"]:
            square = x * x.T
            x = p * x + (q * square + r * square * square) * x
        w = w - 0.125 * x - 0.125 * 0.25 * w
    for mine, other in zip(optimizer.state.parameter[0], w, strict=True):
        assert abs(mine - other) < 1e-50


def test_exact_momenta_of_pytorch_s_points_are_the_formula():
    """Its scalars are rounded as its numbers are: exact ones not at all."""
    hyper, x, mu = TorchMuon(), np.random.default_rng(5).standard_normal((2, 3, 4)), 0.95
    optimizer = mcf.Optimizer(hyper, mcf.strategy("exact"), {"w": x[0]})
    for g in x:
        optimizer.step(optimizer.receive({"w": g}), 0.125)
    first = Fraction(1.0 - mu) * np.vectorize(Fraction)(x[0].ravel())
    second = first + Fraction(1.0 - mu) * (np.vectorize(Fraction)(x[1].ravel()) - first)
    for mine, exact in zip(optimizer.state.m[0], second, strict=True):
        assert abs(to_fraction(mine) - exact) < Fraction(1, 2**300)


def assert_formulas(kind):
    """Compare iterations in binary64 and in mpmath, which have neither formats nor sums, with formulas."""
    exact = mcf.arithmetic(None, backend="exact", precision=200)
    for ar, most in ((NativeArithmetic(np.float64, fused=False), 1e-12), (exact, 1e-50)):
        others = {"fused": False, "added": True, "epsilon": 0.25}
        for options in ({}, others, {"components": 2, "margin": 2.0}):
            how, x = kind("polar-express", **options), np.random.default_rng(4).standard_normal((2, 4, 3))
            found = how(ar, np.asarray(ar.round(x.ravel())).reshape(x.shape))
            for mine, source in zip(found, x, strict=True):
                now = np.array([[ar.round(float(e)) for e in row] for row in source.T], dtype=mine.dtype)
                norm = ar.sqrt((now * now).sum())
                now = now / (norm + 0.25 if how.added else how.margin * norm)
                for a, b, c in COEFFICIENTS["polar-express"]:
                    square = now @ now.T
                    now = a * now + (b * square + c * square @ square) @ now
                assert np.abs(mine - now.T).max() < most


def test_iterations_without_formats_are_the_formulas():
    assert_formulas(NewtonSchulz)


# -- how good a factor is -----------------------------------------------------------------------------------
def source(condition, shape=(48, 96)):
    random, (rows, columns) = np.random.default_rng(3), shape
    u = np.linalg.qr(random.standard_normal((rows, rows)))[0]
    v = np.linalg.qr(random.standard_normal((columns, rows)))[0]
    return (u * np.geomspace(1, 1 / condition, rows)) @ v.T, u @ v.T


def assert_measured(module):
    """Compare the measures of a module with what is known of their matrices."""
    x, factor = source(1e3)
    assert np.abs(module.polar_factor(x) - factor).max() < 1e-11
    small, own = source(1e3, (6, 9))
    assert np.abs(module.polar_factor(small, digits=40) - own).max() < 1e-14
    assert module.polar_distance(factor, x) < 1e-11
    assert module.polar_distance(2 * factor, x) == pytest.approx(1)
    assert module.lost_orthogonality(factor) < 1e-14
    assert module.lost_orthogonality(2 * factor.T) == pytest.approx(3)
    stack = np.stack([[x, 2 * x + factor], [factor, -x]])
    one = [[module.orthogonalize(item).tolist() for item in row] for row in stack]
    assert module.orthogonalize(stack).tolist() == one


@pytest.mark.slow
def test_the_polar_factor_and_the_distances():
    assert_measured(newton_schulz)


@pytest.mark.slow
def test_orthogonality_hides_a_lost_direction_and_two_components_do_not_lose_it():
    """In bfloat16 the smallest of a thousand is lost, though rows come out orthogonal."""
    x, _ = source(1e3)
    one, two, wide = (
        orthogonalize(x, NewtonSchulz("deepseek-v4", **given))
        for given in ({}, {"components": 2}, {"iterate": "float32"})
    )
    assert lost_orthogonality(one) < 0.01
    assert polar_distance(one, x) > 0.05
    assert max(polar_distance(two, x), polar_distance(wide, x)) < 2e-3


@pytest.mark.slow
def test_a_run_is_measured_beside_exact_steps():
    names = ["plain", "collage-plus", "fp32", "exact"]
    options = {"schedule": mcf.Schedule(peak=1e-2, warmup=0), "record_every": 2, "truth_sample": 2}
    run = mcf.simulate(Folded(), "muon", names, 4, **options)
    plain, collage, single = (run.series[name] for name in names[:3])
    assert max(series["binary64_gap"].max() for series in (plain, collage, single)) < 1e-12
    assert plain["distance"][-1] > collage["distance"][-1] > single["distance"][-1] > 0
    assert single["m_error/w"].max() < 1e-6 < plain["m_error/w"].max()


# -- what is refused ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"coefficients": "keler-jordan"}, ValueError, "did you mean 'keller-jordan'"),
        ({"coefficients": ()}, TypeError, "a name or a tuple of triples"),
        ({"coefficients": ((1.0, 2.0),)}, TypeError, "three coefficients"),
        ({"coefficients": ((1.0, 2.0, np.nan),)}, ValueError, "a coefficient"),
        ({"iterate": "float64"}, UnsupportedFormatError, "at most 25 bits"),
        ({"iterate": "posit16es1"}, UnsupportedFormatError, "floats with a sign and a zero"),
        ({"iterate": mcf.Format(precision=20, emin=-700, emax=700)}, UnsupportedFormatError, "beyond 2"),
        ({"components": 3}, ValueError, "one or two"),
        ({"components": 0}, ValueError, "components"),
        ({"components": 2, "fused": False}, ValueError, "fused=True"),
        ({"accumulator": "float32"}, TypeError, "must be an Accumulator"),
        ({"accumulator": Accumulator("float32", "up", block=1)}, ValueError, "must round nearest_even"),
        ({"fused": 1}, TypeError, "True or False"),
        ({"margin": 0.0}, ValueError, "must be positive"),
        ({"epsilon": -1.0}, ValueError, "must not be negative"),
    ],
)
def test_iterations_that_are_none(options, error, problem):
    with pytest.raises(error, match=problem):
        NewtonSchulz(**options)


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"scale": "orignal"}, ValueError, "scale"),
        ({"nesterov": 1}, TypeError, "True or False"),
        ({"iteration": "keller-jordan"}, TypeError, "must be a NewtonSchulz"),
        ({"others": "emb"}, TypeError, "a tuple of names"),
        ({"others": None}, TypeError, "a tuple of names"),
        ({"share": 0.0}, ValueError, "must be positive"),
    ],
)
def test_hyperparameters_that_are_none(options, error, problem):
    with pytest.raises(error, match=problem):
        Muon(**options)


@pytest.mark.parametrize("x", [[1.0, 2.0], np.ones((0, 3)), 1.0])
def test_only_matrices_have_factors(x):
    with pytest.raises(ValueError, match="must be a matrix"):
        orthogonalize(x)
