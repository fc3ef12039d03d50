"""An optimizer's weights and state as safetensors files, and a state put back from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.codes import check_codes, encode
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.weights import DTYPE_OF, FORMAT_OF, Weight, open_tensors
from mcfsim.optim.memory import Split, is_packed, write
from mcfsim.optim.optimizer import Optimizer
from mcfsim.storage.files import OutputError, Pathlike, write_text
from mcfsim.storage.shards import INDEX_SUFFIX, SUFFIX, write_file
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError, Tensor

Array = NDArray[Any]
#: A tensor to be written: its dtype, as files call it, and its elements as they lie there.
_Elements = tuple[str, Array]

#: What first components of moments are called, as torch calls them; other vectors are called by their field
#: of `State` and a number.
_NAMES = {"m0": "exp_avg", "v0": "exp_avg_sq"}
#: The tensor that says how many steps were made.
_STEP = "step"
_AT_ONCE = 1 << 20


def save_weights(optimizer: Optimizer, path: Pathlike, *, shard_bytes: float | None = None) -> None:
    """Write the tensors that the model sees, in the format of the parameter.

    Parameters
    ----------
    optimizer : Optimizer
        In memory or in files, packed or not.
    path : path
        A file that ends in ``.safetensors``; or with `shard_bytes` a folder, which is made if need be, and
        gets ``model-00001-of-00004.safetensors`` and so on and their index.
    shard_bytes : float, optional
        Bytes of tensors a file, at most, but for a tensor that is larger.

    Raises
    ------
    ValueError
        If the strategy stores exact numbers, or `shard_bytes` is not positive.
    OutputError
        If the place cannot be written or has no room, or the folder has tensors already.
    """
    fmt = _checked(optimizer)
    leading = optimizer.state.parameter[0]
    parts = {name: (leading, part, fmt) for name, part in optimizer.layout.slices.items()}
    _write(optimizer, parts, path, shard_bytes, None)


def save_state(optimizer: Optimizer, path: Pathlike, *, shard_bytes: float | None = None) -> None:
    """Write all that an optimizer goes on from: its vectors, tensor by tensor, and the number of steps.

    Tensors are ``NAME.parameter0``, ``NAME.exp_avg``, ``NAME.exp_avg_sq``, ``NAME.parameter1``, ``NAME.v1``,
    ``NAME.extra0`` and so on, as many as the strategy stores, and ``step``: as `mcfsim audit --state` has it.

    Parameters
    ----------
    optimizer, path, shard_bytes
        As of `save_weights`.

    Raises
    ------
    ValueError, OutputError
        As `save_weights` does.
    """
    _checked(optimizer)
    parts: dict[str, Any] = {
        f"{name}.{label}": (vector, part, fmt)
        for label, vector, fmt in _vectors(optimizer)
        for name, part in optimizer.layout.slices.items()
    }
    _write(optimizer, parts, path, shard_bytes, optimizer.count)


def load_state(optimizer: Optimizer, path: Pathlike) -> None:
    """Put a state in an optimizer, which then goes on from there, to the same bits.

    Parameters
    ----------
    optimizer : Optimizer
        Of the same tensors and strategy; what it holds is overwritten.
    path : path
        From `save_state`.

    Raises
    ------
    FileOfTensorsError
        If the file is damaged, or lacks a tensor, or has one of another shape or dtype, or a number that is
        none of the format; it is a ValueError. Of shapes and dtypes it is said before anything is changed.
    """
    _checked(optimizer)
    tensors = open_tensors(path)
    shapes, wanted = optimizer.layout.shapes, []
    for label, vector, fmt in _vectors(optimizer):
        for name, part in optimizer.layout.slices.items():
            stored = tensors.get(f"{name}.{label}")
            dtype, _ = _elements(vector[slice(0, 0)], fmt)
            if stored is None or (stored.shape, stored.dtype) != (shapes[name], dtype):
                found = "it is not there" if stored is None else f"it is {stored.dtype} {stored.shape}"
                raise FileOfTensorsError(
                    path, f"tensor '{name}.{label}' must be {dtype} of shape {shapes[name]}, and {found}"
                )
            wanted.append((vector, part, fmt, stored))
    count = _count(path, tensors)
    for vector, part, fmt, stored in wanted:
        for start in range(0, stored.size, _AT_ONCE):
            block = slice(part.start + start, min(part.start + start + _AT_ONCE, part.stop))
            _put(vector, block, fmt, stored, start)
    optimizer.count = count


def _checked(optimizer: Optimizer) -> Format:
    fmt = optimizer.strategy.parameter.format
    if fmt is None:
        raise ValueError("exact numbers have no dtype that files of tensors know")
    return fmt


def _vectors(optimizer: Optimizer) -> Iterator[tuple[str, Array | Split, Format]]:
    """Yield an optimizer's vectors, each with what it is called and its format."""
    for (label, vectors), fmt in zip(optimizer.state._asdict().items(), optimizer.formats, strict=True):
        for place, vector in enumerate(vectors):
            assert fmt is not None
            yield _NAMES.get(f"{label}{place}", f"{label}{place}"), vector, fmt


