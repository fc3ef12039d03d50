"""Arrays and JSON data about them in one ``.npz`` file, which is read whole or refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike, open_regular, replacing

#: The member that holds JSON text: what the file is, and the dtype and shape of every other member.
ABOUT = "about"
#: The maximum size in bytes of that text, as NumPy stores it, and of any member's header.
_LONGEST_ABOUT = 1 << 26
_LONGEST_HEADER = 1 << 14
#: Bytes of arrays that a file of any size may claim to hold. Files that we write claim no more than their own
#: size.
_MODEST = 1 << 28
#: Little-endian numbers and text: no objects and no structured dtypes.
_DTYPES = re.compile(r"<f4|<f8|<i8|<U[1-9][0-9]{0,8}")
_ENCRYPTED = 1
#: The maximum number of bytes of each part of an array's name, so that the whole fits into a ZIP entry.
_LONGEST_NAME = 32_000
#: The rule for such a part, and how many characters of a refused one an error shows.
_NAMES = f"a name in a file has no NUL, no surrogate, and at most {_LONGEST_NAME:,} bytes"
_SHOWN = 40


def check_name(label: str, name: str, *, last: bool = True) -> None:
    """Raise ValueError if a name cannot be part of the names of stored arrays.

    Parameters
    ----------
    label : str
        What has the name, as the message calls it.
    name : str
        A strategy's or a tensor's name.
    last : bool, optional
        Whether names of arrays end in this name.
    """
    surrogates = any("\ud800" <= character <= "\udfff" for character in name)
    if "\0" in name or surrogates or len(name.encode(errors="replace")) > _LONGEST_NAME:
        raise ValueError(f"{label} {name[:_SHOWN]!r}: {_NAMES}")
    if last and name.endswith(".npy"):
        raise ValueError(f"{label} {name[-_SHOWN:]!r}: {_NAMES}, and does not end in .npy")


class ArraySpec(NamedTuple):
    """Dtype and shape of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes of such an array."""
        return math.prod(self.shape) * self.dtype.itemsize


Forms = Mapping[str, ArraySpec]
#: A check of JSON data and forms, made before arrays are read; and JSON data with arrays.
Check = Callable[[dict[str, Any], Forms], None]
Content = tuple[dict[str, Any], dict[str, NDArray[Any]]]


def write_archive(
    path: Pathlike, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, exclusive: bool = False
) -> None:
    """Write arrays and JSON data to one ``.npz`` file, whole or not at all.

    The array ``about`` holds the JSON data, the dtype and shape of each array, and a SHA-256 of the whole
    content. Nothing is compressed, so no file claims more than its size.

    Raises
    ------
    TypeError
        If the data are not JSON, or an array holds something other than numbers or text.
    """
    stored = {name: _portable(name, array) for name, array in arrays.items()}
    text = json.dumps({**about, "arrays": {name: [x.dtype.str, [*x.shape]] for name, x in stored.items()}})
    digest = _digest(text, stored)
    whole = {ABOUT: np.array(json.dumps({**json.loads(text), "digest": digest})), **stored}
    with replacing(path, exclusive=exclusive) as file, ZipFile(file, "w") as archive:
        for name, array in whole.items():
            # Without a date, so the bytes are the same each time.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_archive(path: Pathlike, check: Check) -> Content:
    """Return what `write_archive` wrote, unchanged, or raise.

    Parameters
    ----------
    path : path
        The file.
    check : callable
        Called with the JSON data and the dtype and shape of each array, before the arrays are read. It
        raises ValueError if the caller cannot use them.

    Raises
    ------
    ValueError
        If the file is not of this kind, is damaged, or claims to hold more than its size allows.
    OSError
        If it does not exist or cannot be read.
    """
    with open_regular(path) as file:
        try:
            return _read(file, check)
        except _UnusableError as problem:
            raise ValueError(f"{os.fspath(path)} {problem}") from problem
        except Exception as problem:  # whatever zipfile, NumPy and JSON make of bytes that anyone may write
            what = str(problem) or type(problem).__name__
            raise ValueError(f"{os.fspath(path)} is no file of mcfsim, or is damaged: {what}") from problem


class _UnusableError(ValueError):
    """A refusal, by the caller's check, of a file that is sound as far as it was read."""


