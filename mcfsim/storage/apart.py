"""Outputs and inputs of one piece of work: what is written must not take the place of what is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mcfsim.storage.files import OutputError, Pathlike, destination
from mcfsim.storage.shards import INDEX_SUFFIX, SUFFIX, read_places

#: Of a folder, and of the one that an index lies in, files with these names are read.
_READ = (SUFFIX, INDEX_SUFFIX)


def check_apart(outputs: Mapping[str, Pathlike | None], inputs: Mapping[str, Pathlike | None]) -> None:
    """Refuse outputs that would take the place of what is read, or be read together with it.

    Parameters
    ----------
    outputs : mapping of str to path or None
        What the caller calls each, and where it goes; None is left out.
    inputs : mapping of str to path or None
        The same of files, folders of tensors (recordings too), and indexes of them. What is not there is
        left out: who reads it says so.

    Raises
    ------
    OutputError
        If an output is a file of an input by whatever name (links, spellings), or has in the folder of one
        a name under which the folder's files are read.
    """
    read = {label: _of(Path(path)) for label, path in inputs.items() if path is not None}
    for label, path in outputs.items():
        if path is None:
            continue
        names = {_place(path), destination(path)}
        found: set[object] = set(names)
        with suppress(OSError):
            found.add(_identity(os.stat(path)))
        for source, (folder, files) in read.items():
            joins = any(name.parent == folder and name.name.endswith(_READ) for name in names)
            if joins or not found.isdisjoint(files):
                raise OutputError(
                    f"cannot write {os.fspath(path)}: {label} would take the place of what is read ({source})"
                )


def _of(path: Path) -> tuple[Path | None, set[object]]:
    """Return the folder whose files are read, if it is one, and all that is read, by place and by inode."""
    whole: set[object] = set()
    with suppress(OSError, ValueError):  # no such file, a loop of links, a NUL in the name
        index = path.suffix == ".json"
        folder = path if path.is_dir() else path.parent if index else None
        for file in (path, *(_files(folder, [path] * index) if folder else ())):
            whole |= {_place(file), Path(os.path.realpath(file))}
            with suppress(OSError):
                whole.add(_identity(os.stat(file)))
        return (Path(os.path.realpath(folder)) if folder else None), whole
    return None, whole


def _files(folder: Path, indexes: list[Path]) -> Iterator[Path]:
    """Yield the files of a folder that are read: by their names, or because an index names them."""
    for name in os.listdir(folder):
        if name.endswith(_READ):
            yield folder / name
        if name.endswith(INDEX_SUFFIX):
            indexes = [*indexes, folder / name]
    for index in indexes:
        with suppress(OSError, ValueError):  # whoever reads it says so
            yield from (folder / place for place in set(read_places(index).values()))


def _place(path: Pathlike) -> Path:
    """Return a name without links in its folder; it may be a link itself."""
    folder, name = os.path.split(path)
    return Path(os.path.realpath(folder), name)


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino
