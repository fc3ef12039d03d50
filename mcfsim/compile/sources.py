"""Generated sources: real files in a cache folder, so that Numba's own cache serves and they can be read."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from mcfsim.storage.files import write_text

Made = TypeVar("Made")


@lru_cache(maxsize=1)
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mcfsim-"))


def folder() -> Path:
    """Return the folder of generated sources: the user's, or one of this process if that is closed."""
    from platformdirs import user_cache_path

    found = Path(user_cache_path("mcfsim")) / "loops"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _own_folder()
    return found if os.access(found, os.W_OK | os.X_OK) else _own_folder()


def path_of(text: str) -> Path:
    """Return where a generated source lies: the same text, which calls the same functions, the same file."""
    digest = hashlib.sha256(_called_functions() + text.encode()).hexdigest()
    return folder() / f"loop_{digest[:20]}.py"


@lru_cache(maxsize=1)
def _called_functions() -> bytes:
    """Return the source of all that generated sources call: Numba keeps machine code of it, too."""
    return (files("mcfsim.compile") / "intrinsics.py").read_bytes()


def is_cached(text: str) -> bool:
    """Return whether a source was compiled before, on this machine."""
    path = path_of(text)
    return path.exists() and any(path.suffix == ".nbi" for path in _kept(path))


def _kept(path: Path) -> list[Path]:
    """Return the files that Numba and Python keep of a source."""
    return list((path.parent / "__pycache__").glob(f"{path.stem}.*"))


def is_switched_off() -> bool:
    """Return whether Numba is told to compile nothing, by NUMBA_DISABLE_JIT; it is not imported for that."""
    if "numba" in sys.modules:
        return bool(sys.modules["numba"].config.DISABLE_JIT)
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def called(text: str, name: str, *arguments: Any) -> Callable[..., Any]:
    """Return a function of a generated module after a first call, at which Numba compiles or loads it.

    Parameters
    ----------
    text : str
        The module.
    name : str
        Of the function.
    *arguments
        What it is called with: such as leave it nothing to do.

    Raises
    ------
    ImportError
        If Numba is not installed.
    RuntimeError
        If it is told to compile nothing.
    """
    import numba  # noqa: F401

    if is_switched_off():
        raise RuntimeError("Numba is told to compile nothing (NUMBA_DISABLE_JIT)")

    def call() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(_loaded(text), name)
        function(*arguments)
        return function

    return _with_what_is_kept(text, call)


def imported(text: str) -> ModuleType:
    """Return a generated module, made anew; its file is written if it is not there."""
    return _with_what_is_kept(text, lambda: _imported(text))


def _with_what_is_kept(text: str, make: Callable[[], Made]) -> Made:
    """Return what is made of a source; if that fails, try again without what is kept of it.

    A crash of the machine leaves files that are empty, or end too early.
    """
    try:
        return make()
    except Exception:
        for path in _kept(path_of(text)):
            path.unlink(missing_ok=True)
        _loaded.cache_clear()
        return make()


@lru_cache(maxsize=256)
def _loaded(text: str) -> ModuleType:
    return _imported(text)


def _imported(text: str) -> ModuleType:
    path = path_of(text)
    if not path.exists() or path.read_bytes() != text.encode():
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
