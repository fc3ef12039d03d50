"""Records of runs, in memory and in files; what becomes of files that are damaged: see tests/storage."""

import json
from dataclasses import replace

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import Run, simulate
from mcfsim.storage.archive import write_archive
from mcfsim.training.problems import LogisticRegression
from mcfsim.training.record import FORMAT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run():
    names = ["plain", "collage-light", "exact"]
    return simulate(LogisticRegression(), "sgd", names, steps=5, record_every=2)


def test_what_is_saved_is_what_is_loaded(run, tmp_path):
    run.save(tmp_path / "run.npz")
    again = Run.load(tmp_path / "run.npz")
    assert again == run
    assert again.settings == run.settings == json.loads(json.dumps(run.settings))
    assert again.steps.dtype == run.steps.dtype
    assert again.steps.tolist() == [1, 2, 4, 5]
    for name, series in run.series.items():
        assert list(again.series[name]) == list(series)
        assert {numbers.dtype for numbers in again.series[name].values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("about", "arrays", "problem"),
    [
        ({"stray": 1}, {}, "has 'stray', which is unknown"),
        ({"versions": {"numpy": 2}}, {}, "has version 2 of numpy"),
        ({"results": {"plain": {"loss": "low"}}}, {}, "has 'low' for 'loss' of 'plain'"),
        ({}, {"odd": np.zeros(3)}, "has an array 'odd', which is no series"),
        ({}, {"plain|loss": np.zeros(2)}, r"has series 'plain\|loss' of float64 and shape \(2,\)"),
        ({}, {"other|loss": np.zeros(3)}, "has numbers of 'other', which is none of its strategies"),
    ],
)
def test_files_with_what_no_run_has_are_refused(about, arrays, problem, tmp_path):
    settings = {"strategies": [{"name": "plain"}]}
    whole = {"format": FORMAT, "settings": settings, "versions": {}, "results": {}} | about
    write_archive(tmp_path / "run.npz", whole, {"steps": np.arange(3), **arrays})
    with pytest.raises(ValueError, match=problem):
        Run.load(tmp_path / "run.npz")


def test_numbers_that_are_not_finite_survive(tmp_path):
    results = {"plain": {"validation_loss": float("inf")}}
    series = {"plain": {"loss": np.array([np.nan, -np.inf, -0.0])}}
    Run({"steps": 3}, {}, np.arange(3), series, results).save(tmp_path / "run.npz")
    again = Run.load(tmp_path / "run.npz")
    assert again.results == results
    assert again.series["plain"]["loss"].tobytes() == series["plain"]["loss"].tobytes()


def test_the_settings_tell_the_run(run):
    settings = run.settings
    assert settings["problem"] == {"kind": "logistic", "l2": 1e-4}
    assert settings["optimizer"] == {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0, "dampening": 0.0}
    assert [item["name"] for item in settings["strategies"]] == ["plain", "collage-light", "exact"]
    assert settings["low"]["name"] == "bfloat16"
    assert settings["schedule"] == {"peak": 3e-4, "warmup": 50, "final": 0.1}
    assert (settings["steps"], settings["seed"], settings["clip"]) == (5, 0, 1.0)
    assert {"python", "machine", "mcfsim", "numpy", "mpmath"} <= run.versions.keys()
    assert run.versions["numpy"] == np.__version__


def test_the_mean_of_the_late_steps():
    run = Run({}, {}, series={"plain": {"loss": np.arange(10.0)}})
    means = [run.late("plain", "loss", share) for share in (0.2, 0.5, 1.0, 0.01)]
    assert means == [8.5, 7.0, 4.5, 9.0]  # of at least one
    assert run.late("plain", "loss") == 8.5


# -- runs among themselves -------------------------------------------------------------------------------
def others(run):
    """Yield copies of a run that differ in one number or name each, by what differs."""
    yield "setting", replace(run, settings=run.settings | {"seed": 1})
    yield "fewer settings", replace(run, settings={k: v for k, v in run.settings.items() if k != "seed"})
    yield "version", replace(run, versions=run.versions | {"numpy": "0"})
    yield "step", replace(run, steps=run.steps + 1)
    yield "steps", replace(run, steps=run.steps[:-1])
    for name, series in run.series.items():
        for measure, numbers in series.items():
            changed = numbers.copy()
            changed[-1] = np.nextafter(changed[-1], np.inf) if np.isfinite(changed[-1]) else 0.0
            yield f"{name} {measure}", replace(run, series=run.series | {name: series | {measure: changed}})
        for result, number in run.results[name].items():
            changed = run.results[name] | {result: np.nextafter(number, np.inf)}
            yield f"{name} {result}", replace(run, results=run.results | {name: changed})
        yield f"no {name}", replace(run, results={k: v for k, v in run.results.items() if k != name})


def test_a_run_differs_from_one_that_differs_in_one_number(run):
    tried = dict(others(run))
    assert len(tried) > 50
    for what, other in tried.items():
        assert other != run, what
        assert run != other, what
        assert other == other, what
    assert (run != 3, run != run.settings, replace(run) != run) == (True, True, False)


def test_nan_equals_nan_and_a_tuple_a_list(tmp_path):
    def made(value, result=np.nan):
        series = {"plain": {"loss": np.array([np.nan, 1.0])}}
        return Run({"a": value}, {}, np.arange(2), series, {"plain": {"x": result}})

    assert made((1,)) == made([1])
    one = Run({"strategies": ({"name": "plain"},)}, {}, np.arange(2), {"plain": {"loss": np.zeros(2)}})
    one.save(tmp_path / "run.npz")
    assert Run.load(tmp_path / "run.npz") == one
    assert made((1,)) != made([2])
    assert made((1,)) != made([1], 0.0)


def test_what_a_run_is_called(run):
    assert repr(run) == "<Run of logistic, sgd, 5 steps; plain, collage-light, exact>"
    assert repr(Run({}, {})) == "<Run of nothing; no results>"
    diverged = Run({"steps": 3}, {}, results={"plain": {"diverged_at": 2}, "kahan": {}})
    assert repr(diverged) == "<Run of 3 steps; plain: diverged at step 2, kahan>"


def test_a_step_that_asks_for_nothing_is_no_late_one():
    """As the last of a cosine to zero: what is lost there is NaN."""
    schedule = mcf.Schedule(0.01, warmup=0, final=0.0)
    run = mcf.simulate("quadratic", "adamw", "plain", 50, schedule, record_every=5, progress=False)
    lost = run.series["plain"]["lost"]
    assert np.isnan(lost[-1])
    assert run.late("plain", "lost") == np.mean(lost[-2:-1])
    assert np.isnan(run.late("plain", "lost", share=0.01))
    assert run.late("plain", "loss") == np.mean(run.series["plain"]["loss"][-2:])
    run.series["plain"]["lost"][-2] = np.nan
    assert np.isnan(run.late("plain", "lost"))
