"""Records of runs in files."""

import json
import stat

import numpy as np
import pytest

from mcfsim import Run, simulate
from mcfsim.problems import LogisticRegression, Quadratic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run():
    names = ["plain", "collage-light", "exact"]
    return simulate(LogisticRegression(), "sgd", names, steps=12, record_every=5)


def test_what_is_saved_is_what_is_loaded(run, tmp_path):
    path = tmp_path / "run.npz"
    run.save(path)
    again = Run.load(path)
    assert again.settings == run.settings == json.loads(json.dumps(run.settings))
    assert again.versions == run.versions
    assert again.results == run.results
    assert again.steps.dtype == run.steps.dtype
    assert again.steps.tolist() == [1, 5, 10, 12]
    assert again.series.keys() == run.series.keys()
    for name, series in run.series.items():
        assert list(again.series[name]) == list(series)
        for measure, numbers in series.items():
            np.testing.assert_array_equal(again.series[name][measure], numbers)
            assert again.series[name][measure].dtype == np.float64


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
    assert settings["optimizer"] == {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    assert [item["name"] for item in settings["strategies"]] == ["plain", "collage-light", "exact"]
    assert settings["low"]["name"] == "bfloat16"
    assert settings["schedule"] == {"peak": 3e-4, "warmup": 50, "final": 0.1}
    assert (settings["steps"], settings["seed"], settings["clip"]) == (12, 0, 1.0)
    assert {"python", "machine", "mcfsim", "numpy", "mpmath"} <= run.versions.keys()
    assert run.versions["numpy"] == np.__version__


def test_the_mean_of_the_late_steps():
    run = Run({}, {}, series={"plain": {"loss": np.arange(10.0)}})
    assert run.late("plain", "loss") == 8.5
    assert run.late("plain", "loss", 0.5) == 7.0
    assert run.late("plain", "loss", 1.0) == 4.5
    assert run.late("plain", "loss", 0.01) == 9.0  # at least one


def foreign_files(folder):
    files = {}
    np.savez(folder / "arrays.npz", x=np.ones(3))
    np.savez(folder / "about.npz", about=np.array("no JSON"))
    np.savez(folder / "number.npz", about=np.array("3"))
    np.savez(folder / "other.npz", about=np.array(json.dumps({"format": "something else"})))
    np.save(folder / "array.npy", np.ones(3))
    (folder / "text.npz").write_text("no archive")
    (folder / "empty.npz").write_bytes(b"")
    Run({}, {}).save(folder / "whole.npz")
    whole = (folder / "whole.npz").read_bytes()
    (folder / "half.npz").write_bytes(whole[: len(whole) // 2])
    content = {"settings": {}, "versions": {}, "results": {}}
    np.savez(
        folder / "older.npz", about=json.dumps({"format": "mcfsim-run-1", **content}), steps=np.arange(3)
    )
    for path in folder.iterdir():
        if path.name != "whole.npz":
            files[path.name] = path
    return files


@pytest.mark.parametrize(
    "name",
    [
        *("arrays.npz", "about.npz", "number.npz", "other.npz", "array.npy"),
        *("text.npz", "empty.npz", "half.npz", "older.npz"),
    ],
)
def test_foreign_and_damaged_files_are_refused_by_name(tmp_path, name):
    path = foreign_files(tmp_path)[name]
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        Run.load(path)


def test_a_checkpoint_is_no_run(tmp_path):
    path = tmp_path / "checkpoint.npz"
    simulate(Quadratic(2, 1.0), "sgd", ["plain"], steps=1, checkpoint=path)
    with pytest.raises(ValueError, match="holds 'mcfsim-checkpoint-2', not 'mcfsim-run-2'"):
        Run.load(path)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "none.npz")


def test_saving_over_a_run_replaces_it(tmp_path):
    path = tmp_path / "run.npz"
    Run({"seed": 1}, {}).save(path)
    (tmp_path / "link").hardlink_to(path)
    Run({"seed": 2}, {}).save(path)
    assert Run.load(path).settings == {"seed": 2}
    assert Run.load(tmp_path / "link").settings == {"seed": 1}  # the old file was not written to
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link", "run.npz"]


@pytest.mark.parametrize("failure", [OSError("no space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch, failure):
    path = tmp_path / "run.npz"
    Run({"seed": 1}, {}).save(path)

    def fail(file, *args, **kwargs):
        file.write(b"PK half an archive")
        raise failure

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(type(failure)):
        Run({"seed": 2}, {}).save(path)
    monkeypatch.undo()
    assert Run.load(path).settings == {"seed": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["run.npz"]


def test_others_may_read_the_file_as_the_umask_says(tmp_path):
    Run({}, {}).save(tmp_path / "run.npz")
    (tmp_path / "plain").write_text("")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("run.npz", "plain")]
    assert modes[0] == modes[1]


# -- runs among themselves -------------------------------------------------------------------------------
def test_a_run_equals_its_repetition_and_its_copy_from_a_file(run, tmp_path):
    again = simulate(LogisticRegression(), "sgd", ["plain", "collage-light", "exact"], 12, record_every=5)
    assert again == run
    assert (again != run) is False
    run.save(tmp_path / "run.npz")
    assert Run.load(tmp_path / "run.npz") == run
    assert run != 3
    assert run != run.settings


def parts(run):
    """Return copies of a run that differ in one number or name each, by what differs."""
    path = json.dumps(run.settings)
    yield "setting", Run(json.loads(path) | {"seed": 1}, run.versions, run.steps, run.series, run.results)
    fewer = {key: value for key, value in run.settings.items() if key != "seed"}
    yield "fewer settings", Run(fewer, run.versions, run.steps, run.series, run.results)
    yield "version", Run(run.settings, run.versions | {"numpy": "0"}, run.steps, run.series, run.results)
    yield "step", Run(run.settings, run.versions, run.steps + 1, run.series, run.results)
    yield "steps", Run(run.settings, run.versions, run.steps[:-1], run.series, run.results)
    for name in run.series:
        for measure, numbers in run.series[name].items():
            changed = numbers.copy()
            changed[-1] = np.nextafter(changed[-1], np.inf) if np.isfinite(changed[-1]) else 0.0
            series = run.series | {name: run.series[name] | {measure: changed}}
            yield f"{name} {measure}", Run(run.settings, run.versions, run.steps, series, run.results)
        for result, number in run.results[name].items():
            changed = run.results | {name: run.results[name] | {result: np.nextafter(number, np.inf)}}
            yield f"{name} {result}", Run(run.settings, run.versions, run.steps, run.series, changed)
        yield (
            f"no {name}",
            Run(
                run.settings,
                run.versions,
                run.steps,
                run.series,
                {k: v for k, v in run.results.items() if k != name},
            ),
        )


def test_a_run_differs_from_one_that_differs_in_one_number(run):
    tried = dict(parts(run))
    assert len(tried) > 50
    for what, other in tried.items():
        assert other != run, what
        assert run != other, what
        assert other == other, what


def test_nan_equals_nan_and_a_tuple_a_list():
    numbers = {"plain": {"loss": np.array([np.nan, 1.0])}}
    made = [
        Run({"a": value}, {}, np.arange(2), dict(numbers), {"plain": {"x": np.nan}}) for value in ((1,), [1])
    ]
    assert made[0] == made[1]
    assert made[0] != Run({"a": [2]}, {}, np.arange(2), dict(numbers), {"plain": {"x": np.nan}})
    assert made[0] != Run({"a": [1]}, {}, np.arange(2), dict(numbers), {"plain": {"x": 0.0}})


def test_what_a_run_is_called(run):
    assert repr(run) == "<Run of logistic, sgd, 12 steps; plain, collage-light, exact>"
    assert repr(Run({}, {})) == "<Run of nothing; no results>"
    diverged = Run({"steps": 3}, {}, results={"plain": {"diverged_at": 2}, "kahan": {}})
    assert repr(diverged) == "<Run of 3 steps; plain: diverged at step 2, kahan>"
