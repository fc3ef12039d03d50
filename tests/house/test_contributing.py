"""The examples of contributing.md: each diff applies to the package, and its example then works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.pages import page

ROOT = Path(__file__).parents[2]
PAGE = page("contributing").read_text()
#: What each section adds, with the diff and what then works.
EXAMPLES = re.findall(r"^## (.*?)$.*?^```diff\n(.*?)^```\n.*?^```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_there_is_an_example_of_each():
    assert [name for name, _, _ in EXAMPLES] == re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    files = {name: re.findall(r"^\+\+\+ b/mcfsim/", diff, re.MULTILINE) for name, diff, _ in EXAMPLES}
    assert all(len(touched) == 1 for touched in files.values())


@pytest.mark.slow
@pytest.mark.costly("a copy of the package is changed, and a process for all examples works with it")
def test_the_examples_apply_and_work(tmp_path):
    for name in ("mcfsim", "tests", "experiments"):  # with what is compiled of them
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, diff, _ in EXAMPLES:
        # Counts and places of hunks are those of the day on which they were written.
        command = ["git", "apply", "--recount", "--unsafe-paths", f"--directory={tmp_path}", "-"]
        done = subprocess.run(command, input=diff, cwd=tmp_path, capture_output=True, text=True)
        assert not done.returncode, (name, done.stderr)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = "\n".join(code for _, _, code in EXAMPLES)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stdout + done.stderr
