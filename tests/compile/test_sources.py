"""Generated sources as files: where they lie, and made anew if they are damaged."""

import os

import pytest

from mcfsim.compile import sources

TEXT = "number = 3\n"


@pytest.mark.parametrize("damage", [b"", b"numb", b"\x80\xff", b"number = 4\n"])
def test_damaged_files_are_made_anew(damage, cache_folder):
    assert sources.imported(TEXT).number == 3
    path = sources.path_of(TEXT)
    for damaged in (path, *sources.kept(path)):
        damaged.write_bytes(damage)
        assert sources.imported(TEXT).number == 3
    assert path.read_text() == TEXT
    assert sources.path_of(TEXT + "#") != path != sources.path_of(TEXT, b"another")


def test_a_cache_folder_that_is_a_file_is_made_elsewhere(cache_folder):
    (cache_folder / "mcfsim").write_text("in the way")
    assert sources.imported(TEXT).number == 3


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write anywhere")
def test_a_cache_that_cannot_be_written_is_made_elsewhere(cache_folder):
    cache_folder.chmod(0o500)
    assert not str(sources.folder()).startswith(str(cache_folder))
