"""Standard output and error that are closed, full, or lack characters: how the command line ends."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mcfsim as mcf
from mcfsim import cli
from mcfsim.checks.printable import printable
from tests.models.files import checkpoint, raw_safetensors

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "mcfsim")


def run(words: tuple[str, ...], shell: str = "", **options) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does, with these redirections."""
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", *COMMAND, *words]
    return subprocess.run(line, text=True, stderr=subprocess.PIPE, check=False, **options)


@pytest.mark.parametrize("words", [("formats",), ("--help",), ("audit", "--help"), ("audit", "nowhere")])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.sampled(2)
def test_a_reader_that_goes_away_ends_it_by_the_signal(words, stream):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        streams = {"stdout": pipe, "stderr": subprocess.PIPE} if stream == "stdout" else {"stderr": pipe}
        done = subprocess.run([*COMMAND, *words], check=False, **streams)
    if (stream == "stderr") == (words == ("audit", "nowhere")):
        assert done.returncode == -signal.SIGPIPE
    else:  # nothing was written there
        assert done.returncode == (2 if words == ("audit", "nowhere") else 0)
    assert not done.stderr or b"Error: [Errno 2]" not in done.stderr or stream == "stdout"


def test_what_it_writes_meanwhile_is_whole_or_not_there(tmp_path: Path):
    checkpoint(tmp_path / "m.safetensors")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        words = ("audit", "m.safetensors", "--steps", "2", "--samples", "16", "--json", "x.json")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([*COMMAND, *words], check=False, stdout=pipe, cwd=tmp_path, env=environment)
    assert done.returncode == -signal.SIGPIPE
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize(
    ("shell", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("words", [("formats",), ("--help",)])
def test_what_cannot_be_written_is_one_line_of_refusal(words, shell, why):
    done = run(words, shell)
    assert (done.returncode, done.stderr) == (2, f"Error: cannot write standard output: {why}\n")


def test_standard_error_that_is_closed_changes_no_status():
    assert run(("audit", "nowhere"), "2>&-").returncode == 2
    assert run(("formats",), "2>&- >/dev/null").returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_the_signs_is_no_error(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60"}
    done = run(("formats", "bf16"), env=environment, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2500" in done.stdout


# -- text of others ------------------------------------------------------------------------------------------
def test_of_all_characters_those_pass_that_are_signs():
    for code in (*range(0x3000), *range(0x3000, sys.maxunicode + 1, 61)):
        shown = printable(chr(code))
        assert shown.isprintable()
        if chr(code).isprintable():
            assert shown == chr(code)
        else:
            assert ord(shown.encode("ascii").decode("unicode_escape")) == code


#: Names of tensors and files that a terminal would obey, or that would look like lines of the command's own.
EVIL = ("\x1b]0;title\x07\x1b[31m", "a\nError: b", "\x9b2J\x7f", "\u202ecba\u2066", "[red]x[/red]\r\u2028")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((4, 4)).astype(np.float32) for name in EVIL}
    stored = {name: ("F32", x) for name, x in tensors.items()}
    folder = tmp_path / EVIL[0]
    folder.mkdir()
    raw_safetensors(folder / "m.safetensors", {**stored, "n" + EVIL[1]: ("I64", np.arange(3))})
    bad = {name: ("F32", np.full(4, np.nan, np.float32)) for name in EVIL}
    raw_safetensors(folder / "bad.safetensors", bad)
    (folder / "certificate.json").write_text("{}")
    recorder = mcf.record(tensors, folder / "rec")
    recorder.step(tensors, 0.1)
    return folder


@pytest.mark.parametrize("columns", [None, "60", "200"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("audit", "m.safetensors", "--steps", "2", "--samples", "16", "--json", "x.json"), 0),
        (("audit", "bad.safetensors"), 2),
        (("audit", "m.safetensors", "--gradients", "rec", "--json", "m.safetensors"), 2),
        (("assign", "m.safetensors", "--steps", "2", "--samples", "16", "--csv", "x.csv"), 0),
        (("replay", "rec", "--strategy", "plain", "--output", "x.npz"), 0),
        (("memory", "m.safetensors"), 0),
        (("memory", "m.safetensors", "--markdown"), 0),
        (("verify", "--check", "certificate.json"), 2),
        (("show", "two_sum", "--as", "network", "--output", "x.svg"), 0),
    ],
)
def test_names_reach_the_terminal_as_text(words, status, columns, evil, monkeypatch):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    places = [str(evil / word) if "." in word or word == "rec" else word for word in words]
    result = CliRunner().invoke(cli.app, places)
    assert result.exit_code == status, result.output
    lines = result.output.split("\n")
    assert all(map(str.isprintable, lines)), [line for line in lines if not line.isprintable()]
    assert "\\x1b]0;title" in result.output
    assert sum(line.startswith("Error: ") for line in lines) == (status == 2)


def test_all_that_commands_print_is_made_fit():
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "typer.echo",
                "typer.secho",
            ):
                said = ast.unparse(node.args[0])
                assert "printable(" in said or "version(" in said, (path.name, node.lineno)
