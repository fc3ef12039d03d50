"""The examples of the pages run, and print what the pages show; each example has a test."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from experiments.common import PAGES, ROOT
from tests.cli.runner import call
from tests.shared import pages

pytestmark = pytest.mark.slow
#: Packages that some examples need.
NEEDED = {"torch": "mcfsim.torch", "distributed": "LocalCluster"}


def tried(path):
    """Return a page as a case; one with commands and sessions that are short is tried always."""
    marks = () if path.stem == "first_theorem" else pytest.mark.exhaustive
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [tried(path) for path in pages.tried_here()])
def test_examples_print_what_the_page_shows(path):
    """In a process of its own, where matrices are multiplied by the kernel that the experiments choose."""
    text = path.read_text()
    for package, sign in NEEDED.items():
        if sign in text and find_spec(package) is None:
            pytest.skip(f"needs {package}")
    environment = os.environ | {"OPENBLAS_CORETYPE": "Haswell", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.shared.pages", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_page_with_examples_has_a_test():
    with_examples = {path.stem for path in PAGES if pages.BLOCK.search(path.read_text())}
    assert with_examples == {path.stem for path in pages.tried_here()} | pages.ELSEWHERE.keys()
    for name, where in pages.ELSEWHERE.items():
        assert not where.endswith(".py") or name in (ROOT / "tests" / where).read_text()


def test_what_is_shown_wrongly_is_found(tmp_path):
    page = tmp_path / "page.md"
    for right, wrong in (
        ("```pycon\n>>> 1 + 1\n2\n```\n", "```pycon\n>>> 1 + 1\n3\n```\n"),
        ("```python\nprint(7)\n```\n\n```text\n7\n```\n", "```python\nprint(7)\n```\n\n```text\n8\n```\n"),
        (
            f"```console\n$ mcfsim --version\n{call('--version').output}```\n",
            "```console\n$ mcfsim --version\nmcfsim 0.0.7\n```\n",
        ),
    ):
        page.write_text(right)
        assert pages.differences(page) == "", right
        page.write_text(wrong)
        assert "+++ printed" in pages.differences(page), wrong
    page.write_text("```console\n$ rm -r x\n```\n")
    with pytest.raises(ValueError, match="only mcfsim is called"):
        pages.differences(page)
