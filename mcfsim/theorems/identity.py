"""The identity of a statement, by which caches and journals know it; and users' statements, by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import lru_cache, wraps
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar, cast

from mcfsim.storage.sweeps.installed import DIGEST
from mcfsim.storage.sweeps.reached import UnnamedError, digest
from mcfsim.theorems.logic import Predicate
from mcfsim.theorems.statement import Claim, Hypothesis, Theorem

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NoIdentityError(ValueError):
    """Raised if a statement depends on something that cannot be named, or that changes by itself."""


@dataclass(frozen=True)
class Identity:
    """A digest of all that a statement computes with.

    Attributes
    ----------
    digest : str
        Empty if the statement has none.
    lack : str
        If the digest is empty, what cannot be named, and where it is.
    """

    digest: str
    lack: str = ""

    def __bool__(self) -> bool:
        return bool(self.digest)


#: The identities of the statements that this thread is working on, by address.
_held: ContextVar[Mapping[int, Identity]] = ContextVar("_held", default=MappingProxyType({}))


def identity_of(theorem: Theorem) -> Identity:
    """Return the identity of a statement as it is now, or as it was at the start of `holding`."""
    return _held.get().get(id(theorem)) or _look(theorem)


@contextmanager
def holding(theorem: Theorem) -> Iterator[Identity]:
    """Find the identity of a statement once for all that this thread does with it; check it at the end.

    Raises
    ------
    NoIdentityError
        If the statement has changed by then.
    """
    before = identity_of(theorem)
    outer = _held.set({**_held.get(), id(theorem): before})
    try:
        yield before
        check_same(theorem, before)
    finally:
        _held.reset(outer)


def check_same(theorem: Theorem, before: Identity) -> None:
    """Raise `NoIdentityError` if the identity of a statement has changed."""
    if _look(theorem) != before:
        raise NoIdentityError(
            f"{theorem.name!r} gave two answers to the same question: what its algorithm, hypotheses or "
            "claim read was changed while it was tried, and must not be"
        )


def by_identity(maxsize: int) -> Callable[[_Function], _Function]:
    """Return a decorator that caches a function of statements by identity; without one, nothing is kept."""

    def decorate(function: _Function) -> _Function:
        @lru_cache(maxsize)
        def kept(known: _Known, *args: Any, **options: Any) -> Any:
            return function(known.theorem, *args, **options)

        @wraps(function)
        def ask(theorem: Theorem, /, *args: Any, **options: Any) -> Any:
            found = identity_of(theorem)
            if not found:
                return function(theorem, *args, **options)
            return kept(_Known(found.digest, theorem), *args, **options)

        return cast(_Function, ask)

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
    """Yield each part of a statement, with the name that it has in error messages."""
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
    """Yield the parts of a hypothesis or claim, with their names; for a predicate, the words and the test."""
    yield f"{name}'s class", type(of)
    if isinstance(of.said, Predicate):
        yield f"{name}'s words", of.said.text
        yield name, of.said.test
    else:
        yield name, of.said


# -- statements of users ----------------------------------------------------------------------------------
def is_own(name: str) -> bool:
    """Return whether a name refers to a statement in a module: ids of the catalogue have no colon."""
    return ":" in name


def own_theorem(name: str) -> Theorem:
    """Return a statement from a module in the current folder or on Python's path.

    Parameters
    ----------
    name : str
        ``module:NAME``, or ``package.module:NAME``.

    Raises
    ------
    ValueError
        If the name has another form, or the module is missing, cannot be imported or lacks the statement.
    """
    path, _, attribute = name.partition(":")
    if not (all(map(str.isidentifier, path.split("."))) and attribute.isidentifier()):
        raise ValueError(f"{name!r} names no statement: write module:NAME, without .py")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(path)
    except ModuleNotFoundError as problem:
        if problem.name is not None and f"{path}.".startswith(f"{problem.name}."):
            raise ValueError(f"no module {problem.name!r} in {here} or on Python's path") from problem
        raise ValueError(f"module {path!r} cannot be imported: {problem}") from problem
    except Exception as problem:
        raise ValueError(
            f"module {path!r} cannot be imported: {type(problem).__name__}: {problem}"
        ) from problem
    known = sorted(key for key, value in vars(module).items() if isinstance(value, Theorem))
    found = getattr(module, attribute, None)
    if isinstance(found, Theorem):
        return found
    has = f"; it has {', '.join(known)}" if known else "; it has no Theorem"
    if not hasattr(module, attribute):
        raise ValueError(f"module {path!r} has no {attribute!r}{has}")
    raise ValueError(f"{name} is of type {type(found).__name__}, not a Theorem{has}")
