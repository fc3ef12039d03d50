"""Names for installed code: other packages by name and version, this one by a digest of its source."""

from __future__ import annotations

import hashlib
import io
import platform
import random
import site
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np


def _digest(root: Traversable) -> str:
    """Return the SHA-256 of the paths and bytes of all Python files below a folder."""
    content = hashlib.sha256()
    for path, data in sorted(_sources(root, "")):
        content.update(f"{len(path)} {path} {len(data)} ".encode() + data)
    return content.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir():
            yield from _sources(item, f"{path}{item.name}/")
        elif item.name.endswith(".py"):
            yield f"{path}{item.name}", item.read_bytes()


#: Digest of this package's source as this process loaded it: files replaced later are not what runs.
DIGEST = _digest(files("mcfsim"))


_FOLDERS = tuple(
    Path(folder)
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


def named(x: Any) -> str:
    """Return version and name of a function or class of an installed package; "" for anything else."""
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
    """Return name and version of the installed package that has a module; "" for other modules."""
    return _version(module.partition(".")[0]) if isinstance(module, str) else ""


@lru_cache(maxsize=1024)
def _version(package: str) -> str:
    if package == "mcfsim":
        return f"mcfsim {DIGEST}"
    module = sys.modules.get(package)
    file: str | None = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    found = file is None or any(Path(file).is_relative_to(folder) for folder in _FOLDERS)
    if found and package in sys.stdlib_module_names:
        return f"python {sys.version}"
    if file is None or not found:
        return ""
    try:
        return f"{package} {getattr(module, '__version__', None) or version(package)}"
    except PackageNotFoundError:
        return ""


def is_random(x: Any) -> bool:
    """Return whether an object is a random generator, with a state that changes as it draws."""
    return isinstance(x, random.Random) or (
        str(type(x).__module__).startswith("numpy.random") and hasattr(x, "__reduce__")
    )


def no_state(x: Any) -> str:
    """Return what an object is, in words, if its state changes with use or is outside it; "" otherwise."""
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


# -- the versions that a result depends on ------------------------------------------------------------------
def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    return found | {package: _installed(package) for package in ("mcfsim", "numpy", "mpmath")}


@lru_cache
def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def blas() -> str:
    """Return name, version and processor kernel of the BLAS that NumPy uses.

    The kernel determines the order of summation, and with it the rounding errors.
    """
    from threadpoolctl import threadpool_info

    found = [item for item in threadpool_info() if item["user_api"] == "blas" and "numpy" in item["filepath"]]
    if not found:
        return "unknown"
    return " ".join(str(found[0].get(key)) for key in ("internal_api", "version", "architecture"))
