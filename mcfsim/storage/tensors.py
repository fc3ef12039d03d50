"""Tensors that lie in files: their names, dtypes and shapes first, and their elements a stretch at a time."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import Pathlike, open_regular

#: How elements of each dtype, as the safetensors library calls it, lie in memory. Floating numbers of 16 bits
#: and less are their codes: NumPy has no dtype for most of them.
ELEMENTS: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "F64": np.dtype("<f8"),
        "F32": np.dtype("<f4"),
        "F16": np.dtype("<u2"),
        "BF16": np.dtype("<u2"),
        "F8_E4M3": np.dtype("u1"),
        "F8_E5M2": np.dtype("u1"),
        "F8_E4M3FNUZ": np.dtype("u1"),
        "F8_E5M2FNUZ": np.dtype("u1"),
        "I64": np.dtype("<i8"),
        "I32": np.dtype("<i4"),
        "I16": np.dtype("<i2"),
        "I8": np.dtype("i1"),
        "U64": np.dtype("<u8"),
        "U32": np.dtype("<u4"),
        "U16": np.dtype("<u2"),
        "U8": np.dtype("u1"),
        "BOOL": np.dtype("u1"),
    }
)


class FileOfTensorsError(ValueError):
    """A file that holds no tensors, or others than it says, or some that cannot be read."""

    def __init__(self, path: Pathlike, what: str) -> None:
        super().__init__(f"{os.fspath(path)}: {what}")


@dataclass(frozen=True)
class Tensor(ABC):
    """One tensor of a file, in rows: the last index runs fastest.

    Parameters
    ----------
    name : str
        As the file has it.
    dtype : str
        A key of `ELEMENTS`.
    shape : tuple of int
        Of the tensor.
    path : Path
        The file that it lies in.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What its elements take in memory."""
        return self.size * ELEMENTS[self.dtype].itemsize

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return elements as a new vector: numbers, or codes of floating numbers of 16 bits and less.

        Raises
        ------
        FileOfTensorsError
            If they cannot be read, as from a file that has become shorter.
        """
        start, stop, _ = slice(start, stop).indices(self.size)
        return self._elements(start, max(start, stop))

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield all elements in order, so many at a time."""
        for start in range(0, self.size, size):
            yield self.read(start, start + size)

    @abstractmethod
    def _elements(self, start: int, stop: int) -> NDArray[Any]:
        """Return these elements, which there are."""

    def _refuse(self, what: str) -> FileOfTensorsError:
        return FileOfTensorsError(self.path, f"tensor {self.name!r} {what}")


@dataclass(frozen=True)
class PlainTensor(Tensor):
    """A tensor whose elements lie in its file as they are, from a byte on.

    Parameters
    ----------
    offset : int
        That byte.
    """

    offset: int

    def _elements(self, start: int, stop: int) -> NDArray[Any]:
        dtype = ELEMENTS[self.dtype]
        elements = np.empty(stop - start, dtype)
        with open_regular(self.path) as file:
            file.seek(self.offset + start * dtype.itemsize)
            count = file.readinto(elements.data.cast("B")) if elements.size else 0  # type: ignore[attr-defined]
        if count != elements.nbytes:
            raise self._refuse(
                f"is cut off: the file has become shorter since its header was read ({start=})"
            )
        return elements


def check_dtype(path: Pathlike, name: str, dtype: str) -> str:
    """Return a dtype; raise FileOfTensorsError unless its elements can be read."""
    if dtype not in ELEMENTS:
        known = ", ".join(ELEMENTS)
        raise FileOfTensorsError(
            path, f"tensor {name!r} is of dtype {dtype}, which is not known; known: {known}"
        )
    return dtype
