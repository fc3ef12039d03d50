"""A run that was interrupted and goes on from its checkpoint is the run that was not, to the last bit."""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from mcfsim import SGD, STRATEGIES, AdamW, Run, Schedule, Strategy, simulate
from mcfsim.optim.declaration import Declaration, optimizers
from mcfsim.optim.state import State, Step, move
from mcfsim.optim.strategies import GRID_STRATEGIES, LOW, Stored
from mcfsim.training.problems import LogisticRegression, Quadratic, Rosenbrock
from mcfsim.training.trainer import Trainer
from tests.cli.runner import call, invoke
from tests.optim.on_grid_reference import placed
from tests.training.problems import Folded, Made, Watched, assert_same_run, tiny_model

pytestmark = pytest.mark.slow

STEPS = 8
QUADRATIC = Quadratic(6, 100.0)
SOME = ["plain", "kahan", "collage-plus", "stochastic", "split-master"]
THREE = Strategy("three", parameter=Stored(LOW, 3), m=Stored(LOW, 2), v=Stored(LOW, 2), addition="grow")
FIXED = replace(placed("dqt-int4", reach="fixed", start="absmax"), name="fixed")
STAGED = ["plain", "collage-plus", "fp8-moments", "exact"]
JUDGED = {"truth_sample": 2}
#: Problem, hyperparameters, strategies, and what else a run is made with.
CASES = {
    "every strategy": (QUADRATIC, AdamW(0.9, 0.95), [*STRATEGIES], {}),
    "every strategy on a grid": (QUADRATIC, AdamW(), [*GRID_STRATEGIES, FIXED], {}),
    **{f"{x} in stages": (Folded, kind(), STAGED, JUDGED) for x, kind in optimizers().items() if kind.staged},
    **{f"{name}": (QUADRATIC, kind(), SOME[:3], {}) for name, kind in optimizers().items()},
    "several tensors and momentum": (LogisticRegression, SGD(0.9, 0.1), SOME, {"truth_sample": 3}),
    "language model": (tiny_model, AdamW(), SOME[:3], {"truth_sample": 3}),
    "moments of two formats": (QUADRATIC, AdamW(), [Strategy("mixed", v=Stored("float8_e5m2"))], {}),
    "one component": (QUADRATIC, AdamW(0.9, 0.5, 1.0), ["plain", "fp32-optim"], JUDGED),
    "three components": (QUADRATIC, AdamW(), [THREE, "exact"], JUDGED),
    "stochastic": (QUADRATIC, AdamW(), SOME[:3], {"rounding": "stochastic", "record_every": 1}),
    "posits": (QUADRATIC, AdamW(0.9, 0.5, 1.0), ["plain", "fp32-optim"], {"low": "posit8"}),
    "integers": (QUADRATIC, AdamW(0.9, 0.5, 1.0), ["plain"], {"low": "int8", "scalars": "rounded"}),
}


def train(problem, hyper, strategies, options=None, **more):
    kept = {"record_every": 4, "checkpoint_every": 3, **(options or {}), **more}
    return simulate(problem, hyper, strategies, STEPS, Schedule(0.02, 3), 6, **kept)


