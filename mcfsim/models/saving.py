"""An optimizer's weights and state as safetensors files, and a state put back from them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.codes import check_codes, decode, encode
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.weights import DTYPE_OF, FORMAT_OF, open_tensors
from mcfsim.optim.groups import Groups
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.vectors import Split, is_packed, read, write
from mcfsim.optim.weight_grid import Reach
from mcfsim.storage.files import OutputError, Pathlike, write_text
from mcfsim.storage.sealed import AT_ONCE, STATE, check_digest, digest, digest_of, sealed, unsealed
from mcfsim.storage.shards import INDEX_SUFFIX, SUFFIX, read_metadata, write_file
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError, Tensor

Array = NDArray[Any]
#: A tensor to be written: its dtype, as files call it, and its elements as they lie there.
_Elements = tuple[str, Array]

#: What first components of moments are called, as torch calls them; other vectors are called by their field
#: of `State` and a number.
_NAMES = {"m0": "exp_avg", "v0": "exp_avg_sq"}
#: The tensor that says how many steps were made.
_STEP = "step"


@dataclass(frozen=True)
class _Part:
    """A part of a vector that is a tensor of a file; of scales, which are not negative, if it says so."""

    vector: Array | Split
    part: slice
    format: Format
    shape: tuple[int, ...]
    scales: bool = False

    def elements(self, part: slice | None = None) -> _Elements:
        """Return all of it, or some, as a file has it: as codes if there is a dtype for them."""
        x, fmt = self.vector[self.part if part is None else part], self.format
        if isinstance(x, Split):
            return f"U{8 * x.itemsize}", x.rest
        if fmt in DTYPE_OF:
            dtype = DTYPE_OF[fmt]
            return dtype, x if is_packed(x) or ELEMENTS[dtype].kind == "f" else encode(x, fmt)
        if is_packed(x):
            return f"U{8 * x.itemsize}", x
        return f"F{8 * x.itemsize}", x

    @property
    def dtype(self) -> str:
        """Of its elements in a file."""
        return self.elements(slice(0, 0))[0]


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
    SpoiltStateError
        If a step or a loading was broken off half-way.
    """
    fmt = _checked(optimizer)
    optimizer.whole.check()
    leading = optimizer.state.parameter[0]
    shapes = optimizer.layout.shapes
    parts = {name: _Part(leading, part, fmt, shapes[name]) for name, part in optimizer.layout.slices.items()}
    _write(parts, path, shard_bytes, None)


def save_state(optimizer: Optimizer, path: Pathlike, *, shard_bytes: float | None = None) -> None:
    """Write all that an optimizer goes on from: its vectors, tensor by tensor, and the number of steps.

    Tensors are ``NAME.parameter0``, ``NAME.exp_avg``, ``NAME.exp_avg_sq``, ``NAME.parameter1``, ``NAME.v1``,
    ``NAME.extra0`` and so on, as many as the strategy stores, and ``step``: as `mcfsim audit --state` has it.
    Of packed moments that share scales they are ``NAME.exp_avg.codes``, ``NAME.exp_avg.scales`` and so on; of
    a moment that is kept as rows and columns, ``NAME.exp_avg_sq.rows`` and ``NAME.exp_avg_sq.columns``. The
    header, of shards their index, says of which optimizer and strategy they are, and the SHA-256 of each.

    Parameters
    ----------
    optimizer, path, shard_bytes
        As of `save_weights`.

    Raises
    ------
    ValueError, OutputError, SpoiltStateError
        As `save_weights` does; and if weights lie on a grid of a fixed scale, which follows from the start.
    """
    _check_state(optimizer)
    optimizer.whole.check()
    _write(dict(_parts(optimizer)), path, shard_bytes, optimizer)


