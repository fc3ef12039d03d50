"""Journals keep what they are given, and refuse files that are none of theirs, and rows that were altered.

Random damage of whole journals is in `tests.storage.test_mutated_files`.
"""

import multiprocessing
import os
import sqlite3
import threading
from contextlib import closing

import pytest

from mcfsim.sweeps.journal import _OPENING, VERSION, Journal

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def written(path, statement, *values):
    """Alter a journal behind its back."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement, values)
        database.commit()


def test_any_integers_and_texts_are_kept_and_jobs_dropped_by_name(path):
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


def database(path, mode):
    with closing(sqlite3.connect(path)) as made:
        made.execute(f"PRAGMA journal_mode = {mode}")
        made.execute("CREATE TABLE units (job, start, stop, result)")
        made.commit()


def full(path, alter):
    with Journal(path) as journal:
        for start in range(2000):
            journal.record("job", start, start + 1, "{}")
    path.write_bytes(alter(path.read_bytes()))


def later(content):
    return content[:60] + (VERSION + 1).to_bytes(4, "big") + content[64:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("Chapter 1. " * 40), "is no journal of a sweep"),
        (lambda path: path.write_bytes(b"SQLite"), "is no journal of a sweep"),
        (lambda path: database(path, "delete"), "is no journal of a sweep"),
        (lambda path: database(path, "wal"), "is no journal of a sweep"),
        (lambda path: full(path, later), "journal .*file is of version 3; this mcfsim has version 2"),
        (lambda path: full(path, lambda x: x[:100] + bytes(len(x) - 100)), "cannot be used: .*malformed"),
        (os.mkfifo, "file is no regular file, and so no journal"),
    ],
    ids=["text", "short", "rollback", "WAL", "version", "damaged", "pipe"],
)
def test_a_foreign_or_damaged_file_is_refused_and_left_alone(make, message, tmp_path):
    path = tmp_path / "file"
    make(path)
    content = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ValueError, match=message):
        Journal(path)
    assert not path.is_file() or path.read_bytes() == content
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_path_where_no_file_can_be_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        Journal(tmp_path)
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
    written(path, f"UPDATE units SET {column} = ? WHERE job = 'job'", value)
    job = value if column == "job" else "job"
    with Journal(path) as journal:
        with pytest.raises(ValueError, match=rf"journal .* is damaged: the row of job '{job}', range \["):
            journal.results(job)
        assert journal.results("other") == {(0, 10): "{}"}
        # A new result takes its place, or the job is forgotten.
        journal.drop([job])
        journal.record(job, 0, 10, sound[0, 10])
        assert journal.results(job) == sound


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE units", "CREATE TABLE units (job, start, stop, result, digest)"],
        ["DROP TABLE units", "CREATE VIEW units AS SELECT 1 AS job, 2 AS start, 3 AS stop, 4 AS result"],
        ["CREATE TABLE another (a)"],
        ["CREATE TRIGGER t AFTER INSERT ON units BEGIN DELETE FROM units; END"],
        ["ALTER TABLE units ADD COLUMN more"],
    ],
)
def test_another_layout_is_refused(statements, path):
    Journal(path).close()
    for statement in statements:
        written(path, statement)
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
    monkeypatch.setattr("mcfsim.sweeps.journal._OPENING", Colliding(_OPENING))
    both, ends = threading.Barrier(2), []

    def take():
        try:
            with Journal(path):
                ends.append("opened")
                both.wait()
        except ValueError as problem:
            ends.append(str(problem))
            both.wait()

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal = f"journal {path} is in use by another run; wait for it, or name another"
    assert sorted(ends) == [refusal, "opened"]


def opens(path, together, told, end):
    together.wait()
    try:
        with Journal(path):
            told.put("opened")
            end.wait()
    except ValueError as problem:
        told.put("refused" if "is in use by another run" in str(problem) else str(problem))


def test_of_several_processes_exactly_one_gets_a_new_journal(path):
    forking = multiprocessing.get_context("fork")
    told, end = forking.SimpleQueue(), forking.Event()
    given = path, forking.Barrier(3), told, end
    processes = [forking.Process(target=opens, args=given) for _ in range(3)]
    for process in processes:
        process.start()
    found = sorted(told.get() for _ in processes)
    end.set()
    for process in processes:
        process.join()
    assert found == ["opened", "refused", "refused"]
