"""What is not looked into: what installed packages have, known by name, and what has no state to tell."""

from __future__ import annotations

import io
import random
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.sweeps.source_digest import DIGEST

_FOLDERS = tuple(
    Path(folder)
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


def named(x: Any) -> str:
    """Return the name of a function or class of an installed package, with its version; "" of others."""
    if isinstance(x, np.ufunc):
        own: str = x.__name__
        return f"numpy {np.__version__} {own}" if getattr(np, own, None) is x else ""
    if not isinstance(x, type) and not callable(x):
        return ""
    owner, name = getattr(x, "__module__", None), getattr(x, "__qualname__", None)
    package = package_of(owner)
    if not package or not isinstance(name, str) or is_random(getattr(x, "__self__", None)):
        return ""
    found: Any = sys.modules.get(str(owner))
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{package} {owner}.{name}" if found is x else ""


def package_of(module: str | None) -> str:
    """Return name and version of the installed package that a module belongs to; "" of other modules."""
    return _version(module.partition(".")[0]) if isinstance(module, str) else ""


@lru_cache(maxsize=1024)
def _version(package: str) -> str:
    if package == "mcfsim":
        return f"mcfsim {DIGEST}"
    module, of_python = sys.modules.get(package), package in sys.stdlib_module_names
    file: str | None = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    if file is None:
        return f"python {sys.version}" if of_python else ""
    path = Path(file)
    if not any(path.is_relative_to(folder) for folder in _FOLDERS):
        return ""
    if of_python:
        return f"python {sys.version}"
    try:
        return f"{package} {getattr(module, '__version__', None) or version(package)}"
    except PackageNotFoundError:
        return ""


def is_random(x: Any) -> bool:
    """Return whether it is a generator of random numbers that remembers how many it has drawn."""
    return isinstance(x, random.Random) or (
        str(type(x).__module__).startswith("numpy.random") and hasattr(x, "__reduce__")
    )


def no_state(x: Any) -> str:
    """Return what it is, in words, if it is something whose state changes as it is used, or is elsewhere."""
    if isinstance(x, io.IOBase):
        return "an open file"
    if is_random(x):
        return "a random generator"
    if isinstance(x, types.GeneratorType):
        return "a generator"
    if isinstance(x, Iterator):
        return f"a live iterator, of type {type(x).__name__}"
    if type(x).__module__ in ("_thread", "threading"):
        return f"a {type(x).__name__} of threads"
    return ""