def load_state(optimizer: Optimizer, path: Pathlike) -> None:
    """Put a state in an optimizer, which then goes on from there, to the same bits.

    All of the file is read and checked before anything is changed. If the writing that follows is broken off,
    by KeyboardInterrupt say, the optimizer is spoilt until a state is loaded.

    Parameters
    ----------
    optimizer : Optimizer
        Of the same kind, tensors and strategy, and packed or not as that was if numbers share scales or bits;
        what it holds is overwritten.
    path : path
        From `save_state`.

    Raises
    ------
    FileOfTensorsError
        If the file is no state, or was altered since it was written, or is of another optimizer or strategy;
        or if it lacks a tensor, or has one too many or of another shape or dtype, or a number that is none of
        the format, or a scale that is negative or infinite. It is a ValueError.
    ValueError
        As of `save_state`.
    """
    _check_state(optimizer)
    tensors, about = open_tensors(path), read_metadata(path) if Path(path).suffix != ".npz" else {}
    if about.get("format") != STATE:
        raise FileOfTensorsError(path, "is no state that mcfsim.models.saving.save_state wrote")
    digests, said = unsealed(path, tensors, about)
    for label, own in _described(optimizer).items():
        if said.get(label) != own:
            raise FileOfTensorsError(path, f"is of {label} {said.get(label)!r}, and not of {own!r}")
    wanted = {}
    for name, part in _parts(optimizer):
        stored, dtype = tensors.get(name), part.dtype
        if stored is None or (stored.shape, stored.dtype) != (part.shape, dtype):
            found = "it is not there" if stored is None else f"it is {stored.dtype} {stored.shape}"
            raise FileOfTensorsError(
                path, f"tensor {name!r} must be {dtype} of shape {part.shape}, and {found}"
            )
        wanted[name] = part, stored
    if stray := tensors.keys() - wanted.keys() - {_STEP}:
        raise FileOfTensorsError(path, f"has the tensor {min(stray)!r}, which this optimizer does not keep")
    count = _count(path, tensors)
    check_digest(path, _STEP, digest_of(tensors[_STEP]), digests[_STEP])
    for name, (part, stored) in wanted.items():
        check_digest(path, name, digest_of(stored, partial(_good, part, stored)), digests[name])
    with optimizer.whole.changing("loading a state"):
        for part, stored in wanted.values():
            for start in range(0, stored.size, AT_ONCE):
                _put(part, stored, start, min(start + AT_ONCE, stored.size))
        optimizer.count = count


def _described(optimizer: Optimizer) -> dict[str, str]:
    """Return what a state says that it is of."""
    return {"optimizer": type(optimizer.hyper).__name__, "strategy": optimizer.strategy.name}


def _checked(optimizer: Optimizer) -> Format:
    fmt = optimizer.strategy.parameter.format
    if fmt is None:
        raise ValueError("exact numbers have no dtype that files of tensors know")
    return fmt


def _check_state(optimizer: Optimizer) -> None:
    """Raise unless vectors and steps are all that an optimizer goes on from."""
    _checked(optimizer)
    grid = optimizer.strategy.parameter.grid
    if grid is not None and grid.reach is Reach.FIXED:
        raise ValueError(
            f"strategy {optimizer.strategy.name!r} keeps its weights on a grid whose scales are those of the "
            "start, which no state has; save the weights, or train by mcfsim.simulate with a checkpoint"
        )


def _parts(optimizer: Optimizer) -> Iterator[tuple[str, _Part]]:
    """Yield all that an optimizer goes on from, tensor by tensor, and what each is called."""
    shapes, slices = optimizer.layout.shapes, optimizer.layout.slices
    for (label, vectors), fmt in zip(optimizer.state._asdict().items(), optimizer.formats, strict=True):
        for place, vector in enumerate(vectors):
            called = _NAMES.get(f"{label}{place}", f"{label}{place}")
            slot = optimizer.parts.get(label)
            for name, whole in slices.items():
                for kept_of, part in {label: whole}.items() if slot is None else slot.slices[name].items():
                    own = kept_of != label  # as rows and columns, which are vectors
                    shape = (part.stop - part.start,) if own else shapes[name]
                    yield from _tensors(
                        f"{name}.{called}" + (f".{kept_of}" if own else ""), vector, part, fmt, shape
                    )


