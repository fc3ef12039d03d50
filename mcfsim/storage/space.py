"""Room on a disk, looked at before a file is written."""

from __future__ import annotations

import os
import shutil

from mcfsim.storage.files import OutputError, Pathlike, destination

#: Bytes that a file may have beyond its numbers.
_HEADER = 1 << 16


def check_space(path: Pathlike, size: int) -> None:
    """Refuse a place whose disk has no room for a new file of so many bytes.

    A file that is there counts, too: it stays until the new one is whole.

    Parameters
    ----------
    path : path
        The place.
    size : int
        Bytes of the numbers that are to be written.

    Raises
    ------
    OutputError
        If there is less room; or for the place, see `mcfsim.storage.files.destination`.
    """
    free = shutil.disk_usage(destination(path).parent).free
    if size + _HEADER > free:
        takes, left = _in_units(size), _in_units(free)
        raise OutputError(f"cannot write {os.fspath(path)}: it takes {takes}, and the disk has {left} left")


def _in_units(size: int) -> str:
    """Return a number of bytes as text, in units of which there are few."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:.3g} {unit}"
    return f"{size} bytes"