def _read(file: IO[bytes], check: Check) -> Content:
    size = os.fstat(file.fileno()).st_size
    with ZipFile(file) as archive:
        members = list(_members(archive, max(_MODEST, size)))
        names = [name for name, _ in members]
        if len(set(names)) < len(names) or ABOUT not in names:
            raise ValueError(f"it repeats a member, or lacks {ABOUT!r}: it has {', '.join(names[:5])}...")
        infos = dict(members)
        about = json.loads(_about(archive, infos.pop(ABOUT)))
        if not isinstance(about, dict) or not isinstance(about.get("arrays"), dict):
            raise ValueError("it does not say what arrays it holds, as files of earlier versions do not")
        digest = about.pop("digest", None)
        text = json.dumps(about)
        forms = {name: _form(said) for name, said in about.pop("arrays").items()}
        try:
            check(about, forms)
        except ValueError as problem:
            raise _UnusableError(*problem.args) from problem
        if forms.keys() != infos.keys():
            raise ValueError("its members are not those that it lists")
        arrays = {name: _array(archive, infos[name], form) for name, form in forms.items()}
    if digest != _digest(text, arrays):
        raise ValueError("its digest is not that of its content")
    return about, arrays


def _members(archive: ZipFile, limit: int) -> Iterator[tuple[str, ZipInfo]]:
    """Yield name and entry of each member; refuse what we never write, and too many bytes in total."""
    total = 0
    for info in archive.infolist():
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise ValueError(f"member {info.filename!r} is encrypted, or compressed in an unknown way")
        total += info.file_size
        if total > limit:
            raise ValueError(f"it claims to hold more than {limit} bytes")
        yield info.filename.removesuffix(".npy"), info


def _about(archive: ZipFile, info: ZipInfo) -> str:
    """Return the text of the member `ABOUT`, whose length is not known in advance."""
    if info.file_size > _LONGEST_ABOUT:
        raise ValueError(f"its description has {info.file_size} bytes")
    with archive.open(info) as member:
        dtype, shape = _header(member)
        if not _DTYPES.fullmatch(dtype.str) or dtype.kind != "U" or shape != ():
            raise ValueError(f"its description is no text, but {dtype} of shape {shape}")
        data = member.read(_LONGEST_ABOUT)
    if len(data) != dtype.itemsize:
        raise ValueError("its description is cut off")
    return str(np.frombuffer(data, dtype)[0])


def _array(archive: ZipFile, info: ZipInfo, form: ArraySpec) -> NDArray[Any]:
    if not form.bytes <= info.file_size <= form.bytes + _LONGEST_HEADER:
        raise ValueError(f"member {info.filename!r} has {info.file_size} bytes, not {form.bytes} + a header")
    with archive.open(info) as member:
        found = _header(member)
        data = member.read(form.bytes + 1)  # to the end, where zipfile compares the checksum
    if found != form or len(data) != form.bytes:
        raise ValueError(f"member {info.filename!r} is not the array that is listed")
    return np.frombuffer(data, form.dtype).reshape(form.shape).copy()


def _header(member: IO[bytes]) -> ArraySpec:
    """Read NumPy's header of an array; for such arrays NumPy writes version 1.0 only."""
    if np.lib.format.read_magic(member) != (1, 0):
        raise ValueError("a member is of another version of NumPy's format")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(member, max_header_size=_LONGEST_HEADER)
    if fortran and len(shape) > 1:
        raise ValueError("an array is in Fortran order")
    return ArraySpec(dtype, shape)


def _form(said: Any) -> ArraySpec:
    """Return dtype and shape of an array from its description."""
    dtype, shape = said
    if not isinstance(dtype, str) or not _DTYPES.fullmatch(dtype):
        raise ValueError(f"dtype {dtype!r} is none that we store")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 8:
        raise ValueError(f"shape {shape!r} is not a list of at most 8 lengths")
    return ArraySpec(np.dtype(dtype), tuple(shape))


def _portable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as it is stored: contiguous and little-endian."""
    stored = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if not _DTYPES.fullmatch(stored.dtype.str):
        raise TypeError(f"array {name!r} of dtype {array.dtype} has no numbers or text that we store")
    if "\0" in name or name.endswith(".npy") or name == ABOUT:
        raise ValueError(f"{name!r} cannot be the name of an array in a file")
    return stored


def _digest(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of the description, which has names, dtypes and shapes, and of the arrays."""
    digest = hashlib.sha256(text.encode())
    for array in arrays.values():
        digest.update(array.tobytes())
    return digest.hexdigest()