@pytest.mark.filterwarnings("ignore::mcfsim.optim.strategy.VanishingScalarWarning")
@pytest.mark.parametrize("at", [2, 5, STEPS])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.sampled(144, each=False)
def test_resumed_is_uninterrupted(error, case, at, tmp_path):
    """From where it was interrupted, or from the last checkpoint before an error."""
    make, *rest = CASES[case]
    problem = make() if callable(make) else make
    path = tmp_path / "checkpoint.npz"
    whole, resumed = Watched(problem), Watched(problem)
    expected = train(whole, *rest)
    # In the middle of a step, when some of the strategies have made it already.
    with pytest.raises(error):
        train(Watched(problem, at, len(rest[1]) // 2, error), *rest, checkpoint=path)
    run = train(resumed, *rest, checkpoint=path)
    again = at if error is KeyboardInterrupt else (at - 1) // 3 * 3 + 1
    assert resumed.steps[:2] == [1, again]  # the problem's fingerprint, and not from the beginning
    assert repr(resumed.finals) == repr(whole.finals)  # of NaN, too
    assert_same_run(run, expected)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]
    run.save(tmp_path / "run.npz")
    assert_same_run(Run.load(tmp_path / "run.npz"), expected)


def test_checkpoints_change_nothing_and_a_finished_run_is_not_made_again(tmp_path):
    plainly, first, again = (Watched(QUADRATIC) for _ in range(3))
    names = [*SOME, "exact", "exact,exact@4"]  # of which the second has a distance from the first
    expected = train(plainly, AdamW(), names)
    for watched in (first, again):
        run = train(watched, AdamW(), names, checkpoint=tmp_path / "run.npz", checkpoint_every=5)
        assert watched.finals == plainly.finals
        assert_same_run(run, expected)
    assert first.steps == [1, *plainly.steps]
    assert again.steps == [1]


def test_an_exact_run_that_diverges_is_saved_and_goes_on_to_the_same_bits(tmp_path):
    path, options = tmp_path / "checkpoint.npz", {"clip": None, "record_every": 100}
    steep = SGD(0.0), ["exact", "plain"], 13, Schedule(1.0, 0, 1.0)
    expected = simulate(Rosenbrock(2), *steep, **options)
    with pytest.raises(KeyboardInterrupt):
        simulate(Watched(Rosenbrock(2), 12), *steep, **options, checkpoint=path)
    # A number of so many digits is one that Python does not write out.
    assert max(len(str(text)) for text in np.load(path)["exact|parameter0"]) > 100
    assert_same_run(simulate(Rosenbrock(2), *steep, **options, checkpoint=path), expected)


# -- of another run ---------------------------------------------------------------------------------------
def simple(path, **options):
    arguments = {"problem": Quadratic(3, 10.0), "strategies": ["plain"], "steps": 2, "seed": 1}
    return simulate(**{**arguments, **options}, checkpoint=path)


def own(*data, held_out=0.0, start=0.0):
    """Return a least-squares problem of one's own, whose settings do not name its data."""
    data = np.array(data)

    def loss(x, step):
        return float((x - data) @ (x - data)) / 2 if step else float(x.sum()) + held_out

    return Made(lambda x, step: x - data, loss, np.full(data.size, start))


class Own(Schedule):
    """A schedule of one's own, with the fields of the usual one."""

    def rate(self, step, steps):
        return self.peak / step


DATA = "what the problem, or a custom optimizer, computes at the start differs"
OTHER_SETTINGS = [
    *(({"seed": 2}, "seed"), ({"steps": 5}, "steps"), ({"record_every": 3}, "record_every")),
    *(({"optimizer": "sgd"}, "optimizer"), ({"optimizer": AdamW(weight_decay=0.2)}, "optimizer")),
    *(({"low": "tf32"}, "low, strategies"), ({"strategies": ["plain", "kahan"]}, "strategies")),
    *(({"problem": Quadratic(3, 11.0)}, "problem"), ({"schedule": Schedule(1e-3)}, "schedule")),
    *(({"schedule": item}, "schedule") for item in (Own(), [3e-4, 3e-4])),
    *(({"clip": None, "rounding": "up"}, "clip, rounding"), ({"scalars": "rounded"}, "scalars")),
    ({"truth_sample": 3, "precision": 500}, "precision, truth_sample"),
]
ALTERED = Quadratic(3, 10.0)
ALTERED.minimiser = ALTERED.minimiser + 1
OTHER_DATA = [
    *(own(1.0, 2.0, 3.5), own(1.0, 2.0, np.nextafter(3.0, 4.0)), own(1.0, 2.0)),
    *(own(1.0, 2.0, 3.0, held_out=1.0), own(1.0, 2.0, 3.0, start=0.5)),
]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        *(({}, options, f"settings differ in {named}") for options, named in OTHER_SETTINGS),
        ({}, {"problem": ALTERED}, DATA),
        *(({"problem": own(1.0, 2.0, 3.0)}, {"problem": other}, DATA) for other in OTHER_DATA),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, first, then, message):
    path = tmp_path / "checkpoint.npz"
    simple(path, **first)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"is of another run: {message}; remove it or choose another path"):
        simple(path, **{**first, **then})
    assert path.read_bytes() == before


def descent(factor):
    """Return an optimizer of one's own, whose step has a number that no setting names."""

    @dataclass(frozen=True)
    class Descent(Declaration):
        slots = ()

        def scalars(self, roles, strategy, step, rate, *, decayed):
            return {"rate": rate}

        def rounded_hyperparameters(self):
            return {}

        def step(self, roles, strategy, state, gradient, scalars):
            update = roles.update.mul(roles.update.round(gradient), -factor * scalars["rate"])
            parameter, extra = move(roles, strategy, state, update)
            return Step(State(parameter, (), (), extra), update)

    return Descent()


@pytest.mark.parametrize("strategies", [["plain"], ["kahan", "exact"], ["exact"]])
def test_the_checkpoint_of_another_step_of_an_own_optimizer_is_refused(tmp_path, strategies):
    path = tmp_path / "checkpoint.npz"
    given = {"strategies": strategies, "schedule": Schedule(0.1, 1)}
    run = simple(path, optimizer=descent(1.0), **given)
    assert_same_run(simple(path, optimizer=descent(1.0), **given), run)
    if strategies == ["exact"]:  # its step is not tried: mpmath's numbers differ by precision alone
        return
    with pytest.raises(ValueError, match=rf"is of another run: {DATA}"):
        simple(path, optimizer=descent(1.5), **given)


