"""Reading of a model's weights from files, tensor by tensor, as numbers of their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec import decode
from mcfsim.formats import FORMATS, Format
from mcfsim.storage import shards, tensors
from mcfsim.storage.files import Pathlike
from mcfsim.storage.sealed import check_weights
from mcfsim.storage.tensors import FileOfTensorsError, Tensor

#: The format of each floating-point dtype, by the name that files use.
FORMAT_OF: Mapping[str, Format] = MappingProxyType(
    {
        "F64": FORMATS["float64"],
        "F32": FORMATS["float32"],
        "F16": FORMATS["float16"],
        "BF16": FORMATS["bfloat16"],
        "F8_E4M3": FORMATS["float8_e4m3fn"],
        "F8_E5M2": FORMATS["float8_e5m2"],
        "F8_E4M3FNUZ": FORMATS["float8_e4m3fnuz"],
        "F8_E5M2FNUZ": FORMATS["float8_e5m2fnuz"],
    }
)
DTYPE_OF: Mapping[Format, str] = MappingProxyType({fmt: dtype for dtype, fmt in FORMAT_OF.items()})


@dataclass(frozen=True)
class Weight:
    """One tensor of weights.

    Parameters
    ----------
    stored : Tensor
        The tensor in its file.
    """

    stored: Tensor

    @property
    def name(self) -> str:
        """The name in the file."""
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.stored.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stored.size

    @property
    def format(self) -> Format:
        """The format in which the elements are stored."""
        return FORMAT_OF[self.stored.dtype]

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return elements as a new vector of numbers in the format's carrier; NaN and infinity stay.

        Raises
        ------
        FileOfTensorsError
            If they cannot be read.
        """
        return self.numbers(self.stored.read(start, stop))

    def numbers(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return elements, given as the file stores them, as numbers in the format's carrier."""
        return elements if elements.dtype.kind == "f" else decode(elements, self.format)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Return an iterator over all elements in order, `size` at a time."""
        return map(self.numbers, self.stored.blocks(size))


@dataclass(frozen=True)
class Weights(Mapping[str, Weight]):
    """The tensors of a model, by name; those without elements and those of whole numbers are left out.

    Parameters
    ----------
    path : Path
        The file or folder that was opened.
    tensors : mapping of str to Weight
        The tensors of floating numbers.
    left_out : mapping of str to str
        The other tensors, and why they are left out.
    """

    path: Path
    tensors: Mapping[str, Weight]
    left_out: Mapping[str, str]

    def __getitem__(self, name: str) -> Weight:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""
        return sum(weight.size for weight in self.values())


#: How many numbers are NaN, and how many are infinite.
Counts = tuple[int, int]


def not_finite(x: NDArray[Any]) -> Counts:
    """Return how many numbers are NaN, and how many are infinite."""
    if np.isfinite(x).all():
        return 0, 0
    return int(np.count_nonzero(np.isnan(x))), int(np.count_nonzero(np.isinf(x)))


def refuse_not_finite(path: Pathlike, found: Mapping[str, Counts]) -> None:
    """Raise FileOfTensorsError if there is a NaN or an infinity; the message counts them by tensor."""
    told = [f"{name}: {nans} NaN, {inf} infinite" for name, (nans, inf) in found.items() if nans or inf]
    if told:
        more = f"; and {len(told) - 10} more tensors" if len(told) > 10 else ""
        raise FileOfTensorsError(path, f"has numbers that are not finite: {'; '.join(told[:10])}{more}")


def open_weights(path: Pathlike) -> Weights:
    """Open the weights of a model; read only names and shapes.

    Parameters
    ----------
    path : path
        A safetensors file, a folder of them, their index (``*.safetensors.index.json``), or an ``.npz``
        file, which is read without pickles.

    Returns
    -------
    Weights
        A mapping of names to tensors that are read piece by piece.

    Raises
    ------
    FileOfTensorsError
        If it is not such a file, is damaged, has an unknown dtype, has no tensor of floating numbers, or
        says that it is a recorded step or an optimizer's state; a `ValueError`.
    OSError
        If it is missing or cannot be read.
    """
    path = Path(path)
    tensors = open_tensors(path)
    for file in dict.fromkeys(tensor.path for tensor in tensors.values()):
        if file.suffix.lower() == shards.SUFFIX:
            check_weights(file, shards.read_metadata(file))
    return weights_of(path, tensors)


def open_tensors(path: Pathlike) -> dict[str, Tensor]:
    """Return all tensors of a file or folder, see `open_weights`."""
    path = Path(path)
    if path.is_dir():
        return shards.read_folder(path)
    if path.name.endswith(".json"):
        return shards.read_index(path)
    if path.suffix.lower() == ".npz":
        return tensors.read_archive_of_tensors(path)
    if path.suffix.lower() == shards.SUFFIX:
        return shards.read_file(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    raise FileOfTensorsError(
        path,
        f"is no {shards.SUFFIX} file, no folder of them, no index *{shards.INDEX_SUFFIX} and no .npz file; "
        "write a state_dict by safetensors.torch.save_file",
    )


def metadata_of(path: Pathlike) -> dict[str, str]:
    """Return the metadata of a file or folder that `open_tensors` opens; an ``.npz`` file has none."""
    return {} if Path(path).suffix.lower() == ".npz" else shards.read_metadata(path)


def weights_of(path: Pathlike, tensors: Mapping[str, Tensor]) -> Weights:
    """Return the tensors of floating numbers that have elements, as weights."""
    kept, left_out = {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype not in FORMAT_OF:
            left_out[name] = f"whole numbers ({tensor.dtype})"
        elif not tensor.size:
            left_out[name] = f"no elements (shape {list(tensor.shape)})"
        else:
            kept[name] = Weight(tensor)
    if not kept:
        raise FileOfTensorsError(path, "has no tensor of floating numbers")
    return Weights(Path(path), kept, left_out)