def _elements(x: Array | Split, fmt: Format) -> _Elements:
    """Return a part of a vector as a file has it: as codes if there is a dtype for them."""
    if isinstance(x, Split):
        return f"U{8 * x.itemsize}", x.rest
    if fmt in DTYPE_OF:
        dtype = DTYPE_OF[fmt]
        return dtype, x if is_packed(x) or ELEMENTS[dtype].kind == "f" else encode(x, fmt)
    if is_packed(x):
        return f"U{8 * x.itemsize}", x
    return f"F{8 * x.itemsize}", x


def _put(vector: Array | Split, block: slice, fmt: Format, stored: Tensor, start: int) -> None:
    """Put a part of a stored tensor in its place in a vector."""
    length = block.stop - block.start
    x = stored.read(start, start + length)
    if isinstance(vector, Split):
        vector.rest[block] = x
    elif is_packed(vector):
        check_codes(x, fmt)
        vector[block] = x
    else:
        numbers = Weight(stored).read(start, start + length) if stored.dtype in FORMAT_OF else x
        rounded = round_to(numbers, fmt)
        if not np.array_equal(rounded, numbers, equal_nan=True):
            raise FileOfTensorsError(
                stored.path, f"tensor {stored.name!r} has a number that is none of {fmt}"
            )
        write(vector[block], numbers, fmt)


def _count(path: Pathlike, tensors: Mapping[str, Tensor]) -> int:
    stored = tensors.get(_STEP)
    count = int(stored.read()[0]) if stored is not None and (stored.dtype, stored.size) == ("I64", 1) else -1
    if count < 0:
        raise FileOfTensorsError(path, "does not say how many steps were made: it has no whole number 'step'")
    return count


def _write(
    optimizer: Optimizer,
    parts: Mapping[str, Any],
    path: Pathlike,
    shard_bytes: float | None,
    count: int | None,
) -> None:
    """Write parts of vectors as tensors, to one file or to several."""
    shapes = optimizer.layout.shapes
    extra = {} if count is None else {_STEP: ("I64", np.array(count))}

    def elements(name: str) -> _Elements:
        vector, part, fmt = parts[name]
        dtype, x = _elements(vector[part], fmt)
        return dtype, x.reshape(shapes[name] if name in shapes else shapes[name.rpartition(".")[0]])

    if shard_bytes is None:
        if Path(path).suffix != SUFFIX:
            raise OutputError(f"{path} must end in {SUFFIX}; with shard_bytes it may be a folder")
        write_file(path, {**{name: elements(name) for name in parts}, **extra})
        return
    if not shard_bytes > 0:
        raise ValueError(f"shard_bytes = {shard_bytes} must be positive")
    folder = Path(path)
    folder.mkdir(exist_ok=True)
    if there := sorted(item.name for item in folder.iterdir() if SUFFIX in item.name):
        raise OutputError(f"{folder} has {there[0]} already; name another folder")
    shards = _shards(parts, shard_bytes)
    index: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        place = f"model-{number:05d}-of-{len(shards):05d}{SUFFIX}"
        more = extra if number == 1 else {}
        write_file(folder / place, {**{name: elements(name) for name in names}, **more}, exclusive=True)
        index |= dict.fromkeys([*names, *more], place)
    # Last, so that a folder without it is seen to be not finished.
    write_text(folder / f"model{INDEX_SUFFIX}", json.dumps({"metadata": {}, "weight_map": index}, indent=1))


def _shards(parts: Mapping[str, Any], most: float) -> list[list[str]]:
    """Return which tensors go to which file, in their order."""
    shards: list[list[str]] = [[]]
    room = most
    for name, (vector, part, fmt) in parts.items():
        dtype, _ = _elements(vector[slice(0, 0)], fmt)
        needed = (part.stop - part.start) * ELEMENTS[dtype].itemsize
        if shards[-1] and needed > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= needed
    return shards
