"""The journal of a sweep: results of finished units in one SQLite file, so that a killed run can resume."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from random import uniform
from reprlib import repr as shortened
from typing import Any

#: Marks the file as ours in its header: "mcfs" in ASCII.
APPLICATION = 0x6D636673
VERSION = 2

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
#: The maximum size in bytes of a result; 8 witnesses and a fraction of thousands of digits take kilobytes.
_LONGEST = 1 << 24
#: Seconds for which opening a journal in use is tried again, and the pause between two attempts.
_PATIENCE, _PAUSE = 1.0, (0.005, 0.05)
#: What SQLite raises. On a damaged file, its own message may be impossible to decode, or endless.
_FAULTS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
# Ranges are text, because indices of four 16-bit operands exceed SQLite's integers.
_TABLE = """CREATE TABLE units (
    job TEXT NOT NULL, start TEXT NOT NULL, stop TEXT NOT NULL, result TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (job, start, stop)
) WITHOUT ROWID"""
_OPENING = (
    # One process owns the file, so two runs cannot mix, and WAL needs no shared memory.
    "PRAGMA locking_mode = EXCLUSIVE",
    "BEGIN EXCLUSIVE",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
    _TABLE.replace("TABLE", "TABLE IF NOT EXISTS"),
    "COMMIT",
    # With WAL, a commit is one write and does not wait for the disk.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
)


class Journal:
    """Results of units by job and range, in a file that keeps each from the moment it is recorded.

    A process killed at any instant leaves a journal with every result recorded until then; a crash of the
    machine may lose the last few. Only one process at a time can have it open. Each row has a digest, which
    shows damage.

    Parameters
    ----------
    path : path
        The file; created if it does not exist.

    Raises
    ------
    ValueError
        If the file is no journal, of another version, damaged, or open elsewhere. It is left unchanged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _refuse_foreign(self.path)
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._open()
                return
            except _FAULTS as problem:
                if not _is_busy(problem) or time.monotonic() > end:
                    raise self._error(problem) from problem
                # Two processes opening a new file may block each other, so each closes before it waits.
                time.sleep(uniform(*_PAUSE))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def results(self, job: str) -> dict[tuple[int, int], str]:
        """Return the recorded results of a job: JSON text by range.

        Raises
        ------
        ValueError
            If a row has changed since it was recorded.
        """
        found = {}
        for row in self._execute("SELECT start, stop, result, digest FROM units WHERE job = ?", job):
            start, stop, text, digest = row
            if not all(isinstance(item, str) for item in row) or digest != _digest(job, start, stop, text):
                raise ValueError(
                    f"journal {self.path} is damaged: the row of job {shortened(job)}, range "
                    f"[{shortened(start)}, {shortened(stop)}) is not as it was recorded"
                )
            found[int(start), int(stop)] = text
        return found

    def record(self, job: str, start: int, stop: int, result: str) -> None:
        """Record the result of a unit, as JSON text, replacing any older one."""
        row = (job, str(start), str(stop), result)
        self._execute("INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?, ?)", *row, _digest(*row))

    def drop(self, jobs: Iterable[str]) -> None:
        """Forget all results of some jobs."""
        self._execute("BEGIN")
        for job in jobs:
            self._execute("DELETE FROM units WHERE job = ?", job)
        self._execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _open(self) -> None:
        # Not SQLite's own timeout: it would hold the lock that another process waits for.
        self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            for statement in _OPENING:
                self._database.execute(statement)
            if self._database.execute("SELECT sql FROM sqlite_master").fetchall() != [(_TABLE,)]:
                raise ValueError(f"journal {self.path} is damaged: its table is not that of a journal")
        except BaseException:
            self._database.close()
            raise

    def _execute(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except _FAULTS as problem:
            raise self._error(problem) from problem

    def _error(self, problem: Exception) -> ValueError:
        if _is_busy(problem):
            return ValueError(f"journal {self.path} is in use by another run; wait for it, or name another")
        return ValueError(f"journal {self.path} cannot be used: {problem}")


def _is_busy(problem: Exception) -> bool:
    return getattr(problem, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _digest(*row: str) -> str:
    """Return the SHA-256 of the content of a row."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()


def _refuse_foreign(path: Path) -> None:
    """Refuse a file whose header is not a journal's: SQLite might write to the file on opening it."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(f"{path} is no regular file, and so no journal")
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        return
    # A run killed at its very start leaves an empty file.
    if not header:
        return
    application, version = (int.from_bytes(header[place : place + 4], "big") for place in (68, 60))
    if len(header) < _HEADER or not header.startswith(_MAGIC) or application != APPLICATION:
        raise ValueError(f"{path} is no journal of a sweep; it is left as it is, name another file")
    if version != VERSION:
        raise ValueError(
            f"journal {path} is of version {version}; this mcfsim has version {VERSION}; name another"
        )
