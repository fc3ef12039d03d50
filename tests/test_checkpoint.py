"""A run that was interrupted and goes on from its checkpoint is the run that was not, to the last bit."""

import sys

import numpy as np
import pytest

from mcfsim import SGD, AdamW, Schedule, Strategy, simulate
from mcfsim.optim.strategies import LOW, Stored
from mcfsim.problems import Corpus, LanguageModel, LogisticRegression, Quadratic

STEPS = 23
LOW_STRATEGIES = ["plain", "kahan", "collage-plus", "fp32-master", "fp32"]


class Interrupted:
    """A problem that is interrupted in some gradient of some step, and keeps the final weights."""

    def __init__(self, problem, at=None, gradient=0):
        self.problem, self.at, self.gradient, self.steps, self.finals = problem, at, gradient, [], []

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def loss_and_gradient(self, parameters, step, seed):
        if step == self.at and self.steps.count(step) == self.gradient:
            raise KeyboardInterrupt
        self.steps.append(step)
        return self.problem.loss_and_gradient(parameters, step, seed)

    def validation_loss(self, parameters):
        self.finals.append({name: x.tolist() for name, x in parameters.items()})
        return self.problem.validation_loss(parameters)


def tiny_model():
    corpus = Corpus.from_bytes(bytes(range(32, 127)) * 20, "ascii")
    return LanguageModel(corpus, layers=1, width=8, heads=2, context=8, batch=2)


CASES = {
    "quadratic with exact": (Quadratic(6, 100.0), AdamW(0.9, 0.95), [*LOW_STRATEGIES, "exact"], 0),
    "logistic with sgd": (LogisticRegression(), SGD(0.9, 0.1), LOW_STRATEGIES, 0),
    "logistic with truth": (LogisticRegression(), AdamW(), LOW_STRATEGIES, 3),
    "language model": (tiny_model(), AdamW(), LOW_STRATEGIES, 3),
    "three components": (
        Quadratic(6, 100.0),
        AdamW(),
        [Strategy("three", parameter=Stored(LOW, 3), m=Stored(LOW, 2), v=Stored(LOW, 2), addition="grow")],
        2,
    ),
}


def train(problem, hyper, strategies, truth_sample, **options):
    schedule = Schedule(0.02, 5)
    options = {"record_every": 4, "checkpoint_every": 5, **options}
    return simulate(problem, hyper, strategies, STEPS, schedule, 6, truth_sample=truth_sample, **options)


def assert_same_run(run, expected):
    assert run.settings == expected.settings
    assert run.results == expected.results
    np.testing.assert_array_equal(run.steps, expected.steps)
    assert run.series.keys() == expected.series.keys()
    for name, series in expected.series.items():
        assert list(run.series[name]) == list(series)
        for measure, numbers in series.items():
            np.testing.assert_array_equal(run.series[name][measure], numbers, err_msg=f"{name} {measure}")


