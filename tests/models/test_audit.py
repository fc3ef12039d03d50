"""Audits: what they say of tensors whose fate is known, and of states that are given."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.auditing import EDGES, audit
from mcfsim.models.directions import Steady
from mcfsim.models.known import updates_of
from mcfsim.models.plan import Plan
from mcfsim.models.recorded_updates import RecordedUpdates
from mcfsim.models.samples import Sample, places_of, read_sample
from mcfsim.models.saved_state import SavedState
from mcfsim.models.scan import scan
from mcfsim.models.updates import Model
from mcfsim.models.weights import open_weights
from mcfsim.report.audits import as_json, strategy_table, tensor_table, update_model
from mcfsim.storage.tensors import FileOfTensorsError
from tests.models.files import checkpoint, raw_safetensors

pytestmark = pytest.mark.slow

NAMES = ("plain", "kahan", "collage-light", "collage-plus", "fp32-optim", "fp32-master", "fp32")
BFLOAT16 = mcf.get_format("bfloat16")
RUN = mcf.Schedule(), 100


def plan(strategies=NAMES, *, rate=3e-4, steps=10, updates=None, beta2=0.95, **rest):
    return Plan(
        hyper=mcf.AdamW(beta2=beta2, weight_decay=rest.pop("decay", 0.1)),
        schedule=mcf.Schedule(rate, warmup=0, final=1.0),
        steps=steps,
        strategies=tuple(mcf.strategy(name, "bfloat16") for name in strategies),
        updates=updates or Model(),
        **rest,
    )


@pytest.fixture
def samples(tmp_path):
    checkpoint(tmp_path / "m.safetensors")
    return scan(open_weights(tmp_path / "m.safetensors"), 256)


# -- known freezes, from files -------------------------------------------------------------------------------
@pytest.mark.parametrize(("rate", "stops"), [(2.0**-9 * 0.999, 1), (2.0**-8 * 1.02, None)])
def test_a_gain_in_a_file_stops_below_two_to_the_minus_nine(tmp_path, rate, stops):
    """With updates as long as the rate itself, down from 1 to where half an ulp is 2^-9, up 2^-8."""
    raw_safetensors(tmp_path / "m.safetensors", {"gain": ("F32", np.ones(64, np.float32))})
    signs = np.where(np.arange(64) % 2, 1.0, -1.0).astype(np.float32)
    state = {
        "gain.exp_avg": ("F32", signs * np.float32(1 - 0.9**10)),
        "gain.exp_avg_sq": ("F32", np.full(64, 1 - 0.95**10, np.float32)),
        "step": ("F32", np.float32([10])),
    }
    raw_safetensors(tmp_path / "s.safetensors", state)
    kept = scan(open_weights(tmp_path / "m.safetensors"), 64)
    found = audit(kept, plan(rate=rate, updates=SavedState(tmp_path / "s.safetensors")), BFLOAT16)
    (gain,) = found.tensors
    assert gain.direction_rms == pytest.approx(1.0, abs=1e-6)
    assert gain.found["plain"].stops == stops
    assert gain.found["plain"].lost == (stops is not None)
    assert gain.found["fp32-optim"].stops == stops
    assert gain.found["collage-light"].edq > 0.99
    assert gain.found["fp32-master"].lost == 0


@pytest.mark.parametrize(("product", "idle"), [(2.0**-9 * 0.99, 1.0), (2.0**-8 * 1.01, 0.0)])
def test_decay_in_a_file_does_nothing_below_two_to_the_minus_nine(samples, product, idle):
    found = audit(samples, plan(rate=1e-2, decay=product / 1e-2), BFLOAT16)
    matrix, bias, gain = found.tensors
    assert matrix.found["plain"].idle == idle
    assert matrix.found["collage-plus"].idle == 0
    assert matrix.found["fp32-master"].idle == 0
    assert bias.found["plain"].idle is None is gain.found["plain"].idle
    assert (matrix.decayed, bias.decayed, gain.decayed) == (True, False, False)


@pytest.mark.parametrize(
    ("beta2", "frozen", "chosen"),
    [(0.999, 1.0, "collage-plus"), (0.95, 0.0, "kahan"), (0.998, 0.9453125, "collage-plus")],
)
def test_the_recommendation_is_the_cheapest_that_suffices(samples, beta2, frozen, chosen):
    found = audit(samples, plan(beta2=beta2), BFLOAT16)
    totals = {item.strategy.name: item for item in found.totals()}
    assert next(iter(totals)) == "plain"
    assert totals["plain"].frozen == frozen
    assert totals["plain"].worst == "gain"
    assert not totals["plain"].sufficient
    assert not totals["fp32-optim"].sufficient
    best, why = found.recommended()
    assert best is not None
    assert best.strategy.name == chosen
    assert "plain does not do: EDQ of gain is 0.000" in why
    cheaper = [item for item in totals.values() if item.bytes < best.bytes]
    assert not any(item.sufficient for item in cheaper)
    assert best.bytes == found.size * best.strategy.bytes_per_parameter


def test_no_strategy_may_suffice(samples):
    found = audit(samples, plan(["plain", "fp32-optim"]), BFLOAT16)
    best, why = found.recommended()
    assert best is None
    assert "plain does not do" in why
    assert "fp32-optim does not do" in why
    assert as_json(found, {})["recommended"] is None


def test_where_nothing_is_asked_nothing_is_said(tmp_path):
    raw_safetensors(tmp_path / "m.safetensors", {"x": ("F32", np.zeros((3, 4), np.float32))})
    zeros = np.zeros((3, 4), np.float32)
    made = {"x.m": ("F32", zeros), "x.v": ("F32", zeros), "step": ("I64", np.array([5]))}
    raw_safetensors(tmp_path / "s.safetensors", made)
    kept = scan(open_weights(tmp_path / "m.safetensors"), 16)
    found = audit(kept, plan(updates=SavedState(tmp_path / "s.safetensors")), BFLOAT16)
    (tensor,) = found.tensors
    assert math.isnan(tensor.found["plain"].edq)
    assert tensor.found["plain"].stops is None
    data = json.loads(json.dumps(as_json(found, {}), allow_nan=False))
    assert data["tensors"][0]["strategies"]["plain"]["edq"] is None
    assert strategy_table(found)[0]["EDQ"] == "-"
    assert tensor_table(found, 5)[0]["EDQ"] == "-"


def test_weights_that_leave_the_range_are_not_averaged_away(samples):
    found = audit(samples, plan(["plain", "fp32"], rate=1e37, decay=0.0, steps=500), BFLOAT16)
    matrix = found.tensors[0].found["plain"]
    assert matrix.beyond is not None
    assert 1 < matrix.beyond <= 500
    assert found.recommended()[0] is None
    assert "leave the range of bfloat16 at step" in found.recommended()[1]
    assert tensor_table(found, 3)[0]["stops at"].startswith("beyond at")
    low = mcf.get_format("float8_e4m3fn")
    narrow = Plan(mcf.AdamW(), mcf.Schedule(1.0, 0, 1.0), 3, (mcf.strategy("plain", low),), Model(600.0))
    assert audit(samples, narrow, low).tensors[0].found["plain"].beyond == 1


def test_totals_weigh_tensors_by_their_size(samples):
    found = audit(samples, plan(["plain"]), BFLOAT16)
    (total,) = found.totals()
    sizes = [item.size for item in found.tensors]
    for label in ("edq", "lost"):
        parts = [getattr(item.found["plain"], label) for item in found.tensors]
        assert getattr(total, label) == pytest.approx(np.average(parts, weights=sizes), rel=1e-12)


def test_a_histogram_is_of_updates_in_units_of_ulp(samples):
    """The matrix's, against numbers of NumPy alone: frexp gives the ulp of a normal number."""
    found = audit(samples, plan(["plain"], decay=0.0), BFLOAT16)
    matrix = found.tensors[0]
    rows = Model().directions(samples, mcf.AdamW(), *RUN).at(1)
    stored = mcf.round_to(samples[0].values, "bfloat16")
    spacing = np.ldexp(1.0, np.frexp(stored)[1] - 8)
    counts, _ = np.histogram(np.clip(np.log2(np.abs(3e-4 * rows[0]) / spacing), -16, 7.999), EDGES)
    assert matrix.histogram == pytest.approx(counts / 256)
    assert sum(matrix.histogram) == pytest.approx(1.0)


