"""Audits of Muon, whose updates follow from the shapes of matrices."""

import json

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.audit import audit
from mcfsim.models.muon_updates import MuonModel
from mcfsim.models.plan import Plan, Steady, noise_rms
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.optim.newton_schulz import orthogonalize
from tests.cli.runner import call, refused

BFLOAT16 = mcf.get_format("bfloat16")
SHAPES = {
    "tall.weight": (96, 24),
    "wide.weight": (24, 96),
    "norm.weight": (50,),
    "embedding.weight": (40, 20),
}
SCHEDULE = mcf.Schedule(peak=2e-3, warmup=0, final=1.0)


def model(tmp_path, shapes=SHAPES):
    random = np.random.default_rng(0)
    tensors = {
        name: np.float32(0.02) * random.standard_normal(x).astype(np.float32) for name, x in shapes.items()
    }
    np.savez(tmp_path / "m.npz", **tensors)
    return tmp_path / "m.npz", tensors


def audited(path, muon, names=("plain", "kahan", "fp32-master"), steps=3):
    strategies = tuple(mcf.strategy(name) for name in names)
    plan = Plan(mcf.AdamW(beta1=0.9, beta2=0.95), SCHEDULE, steps, strategies, MuonModel(muon))
    return audit(scan(open_weights(path), 512), plan, BFLOAT16)


def test_directions_are_as_long_as_orthogonal_factors(tmp_path):
    """Of the matrices that Muon moves, times its scale; the others are AdamW's."""
    path, tensors = model(tmp_path)
    for scale in ("none", "original", "match_rms_adamw", "spectral"):
        muon = mcf.Muon(scale=scale, others=("embedding*",), iteration=mcf.NewtonSchulz("deepseek-v4"))
        found = {item.name: item.direction_rms for item in audited(path, muon, ("plain",)).tensors}
        for name in ("tall.weight", "wide.weight"):
            factor = orthogonalize(tensors[name], muon.iteration)
            assert found[name] == pytest.approx(
                muon.factor(tensors[name].shape) * np.sqrt(np.mean(factor**2)), 0.02
            )
        for name in ("norm.weight", "embedding.weight"):
            assert found[name] == pytest.approx(noise_rms(0.9), 0.02)


def test_what_the_first_step_loses_is_what_it_was_forecast_to_lose(tmp_path):
    path, tensors = model(tmp_path, {"w.weight": (128, 128)})
    muon = mcf.Muon(iteration=mcf.NewtonSchulz("deepseek-v4"), weight_decay=0.1)
    finding = audited(path, muon, ("plain",)).tensors[0].found["plain"]
    optimizer = mcf.Optimizer(muon, mcf.strategy("plain"), tensors, tensors)
    before = optimizer.weights()["w.weight"].copy()
    gradient = {"w.weight": np.random.default_rng(1).standard_normal((128, 128))}
    optimizer.step(optimizer.receive(gradient), SCHEDULE.peak)
    lost = np.mean(optimizer.weights()["w.weight"] == before)
    assert 0.1 < lost < 0.9
    assert finding.at_first == pytest.approx(lost, abs=0.03)


def test_matrices_have_no_second_moment(tmp_path):
    path, tensors = model(tmp_path)
    found = audited(path, mcf.Muon(others=("embedding*",)))
    bytes_of = {
        item.name: item.found["fp32-master"].bytes / tensors[item.name].size for item in found.tensors
    }
    assert bytes_of == {name: 12 if name in ("tall.weight", "wide.weight") else 16 for name in SHAPES}
    plain, kahan, master = (found.total(item) for item in found.plan.strategies)
    assert (plain.frozen, master.frozen) == (0.0, 0.0)  # at beta2 = .95
    mixed = found.mixed()
    assert mixed is None or mixed.bytes <= min(x.bytes for x in (kahan, master) if x.sufficient)
    path, _ = model(tmp_path, {"w.weight": (64, 64)})
    strategies = (mcf.strategy("plain"), mcf.strategy("kahan"))
    plan = Plan(mcf.AdamW(beta2=0.9999), SCHEDULE, 3, strategies, MuonModel(mcf.Muon()))
    alone = audit(scan(open_weights(path), 512), plan, BFLOAT16)
    assert alone.total(strategies[1]).frozen == 0.0
    _, why = alone.recommended()
    assert "beta2" not in why


def test_steps_of_several_scales_walk_in_proportion():
    table, rates = np.random.default_rng(0).standard_normal((2, 64)), np.full(5, 1e-3)
    plain, square = Steady(table, 0.9).walk(1, rates)
    scaled, squares = Steady(table, np.array([0.9, 0.9]), np.array([1.0, 0.25])).walk(1, rates)
    np.testing.assert_array_equal(scaled, plain * [[1.0], [0.25]])
    np.testing.assert_array_equal(squares, square * [1.0, 0.0625])


def test_the_command_line_audits_muon(tmp_path):
    path, _ = model(tmp_path)
    options = "--muon spectral --other embedding* --lr 0.002 --steps 5 --samples 64 --json"
    done = call("audit", path, *options.split(), tmp_path / "a.json")
    assert "as of Muon, by its scale spectral" in " ".join(done.stdout.split())
    assert "eco" not in done.stdout.split()
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["muon"] == {"scale": "spectral", "momentum": 0.95, "others": ["embedding*"]}
    for options, text in (
        ("--other embedding*", "--other names what Muon leaves to AdamW, and needs --muon"),
        ("--muon spectrall", "spectrall"),
        ("--muon none --update-rms 0.3", "updates are known by one thing, not by their size and Muon"),
    ):
        assert text in refused("audit", path, *options.split())


def test_no_budget_is_shared_among_tensors_without_a_second_moment(tmp_path):
    path, _ = model(tmp_path)
    said = refused("assign", path, "--budget", "10", "--muon", "none", "--steps", "3", "--samples", "64")
    assert "3 tensors have no second moment" in said


def test_what_is_no_muon_of_one_rate_is_refused():
    with pytest.raises(TypeError, match=r"those of mcfsim\.Muon"):
        MuonModel(mcf.AdamW())
    with pytest.raises(ValueError, match="share=1"):
        MuonModel(mcf.Muon(share=0.5))
