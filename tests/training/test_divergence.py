"""Runs that diverge: the step at which, what is measured from there on, and what the command line says."""

import math

import numpy as np
import pytest

from mcfsim import SGD, STRATEGIES, AdamW, Run, Schedule, simulate
from mcfsim.report.tables import run_table
from mcfsim.training import metrics
from tests.cli.runner import call
from tests.training.problems import Scripted

NUMBERED = [name for name in STRATEGIES if name != "exact"]
#: Those of one step that say how much of an update arrived.
ARRIVED = ["edq", "normalized_edq", "lost", "norm_ratio", "cosine", "released_edq", "released_imprecision"]
STEADY = Schedule(2.0**-4, 0, 1.0)


@pytest.mark.parametrize("hyper", [AdamW(), SGD()], ids=["adamw", "sgd"])
@pytest.mark.parametrize("gradient", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("at", [1, 3, 4])
@pytest.mark.sampled(18, each=False)
@pytest.mark.slow
def test_the_step_of_divergence_whether_it_is_recorded_or_not(hyper, gradient, at):
    problem = Scripted(at, gradient)
    run = simulate(problem, hyper, [*NUMBERED, "exact"], 5, STEADY, clip=None, record_every=2)
    ends = {name: found["diverged_at"] for name, found in run.results.items()}
    assert ends == dict.fromkeys(STRATEGIES, at)
    for name in NUMBERED:
        for measure in ARRIVED:
            for suffix, whole in (("", False), ("/a", True), ("/b", False)):
                known = [math.isnan(x) for x in run.series[name][measure + suffix]]
                # Of the tensor that stays finite everything is known to the end.
                assert known == [not whole and step >= at for step in run.steps], (name, measure + suffix)


@pytest.mark.parametrize("loss", [math.inf, math.nan, -math.inf])
def test_a_loss_that_is_not_finite_is_divergence(loss):
    run = simulate(Scripted(5, 1.0, loss), AdamW(), ["plain", "exact"], 6, STEADY)
    assert {run.results[name]["diverged_at"] for name in ("plain", "exact")} == {5}


@pytest.mark.parametrize("low", ["float16", "bfloat16", "float8_e5m2"])
@pytest.mark.filterwarnings("ignore::mcfsim.VanishingScalarWarning")
def test_a_second_moment_that_overflows_is_divergence_though_the_parameter_stays_finite(low):
    """v = inf makes every later update zero, which would look like a run at its minimum."""
    big = 2.0**15 if low != "bfloat16" else 2.0**100
    hyper = AdamW(beta2=0.0, weight_decay=0.0)
    run = simulate(Scripted(2, big), hyper, ["plain"], 4, STEADY, clip=None, low=low, record_every=1)
    assert run.results["plain"]["diverged_at"] == 2
    assert np.isnan(run.series["plain"]["lost"]).tolist() == [False, True, True, True]
    assert np.isfinite(run.series["plain"]["loss"]).all()


@pytest.mark.slow
def test_a_run_of_which_it_is_known_is_saved_and_shown_with_it(tmp_path):
    """The divergence lies between two records; of a run without one no table has a word of it."""
    well = simulate(Scripted(3, 1e30), AdamW(), ["plain", "fp32-master"], 4, STEADY)
    assert not any("diverged" in heading for heading in run_table(well)[0])
    run = simulate(Scripted(3, math.nan), AdamW(), ["plain", "fp32-master"], 20, STEADY)
    assert {found["diverged_at"] for found in run.results.values()} == {3}
    run.save(tmp_path / "run.npz")
    again = Run.load(tmp_path / "run.npz")
    assert again == run
    assert "plain: diverged at step 3" in repr(again)
    for row in run_table(again):
        assert row["diverged at step"] == "3"
        assert row["lost late"] == row["EDQ late"] == row["v / exact"] == "nan"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(5))
def test_every_measure_is_nan_where_anything_is_not_finite(bad, which):
    """D, the represented parameter before and after, and the leading one."""
    random = np.random.default_rng(which)
    arrays = [random.standard_normal(6) for _ in range(5)]

    def measured():
        return metrics.measure(arrays[0], [arrays[1]], [arrays[2]], (arrays[3], arrays[4]))

    healthy = measured()
    assert all(map(math.isfinite, healthy.values()))
    arrays[which][random.integers(6)] = bad
    assert all(map(math.isnan, measured().values()))
    assert measured().keys() == healthy.keys()


@pytest.mark.filterwarnings("default::mcfsim.VanishingScalarWarning")
@pytest.mark.slow
def test_the_command_prints_the_step_saves_the_run_and_ends_with_one(tmp_path):
    path = tmp_path / "run.npz"
    command = "simulate --problem quadratic --dimension 6 --steps 20 --low e4m3 --strategy plain"
    command = [*command.split(), "--strategy", "fp32-master", "--output", str(path)]
    result = call(*command, status=1)
    assert "plain diverged at step 1" in result.stdout
    assert "fp32-master diverged" not in result.stdout
    assert "0.00%" not in next(line for line in result.stdout.splitlines() if line.startswith("plain "))
    assert "Warning: epsilon = 1e-08 is zero in float8_e4m3" in result.stderr
    assert ".py" not in result.stderr
    assert Run.load(path).results["plain"]["diverged_at"] == 1
