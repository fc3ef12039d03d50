"""Replays: the steps and measures of the run that was recorded, on whatever gradients there are."""

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.recording import TensorFile
from mcfsim.training.problems import LogisticRegression
from tests.models.files import SHAPES, gradients, rate, recorded, weights
from tests.shared.kinds import STORED
from tests.training.problems import tiny_model

pytestmark = pytest.mark.slow

STEPS = 5


CASES = [("logistic", name, ("nearest_even", "stochastic")[i % 2]) for i, name in enumerate(STORED)]
CASES += [("language model", "kahan", "nearest_even"), ("language model", "fp32", "stochastic")]


@pytest.mark.parametrize(("kind", "strategy", "rounding"), CASES)
@pytest.mark.sampled(8, each=False)
def test_a_run_that_is_recorded_is_replayed_with_all_its_measures(
    kind, strategy, rounding, tmp_path, monkeypatch
):
    """A strategy that replays the gradients of its own run makes that run again, bit for bit."""
    problem = LogisticRegression() if kind == "logistic" else tiny_model()
    schedule, hyper = mcf.Schedule(0.02, 3), mcf.AdamW(beta2=0.9)
    recorder = mcf.record(problem.initial_parameters(3), tmp_path / "r")
    gradient = type(problem).loss_and_gradient

    def recorded(self, parameters, step, seed):
        loss, found = gradient(self, parameters, step, seed)
        recorder.step(found, schedule.rate(step, 5))
        return loss, found

    monkeypatch.setattr(type(problem), "loss_and_gradient", recorded)
    common = {"seed": 3, "rounding": rounding, "record_every": 2, "truth_sample": 3, "clip": 1.0}
    run = mcf.simulate(problem, hyper, [strategy], 5, schedule, **common)
    again = mcf.replay(tmp_path / "r", hyper, [strategy], decayed=problem.decayed, **common)
    series = {name: x for name, x in run.series[strategy].items() if name != "loss"}
    assert list(again.series[strategy]) == list(series)
    for measure, numbers in series.items():
        np.testing.assert_array_equal(again.series[strategy][measure], numbers, err_msg=measure)
    np.testing.assert_array_equal(again.steps, run.steps)
    expected = {name: x for name, x in run.results[strategy].items() if name != "validation_loss"}
    assert again.results[strategy] == expected
    again.save(tmp_path / "run.npz")
    assert mcf.Run.load(tmp_path / "run.npz") == again


def plainly(folder, **options):
    return mcf.replay(folder, strategies="plain", **options)


def test_the_checkpoint_of_another_recording_is_refused(tmp_path):
    kept = tmp_path / "kept.npz"
    plainly(recorded(tmp_path / "r"), checkpoint=kept)
    before = kept.read_bytes()
    recorder = mcf.record(weights(), tmp_path / "other")
    for step in range(1, STEPS + 1):
        given = gradients(step)
        if step == STEPS:
            given["bias"] = np.nextafter(given["bias"], np.float32(1))
        recorder.step(given, rate(step))
    for folder, options, differing in (
        ("other", {}, "recording"),
        ("r", {"decayed": []}, "recording"),
        ("r", {"schedule": mcf.Schedule()}, "schedule"),
        ("r", {"steps": 4}, "recording, schedule, steps"),
    ):
        with pytest.raises(ValueError, match=f"is of another run: settings differ in {differing}; remove it"):
            plainly(tmp_path / folder, checkpoint=kept, **options)
    plainly((tmp_path / "r").rename(tmp_path / "moved"), checkpoint=kept)
    assert kept.read_bytes() == before


def test_rates_are_those_recorded_or_of_a_schedule(tmp_path):
    recorded(tmp_path / "r")
    run, schedule = plainly(tmp_path / "r", record_every=1), mcf.Schedule(0.5, 2)
    assert run.series["plain"]["rate"].tolist() == [rate(step) for step in range(1, STEPS + 1)]
    run = plainly(tmp_path / "r", schedule=schedule, record_every=1, steps=4)
    assert run.series["plain"]["rate"].tolist() == [schedule.rate(step, 4) for step in range(1, 5)]
    mcf.record(weights(), tmp_path / "none").step(gradients(1))
    with pytest.raises(ValueError, match="has no learning rate, so a schedule must be given"):
        plainly(tmp_path / "none")
    assert plainly(tmp_path / "none", schedule=schedule).settings["steps"] == 1


def test_matrices_decay_unless_others_are_named(tmp_path):
    by_default = plainly(recorded(tmp_path), decayed=None)
    assert by_default.settings["recording"]["decayed"] == ["matrix"]
    assert plainly(tmp_path, decayed={"matrix"}) == by_default != plainly(tmp_path, decayed=SHAPES)
    with pytest.raises(ValueError, match="decayed has 'x', and the tensors are bias, matrix, scale"):
        plainly(tmp_path, decayed=["bias", "x"])
    with pytest.raises(TypeError, match="decayed must be a collection of names, not 'bias'"):
        plainly(tmp_path, decayed="bias")


def test_the_loop_is_open_and_each_file_is_read_once(tmp_path, monkeypatch):
    """Gradients are the recorded ones wherever the weights have gone, whatever the number of strategies."""
    recorded(tmp_path / "r")
    np.savez(tmp_path / "far.npz", **{name: x + 100 for name, x in weights().items()})
    read, names = TensorFile.read, []
    monkeypatch.setattr(TensorFile, "read", lambda self: (names.append(self.path.name), read(self))[1])
    options = {"strategies": ["plain", "kahan", "fp32"], "record_every": 1}
    near = mcf.replay(tmp_path / "r", **options)
    steps = [f"step-0000000{step}.safetensors" for step in range(1, STEPS + 1)]
    assert names == ["weights.safetensors", *steps]
    far = mcf.replay(tmp_path / "r", weights=tmp_path / "far.npz", **options)
    norms = [run.series[name]["gradient_norm"] for run in (near, far) for name in ("plain", "fp32")]
    assert len({norm.tobytes() for norm in norms}) == 1
    assert far.series["plain"]["lost"][0] > near.series["plain"]["lost"][0]


def test_a_bar_says_how_fast_and_changes_nothing(tmp_path, capsys):
    expected = plainly(recorded(tmp_path))
    assert capsys.readouterr().err == ""
    assert plainly(tmp_path, progress=True) == expected
    shown = capsys.readouterr().err
    assert all(text in shown for text in ("replaying", "5/5", "steps/s")), shown
