"""Scans of a model for an audit: a sample of each tensor, from one reading that can be interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.models.weights import Counts, Weight, Weights, not_finite, refuse_not_finite
from mcfsim.storage.archive import Forms, read_archive, write_archive
from mcfsim.storage.files import Pathlike

#: Elements read at a time.
_BLOCK = 1 << 20
#: The golden ratio's fractional part: its multiples spread evenly, however many there are.
_GOLDEN = 0.5 * (5**0.5 - 1)


@dataclass(frozen=True, eq=False)
class TensorSample:
    """A sample of one tensor, with statistics of all its elements.

    Parameters
    ----------
    name : str
        Name of the tensor.
    shape : tuple of int
        Shape of the tensor.
    format : str
        The format in which the file stores it.
    values : array of float64, shape (samples,)
        Elements at `places_of`.
    rms : float
        Root of the mean square of all elements.
    zeros : float
        Share of all elements that are zero.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    values: NDArray[np.float64]
    rms: float
    zeros: float

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return int(np.prod(self.shape, dtype=np.int64))


#: A sample, and how many elements of its tensor are NaN and infinite.
Scanned = tuple[TensorSample, Counts]


def places_of(size: int, samples: int) -> NDArray[np.int64]:
    """Return the places of a sample, in order: one element of each of `samples` equal parts of a tensor.

    The place within the part varies, so that no column of a matrix is sampled alone. If the tensor has fewer
    elements, some are taken several times.
    """
    part = np.arange(samples)
    inside = part * _GOLDEN % 1.0
    return np.minimum(((part + inside) * (size / samples)).astype(np.int64), size - 1)


def elements_at(weight: Weight, samples: int) -> tuple[NDArray[np.float64], Counts]:
    """Return a tensor's elements at `places_of`, and how many of all elements are NaN and infinite."""
    values, counts = np.empty(samples), np.zeros(2, np.int64)
    for x in _taken(weight, values):
        counts += not_finite(x)
    return values, (int(counts[0]), int(counts[1]))


def read_sample(weight: Weight, samples: int, told: Callable[[int], None] | None = None) -> Scanned:
    """Return the sample of one tensor, and how many of all elements are NaN and infinite."""
    values, counts = np.empty(samples), np.zeros(2, np.int64)
    squares = zeros = 0.0
    exponent = 0  # the numbers are squared times 2**-exponent
    for x in _taken(weight, values):
        norm = _sum_of_squares(x, exponent)
        if not np.isfinite(norm + squares):
            counts += not_finite(x)
            finite = x[np.isfinite(x)]
            norm = _sum_of_squares(finite, exponent)
            if not np.isfinite(norm + squares):
                exponent, squares = _FAR, math.ldexp(squares, -2 * _FAR)
                norm = _sum_of_squares(finite, exponent)
        squares += norm
        zeros += x.size - int(np.count_nonzero(x))
        if told is not None:
            told(x.size)
    rms = math.ldexp((squares / weight.size) ** 0.5, exponent)
    sample = TensorSample(weight.name, weight.shape, str(weight.format), values, rms, zeros / weight.size)
    return sample, (int(counts[0]), int(counts[1]))


def _taken(weight: Weight, values: NDArray[np.float64]) -> Iterator[NDArray[Any]]:
    """Yield all elements of a tensor, a block at a time, and store its sample in `values`."""
    places, start = places_of(weight.size, values.size), 0
    for x in weight.blocks(_BLOCK):
        first, last = np.searchsorted(places, (start, start + x.size))
        values[first:last] = x[places[first:last] - start]
        yield x
        start += x.size


#: An exponent with which no square of a binary64 number overflows.
_FAR = 600


@np.errstate(over="ignore", invalid="ignore")
def _sum_of_squares(x: NDArray[Any], exponent: int) -> float:
    """Return the sum of squares times ``2**-exponent`` in binary64, computed in blocks that fit the cache."""
    total = 0.0
    for start in range(0, x.size, 1 << 15):
        block = x[start : start + (1 << 15)].astype(np.float64)
        if exponent:
            block = np.ldexp(block, -exponent)
        total += float(np.dot(block, block))
    return total


# -- scans that can be interrupted ------------------------------------------------------------------------
_KIND = "samples of weights"


