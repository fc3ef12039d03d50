"""The command that assigns: what it prints and writes, and how it ends on what it cannot do."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from tests.models.files import checkpoint

pytestmark = pytest.mark.slow

SHORT = ("--steps", 5, "--samples", 64, "--betas", 0.9, 0.95)


def run(*words, status=0):
    result = CliRunner().invoke(app, ["assign", *map(str, words)])
    assert result.exit_code == status, (result.output, result.exception)
    return result.output


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.safetensors"
    checkpoint(path)
    return path


def test_it_prints_each_tensor_and_writes_the_same(model, tmp_path):
    out, table = tmp_path / "x.json", tmp_path / "x.csv"
    text = run(model, *SHORT, "--budget", 9, "--lr", 3e-4, "--json", out, "--csv", table)
    data, rows = json.loads(out.read_text()), list(csv.DictReader(table.read_text().splitlines()))
    assert data["budget"] == 9
    assert data["bytes_per_parameter"] <= 9
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    for item, row in zip(data["tensors"], rows, strict=True):
        assert [item["strategy"], item["format"]] == [row["strategy"], row["format"]]
        assert {item["strategy"], item["format"]} <= set(lines[item["name"]])
        assert int(row["parameters"]) == item["parameters"]
    assert "as assigned" in text
    assert "at most 9 bytes a parameter, by sensitivity" in text


def test_demotion_is_between_fp32_master_and_plain(model, tmp_path):
    out = tmp_path / "x.json"
    run(model, *SHORT, "--by", "demotion", "--budget", 10, "--json", out)
    found = {item["name"]: item["strategy"] for item in json.loads(out.read_text())["tensors"]}
    assert found == {"matrix": "plain", "bias": "fp32-master", "gain": "fp32-master"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--budget", 7), "less than the least, 8"),
        (("--budget", -1), "must be positive"),
        (("--budget", "nan"), "budget"),
        (("--by", "luck"), "known methods: sensitivity, demotion"),
        (("--frozen-cost", 2), "must lie in"),
        (("--low", "bf61"), "bf61"),
        (("--low", "float16"), "only recorded gradients could say"),
        (("--strategy", "plian"), "did you mean 'plain'"),
        (("--schedule", "constant", "--final", 0.5), "is for the cosine"),
        (("--update-rms", 1, "--state", "x"), "give one of them"),
        (("--csv", "/nonexistent/x"), "no folder"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(model, options, text):
    output = run(model, *SHORT, *options, status=2)
    assert text in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_weights_are_not_overwritten(model, option):
    before = model.read_bytes()
    assert "would take the place of what is read" in run(model, *SHORT, option, model, status=2)
    assert model.read_bytes() == before
