"""Outputs and inputs of one piece of work: what is written must not take the place of what is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    read = {label: _read_from(Path(path)) for label, path in inputs.items() if path is not None}
    for label, path in outputs.items():
        if path is None:
            continue
        place, there = destination(path), _identity(Path(path))
        named = Path(os.path.realpath(Path(path).parent), Path(path).name)  # perhaps a link in the folder
        for source, (folder, files) in read.items():
            joins = any(one.parent == folder and one.name.endswith(_READ) for one in (place, named))
            if joins or there in files:
                raise OutputError(
                    f"cannot write {os.fspath(path)}: {label} would take the place of what is read ({source})"
                )


def _read_from(path: Path) -> tuple[Path | None, set[tuple[int, int]]]:
    """Return the folder whose files are read, if it is one, and all files that are, as they lie there."""
    folder = path if path.is_dir() else path.parent if path.suffix == ".json" else None
    files = [path]
    if folder is not None:
        with suppress(OSError):  # whoever reads it says so
            files += [folder / name for name in os.listdir(folder) if name.endswith(_READ)]
        for index in [file for file in files if file.suffix == ".json"]:
            with suppress(OSError, ValueError):
                files += [folder / name for name in set(read_places(index).values())]
    found = {there for file in files if (there := _identity(file)) is not None}
    return (None if folder is None else Path(os.path.realpath(folder))), found


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what all names of a file have in common; None if it is not there."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # also a loop of links, or a NUL in the name
        return None
    return about.st_dev, about.st_ino
