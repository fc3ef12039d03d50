"""Reading and writing safetensors files, single or with an index, and a check that outputs spare inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.storage.files import (
    OutputError,
    Pathlike,
    check_space,
    destination,
    identity,
    open_regular,
    read_text,
    replacing_by_name,
)
from mcfsim.storage.sealed import parse
from mcfsim.storage.tensors import ELEMENTS, NUMBERS, FileOfTensorsError, PlainTensor, Tensor

SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
#: The maximum size in bytes of an index, which has one line per tensor.
_LONGEST_INDEX = 1 << 27
#: Bytes of the number at the start of a file that gives the length of its header.
_LENGTH = 8


def read_file(path: Pathlike) -> dict[str, Tensor]:
    """Return the tensors of one safetensors file, by name, in their order in the file.

    The safetensors library reads and checks the header. Elements are read only on demand.

    Raises
    ------
    FileOfTensorsError
        If it is not such a file, is damaged, or has a tensor of an unknown dtype.
    OSError
        If it does not exist or cannot be read.
    """
    path = Path(path)
    with open_regular(path) as file:  # raises if it is not a regular file, or does not exist
        start = _LENGTH + int.from_bytes(file.read(_LENGTH), "little")
    with _opened(path) as opened:
        names = list(opened.offset_keys())
        views = [opened.get_slice(name) for name in names]
        forms = [(str(view.get_dtype()), tuple(map(int, view.get_shape()))) for view in views]
    found: dict[str, Tensor] = {}
    # The library has checked that tensors follow one another without a gap, to the end of the file.
    for name, (dtype, shape) in zip(names, forms, strict=True):
        if dtype not in ELEMENTS:
            known = ", ".join(ELEMENTS)
            raise FileOfTensorsError(
                path, f"tensor {name!r} is of dtype {dtype}, which is not known; known: {known}"
            )
        found[name] = PlainTensor(name, dtype, shape, path, start)
        start += math.prod(shape) * ELEMENTS[dtype].itemsize
    return found


def read_metadata(path: Pathlike) -> dict[str, str]:
    """Return the metadata of a safetensors file or an index: strings by name.

    For a folder, return the metadata of its index, or an empty dict if it has none.

    Raises
    ------
    FileOfTensorsError
        If it is not such a file, or is damaged.
    OSError
        If it does not exist or cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        index = _index_of(path)
        return {} if index is None else read_metadata(index)
    if path.name.endswith(INDEX_SUFFIX):
        said = _index(path).get("metadata")
        texts = said if isinstance(said, dict) else {}
        return {name: text for name, text in texts.items() if isinstance(text, str)}
    open_regular(path).close()
    with _opened(path) as opened:
        return dict(opened.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a regular file with the safetensors library; turn its errors into `FileOfTensorsError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            yield opened
    except (SafetensorError, OSError, ValueError, OverflowError) as problem:
        raise FileOfTensorsError(path, f"no safetensors file, or damaged: {problem}") from problem


def read_index(path: Pathlike) -> dict[str, Tensor]:
    """Return the tensors that an index names, from the files in its folder that it lists.

    Raises
    ------
    FileOfTensorsError
        If it is no index, or names a missing file, or a tensor that its file lacks; or if a file has a tensor
        that the index does not name.
    OSError
        If a file cannot be read.
    """
    path = Path(path)
    places = read_places(path)
    shards = {place: _shard(path, place, name) for name, place in reversed(places.items())}
    for name, place in places.items():
        if name not in shards[place]:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is said to lie in {place}, which has no tensor of that name"
            )
    for place, tensors in shards.items():
        for name in tensors:
            if places.get(name) != place:
                raise FileOfTensorsError(
                    path, f"{place} has a tensor {name!r}, which the index does not name there"
                )
    return {name: shards[place][name] for name, place in places.items()}


def read_places(path: Pathlike) -> dict[str, str]:
    """Return the file name that an index gives for each tensor.

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
    """Return the tensors of a folder: those of its index, or else of all its safetensors files.

    Raises
    ------
    FileOfTensorsError
        If there is no tensor file, or several indexes, or a tensor is in two files; also as for `read_index`.
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
    """Write tensors to one safetensors file, whole or not at all, as `replacing_by_name` does.

    Parameters
    ----------
    path : path
        The file to write.
    tensors : mapping of str to (str, array)
        A dtype of `ELEMENTS`, and elements of any shape, in the form in which they are read. A memory map
        works, too.
    metadata : mapping of str to str, optional
        Metadata for the header.
    exclusive : bool, optional
        Whether to refuse if the file exists already.

    Raises
    ------
    OutputError
        If the file cannot be written, the disk has no room, or a tensor is named ``__metadata__``.
    FileExistsError
        If `exclusive` and the file exists.
    """
    from safetensors import SafetensorError, TensorSpec, serialize_file

    if "__metadata__" in tensors:  # the name of the metadata in a header
        raise OutputError(f"cannot write {os.fspath(path)}: no tensor in a file is named '__metadata__'")
    kept = {name: (dtype, np.ascontiguousarray(x, ELEMENTS[dtype])) for name, (dtype, x) in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=NUMBERS[dtype],
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
    """Return the JSON object of an index."""
    try:
        data = parse(read_text(path, _LONGEST_INDEX))
    except ValueError as problem:
        raise FileOfTensorsError(path, f"no index of tensors: {problem}") from problem
    return data if isinstance(data, dict) else {}


def _index_of(folder: Path) -> Path | None:
    """Return the index of a folder, or None; refuse several."""
    indexes = sorted(file for file in folder.iterdir() if file.name.endswith(INDEX_SUFFIX))
    if len(indexes) > 1:
        names = ", ".join(file.name for file in indexes)
        raise FileOfTensorsError(folder, f"has several indexes; name the one that is meant: {names}")
    return indexes[0] if indexes else None


def _shard(index: Path, place: str, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file in the folder of an index."""
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


# -- outputs apart from inputs ----------------------------------------------------------------------------
#: The suffixes of the files that are read from a folder, or from the folder of an index.
_READ = (SUFFIX, INDEX_SUFFIX)
#: In a recording, the file with the number of its steps, and the prefix of the files of its steps; every
#: file with this prefix counts as a step's.
COUNT, STEP = "steps.json", "step-"


def check_apart(outputs: Mapping[str, Pathlike | None], inputs: Mapping[str, Pathlike | None]) -> None:
    """Refuse outputs that would replace an input, or be read as part of one.

    Parameters
    ----------
    outputs : mapping of str to path or None
        The path of each output by the caller's name for it; None is left out.
    inputs : mapping of str to path or None
        The same for inputs: files, folders of tensors (also recordings), and indexes. Missing ones are left
        out; reading them raises the error.

    Raises
    ------
    OutputError
        If an output is a file of an input, under any name (links, spellings); or if it lies in an input's
        folder under a name that is read from there.
    """
    read = {label: _read_from(Path(path)) for label, path in inputs.items() if path is not None}
    for label, path in outputs.items():
        if path is None:
            continue
        place, there = destination(path), identity(Path(path))
        named = Path(os.path.realpath(Path(path).parent), Path(path).name)  # may be a link in the folder
        for source, (folder, files, is_read) in read.items():
            joins = any(one.parent == folder and is_read(one.name) for one in (place, named))
            if joins or there in files:
                raise OutputError(
                    f"cannot write {os.fspath(path)}: {label} would take the place of what is read ({source})"
                )


def _read_from(path: Path) -> tuple[Path | None, set[tuple[int, int]], Callable[[str], bool]]:
    """Return the folder whose files are read, or None; their identities; and a test of the names to read."""
    folder = path if path.is_dir() else path.parent if path.suffix == ".json" else None
    files, names = [path], []
    if folder is not None:
        with suppress(OSError):  # reading it raises the error
            names = os.listdir(folder)
    recording = folder == path and any(
        name == COUNT or (name.startswith(STEP) and name.endswith(SUFFIX)) for name in names
    )

    def is_read(name: str) -> bool:
        return name.endswith(_READ) or (recording and (name == COUNT or name.startswith(STEP)))

    if folder is not None:
        files += [folder / name for name in names if is_read(name)]
        for index in [file for file in files if file.suffix == ".json"]:
            with suppress(OSError, ValueError):
                files += [folder / name for name in set(read_places(index).values())]
    found = {there for file in files if (there := identity(file)) is not None}
    return (None if folder is None else Path(os.path.realpath(folder))), found, is_read
