"""Recordings of gradients: a folder with the starting weights and one safetensors file per step."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import whole_number
from mcfsim.models.weights import FORMAT_OF, Weight, not_finite, open_weights, refuse_not_finite
from mcfsim.storage import shards
from mcfsim.storage.files import Pathlike, read_text, write_text
from mcfsim.storage.sealed import (
    RECORDING,
    build,
    check_digest,
    check_weights,
    digest,
    digest_of,
    parse,
    unsealed,
)
from mcfsim.storage.shards import COUNT, STEP
from mcfsim.storage.tensors import FileOfTensorsError

# -- one file ---------------------------------------------------------------------------------------------
#: Names that are possible for a tensor in a safetensors file and for its series in the record of a run.
_NAME = re.compile(r"(?!__metadata__\Z)[^\0\ud800-\udfff]{1,1000}(?<!\.npy)")
#: Characters of a header's text that an error repeats.
_SHOWN = 40
#: Shapes of tensors, by name.
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TensorFile:
    """One file of a recording; its tensors are read on request.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Weight
        All tensors, in the order that they were given in.
    digests : mapping of str to str
        SHA-256 of each tensor's bytes, in hexadecimal.
    rate : float or None
        The step's learning rate, if the file has it.
    """

    path: Path
    tensors: Mapping[str, Weight]
    digests: Mapping[str, str]
    rate: float | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors, by name."""
        return {name: weight.shape for name, weight in self.tensors.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtypes of the tensors, by name, as files call them."""
        return {name: weight.stored.dtype for name, weight in self.tensors.items()}

    def read(self) -> dict[str, NDArray[Any]]:
        """Return all tensors as numbers in the carriers of their formats.

        Raises
        ------
        FileOfTensorsError
            If a tensor cannot be read, differs from what the header says, or has a NaN or infinity.
        """
        numbers = {}
        for name, weight in self.tensors.items():
            elements = weight.stored.read()
            check_digest(self.path, name, digest(elements), self.digests[name])
            numbers[name] = weight.numbers(elements).reshape(weight.shape)
        refuse_not_finite(self.path, {name: not_finite(x) for name, x in numbers.items()})
        return numbers


def read_step(path: Path, number: int) -> TensorFile:
    """Open the gradients of a step: read the header, or the whole file if no recorder wrote it.

    Raises
    ------
    FileOfTensorsError
        If the file is damaged, is another step's, or has a tensor without elements, of whole numbers, or
        with a name that no series can have; in a file without digests, if a number is NaN or infinite.
    OSError
        If it is missing or cannot be read.
    """
    step, about = _opened(path)
    if about and about.get("step") != str(number):
        kind = f"step {about['step']}" if "step" in about else "weights"
        raise FileOfTensorsError(path, f"is {kind} by its header, and step {number} by its name")
    return step


def read_weights(path: Path) -> TensorFile:
    """Open the weights that a recording begins with, as `read_step` does; refuse the file of a step."""
    weights, about = _opened(path)
    check_weights(path, about)
    return weights


def read_other_weights(path: Pathlike, names: Collection[str]) -> TensorFile:
    """Return the weights of these names that a model's file or folder has.

    Raises
    ------
    FileOfTensorsError
        If one of them has whole numbers or no elements, or a number is NaN or infinite; see also
        `mcfsim.models.weights.open_weights`.
    OSError
        If a file is missing or cannot be read.
    """
    found = open_weights(path)
    for name in names:
        if name in found.left_out:
            raise FileOfTensorsError(found.path, f"tensor {name!r} has {found.left_out[name]}")
    tensors = {name: found[name] for name in names if name in found}
    return TensorFile(found.path, tensors, _digests(found.path, tensors))


def check_tensor(path: Pathlike, name: str, shape: tuple[int, ...]) -> None:
    """Raise FileOfTensorsError if a tensor has no elements, or a name that no series can have."""
    if not _NAME.fullmatch(name):
        raise FileOfTensorsError(
            path,
            f"tensor {name[:_SHOWN]!r}: a name has 1 to 1000 characters, no NUL and no surrogate, does not "
            "end in .npy, and is not __metadata__",
        )
    if not math.prod(shape):
        raise FileOfTensorsError(path, f"tensor {name!r} of shape {list(shape)} has no elements")


def _opened(path: Path) -> tuple[TensorFile, dict[str, str]]:
    """Return a file and the metadata of its header, which is empty if no recorder wrote the file."""
    tensors, about = shards.read_file(path), shards.read_metadata(path)
    if not tensors:
        raise FileOfTensorsError(path, "has no tensor")
    for name, tensor in tensors.items():
        check_tensor(path, name, tensor.shape)
        if tensor.dtype not in FORMAT_OF:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is of dtype {tensor.dtype}, which has no floating numbers"
            )
    weights = {name: Weight(tensor) for name, tensor in tensors.items()}
    if about.get("format") != RECORDING:
        check_weights(path, about)
        return TensorFile(path, weights, _digests(path, weights)), {}
    digests, said = unsealed(path, tensors, about)
    try:
        rate = float(said["rate"]) if "rate" in said else None
    except ValueError as problem:
        raise FileOfTensorsError(path, f"has a header that no recorder wrote: {problem}") from problem
    if rate is not None and not 0 <= rate < math.inf:
        raise FileOfTensorsError(path, "has a header that no recorder wrote")
    # The library sorts tensors; the recorder lists their digests in the order of the training loop.
    return TensorFile(path, {name: weights[name] for name in digests}, digests, rate), said


def _digests(path: Path, tensors: Mapping[str, Weight]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes; raise FileOfTensorsError if a number is not finite."""
    made, found = {}, {}
    for name, weight in tensors.items():
        counts = np.zeros(2, np.int64)

        def look(elements: NDArray[Any], weight: Weight = weight, counts: Any = counts) -> None:
            counts += not_finite(weight.numbers(elements))

        made[name] = digest_of(weight.stored, look)
        found[name] = int(counts[0]), int(counts[1])
    refuse_not_finite(path, found)
    return made


# -- the folder -------------------------------------------------------------------------------------------
WEIGHTS = "weights.safetensors"
#: Most bytes of the file with the number of recorded steps, by which a missing last step is noticed.
_LONGEST_COUNT = 1000
_STEP = re.compile(STEP + r"([0-9]+)\.safetensors")


@dataclass(frozen=True)
class _Count:
    format: Literal["mcfsim-recording-1"]
    steps: int


@dataclass(frozen=True)
class Recording:
    """A recording in files: the weights at the start, and the gradients of the steps made from them.

    Parameters
    ----------
    path : Path
        The directory.
    weights : TensorFile
        The start.
    steps : tuple of TensorFile
        The gradients, in order.
    """

    path: Path
    weights: TensorFile
    steps: tuple[TensorFile, ...]

    @property
    def size(self) -> int:
        """Number of elements of all tensors of a step."""
        return sum(weight.size for weight in self.weights.tensors.values())

    def rates(self) -> tuple[float, ...]:
        """Return the learning rate of every step.

        Raises
        ------
        FileOfTensorsError
            If a step has no learning rate.
        """
        if without := [step.path for step in self.steps if step.rate is None]:
            raise FileOfTensorsError(without[0], "has no learning rate, so a schedule must be given")
        return tuple(step.rate for step in self.steps if step.rate is not None)

    def digest(self) -> str:
        """Return the SHA-256 of all tensors: names, dtypes, shapes and bits, in order."""
        whole = hashlib.sha256()
        for part in (self.weights, *self.steps):
            dtypes, shapes = part.dtypes, part.shapes
            described = [[name, dtypes[name], shapes[name], part.digests[name]] for name in part.tensors]
            whole.update(json.dumps(described).encode())
        return whole.hexdigest()


def open_recording(
    directory: Pathlike, weights: Pathlike | None = None, steps: int | None = None
) -> Recording:
    """Open a recording: read and compare the headers of all its files.

    Nothing more is read of files that a recorder wrote. Other files, without digests, are read once.

    Parameters
    ----------
    directory : path
        As `mcfsim.record` made it: ``weights.safetensors``, ``step-00000001.safetensors`` and so on, and
        ``steps.json``, which says how many there are.
    weights : path, optional
        Another start, see `mcfsim.models.weights.open_weights`; tensors without gradients are left out.
    steps : int, optional
        How many steps to use, from the first on; by default all.

    Returns
    -------
    Recording
        Its tensors are read step by step.

    Raises
    ------
    FileOfTensorsError
        If there is no step, or one is missing or there twice; if `steps` is not given and the number of files
        is not that of recorded steps; if a file is damaged; if a tensor is missing, has another shape or
        dtype than before, or has no floating numbers; in files without digests, if a number is NaN or
        infinite. It is a ValueError.
    ValueError
        If the recording has fewer than `steps` steps.
    OSError
        If a file is missing or cannot be read.
    """
    folder = Path(directory)
    files = step_files(folder)
    if not files:
        raise FileOfTensorsError(folder, f"has no step; that of the first is named {step_name(1)}")
    if steps is None:
        _check_count(folder, files)
    count = len(files) if steps is None else whole_number("steps", steps, least=1)
    if count > len(files):
        raise ValueError(f"steps = {count}: {folder} has {len(files)} of them")
    first, *rest = (read_step(files[number], number) for number in range(1, count + 1))
    for step in rest:
        check_shapes(step.path, first.shapes, step.shapes, first.path)
        check_dtypes(step.path, first.dtypes, step.dtypes, first.path)
    start = read_weights(folder / WEIGHTS) if weights is None else read_other_weights(weights, first.tensors)
    check_shapes(first.path, start.shapes, first.shapes, start.path)
    return Recording(folder, start, (first, *rest))


def write_count(folder: Path, steps: int) -> None:
    """Write the number of steps of a recording."""
    write_text(folder / COUNT, json.dumps({"format": RECORDING, "steps": steps}) + "\n")


def read_count(folder: Path) -> int | None:
    """Return a recorder's count of steps, None without its file; a damaged one raises FileOfTensorsError."""
    if not (folder / COUNT).exists():
        return None
    try:
        found: int = build(_Count, parse(read_text(folder / COUNT, _LONGEST_COUNT)), "").steps
    except ValueError as problem:
        raise FileOfTensorsError(folder / COUNT, f"says no number of steps: {problem}") from problem
    return found


def _check_count(folder: Path, files: Mapping[int, Path]) -> None:
    """Raise FileOfTensorsError if a recorder wrote the files, and did not count this many of them."""
    if (recorded := read_count(folder)) is None:
        if shards.read_metadata(files[1]).get("format") != RECORDING:
            return
        raise FileOfTensorsError(
            folder, f"lacks {COUNT}, which says how many steps were recorded; say how many of them to use"
        )
    # A recorder that was killed may have written its last step without counting it.
    if len(files) not in (recorded, recorded + 1):
        raise FileOfTensorsError(
            folder,
            f"has {len(files)} steps, and {COUNT} says that {recorded} were recorded; say how many to use",
        )


def step_name(step: int) -> str:
    """Return the name of a step's file."""
    return f"{STEP}{step:08d}.safetensors"


def step_files(folder: Path) -> dict[int, Path]:
    """Return the files of a recording's steps by number: 1, 2 and so on.

    Raises
    ------
    FileOfTensorsError
        If a step is missing or there twice, or a file's name is almost that of a step.
    OSError
        If there is no such folder.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(STEP):
            continue
        matched = _STEP.fullmatch(path.name)
        if not matched:
            raise FileOfTensorsError(folder, f"has {path.name!r}; files of steps are named as {step_name(1)}")
        number = int(matched[1])
        if number in found:
            raise FileOfTensorsError(
                folder, f"has step {number} twice, in {found[number].name} and {path.name}"
            )
        found[number] = path
    for expected, number in enumerate(sorted(found), 1):
        if number != expected:
            what = "a step 0, and steps are counted from 1" if number == 0 else f"no step {expected}"
            raise FileOfTensorsError(folder, f"has {found[number].name}, and {what}")
    return {number: found[number] for number in sorted(found)}


def check_shapes(path: Pathlike, expected: Shapes, found: Shapes, other: Pathlike) -> None:
    """Raise FileOfTensorsError unless two files have tensors of the same names and shapes."""
    if missing := expected.keys() - found.keys():
        raise FileOfTensorsError(path, f"lacks the tensor {min(missing)!r}, which {other} has")
    if stray := found.keys() - expected.keys():
        raise FileOfTensorsError(path, f"has the tensor {min(stray)!r}, which {other} lacks")
    for name, shape in expected.items():
        if found[name] != shape:
            raise FileOfTensorsError(
                path, f"tensor {name!r} has shape {list(found[name])}, and {list(shape)} in {other}"
            )


def check_dtypes(
    path: Pathlike, expected: Mapping[str, str], found: Mapping[str, str], other: Pathlike
) -> None:
    """Raise FileOfTensorsError unless the tensors of two files have the same dtypes."""
    for name, dtype in expected.items():
        if found[name] != dtype:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is of dtype {found[name]}, and of {dtype} in {other}"
            )
