"""What is known of updates: of states and gradients that were kept; samples of weights as they are read."""

import math
import os
from dataclasses import replace
from operator import mul

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.audit import audit
from mcfsim.models.known import RecordedUpdates, SavedState, updates_of
from mcfsim.models.plan import NoiseModel, Plan, Steady
from mcfsim.models.samples import TensorSample, places_of, read_sample, scan
from mcfsim.models.weights import open_weights
from mcfsim.report.audits import update_model
from mcfsim.storage.tensors import FileOfTensorsError
from tests.models.files import adam, checkpoint, raw_safetensors
from tests.models.pages import BFLOAT16, plan

PLAN = Plan(mcf.AdamW(), mcf.Schedule(), 100, (mcf.strategy("plain"),))


@pytest.fixture
def samples(tmp_path):
    checkpoint(tmp_path / "m.safetensors")
    return scan(open_weights(tmp_path / "m.safetensors"), 256)


# -- states that were saved ----------------------------------------------------------------------------------
def saved(tmp_path, **changes):
    """Write a state of the small model, with changes; return it, and the moments."""
    rng, made = np.random.default_rng(3), {}
    for name, shape in {"matrix": (32, 24), "bias": (24,), "gain": (24,)}.items():
        made[f"{name}.exp_avg"] = rng.standard_normal(shape).astype(np.float32)
        made[f"{name}.exp_avg_sq"] = rng.random(shape).astype(np.float32)
    made |= {"step": np.array([7])} | changes
    kept = {name: x for name, x in made.items() if x is not None}
    raw_safetensors(tmp_path / "s.safetensors", kept)
    return tmp_path / "s.safetensors", made


@pytest.mark.parametrize("epsilon", [1e-3, 0.0])
def test_saved_moments_give_the_directions_of_their_weights(tmp_path, samples, epsilon):
    path, made = saved(tmp_path, **{"bias.exp_avg_sq": np.zeros(24, np.float32)})
    hyper = mcf.AdamW(beta1=0.8, beta2=0.9, epsilon=epsilon)
    rows = SavedState(path).directions(samples, replace(PLAN, hyper=hyper)).at(1)
    for row, sample in zip(rows, samples, strict=True):
        m, v = (made[f"{sample.name}.{kind}"].astype(float).ravel() for kind in ("exp_avg", "exp_avg_sq"))
        with np.errstate(divide="ignore"):
            expected = np.nan_to_num((m / (1 - 0.8**7)) / (np.sqrt(v / (1 - 0.9**7)) + epsilon))
        assert row.tolist() == expected[places_of(sample.size, 256)].tolist()


def test_states_that_do_not_fit_are_refused(tmp_path, samples):
    for name, x, text in (
        ("matrix.exp_avg", None, r"has no tensor 'matrix\.exp_avg'"),
        ("gain.exp_avg_sq", None, r"has no tensor 'gain\.exp_avg_sq'"),
        ("bias.exp_avg", np.zeros(7, np.float32), r"'bias\.exp_avg' has shape \(7,\)"),
        ("bias.exp_avg", np.zeros(24, np.int64), "no floating numbers"),
        ("gain.exp_avg", np.full(24, np.nan, np.float32), r"gain\.exp_avg: 24 NaN, 0 infinite"),
        ("gain.exp_avg_sq", np.full(24, -1, np.float32), "negative second moment"),
        ("step", None, "how many steps"),
        *(("step", x, "at least one") for x in (np.array([0]), np.float32([np.nan]))),
    ):
        path, _ = saved(tmp_path, **{name: x})
        with pytest.raises(FileOfTensorsError, match=text):
            SavedState(path).directions(samples, PLAN).at(1)


def test_one_thing_is_known_of_updates(tmp_path):
    assert updates_of() == NoiseModel()
    for given, text in (
        *(((wrong,), "update_rms") for wrong in (0.0, -1.0, math.inf)),
        ((0.2, tmp_path), "give one of them"),
        ((None, tmp_path, tmp_path), "not from a state and gradients"),
    ):
        with pytest.raises(ValueError, match=text):
            updates_of(*given)


# -- gradients that were recorded ----------------------------------------------------------------------------
@pytest.fixture
def recorded(samples, tmp_path):
    rng, folder = np.random.default_rng(5), tmp_path / "recording"
    recorder = mcf.record(checkpoint(tmp_path / "m.safetensors"), folder)
    steps = [{x.name: np.float32(rng.standard_normal(x.shape)) for x in samples} for _ in range(7)]
    for gradients in steps:
        recorder.step(gradients, 0.5)
    return folder, steps


@pytest.mark.parametrize("steps", [4, 7, 12])
def test_recorded_gradients_are_followed_step_by_step(samples, recorded, steps):
    path, gradients = recorded
    hyper, schedule = mcf.AdamW(beta1=0.8, beta2=0.9, epsilon=1e-3), mcf.Schedule(0.1, warmup=3, final=0.2)
    found = RecordedUpdates(path).directions(
        samples, replace(PLAN, hyper=hyper, schedule=schedule, steps=steps)
    )
    rates, last = schedule.rates(steps), min(steps, 7)
    for row, sample in enumerate(samples):
        for column in (0, 100, 255):
            place = places_of(sample.size, 256)[column]
            made = [*adam([float(g[sample.name].ravel()[place]) for g in gradients[:steps]], hyper)]
            for step in range(1, steps + 1):
                expected = made[min(step, last) - 1]
                assert found.at(step)[row, column] == pytest.approx(expected, rel=1e-12, abs=1e-14)
            for first, after in ((1, 1), (1, last), (2, last), (1, last + 1), (3, last + 1)):
                part = slice(first - 1, after - 1)
                straight, square = found.walk(first, rates[part])
                expected = sum(map(mul, rates[part], made[part]))
                assert straight[row, column] == pytest.approx(expected, rel=1e-10, abs=1e-14)
                assert square[row] == 0
    if steps > 7:
        straight, square = found.walk(7, rates[6:])
        beyond, wandered = Steady(found.at(7), hyper.beta1).walk(8, rates[7:])
        assert straight == pytest.approx(rates[6] * found.at(7) + beyond)
        assert square.tolist() == wandered.tolist()
        assert (square > 0).all()


