"""Standard output and error that are closed, full, or lack characters; and that obey no text of others."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mcfsim as mcf
from mcfsim import cli
from mcfsim.checks import printable
from tests.cli.runner import invoke
from tests.models.files import checkpoint, raw_safetensors

pytestmark = pytest.mark.slow

PRINTING = ("print", "typer.echo", "typer.secho")
COMMAND = (sys.executable, "-m", "mcfsim")


@pytest.fixture
def end(monkeypatch, tmp_path):
    """Return a function that runs the command on streams; it returns how it ended, and what was refused."""

    def end(line, **streams):
        monkeypatch.setattr("mcfsim.cli.application._end_by_signal", lambda: sys.exit("the signal"))
        monkeypatch.setattr(sys, "argv", ["mcfsim", *line.split()])
        status = 0
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            for name, stream in ({"stdout": out, "stderr": err} | streams).items():
                monkeypatch.setattr(sys, name, stream)
            try:
                cli.main()
            except SystemExit as ended:
                status = ended.code or 0
            if streams.get("stderr", err) is None:
                sys.stderr.close()  # what it opens instead
        return status, (tmp_path / "err").read_text()

    return end


@pytest.fixture
def broken_pipe():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        yield pipe


@pytest.mark.parametrize("line", ["formats", "--help", "audit --help", "audit nowhere"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_ends_it_by_the_signal(line, stream, end, broken_pipe):
    status, said = end(line, **{stream: broken_pipe})
    refused = line == "audit nowhere"
    written = (stream == "stderr") == refused
    assert status == ("the signal" if written else 2 if refused else 0)
    assert ("Error: " in said) == (refused and stream == "stdout")


def test_what_it_writes_meanwhile_is_whole_or_not_there(tmp_path, broken_pipe):
    checkpoint(tmp_path / "m.safetensors")
    words = ("audit", "m.safetensors", "--steps", "2", "--samples", "16", "--json", "x.json")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*COMMAND, *words], check=False, stdout=broken_pipe, cwd=tmp_path, env=environment)
    assert done.returncode == -signal.SIGPIPE
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("line", ["formats", "--help"])
def test_what_cannot_be_written_is_one_line_of_refusal(line, end):
    refusal = "Error: cannot write standard output: {}\n"
    with open("/dev/full", "w") as full:
        assert end(line, stdout=full) == (2, refusal.format("No space left on device"))
    assert end(line, stdout=None) == (2, refusal.format("it is closed"))
    # Where standard error is closed, the status is the same.
    assert end(line, stderr=None) == (0, "")
    assert end("audit nowhere", stderr=None) == (2, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_the_signs_is_no_error(encoding, end, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    with open(tmp_path / "text", "w", encoding=encoding) as text:
        assert end("formats bf16", stdout=text) == (0, "")
    assert "\\u2500" in (tmp_path / "text").read_text(encoding)


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
def evil(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, tensors = tmp_path / EVIL[0], {name: np.eye(4, dtype=np.float32) + 0.125 for name in EVIL}
    mcf.record(tensors, folder / "rec").step(tensors, 0.1)
    raw_safetensors(folder / "m.safetensors", {**tensors, "n" + EVIL[1]: np.arange(3)})
    raw_safetensors(folder / "bad.safetensors", {name: x * np.float32(np.nan) for name, x in tensors.items()})
    (folder / "certificate.json").write_text("{}")
    return folder


#: Commands in the folder, and how each ends.
LINES = {
    "audit m.safetensors --steps 2 --samples 16 --json x.json": 0,
    "audit bad.safetensors": 2,
    "audit m.safetensors --gradients rec --json m.safetensors": 2,
    "assign m.safetensors --steps 2 --samples 16 --csv x.csv": 0,
    "replay rec --strategy plain --output x.npz": 0,
    "memory m.safetensors": 0,
    "memory m.safetensors --markdown": 0,
    "verify --check certificate.json": 2,
    "show two_sum --as network --output x.svg": 0,
}


@pytest.mark.parametrize("columns", ["", "60", "200"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.sampled(4)
def test_names_reach_the_terminal_as_text(line, columns, evil, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    result = invoke(*(evil / word if "." in word or word == "rec" else word for word in line.split()))
    assert result.exit_code == LINES[line], result
    lines = result.output.split("\n")
    assert all(map(str.isprintable, lines)), [line for line in lines if not line.isprintable()]
    assert "\\x1b]0;title" in result.output
    assert sum(text.startswith("Error: ") for text in lines) == (LINES[line] == 2)


def test_all_that_commands_print_is_made_fit():
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTING:
                said = ast.unparse(node.args[0])
                assert "printable(" in said or "version(" in said, (path.name, node.lineno)
