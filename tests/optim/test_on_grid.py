"""Weights on a grid: the way to it by fractions, bit for bit, and what optimizers make of it."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.saving import load_state, save_state
from mcfsim.optim.on_grid import on_grid, scale_of
from mcfsim.optim.weight_grid import WeightGrid

from . import on_grid_reference as judge

INTEGERS = ("ternary", *(f"int{bits}" for bits in range(2, 9)))
HYPER = mcf.AdamW(0.9, 0.95, 1e-6, 0.1)
BF16 = mcf.get_format("bfloat16")


def test_roundings_of_the_run_leave_the_way_to_the_grid_as_it_is():
    """The grid's own rounding decides; the run's acts before it."""
    strategy = judge.placed("dqt-int4", reach="fixed", rounding="nearest_even")
    up = mcf.Optimizer(mcf.SGD(0.0, 0.0), strategy, {"w": np.linspace(-1, 1, 99)}, rounding="up")
    still = up.state.parameter[0].copy()
    up.step(up.receive({"w": np.zeros(99)}), 1.0)
    assert up.state.parameter[0].tolist() == still.tolist()


# -- the way to the grid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["bfloat16", "float16", "float8_e5m2"])
def test_formats_other_than_float32_are_those_of_the_judge(fmt):
    fmt, whole = mcf.get_format(fmt), WeightGrid("int3")
    x = mcf.round_to(np.random.default_rng(3).standard_normal(60) * 0.02, fmt)
    s = judge.scale(x.tolist(), 3, "absmean", fmt)
    assert scale_of(x, whole, whole.start, fmt) == s
    assert judge.same(on_grid(x, whole, fmt), [judge.put(y, s, -4, 3, fmt=fmt)[0] for y in x.tolist()])


# -- what cannot be -----------------------------------------------------------------------------------------


def test_a_weight_that_becomes_infinite_is_clipped_and_a_nan_spoils_its_tensor_alone():
    def stepped(*gradient):
        start = {"a": np.ones(3), "b": np.ones(3)}
        optimizer = mcf.Optimizer(mcf.SGD(0.0, 0.0), mcf.strategy("dqt-int8"), start)
        optimizer.step(np.array([*gradient, 0, 0, 0], np.float32), 1.0)
        return optimizer

    bottom = float(np.float32(-128) / np.float32(127))
    assert stepped(np.inf, 0, -np.inf).weights()["a"].tolist() == [bottom, 1.0, 1.0]
    spoilt = stepped(np.nan, 0, 0)
    assert judge.same(spoilt.weights()["a"], [np.nan, 1.0, 1.0])
    spoilt.step(np.zeros(6, np.float32), 1.0)
    assert judge.same(spoilt.weights()["a"], [np.nan] * 3)
    assert spoilt.weights()["b"].tolist() == [1.0] * 3


def test_a_state_with_scales_of_the_start_is_not_saved(tmp_path):
    fixed = mcf.Optimizer(HYPER, judge.placed("dqt-int8", reach="fixed"), {"w": np.ones(3)})
    for work in (save_state, load_state):
        with pytest.raises(ValueError, match="whose scales are those of the start"):
            work(fixed, tmp_path / "state.safetensors")


# -- declarations, runs and files ---------------------------------------------------------------------------


ARGUMENTS = {"optimizer": HYPER, "schedule": mcf.Schedule(2.0**-6, 0), "record_every": 2, "progress": False}


@pytest.mark.slow
def test_a_run_measures_grids_and_infers_by_three_values():
    for integers, bits in zip(INTEGERS, (2, *range(2, 9)), strict=True):
        assert mcf.strategy(f"dqt-{integers}").bytes_per_parameter == bits / 8 + 2 + 8
    assert mcf.strategy("bitnet").bytes_per_parameter == 14.25
    problem = mcf.get_problem("quadratic", dimension=20)
    names = ["dqt-ternary", "dqt-int8", "bitnet", "plain"]
    run = mcf.simulate(problem, strategies=names, steps=5, low="float32", **ARGUMENTS)
    for name in names[:3]:
        assert {"changed", "at_ends", "grid_size"} <= set(run.series[name])
        assert 0 <= run.results[name]["clipped_at_start"] <= 1
    assert "changed" not in run.series["plain"]
    assert [name for name in names if "ternary_validation_loss" in run.results[name]] == ["dqt-int8"]
