"""Exceptions that break work off before any one of its bytecodes, as Ctrl-C does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


class OwnError(Exception):
    """What a callback may raise."""


def bytecodes(work: Callable[[], Any]) -> int:
    """Return how many bytecodes some work takes once all is made that it makes only once."""
    for _ in range(2):
        work()
    return _traced(work, sys.maxsize, KeyboardInterrupt)


def broken_off(work: Callable[[], Any], place: int, error: type[BaseException]) -> bool:
    """Do some work, and raise an error before the bytecode of a number, counted from 0.

    Returns whether there was one of that number. The error must come out.
    """
    try:
        count = _traced(work, place, error)
    except error:
        return True
    assert count <= place, f"{error.__name__} before bytecode {place} was swallowed"
    return False


def _traced(work: Callable[[], Any], place: int, error: type[BaseException]) -> int:
    count = 0

    def local(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count > place:
                sys.settrace(None)
                raise error
        return local

    def each(frame: Any, event: str, argument: Any) -> Any:
        if "threading" in frame.f_code.co_filename or "concurrent" in frame.f_code.co_filename:
            return None  # a lock that is never given back would stop the test
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # an error in a callback of the collector, as Hypothesis has one, is swallowed
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count
