"""The training of a GPT in PyTorch: repeatable, gone on from run by run, and measured by what it asks for."""

import hashlib
import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mcfsim as mcf  # noqa: E402
from experiments import common, gpt_training, train_gpt  # noqa: E402
from experiments.common import RESULTS, read_result  # noqa: E402
from experiments.gpt import GPT, SIZES, text  # noqa: E402
from experiments.gpt_training import (  # noqa: E402
    Settings,
    model_of,
    optimizer_of,
    set_gradients,
    train,
    watched_step,
)  # fmt: skip

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


def watched(strategy, steps=2):
    """Return a tiny model that has made some steps and has new gradients, and its optimizer."""
    settings = tiny(strategy)
    model, corpus = model_of(settings), text(SIZES["tiny"].modules).corpus
    optimizer = optimizer_of(model, settings, 1e-3)
    for step in range(1, steps + 2):
        if step > 1:
            optimizer.step()
        set_gradients(model, corpus.training_windows(4, 17, step=step, seed=0), "float32")
    return model, optimizer


@pytest.mark.slow
def test_the_model_has_the_parameters_that_it_should():
    characters = text(60).vocabulary
    # Embedding, positions and head; in each layer two norms, attention, and a perceptron with biases; a norm.
    width, layer = 64, 4 * 64 + 12 * 64**2 + 5 * 64
    expected = (2 * characters + 64) * width + 2 * layer + 2 * width
    assert sum(p.numel() for p in GPT(characters, SIZES["116k"]).parameters()) == expected
    if characters == 100:  # of Python 3.11
        assert expected == 116_480
    with torch.device("meta"):
        model = GPT(256, SIZES["100M"])
    assert sum(p.numel() for p in model.parameters()) > 100_000_000


def test_the_text_is_the_language_models():
    ours, theirs = text(5), mcf.problems.Corpus.from_standard_library(5)
    assert ours.source == theirs.settings()
    whole = (theirs.training.tobytes() + theirs.validation.tobytes()).decode()
    points = sorted(set(whole))
    coded = ours.corpus.training.tobytes() + ours.corpus.validation.tobytes()
    assert "".join(points[number] for number in coded) == whole
    assert len(points) == ours.vocabulary


def test_the_model_looks_at_no_later_character():
    model = GPT(256, SIZES["tiny"]).double()
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 9:] += 1
    there, changed = model(tokens), model(other % 256)
    assert torch.equal(there[:, :9], changed[:, :9])
    assert not torch.equal(there[:, 9:], changed[:, 9:])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_are_clipped_and_of_bfloat16(precision):
    model = model_of(tiny("plain"))
    with torch.no_grad():
        model.head.weight.mul_(100)  # so that there is something to clip
    windows = text(SIZES["tiny"].modules).corpus.training_windows(4, 17, step=1, seed=0)
    set_gradients(model, windows, precision)
    gradients = [p.grad for p in model.parameters()]
    assert {g.dtype for g in gradients} == {torch.bfloat16}
    norm = float(torch.cat([g.double().flatten() for g in gradients]).norm())
    assert norm == pytest.approx(1, abs=0.01)
    if precision == "float32":
        exact = [p.detach().float().requires_grad_() for p in model.parameters()]
        twin = GPT(text(5).vocabulary, SIZES["tiny"])
        for p, value in zip(twin.parameters(), exact, strict=True):
            p.data = value.data
        scores = twin(torch.from_numpy(windows[:, :-1].astype(np.int64)))
        targets = torch.from_numpy(windows[:, 1:].astype(np.int64))
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        for p, g in zip(twin.parameters(), gradients, strict=True):
            assert torch.equal(p.grad.bfloat16(), g)


