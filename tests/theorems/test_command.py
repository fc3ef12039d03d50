"""The command `verify`: choice of statements, formats and modes, certificates, journal and exit status."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcfsim.cli import app
from mcfsim.formats import get_format
from mcfsim.rounding import Mode
from mcfsim.theorems import THEOREMS, Certificate, verification


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the journal out of the user's folder."""
    monkeypatch.setattr("typer.get_app_dir", lambda name: str(tmp_path / name))
    return tmp_path


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_verdicts_are_printed_and_certificates_saved(folder: Path) -> None:
    out = folder / "certificates"
    out.mkdir()
    text = call("two_sum", "fast_two_sum_unordered", "--format", "e5m2", "--output", str(out))
    rows = {line.split()[0]: line.split() for line in text.splitlines()[2:] if line.strip()}
    assert rows["two_sum"][:5] == ["two_sum", "float8_e5m2", "nearest_even", "verified", "holds"]
    assert rows["fast_two_sum_unordered"][3:5] == ["refuted", "fails"]
    assert sorted(path.name for path in out.iterdir()) == [
        "fast_two_sum_unordered-float8_e5m2-nearest_even.json",
        "two_sum-float8_e5m2-nearest_even.json",
    ]
    for path in out.iterdir():
        certificate = Certificate.load(path)
        assert certificate.tried == 248**2
        about = json.loads(path.read_text())
        assert (about["tried"], about["digest"]) == (certificate.tried, certificate.digest)
        assert about["versions"].keys() >= {"mcfsim", "numpy", "python", "machine"}


def test_workers_resumed_runs_and_single_ones_give_the_same_certificates(folder: Path) -> None:
    digests = []
    for i, options in enumerate(((), ("--workers", "2"), ("--resume",))):
        out = folder / str(i)
        out.mkdir()
        call("two_sum", "dw_plus_fp", "--format", "e4m3fn", *options, "--output", str(out))
        digests.append({path.name: Certificate.load(path).digest for path in out.iterdir()})
    assert digests[0] == digests[1] == digests[2]
    assert len(digests[0]) == 2


def test_modes_can_be_chosen() -> None:
    text = call("two_sum", "--format", "e5m2", "--rounding", "up", "--rounding", "every")
    assert [line.split()[2] for line in text.splitlines()[2:]] == ["up", "nearest_even", "nearest_away"]
    # Not claimed upward, and refuted there: that is no failure.
    assert "open" in text


def test_by_default_all_statements_are_tried_on_four_formats_each_in_a_mode_of_its_own() -> None:
    checks = verification.plan()
    # Only what can say nothing of any of the formats is left out.
    for name in set(THEOREMS) - {check.theorem.name for check in checks}:
        for fmt in map(get_format, verification.FORMATS):
            assert not all(hypothesis.of_format(fmt) for hypothesis in THEOREMS[name].where)
    assert all(check.domain().parts for check in checks[:: len(checks) // 20])
    assert {str(check.format) for check in checks} == set(verification.FORMATS)
    for check in checks:
        assert check.rounding.mode in check.theorem.modes
        assert check.rounding.mode is Mode.NEAREST_EVEN or Mode.NEAREST_EVEN not in check.theorem.modes


def test_statements_are_listed() -> None:
    text = call("--list")
    assert "Sterbenz" in text
    assert all(name in text for name in THEOREMS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuch",),
        ("two_sum", "--format", "nosuch"),
        ("two_sum", "--rounding", "sideways"),
        ("two_sum", "--output", "/nosuch"),
        ("two_sum", "--extent", "some"),
        ("two_sum", "--format", "float32", "--extent", "all"),
        ("--check", "/nosuch"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    text = call(*arguments, status=2)
    assert text.startswith("Error: ")
    assert text.count("\n") == 1


def test_a_claim_that_fails_ends_with_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(THEOREMS["two_sum"], algorithm=lambda ar, a, b: (ar.add(a, b), a))
    monkeypatch.setattr(verification, "THEOREMS", {"two_sum": broken})
    assert "unexpected" in call("two_sum", "--format", "e5m2", status=1)


def test_a_false_statement_that_holds_ends_with_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(THEOREMS["two_sum"], holds=False)
    monkeypatch.setattr(verification, "THEOREMS", {"two_sum": wrong})
    assert "unexpected" in call("two_sum", "--format", "e5m2", status=1)


def test_certificates_are_checked_alone(folder: Path) -> None:
    call("fast_two_sum_unordered", "--format", "e5m2", "--output", str(folder))
    (path,) = folder.glob("*.json")
    assert "every witness gives what it says" in call("--check", str(path))
    path.write_text(path.read_text().replace('"violations": 26896', '"violations": 26895'))
    call("--check", str(path), status=2)


def test_long_work_is_shared_by_all_cores_unasked() -> None:
    cores = len(os.sched_getaffinity(0))
    assert verification.workers_for(verification.plan()) == cores
    assert verification.workers_for(verification.plan(["two_sum"], ["e4m3fn", "e5m2"])) == 1
    assert verification.workers_for([]) == 1