def test_the_model_is_said_in_words(samples):
    found = audit(samples, plan(["plain"]), BFLOAT16)
    assert "noise" in update_model(found)
    assert "0.3, as given" in update_model(audit(samples, plan(["plain"], updates=Model(0.3)), BFLOAT16))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"strategies": []}, ValueError, "at least one"),
        ({"strategies": ["plain", "plain"]}, ValueError, "named once"),
        ({"strategies": ["exact"]}, ValueError, "stores exact numbers"),
        ({"steps": 0}, ValueError, "steps"),
        ({"steps": 1.5}, TypeError, "steps"),
        ({"threshold": 0.0}, ValueError, "threshold"),
        ({"stopped": 1.5}, ValueError, "stopped"),
        ({"stopped": math.nan}, ValueError, "stopped"),
    ],
)
def test_plans_that_make_no_sense_are_refused(given, error, text):
    with pytest.raises(error, match=text):
        plan(**given)


# -- states that were saved ----------------------------------------------------------------------------------
def saved(tmp_path, **changes):
    """Write a state of the small model, with changes; return it, and the moments."""
    rng = np.random.default_rng(3)
    shapes = {"matrix": (32, 24), "bias": (24,), "gain": (24,)}
    made = {}
    for name, shape in shapes.items():
        made[f"{name}.exp_avg"] = "F32", rng.standard_normal(shape).astype(np.float32)
        made[f"{name}.exp_avg_sq"] = "F32", rng.random(shape).astype(np.float32)
    made["step"] = "I64", np.array([7])
    made |= changes
    kept = {name: item for name, item in made.items() if item is not None}
    raw_safetensors(tmp_path / "s.safetensors", kept)
    return tmp_path / "s.safetensors", made