def scan(
    weights: Weights,
    samples: int,
    kept: Pathlike | None = None,
    told: Callable[[str, int, bool], None] | None = None,
) -> list[TensorSample]:
    """Read all tensors of a model, each element once, and return their samples.

    Parameters
    ----------
    weights : Weights
        The model.
    samples : int
        How many elements to take from each tensor.
    kept : path, optional
        A file for the samples. It is saved at the end, and when KeyboardInterrupt (Ctrl-C) or an error of a
        file ends the scan. If it exists, the tensors in it are not read again, and those that another scan
        has put there meanwhile stay.
    told : callable, optional
        Is called with a tensor's name, the number of its elements read since the last call, and whether they
        were read earlier.

    Raises
    ------
    FileOfTensorsError
        If a tensor cannot be read; or, after all were read, if there are NaNs or infinities. The message
        counts them by tensor.
    ValueError
        If the file is of other weights, or of other samples, or damaged, at the start or at the end.
    """
    found: dict[str, Scanned] = {}
    about = {} if kept is None else _about(weights, samples)  # of the files as they are before they are read
    if kept is not None and Path(kept).exists():
        found = _load(kept, weights, about)
    try:
        for name, weight in weights.items():
            if name in found:
                if told is not None:
                    told(name, weight.size, True)
                continue
            found[name] = read_sample(weight, samples, lambda n, name=name: told and told(name, n, False))  # type: ignore[misc]
    finally:
        if kept is not None:
            if Path(kept).exists():  # another reading may have come between
                found = {**_load(kept, weights, about), **found}
            _save(kept, about, found)
    refuse_not_finite(weights.path, {name: counts for name, (_, counts) in found.items()})
    return [found[name][0] for name in weights]


def _about(weights: Weights, samples: int) -> dict[str, Any]:
    """Return what determines the samples: their number, and the files with their sizes and times."""
    files = sorted({weight.stored.path for weight in weights.values()})
    stats = [(file.name, file.stat()) for file in files]
    return {
        "kind": _KIND,
        "samples": samples,
        "files": [[name, about.st_size, about.st_mtime_ns] for name, about in stats],
        "tensors": [[name, list(weight.shape), str(weight.format)] for name, weight in weights.items()],
    }


def _save(path: Pathlike, about: Mapping[str, Any], found: Mapping[str, Scanned]) -> None:
    samples, bad = [sample for sample, _ in found.values()], [counts for _, counts in found.values()]
    arrays = {
        "values": np.array([x.values for x in samples]).reshape(len(found), about["samples"]),
        "rms": np.array([x.rms for x in samples], dtype=np.float64),
        "zeros": np.array([x.zeros for x in samples], dtype=np.float64),
        "bad": np.array(bad, dtype=np.int64).reshape(len(found), 2),
    }
    write_archive(path, {**about, "read": list(found)}, arrays)


def _load(path: Pathlike, weights: Weights, wanted: Mapping[str, Any]) -> dict[str, Scanned]:
    """Return the saved samples; raise ValueError if they are of other files."""

    def check(about: dict[str, Any], forms: Forms) -> None:
        if about.get("kind") != _KIND:
            raise ValueError("holds no samples of weights")
        for label, said in wanted.items():
            if about.get(label) != said:
                raise ValueError(
                    f"is of other weights or samples: {label} differ; name another file, or remove it"
                )
        read = about.get("read")
        if not isinstance(read, list) or not set(map(str, read)) <= set(weights):
            raise ValueError("has read other tensors than there are")
        count = len(read)
        shapes = {"values": (count, wanted["samples"]), "rms": (count,), "zeros": (count,), "bad": (count, 2)}
        if {name: form.shape for name, form in forms.items()} != shapes:
            raise ValueError("holds other arrays than samples of weights")

    about, arrays = read_archive(path, check)
    found = {}
    for row, name in enumerate(about["read"]):
        weight = weights[name]
        numbers = float(arrays["rms"][row]), float(arrays["zeros"][row])
        sample = TensorSample(name, weight.shape, str(weight.format), arrays["values"][row], *numbers)
        found[name] = sample, (int(arrays["bad"][row, 0]), int(arrays["bad"][row, 1]))
    return found