@pytest.mark.parametrize("at", [2, 3, 6, 13, 23])
@pytest.mark.parametrize("case", CASES)
def test_resumed_is_uninterrupted(case, at, tmp_path):
    problem, *rest = CASES[case]
    path = tmp_path / "checkpoint.npz"
    whole = Interrupted(problem)
    expected = train(whole, *rest)
    lanes = len(rest[1])
    # In the middle of a step, when some of the strategies have made it already.
    with pytest.raises(KeyboardInterrupt):
        train(Interrupted(problem, at, lanes // 2), *rest, checkpoint=path)
    resumed = Interrupted(problem)
    run = train(resumed, *rest, checkpoint=path)
    assert resumed.steps[:2] == [1, at]  # the problem's fingerprint, and not from the beginning
    assert resumed.finals[1:] == whole.finals
    assert_same_run(run, expected)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]


@pytest.mark.parametrize("at", [1, 3, 6, 13, 23])
def test_a_run_that_breaks_off_goes_on_from_its_last_checkpoint(at, tmp_path):
    problem, *rest = CASES["quadratic with exact"]
    path = tmp_path / "checkpoint.npz"

    class Broken(Interrupted):
        def loss_and_gradient(self, parameters, step, seed):
            if step == at and len(self.steps) > 1:
                raise RuntimeError("out of order")
            return super().loss_and_gradient(parameters, step, seed)

    with pytest.raises(RuntimeError, match="out of order"):
        train(Broken(problem), *rest, checkpoint=path)
    resumed, whole = Interrupted(problem), Interrupted(problem)
    run = train(resumed, *rest, checkpoint=path)
    assert resumed.steps[:2] == [1, (at - 1) // 5 * 5 + 1]
    assert_same_run(run, train(whole, *rest))
    assert resumed.finals[1:] == whole.finals


def test_checkpoints_change_nothing_and_a_finished_run_is_not_made_again(tmp_path):
    problem, *rest = CASES["quadratic with exact"]
    plainly, first, again = Interrupted(problem), Interrupted(problem), Interrupted(problem)
    path = tmp_path / "checkpoint.npz"
    expected = train(plainly, *rest)
    for watched in (first, again):
        run = train(watched, *rest, checkpoint=path, checkpoint_every=1)
        assert watched.finals[1:] == plainly.finals
        assert_same_run(run, expected)
    assert first.steps == [1, *plainly.steps]
    assert again.steps == [1]


def simple(path, **options):
    arguments = {"problem": Quadratic(3, 10.0), "strategies": ["plain"], "steps": 4, "seed": 1}
    return simulate(**{**arguments, **options}, checkpoint=path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"steps": 5}, "steps"),
        ({"problem": Quadratic(3, 11.0)}, "problem"),
        ({"strategies": ["plain", "kahan"]}, "strategies"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"optimizer": AdamW(weight_decay=0.2)}, "optimizer"),
        ({"schedule": Schedule(1e-3)}, "schedule"),
        ({"clip": None, "rounding": "up"}, "clip, rounding"),
        ({"low": "float16"}, "low, strategies"),
        ({"scalars": "rounded"}, "scalars"),
        ({"record_every": 3}, "record_every"),
        ({"truth_sample": 3, "precision": 500}, "precision, truth_sample"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, options, named):
    path = tmp_path / "checkpoint.npz"
    simple(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"is of another run: settings differ in {named}; remove it"):
        simple(path, **options)
    assert path.read_bytes() == before


def test_the_checkpoint_of_other_versions_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    simple(path)
    module = sys.modules["mcfsim.simulate"]  # the attribute of this name is the function
    others = module.versions() | {"numpy": "1.0", "mpmath": "0.1"}
    monkeypatch.setattr(module, "versions", lambda: others)
    with pytest.raises(ValueError, match="versions differ in mpmath, numpy; remove it"):
        simple(path)


def test_a_run_is_no_checkpoint(tmp_path):
    path = tmp_path / "run.npz"
    simulate(Quadratic(3, 10.0), strategies=["plain"], steps=1).save(path)
    with pytest.raises(ValueError, match=r"run\.npz is no checkpoint of a simulation"):
        simple(path)


def test_a_damaged_checkpoint_is_refused_and_not_overwritten(tmp_path):
    path = tmp_path / "checkpoint.npz"
    simple(path)
    half = path.read_bytes()[:200]
    path.write_bytes(half)
    with pytest.raises(ValueError, match=r"checkpoint\.npz is no file of mcfsim"):
        simple(path)
    assert path.read_bytes() == half


def test_a_failure_while_writing_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    problem, *rest = CASES["quadratic with exact"]
    expected = Interrupted(problem)
    train(expected, *rest)
    write, calls = np.lib.format.write_array, []

    def fail_in_the_third_file(file, array, **options):
        calls.append(array.shape == ())  # what a file says about itself comes first
        if sum(calls) == 4:
            file.write(b"half an array")
            raise OSError("no space left on device")
        write(file, array, **options)

    monkeypatch.setattr(np.lib.format, "write_array", fail_in_the_third_file)
    with pytest.raises(OSError, match="no space left"):
        train(problem, *rest, checkpoint=path)
    monkeypatch.undo()
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]
    resumed = Interrupted(problem)
    train(resumed, *rest, checkpoint=path)
    assert resumed.steps[:2] == [1, 11]  # from the second after the start
    assert resumed.finals[1:] == expected.finals
