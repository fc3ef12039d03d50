"""Whether what is changed in place is whole: a change that was broken off is not gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SpoiltStateError(RuntimeError):
    """A state that was broken off on its way to the next one: part of it is old and part of it new."""


class Whole:
    """Knows whether all changes of a state came to their end.

    Parameters
    ----------
    remedy : str
        What helps where one did not, for the error.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._broken_off: str | None = None

    @contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Let a block change the state; it is whole again once the block has come to its end."""
        self.begin(what)
        yield
        self.end()

    def begin(self, what: str) -> None:
        """Take the state for spoilt until `end`."""
        self._broken_off = what

    def end(self) -> None:
        """Take the state for whole: all of it has changed."""
        self._broken_off = None

    def check(self) -> None:
        """Refuse to go on from a state that is spoilt.

        Raises
        ------
        SpoiltStateError
            If a change was broken off, by KeyboardInterrupt or another exception.
        """
        if self._broken_off is not None:
            raise SpoiltStateError(
                f"{self._broken_off} was broken off, so that part of the state is old and part of it new; "
                f"{self._remedy}"
            )