@pytest.mark.parametrize("epsilon", [1e-3, 0.0])
def test_saved_moments_give_the_directions_of_their_weights(tmp_path, samples, epsilon):
    path, made = saved(tmp_path, **{"bias.exp_avg_sq": ("F32", np.zeros(24, np.float32))})
    hyper = mcf.AdamW(beta1=0.8, beta2=0.9, epsilon=epsilon)
    rows = SavedState(path).directions(samples, hyper, *RUN).at(1)
    for row, sample in zip(rows, samples, strict=True):
        m, v = (made[f"{sample.name}.{kind}"][1].astype(float).ravel() for kind in ("exp_avg", "exp_avg_sq"))
        with np.errstate(divide="ignore"):
            expected = np.nan_to_num((m / (1 - 0.8**7)) / (np.sqrt(v / (1 - 0.9**7)) + epsilon))
        assert row.tolist() == expected[places_of(sample.size, 256)].tolist()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"matrix.exp_avg": None}, r"has no tensor 'matrix\.exp_avg'"),
        ({"gain.exp_avg_sq": None}, r"has no tensor 'gain\.exp_avg_sq'"),
        ({"bias.exp_avg": ("F32", np.zeros(7, np.float32))}, r"'bias\.exp_avg' has shape \(7,\)"),
        ({"bias.exp_avg": ("I64", np.zeros(24, np.int64))}, "no floating numbers"),
        ({"gain.exp_avg": ("F32", np.full(24, np.nan, np.float32))}, r"gain\.exp_avg: 24 NaN, 0 infinite"),
        ({"gain.exp_avg_sq": ("F32", np.full(24, -1, np.float32))}, "negative second moment"),
        ({"step": None}, "how many steps"),
        ({"step": ("I64", np.array([0]))}, "at least one"),
        ({"step": ("F32", np.float32([np.nan]))}, "at least one"),
    ],
)
def test_states_that_do_not_fit_are_refused(tmp_path, samples, changes, text):
    path, _ = saved(tmp_path, **changes)
    with pytest.raises(FileOfTensorsError, match=text):
        SavedState(path).directions(samples, mcf.AdamW(), *RUN).at(1)


def test_one_thing_is_known_of_updates(tmp_path):
    with pytest.raises(ValueError, match="give one of them"):
        updates_of(0.2, tmp_path)
    assert updates_of() == Model()
    for wrong in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="update_rms"):
            updates_of(wrong)