def test_the_checkpoint_of_other_versions_is_refused(tmp_path, monkeypatch):
    path, module = tmp_path / "checkpoint.npz", sys.modules["mcfsim.training.simulate"]
    simple(path)
    versions = module.versions() | {"numpy": "1.0", "mpmath": "0.1"}
    others = ("versions", versions, "mpmath, numpy"), ("blas", "openblas 0.3.31 Nehalem", "blas")
    for name, other, differing in others:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda other=other: other)
            with pytest.raises(ValueError, match=f"versions differ in {differing}; remove it"):
                simple(path)


def test_a_run_is_no_checkpoint_and_is_not_overwritten_nor_the_other_way_round(tmp_path):
    path = tmp_path / "run.npz"
    simulate(Quadratic(3, 10.0), strategies=["plain"], steps=1).save(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run\.npz is no checkpoint of a simulation"):
        simple(path)
    assert path.read_bytes() == before
    checkpoint = tmp_path / "checkpoint.npz"
    with pytest.raises(FileNotFoundError):
        Run.load(checkpoint)
    simple(checkpoint)
    with pytest.raises(ValueError, match="holds 'mcfsim-checkpoint-2', not 'mcfsim-run-2'"):
        Run.load(checkpoint)


# -- runs on one place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.sampled(3, each=False)
def test_of_different_runs_on_one_new_checkpoint_one_alone_goes_on(attempt, tmp_path):
    path, barrier = tmp_path / "checkpoint.npz", threading.Barrier(4)

    def waiting(x, step):
        """Wait for all, so that runs go side by side."""
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)
        return x - 1.0

    def run(seed, gradient=waiting):
        return simple(path, problem=Made(gradient), seed=seed, checkpoint_every=1)

    with ThreadPoolExecutor(4) as pool:
        ended = [pool.submit(run, seed) for seed in range(4)]
    refused = [str(item.exception()) for item in ended if item.exception()]
    assert len(refused) == 3
    assert all("is of another run: settings differ in seed" in text for text in refused)
    ((seed, kept),) = ((seed, item.result()) for seed, item in enumerate(ended) if not item.exception())
    assert_same_run(run(seed, lambda x, step: x - 1.0), kept)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_a_run_whose_place_another_took_is_refused_and_leaves_it(tmp_path):
    path, taken = tmp_path / "checkpoint.npz", []

    def take(x, step):
        if step == 2:
            path.unlink()
            simple(path, seed=7)
            taken.append(path.read_bytes())
        return x - 1.0

    with pytest.raises(ValueError, match="is of another run"):
        simple(path, problem=Made(take), checkpoint_every=1)
    assert path.read_bytes() == taken[-1]


# -- Ctrl-C -----------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("default::mcfsim.VanishingScalarWarning")
@pytest.mark.costly("a process of its own")
def test_ctrl_c_saves_and_names_the_command_that_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "a place.npz"
    arguments = [
        *("--problem", "rosenbrock", "--strategy", "plain", "--strategy", "exact", "--steps", "1000000"),
        *("--seed", "3", "--low", "e4m3fn", "--checkpoint", str(path), "--checkpoint-every", "1000000"),
    ]

    def saved_after(status, err):
        """Return the last step that was saved, if the message is right."""
        assert status == 130, err
        before, _, command = err.splitlines()[-1].partition(" To go on: ")
        assert before == f"Ended; what is finished is in {path}."
        assert shlex.split(command) == ["mcfsim", "simulate", *arguments]
        return json.loads(str(np.load(path)["about"]))["step"]

    def stopped_after(seconds):
        """Return the last step saved by a process that is interrupted so long after it has begun."""
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "mcfsim", "simulate", *arguments]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 60
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            try:
                _, err = process.communicate(timeout=60)
            finally:
                process.kill()  # leaves nothing behind where it went on
        return saved_after(process.returncode, err)

    make = Trainer.step
    step = next((found for seconds in (0.3, 2, 10) if (found := stopped_after(seconds))), 0)  # under load
    assert step > 0

    def interrupted(self, t, setup):
        if t == step + 3:
            raise KeyboardInterrupt
        make(self, t, setup)

    monkeypatch.setattr(Trainer, "step", interrupted)
    monkeypatch.setattr(sys, "argv", ["mcfsim", "simulate", *arguments])
    result = invoke("simulate", *arguments)
    assert saved_after(result.exit_code, result.stderr) == step + 2


def test_ctrl_c_without_a_checkpoint(monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["mcfsim.training.simulate"], "simulate", interrupt)
    result = call("simulate", "--problem", "rosenbrock", status=130)
    assert result.stderr == "\nEnded; nothing is kept, for want of --checkpoint FILE.\n"