@pytest.mark.parametrize("strategy", train_gpt.STRATEGIES)
@pytest.mark.sampled(3, each=False)
@pytest.mark.slow
def test_watching_changes_nothing(strategy):
    ends = []
    for look in (False, True):
        model, optimizer = watched(strategy)
        if look:
            found = watched_step(model, optimizer)
            assert set(found) == {"", *(name for name, _ in model.named_parameters())}
        else:
            optimizer.step()
        ends.append(torch.cat([optimizer.represented(p).flatten() for p in model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"every": 0}, {"seed": -1}, {"size": "huge"}, {"precision": "float8"}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tiny("plain", **wrong)


@pytest.mark.parametrize("wrong", ["--beta2 0.9", "--strategies exact", "--steps x", "--size huge"])
def test_options_out_of_range_are_refused(wrong, capsys, results):
    with pytest.raises(SystemExit) as ended:
        train_gpt.main(wrong.split())
    assert ended.value.code == 2
    assert wrong.split()[1] in capsys.readouterr().err
    assert not list(results.iterdir())


@pytest.mark.slow
def test_a_training_gives_the_same_bits_again():
    first, again, other = (train(tiny(name)) for name in ("kahan", "kahan", "plain"))
    assert first == again
    assert first["batches"] == other["batches"]
    assert first["weights"] != other["weights"]
    assert other["lost"] > 0.3 > first["lost"]
    assert train(tiny("kahan", precision="bfloat16"))["weights"] != first["weights"]
    size = SIZES["tiny"]
    batches = hashlib.sha256()
    for step in range(1, 5):
        corpus = text(size.modules).corpus
        batches.update(corpus.training_windows(size.batch, size.context + 1, step=step, seed=0).tobytes())
    assert first["batches"] == batches.hexdigest()


@pytest.mark.slow
def test_runs_that_are_there_are_not_made_again(results, monkeypatch, capsys):
    path = results / "few.json"
    train_gpt.main([*TINY, "--strategies", "plain", "--name", "few"])
    before = json.loads(path.read_text())
    assert len(before["runs"]) == 2
    assert "+-" not in capsys.readouterr().out  # nothing to compare with
    trained = []

    def counted(settings):
        trained.append((settings.strategy, settings.seed))
        return train(settings)

    monkeypatch.setattr(gpt_training, "train", counted)
    train_gpt.main([*TINY, "--strategies", "plain", "fp32-master", "--name", "few", "--forecast"])
    assert trained == [("fp32-master", 0), ("fp32-master", 1)]
    result = json.loads(path.read_text())
    assert {label: result["runs"][label] for label in before["runs"]} == before["runs"]
    printed = capsys.readouterr().out
    losses = {
        name: [result["runs"][f"{name}, beta2 = 0.95, 4 steps, seed {s}"]["validation_loss"] for s in (0, 1)]
        for name in ("plain", "fp32-master")
    }
    gaps = [x - y for x, y in zip(*losses.values(), strict=True)]
    mean, spread = sum(gaps) / 2, abs(gaps[0] - gaps[1]) / 2**0.5
    assert f"{mean:+.4f} +- {spread:.4f}" in printed
    shown = train_gpt.stops_table("few")
    for label, forecast in result["forecast"].items():
        for tensor in {*forecast, *result["runs"][label]["stops"]}:
            assert f"`{tensor}`" in shown
    text_before = path.read_text()
    with pytest.raises(ValueError, match=r"few\.json has other settings: precision differ"):
        train_gpt.main([*TINY, "--precision", "bfloat16", "--name", "few"])
    assert path.read_text() == text_before
    assert len(trained) == 2


def test_tables_without_a_result_say_so(results):
    assert train_gpt.table("nosuch") == train_gpt.NOT_RUN
    assert train_gpt.stops_table("nosuch") == train_gpt.NOT_MEASURED


def test_without_pytorch_it_is_skipped(monkeypatch, capsys, results):
    monkeypatch.setattr(train_gpt, "find_spec", lambda name: None)
    train_gpt.main([*TINY])
    assert "skipped: it needs PyTorch" in capsys.readouterr().out
    assert not list(results.iterdir())
    assert sys.modules["torch"] is torch


@pytest.mark.skipif(not (RESULTS / "train_gpt.json").exists(), reason="the long training has no result yet")
def test_the_claims_hold():
    result = read_result("train_gpt")
    for beta2 in (0.999, 0.95):
        rows = {name: train_gpt.summary(result, beta2, name) for name in train_gpt.STRATEGIES}
        assert {len(row["differences"]) for row in rows.values()} == {3}
        gap = {name: np.mean(row["differences"]) for name, row in rows.items()}
        assert abs(gap["collage-plus"]) < 0.003
        assert gap["plain"] > 0.12
        assert gap["fp32-optim"] > 0.12
        assert max(abs(gap[name]) for name in ("kahan", "collage-light")) < gap["fp32-optim"] / 5
        if beta2 == 0.999:
            assert gap["collage-plus"] < gap["collage-light"]
        lost = {name: row["lost"] for name, row in rows.items()}
        assert lost["fp32-master"] < 0.001  # late updates of a few are below half an ulp of binary32
        assert lost["collage-plus"] < 0.02 < 0.4 < lost["plain"]
        by_seed = {}
        for run in result["runs"].values():
            by_seed.setdefault((run["beta2"], run["steps"], run["seed"]), set()).add(run["batches"])
        assert all(len(found) == 1 for found in by_seed.values())