def test_an_audit_uses_what_was_recorded_of_the_same_model(samples, recorded, tmp_path):
    found, other = (
        audit(samples, plan(("plain",), "bfloat16", (3e-4, 0, 1.0), 7, updates=updates), BFLOAT16)
        for updates in (RecordedUpdates(recorded[0]), NoiseModel())
    )
    assert "gradients recorded in recording" in update_model(found)
    assert found.tensors[0].found["plain"] != other.tensors[0].found["plain"]
    # The first directions of Adam are signs.
    assert found.tensors[0].direction_rms == pytest.approx(1.0, abs=1e-6)
    ones = {"matrix": np.ones((3, 3), np.float32)}
    mcf.record(ones, tmp_path / "other").step(ones)
    with pytest.raises(FileOfTensorsError, match="lacks the tensor 'bias'"):
        RecordedUpdates(tmp_path / "other").directions(samples, PLAN)


# -- what torch saves: see tests/pytorch/test_saved_states.py ------------------------------------------------
@pytest.mark.slow
def test_a_state_of_torch_that_is_more_than_tensors_is_refused_and_not_executed(samples, tmp_path):
    torch, path = pytest.importorskip("torch"), tmp_path / "evil.pt"
    for made, text in (
        ({"state": {0: TensorSample}, "f": print}, "tensors alone"),
        ({"state": {"matrix": {}}}, "no state of tensor 'bias'|no state of tensor 'gain'"),
        ({"state": {0: {}, 1: {}, 2: {}}}, "numbers its parameters"),
        (b"no file of torch's", "tensors alone"),
    ):
        path.write_bytes(made) if isinstance(made, bytes) else torch.save(made, path)
        with pytest.raises(FileOfTensorsError, match=text):
            SavedState(path).directions(samples, PLAN).at(1)


# -- reading that is interrupted -----------------------------------------------------------------------------
def test_a_reading_goes_on_where_it_ended(tmp_path, monkeypatch):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    checkpoint(path)
    weights = open_weights(path)
    whole, read, told = scan(weights, 64), [], []

    def noted(weight, *rest):
        read.append(weight.name)
        if read == ["matrix", "bias"]:
            raise KeyboardInterrupt
        return read_sample(weight, *rest)

    monkeypatch.setattr("mcfsim.models.samples.read_sample", noted)
    with pytest.raises(KeyboardInterrupt):
        scan(weights, 64, kept)
    found = scan(weights, 64, kept, lambda *what: told.append(what))
    assert (read, told[0]) == (["matrix", "bias", "bias", "gain"], ("matrix", 768, True))
    np.testing.assert_equal([vars(sample) for sample in found], [vars(sample) for sample in whole])


def test_what_was_kept_of_other_weights_is_refused(tmp_path):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    checkpoint(path)
    scan(open_weights(path), 64, kept)
    before = kept.read_bytes()
    for seed, count, content, text in (
        (0, 65, before, "samples differ"),
        (1, 64, before, "files differ"),
        (0, 64, b"x", r"kept\.npz"),
    ):
        checkpoint(path, seed=seed)
        kept.write_bytes(content)
        with pytest.raises(ValueError, match=text):
            scan(open_weights(path), count, kept)
        assert kept.read_bytes() == content


@pytest.mark.parametrize("same", [True, False])
def test_what_another_reading_kept_meanwhile_is_not_lost(same, tmp_path, monkeypatch):
    """Of the same weights it is joined; of others it stays, and this reading is refused."""
    path, other, kept = tmp_path / "m.safetensors", tmp_path / "o.safetensors", tmp_path / "kept.npz"
    checkpoint(path)
    checkpoint(other, seed=1)

    def between(weight, *rest):
        if weight.name == "matrix":
            return read_sample(weight, *rest)
        monkeypatch.undo()
        scan(open_weights(path if same else other), 64, kept)
        raise KeyboardInterrupt

    monkeypatch.setattr("mcfsim.models.samples.read_sample", between)
    with pytest.raises(KeyboardInterrupt if same else ValueError, match=None if same else "files differ"):
        scan(open_weights(path), 64, kept)
    told = []
    scan(open_weights(path if same else other), 64, kept, lambda *what: told.append(what))
    assert [earlier for _, _, earlier in told] == [True] * 3


def test_what_was_kept_of_files_that_others_wrote_meanwhile_is_refused(tmp_path):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    checkpoint(path)

    def told(name, elements, earlier):
        checkpoint(path, seed=1)
        os.utime(path, ns=(0, 0))

    scan(open_weights(path), 64, kept, told)
    with pytest.raises(ValueError, match="files differ"):
        scan(open_weights(path), 64, kept)


def test_numbers_that_are_not_finite_are_named_after_all_is_read(tmp_path):
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    raw_safetensors(tmp_path / "m.safetensors", {"x": x, "y": np.ones(2, np.float32), "z": x[:2]})
    for _ in range(2):
        with pytest.raises(FileOfTensorsError, match=r"x: 1 NaN, 2 infinite; z: 1 NaN, 0 infinite$"):
            scan(open_weights(tmp_path / "m.safetensors"), 16, tmp_path / "kept.npz")
