"""Files that the command line writes: refused before any work for them, and never in another's place."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app

SIMULATE = ("simulate", "--problem", "rosenbrock", "--strategy", "plain", "--steps", "3")
VERIFY = ("verify", "sterbenz", "--format", "float4_e2m1fn")
CERTIFICATE = "sterbenz-float4_e2m1fn-nearest_even.json"


def call(*arguments: str | Path, status: int) -> str:
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    assert result.exit_code == status, result.output
    return result.stderr if status else result.stdout


def spoil(path: Path, how: str) -> None:
    """Make a place in which no file may be written."""
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "read-only":
        path.write_text("mine")
        path.chmod(0o444)
    elif how == "link to read-only":
        spoil(path.with_name("target"), "read-only")
        path.symlink_to("target")


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where training or verifying begins."""

    def begun(*arguments: object, **options: object) -> None:
        raise AssertionError("work has begun")

    import mcfsim.theorems.verification

    monkeypatch.setattr(sys.modules["mcfsim.training.simulate"], "simulate", begun)
    monkeypatch.setattr(mcfsim.theorems.verification, "run", begun)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("how", ["pipe", "folder", "read-only", "link to read-only"])
@pytest.mark.parametrize("option", ["--output", "--checkpoint", "certificate", "--journal"])
def test_a_place_for_no_file_is_refused_before_any_work(option: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / (CERTIFICATE if option == "certificate" else "out")
    spoil(path, how)
    before = path.lstat()
    if option == "certificate":
        words = (*VERIFY, "--output", tmp_path, "--journal", tmp_path / "journal")
    elif option == "--journal":
        words = (*VERIFY, option, path)
    else:
        words = (*SIMULATE, option, path)
    assert call(*words, status=2).startswith(f"Error: cannot write {path}: it is ")
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)


@pytest.mark.usefixtures("no_work")
def test_the_checkpoint_is_no_place_for_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("a checkpoint")
    (tmp_path / "link").symlink_to("a.npz")
    (tmp_path / "hard").hardlink_to(path)
    for other in (path, tmp_path / "link", tmp_path / "hard", tmp_path / ".." / tmp_path.name / "a.npz"):
        for words in (("--checkpoint", path, "--output", other), ("--checkpoint", other, "--output", path)):
            assert "--checkpoint and --output are one and the same file" in call(*SIMULATE, *words, status=2)
    assert path.read_text() == "a checkpoint"


def test_links_stay_and_permissions_are_kept(tmp_path: Path) -> None:
    run, state = tmp_path / "run", tmp_path / "state"
    run.symlink_to("kept.npz")
    (tmp_path / "kept.npz").write_text("old")
    (tmp_path / "kept.npz").chmod(0o600)
    state.symlink_to("new.npz")
    call(*SIMULATE, "--output", run, "--checkpoint", state, status=0)
    assert os.readlink(run) == "kept.npz"
    assert os.readlink(state) == "new.npz"
    assert stat.S_IMODE((tmp_path / "kept.npz").stat().st_mode) == 0o600
    assert mcf.Run.load(run).settings["steps"] == 3
    call(*SIMULATE, "--checkpoint", state, status=0)
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates" / CERTIFICATE).symlink_to("../certificate")
    call(*VERIFY, "--output", tmp_path / "certificates", "--journal", tmp_path / "journal", status=0)
    assert os.readlink(tmp_path / "certificates" / CERTIFICATE) == "../certificate"
    assert (tmp_path / "certificate").is_file()


@pytest.mark.parametrize(
    "words",
    [
        ("--problem", "quadratic", "--dimension", "100000"),
        ("--problem", "quadratic", "--dimension", "1" + "0" * 30),
        ("--problem", "rosenbrock", "--dimension", "1" + "0" * 30),
        ("--problem", "language-model", "--width", "1000000"),
        ("--problem", "language-model", "--layers", "1" + "0" * 15),
        ("--problem", "language-model", "--batch", "1" + "0" * 12),
    ],
)
def test_more_than_the_memory_is_one_line_of_refusal(words: tuple[str, ...]) -> None:
    refusal = call("simulate", *words, status=2)
    assert refusal.startswith("Error: this takes more memory than there is: ")
    assert refusal.count("\n") == 1


def test_every_so_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcfsim.training.checkpoint import Checkpoint

    saved, save = [], Checkpoint.save

    def watch(self: Checkpoint) -> None:
        saved.append(self._kept.step)
        save(self)

    monkeypatch.setattr(Checkpoint, "save", watch)
    words = ("--steps", "7", "--checkpoint", tmp_path / "state", "--checkpoint-every", "3")
    call(*SIMULATE, *words, status=0)
    assert saved == [0, 3, 6, 7]
    assert "--checkpoint-every needs --checkpoint" in call(*SIMULATE, "--checkpoint-every", "3", status=2)
    zero = call(*SIMULATE, "--checkpoint", tmp_path / "other", "--checkpoint-every", "0", status=2)
    assert "checkpoint_every = 0" in zero
