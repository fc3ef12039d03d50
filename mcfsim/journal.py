"""The journal of a sweep: results of finished units in one SQLite file, from which a killed run goes on."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

#: Says in the file's header that it is ours: "mcfs" in ASCII.
APPLICATION = 0x6D636673
VERSION = 1

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_OPENING = (
    # One process owns the file, so that two runs cannot mix, and WAL needs no shared memory.
    "PRAGMA locking_mode = EXCLUSIVE",
    "BEGIN EXCLUSIVE",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
    # Ranges are text, because indices of four 16-bit operands exceed SQLite's integers.
    """CREATE TABLE IF NOT EXISTS units (
           job TEXT NOT NULL, start TEXT NOT NULL, stop TEXT NOT NULL, result TEXT NOT NULL,
           PRIMARY KEY (job, start, stop)
       ) WITHOUT ROWID""",
    "COMMIT",
    # A commit is then one write, without waiting for the disk.
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
)


class Journal:
    """Results of units by job and range, each kept from the moment that it is recorded.

    A process killed at any instant leaves a journal with every result recorded until then; a crash of the
    machine may take the last few. One process at a time may have it open.

    Parameters
    ----------
    path : path
        The file; made if there is none.

    Raises
    ------
    ValueError
        If the file is no journal, or of another version, or damaged, or open elsewhere. It is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _refuse_foreign(self.path)
        try:
            self._database = sqlite3.connect(self.path, timeout=1, isolation_level=None)
        except sqlite3.Error as problem:
            raise self._error(problem) from problem
        try:
            for statement in _OPENING:
                self._execute(statement)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def results(self, job: str) -> dict[tuple[int, int], str]:
        """Return the recorded results of a job, JSON text by range."""
        rows = self._execute("SELECT start, stop, result FROM units WHERE job = ?", job)
        return {(int(start), int(stop)): text for start, stop, text in rows}

    def record(self, job: str, start: int, stop: int, result: str) -> None:
        """Keep the result of a unit, JSON text, in the place of an older one."""
        self._execute("INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?)", job, str(start), str(stop), result)

    def drop(self, jobs: Iterable[str]) -> None:
        """Forget all results of some jobs."""
        self._execute("BEGIN")
        for job in jobs:
            self._execute("DELETE FROM units WHERE job = ?", job)
        self._execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _execute(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as problem:
            raise self._error(problem) from problem

    def _error(self, problem: sqlite3.Error) -> ValueError:
        if getattr(problem, "sqlite_errorname", "") == "SQLITE_BUSY":
            return ValueError(f"journal {self.path} is in use by another run; wait for it, or name another")
        return ValueError(f"journal {self.path} cannot be used: {problem}")


def _refuse_foreign(path: Path) -> None:
    """Look at the bytes of the header alone: SQLite might already write to a file that it opens."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        return
    # The empty file is what a run killed at its very start leaves.
    if not header:
        return
    application, version = (int.from_bytes(header[place : place + 4], "big") for place in (68, 60))
    if len(header) < _HEADER or not header.startswith(_MAGIC) or application != APPLICATION:
        raise ValueError(f"{path} is no journal of a sweep; it is left as it is, name another file")
    if version != VERSION:
        raise ValueError(f"journal {path} is of version {version}; this mcfsim has version {VERSION}")
