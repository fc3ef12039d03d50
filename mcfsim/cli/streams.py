"""Standard output and standard error: what becomes of the command when they can no longer be written to."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from mcfsim.storage.files import OutputError, ToldFile


class PipeClosedError(BaseException):
    """Nobody reads on: no error of the library, so that nothing takes it for one, but the end."""


class _Stream(ToldFile):
    """A standard stream, whose reader may go away."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OutputError as problem:
            if isinstance(problem.__cause__, BrokenPipeError):
                raise PipeClosedError from None
            raise


@contextmanager
def standard_streams() -> Iterator[None]:
    """Run a command with streams whose errors end it as they end other programs.

    A closed pipe ends it by SIGPIPE, as `head` ends what it reads from; where there is no such signal, with
    status 141. What cannot be written otherwise, as to a full disk, ends it with a line of refusal and
    status 2, and so does a standard output that is closed from the start. Characters that the stream's
    encoding lacks are spelt as Python does.
    """
    if sys.stderr is None:  # as by 2>&-
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        _refuse("cannot write standard output: it is closed")
    streams = sys.stdout, sys.stderr
    try:
        sys.stdout, sys.stderr = (
            _watched(sys.stdout, "standard output"),
            _watched(sys.stderr, "standard error"),
        )
        try:
            yield
        finally:
            sys.stdout.flush()
    except PipeClosedError:
        _end_by_signal()
    except OutputError as problem:  # of the last flush
        _refuse(str(problem))
    finally:
        sys.stdout, sys.stderr = streams


def _watched(stream: TextIO, label: str) -> TextIO:
    """Return a stream to the same file, or the one that is given, if it writes to none."""
    try:
        watched = _Stream(stream.fileno(), "wb", label, closefd=False)
    except io.UnsupportedOperation:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(watched),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.isatty() or stream is sys.stderr,
    )


def _refuse(text: str) -> None:
    sys.stderr.write(f"Error: {text}\n")
    sys.exit(2)


def _end_by_signal() -> None:
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    os._exit(141)  # 128 and the signal's number, as shells say it
