"""Tensors in files: names, dtypes and shapes are read first, then elements, a block at a time."""

from __future__ import annotations

import math
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike, open_regular

#: The kind of numbers, as NumPy and ml_dtypes call it, by the safetensors library's name of their dtype.
NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U64": "uint64",
        "U32": "uint32",
        "U16": "uint16",
        "U8": "uint8",
        "BOOL": "bool",
    }
)
_CODES = {"F16": "u2", "BF16": "u2", "BOOL": "u1"}
#: The NumPy dtype of elements in memory, by the same names. Floating-point numbers of at most 16 bits are
#: held as codes, as NumPy has no dtype for most of them, and so are truth values.
ELEMENTS: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        name: np.dtype("u1" if name.startswith("F8") else _CODES.get(name, called)).newbyteorder("<")
        for name, called in NUMBERS.items()
    }
)


class FileOfTensorsError(ValueError):
    """A file without tensors, with other tensors than it says, or with some that cannot be read."""

    def __init__(self, path: Pathlike, what: str) -> None:
        super().__init__(f"{os.fspath(path)}: {what}")


@dataclass(frozen=True)
class Tensor(ABC):
    """One tensor of a file, in row-major order.

    Parameters
    ----------
    name : str
        Its name in the file.
    dtype : str
        A key of `ELEMENTS`.
    shape : tuple of int
        Its shape.
    path : Path
        The file that contains it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of its elements in memory."""
        return self.size * ELEMENTS[self.dtype].itemsize

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return elements as a new vector: numbers, or codes of floating-point numbers of at most 16 bits.

        Raises
        ------
        FileOfTensorsError
            If they cannot be read, for example because the file has become shorter.
        """
        start, stop, _ = slice(start, stop).indices(self.size)
        return self._elements(start, max(start, stop))

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield all elements in order, `size` at a time."""
        for start in range(0, self.size, size):
            yield self.read(start, start + size)

    @abstractmethod
    def _elements(self, start: int, stop: int) -> NDArray[Any]:
        """Return the elements from `start` to `stop`, which exist."""

    def _refuse(self, what: str) -> FileOfTensorsError:
        return FileOfTensorsError(self.path, f"tensor {self.name!r} {what}")


@dataclass(frozen=True)
class PlainTensor(Tensor):
    """A tensor whose elements lie unencoded and contiguous in its file.

    Parameters
    ----------
    offset : int
        The byte at which they start.
    """

    offset: int

    def _elements(self, start: int, stop: int) -> NDArray[Any]:
        dtype = ELEMENTS[self.dtype]
        with open_regular(self.path) as file:
            file.seek(self.offset + start * dtype.itemsize)
            elements = np.fromfile(file, dtype, stop - start)
        if elements.size != stop - start:
            raise self._refuse(
                f"is cut off: the file has become shorter since its header was read ({start=})"
            )
        return elements


# -- NumPy's .npz archives, without pickles ---------------------------------------------------------------
#: The names in `ELEMENTS` of NumPy's dtypes.
_NAMES = {called: name for name, called in NUMBERS.items() if hasattr(np, called)}
#: The maximum size in bytes of an array in column-major order, which must be read as a whole.
_MOST_TURNED = 1 << 28
_ENCRYPTED = 1


class _Archive:
    """An archive that stays open while it has live tensors: reading its member list takes long."""

    def __init__(self, path: Path) -> None:
        file = open_regular(path)
        weakref.finalize(self, file.close)
        try:
            self.opened = ZipFile(file)
        except BaseException:
            file.close()
            raise
        #: The column-major array that was read last, in row-major order, until its end has been read.
        self.turned: tuple[str, NDArray[Any]] | None = None


@dataclass(frozen=True)
class Member(Tensor):
    """An array of an archive, uncompressed or compressed.

    Parameters
    ----------
    member : str
        Its name in the archive.
    in_columns : bool
        Whether it is stored in column-major order.
    big : bool
        Whether it is stored big-endian.

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
            self._archive.turned = None  # first, so that memory never holds two
            whole = self._stretch(0, self.size).reshape(self.shape, order="F").ravel()
            turned = self._archive.turned = self.member, whole
        if stop == self.size:
            self._archive.turned = None
        return turned[1][start:stop].copy()

    def _stretch(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements in the order of the file; a compressed member continues from where it stopped."""
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
    """A sequential reader of one member of an archive."""

    def __init__(self, tensor: Member, archive: ZipFile) -> None:
        self.place = 0
        self._dtype = ELEMENTS[tensor.dtype].newbyteorder(">" if tensor.big else "<")
        self._member: Any = archive.open(tensor.member)
        _header(self._member)
        self._start = self._member.tell()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements that do not precede those read last."""
        if start != self.place:
            self._member.seek(self._start + start * self._dtype.itemsize)
        data = self._member.read((stop - start) * self._dtype.itemsize)
        if len(data) != (stop - start) * self._dtype.itemsize:
            raise ValueError("it is cut off")
        self.place = stop
        return np.frombuffer(data, self._dtype).astype(self._dtype.newbyteorder("<"))


def read_archive_of_tensors(path: Pathlike) -> dict[str, Tensor]:
    """Return the arrays of an ``.npz`` file, by name.

    Raises
    ------
    FileOfTensorsError
        If it is not such a file, is damaged, or has an array of an unknown dtype, such as objects, which
        would need pickles.
    OSError
        If it does not exist or cannot be read.
    """
    path = Path(path)
    found: dict[str, Tensor] = {}
    open_regular(path).close()  # raises if it is not a regular file, or does not exist
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
        yield _member(path, archive, info, name)


def _member(path: Path, archive: _Archive, info: ZipInfo, name: str) -> Member:
    def refusal(what: str) -> FileOfTensorsError:
        return FileOfTensorsError(path, f"array {name!r} {what}")

    if info.flag_bits & _ENCRYPTED or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise refusal("is encrypted, or compressed in an unknown way")
    with archive.opened.open(info) as member:
        try:
            shape, in_columns, dtype = _header(member)
            if min(shape, default=0) < 0:
                raise ValueError(f"its shape is {shape}")
        except Exception as problem:
            raise refusal(f"is no array, or damaged: {problem}") from problem
        start = member.tell()
    if dtype.name not in _NAMES or dtype.kind not in "fiub":
        raise refusal(f"is of dtype {dtype}, which is not known; known: {', '.join(_NAMES)}")
    if info.file_size - start != (size := math.prod(shape) * dtype.itemsize):
        raise refusal(f"of shape {shape} has {info.file_size - start} bytes in place of {size}")
    if (in_columns := in_columns and len(shape) > 1) and size > _MOST_TURNED:
        raise refusal(
            f"has {size} bytes in column-major (Fortran) order, and at most {_MOST_TURNED} can be read in it"
        )
    kind, big = _NAMES[dtype.name], dtype.byteorder == ">"
    return Member(name, kind, shape, path, info.filename, in_columns, big, archive)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and dtype of an opened array."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(member)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(member)
    raise ValueError(f"version {version} of NumPy's format is not known")
