"""Saving of an optimizer's weights and state as safetensors files, and loading of a state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec import check_codes, encode
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.models.plan import Table
from mcfsim.models.samples import TensorSample, places_of
from mcfsim.models.weights import DTYPE_OF, Counts, Weight, metadata_of, not_finite, open_tensors
from mcfsim.optim.groups import GroupBoundaries, Groups
from mcfsim.optim.optimizer import Optimizer
from mcfsim.optim.stored import Reach
from mcfsim.optim.strategies import STRATEGIES
from mcfsim.optim.vectors import Split, is_packed, read, write
from mcfsim.storage.files import OutputError, Pathlike, folder_of, write_text
from mcfsim.storage.sealed import AT_ONCE, STATE, check_digest, digest, digest_of, sealed, unsealed
from mcfsim.storage.shards import INDEX_SUFFIX, SUFFIX, write_file
from mcfsim.storage.tensors import ELEMENTS, FileOfTensorsError, Tensor


# -- moments as codes and scales --------------------------------------------------------------------------
def decoded(
    path: Path,
    label: str,
    strategy: str | None,
    slot: str,
    codes: NDArray[Any],
    scales: NDArray[Any],
    sample: TensorSample,
) -> tuple[Table, Counts]:
    """Decode a moment stored as codes and scales.

    Return it at the places of a sample in binary64, and how many of all its numbers are NaN and infinite.

    Parameters
    ----------
    path, label
        For error messages: the file, and its name for the moment.
    strategy : str or None
        Name of the strategy that stored the moment.
    slot : {"m", "v"}
        Which moment it is.
    codes, scales : array
        As `mcfsim.optim.groups.Groups` stores them.
    sample : TensorSample
        The sample of the weight.

    Raises
    ------
    FileOfTensorsError
        If the strategy is unknown, or stores no codes; or if codes or scales are not as it stores them.
    """
    known = None if strategy is None else STRATEGIES.get(strategy)
    kept = None if known is None else known.tensors[slot]
    if kept is None or kept.scaled is None or kept.format is None:
        raise FileOfTensorsError(
            path, f"has {label} as codes and scales of strategy {strategy!r}, which has none that are known"
        )
    shape, count = sample.shape, sample.size
    size = kept.scaled.block if isinstance(kept.scaled.block, int) else count
    edges = GroupBoundaries([slice(0, count)], size)
    forms, shared = Groups.forms(kept.scaled), Groups.shared(kept.scaled)
    rows = (edges.count,) if shared == 1 else (edges.count, shared)
    if codes.shape != shape or scales.shape != rows or (codes.dtype, scales.dtype) != forms:
        raise FileOfTensorsError(
            path,
            f"{label} has codes of shape {codes.shape} and scales of shape {scales.shape}, and its weight "
            f"shape {shape}, where {size} elements share a scale",
        )
    whole = Groups.whole(codes.reshape(-1), scales, kept.scaled, kept.format, edges)
    numbers = whole.numbers().astype(np.float64)
    return numbers[places_of(count, sample.values.size)], not_finite(numbers)


# -- files ------------------------------------------------------------------------------------------------
Array = NDArray[Any]
#: A tensor to be written: its dtype by the name that files use, and its elements as files store them.
_Elements = tuple[str, Array]

#: Torch's names of the moments' first components. Other vectors are named by their field of `State` and a
#: number.
_NAMES = {"m0": "exp_avg", "v0": "exp_avg_sq"}
#: Name of the tensor that holds the number of steps made.
_STEP = "step"


@dataclass(frozen=True)
class _Part:
    """A part of a vector that a file stores as one tensor; `scales` says that it has scales, not negative."""

    vector: Array | Split
    part: slice
    format: Format
    shape: tuple[int, ...]
    scales: bool = False

    def elements(self, part: slice | None = None) -> _Elements:
        """Return all elements, or a range, as files store them: as codes if there is a dtype for them."""
        x, fmt = self.vector[self.part if part is None else part], self.format
        if isinstance(x, Split):
            return f"U{8 * x.itemsize}", x.rest
        if fmt in DTYPE_OF:
            dtype = DTYPE_OF[fmt]
            return dtype, x if is_packed(x) or ELEMENTS[dtype].kind == "f" else encode(x, fmt)
        return f"{'U' if is_packed(x) else 'F'}{8 * x.itemsize}", x

    @property
    def dtype(self) -> str:
        """The dtype of the elements in a file."""
        return self.elements(slice(0, 0))[0]


def save_weights(optimizer: Optimizer, path: Pathlike, *, shard_bytes: float | None = None) -> None:
    """Write the tensors that the model sees, in the format of the parameter.

    Parameters
    ----------
    optimizer : Optimizer
        In memory or in files, packed or not.
    path : path
        A file that ends in ``.safetensors``. With `shard_bytes` it is a folder, made if need be, for the
        files ``model-00001-of-00004.safetensors`` and so on and their index.
    shard_bytes : float, optional
        The most bytes of tensors in a file; a larger tensor has a file of its own.

    Raises
    ------
    ValueError
        If the strategy stores exact numbers, or `shard_bytes` is not positive.
    OutputError
        If the path cannot be written or has no room, or the folder has tensors already.
    SpoiltStateError
        If a step or a loading was interrupted half-way.
    """
    fmt = _checked(optimizer)
    optimizer.whole.check()
    leading = optimizer.state.parameter[0]
    shapes = optimizer.layout.shapes
    parts = {name: _Part(leading, part, fmt, shapes[name]) for name, part in optimizer.layout.slices.items()}
    _write(parts, path, shard_bytes, None)


def save_state(optimizer: Optimizer, path: Pathlike, *, shard_bytes: float | None = None) -> None:
    """Write the state from which an optimizer continues: its vectors by tensor, and the number of steps.

    Tensors are ``NAME.parameter0``, ``NAME.exp_avg``, ``NAME.exp_avg_sq``, ``NAME.parameter1``, ``NAME.v1``,
    ``NAME.extra0`` and so on, as many as are stored, and ``step``; `mcfsim audit --state` reads these.
    Packed moments that share scales are ``NAME.exp_avg.codes``, ``NAME.exp_avg.scales`` and so on; a moment
    stored as rows and columns is ``NAME.exp_avg_sq.rows`` and ``NAME.exp_avg_sq.columns``. The header (for
    shards their index) names the optimizer and the strategy, and has the SHA-256 of each tensor.

    Parameters
    ----------
    optimizer, path, shard_bytes
        As for `save_weights`.

    Raises
    ------
    ValueError, OutputError, SpoiltStateError
        As `save_weights` does; and if weights lie on a grid with a fixed scale, which depends on the start.
    """
    _check_state(optimizer)
    optimizer.whole.check()
    _write(dict(_parts(optimizer)), path, shard_bytes, optimizer)


def load_state(optimizer: Optimizer, path: Pathlike) -> None:
    """Load a saved state into an optimizer, which then continues from there, to the same bits.

    The whole file is read and checked before anything is changed. If the writing that follows is interrupted,
    for example by KeyboardInterrupt, the optimizer is spoilt until a state is loaded.

    Parameters
    ----------
    optimizer : Optimizer
        It has the same kind, tensors and strategy as the saved one. If numbers share scales or bits, it is
        packed if that one was. Its contents are overwritten.
    path : path
        What `save_state` wrote.

    Raises
    ------
    FileOfTensorsError
        If the file is not a state, was altered since it was written, or is of another optimizer or strategy;
        if a tensor is missing, superfluous, or of another shape or dtype; or if a number is not a value of
        the format, or a scale is negative or infinite. It is a ValueError.
    ValueError
        As for `save_state`.
    """
    _check_state(optimizer)
    tensors, about = open_tensors(path), metadata_of(path)
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
    """Return the names of the optimizer and the strategy, as a state records them."""
    return {"optimizer": type(optimizer.hyper).__name__, "strategy": optimizer.strategy.name}


def _checked(optimizer: Optimizer) -> Format:
    fmt = optimizer.strategy.parameter.format
    if fmt is None:
        raise ValueError("exact numbers have no dtype that files of tensors know")
    return fmt


def _check_state(optimizer: Optimizer) -> None:
    """Raise unless an optimizer continues from its vectors and the number of steps alone."""
    _checked(optimizer)
    grid = optimizer.strategy.parameter.grid
    if grid is not None and grid.reach is Reach.FIXED:
        raise ValueError(
            f"strategy {optimizer.strategy.name!r} keeps its weights on a grid whose scales are those of the "
            "start, which no state has; save the weights, or train by mcfsim.simulate with a checkpoint"
        )


def _parts(optimizer: Optimizer) -> Iterator[tuple[str, _Part]]:
    """Yield the names and parts of an optimizer's state, tensor by tensor."""
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
    """Yield a range of a vector as files store it: as one tensor, or as codes and their scales."""
    if not isinstance(vector, Groups):
        assert fmt is not None
        yield name, _Part(vector, part, fmt, shape)
        return
    kept, groups = vector.scaled, vector.edges.groups(part)
    count = (groups.stop - groups.start,)
    yield f"{name}.codes", _Part(vector.codes, part, kept.element, shape)
    yield f"{name}.scales", _Part(vector.scales, groups, kept.scale, count, scales=True)


