"""A recorder that writes the gradients of a training loop, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import as_array, finite_number, whole_number
from mcfsim.codec import codes_of
from mcfsim.formats import FORMATS
from mcfsim.models.recording import (
    WEIGHTS,
    check_dtypes,
    check_shapes,
    check_tensor,
    read_count,
    read_step,
    read_weights,
    step_files,
    step_name,
    write_count,
)
from mcfsim.models.weights import DTYPE_OF, not_finite, refuse_not_finite
from mcfsim.storage.files import OutputError, Pathlike, folder_of
from mcfsim.storage.sealed import RECORDING, digest, sealed
from mcfsim.storage.shards import write_file
from mcfsim.storage.tensors import ELEMENTS

#: For each tensor the dtype by the name that files use, and the elements as files store them.
_Stored = dict[str, tuple[str, NDArray[Any]]]


class Recorder:
    """A recorder of gradients that writes one file per step, see `record`.

    Attributes
    ----------
    directory : Path
        The directory of the files.
    count : int
        Number of steps recorded.
    """

    def __init__(
        self, weights: Mapping[str, NDArray[Any]], directory: Pathlike, *, after: int | None = None
    ) -> None:
        self.directory = folder_of(directory)
        start = self.directory / WEIGHTS
        stored = _stored(start, weights)
        self._shapes = {name: np.shape(x) for name, x in weights.items()}
        self._dtypes: dict[str, str] = {}
        if after is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if start.exists() or step_files(self.directory):
                raise OutputError(
                    f"{self.directory} has a recording; continue it with after=..., or name another"
                )
            self.count = 0
            _write(start, stored)
            write_count(self.directory, 0)
        else:
            self.count = self._go_on(start, whole_number("after", after, least=0))

    def step(self, gradients: Mapping[str, NDArray[Any]], rate: float | None = None) -> None:
        """Write the gradients of one step, all of them or nothing.

        Parameters
        ----------
        gradients : mapping of str to array
            They have the weights' names and shapes, and a floating dtype of NumPy or ml_dtypes that files
            have a name for, the same in every step.
        rate : float, optional
            The learning rate of the step.

        Raises
        ------
        TypeError
            If a gradient is not an array of such a dtype, or the rate is not a number.
        ValueError
            If a name, shape or dtype is not that of the step before, a number is NaN or infinite, or the rate
            is out of range.
        OutputError
            If the file cannot be written, the disk has no room for it, or another recorder has changed the
            recording.
        """
        if rate is not None and (rate := finite_number("rate", rate)) < 0:
            raise ValueError(f"rate = {rate} must not be negative")
        if (found := read_count(self.directory)) not in (None, self.count):
            raise OutputError(
                f"{self.directory} has {found} steps, and this recorder is after step {self.count}: another "
                "one has changed the recording"
            )
        number = self.count + 1
        path = self.directory / step_name(number)
        stored = _stored(path, gradients)
        check_shapes(path, self._shapes, {name: np.shape(x) for name, x in gradients.items()}, WEIGHTS)
        dtypes = {name: dtype for name, (dtype, _) in stored.items()}
        check_dtypes(path, self._dtypes or dtypes, dtypes, step_name(1))
        _write(path, stored, number, rate)
        try:
            write_count(self.directory, number)
        except BaseException:
            path.unlink()
            raise
        self.count, self._dtypes = number, dtypes

    def _go_on(self, start: Path, after: int) -> int:
        """Remove all steps after step `after` from a recording of the same tensors; return `after`."""
        check_shapes(start, self._shapes, read_weights(start).shapes, "the model")
        files = step_files(self.directory)
        if after > len(files):
            raise ValueError(f"after = {after}: {self.directory} has {len(files)} steps")
        if after:
            self._dtypes = read_step(files[1], 1).dtypes
        write_count(self.directory, after)
        for number in range(len(files), after, -1):
            files[number].unlink()
        return after


def record(weights: Mapping[str, NDArray[Any]], directory: Pathlike, *, after: int | None = None) -> Recorder:
    """Begin to record the gradients of a training loop, for `mcfsim.replay`.

    Parameters
    ----------
    weights : mapping of str to array
        The weights that the first step starts from, by tensor, in a floating dtype of NumPy or ml_dtypes.
    directory : path
        The directory for the files; made if it is missing.
    after : int, optional
        Continue a recording after this many of its steps, for a loop that continues from a checkpoint. Later
        steps are removed, and only names and shapes of the weights are checked. By default a new recording
        begins, in a directory that has none.

    Returns
    -------
    Recorder
        Call its ``step(gradients, rate)`` once per step, before the weights move.

    Raises
    ------
    TypeError
        If a weight is not an array of such a dtype.
    ValueError
        If there are no weights, or a weight is NaN or infinite, or has no elements; or if the recording to
        continue has other tensors, or fewer steps.
    OutputError
        If the directory's name is empty, it has a recording already, or cannot be written, or the disk has no
        room.
    OSError
        If there is no recording to continue.
    """
    return Recorder(weights, directory, after=after)


def _stored(path: Path, tensors: Mapping[str, NDArray[Any]]) -> _Stored:
    """Return tensors as files store them; refuse dtypes that files lack, and numbers that are not finite."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of names to arrays, not {type(tensors).__name__}")
    if not tensors:
        raise ValueError("there are no tensors")
    stored: _Stored = {}
    found = {}
    for name, given in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names of tensors must be texts, not {name!r}")
        x = as_array(given, f"tensor {name!r}") if isinstance(given, np.ndarray | np.generic) else given
        known = FORMATS.get(x.dtype.name) if isinstance(x, np.ndarray) else None
        dtype = DTYPE_OF.get(known) if known else None
        if dtype is None:
            kind = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"tensor {name!r} must be an array of floating numbers, as float32, not {kind}")
        check_tensor(path, name, x.shape)
        found[name] = not_finite(np.asarray(x))
        elements = x if ELEMENTS[dtype].kind == "f" else codes_of(x)
        stored[name] = dtype, np.ascontiguousarray(elements, ELEMENTS[dtype]).reshape(x.shape)
    refuse_not_finite(path, found)
    return stored


def _write(path: Path, stored: _Stored, step: int | None = None, rate: float | None = None) -> None:
    forms = {name: (dtype, x.shape) for name, (dtype, x) in stored.items()}
    digests = {name: digest(x) for name, (_, x) in stored.items()}
    about = {} if step is None else {"step": str(step)}
    about |= {} if rate is None else {"rate": repr(rate)}
    write_file(path, stored, sealed(RECORDING, forms, digests, about), exclusive=True)
