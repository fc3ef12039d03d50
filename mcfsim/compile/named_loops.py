"""Functions that are compiled one by one, each once it has been called so often that this pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from mcfsim.checks import check_processor
from mcfsim.compile.choice import is_available
from mcfsim.compile.objects import called, is_saved

#: Elements after which loading compiled loops pays, and after which compiling them does.
_WORTH_LOADING, _WORTH_COMPILING = 1 << 20, 1 << 22


class NamedLoops(ABC):
    """Compiled functions by name, each of which is compiled when it is first called."""

    def __init__(self) -> None:
        self._done = Counter[str]()
        self._made: dict[str, Callable[..., int]] = {}
        self._sources: dict[str, str] = {}
        self._lock = Lock()

    def pays(self, size: int, name: str) -> bool:
        """Return whether so many more elements are worth compiling or loading a function."""
        self._done[name] += size
        return name in self._made or (is_available() and worth_loops(self._done[name], self._source(name)))

    def _run(self, name: str, *given: Any) -> None:
        check_processor()
        with self._lock:  # so that threads do not compile it twice
            if name not in self._made:
                self._made[name] = called(self._source(name), name, *self._examples(name))
        self._made[name](*given)

    def _source(self, name: str) -> str:
        if name not in self._sources:
            self._sources[name] = self._written(name)
        return self._sources[name]

    @abstractmethod
    def _written(self, name: str) -> str:
        """Return the source of a module with a function."""

    @abstractmethod
    def _examples(self, name: str) -> Sequence[Any]:
        """Return arguments of the kinds that a function takes."""


def worth_loops(done: int, source: str) -> bool:
    """Return whether so many elements are worth compiling a source, or loading what was compiled before."""
    return done >= _WORTH_COMPILING or (done >= _WORTH_LOADING and is_saved(source))
