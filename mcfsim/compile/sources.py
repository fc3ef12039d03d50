"""Generated sources: real files in a cache folder, so that Numba's own cache serves and they can be read."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from mcfsim.storage.files import write_text


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
    """Return where a generated source lies: the same text, the same file."""
    return folder() / f"loop_{hashlib.sha256(text.encode()).hexdigest()[:20]}.py"


def is_cached(text: str) -> bool:
    """Return whether a source was compiled before, on this machine."""
    path = path_of(text)
    return path.exists() and any((path.parent / "__pycache__").glob(f"{path.stem}.*.nbi"))


@lru_cache(maxsize=256)
def loaded(text: str, name: str = "loop") -> Callable[..., int]:
    """Return a function of a generated module, which is written if it is not there.

    Raises
    ------
    ImportError
        If Numba is not installed.
    """
    function: Callable[..., int] = getattr(imported(text), name)
    return function


def imported(text: str) -> ModuleType:
    """Return a generated module, made anew; its file is written if it is not there."""
    path = path_of(text)
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
