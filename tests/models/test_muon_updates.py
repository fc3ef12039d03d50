"""Audits of Muon, whose updates follow from the shapes of matrices."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim.models.assigning import assign, candidates_of, choices_of
from mcfsim.models.audit import audit
from mcfsim.models.plan import MuonModel, Plan, Steady, noise_rms
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.optim.newton_schulz import orthogonalize
from tests.cli.runner import call, refused

BFLOAT16 = mcf.get_format("bfloat16")
SHAPES = {"tall.weight": (96, 24), "wide.weight": (24, 96)}
SHAPES |= {"norm.weight": (50,), "embedding.weight": (40, 20)}
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_matrices_have_no_second_moment(tmp_path):
    path, tensors = model(tmp_path)
    found = audited(path, mcf.Muon(others=("embedding*",)))
    bytes_of = {
        item.name: item.found["fp32-master"].bytes / tensors[item.name].size for item in found.tensors
    }
    assert bytes_of == {name: 12 if name in ("tall.weight", "wide.weight") else 16 for name in SHAPES}
    plain, _, master = (found.total(item) for item in found.plan.strategies)
    assert (plain.frozen, master.frozen) == (0.0, 0.0)  # at beta2 = .95
    assert found.recommended()[0] == plain
    assert found.mixed() is None  # what is cheapest does everywhere
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


@pytest.mark.slow
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
        ("--muon none --update-rms 0.3", "updates come from one source, not from their size and Muon"),
    ):
        assert text in refused("audit", path, *options.split())


#: Bytes a parameter without a second moment, and with it.
TAKEN = {
    "plain": (Fraction(6), Fraction(8)),
    "collage-light": (Fraction(8), Fraction(10)),
    "int8-moments": (Fraction(577, 64), Fraction(321, 32)),
    "fp32-master": (Fraction(12), Fraction(16)),
}


def budgeted(path, lows=(BFLOAT16,), names=tuple(TAKEN)):
    """Return an audit of candidates, and its samples."""
    updates = MuonModel(mcf.Muon(others=("embedding*",)))
    plan = Plan(mcf.AdamW(), SCHEDULE, 3, candidates_of(lows, names), updates)
    samples = scan(open_weights(path), 128)
    return audit(samples, plan, BFLOAT16), samples


@pytest.mark.parametrize("method", ["sensitivity", "demotion"])
@pytest.mark.slow
def test_a_budget_is_shared_as_by_trying_all_assignments(tmp_path, method):
    """No v of one component in bfloat16 decays at beta2 = .999. Matrices have none, which costs nothing."""
    path, _ = model(tmp_path)
    taken = dict(TAKEN) if method == "sensitivity" else {x: TAKEN[x] for x in ("fp32-master", "plain")}
    given = budgeted(path, names=tuple(taken))
    choices, asked = choices_of(*given, 0.05)
    sizes, stored = [tensor.size for tensor in given[0].tensors], []
    for row, tensor in enumerate(given[0].tensors):
        has_v = tensor.name not in ("tall.weight", "wide.weight")
        stored.append([each[has_v] for each in taken.values()])
        for column, (name, item) in enumerate(zip(taken, choices.candidates, strict=True)):
            found = tensor.found[item.name]
            assert found.bytes == float(taken[name][has_v] * tensor.size)
            cost = 0.05 if has_v and name in ("plain", "collage-light") else 0.0
            assert choices.losses[row, column] == pytest.approx(asked[row] * (abs(1 - found.edq) + cost))
    every = list(product(range(len(taken)), repeat=4))
    whole = [sum(n * row[x] for n, row, x in zip(sizes, stored, one, strict=True)) for one in every]
    lost = [sum(row[x] for row, x in zip(choices.losses.tolist(), one, strict=True)) for one in every]
    mixed = 0
    for budget in (*np.linspace(6.8, 13.5, 9), min(whole) / sum(sizes)):
        found = assign(*given, budget, method)
        allowed = [n <= budget * sum(sizes) for n in whole]
        assert found.bytes == whole[every.index(found.chosen)] <= budget * sum(sizes)
        mixed += len({*found.chosen}) > 1
        if method == "sensitivity":
            least = min(y for y, fits in zip(lost, allowed, strict=True) if fits)
            assert found.lost() * sum(asked) == pytest.approx(least, rel=1e-6)
        else:  # the largest first, each in a group of its own
            order = sorted(range(4), key=lambda row: -sizes[row])
            tried = [tuple(int(row in order[:count]) for row in range(4)) for count in range(5)]
            assert found.chosen == next(one for one in tried if allowed[every.index(one)])
    assert mixed >= 3
    with pytest.raises(ValueError, match="less than the least"):
        assign(*given, min(whole) / sum(sizes) - Fraction(1, 10**9), method)


@pytest.mark.slow
def test_a_second_moment_that_is_not_there_rules_nothing_out(tmp_path):
    """In what range it would be kept is not asked, and whether it decays neither."""
    narrow = mcf.strategy("plain")
    narrow = replace(narrow, name="narrow", v=replace(narrow.v, format=mcf.get_format("float16")))
    updates = MuonModel(mcf.Muon(others=("embedding*",)))
    for shapes, allowed in (({"w.weight": (64, 64)}, True), ({"embedding.weight": (64, 64)}, False)):
        path, _ = model(tmp_path, shapes)
        samples = scan(open_weights(path), 128)
        made = audit(samples, Plan(mcf.AdamW(), SCHEDULE, 3, (narrow,), updates), BFLOAT16)
        if allowed:
            assert assign(made, samples, 6).bytes == 6 * 64 * 64
        else:
            with pytest.raises(ValueError, match="no candidate holds its gradients and moments"):
                assign(made, samples, 8)
    path, _ = model(tmp_path)
    found = budgeted(path, names=("plain", "collage-light", "fp32-master"))[0]
    mixed = found.mixed()  # no one but fp32-master has a v that decays
    assert mixed.bytes < found.recommended()[0].bytes
    chosen = {name: item.name.partition(" ")[0] for name, item in mixed.strategies.items()}
    assert chosen["embedding.weight"] == chosen["norm.weight"] == "fp32-master"
    assert chosen["tall.weight"] in ("plain", "collage-light")


@pytest.mark.slow
def test_the_command_line_assigns_under_muon(tmp_path):
    path, _ = model(tmp_path)
    options = "--muon none --other embedding* --lr 0.002 --steps 3 --samples 64 --budget 8 --json"
    said = " ".join(call("assign", path, *options.split(), tmp_path / "a.json").stdout.split())
    assert "as of Muon, by its scale none" in said
    data = json.loads((tmp_path / "a.json").read_text())
    each = {row["name"]: (row["strategy"], row["bytes_per_parameter"]) for row in data["tensors"]}
    own = {name: mcf.strategy(strategy) for name, (strategy, _) in each.items()}
    for name, (_, taken) in each.items():
        whole = own[name].bytes_per_parameter
        matrix = name in ("tall.weight", "wide.weight")
        assert taken == whole - (own[name].size_of("v") if matrix else 0)
    assert data["bytes"] == sum(row["parameters"] * row["bytes_per_parameter"] for row in data["tensors"])
    sizes = {name: int(np.prod(shape)) for name, shape in SHAPES.items()}
    share = (sizes["tall.weight"] + sizes["wide.weight"]) / sum(sizes.values())
    assert data["candidates"]["fp32-master bfloat16"] == pytest.approx(16 - 4 * share, rel=1e-12)


def test_what_is_no_muon_of_one_rate_is_refused():
    with pytest.raises(TypeError, match=r"those of mcfsim\.Muon"):
        MuonModel(mcf.AdamW())
    with pytest.raises(ValueError, match="share=1"):
        MuonModel(mcf.Muon(share=0.5))
