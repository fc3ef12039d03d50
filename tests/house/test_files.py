"""Whether a name that is given twice is found, and a file that is too short or too long."""

import ast
import re

import pytest

from experiments import common
from tests.house.files import CLASSES, FILES, LEAST, LONG, MOST, PACKAGE, SHORT, classes, homonyms, sizes

ROOT = PACKAGE.parent


@pytest.mark.parametrize(
    ("second", "text", "found"),
    [
        ("b/other.py", "class Other: pass", []),
        ("b/one.py", "", ["file one.py is there 2 times"]),
        ("b/other.py", "def f():\n    class One: pass", ["class One is there 2 times"]),
        ("a/other.py", "class AdamW: pass\nclass AdamW: pass", []),
    ],
)
def test_a_second_file_or_class_of_a_name_is_found(second, text, found, tmp_path):
    for name, content in (("a/one.py", "class One: pass"), (second, text)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert [line.partition(":")[0] for line in homonyms(tmp_path.rglob("*.py"))] == found


@pytest.mark.parametrize("lines", [LEAST - 1, LEAST, MOST, MOST + 1])
@pytest.mark.parametrize("name", ["one.py", "__init__.py", "numpy.py"])
def test_a_file_of_another_size_is_found(name, lines, tmp_path):
    (tmp_path / name).write_text("\n" * lines)
    wrong = (lines < LEAST and name not in SHORT) or (lines > MOST and name not in LONG)
    assert len([*sizes([tmp_path / name])]) == wrong


@pytest.mark.slow
def test_the_package_has_no_others_and_all_that_may_be():
    paths = [*PACKAGE.rglob("*.py")]
    assert [*homonyms(paths), *sizes(paths)] == []
    lines = {path.name: path.read_text().count("\n") for path in paths}
    assert all(lines[name] > MOST for name in LONG)
    named = [name for path in paths for name in classes(path)]
    assert all(named.count(name) > 1 for name in CLASSES)
    assert all(sum(path.name == name for path in paths) > 1 for name in FILES)


PAGES = [*common.PAGES, ROOT / "tests" / "README.md"]


@pytest.fixture(scope="module")
def known():
    folders = ROOT / "mcfsim", ROOT / "tests", ROOT / "experiments"
    return [path.as_posix() for folder in folders for path in folder.rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_files_that_are_there(page, known):
    named = re.findall(r"`([\w/-]+\.py)`", page.read_text())
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in known)] == []


#: Folders whose tests are collected only where PyTorch is installed, and what is no test.
WITH_TORCH = {"pytorch", "benchmarks"}


@pytest.mark.slow
def test_tests_are_collected_where_pytorch_is_not_installed():
    """What `test-lowest` and `test-newest` would say, before they are run."""
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if "torch" in text and path.relative_to(ROOT / "tests").parts[0] not in WITH_TORCH:
            for node in ast.parse(text).body:
                names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
                names |= {node.module or ""} if isinstance(node, ast.ImportFrom) and not node.level else set()
                if any(name.split(".")[0] == "torch" or name.startswith("mcfsim.torch") for name in names):
                    wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == []
