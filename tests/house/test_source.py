"""The digest of the package's source: of every file's path and content, and in the key of every check."""

import shutil
from pathlib import Path

import pytest

import mcfsim
from mcfsim.sweeps import source
from mcfsim.theorems import check
from mcfsim.theorems.verification import prepare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("every", [30, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_file_counts(every, tmp_path):
    package = Path(shutil.copytree(Path(mcfsim.__file__).parent, tmp_path / "copy"))
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "eft.pyc").write_bytes(b"compiled")
    assert source._digest(package) == source.DIGEST
    digests = {source.DIGEST}
    files = sorted(package.rglob("*.py"))
    assert len(files) > 100
    files = files[::every]
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content + b"#")
        digests.add(source._digest(package))
        file.write_bytes(content)
    files[-1].rename(files[-1].with_name("another.py"))
    digests.add(source._digest(package))
    assert len(digests) == len(files) + 2


def test_results_of_another_source_are_not_taken_from_a_journal(monkeypatch):
    one = prepare("two_sum", "float8_e5m2", "nearest_even")
    key = one.key
    assert prepare("two_sum", "float8_e5m2", "nearest_even").key == key
    monkeypatch.setattr(check, "DIGEST", "of another source")
    assert one.key != key
