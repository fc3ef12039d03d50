"""The public names, used in the ways that users and the documentation use them."""

import inspect
import types

import ml_dtypes
import numpy as np
import pytest

import mcfsim as mcf


def test_all_is_complete_and_importable():
    assert len(set(mcf.__all__)) == len(mcf.__all__)
    namespace = {}
    exec("from mcfsim import *", namespace)
    for name in mcf.__all__:
        assert namespace[name] is getattr(mcf, name)
    things = {name: thing for name, thing in vars(mcf).items() if not name.startswith("_")}
    public = {name for name, thing in things.items() if not isinstance(thing, types.ModuleType)}
    assert public <= set(mcf.__all__)


def test_every_public_name_is_documented():
    for name in mcf.__all__:
        thing = getattr(mcf, name)
        if callable(thing) or isinstance(thing, types.ModuleType):
            assert inspect.getdoc(thing), name


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (mcf.round_to, ["x", "fmt", "rounding", "overflow"]),
        (mcf.arithmetic, ["fmt", "rounding"]),
        (mcf.simulate, ["problem", "optimizer", "strategies", "steps"]),
        (mcf.strategy, ["name", "low"]),
        (mcf.metrics.edq, ["intended", "effective"]),
    ],
)
def test_parameters_that_are_promised_come_first(function, parameters):
    assert list(inspect.signature(function).parameters)[: len(parameters)] == parameters


def test_formats_and_strategies():
    assert mcf.Format(precision=8, emin=-126, emax=127) == mcf.get_format("bfloat16")
    assert mcf.get_format("bf16") is mcf.FORMATS["bfloat16"]
    assert {"bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"} <= mcf.FORMATS.keys()
    assert mcf.strategy("collage-plus", "bfloat16").bytes_per_parameter == 12
    assert list(mcf.STRATEGIES) == [
        *("plain", "kahan", "collage-light", "collage-plus", "mcf-2", "mcf-3"),
        *("stochastic-parameter", "stochastic", "fp32-optim", "eco", "fp32-master"),
        *("split-master", "split-truncated", "remainder-8", "remainder-16"),
        *("fp8-moments", "int8-moments", "coat-moments", "fp32", "exact"),
    ]


def test_round_to(assert_same):
    x = np.array([0.3, 500.0, -0.0009])
    found = mcf.round_to(x, "float8_e4m3fn", rounding="nearest_even", overflow="ieee")
    assert isinstance(found, np.ndarray)
    assert found.dtype == x.dtype
    assert_same(found, [0.3125, np.nan, -0.0])
    assert mcf.round_to(x, "float8_e4m3fn", "nearest_even", "saturate").tolist() == [0.3125, 448.0, -0.0]
    assert mcf.round_to(x.astype(np.float32), "e4m3fn").dtype == np.float32
    for name in ("nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"):
        expected = 0.28125 if name in ("toward_zero", "down", "to_odd") else 0.3125
        assert mcf.round_to(0.3, "float8_e4m3fn", rounding=name) == expected


def test_arithmetic_by_default_is_the_emulator_to_nearest():
    ar = mcf.arithmetic("bfloat16")
    assert isinstance(ar, mcf.Arithmetic)
    assert ar.add(256.0, 1.0) == 256.0
    assert mcf.arithmetic("bfloat16", rounding="up").add(256.0, 1.0) == 258.0
    assert mcf.arithmetic("bfloat16", backend="exact").add(256.0, 1.0) == 257
    assert mcf.arithmetic("bfloat16", backend="native").round([1.0]).dtype == ml_dtypes.bfloat16
    assert mcf.two_sum(ar, 256.0, 1.0) == (256.0, 1.0)
    assert mcf.expand(ar, 0.999, 2) == (1.0, -9.9945068359375e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fmt": "bfloat16", "backend": "cuda"}, "unknown backend 'cuda'; allowed: numpy"),
        (
            {"fmt": "bfloat16", "rounding": "up", "backend": "native"},
            "native arithmetic rounds to nearest even, over- and",
        ),
        ({"fmt": None}, "backend 'numpy' needs a format"),
    ],
)
def test_what_arithmetic_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        mcf.arithmetic(**options)


def test_a_step_of_ones_own_and_a_run():
    """Optimizer, the bare step function, and a simulation, from public names alone."""
    hyper = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("collage-light"), {"w": np.ones(2)}, {"w"})
    update = optimizer.step(optimizer.receive({"w": np.array([1.0, -1.0])}), mcf.Schedule().rate(1, 100))
    assert (np.sign(update) == [-1, 1]).all()
    assert hyper.step.__doc__ == "Make one step; see `adamw`."
    assert callable(mcf.adamw)
    assert callable(mcf.sgd)
    assert mcf.SGD().momentum == 0.9
    problem = mcf.get_problem("quadratic", dimension=4, condition_number=10.0)
    run = mcf.simulate(problem, optimizer="adamw", strategies=["plain", "kahan"], steps=3, seed=1)
    assert isinstance(run, mcf.Run)
    assert run.series["kahan"]["loss"].shape == (2,)
