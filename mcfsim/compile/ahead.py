"""Loops compiled or loaded by a thread, while NumPy serves: LLVM works without the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable


class Compiler:
    """A thread that does tasks in order; it begins with a task and ends with the last one.

    When the program ends, it waits for the task that is under way, and leaves the others.
    """

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._owner: tuple[int, threading.Thread] | None = None

    def ask(self, task: Callable[[], object]) -> bool:
        """Have a task done soon, which must raise nothing; return whether there is a thread for it."""
        with self._lock:
            if self._owner is not None and self._owner[0] != os.getpid():
                self._owner = None  # a forked process has no threads
                self._tasks.clear()
            self._tasks.append(task)
            if self._owner is None:
                thread = threading.Thread(target=self._work, name="mcfsim compiles")
                try:
                    thread.start()
                except RuntimeError:  # as where the program ends, or has too many threads
                    self._tasks.clear()
                    return False
                self._owner = os.getpid(), thread
            return True

    def wait(self) -> None:
        """Wait until all tasks are done."""
        owner = self._owner
        if owner is not None and owner[0] == os.getpid():
            owner[1].join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks or not threading.main_thread().is_alive():
                    self._owner = None
                    return
                task = self._tasks.popleft()
            task()


COMPILER = Compiler()
