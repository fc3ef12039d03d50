"""Pages of the documentation by name, and their examples: what they say, and what comes when they run.

`python -m tests.shared.pages` writes what comes into the pages whose examples run here; with paths it says
what differs.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from difflib import unified_diff
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from experiments.common import PAGES
from mcfsim.storage.files import write_text

BLOCK = re.compile(r"^```(python|pycon|console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Characters of a line that the pages show, and the line that stands for what they leave out.
WIDTH, CUT = 140, "..."


def page(name: str) -> Path:
    """Return where the page of a name lies."""
    (found,) = (path for path in PAGES if path.stem == name)
    return found


def examples(name: str) -> list[str]:
    """Return the examples in Python of a page."""
    return re.findall(r"```python\n(.*?)```", page(name).read_text(), re.DOTALL)


#: Pages whose examples other tests run, in their own ways, and those that have none to run.
ELSEWHERE = {
    **dict.fromkeys(
        ("README", "optimizers", "own_optimizer", "emulator", "dqt"), "experiments/test_readme.py"
    ),
    **dict.fromkeys(("own_theorems", "every_p", "every_bound"), "theorems/test_own.py"),
    **{"analyse": "analysis/test_page.py", "replay": "pytorch/test_seen.py"},
    **{"train": "pytorch/test_trainers.py", "contributing": "house/test_contributing.py"},
    "kernels": "generated sources",
    "gpu": "a GPU is needed",
}


def tried_here() -> list[Path]:
    """Return the pages whose examples run here."""
    return [path for path in PAGES if BLOCK.search(path.read_text()) and path.stem not in ELSEWHERE]


def carried_out(text: str) -> str:
    """Return a page with what its examples print, run in turn, in the present folder.

    A block of text shows what the Python before it printed.
    """
    names: dict[str, Any] = {}
    printed = StringIO()

    def run(match: re.Match[str]) -> str:
        nonlocal printed
        kind, code = match.groups()
        match kind:
            case "python":
                with redirect_stdout(StringIO()) as printed:
                    exec(compile(code, "page", "exec"), names)
            case "text":
                code = printed.getvalue()
            case "pycon":
                code = _session(code, names)
            case "console":
                code = _console(code)
        return f"```{kind}\n{code}```"

    return BLOCK.sub(run, text)


def _session(code: str, names: dict[str, Any]) -> str:
    """Return what a session at Python's prompt shows."""
    shown = []
    for example in doctest.DocTestParser().get_examples(code):
        first, *more = example.source.splitlines()
        shown += [f">>> {first}", *(f"... {line}".rstrip() for line in more)]
        with redirect_stdout(StringIO()) as printed:
            exec(compile(example.source, "page", "single"), names)
        shown += printed.getvalue().splitlines()
    return "".join(f"{line}\n" for line in shown)


def _console(code: str) -> str:
    """Return what commands print in a terminal, as many lines as the page shows where it ends in ``...``."""
    shown = []
    for text in re.split(r"^(?=\$ )", code, flags=re.MULTILINE)[1:]:
        command, *before = text.splitlines()
        printed = _printed(command[2:])
        cut = before[-1:] == [CUT]
        shown += [command, *(printed[: len(before) - 1] if cut else printed), *[CUT] * cut]
    return "".join(f"{line}\n" for line in shown)


def _printed(command: str) -> list[str]:
    """Return the lines that a command prints."""
    from tests.cli.runner import call

    program, *words = shlex.split(command)
    if program != "mcfsim":
        raise ValueError(f"only mcfsim is called on pages, not {program}")
    with patch.dict(os.environ, COLUMNS=str(WIDTH)):
        return [line.rstrip() for line in call(*words).output.rstrip().splitlines()]


def timeless(text: str) -> str:
    """Return a page without what each run prints anew: speeds, and the width of their column."""
    lines: list[str] = []
    place = None  # where the column of speeds ends
    for line in text.splitlines():
        if "M/s" in line and "cases" in line:
            place = line.index("M/s") + len("M/s")
        elif place is not None and not line:
            place = None
        if place is not None:
            line = re.sub(r" [\d.]+$", " ", line[:place]) + line[place:]
            line = re.sub(r" {2,}|─+", "  ", line).rstrip()
        lines.append(line)
    return "\n".join(lines)


def shown_and_printed(path: Path) -> tuple[str, str]:
    """Return a page as it is, and as it is carried out in a folder of its own."""
    before = path.read_text()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return before, carried_out(before)


def differences(path: Path) -> str:
    """Return what a page shows beside what comes, line by line; "" if it is the same."""
    texts = (timeless(text).splitlines() for text in shown_and_printed(path))
    return "\n".join(unified_diff(*texts, "shown", "printed", lineterm="", n=1))


def main(paths: list[str]) -> None:
    """Write what comes into the pages, or with paths say what these show otherwise."""
    if paths:
        sys.exit("\n".join(filter(None, (differences(Path(path)) for path in paths))) or 0)
    for path in tried_here():
        before, after = shown_and_printed(path)
        if timeless(after) != timeless(before):
            write_text(path, after)


if __name__ == "__main__":
    main(sys.argv[1:])
