"""Tensors in NumPy's ``.npz`` archives, without pickles, read a stretch at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike, open_regular
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError, Tensor

#: What NumPy's dtypes are called where tensors have names for them.
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
#: Bytes of an array that lies in columns, and so is read as a whole.
_MOST_TURNED = 1 << 28
_ENCRYPTED = 1


class _Archive:
    """An archive that stays open as long as there are tensors of it: to look through its list takes long."""

    def __init__(self, path: Path) -> None:
        file = open_regular(path)
        weakref.finalize(self, file.close)
        try:
            self.opened = ZipFile(file)
        except BaseException:
            file.close()
            raise
        #: The array in columns that was asked for last, in rows, until its end has been read.
        self.turned: tuple[str, NDArray[Any]] | None = None


@dataclass(frozen=True)
class Member(Tensor):
    """An array of an archive, stored as it is or compressed.

    Parameters
    ----------
    member : str
        Its name in the archive.
    in_columns : bool
        Whether the first index runs fastest there.
    big : bool
        Whether its bytes are in the other order.

    Notes
    -----
    One thread may read it at a time.
    """

    member: str
    in_columns: bool
    big: bool
    _archive: _Archive = field(repr=False, compare=False)
    _open: list[_MemberStream] = field(default_factory=list, repr=False, compare=False)

    def _elements(self, start: int, stop: int) -> NDArray[Any]:
        if start == stop:
            return np.empty(0, ELEMENTS[self.dtype])
        if not self.in_columns:
            return self._stretch(start, stop)
        turned = self._archive.turned
        if turned is None or turned[0] != self.member:
            self._archive.turned = None  # first, so that two never take memory
            whole = self._stretch(0, self.size).reshape(self.shape, order="F").ravel()
            turned = self._archive.turned = self.member, whole
        if stop == self.size:
            self._archive.turned = None
        return turned[1][start:stop].copy()

    def _stretch(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements in the order of the file; what is compressed goes on from where it ended."""
        try:
            if not self._open or self._open[0].place > start:
                self._open[:] = [_MemberStream(self, self._archive.opened)]
            elements = self._open[0].read(start, stop)
        except Exception as problem:  # whatever zipfile makes of bytes that anyone may write
            self._open.clear()
            raise self._refuse(f"is damaged: {str(problem) or type(problem).__name__}") from problem
        if stop == self.size:
            self._open.clear()
        return elements


class _MemberStream:
    """A member of an archive, read from its start on."""

    def __init__(self, tensor: Member, archive: ZipFile) -> None:
        self.place = 0
        self._dtype = ELEMENTS[tensor.dtype].newbyteorder(">" if tensor.big else "<")
        self._member: Any = archive.open(tensor.member)
        _header(self._member)
        self._start = self._member.tell()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements that are not before those that were read last."""
        if start != self.place:
            self._member.seek(self._start + start * self._dtype.itemsize)
        elements = np.empty(stop - start, self._dtype)
        view = elements.data.cast("B")
        done = 0
        while done < len(view):
            if not (count := self._member.readinto(view[done:])):
                raise ValueError("it is cut off")
            done += count
        self.place = stop
        return elements.astype(self._dtype.newbyteorder("<"), copy=False)


def read_archive_of_tensors(path: Pathlike) -> dict[str, Tensor]:
    """Return the arrays of an ``.npz`` file, by name.

    Raises
    ------
    FileOfTensorsError
        If it is no such file, or damaged, or an array is of a dtype that is not known, as objects, which
        would need pickles.
    OSError
        If it is not there or cannot be read.
    """
    path = Path(path)
    found: dict[str, Tensor] = {}
    open_regular(path).close()  # refuses what is no file, and says so if there is none
    try:
        for tensor in _members(path, _Archive(path)):
            if tensor.name in found:
                raise FileOfTensorsError(path, f"has two arrays {tensor.name!r}")
            found[tensor.name] = tensor
    except FileOfTensorsError:
        raise
    except Exception as problem:  # whatever zipfile and NumPy make of bytes that anyone may write
        what = str(problem) or type(problem).__name__
        raise FileOfTensorsError(path, f"no .npz file, or damaged: {what}") from problem
    return found


def _members(path: Path, archive: _Archive) -> Iterator[Member]:
    for info in archive.opened.infolist():
        name = info.filename.removesuffix(".npy")
        if info.filename == name:
            raise FileOfTensorsError(path, f"its member {name!r} is no array of NumPy's")
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise FileOfTensorsError(path, f"array {name!r} is encrypted, or compressed in an unknown way")
        yield _member(path, archive, info, name)


def _member(path: Path, archive: _Archive, info: ZipInfo, name: str) -> Member:
    with archive.opened.open(info) as member:
        try:
            shape, in_columns, dtype = _header(member)
        except Exception as problem:
            raise FileOfTensorsError(path, f"array {name!r} is no array, or damaged: {problem}") from problem
        start = member.tell()
    if dtype.name not in _NAMES or dtype.kind not in "fiub":
        known = ", ".join(_NAMES)
        raise FileOfTensorsError(
            path, f"array {name!r} is of dtype {dtype}, which is not known; known: {known}"
        )
    if info.file_size - start != (size := math.prod(shape) * dtype.itemsize):
        raise FileOfTensorsError(
            path, f"array {name!r} of shape {shape} has {info.file_size - start} bytes in place of {size}"
        )
    if (in_columns := in_columns and len(shape) > 1) and size > _MOST_TURNED:
        raise FileOfTensorsError(
            path,
            f"array {name!r} lies in columns (Fortran order), which are read up to {_MOST_TURNED} bytes, "
            f"and has {size}",
        )
    kind, big = _NAMES[dtype.name], dtype.byteorder == ">"
    return Member(name, kind, shape, path, info.filename, in_columns, big, archive)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and dtype of an array that has been opened."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise ValueError(f"version {version} of NumPy's format is not known")
