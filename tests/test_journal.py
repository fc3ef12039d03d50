"""Journals keep what they are given, and refuse files that are none of theirs."""

import sqlite3

import pytest

from mcfsim.journal import VERSION, Journal


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
