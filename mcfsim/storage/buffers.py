"""Memory of arrays: reuse for intermediate blocks, overlap of elements, and maps of new files.

Allocating an array the size of a block costs a call to the operating system and a page fault for each page.
Together these take several times as long as the arithmetic on the block.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mcfsim.storage.files import OutputError, Pathlike, folder_of, telling

#: Elements per block: enough that calls cost little compared with the arithmetic, and few enough for the
#: caches.
BLOCK = 1 << 17
#: Elements per block where calls cost more: threads wait for each other at each call, and random words take
#: dozens of calls.
LARGE_BLOCK = 2 * BLOCK

_LINE = 64
#: Binary logarithm of the fewest elements that are allocated.
_LEAST = 12
_kept = threading.local()


def scratch(place: str, size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised vector that belongs to this thread until the next call with the same place.

    Parameters
    ----------
    place : str
        Name of the vector's use. Vectors in use at the same time need different places.
    size : int
        Number of elements; beyond `LARGE_BLOCK` the memory is not kept.
    dtype : dtype
        Dtype of the elements.
    """
    if size > LARGE_BLOCK:
        return np.empty(size, dtype)
    arrays: dict[tuple[str, Any], NDArray[Any]] = _kept.__dict__.setdefault("arrays", {})
    key = place, dtype
    array = arrays.get(key)
    if array is None or array.size < size:
        length = (1 << max(_LEAST, (size - 1).bit_length())) * np.dtype(dtype).itemsize
        memory = np.empty(length + _LINE, np.uint8)
        first = -memory.ctypes.data % _LINE  # aligned to a cache line, so that wide loads do not straddle two
        array = arrays[key] = memory[first : first + length].view(dtype)
    return array[:size]


@lru_cache(maxsize=1)
def retain_freed_memory() -> None:
    """Make the C library keep the memory of freed blocks for the next ones.

    The GNU library returns a freed block to the system only if it is larger than all freed before. So this
    frees one large block that is never written to. With other libraries it does nothing.
    """
    np.empty(1 << 24, np.uint8)


def overlaps_itself(shape: Sequence[int], steps: Sequence[int], size: int = 1) -> bool:
    """Return whether elements of an array share memory, given its steps and the size of an element."""
    if 0 in shape:
        return False
    axes = sorted((abs(step), length) for step, length in zip(steps, shape, strict=True) if length != 1)
    reach = size
    for step, length in axes:
        if step < reach:  # axes are not nested, so all places are compared
            break
        reach += (length - 1) * step
    else:
        return False
    places = np.zeros(1, np.int64)
    for step, length in axes:
        places = np.add.outer(places, step * np.arange(length)).reshape(-1)
    return bool((np.diff(np.sort(places)) < size).any())


# -- files mapped into memory -----------------------------------------------------------------------------
#: Number of bytes that are written at once if the space of a file cannot be reserved.
_AT_ONCE = 1 << 24
#: Largest size of a file's header, in bytes.
_HEADER = 1 << 12
#: Errors of file systems that cannot reserve space.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def new_maps(
    folder: Pathlike, forms: Mapping[str, tuple[int, np.dtype[Any]]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Make a file of zeros for each vector, and map all into memory; if the block fails, remove them.

    Parameters
    ----------
    folder : path
        The folder for the files. It is made if needed; its parent folder must exist.
    forms : mapping of str to (int, dtype)
        The number of elements of each vector, and their dtype. Its file is ``NAME.npy``, for `numpy.load`.

    Yields
    ------
    dict of str to array
        The vectors, which keep their files open. The system decides when it writes changes to the files.

    Raises
    ------
    OutputError
        If the parent folder does not exist, the disk has too little room, or a file cannot be made; or if
        `folder` is not a folder, or already has one of the files. No new files are left then.
    """
    place = folder_of(folder).resolve()
    paths = {name: place / f"{name}.npy" for name in forms}
    made_folder = _is_new(place, paths)
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
                _fill_file(file, size, dtype)
        yield {name: np.asarray(np.lib.format.open_memmap(path, "r+")) for name, path in paths.items()}
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if made_folder:
            with suppress(OSError):  # somebody else has put something there
                place.rmdir()
        raise


def _is_new(place: Path, paths: Mapping[str, Path]) -> bool:
    """Return whether the folder is yet to be made; raise OutputError if the files cannot be made in it."""
    if not place.exists():
        if not place.parent.is_dir():
            raise OutputError(f"cannot make the folder {place}: there is no folder {place.parent}")
        return True
    if not place.is_dir():
        raise OutputError(f"{place} is no folder")
    if found := [path.name for path in paths.values() if path.exists() or path.is_symlink()]:
        raise OutputError(f"the folder {place} has {', '.join(found)}: name a new one, or remove them")
    return False


def _fill_file(file: IO[bytes], size: int, dtype: np.dtype[Any]) -> None:
    """Write a header, and reserve or write zeros for the vector, so that the disk has room for it."""
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
