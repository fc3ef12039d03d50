"""Loops compiled or loaded by a thread, while NumPy serves: LLVM works without the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable


class Compiler:
    """A thread that does tasks in order; it begins with a task and ends with the last one.

    When the program ends, it waits for the task that is under way, and leaves the others; and so does a
    process that forks, because the new process has no such thread, and would find LLVM's lock taken.
    """

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], object]] = deque()
        self._lock, self._busy = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._renew)

    def ask(self, task: Callable[[], object]) -> bool:
        """Have a task done soon, which must raise nothing; return whether there is a thread for it."""
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="mcfsim compiles")
                try:
                    thread.start()
                except RuntimeError:  # as where the program ends, or has too many threads
                    self._tasks.clear()
                    return False
                self._thread = thread
            return True

    def wait(self) -> None:
        """Wait until all tasks are done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._busy:
                with self._lock:
                    if not self._tasks or not threading.main_thread().is_alive():
                        self._thread = None
                        return
                    task = self._tasks.popleft()
                task()

    def _hold(self) -> None:
        self._busy.acquire()
        self._lock.acquire()

    def _release(self) -> None:
        self._lock.release()
        self._busy.release()

    def _renew(self) -> None:
        self._tasks.clear()
        self._thread = None
        self._release()


COMPILER = Compiler()