def _good(part: _Part, stored: Tensor, x: Array) -> Array:
    """Return elements of a stored tensor as its vector takes them; raise if they are not valid."""
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
    numbers = Weight(stored).numbers(x)
    rounded = round_to(numbers, fmt)
    if not np.array_equal(rounded, numbers, equal_nan=True):
        raise FileOfTensorsError(stored.path, f"tensor {stored.name!r} has a number that is none of {fmt}")
    return numbers


def _put(part: _Part, stored: Tensor, start: int, stop: int) -> None:
    """Copy a range of a stored tensor to its place in a vector."""
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
    """Write parts of vectors as tensors, to one file or to several; seal the state of an optimizer."""
    extra = {} if of is None else {_STEP: ("I64", np.array(of.count, ELEMENTS["I64"]))}
    forms, digests = dict[str, tuple[str, tuple[int, ...]]](), dict[str, str]()

    def counted(names: Iterable[str], more: Mapping[str, _Elements]) -> dict[str, _Elements]:
        found = {name: parts[name].elements() for name in names}
        tensors = {name: (dtype, x.reshape(parts[name].shape)) for name, (dtype, x) in found.items()}
        tensors |= more
        if of is not None:
            forms.update({name: (dtype, x.shape) for name, (dtype, x) in tensors.items()})
            digests.update({name: digest(np.ascontiguousarray(x)) for name, (_, x) in tensors.items()})
        return tensors

    def about() -> dict[str, str]:
        return {} if of is None else sealed(STATE, forms, digests, _described(of))

    if shard_bytes is None:
        if Path(path).suffix != SUFFIX:
            raise OutputError(f"{path} must end in {SUFFIX}; with shard_bytes it may be a folder")
        write_file(path, counted(parts, extra), about())
        return
    if not shard_bytes > 0:
        raise ValueError(f"shard_bytes = {shard_bytes} must be positive")
    folder = folder_of(path)
    folder.mkdir(exist_ok=True)
    if there := sorted(item.name for item in folder.iterdir() if SUFFIX in item.name):
        raise OutputError(f"{folder} has {there[0]} already; name another folder")
    shards = _shards(parts, shard_bytes)
    index: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        place = f"model-{number:05d}-of-{len(shards):05d}{SUFFIX}"
        more = extra if number == 1 else {}
        write_file(
            folder / place, counted(names, more), {} if of is None else {"format": STATE}, exclusive=True
        )
        index |= dict.fromkeys([*names, *more], place)
    # The index is written last, so that a folder without it is known to be unfinished.
    write_text(
        folder / f"model{INDEX_SUFFIX}", json.dumps({"metadata": about(), "weight_map": index}, indent=1)
    )


def _shards(parts: Mapping[str, _Part], most: float) -> list[list[str]]:
    """Return the names of the tensors of each file, in order."""
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
