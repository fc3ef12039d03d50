"""Tensors in safetensors files: one file, or several with an index that says which tensor is where."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import OutputError, Pathlike, open_regular, read_text, replacing_by_name
from mcfsim.storage.schema import parse
from mcfsim.storage.space import check_space
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError, PlainTensor, Tensor, check_dtype

SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
#: Bytes that an index may have: a line a tensor.
_LONGEST_INDEX = 1 << 27
#: Bytes of the number, at the start of a file, that says how long its header is.
_LENGTH = 8
#: As the library wants them named when they are written.
_WRITTEN = {
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


def read_file(path: Pathlike) -> dict[str, Tensor]:
    """Return the tensors of one safetensors file, by name, in their order in the file.

    The header is read, and judged, by the safetensors library; elements are read when they are asked for.

    Raises
    ------
    FileOfTensorsError
        If it is no such file, or damaged, or has a tensor of a dtype that is not known.
    OSError
        If it is not there or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    with open_regular(path) as file:  # refuses what is no file, and says so if there is none
        start = _LENGTH + int.from_bytes(file.read(_LENGTH), "little")
    try:
        with safe_open(path, framework="numpy") as opened:
            names = list(opened.offset_keys())
            views = [opened.get_slice(name) for name in names]
            forms = [(str(view.get_dtype()), tuple(map(int, view.get_shape()))) for view in views]
    except (SafetensorError, OSError, ValueError, OverflowError) as problem:
        raise FileOfTensorsError(path, f"no safetensors file, or damaged: {problem}") from problem
    found: dict[str, Tensor] = {}
    # The library has made sure that tensors follow one another without a gap, to the end of the file.
    for name, (dtype, shape) in zip(names, forms, strict=True):
        check_dtype(path, name, dtype)
        found[name] = PlainTensor(name, dtype, shape, path, start)
        start += math.prod(shape) * ELEMENTS[dtype].itemsize
    return found


def read_metadata(path: Pathlike) -> dict[str, str]:
    """Return what a safetensors file or an index says besides its tensors: texts, by name.

    Of a folder it is what its index says, and nothing if there is none.

    Raises
    ------
    FileOfTensorsError
        If it is no such file, or damaged.
    OSError
        If it is not there or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        index = _index_of(path)
        return {} if index is None else read_metadata(index)
    if path.name.endswith(INDEX_SUFFIX):
        said = _index(path).get("metadata")
        texts = said if isinstance(said, dict) else {}
        return {name: text for name, text in texts.items() if isinstance(text, str)}
    open_regular(path).close()
    try:
        with safe_open(path, framework="numpy") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError, ValueError, OverflowError) as problem:
        raise FileOfTensorsError(path, f"no safetensors file, or damaged: {problem}") from problem


def read_index(path: Pathlike) -> dict[str, Tensor]:
    """Return the tensors that an index names, from the files beside it that it says they lie in.

    Raises
    ------
    FileOfTensorsError
        If it is no index, or names a file that is not there, or a tensor that its file lacks; or a file has
        a tensor that the index does not name.
    OSError
        If a file cannot be read.
    """
    path = Path(path)
    places = read_places(path)
    shards = {place: _shard(path, place, name) for name, place in reversed(places.items())}
    for name, place in places.items():
        if name not in shards[place]:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is said to lie in {place}, which has none of that name"
            )
    for place, tensors in shards.items():
        for name in tensors:
            if places.get(name) != place:
                raise FileOfTensorsError(
                    path, f"{place} has a tensor {name!r}, which the index does not name there"
                )
    return {name: shards[place][name] for name, place in places.items()}


def read_places(path: Pathlike) -> dict[str, str]:
    """Return in which file beside it an index says that each tensor lies.

    Raises
    ------
    FileOfTensorsError
        If it is no index.
    OSError
        If it cannot be read.
    """
    places = _index(Path(path)).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise FileOfTensorsError(path, 'no index of tensors: it has no "weight_map" of names to files')
    return places


def read_folder(path: Pathlike) -> dict[str, Tensor]:
    """Return the tensors of a folder: by its index, or else those of all its safetensors files.

    Raises
    ------
    FileOfTensorsError
        If there are none, or several indexes, or a tensor is in two files; see also `read_index`.
    OSError
        If a file cannot be read.
    """
    folder = Path(path)
    if (index := _index_of(folder)) is not None:
        return read_index(index)
    shards = sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIX))
    if not shards:
        raise FileOfTensorsError(folder, f"has no file *{SUFFIX} and no index *{INDEX_SUFFIX}")
    found: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in read_file(shard).items():
            if name in found:
                raise FileOfTensorsError(
                    folder, f"{found[name].path.name} and {shard.name} both have {name!r}"
                )
            found[name] = tensor
    return found


def write_file(
    path: Pathlike,
    tensors: Mapping[str, tuple[str, NDArray[Any]]],
    metadata: Mapping[str, str] | None = None,
    *,
    exclusive: bool = False,
) -> None:
    """Write tensors as one safetensors file, see `mcfsim.storage.files.replacing_by_name`.

    Parameters
    ----------
    path : path
        The place.
    tensors : mapping of str to (str, array)
        A dtype of `ELEMENTS` and elements as they are read, of any shape; they may lie in a memory map.
    metadata : mapping of str to str, optional
        What else the header says.
    exclusive : bool, optional
        Whether nothing may be there yet.

    Raises
    ------
    OutputError
        If the place cannot be written, or has no room.
    FileExistsError
        If something is there that may not.
    """
    from safetensors import SafetensorError, TensorSpec, serialize_file

    kept = {name: (dtype, np.ascontiguousarray(x, ELEMENTS[dtype])) for name, (dtype, x) in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=_WRITTEN[dtype],
            shape=list(np.shape(tensors[name][1])),
            data_ptr=x.ctypes.data,
            data_len=x.nbytes,
        )
        for name, (dtype, x) in kept.items()
    }
    check_space(path, sum(x.nbytes for _, x in kept.values()))
    with replacing_by_name(path, exclusive=exclusive) as name:
        try:
            serialize_file(specs, name, metadata=dict(metadata or {}) or None)
        except SafetensorError as problem:
            raise OutputError(f"cannot write {os.fspath(path)}: {problem}") from problem


def _index(path: Path) -> dict[str, Any]:
    """Return what an index says."""
    try:
        data = parse(read_text(path, _LONGEST_INDEX))
    except ValueError as problem:
        raise FileOfTensorsError(path, f"no index of tensors: {problem}") from problem
    return data if isinstance(data, dict) else {}


def _index_of(folder: Path) -> Path | None:
    """Return the index of a folder, None if it has none; refuse several."""
    indexes = sorted(file for file in folder.iterdir() if file.name.endswith(INDEX_SUFFIX))
    if len(indexes) > 1:
        names = ", ".join(file.name for file in indexes)
        raise FileOfTensorsError(folder, f"has several indexes; name the one that is meant: {names}")
    return indexes[0] if indexes else None


def _shard(index: Path, place: str, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file beside an index."""
    if place != os.path.basename(place) or place in ("", ".", ".."):
        raise FileOfTensorsError(
            index, f"tensor {name!r} is said to lie in {place!r}, which is no name of a file"
        )
    try:
        return read_file(index.parent / place)
    except FileNotFoundError:
        raise FileOfTensorsError(
            index, f"{place}, which tensor {name!r} is said to lie in, is not there"
        ) from None
