"""One file of a recording: its tensors, and what its header says of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.codec.codes import decode
from mcfsim.models.weights import FORMAT_OF, Weight, not_finite, open_weights, refuse_not_finite
from mcfsim.storage import shards
from mcfsim.storage.files import Pathlike
from mcfsim.storage.schema import build, parse
from mcfsim.storage.tensors import FileOfTensorsError

#: What the headers of a recorder's files say that they are.
FORMAT = "mcfsim-recording-1"
#: Elements that are read at a time for a digest.
_BLOCK = 1 << 20
#: Characters of a tensor's name, which becomes part of a member's name in the record of a run.
_LONGEST_NAME = 1000
#: Characters of a header's text that an error repeats.
_SHOWN = 40


@dataclass(frozen=True)
class TensorFile:
    """The tensors of one file of a recording, whose numbers are read on request.

    Parameters
    ----------
    path : Path
        The file.
    tensors : mapping of str to Weight
        All of it.
    digests : mapping of str to str
        SHA-256 of each tensor's bytes, in hexadecimal.
    rate : float or None
        The step's learning rate, if the file says it.
    """

    path: Path
    tensors: Mapping[str, Weight]
    digests: Mapping[str, str]
    rate: float | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors, by name."""
        return {name: weight.shape for name, weight in self.tensors.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """Of the tensors, by name, as files call them."""
        return {name: weight.stored.dtype for name, weight in self.tensors.items()}

    def read(self) -> dict[str, NDArray[Any]]:
        """Return all tensors as numbers in the carriers of their formats.

        Raises
        ------
        FileOfTensorsError
            If a tensor cannot be read, or is another than the header says, or has a NaN or infinity.
        """
        numbers = {}
        for name, weight in self.tensors.items():
            elements = weight.stored.read()
            if digest(elements) != self.digests[name]:
                raise FileOfTensorsError(
                    self.path, f"tensor {name!r} is damaged: its digest is not the one recorded"
                )
            numbers[name] = _numbers(elements, weight).reshape(weight.shape)
        refuse_not_finite(self.path, {name: not_finite(iter([x])) for name, x in numbers.items()})
        return numbers


def read_step(path: Path, number: int) -> TensorFile:
    """Return the gradients of a step by the header of their file; that of no recorder is read to its end.

    Raises
    ------
    FileOfTensorsError
        If the file is damaged, is another step's, or has a tensor without elements, of whole numbers, or
        with a name under which no series can be saved; without digests, if a number is NaN or infinite.
    OSError
        If it is not there or cannot be read.
    """
    about, tensors = _header(path)
    if about.get("step", str(number)) != str(number):
        raise FileOfTensorsError(
            path, f"is step {about['step'][:_SHOWN]} by its header, and {number} by its name"
        )
    return TensorFile(path, tensors, _digests(path, about, tensors), _rate(path, about))


def read_weights(path: Path) -> TensorFile:
    """Return the weights that a recording begins with, see `read_step`."""
    about, tensors = _header(path)
    return TensorFile(path, tensors, _digests(path, about, tensors))


def read_other_weights(path: Pathlike, names: Collection[str]) -> TensorFile:
    """Return those of these weights that a model's file or folder has.

    Raises
    ------
    FileOfTensorsError
        If one of them is of whole numbers or has no elements, or a number is NaN or infinite; see also
        `mcfsim.models.weights.open_weights`.
    OSError
        If a file is not there or cannot be read.
    """
    found = open_weights(path)
    for name in names:
        if name in found.left_out:
            raise FileOfTensorsError(found.path, f"tensor {name!r} has {found.left_out[name]}")
    tensors = {name: found[name] for name in names if name in found}
    return TensorFile(found.path, tensors, _digests(found.path, {}, tensors))


def metadata(
    digests: Mapping[str, str], step: int | None = None, rate: float | None = None
) -> dict[str, str]:
    """Return what the header of a recorder's file says besides its tensors."""
    about = {"format": FORMAT, "sha256": json.dumps(dict(digests))}
    if step is not None:
        about["step"] = str(step)
    if rate is not None:
        about["rate"] = repr(rate)
    return about


def digest(elements: NDArray[Any]) -> str:
    """Return the SHA-256 of contiguous elements as they lie in a file, in hexadecimal."""
    return hashlib.sha256(elements.ravel().data.cast("B")).hexdigest()


def check_tensor(path: Pathlike, name: str, shape: tuple[int, ...]) -> None:
    """Raise FileOfTensorsError for a tensor without elements, or with a name that no series can have."""
    if not name or "\0" in name or name.endswith(".npy") or len(name) > _LONGEST_NAME:
        raise FileOfTensorsError(
            path,
            f"tensor {name[:_SHOWN]!r}: a name has 1 to {_LONGEST_NAME} characters, no NUL, and another end "
            "than .npy",
        )
    if not math.prod(shape):
        raise FileOfTensorsError(path, f"tensor {name!r} of shape {list(shape)} has no elements")


def _header(path: Path) -> tuple[dict[str, str], dict[str, Weight]]:
    """Return what a file says besides its tensors, and these, which are of floating numbers."""
    tensors, about = shards.read_file(path), shards.read_metadata(path)
    if about.get("format") not in (FORMAT, None) and "sha256" in about:
        raise FileOfTensorsError(path, f"is of the format {about['format'][:_SHOWN]!r}, not {FORMAT!r}")
    if not tensors:
        raise FileOfTensorsError(path, "has no tensor")
    for name, tensor in tensors.items():
        check_tensor(path, name, tensor.shape)
        if tensor.dtype not in FORMAT_OF:
            raise FileOfTensorsError(
                path, f"tensor {name!r} is of dtype {tensor.dtype}, which has no floating numbers"
            )
    return about, {name: Weight(tensor) for name, tensor in tensors.items()}


def _rate(path: Path, about: Mapping[str, str]) -> float | None:
    if "rate" not in about:
        return None
    try:
        rate = float(about["rate"])
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise FileOfTensorsError(path, f"has the learning rate {about['rate'][:_SHOWN]!r}")
    return rate


def _digests(path: Path, about: Mapping[str, str], tensors: Mapping[str, Weight]) -> dict[str, str]:
    """Return the digests that a header lists; without any, those of the tensors, which must be finite."""
    if "sha256" in about:
        try:
            listed: dict[str, str] = build(dict[str, str], parse(about["sha256"]), "sha256")
        except ValueError as problem:
            raise FileOfTensorsError(path, f"has digests that cannot be read: {problem}") from problem
        if listed.keys() != tensors.keys():
            raise FileOfTensorsError(path, "lists digests of other tensors than it has")
        return listed
    made, found = {}, {}
    for name, weight in tensors.items():
        whole, counts = hashlib.sha256(), np.zeros(2, np.int64)
        for elements in weight.stored.blocks(_BLOCK):
            whole.update(elements.data.cast("B"))
            counts += not_finite(iter([_numbers(elements, weight)]))
        made[name], found[name] = whole.hexdigest(), (int(counts[0]), int(counts[1]))
    refuse_not_finite(path, found)
    return made


def _numbers(elements: NDArray[Any], weight: Weight) -> NDArray[Any]:
    return elements if elements.dtype.kind == "f" else decode(elements, weight.format)
