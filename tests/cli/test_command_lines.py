"""Command lines in the documentation, and the help of all commands, say what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from mcfsim.cli import app

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
#: Lines of blocks, and code in running text.
WRITTEN = re.compile(r"^(?:\$ )?(mcfsim .*?)(?: +#.*)?$|`(mcfsim [^`]+)`", re.MULTILINE)


def lines() -> list[tuple[str, str]]:
    """Return the command lines of each page, without names of commands alone and what is cut short."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block, inline in WRITTEN.findall(page.read_text("utf-8")):
            line = " ".join((block or inline).split())
            if "..." not in line and len(line.split()) > 2 and line.split()[1] in COMMANDS:
                found.append((page.name, line))
    return found


@pytest.mark.parametrize(("page", "line"), lines())
def test_a_command_line_of_the_documentation_is_one(page: str, line: str) -> None:
    _, name, *words = shlex.split(line)
    said = ""
    try:
        COMMANDS[name].make_context(name, list(words))
    except typer.BadParameter as error:
        said = error.format_message()
    except Exception as error:
        said = str(error)
    # Running text names options without what they take, or need not repeat arguments.
    assert said in ("", f"Option '{words[-1]}' requires an argument.") or said.startswith("Missing argument")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_each_text_as_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are brackets, as in ``mcfsim[solver]``, and no markup."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    words = set(re.findall(r"\S*\[[^\]\s]*\]\S*", shown))
    about = [item.__dict__.get("help") or "" for item in COMMANDS[name].params]
    for text in (*about, COMMANDS[name].epilog or "", COMMANDS[name].help or ""):
        for word in re.findall(r"\w+\\?\[\w+\]", text):
            assert any(word.replace("\\", "") in one for one in words), word
    assert name != "verify" or any("mcfsim[solver]" in word for word in words)