def _tensors(
    name: str, vector: Any, part: slice, fmt: Format | None, shape: tuple[int, ...]
) -> Iterator[tuple[str, _Part]]:
    """Yield a range of a vector as what it is stored as: one tensor, or codes and their scales."""
    if not isinstance(vector, Groups):
        assert fmt is not None
        yield name, _Part(vector, part, fmt, shape)
        return
    kept, groups = vector.scaled, vector.edges.groups(part)
    count = (groups.stop - groups.start,)
    yield f"{name}.codes", _Part(vector.codes, part, kept.element, shape)
    yield f"{name}.scales", _Part(vector.scales, groups, kept.scale, count, scales=True)


def _good(part: _Part, stored: Tensor, x: Array) -> Array:
    """Return elements of a stored tensor as its vector takes them; raise if they cannot be there."""
    vector, fmt = part.vector, part.format
    if part.scales:
        numbers = read(x, fmt)
        if (np.isinf(numbers) | np.signbit(numbers) & ~np.isnan(numbers)).any():
            raise FileOfTensorsError(stored.path, f"tensor {stored.name!r} has a negative or infinite scale")
    if isinstance(vector, Split):
        return x
    if is_packed(vector):
        check_codes(x, fmt)
        return x
    numbers = decode(x, FORMAT_OF[stored.dtype]) if x.dtype.kind == "u" else x
    rounded = round_to(numbers, fmt)
    if not np.array_equal(rounded, numbers, equal_nan=True):
        raise FileOfTensorsError(stored.path, f"tensor {stored.name!r} has a number that is none of {fmt}")
    return numbers


def _put(part: _Part, stored: Tensor, start: int, stop: int) -> None:
    """Put some of a stored tensor in its place in a vector."""
    block = slice(part.part.start + start, part.part.start + stop)
    x = _good(part, stored, stored.read(start, stop))
    if isinstance(part.vector, Split):
        part.vector.rest[block] = x
    else:
        write(part.vector[block], x, part.format)


def _count(path: Pathlike, tensors: Mapping[str, Tensor]) -> int:
    stored = tensors.get(_STEP)
    count = int(stored.read()[0]) if stored is not None and (stored.dtype, stored.size) == ("I64", 1) else -1
    if count < 0:
        raise FileOfTensorsError(path, "does not say how many steps were made: it has no whole number 'step'")
    return count


def _write(
    parts: Mapping[str, _Part],
    path: Pathlike,
    shard_bytes: float | None,
    of: Optimizer | None,
) -> None:
    """Write parts of vectors as tensors, to one file or to several; the state of an optimizer is sealed."""
    extra = {} if of is None else {_STEP: ("I64", np.array(of.count, ELEMENTS["I64"]))}
    forms, digests = dict[str, tuple[str, tuple[int, ...]]](), dict[str, str]()

    def counted(tensors: dict[str, _Elements]) -> dict[str, _Elements]:
        if of is not None:
            forms.update({name: (dtype, x.shape) for name, (dtype, x) in tensors.items()})
            digests.update({name: digest(np.ascontiguousarray(x)) for name, (_, x) in tensors.items()})
        return tensors

    def about() -> dict[str, str]:
        return {} if of is None else sealed(STATE, forms, digests, _described(of))

    def elements(name: str) -> _Elements:
        dtype, x = parts[name].elements()
        return dtype, x.reshape(parts[name].shape)

    if shard_bytes is None:
        if Path(path).suffix != SUFFIX:
            raise OutputError(f"{path} must end in {SUFFIX}; with shard_bytes it may be a folder")
        whole = counted({**{name: elements(name) for name in parts}, **extra})
        write_file(path, whole, about())
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
        some = counted({**{name: elements(name) for name in names}, **more})
        write_file(folder / place, some, {} if of is None else {"format": STATE}, exclusive=True)
        index |= dict.fromkeys([*names, *more], place)
    # Last, so that a folder without it is seen to be not finished.
    write_text(
        folder / f"model{INDEX_SUFFIX}", json.dumps({"metadata": about(), "weight_map": index}, indent=1)
    )


def _shards(parts: Mapping[str, _Part], most: float) -> list[list[str]]:
    """Return which tensors go to which file, in their order."""
    shards: list[list[str]] = [[]]
    room = most
    for name, item in parts.items():
        needed = (item.part.stop - item.part.start) * ELEMENTS[item.dtype].itemsize
        if shards[-1] and needed > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= needed
    return shards
