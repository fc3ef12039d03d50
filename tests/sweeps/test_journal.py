"""Journals keep what they are given, and refuse files that are none of theirs, and rows that were altered.

Random damage of whole journals is in `tests.storage.test_mutated_files`.
"""

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from mcfsim.storage.sweeps.journal import _OPENING, VERSION, Journal

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def test_any_integers_and_texts_are_kept_and_jobs_dropped_by_name(path, monkeypatch):
    monkeypatch.setattr("mcfsim.storage.sweeps.journal._PATIENCE", 0.1)
    job, row = "ключ '\"", (-(2**80), 2**80)
    path.touch()  # what a run leaves that is killed at its very start
    with Journal(path) as journal:
        for text in ('["ü"]', '["ö"]'):
            journal.record(job, *row, text)
        for other in "abc":
            journal.record(other, 0, 1, "{}")
        with pytest.raises(ValueError, match=r"journal .*journal is in use by another run"):
            Journal(path)
        journal.drop(iter("ac"))
    with Journal(path) as journal:
        assert [journal.results(name) for name in (job, *"abc")] == [{row: '["ö"]'}, {}, {(0, 1): "{}"}, {}]
    assert [item.name for item in path.parent.iterdir()] == ["journal"]


def altered(path, *statements, given=()):
    """Alter a database behind its back."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement, given)
        database.commit()


def damaged(path, alter):
    with Journal(path) as journal:
        for start in range(2000):
            journal.record("job", start, start + 1, "{}")
    content = path.read_bytes()
    path.write_bytes(alter(content))


def later(content):
    return content[:60] + (VERSION + 1).to_bytes(4, "big") + content[64:]


def zeroed(content):
    return content[:100] + bytes(len(content) - 100)


NONE, TABLE = "is no journal of a sweep", "CREATE TABLE units (job, start, stop, result, digest)"
#: What is made at the path of a journal, and what is said of it.
FOREIGN = {
    "text": (lambda path: path.write_text("Chapter 1. " * 40), NONE),
    "short": (lambda path: path.write_bytes(b"SQLite"), NONE),
    "rollback": (lambda path: altered(path, "PRAGMA journal_mode = delete", TABLE), NONE),
    "WAL": (lambda path: altered(path, "PRAGMA journal_mode = wal", TABLE), NONE),
    "version": (lambda path: damaged(path, later), "is of version 3; this mcfsim has version 2"),
    "zeros": (lambda path: damaged(path, zeroed), "cannot be used: .*malformed"),
    "pipe": (os.mkfifo, "journal is no regular file, and so no journal"),
    "folder": (os.mkdir, "Is a directory"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_or_damaged_file_is_refused_and_left_alone(name, path):
    make, message = FOREIGN[name]
    make(path)
    content = path.read_bytes() if path.is_file() else b""
    with pytest.raises(IsADirectoryError if name == "folder" else ValueError, match=message):
        Journal(path)
    assert not path.is_file() or path.read_bytes() == content
    assert [item.name for item in path.parent.iterdir()] == ["journal"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="none/journal cannot be used: unable to open"):
        Journal(tmp_path / "none" / "journal")


ALTERED = {
    "start": ["", "x", "1_0", "-1", "5", "9" * 5000, 7, 7.5, b"0", " 0"],
    "stop": ["", "11", "20", "1e1", b"\xff"],
    "result": ["", "{}", '{"sum": 46}', b"{}", 45, "[" * 10**5],
    "digest": ["", "0" * 64, b"\0"],
    "job": ["b"],
}


@pytest.mark.parametrize(("column", "value"), [(name, x) for name, values in ALTERED.items() for x in values])
def test_a_row_that_was_altered_is_refused(column, value, path):
    sound = {(0, 10): '{"sum": 45}'}
    with Journal(path) as journal:
        journal.record("job", 0, 10, sound[0, 10])
        journal.record("other", 0, 10, "{}")
    altered(path, f"UPDATE units SET {column} = ? WHERE job = 'job'", given=(value,))
    job = value if column == "job" else "job"
    with Journal(path) as journal:
        with pytest.raises(ValueError, match=rf"journal .* is damaged: the row of job '{job}', range \["):
            journal.results(job)
        assert journal.results("other") == {(0, 10): "{}"}
        # A new result takes its place, or the job is forgotten.
        journal.drop([job])
        journal.record(job, 0, 10, sound[0, 10])
        assert journal.results(job) == sound


DROP, VIEW = "DROP TABLE units", "CREATE VIEW units AS SELECT 1 AS job, 2 AS start, 3 AS stop, 4 AS result"
TRIGGER = "CREATE TRIGGER t AFTER INSERT ON units BEGIN DELETE FROM units; END"


@pytest.mark.parametrize(
    "statements", [[DROP, TABLE], [DROP, VIEW], [TRIGGER], ["ALTER TABLE units ADD COLUMN more"]]
)
def test_another_layout_is_refused(statements, path):
    Journal(path).close()
    altered(path, *statements)
    with pytest.raises(ValueError, match="its table is not that of a journal"):
        Journal(path)


# -- two at once --------------------------------------------------------------------------------------------
class Colliding:
    """The statements that open a journal, each thread stopped, once, where it keeps others from going on."""

    def __init__(self, statements):
        self.statements, self.both, self.stopped = statements, threading.Barrier(2), threading.local()

    def __iter__(self):
        first, *others = self.statements
        yield first
        yield "SELECT sql FROM sqlite_master"
        if not hasattr(self.stopped, "once"):
            self.stopped.once = True
            self.both.wait()
        yield from others


def test_of_two_that_open_a_new_journal_at_once_one_is_refused(monkeypatch, path):
    monkeypatch.setattr("mcfsim.storage.sweeps.journal._OPENING", Colliding(_OPENING))
    both = threading.Barrier(2)

    def take(_):
        try:
            with Journal(path):
                both.wait()
                return "opened"
        except ValueError as problem:
            both.wait()
            return str(problem)

    with ThreadPoolExecutor(2) as pool:
        ends = sorted(pool.map(take, range(2)))
    assert ends == [f"journal {path} is in use by another run; wait for it, or name another", "opened"]
