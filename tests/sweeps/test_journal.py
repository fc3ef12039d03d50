"""Journals keep what they are given, and refuse files that are none of theirs."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from mcfsim.sweeps.journal import _OPENING, VERSION, Journal

pytestmark = pytest.mark.slow


def test_any_integers_and_texts_are_kept(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        journal.record("ключ '\"", -(2**80), 2**80, '["ü"]')
        journal.record("ключ '\"", -(2**80), 2**80, '["ö"]')
    with Journal(tmp_path / "journal") as journal:
        assert journal.results("ключ '\"") == {(-(2**80), 2**80): '["ö"]'}
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def foreign(path, kind):
    if kind == "text":
        path.write_text("Chapter 1. " * 40)
    elif kind == "short":
        path.write_bytes(b"SQLite")
    elif kind in ("version", "damaged"):
        with Journal(path) as journal:
            for start in range(2000):
                journal.record("job", start, start + 1, "{}")
        content = bytearray(path.read_bytes())
        if kind == "version":
            content[60:64] = (VERSION + 1).to_bytes(4, "big")
        else:
            content[100:] = bytes(len(content) - 100)
        path.write_bytes(content)
    else:
        database = sqlite3.connect(path)
        database.execute(f"PRAGMA journal_mode = {kind}")
        database.execute("CREATE TABLE units (job, start, stop, result)")
        database.commit()
        database.close()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        *[(kind, "is no journal of a sweep") for kind in ("text", "short", "delete", "wal")],
        ("version", "journal .*file is of version 3; this mcfsim has version 2"),
        ("damaged", "journal .*file cannot be used: .*malformed"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_and_left_alone(kind, message, tmp_path):
    path = tmp_path / "file"
    foreign(path, kind)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        Journal(path)
    assert path.read_bytes() == content
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_path_where_no_file_can_be_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        Journal(tmp_path)
    with pytest.raises(ValueError, match="none/journal cannot be used: unable to open"):
        Journal(tmp_path / "none" / "journal")


def test_an_empty_file_becomes_a_journal(tmp_path):
    (tmp_path / "journal").touch()
    with Journal(tmp_path / "journal") as journal:
        journal.record("job", 0, 1, "{}")
        assert journal.results("job") == {(0, 1): "{}"}


def test_a_journal_in_use_is_refused_and_later_free(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        with pytest.raises(ValueError, match=r"journal .*journal is in use by another run"):
            Journal(path)
        journal.record("job", 0, 1, "{}")
    with Journal(path) as journal:
        assert journal.results("job") == {(0, 1): "{}"}


def test_jobs_are_dropped_by_name(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        for job in "abc":
            journal.record(job, 0, 1, "{}")
        journal.drop(iter("ac"))
        assert [len(journal.results(job)) for job in "abc"] == [0, 1, 0]


# -- rows that are not as they were recorded ----------------------------------------------------------------
def written(path, statement, *values):
    """Alter a journal behind its back."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement, values)
        database.commit()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("start", text) for text in ("", "x", "1_0", "-1", "9" * 5000, 7, 7.5, b"0", " 0")],
        *[("stop", text) for text in ("", "11", "1e1", b"\xff")],
        *[("result", text) for text in ("", "{}", '{"sum": 46}', b"{}", 45, "[" * 10**5)],
        *[("digest", text) for text in ("", "0" * 64, b"\0")],
    ],
)
def test_a_row_that_was_altered_is_refused(column, value, tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.record("job", 0, 10, '{"sum": 45}')
        journal.record("other", 0, 10, "{}")
    written(path, f"UPDATE units SET {column} = ? WHERE job = 'job'", value)
    with Journal(path) as journal:
        with pytest.raises(ValueError, match=r"journal .*journal is damaged: the row of job 'job', range \["):
            journal.results("job")
        assert journal.results("other") == {(0, 10): "{}"}
        # A new result takes its place, or the job is forgotten.
        journal.drop(["job"])
        journal.record("job", 0, 10, '{"sum": 45}')
        assert journal.results("job") == {(0, 10): '{"sum": 45}'}


def test_a_row_of_another_job_or_range_is_no_result(tmp_path):
    path = tmp_path / "journal"
    for change in ("job = 'b'", "start = '5'", "stop = '20'"):
        with Journal(path) as journal:
            journal.drop("ab")
            journal.record("a", 0, 10, "{}")
        written(path, f"UPDATE units SET {change}")
        with Journal(path) as journal, pytest.raises(ValueError, match="is damaged: the row of job"):
            [journal.results(job) for job in "ab"]


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
def test_another_layout_is_refused(statements, tmp_path):
    path = tmp_path / "journal"
    Journal(path).close()
    for statement in statements:
        written(path, statement)
    with pytest.raises(ValueError, match="its table is not that of a journal"):
        Journal(path)


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.exhaustive)])
def test_a_spoiled_file_is_refused_or_has_nothing_but_what_was_recorded(count, tmp_path):
    draw, path = random.Random(count), tmp_path / "journal"
    jobs = {
        f"job {i}": {(n, n + 1): json.dumps({"sum": n * i, "of": i}) for n in range(12)} for i in range(8)
    }
    with Journal(path) as journal:
        for job, results in jobs.items():
            for (start, stop), text in results.items():
                journal.record(job, start, stop, text)
    sound, refused = path.read_bytes(), 0
    used = [place for place, byte in enumerate(sound) if byte]
    for _ in range(count):
        content = bytearray(sound)
        for _ in range(draw.choice([1, 1, 2, 20])):
            # Most of the file is empty: of that which is not, more is hit.
            place = draw.choice([draw.choice(used), draw.randrange(len(content))])
            content[place] = draw.choice([content[place] ^ 1 << draw.randrange(8), draw.randrange(256)])
        if draw.random() < 0.1:
            del content[draw.randrange(len(content)) :]
        path.write_bytes(content)
        try:
            with Journal(path) as journal:
                for job, results in jobs.items():
                    assert journal.results(job).items() <= results.items()
                    journal.record(job, 100, 101, "{}")
        except ValueError as problem:
            refused += 1
            told = str(problem)
        else:
            told = str(path)
        assert str(path) in told
        for item in tmp_path.iterdir():
            item.unlink()
    assert 0 < refused < count


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


@pytest.mark.parametrize("number", range(4))
@pytest.mark.sampled(8, each=False)
def test_of_two_that_open_a_new_journal_at_once_one_is_refused(number, monkeypatch, tmp_path):
    monkeypatch.setattr("mcfsim.sweeps.journal._OPENING", Colliding(_OPENING))
    path, both, ends = tmp_path / "journal", threading.Barrier(2), []

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
    assert sorted(ends) == [
        f"journal {path} is in use by another run; wait for it, or name another",
        "opened",
    ]


OPENS = """
import sys, time
from mcfsim.sweeps.journal import Journal
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
try:
    journal = Journal(sys.argv[1])
except ValueError as problem:
    print("refused" if "is in use by another run" in str(problem) else problem)
else:
    print("opened", flush=True)
    sys.stdin.read()
"""


def test_of_several_processes_exactly_one_gets_a_new_journal(tmp_path):
    command = [sys.executable, "-c", OPENS, tmp_path / "journal", str(time.time() + 2)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]
    told = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate()
    assert sorted(told) == ["opened", "refused", "refused", "refused"]


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is no regular file, and so no journal"):
        Journal(tmp_path / "pipe")
