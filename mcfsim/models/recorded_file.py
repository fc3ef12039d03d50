"""One file of a recording: its tensors, and what its header says of them."""

from __future__ import annotations

import math
import re
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
from mcfsim.storage.sealed import (
    RECORDING,
    Forms,
    check_digest,
    check_weights,
    digest,
    digest_of,
    sealed,
    unsealed,
)
from mcfsim.storage.tensors import FileOfTensorsError

#: Names that a tensor can have in a safetensors file, and its series in the record of a run.
_NAME = re.compile(r"(?!__metadata__\Z)[^\0\ud800-\udfff]{1,1000}(?<!\.npy)")
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
        All of it, in the order that they were given in.
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
            check_digest(self.path, name, digest(elements), self.digests[name])
            numbers[name] = _numbers(elements, weight).reshape(weight.shape)
        refuse_not_finite(self.path, {name: not_finite(x) for name, x in numbers.items()})
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
    step, about = _opened(path)
    if about and about.get("step") != str(number):
        kind = f"step {about['step']}" if "step" in about else "weights"
        raise FileOfTensorsError(path, f"is {kind} by its header, and step {number} by its name")
    return step


def read_weights(path: Path) -> TensorFile:
    """Return the weights that a recording begins with, see `read_step`; those of a step are refused."""
    weights, about = _opened(path)
    check_weights(path, about)
    return weights


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
    return TensorFile(found.path, tensors, _digests(found.path, tensors))


def metadata(
    forms: Forms, digests: Mapping[str, str], step: int | None = None, rate: float | None = None
) -> dict[str, str]:
    """Return what the header of a recorder's file says besides its tensors.

    Parameters
    ----------
    forms, digests
        As of `mcfsim.storage.sealed.sealed`.
    step, rate : int and float, optional
        Number of the step, and its learning rate.
    """
    about = {} if step is None else {"step": str(step)}
    return sealed(RECORDING, forms, digests, about if rate is None else {**about, "rate": repr(rate)})


def check_tensor(path: Pathlike, name: str, shape: tuple[int, ...]) -> None:
    """Raise FileOfTensorsError for a tensor without elements, or with a name that no series can have."""
    if not _NAME.fullmatch(name):
        raise FileOfTensorsError(
            path,
            f"tensor {name[:_SHOWN]!r}: a name has 1 to 1000 characters, no NUL, no surrogate, and another "
            "end than .npy, and is not __metadata__",
        )
    if not math.prod(shape):
        raise FileOfTensorsError(path, f"tensor {name!r} of shape {list(shape)} has no elements")


def _opened(path: Path) -> tuple[TensorFile, dict[str, str]]:
    """Return a file, and what its header says besides, which is nothing in those of no recorder."""
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
    # The library sorts tensors; the recorder lists their digests in the order that the loop had them in.
    return TensorFile(path, {name: weights[name] for name in digests}, digests, rate), said


def _digests(path: Path, tensors: Mapping[str, Weight]) -> dict[str, str]:
    """Return the SHA-256 of each tensor's bytes; raise FileOfTensorsError if a number is not finite."""
    made, found = {}, {}
    for name, weight in tensors.items():
        counts = np.zeros(2, np.int64)

        def look(elements: NDArray[Any], weight: Weight = weight, counts: Any = counts) -> None:
            counts += not_finite(_numbers(elements, weight))

        made[name] = digest_of(weight.stored, look)
        found[name] = int(counts[0]), int(counts[1])
    refuse_not_finite(path, found)
    return made


def _numbers(elements: NDArray[Any], weight: Weight) -> NDArray[Any]:
    return elements if elements.dtype.kind == "f" else decode(elements, weight.format)
