"""Vectors that lie in files of a folder, mapped into memory: for what is larger than memory."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import OutputError, Pathlike, telling

SUFFIX = ".npy"
#: Bytes that are written at once where a file's place cannot be reserved.
_AT_ONCE = 1 << 24
#: Bytes that a file has besides its vector, at most: its header.
_HEADER = 1 << 12
#: What file systems say that cannot reserve a place.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def new_maps(
    folder: Pathlike, forms: Mapping[str, tuple[int, np.dtype[Any]]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Make a file of zeros for each vector, and map all into memory; if the block fails, remove them.

    Parameters
    ----------
    folder : path
        Where they go. It is made if it is not there; the folder that it lies in must be.
    forms : mapping of str to (int, dtype)
        The elements of each vector, and their dtype. Its file is ``NAME.npy``, as `numpy.load` reads it.

    Yields
    ------
    dict of str to array
        The vectors, which keep their files open. What is put in them goes to the files in the system's own
        time.

    Raises
    ------
    OutputError
        If there is no folder to make it in, or no room on the disk, or no file can be made; or the folder
        is something else, or has one of the files. Nothing is left then.
    """
    place = Path(os.path.realpath(folder))
    paths = {name: place / f"{name}{SUFFIX}" for name in forms}
    made_folder = _check(place, paths)
    needed = sum(size * dtype.itemsize + _HEADER for size, dtype in forms.values())
    if (free := shutil.disk_usage(place.parent if made_folder else place).free) < needed:
        raise OutputError(f"{place}: {needed} bytes are needed, and {free} are free on this disk")
    made: list[Path] = []
    try:
        if made_folder:
            with telling(place):
                place.mkdir()
        for name, (size, dtype) in forms.items():
            with telling(paths[name]), open(paths[name], "xb") as file:
                made.append(paths[name])
                _fill(file, size, dtype)
        yield {name: np.asarray(np.lib.format.open_memmap(path, "r+")) for name, path in paths.items()}
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if made_folder:
            with suppress(OSError):  # somebody else has put something there
                place.rmdir()
        raise


def _check(place: Path, paths: Mapping[str, Path]) -> bool:
    """Refuse a folder in which the files cannot be made; return whether it is yet to be made."""
    if not place.exists():
        if not place.parent.is_dir():
            raise OutputError(f"cannot make the folder {place}: there is no folder {place.parent}")
        return True
    if not place.is_dir():
        raise OutputError(f"{place} is no folder")
    if found := [path.name for path in paths.values() if path.exists() or path.is_symlink()]:
        raise OutputError(f"the folder {place} has {', '.join(found)}: name a new one, or remove them")
    return False


def _fill(file: IO[bytes], size: int, dtype: np.dtype[Any]) -> None:
    """Write a header, and zeros for the vector's bytes, so that the disk has room for all of them."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    start, count = file.tell(), size * dtype.itemsize
    if count and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), start, count)
        except OSError as problem:
            if problem.errno not in _UNSUPPORTED:
                raise
        else:
            return
    zeros = bytes(_AT_ONCE)
    for done in range(0, count, _AT_ONCE):
        file.write(zeros[: count - done])
