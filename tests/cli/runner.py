"""The command line run in this process, made once."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from mcfsim.cli import app

_APPLICATION: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = dict(_APPLICATION.commands)
#: The functions that are declared as commands.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: inspect.unwrap(x.callback) for name, x in COMMANDS.items()}


class Result(NamedTuple):
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(*words: str | Path) -> Result:
    """Run a command, whose exceptions are the caller's."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")  # as Python opens it
    status: Any = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            _APPLICATION.main([str(word) for word in words], prog_name="mcfsim")
        except SystemExit as end:
            status = end.code or 0
        except BaseException as error:
            error.add_note(f"by the command {words!r}")
            raise
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(status, *texts)


def call(*words: str | Path, status: int = 0) -> Result:
    """Return what a command printed that must end with a status."""
    result = invoke(*words)
    assert result.exit_code == status, (words, result)
    return result


def refused(*words: str | Path) -> str:
    """Return the one line on standard error."""
    result = call(*words, status=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr
