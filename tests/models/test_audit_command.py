"""The command that audits: what it prints and writes, and how it ends on what it cannot read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app
from tests.models.files import checkpoint, raw_safetensors

pytestmark = pytest.mark.slow


def run(*words, status=0):
    result = CliRunner().invoke(app, ["audit", *map(str, words)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoint(path)
    return path


SHORT = ("--steps", 5, "--samples", 64)


def test_it_prints_the_worst_first_and_what_is_enough(model):
    text = run(model, *SHORT, "--betas", 0.9, 0.95)
    assert "840 parameters" not in text
    assert f"{32 * 24 + 48:,} parameters in 3 tensors" in text
    lines = [line.split() for line in text.splitlines()]
    names = [line[0] for line in lines if line and line[0] in ("gain", "matrix", "bias")]
    assert names[0] == "gain"
    assert set(names) == {"gain", "matrix", "bias"}
    assert "Recommended: kahan. kahan is the cheapest of the 14 tried whose updates arrive" in text
    assert "normally distributed directions" in text[text.index("Recommended") :]


def test_what_it_writes_is_what_the_library_finds(model, tmp_path):
    from mcfsim.models.auditing import audit
    from mcfsim.models.plan import Plan
    from mcfsim.models.scan import scan
    from mcfsim.models.updates import Model
    from mcfsim.models.weights import open_weights
    from mcfsim.report.audits import as_json

    out = tmp_path / "audit.json"
    options = ("--lr", 1e-3, "--warmup", 2, "--final", 0.5, "--weight-decay", 0.2, "--eps", 1e-6)
    known = (
        "--update-rms",
        0.4,
        "--threshold",
        0.9,
        "--stopped",
        0.25,
        "--strategy",
        "plain",
        "--strategy",
        "kahan",
    )
    run(model, *SHORT, *options, *known, "--low", "float16", "--json", out)
    low = mcf.get_format("float16")
    plan = Plan(
        mcf.AdamW(0.9, 0.999, 1e-6, 0.2),
        mcf.Schedule(1e-3, 2, 0.5),
        5,
        tuple(mcf.strategy(name, low) for name in ("plain", "kahan")),
        Model(0.4),
        threshold=0.9,
        stopped=0.25,
    )
    expected = as_json(audit(scan(open_weights(model), 64), plan, low), {})
    assert json.loads(out.read_text()) == json.loads(json.dumps(expected))


def test_every_kind_of_place_gives_the_same(model, tmp_path):
    tensors = checkpoint(model)
    np.savez(tmp_path / "m.npz", **tensors)
    folder = tmp_path / "sharded"
    folder.mkdir()
    for number, (name, x) in enumerate(tensors.items()):
        raw_safetensors(folder / f"{number}.safetensors", {name: ("F32", x)})
    index = {name: f"{number}.safetensors" for number, name in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = []
    for number, path in enumerate(
        (model, tmp_path / "m.npz", folder, folder / "model.safetensors.index.json")
    ):
        out = tmp_path / f"{number}.json"
        run(path, *SHORT, "--json", out, "--strategy", "plain")
        found.append(json.loads(out.read_text()))
    assert all(item == found[0] for item in found)


def test_a_checkpoint_is_gone_on_from(model, tmp_path):
    kept = tmp_path / "kept.npz"
    first = run(model, *SHORT, "--checkpoint", kept)
    before = kept.read_bytes()
    assert run(model, *SHORT, "--checkpoint", kept, "--resume") == first
    assert kept.read_bytes() == before
    assert "files differ" in run(copied(model), *SHORT, "--checkpoint", kept, status=2)
    assert kept.read_bytes() == before


def copied(model):
    other = model.with_name("other.safetensors")
    shutil.copy(model, other)
    return other


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--steps", 0), "steps"),
        (("--lr", 0), "peak = 0.0 must be positive"),
        (("--lr", "nan"), "peak"),
        (("--betas", 0.9, 1), "beta2"),
        (("--schedule", "step"), "known schedules: cosine, constant"),
        (("--schedule", "constant", "--final", 0.5), "is for the cosine"),
        (("--strategy", "plian"), "did you mean 'plain'"),
        (("--strategy", "exact"), "exact numbers"),
        (("--low", "bf61"), "bf61"),
        (("--update-rms", -1), "update_rms"),
        (("--state", "none.safetensors"), "none.safetensors"),
        (("--update-rms", 1, "--state", "x"), "give one of them"),
        (("--json", "/nonexistent/x"), "no folder"),
        (("--threshold", 0), "threshold"),
        (("--resume",), "--resume needs --checkpoint"),
        (("--resume", "--checkpoint", "none.npz"), "there is no checkpoint none.npz"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(model, options, text):
    output = run(model, *SHORT, *options, status=2)
    assert text in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--html", "--png", "--checkpoint"])
def test_weights_are_not_overwritten(model, option):
    before, link = model.read_bytes(), model.with_name("link.png")
    link.symlink_to(model)
    assert "would take the place of what is read" in run(model, *SHORT, option, link, status=2)
    assert model.read_bytes() == before


def test_bad_weights_end_it_before_anything_is_written(tmp_path):
    path, out = tmp_path / "m.safetensors", tmp_path / "x.json"
    raw_safetensors(path, {"a": ("F32", np.float32([1, np.nan])), "b": ("F32", np.float32([np.inf] * 3))})
    output = run(path, *SHORT, "--json", out, status=2)
    assert "a: 1 NaN, 0 infinite; b: 0 NaN, 3 infinite" in output
    assert not out.exists()
    path.write_bytes(path.read_bytes()[:-1])
    assert "no safetensors file, or damaged" in run(path, *SHORT, "--json", out, status=2)
    assert "is not there" in run(tmp_path / "none", *SHORT, status=2)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_constant_rate_stays(model, tmp_path):
    out = tmp_path / "x.json"
    run(model, *SHORT, "--schedule", "constant", "--lr", 0.25, "--strategy", "plain", "--json", out)
    assert set(json.loads(out.read_text())["rates"]) == {0.25}