# -- gradients that were recorded ----------------------------------------------------------------------------
def adam(gradients, hyper):
    """Return Adam's directions, step by step, of the gradients of one weight."""
    m = v = 0.0
    for step, g in enumerate(gradients, 1):
        m = hyper.beta1 * m + (1 - hyper.beta1) * g
        v = hyper.beta2 * v + (1 - hyper.beta2) * g * g
        yield m / (1 - hyper.beta1**step) / (math.sqrt(v / (1 - hyper.beta2**step)) + hyper.epsilon)


@pytest.fixture
def recorded(tmp_path):
    tensors = checkpoint(tmp_path / "m.safetensors")
    recorder = mcf.record(tensors, tmp_path / "recording")
    rng = np.random.default_rng(5)
    steps = [
        {name: rng.standard_normal(x.shape).astype(np.float32) for name, x in tensors.items()}
        for _ in range(7)
    ]
    for gradients in steps:
        recorder.step(gradients, 0.5)
    return tmp_path / "recording", steps


@pytest.mark.parametrize("steps", [4, 7, 12])
def test_recorded_gradients_are_followed_step_by_step(samples, recorded, steps):
    path, gradients = recorded
    hyper, schedule = mcf.AdamW(beta1=0.8, beta2=0.9, epsilon=1e-3), mcf.Schedule(0.1, warmup=3, final=0.2)
    found = RecordedUpdates(path).directions(samples, hyper, schedule, steps)
    rates = np.array([schedule.rate(step, steps) for step in range(1, steps + 1)])
    for row, sample in enumerate(samples):
        for column in (0, 100, 255):
            place = places_of(sample.size, 256)[column]
            made = [*adam([float(g[sample.name].ravel()[place]) for g in gradients[:steps]], hyper)]
            for step in range(1, steps + 1):
                expected = made[min(step, len(made)) - 1]
                assert found.at(step)[row, column] == pytest.approx(expected, rel=1e-12, abs=1e-14)
            last = min(steps, 7)
            for first, after in ((1, 1), (1, last), (2, last), (1, last + 1), (3, last + 1)):
                straight, square = found.walk(first, rates[first - 1 : after - 1])
                pairs = zip(rates[first - 1 : after - 1], made[first - 1 : after - 1], strict=True)
                expected = sum(rate * direction for rate, direction in pairs)
                assert straight[row, column] == pytest.approx(expected, rel=1e-10, abs=1e-14)
                assert square[row] == 0
    if steps > 7:
        straight, square = found.walk(7, rates[6:])
        beyond, wandered = Steady(found.at(7), hyper.beta1).walk(8, rates[7:])
        assert straight == pytest.approx(rates[6] * found.at(7) + beyond)
        assert square.tolist() == wandered.tolist()
        assert (square > 0).all()


def test_an_audit_uses_what_was_recorded(samples, recorded):
    path, _ = recorded
    found = audit(samples, plan(["plain"], steps=7, updates=RecordedUpdates(path)), BFLOAT16)
    assert "gradients recorded in recording" in update_model(found)
    other = audit(samples, plan(["plain"], steps=7), BFLOAT16)
    assert found.tensors[0].found["plain"] != other.tensors[0].found["plain"]
    # The first directions of Adam are signs.
    assert found.tensors[0].direction_rms == pytest.approx(1.0, abs=1e-6)


def test_a_recording_of_another_model_is_refused(tmp_path, samples):
    recorder = mcf.record({"matrix": np.zeros((3, 3), np.float32)}, tmp_path / "other")
    recorder.step({"matrix": np.ones((3, 3), np.float32)})
    with pytest.raises(FileOfTensorsError, match="lacks the tensor 'bias'"):
        RecordedUpdates(tmp_path / "other").directions(samples, mcf.AdamW(), *RUN)
    with pytest.raises(ValueError, match="not by a state and gradients"):
        updates_of(None, tmp_path, tmp_path)


