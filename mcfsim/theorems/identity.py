"""The identity of a statement: it is what it would compute, and caches and journals know it by that alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from mcfsim.sweeps.reached import UnnamedError, digest
from mcfsim.sweeps.source_digest import DIGEST
from mcfsim.theorems.logic import Predicate
from mcfsim.theorems.statement import Claim, Hypothesis, Theorem

_P = ParamSpec("_P")
_Found = TypeVar("_Found")


class NoIdentityError(ValueError):
    """A statement depends on something that cannot be named, or that changes by itself."""


@dataclass(frozen=True)
class Identity:
    """A digest of all that a statement would compute with.

    Attributes
    ----------
    digest : str
        Empty where it has none.
    lack : str
        What then cannot be named, and where it is.
    """

    digest: str
    lack: str = ""

    def __bool__(self) -> bool:
        return bool(self.digest)


class _Held(threading.local):
    """What was found of the statements that this thread is at work on, by their addresses."""

    def __init__(self) -> None:
        self.found: dict[int, Identity] = {}


_held = _Held()


def identity_of(theorem: Theorem) -> Identity:
    """Return the identity of a statement as it is now, or as it was when `holding` it began."""
    return _held.found.get(id(theorem)) or _look(theorem)


@contextmanager
def holding(theorem: Theorem) -> Iterator[Identity]:
    """Look at a statement once for all that this thread asks of it, and again at the end.

    Raises
    ------
    NoIdentityError
        If it is then another one.
    """
    before = identity_of(theorem)
    outermost = id(theorem) not in _held.found
    if outermost:
        _held.found[id(theorem)] = before
    try:
        yield before
        check_same(theorem, before)
    finally:
        if outermost:
            del _held.found[id(theorem)]


def check_same(theorem: Theorem, before: Identity) -> None:
    """Raise `NoIdentityError` if a statement is another one than it was."""
    if _look(theorem) != before:
        raise NoIdentityError(
            f"{theorem.name!r} gave two answers to the same question: what its algorithm, hypotheses or "
            "claim read was changed while it was tried, and must not be"
        )


def by_identity(
    maxsize: int,
) -> Callable[[Callable[Concatenate[Theorem, _P], _Found]], Callable[Concatenate[Theorem, _P], _Found]]:
    """Keep what a function returns of statements by their identity, and nothing of those without."""

    def decorate(
        function: Callable[Concatenate[Theorem, _P], _Found],
    ) -> Callable[Concatenate[Theorem, _P], _Found]:
        @lru_cache(maxsize)
        def kept(known: _Known, *args: _P.args, **options: _P.kwargs) -> _Found:
            return function(known.theorem, *args, **options)

        @wraps(function)
        def ask(theorem: Theorem, /, *args: _P.args, **options: _P.kwargs) -> _Found:
            found = identity_of(theorem)
            if not found:
                return function(theorem, *args, **options)
            return kept(_Known(found.digest, theorem), *args, **options)  # type: ignore[arg-type]  # hashable

        return ask

    return decorate


@dataclass(frozen=True)
class _Known:
    digest: str
    theorem: Theorem = field(compare=False)


def _look(theorem: Theorem) -> Identity:
    from mcfsim.theorems.catalogue import THEOREMS

    if THEOREMS.get(theorem.name) is theorem:
        return Identity(f"{theorem.name} of the catalogue {DIGEST}")
    try:
        return Identity(digest(_parts(theorem)))
    except UnnamedError as problem:
        return Identity("", str(problem))


def _parts(theorem: Theorem) -> Iterator[tuple[str, Any]]:
    """Yield all that a statement has, as it is called where something is wrong with it."""
    for item in fields(theorem):
        given = getattr(theorem, item.name)
        if item.name == "where":
            for hypothesis in given:
                yield from _said(f"the hypothesis {hypothesis.text!r}", hypothesis)
        elif item.name == "claim":
            yield from _said("the claim", given)
        else:
            yield f"the {item.name}", given
    yield "the class", type(theorem)


def _said(name: str, of: Claim | Hypothesis) -> Iterator[tuple[str, Any]]:
    """Yield what a hypothesis or claim says; a predicate is called after its test."""
    yield f"{name}'s class", type(of)
    if isinstance(of.said, Predicate):
        yield f"{name}'s words", of.said.text
        yield name, of.said.test
    else:
        yield name, of.said
