"""Statements of one's own by name: a module, and what it calls the statement."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from mcfsim.theorems.statement import Theorem


def is_own(name: str) -> bool:
    """Return whether a name is one of a module's: no id of the catalogue has a colon."""
    return ":" in name


def own_theorem(name: str) -> Theorem:
    """Return the statement that a module of the current folder, or of Python's path, has.

    Parameters
    ----------
    name : str
        As ``module:NAME``, or ``package.module:NAME``.

    Raises
    ------
    ValueError
        If it is no such name, there is no such module, it cannot be imported, or has no such statement.
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
    raise ValueError(f"{name} is of type {type(found).__name__}, and no Theorem{has}")
