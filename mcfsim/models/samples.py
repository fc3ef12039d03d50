"""What an audit reads of a model: every element once, to see that all are finite, and a sample to try on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.models.weights import Weight, not_finite

#: Elements read at a time.
_BLOCK = 1 << 20
#: The golden ratio's fractional part: its multiples spread evenly, whatever the number of them.
_GOLDEN = 0.5 * (5**0.5 - 1)


@dataclass(frozen=True, eq=False)
class TensorSample:
    """One tensor as it was read.

    Parameters
    ----------
    name : str
        Of the tensor.
    shape : tuple of int
        Of the tensor.
    format : str
        In which the file has it.
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
        """Elements of the tensor."""
        return int(np.prod(self.shape, dtype=np.int64))


def places_of(size: int, samples: int) -> NDArray[np.int64]:
    """Return where a sample lies: in each of so many equal parts of a tensor one element, in order.

    Where in its part is not the same each time, so that no column of a matrix is met alone. Of a tensor with
    fewer elements some are there several times.
    """
    part = np.arange(samples)
    inside = part * _GOLDEN % 1.0
    return np.minimum(((part + inside) * (size / samples)).astype(np.int64), size - 1)


def elements_at(weight: Weight, samples: int) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Return a tensor's elements at `places_of`, and how many of all its elements are NaN and infinite."""
    values, counts = np.empty(samples), np.zeros(2, np.int64)
    for x in _taken(weight, values):
        counts += not_finite(x)
    return values, (int(counts[0]), int(counts[1]))


def read_sample(
    weight: Weight, samples: int, told: Callable[[int], None] | None = None
) -> tuple[TensorSample, tuple[int, int]]:
    """Return the sample of one tensor, and how many elements are NaN and infinite."""
    values, counts = np.empty(samples), np.zeros(2, np.int64)
    squares = zeros = 0.0
    for x in _taken(weight, values):
        norm = _sum_of_squares(x)
        if not np.isfinite(norm):
            counts += not_finite(x)
            norm = _sum_of_squares(x[np.isfinite(x)])
        squares += norm
        zeros += x.size - int(np.count_nonzero(x))
        if told is not None:
            told(x.size)
    rms = (squares / weight.size) ** 0.5
    sample = TensorSample(weight.name, weight.shape, str(weight.format), values, rms, zeros / weight.size)
    return sample, (int(counts[0]), int(counts[1]))


def _taken(weight: Weight, values: NDArray[np.float64]) -> Iterator[NDArray[Any]]:
    """Yield all elements of a tensor, a block at a time, and take a sample of them on the way."""
    places, start = places_of(weight.size, values.size), 0
    for x in weight.blocks(_BLOCK):
        first, last = np.searchsorted(places, (start, start + x.size))
        values[first:last] = x[places[first:last] - start]
        yield x
        start += x.size


def _sum_of_squares(x: NDArray[Any]) -> float:
    """Return a sum of squares in binary64, a cache's worth at a time."""
    total = 0.0
    for start in range(0, x.size, 1 << 15):
        block = x[start : start + (1 << 15)].astype(np.float64)
        total += float(np.dot(block, block))
    return total
