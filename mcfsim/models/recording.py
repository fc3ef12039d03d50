"""Recorded gradients: a directory with the weights at the start and one safetensors file a step."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcfsim.checks.arguments import whole_number
from mcfsim.models.recorded_file import TensorFile, read_other_weights, read_step, read_weights
from mcfsim.storage import shards
from mcfsim.storage.files import Pathlike, read_text, write_text
from mcfsim.storage.schema import build, parse
from mcfsim.storage.sealed import RECORDING
from mcfsim.storage.tensors import FileOfTensorsError

WEIGHTS = "weights.safetensors"
#: Says how many steps were recorded, so that one that is missing at the end is missed.
COUNT = "steps.json"
_LONGEST_COUNT = 1000
_PREFIX = "step-"
_STEP = re.compile(_PREFIX + r"([0-9]+)\.safetensors")


@dataclass(frozen=True)
class _Count:
    format: Literal["mcfsim-recording-1"]
    steps: int


@dataclass(frozen=True)
class Recording:
    """Weights, and the gradients of steps that were made from them, in files.

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
        """Elements of all tensors of a step."""
        return sum(weight.size for weight in self.weights.tensors.values())

    def rates(self) -> tuple[float, ...]:
        """Return the learning rate of every step.

        Raises
        ------
        FileOfTensorsError
            If a step has none.
        """
        rates = []
        for step in self.steps:
            if step.rate is None:
                raise FileOfTensorsError(step.path, "has no learning rate, so a schedule must be given")
            rates.append(step.rate)
        return tuple(rates)

    def digest(self) -> str:
        """Return a SHA-256 of all tensors: names, dtypes, shapes and bits, in order."""
        whole = hashlib.sha256()
        for part in (self.weights, *self.steps):
            dtypes, shapes = part.dtypes, part.shapes
            described = [[name, dtypes[name], shapes[name], part.digests[name]] for name in part.tensors]
            whole.update(json.dumps(described).encode())
        return whole.hexdigest()


def open_recording(
    directory: Pathlike, weights: Pathlike | None = None, steps: int | None = None
) -> Recording:
    """Open a recording: the headers of all its files are read and compared.

    Of files that a recorder wrote no more is read. Others, whose headers have no digests, are read once.

    Parameters
    ----------
    directory : path
        As `mcfsim.record` made it: ``weights.safetensors``, ``step-00000001.safetensors`` and so on, and
        ``steps.json``, which says how many there are.
    weights : path, optional
        Another start, see `mcfsim.models.weights.open_weights`; tensors without gradients are left out.
    steps : int, optional
        How many of the steps are meant, from the first on; by default all.

    Returns
    -------
    Recording
        Its tensors are read step by step.

    Raises
    ------
    FileOfTensorsError
        If there is no step, or one is missing or there twice; if `steps` is not given and there are others
        than were recorded; if a file is damaged; if a tensor is missing, or of another shape or dtype than
        before, or holds no floating numbers; of files without digests, if a number is NaN or infinite. It is
        a ValueError.
    ValueError
        If the recording has fewer steps than are meant.
    OSError
        If a file is not there or cannot be read.
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
    """Write how many steps a recording has."""
    write_text(folder / COUNT, json.dumps({"format": RECORDING, "steps": steps}) + "\n")


def _check_count(folder: Path, files: Mapping[int, Path]) -> None:
    """Raise FileOfTensorsError unless there are as many steps as were recorded; only recorders say so."""
    if not (folder / COUNT).exists():
        if shards.read_metadata(files[1]).get("format") != RECORDING:
            return
        raise FileOfTensorsError(
            folder, f"lacks {COUNT}, which says how many steps were recorded; say how many of them are meant"
        )
    try:
        recorded = build(_Count, parse(read_text(folder / COUNT, _LONGEST_COUNT)), "").steps
    except ValueError as problem:
        raise FileOfTensorsError(folder / COUNT, f"says no number of steps: {problem}") from problem
    # A recorder that was killed has written its last step, and not yet counted it.
    if len(files) not in (recorded, recorded + 1):
        raise FileOfTensorsError(
            folder,
            f"has {len(files)} steps, and {COUNT} says that {recorded} were recorded; say how many are meant",
        )


def step_name(step: int) -> str:
    """Return the name of a step's file."""
    return f"{_PREFIX}{step:08d}.safetensors"


def step_files(folder: Path) -> dict[int, Path]:
    """Return the files of a recording's steps by number: 1, 2 and so on.

    Raises
    ------
    FileOfTensorsError
        If a step is missing or there twice, or a file has nearly the name of a step.
    OSError
        If there is no such folder.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(_PREFIX):
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


def check_shapes(
    path: Pathlike,
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    other: Pathlike,
) -> None:
    """Raise FileOfTensorsError unless a file has tensors of the names and shapes of another one."""
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
    """Raise FileOfTensorsError unless a file's tensors have the dtypes that they have in another one."""
    for name, dtype in expected.items():
        if found[name] != dtype:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is of dtype {found[name]}, and of {dtype} in {other}"
            )
