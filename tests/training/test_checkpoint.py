"""A run that was interrupted and goes on from its checkpoint is the run that was not, to the last bit."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

from mcfsim import SGD, AdamW, Schedule, Strategy, simulate
from mcfsim.cli import app
from mcfsim.optim.lion import Lion
from mcfsim.optim.nesterov import Nesterov
from mcfsim.optim.strategies import LOW, Stored
from mcfsim.problems import Corpus, LanguageModel, LogisticRegression, Quadratic, Rosenbrock

pytestmark = pytest.mark.slow

STEPS = 23
LOW_STRATEGIES = [
    "plain",
    "kahan",
    "collage-plus",
    "fp32-master",
    "stochastic",
    "split-master",
    "fp8-moments",
    "remainder-8",
    "int8-moments",
    "coat-moments",
    "fp32",
]


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
    "lion": (Quadratic(6, 100.0), Lion(), [*LOW_STRATEGIES, "exact"], 2),
    "nesterov": (Quadratic(6, 100.0), Nesterov(), [*LOW_STRATEGIES, "exact"], 0),
    "moments of two formats": (
        LogisticRegression(),
        AdamW(epsilon=0.01),
        [Strategy("mixed", v=Stored("float8_e5m2"))],
        2,
    ),
    "language model": (tiny_model(), AdamW(), LOW_STRATEGIES, 3),
    "one component": (Quadratic(6, 100.0), AdamW(0.9, 0.5, epsilon=1.0), ["plain", "fp32-optim"], 2),
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
    assert repr(run.results) == repr(expected.results)  # of NaN, too
    np.testing.assert_array_equal(run.steps, expected.steps)
    assert run.series.keys() == expected.series.keys()
    for name, series in expected.series.items():
        assert list(run.series[name]) == list(series)
        for measure, numbers in series.items():
            np.testing.assert_array_equal(run.series[name][measure], numbers, err_msg=f"{name} {measure}")


@cache
def uninterrupted(case):
    problem, *rest = CASES[case]
    whole = Interrupted(problem)
    return whole, train(whole, *rest)


@pytest.mark.parametrize("at", [2, 3, 6, 13, 23])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(12)
def test_resumed_is_uninterrupted(case, at, tmp_path):
    problem, *rest = CASES[case]
    path = tmp_path / "checkpoint.npz"
    whole, expected = uninterrupted(case)
    count = len(rest[1])
    # In the middle of a step, when some of the strategies have made it already.
    with pytest.raises(KeyboardInterrupt):
        train(Interrupted(problem, at, count // 2), *rest, checkpoint=path)
    resumed = Interrupted(problem)
    run = train(resumed, *rest, checkpoint=path)
    assert resumed.steps[:2] == [1, at]  # the problem's fingerprint, and not from the beginning
    assert resumed.finals[1:] == whole.finals
    assert_same_run(run, expected)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]


@pytest.mark.filterwarnings("ignore::mcfsim.optim.vanishing.VanishingScalarWarning")
@pytest.mark.parametrize(
    "options", [{"rounding": "stochastic"}, {"low": "posit8"}, {"low": "int8", "scalars": "rounded"}]
)
def test_resumed_is_uninterrupted_whatever_the_rounding_and_format(options, tmp_path):
    problem, *rest = CASES["one component" if "low" in options else "logistic with truth"]
    path, whole, resumed = tmp_path / "checkpoint.npz", Interrupted(problem), Interrupted(problem)
    expected = train(whole, *rest, **options)
    with pytest.raises(KeyboardInterrupt):
        train(Interrupted(problem, 7), *rest, **options, checkpoint=path)
    assert_same_run(train(resumed, *rest, **options, checkpoint=path), expected)
    assert resumed.steps[:2] == [1, 7]
    assert repr(resumed.finals[1:]) == repr(whole.finals)  # of NaN, too


@pytest.mark.parametrize("at", [1, 3, 6, 13, 23])
@pytest.mark.sampled(4, each=False)
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
        ({"low": "tf32"}, "low, strategies"),
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
    module = sys.modules["mcfsim.training.loop"]
    others = module.versions() | {"numpy": "1.0", "mpmath": "0.1"}
    monkeypatch.setattr(module, "versions", lambda: others)
    with pytest.raises(ValueError, match="versions differ in mpmath, numpy; remove it"):
        simple(path)


def test_another_kernel_for_matrix_products_does_not_go_on(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.npz"
    simple(path)
    monkeypatch.setattr("mcfsim.training.loop.blas", lambda: "openblas 0.3.31 Nehalem")
    with pytest.raises(ValueError, match="versions differ in blas; remove it"):
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


class Own:
    """A least-squares problem of one's own, whose settings do not name its data."""

    name, exact_capable, decayed = "own", True, frozenset({"x"})

    def __init__(self, data, held_out=0.0, start=0.0):
        self.data, self.held_out, self.start = np.asarray(data, dtype=float), held_out, start

    def settings(self):
        return {"kind": "own"}

    def initial_parameters(self, seed):
        return {"x": np.full(self.data.size, self.start)}

    def loss_and_gradient(self, parameters, step, seed):
        error = parameters["x"] - self.data
        return float(error @ error) / 2, {"x": error}

    def validation_loss(self, parameters):
        return float(parameters["x"].sum()) + self.held_out


