"""Loops compiled by a process of their own, while NumPy serves.

Numba in a thread would hold the interpreter's lock, which NumPy's calls need. The process ends by itself soon
after its last loop; with that loop, if the process that asked for it has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from contextlib import suppress
from queue import Empty, Queue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.compile.sources import called

if TYPE_CHECKING:
    import subprocess

#: Seconds that the process waits for another loop.
_PATIENCE = 5.0
_START = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mcfsim.compile.ahead import serve
serve()
"""


class Compiler:
    """A process that compiles what it is asked for, or none yet."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = Lock()

    def ask(self, text: str, name: str, *arguments: Any) -> bool:
        """Have a function compiled as by `mcfsim.compile.sources.called`; return whether that was begun.

        The arguments are arrays and NumPy's scalars.
        """
        kinds = [(x.dtype.str, x.ndim, x.ndim > 0 and not x.flags.writeable) for x in arguments]
        with self._lock, suppress(OSError):
            if not self.is_running():
                self._begin()
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([text, name, kinds]).encode() + b"\n")
            self._process.stdin.flush()
            return True
        return False

    def is_running(self) -> bool:
        """Return whether the process of this one's runs; it ends at once if a loop cannot be compiled."""
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    def _begin(self) -> None:
        import subprocess
        from multiprocessing.spawn import get_executable

        self.leave()
        command = [get_executable(), "-c", _START, json.dumps(sys.path)]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )
        self._owner = os.getpid()

    def leave(self) -> None:
        """Let the process finish its loops alone."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self.is_running():
            self._process.returncode = 0  # without one, Popen warns that the process still runs


#: The process of this one's; forked processes have their own.
COMPILER = Compiler()
atexit.register(COMPILER.leave)


def serve() -> None:
    """Compile what standard input asks for, at a low priority, until it ends or asks for no more."""
    if hasattr(os, "nice"):
        os.nice(10)
    asked: Queue[bytes | None] = Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            asked.put(line)
        asked.put(None)

    Thread(target=read, daemon=True).start()
    status = 1
    try:
        with suppress(Empty):
            while (line := asked.get(timeout=_PATIENCE)) is not None:
                text, name, kinds = json.loads(line)
                called(text, name, *(_argument(*kind) for kind in kinds))
        status = 0
    finally:
        os._exit(status)  # at once: the reader may hold standard input


def _argument(dtype: str, dimensions: int, read_only: bool) -> Any:
    if not dimensions:
        return np.dtype(dtype).type(1)
    x = np.empty((0,) * dimensions, dtype)
    x.flags.writeable = not read_only
    return x
