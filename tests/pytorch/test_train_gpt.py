"""The training of a GPT in PyTorch: repeatable, gone on from run by run, and measured by what it asks for."""

import json
import re

import numpy as np
import pytest
import torch

from experiments import common, gpt_training, paired, train_gpt
from experiments.common import read_result
from experiments.gpt import GPT, SIZES, text
from experiments.gpt_training import Settings, model_of, set_gradients, train

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = ["--size", "tiny", "--steps", "4", "--every", "2", "--seeds", "0", "1", "--beta2", "0.95"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Write results elsewhere, and make runs in this process, one after the other."""

    def one_by_one(function, jobs, keep):
        for job in jobs:
            keep(job, function(*job))

    for module in (common, train_gpt):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(train_gpt, "in_processes", one_by_one)
    return tmp_path


def tiny(strategy, **others):
    given = {"beta2": 0.95, "seed": 0, "steps": 4, "size": "tiny", "every": 2}
    return Settings(strategy, **given | others)


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_model_looks_at_no_later_character():
    model = GPT(256, SIZES["tiny"]).double()
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 9:] += 1
    there, changed = model(tokens), model(other % 256)
    assert torch.equal(there[:, :9], changed[:, :9])
    assert not torch.equal(there[:, 9:], changed[:, 9:])


def test_gradients_are_those_of_the_model_in_float32_clipped_and_of_bfloat16():
    model, twin = model_of(tiny("plain")), GPT(text(5).vocabulary, SIZES["tiny"])
    with torch.no_grad():
        model.head.weight.mul_(100)  # so that there is something to clip
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            q.copy_(p)
    windows = text(SIZES["tiny"].modules).corpus.training_windows(4, 17, step=1, seed=0)
    tokens = torch.from_numpy(windows.astype(np.int64))
    torch.nn.functional.cross_entropy(twin(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    expected = gradient(twin)
    assert float(expected.norm()) == pytest.approx(1, abs=0.01)
    for precision, tolerance in (("float32", 0.0), ("bfloat16", 0.05)):
        set_gradients(model, windows, precision)
        assert gradient(model).dtype == torch.bfloat16
        assert float((gradient(model) - expected.bfloat16()).norm()) <= tolerance


@pytest.mark.parametrize("wrong", ["--beta2 0.9", "--strategies exact", "--steps x", "--size huge"])
def test_what_is_out_of_range_is_refused(wrong, capsys, results):
    with pytest.raises(SystemExit) as ended:
        train_gpt.main(wrong.split())
    assert ended.value.code == 2
    assert wrong.split()[1] in capsys.readouterr().err
    assert not list(results.iterdir())
    for setting in ({"steps": 0}, {"every": 0}, {"seed": -1}, {"size": "huge"}, {"precision": "float8"}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            tiny("plain", **setting)


@pytest.mark.slow
def test_a_training_gives_the_same_bits_again():
    """Looked at or not: of steps and batches that others share."""
    first, again, other = (train(tiny("kahan", every=every)) for every in (2, 2, 4))
    assert first == again
    assert other["weights"] == first["weights"]
    plain = train(tiny("plain"))
    assert first["batches"] == plain["batches"]
    assert plain["lost"] > 0.3 > first["lost"]
    assert train(tiny("kahan", precision="bfloat16"))["weights"] != first["weights"] != plain["weights"]


@pytest.mark.slow
def test_runs_that_are_there_are_not_made_again(results, monkeypatch, capsys):
    path, trained = results / "few.json", []

    def counted(settings):
        trained.append((settings.strategy, settings.seed))
        return train(settings)

    monkeypatch.setattr(gpt_training, "train", counted)
    train_gpt.main([*TINY, "--strategies", "plain", "--name", "few"])
    before = json.loads(path.read_text())
    assert not re.search(r"\([+-]0\.\d+ to ", capsys.readouterr().out)  # nothing to compare with
    train_gpt.main([*TINY, "--strategies", "plain", "fp32-master", "--name", "few", "--forecast"])
    assert trained == [("plain", 0), ("plain", 1), ("fp32-master", 0), ("fp32-master", 1)]
    result = json.loads(path.read_text())
    assert {label: result["runs"][label] for label in before["runs"]} == before["runs"]
    plain, master = (
        [result["runs"][f"{name}, beta2 = 0.95, 4 steps, seed {s}"]["validation_loss"] for s in (0, 1)]
        for name in ("plain", "fp32-master")
    )
    gaps = [x - y for x, y in zip(plain, master, strict=True)]
    assert paired.shown(gaps) in capsys.readouterr().out
    shown = train_gpt.stops_table("few")
    for label, forecast in result["forecast"].items():
        for tensor in {*forecast, *result["runs"][label]["stops"]}:
            assert f"`{re.sub('[0-9]+', '*', tensor, count=1) if 'blocks' in tensor else tensor}`" in shown
    with pytest.raises(ValueError, match=r"few\.json has other settings: precision differ"):
        train_gpt.main([*TINY, "--precision", "bfloat16", "--name", "few"])
    assert json.loads(path.read_text()) == result
    assert len(trained) == 4


def test_without_pytorch_or_a_result_it_says_so(monkeypatch, capsys, results):
    monkeypatch.setattr(train_gpt, "find_spec", lambda name: None)
    train_gpt.main([*TINY])
    assert "skipped: it needs PyTorch" in capsys.readouterr().out
    assert not list(results.iterdir())
    assert train_gpt.table("nosuch") == train_gpt.NOT_RUN
    assert train_gpt.stops_table("nosuch") == train_gpt.NOT_MEASURED


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_the_claims_hold(beta2):
    result = read_result("train_gpt")
    rows = {name: train_gpt.summary(result, beta2, name) for name in train_gpt.STRATEGIES}
    assert {len(row["differences"]) for row in rows.values()} == {3}
    gap = {name: np.mean(row["differences"]) for name, row in rows.items()}
    assert abs(gap["collage-plus"]) < 0.003
    assert min(gap["plain"], gap["fp32-optim"]) > 0.12
    assert max(abs(gap[name]) for name in ("kahan", "collage-light")) < gap["fp32-optim"] / 5
    assert gap["collage-plus"] < gap["collage-light"] or beta2 != 0.999
    lost = {name: row["lost"] for name, row in rows.items()}
    assert lost["fp32-master"] < 0.001  # late updates of a few are below half an ulp of binary32
    assert lost["collage-plus"] < 0.02 < 0.4 < lost["plain"]
    by_seed = {}
    for run in result["runs"].values():
        by_seed.setdefault((run["beta2"], run["steps"], run["seed"]), set()).add(run["batches"])
    assert all(len(found) == 1 for found in by_seed.values())
