"""The public names, used in the ways that users and the documentation use them."""

import inspect
import types
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import convert
from mcfsim.kernels.carriers import UnsupportedFormatError


def to_fraction(x):
    """Return the only element of an array, or a number, exactly."""
    return convert.to_fraction(np.asarray(x).reshape(-1)[0])


BACKENDS = ["numpy", "native", "exact"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def test_all_is_complete_and_importable():
    assert len(set(mcf.__all__)) == len(mcf.__all__)
    namespace = {}
    exec("from mcfsim import *", namespace)
    for name in mcf.__all__:
        assert namespace[name] is getattr(mcf, name)
    public = {
        name
        for name, thing in vars(mcf).items()
        if not name.startswith("_") and not isinstance(thing, types.ModuleType)
    }
    assert public <= set(mcf.__all__)


def test_every_public_name_is_documented():
    for name in mcf.__all__:
        thing = getattr(mcf, name)
        if callable(thing) or isinstance(thing, types.ModuleType):
            assert inspect.getdoc(thing), name


def test_formats():
    assert mcf.Format(precision=8, emin=-126, emax=127) == mcf.get_format("bfloat16")
    assert mcf.get_format("bf16") is mcf.FORMATS["bfloat16"]
    assert {"bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"} <= mcf.FORMATS.keys()


def test_round_to(assert_same):
    x = np.array([0.3, 500.0, -0.0009])
    found = mcf.round_to(x, "float8_e4m3fn", rounding="nearest_even", overflow="ieee")
    assert isinstance(found, np.ndarray)
    assert found.dtype == x.dtype
    assert_same(found, [0.3125, np.nan, -0.0])
    assert mcf.round_to(x, "float8_e4m3fn", "nearest_even", "saturate").tolist() == [0.3125, 448.0, -0.0]
    assert mcf.round_to(x.astype(np.float32), "e4m3fn").dtype == np.float32
    assert mcf.round_to(0.3, "float8_e4m3fn") == 0.3125
    for name in ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"):
        assert mcf.round_to(0.3, "float8_e4m3fn", rounding=name) in (0.28125, 0.3125)


@every_backend
@pytest.mark.parametrize(
    "name", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
)
def test_arithmetic_of_every_backend(name, backend):
    """Operands whose results are exact in every one of the formats."""
    ar = mcf.arithmetic(name, rounding="nearest_even", backend=backend)
    a, b, c = (ar.round(np.array([x])) for x in (6.0, 2.0, 0.25))
    results = [ar.add(a, b), ar.sub(a, b), ar.mul(a, c), ar.div(a, b), ar.sqrt(c), ar.neg(a), ar.abs(-c)]
    assert [float(x[0]) for x in results] == [8.0, 4.0, 1.5, 3.0, 0.5, -6.0, 0.25]
    if backend == "native":
        with pytest.raises(UnsupportedFormatError, match="no fused multiply-add"):
            ar.fma(a, b, c)
    elif backend == "numpy" and name == "float64":
        with pytest.raises(UnsupportedFormatError, match="use backend='exact'"):
            ar.fma(a, b, c)
    else:
        assert float(ar.fma(a, c, b)[0]) == 3.5


def test_arithmetic_by_default_is_the_emulator_to_nearest():
    ar = mcf.arithmetic("bfloat16")
    assert ar.add(256.0, 1.0) == 256.0
    assert mcf.arithmetic("bfloat16", rounding="up").add(256.0, 1.0) == 258.0
    assert mcf.arithmetic("bfloat16", backend="exact").add(256.0, 1.0) == 257
    assert isinstance(ar, mcf.Arithmetic)
    with pytest.raises(ValueError, match="unknown backend 'cuda'; allowed: numpy"):
        mcf.arithmetic("bfloat16", backend="cuda")
    with pytest.raises(ValueError, match="native arithmetic rounds to nearest even, over- and"):
        mcf.arithmetic("bfloat16", rounding="up", backend="native")
    with pytest.raises(ValueError, match="backend 'numpy' needs a format"):
        mcf.arithmetic(None)
    assert mcf.arithmetic("bfloat16", backend="native").round([1.0]).dtype == ml_dtypes.bfloat16


@every_backend
def test_error_free_transformations(backend):
    """The pair is the exact result: sums by definition, products where the backend has what they need."""
    ar = mcf.arithmetic("float16", backend=backend)
    a, b = ar.round(np.array([1.0009765625])), ar.round(np.array([0.33349609375]))
    exact_sum, exact_product = to_fraction(a) + to_fraction(b), to_fraction(a) * to_fraction(b)
    pairs = [(mcf.two_sum, exact_sum), (mcf.fast_two_sum, exact_sum)]
    if backend == "numpy":
        pairs.append((mcf.two_prod, exact_product))
    if backend != "native":
        pairs.append((mcf.two_prod_fma, exact_product))
    for function, exact in pairs:
        s, e = function(ar, a, b)
        assert to_fraction(s) + to_fraction(e) == exact
        assert (to_fraction(e) == 0) == (backend == "exact")
    if backend != "exact":
        high, low = mcf.split(ar, a)
        assert to_fraction(high) + to_fraction(low) == to_fraction(a)


def test_grow_first_uses_two_sum_and_the_papers_form_if_ordered():
    ar = mcf.arithmetic("bfloat16")
    assert mcf.grow(ar, (1.0, 2.0**-10), 2.0**-9) == (1.0, 2.0**-9 + 2.0**-10)
    assert mcf.grow(ar, (1.0, 2.0**-10), 2.0**-9, ordered=True) == (1.0, 2.0**-9 + 2.0**-10)
    small, large = (2.0**-9, 0.0), 1.0
    assert mcf.grow(ar, small, large) == (1.0, 2.0**-9)
    assert sum(mcf.grow(ar, (1.0078125, 0.0), 256.0)) == 257.0078125
    assert sum(mcf.grow(ar, (1.0078125, 0.0), 256.0, ordered=True)) != 257.0078125


def test_expansions():
    ar = mcf.arithmetic("bfloat16")
    assert mcf.expand(ar, 0.999, 2) == (1.0, -9.9945068359375e-4)
    assert mcf.expand(ar, Fraction("0.95"), 2) == (0.94921875, 7.82012939453125e-4)
    a, b = mcf.expand(ar, 0.999, 2), mcf.expand(ar, Fraction(1, 3), 2)
    exact = sum(map(Fraction, a)) * sum(map(Fraction, b))
    product = sum(map(Fraction, mcf.expansion_mul(ar, a, b)))
    assert abs(product / exact - 1) < 5 * Fraction(1, 2**16)
    total = sum(map(Fraction, mcf.expansion_add(ar, a, b)))
    assert abs(total / (sum(map(Fraction, a)) + sum(map(Fraction, b))) - 1) < 4 * Fraction(1, 2**16)
    scaled = sum(map(Fraction, mcf.expansion_scale(ar, b, 3.0)))
    assert abs(scaled - 3 * sum(map(Fraction, b))) < 6 * Fraction(1, 2**16)
    quotient = sum(map(Fraction, mcf.expansion_div(ar, a, b)))
    assert abs(quotient / (sum(map(Fraction, a)) / sum(map(Fraction, b))) - 1) < 16 * Fraction(1, 2**16)
    root = sum(map(Fraction, mcf.expansion_sqrt(ar, b)))
    assert abs(root**2 / sum(map(Fraction, b)) - 1) < 7 * Fraction(1, 2**16)
    assert mcf.renormalize(ar, (2.0**-9, 1.0)) == (1.0, 2.0**-9)


def test_strategies():
    assert mcf.strategy("collage-plus", "bfloat16").bytes_per_parameter == 12
    assert list(mcf.STRATEGIES) == [
        *("plain", "kahan", "collage-light", "collage-plus", "mcf-2", "mcf-3"),
        *("stochastic-parameter", "stochastic", "fp32-optim", "eco", "fp32-master"),
        *("split-master", "split-truncated", "remainder-8", "remainder-16"),
        *("fp8-moments", "int8-moments", "coat-moments", "fp32", "exact"),
    ]


def test_simulate():
    problem = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
    run = mcf.simulate(problem, optimizer="adamw", strategies=["plain", "kahan"], steps=3, seed=1)
    assert isinstance(run, mcf.Run)
    assert run.series["kahan"]["loss"].shape == (2,)


def test_metrics():
    intended, effective = np.array([3.0, 4.0]), np.array([3.0, 0.0])
    assert mcf.metrics.edq(intended, effective) == 9 / 5
    assert mcf.metrics.lost_fraction(intended, effective) == 1 / 2


def test_a_step_of_ones_own():
    """Optimizer and the bare step function, from public names alone."""
    hyper = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("collage-light"), {"w": np.ones(2)}, {"w"})
    update = optimizer.step(optimizer.receive({"w": np.array([1.0, -1.0])}), mcf.Schedule().rate(1, 100))
    assert (np.sign(update) == [-1, 1]).all()
    assert hyper.step.__doc__ == "Make one step; see `adamw`."
    assert callable(mcf.adamw)
    assert callable(mcf.sgd)
    assert mcf.SGD().momentum == 0.9


def test_signatures_that_are_promised():
    def names(function):
        return list(inspect.signature(function).parameters)

    assert names(mcf.round_to)[:4] == ["x", "fmt", "rounding", "overflow"]
    assert names(mcf.arithmetic)[:2] == ["fmt", "rounding"]
    assert "backend" in names(mcf.arithmetic)
    assert names(mcf.simulate)[:3] == ["problem", "optimizer", "strategies"]
    assert {"steps", "seed"} <= set(names(mcf.simulate))
    assert names(mcf.strategy) == ["name", "low"]
    assert names(mcf.metrics.edq) == ["intended", "effective"]
