"""The command that replays: what it prints and saves, how it ends, and how it goes on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import mcfsim as mcf
from mcfsim.cli import app
from mcfsim.models.replay import Recorded
from tests.models.files import raw_safetensors
from tests.models.recordings import recorded, weights

pytestmark = pytest.mark.slow


def call(*words: Any, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["replay", *map(str, words)])
    assert result.exit_code == status, result.output
    return result


def test_the_table_and_the_file_are_of_the_run_that_the_library_makes(tmp_path: Path) -> None:
    folder, path = recorded(tmp_path / "r"), tmp_path / "run.npz"
    options = ("--strategy", "plain", "--strategy", "fp32-master", "--beta2", "0.99", "--per-tensor", "1")
    out = call(folder, *options, "--output", path).stdout
    run = mcf.Run.load(path)
    assert run == mcf.replay(folder, mcf.AdamW(beta2=0.99), ["plain", "fp32-master"])
    lines = out.splitlines()
    assert lines[0].startswith("16 parameters, adamw: beta1 = 0.9, beta2 = 0.99, ")
    assert lines[0].endswith("; rates recorded, steps = 5, low = bfloat16")
    by_strategy = next(line.split() for line in lines if line.startswith("plain"))
    assert by_strategy[1:4] == [
        "8",
        f"{run.late('plain', 'lost'):.2%}",
        f"{run.late('plain', 'normalized_edq'):.4f}",
    ]
    worst = max(
        ("matrix", "bias", "scale"), key=lambda name: abs(run.late("plain", f"normalized_edq/{name}") - 1)
    )
    assert [line.split()[:2] for line in lines if line.startswith("plain")][1] == ["plain", worst]
    assert "validation loss" not in out
    assert lines[-1] == f"saved {path}"


def test_options_are_those_of_the_library(tmp_path: Path) -> None:
    folder, path = recorded(tmp_path / "r"), tmp_path / "run.npz"
    np.savez(tmp_path / "start.npz", **weights())
    call(
        *(folder, "--weights", tmp_path / "start.npz", "--optimizer", "sgd", "--steps", 4, "--decay-all"),
        *("--seed", 3, "--clip", 0.5, "--record-every", 2, "--truth-sample", 2, "--strategy", "kahan"),
        *(
            "--low",
            "float16",
            "--rounding",
            "stochastic",
            "--scalars",
            "rounded",
            "--lr",
            0.5,
            "--output",
            path,
        ),
    )
    assert mcf.Run.load(path) == mcf.replay(
        *(folder, "sgd", "kahan", mcf.Schedule(0.5)),
        **{"weights": tmp_path / "start.npz", "steps": 4, "decayed": ["matrix", "bias", "scale"], "seed": 3},
        **{"clip": 0.5, "record_every": 2, "truth_sample": 2, "low": "float16", "rounding": "stochastic"},
        scalars="rounded",
    )


@pytest.mark.parametrize("at", [1, 3, 5])
def test_ctrl_c_saves_and_names_the_command_that_goes_on(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = recorded(tmp_path / "r"), tmp_path / "a place.npz"
    words = [str(folder), "--strategy", "plain", "--checkpoint", str(kept)]
    whole = call(*words[:3], "--output", tmp_path / "whole.npz").stdout
    taken = Recorded.gradient

    def interrupted(self: Recorded, *arguments: Any) -> Any:
        if arguments[1] == at:
            raise KeyboardInterrupt
        return taken(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Recorded, "gradient", interrupted)
        patch.setattr(sys, "argv", ["mcfsim", "replay", *words])
        ended = call(*words, "--output", tmp_path / "run.npz", status=130)
    assert not (tmp_path / "run.npz").exists()
    before, _, command = ended.stderr.strip().partition(" To go on: ")
    assert before == f"Ended; what is finished is in {kept}."
    assert shlex.split(command) == ["mcfsim", "replay", *words]
    assert (
        call(*words, "--resume", "--output", tmp_path / "run.npz").stdout.replace("run.npz", "whole.npz")
        == whole
    )
    assert (tmp_path / "run.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_strategy_that_diverges_ends_with_status_1(tmp_path: Path) -> None:
    out = call(
        *(
            recorded(tmp_path / "r"),
            "--optimizer",
            "sgd",
            "--lr",
            "3e38",
            "--warmup",
            0,
            "--strategy",
            "plain",
        ),
        *("--output", tmp_path / "run.npz"),
        status=1,
    ).stdout
    at = mcf.Run.load(tmp_path / "run.npz").results["plain"]["diverged_at"]
    assert f"plain diverged at step {at}: its state is infinite or NaN" in out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--resume",), "--resume needs --checkpoint, which names the file"),
        (("--checkpoint-every", "2"), "--checkpoint-every needs --checkpoint, which names the file"),
        (("--resume", "--checkpoint", "none.npz"), "--resume: there is no checkpoint none.npz"),
        (("--steps", "6"), "steps = 6: "),
        (("--per-tensor", "-1"), "per_tensor = -1 must not be negative"),
        (("--weights", "none.npz"), "none.npz"),
        (("--strategy", "plane"), "plane"),
        (
            ("--checkpoint", "same.npz", "--output", "same.npz"),
            "--checkpoint and --output are one and the same",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_nothing_is_written(
    options: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "r")
    monkeypatch.chdir(tmp_path)
    err = call("r", *options, status=2).stderr
    assert err.startswith("Error: ")
    assert text in err
    assert err.count("\n") == 1
    assert [item.name for item in tmp_path.iterdir()] == ["r"]


def test_bad_gradients_are_named_and_no_run_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    for name, number in (("weights", 1.0), ("step-1", 1.0), ("step-2", np.nan)):
        x = np.full(3, number, np.float32)
        raw_safetensors(
            folder / f"{name}.safetensors", {"w": ("F32", x), "v": ("F32", np.ones(2, np.float32))}
        )
    err = call(folder, "--lr", 0.1, "--output", tmp_path / "run.npz", status=2).stderr
    assert (
        err
        == f"Error: {folder / 'step-2.safetensors'}: has numbers that are not finite: w: 3 NaN, 0 infinite\n"
    )
    assert not (tmp_path / "run.npz").exists()


@pytest.mark.parametrize("option", ["--checkpoint", "--output"])
def test_a_full_disk_is_told_before_the_first_step(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(tmp_path / "r")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 100}))
    monkeypatch.setattr(Recorded, "gradient", lambda *_: pytest.fail("a step was begun"))
    err = call(folder, option, tmp_path / "kept.npz", status=2).stderr
    assert "kept.npz: it takes " in err
    assert "and the disk has 100 bytes left" in err
    assert not (tmp_path / "kept.npz").exists()


@pytest.mark.parametrize("strategies", [["plain", "collage-plus"], ["plain", "exact"]])
def test_the_room_that_is_looked_for_is_that_of_the_series(
    strategies: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("mcfsim.training.loop.check_space", lambda _, size: asked.append(size))
    folder, path = recorded(tmp_path / "r"), tmp_path / "run.npz"
    run = mcf.replay(folder, "sgd", strategies, record_every=2, truth_sample=2, output=path)
    assert asked == [sum(x.nbytes for found in run.series.values() for x in found.values())]
    assert mcf.Run.load(path) == run
