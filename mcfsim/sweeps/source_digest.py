"""The source of this package in one word, so that results of another source are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable


def _digest(root: Traversable) -> str:
    """Return the SHA-256 of all Python files below a folder: of their paths and bytes."""
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


#: Of the source as it was when this process first asked: files that are replaced later are not what runs.
DIGEST = _digest(files("mcfsim"))