@pytest.mark.parametrize(
    "other",
    [
        Own([1.0, 2.0, 3.5]),
        Own([1.0, 2.0, np.nextafter(3.0, 4.0)]),
        Own([1.0, 2.0, 3.0], held_out=1.0),
        Own([1.0, 2.0, 3.0], start=0.5),
        Own([1.0, 2.0]),
    ],
)
@pytest.mark.parametrize("steps", [4, 9])
def test_the_checkpoint_of_an_own_problem_with_other_data_is_refused(other, steps, tmp_path):
    path = tmp_path / "checkpoint.npz"
    simple(path, problem=Own([1.0, 2.0, 3.0]), steps=steps)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is of another run: the problem's start, loss or gradient differs"):
        simple(path, problem=other, steps=steps)
    assert path.read_bytes() == before
    simple(path, problem=Own([1.0, 2.0, 3.0]), steps=steps)


def test_a_built_in_problem_with_altered_data_is_refused(tmp_path):
    path = tmp_path / "checkpoint.npz"
    simple(path)
    altered = Quadratic(3, 10.0)
    altered.minimiser = altered.minimiser + 1
    with pytest.raises(ValueError, match="and so its data"):
        simple(path, problem=altered)


class Paced(Own):
    """Waits for all in every gradient, so that runs go side by side."""

    def __init__(self, barrier):
        super().__init__([1.0, 2.0])
        self.barrier = barrier

    def loss_and_gradient(self, parameters, step, seed):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(0.2)
        return super().loss_and_gradient(parameters, step, seed)


@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.sampled(4, each=False)
def test_of_different_runs_on_one_new_checkpoint_one_alone_goes_on(attempt, tmp_path):
    path, done, refused, others = tmp_path / "checkpoint.npz", [], [], []
    barrier = threading.Barrier(4)

    def go(seed):
        try:
            done.append((seed, simple(path, problem=Paced(barrier), seed=seed, checkpoint_every=1)))
        except ValueError as refusal:
            refused.append(str(refusal))
        except BaseException as error:
            others.append(error)

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not others
    assert len(done) == 1
    assert len(refused) == 3
    assert all("is of another run: settings differ in seed" in text for text in refused)
    seed, run = done[0]
    assert_same_run(simple(path, problem=Own([1.0, 2.0]), seed=seed), run)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_equal_runs_on_one_checkpoint_end_alike(tmp_path):
    path, done = tmp_path / "checkpoint.npz", []
    threads = [
        threading.Thread(target=lambda: done.append(simple(path, checkpoint_every=1, steps=30)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 3
    for run in done:
        assert_same_run(run, done[0])


def test_a_run_whose_place_another_took_is_refused_and_leaves_it(tmp_path):
    path = tmp_path / "checkpoint.npz"

    class Taken(Own):
        def loss_and_gradient(self, parameters, step, seed):
            if step == 2:
                path.unlink()
                simple(path, seed=7)
                taken.append(path.read_bytes())
            return super().loss_and_gradient(parameters, step, seed)

    taken = []
    with pytest.raises(ValueError, match="is of another run"):
        simple(path, problem=Taken([1.0, 2.0]), checkpoint_every=1)
    assert path.read_bytes() == taken[-1]


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe"])
def test_a_place_that_cannot_be_written_is_refused_before_training(kind, tmp_path):
    path = tmp_path / "place" / "checkpoint.npz"
    if kind == "folder":
        path.mkdir(parents=True)
    elif kind == "pipe":
        path.parent.mkdir()
        os.mkfifo(path)
    watched = Interrupted(Quadratic(3, 10.0))
    with pytest.raises(ValueError, match="cannot write"):
        simple(path, problem=watched)
    assert set(watched.steps) <= {1}


def test_an_exact_run_that_diverges_is_saved_and_goes_on_to_the_same_bits(tmp_path):
    path = tmp_path / "checkpoint.npz"
    options = {
        "problem": Rosenbrock(2),
        "optimizer": SGD(0.0),
        "strategies": ["exact", "plain"],
        "schedule": Schedule(1.0, 0, 1.0),
        "clip": None,
        "record_every": 100,
    }
    expected = simple(None, steps=13, **options)
    with pytest.raises(KeyboardInterrupt):
        simple(path, steps=13, **{**options, "problem": Interrupted(options["problem"], 12)})
    # A number of so many digits is one that Python does not write out.
    assert max(len(str(text)) for text in np.load(path)["exact|parameter0"]) > 100
    assert_same_run(simple(path, steps=13, **options), expected)


def test_ctrl_c_saves_and_names_the_command_that_goes_on(tmp_path):
    path, steps = tmp_path / "a place.npz", []
    arguments = [
        *("--problem", "rosenbrock", "--strategy", "plain", "--strategy", "exact", "--steps", "1000000"),
        *("--seed", "3", "--low", "e4m3fn", "--checkpoint", str(path), "--checkpoint-every", "1000000"),
    ]
    for _ in range(2):
        ended = subprocess.Popen(
            [sys.executable, "-m", "mcfsim", "simulate", *arguments], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(3.0)
        ended.send_signal(signal.SIGINT)
        try:
            _, err = ended.communicate(timeout=60)
        finally:
            ended.kill()  # leaves nothing behind where it went on
        assert ended.returncode == 130, err
        before, _, command = err.splitlines()[-1].partition(" To go on: ")
        assert before == f"Ended; what is finished is in {path}."
        program, name, *words = shlex.split(command)
        assert (program, name, words) == ("mcfsim", "simulate", arguments)
        steps.append(json.loads(str(np.load(path)["about"]))["step"])
    assert 0 < steps[0] < steps[1]


def test_ctrl_c_without_a_checkpoint(tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["mcfsim.training.simulate"], "simulate", interrupt)
    result = CliRunner().invoke(app, ["simulate", "--problem", "rosenbrock"])
    assert result.exit_code == 130
    assert result.stderr == "\nEnded; nothing is kept, for want of --checkpoint FILE.\n"
