"""Every command of the command line, its refusals and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim.cli import app

QUADRATIC = ("simulate", "--problem", "quadratic", "--dimension", "8", "--steps", "30", "--warmup", "5")


def call(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == status, result.output
    return result


def refused(*arguments: str) -> str:
    """Return the one line on standard error."""
    result = call(*arguments, status=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_version() -> None:
    assert call("--version").stdout == f"mcfsim {version('mcfsim')}\n"


def test_formats() -> None:
    lines = call("formats").stdout.splitlines()
    assert [line.split()[0] for line in lines[3:]] == list(mcf.FORMATS)
    chosen = call("formats", "bf16", "e6m9").stdout.splitlines()
    assert [line.split()[:3] for line in chosen[3:]] == [["bfloat16", "16", "8"], ["e6m9", "16", "10"]]


def test_formats_in_markdown() -> None:
    lines = call("formats", "bf16", "--markdown").stdout.splitlines()
    assert lines[0].startswith("| format")
    assert lines[2].startswith("| bfloat16 |   16 |")
    assert len(lines) == 3


def test_inspect() -> None:
    out = call("inspect", "0.999").stdout
    for text in ("bfloat16", "0x1p+0", "0 | 01111111 | 0000000", "0x3f80", "1, -0.00099945068359375"):
        assert text in out


def test_inspect_in_several_formats() -> None:
    out = call("inspect", "1/3", "--format", "bf16", "--format", "e4m3fn", "--rounding", "up").stdout
    assert out.splitlines()[0].split() == ["1/3", "bfloat16", "float8_e4m3fn"]
    assert "0.333984375" in out
    assert "0.34375" in out
    assert "448" in call("inspect", "1e9", "--format", "e4m3fn", "--overflow", "saturate").stdout


def test_inspect_underflows_by_the_policy_and_knows_every_kind_of_format() -> None:
    arguments = ("inspect", "0x1.8p-8", "--format", "e4m3fn", "--underflow")
    rounded = [
        call(*arguments, policy).stdout.splitlines()[2].split()[1] for policy in ("gradual", "flush_before")
    ]
    assert rounded == ["0.005859375", "0"]
    out = call(
        "inspect", "0.1", *(f"--format={name}" for name in ("posit16", "int8", "e8m0fnu", "binary8p3se"))
    )
    assert out.stdout.splitlines()[2].split() == ["rounded", "0.100006103515625", "0", "0.125", "0.09375"]
    assert "underflow" in refused(*arguments, "sometimes")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("-0", "0x8000"),
        ("-inf", "0xff80"),
        ("nan", "0x7fc0"),
        ("-1/3", "0xbeab"),
        ("-0x1.8p3", "0xc140"),
        ("-.5", "0xbf00"),
    ],
)
def test_inspect_takes_signs_and_special_values(value: str, code: str) -> None:
    assert code in call("inspect", value).stdout


@pytest.mark.slow
def test_simulate_saves_what_it_ran(tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "run.npz", tmp_path / "checkpoint.npz"
    result = call(
        *QUADRATIC,
        *(
            "--strategy",
            "plain",
            "--strategy",
            "fp32-master",
            "--lr",
            "1e-2",
            "--beta2",
            "0.99",
            "--eps",
            "1e-6",
        ),
        *("--clip", "inf", "--record-every", "5", "--truth-sample", "3", "--low", "bf16", "--seed", "4"),
        *("--condition-number", "10", "--problem-seed", "2"),
        *("--output", str(path), "--checkpoint", str(checkpoint)),
    )
    out = result.stdout
    for text in ("quadratic, adamw:", "beta2 = 0.99", "plain", "fp32-master", "one-step", f"saved {path}"):
        assert text in out
    assert checkpoint.exists()
    run = mcf.Run.load(path)
    assert run.settings["problem"] == {
        **{"kind": "quadratic", "dimension": 8, "condition_number": 10.0, "seed": 2}
    }
    assert run.settings["optimizer"] == {
        **{"name": "adamw", "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1}
    }
    assert run.settings["schedule"] == {"peak": 0.01, "warmup": 5, "final": 0.1}
    assert run.settings["clip"] is None
    assert run.settings["seed"] == 4
    np.testing.assert_array_equal(run.steps, [1, 5, 10, 15, 20, 25, 30])
    again = mcf.simulate(
        mcf.get_problem("quadratic", dimension=8, condition_number=10.0, seed=2),
        *(mcf.AdamW(beta2=0.99, epsilon=1e-6), ["plain", "fp32-master"], 30, mcf.Schedule(1e-2, 5), 4),
        **{"clip": None, "record_every": 5, "truth_sample": 3},
    )
    assert again.results == run.results
    for name, series in again.series.items():
        for measure, numbers in series.items():
            np.testing.assert_array_equal(numbers, run.series[name][measure])


def test_simulate_with_sgd() -> None:
    out = call(*QUADRATIC, "--optimizer", "sgd", "--momentum", "0.5", "--strategy", "kahan").stdout
    assert "sgd: momentum = 0.5" in out
    assert "v / exact" not in out
    assert "fp32-master" not in out


def test_simulate_rosenbrock_without_a_dimension() -> None:
    assert (
        "exact" in call("simulate", "--problem", "rosenbrock", "--steps", "3", "--strategy", "exact").stdout
    )


def test_simulate_shapes_the_language_model() -> None:
    shape = ("--layers", "1", "--width", "8", "--heads", "2", "--context", "8", "--batch", "2")
    out = call("simulate", *shape, "--steps", "2", "--strategy", "plain", "--strategy", "collage-plus").stdout
    assert "collage-plus" in out


def test_an_optimizer_with_means_is_simulated_and_shown() -> None:
    run = ("--optimizer", "adafactor", "--strategy", "plain", "--least-scale", ".25", "--eps", "1e-20")
    printed = call(*QUADRATIC, *run).stdout
    assert "quadratic, adafactor: beta2_power = 0.8, epsilon = 1e-20, threshold = 1.0" in printed
    assert "least_scale = 0.25" in printed
    shown = call("show", "momentumadafactor").stdout
    assert re.search(r"matrix +row_mean +row +mean of square, rounded once", shown)
    assert re.search(r"vector +momentumadafactor\.averaged +element +Average the updates", shown)
    told = refused("show", "adafactor", "--as", "cost")
    assert "a step of adafactor is made in stages, each a text of its own: adafactor.squares, " in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("formats", "bf17"),
            "unknown format 'bf17' (did you mean 'bf16'?); known formats: float64, float32",
        ),
        (("inspect", "1", "--format", "bf17"), "unknown format 'bf17'"),
        (("inspect", "abc"), "'abc' is no number; allowed: a decimal"),
        (("inspect", "--fromat"), "'--fromat' is no number"),
        (("inspect", "1/0"), "denominator zero"),
        (("inspect", "1", "--rounding", "x"), "unknown rounding 'x'; allowed: nearest_even"),
        (("inspect", "1", "--overflow", "x"), "unknown overflow 'x'; allowed: ieee, saturate"),
        (("simulate", "--problem", "x"), "unknown problem 'x'; known problems: quadratic"),
        (
            ("simulate", "--optimizer", "x"),
            "unknown optimizer 'x'; known optimizers: adafactor, momentumadafactor, adamw, lion",
        ),
        ((*QUADRATIC, "--strategy", "x"), "unknown strategy 'x'; known strategies: plain"),
        ((*QUADRATIC, "--low", "x"), "unknown format 'x'"),
        (
            (*QUADRATIC, "--width", "3"),
            "problem 'quadratic' has no --width; it takes --dimension, --condition-number",
        ),
        (
            (*QUADRATIC, "--momentum", ".5"),
            "optimizer 'adamw' has no --momentum; it takes --beta1, --beta2, --eps",
        ),
        ((*QUADRATIC, "--beta1", "2"), "beta1 = 2.0 must lie in [0, 1)"),
        ((*QUADRATIC, "--clip", "-1"), "clip = -1.0 must be positive"),
        ((*QUADRATIC, "--output", "/no/such/folder/run.npz"), "cannot write /no/such/folder/run.npz"),
    ],
)
def test_refusals(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


def test_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "state.npz"), "--strategy", "plain")
    call(*QUADRATIC, *checkpoint)
    assert "is of another run" in refused(*QUADRATIC, *checkpoint, "--seed", "1")


@pytest.mark.parametrize(
    "arguments", [(), ("nope",), ("inspect",), ("simulate", "--nope"), ("simulate", "--steps", "x")]
)
def test_wrong_usage(arguments: tuple[str, ...]) -> None:
    assert "Usage" in call(*arguments, status=2).output


def test_help_names_every_command() -> None:
    out = call("--help").stdout
    assert all(command in out for command in ("formats", "inspect", "show", "simulate"))


@pytest.mark.parametrize(
    "command", [[str(Path(sys.executable).with_name("mcfsim"))], [sys.executable, "-m", "mcfsim"]]
)
@pytest.mark.slow
def test_the_installed_command(command: list[str]) -> None:
    if not Path(command[0]).exists():
        pytest.skip("the console script is not installed")
    done = subprocess.run([*command, "inspect", "0.999"], capture_output=True, text=True, check=True)
    assert "0x3f80" in done.stdout
    wrong = subprocess.run([*command, "formats", "bf17"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("Error: unknown format 'bf17'")
    assert "Traceback" not in wrong.stderr