# -- what torch saves ----------------------------------------------------------------------------------------
def torch_state(tmp_path, named):
    """Train the small model two steps in torch; write weights and state; return the directions."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shapes = {"matrix": (32, 24), "bias": (24,), "gain": (48,)}
    params = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    optimizer = torch.optim.AdamW(params.items() if named else params.values(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p**3).sum() for p in params.values()).backward()
        optimizer.step()
    arrays = {name: ("F32", p.detach().numpy()) for name, p in params.items()}
    raw_safetensors(tmp_path / "w.safetensors", arrays)
    torch.save({"optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "o.pt")
    return {p: optimizer.state[params[p]] for p in params}


@pytest.mark.parametrize("named", [True, False])
def test_a_state_of_torch_is_read(tmp_path, named):
    states = torch_state(tmp_path, named)
    kept = scan(open_weights(tmp_path / "w.safetensors"), 64)
    rows = SavedState(tmp_path / "o.pt").directions(kept, mcf.AdamW(), *RUN).at(1)
    for row, sample in zip(rows, kept, strict=True):
        m, v = (states[sample.name][kind].double().numpy().ravel() for kind in ("exp_avg", "exp_avg_sq"))
        expected = (m / (1 - 0.9**2)) / (np.sqrt(v / (1 - 0.999**2)) + 1e-8)
        assert row.tolist() == expected[places_of(sample.size, 64)].tolist()


def test_what_torch_would_have_to_execute_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch_state(tmp_path, True)
    kept = scan(open_weights(tmp_path / "w.safetensors"), 64)
    path = tmp_path / "evil.pt"
    torch.save({"state": {0: Sample}, "f": print}, path)
    with pytest.raises(FileOfTensorsError, match="tensors alone"):
        SavedState(path).directions(kept, mcf.AdamW(), *RUN).at(1)
    for made, text in (
        ({"a": 1}, "no entry 'state'"),
        ({"state": {"matrix": {}}}, "no state of tensor 'bias'|no state of tensor 'gain'"),
        ({"state": {0: {}, 1: {}, 2: {}}}, "numbers its parameters"),
    ):
        torch.save(made, path)
        with pytest.raises(FileOfTensorsError, match=text):
            SavedState(path).directions(kept, mcf.AdamW(), *RUN).at(1)
    path.write_bytes(b"no file of torch's")
    with pytest.raises(FileOfTensorsError, match="tensors alone"):
        SavedState(path).directions(kept, mcf.AdamW(), *RUN).at(1)


# -- reading that is interrupted -----------------------------------------------------------------------------
def test_a_reading_goes_on_where_it_ended(tmp_path, monkeypatch):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    checkpoint(path)
    weights = open_weights(path)
    whole = scan(weights, 64)
    read = []

    def interrupted(weight, *rest):
        if weight.name == "bias":
            raise KeyboardInterrupt
        return read_sample(weight, *rest)

    monkeypatch.setattr("mcfsim.models.scan.read_sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scan(weights, 64, kept)

    def noted(weight, *rest):
        read.append(weight.name)
        return read_sample(weight, *rest)

    monkeypatch.setattr("mcfsim.models.scan.read_sample", noted)
    told = []
    found = scan(weights, 64, kept, lambda *what: told.append(what))
    assert read == ["bias", "gain"]
    assert told[0] == ("matrix", 768, True)
    for mine, other in zip(found, whole, strict=True):
        assert mine.values.tolist() == other.values.tolist()
        assert (mine.name, mine.shape, mine.format, mine.rms, mine.zeros) == (
            *(other.name, other.shape, other.format, other.rms, other.zeros),
        )


def test_what_was_kept_of_other_weights_is_refused(tmp_path):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    checkpoint(path)
    scan(open_weights(path), 64, kept)
    before = kept.read_bytes()
    with pytest.raises(ValueError, match="samples differ"):
        scan(open_weights(path), 65, kept)
    checkpoint(path, seed=1)
    with pytest.raises(ValueError, match="files differ"):
        scan(open_weights(path), 64, kept)
    assert kept.read_bytes() == before
    kept.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"kept\.npz"):
        scan(open_weights(path), 64, kept)


def test_numbers_that_are_not_finite_are_named_after_all_is_read(tmp_path):
    path, kept = tmp_path / "m.safetensors", tmp_path / "kept.npz"
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    raw_safetensors(path, {"x": ("F32", x), "y": ("F32", np.ones(2, np.float32)), "z": ("F32", x[:2])})
    for _ in range(2):
        with pytest.raises(FileOfTensorsError, match=r"x: 1 NaN, 2 infinite; z: 1 NaN, 0 infinite$"):
            scan(open_weights(path), 16, kept)
