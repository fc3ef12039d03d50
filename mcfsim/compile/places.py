"""Places of numbers in a table: how many of its bounds, in order, a number reaches."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MAGNITUDE = 2**31 - 1


class Buckets(NamedTuple):
    """Ranges of magnitudes, no one with two bounds of a sign, by which a place is found without a search.

    Attributes
    ----------
    shift : int
        The bits of a magnitude that are left out of its bucket's number.
    first, last : int
        The numbers of the buckets; what lies beyond is in the nearest.
    starts : array of uint8
        How many bounds are reached by all numbers of a bucket: of those that are not negative, then of the
        others.
    """

    shift: int
    first: int
    last: int
    starts: Array


class Places:
    """The places between bounds.

    Parameters
    ----------
    bounds : array of float32
        In ascending order, none zero, at most 255 of them.
    """

    def __init__(self, bounds: Array) -> None:
        self.bounds = bounds

    def find(self, x: Array) -> Array:
        """Return how many bounds each number reaches; NaN reaches none."""
        found = np.searchsorted(self.bounds, x, "right")
        return np.where(np.isnan(x), 0, found)

    @cached_property
    def buckets(self) -> Buckets:
        """The coarsest buckets."""
        magnitudes = self.bounds.view(np.int32) & _MAGNITUDE
        for shift in range(23, -1, -1):
            keys = magnitudes >> shift
            first, last = int(keys.min()), int(keys.max())
            signed = np.where(self.bounds < 0, -1 - (keys - first), keys - first)  # in order
            if np.unique(signed).size == self.bounds.size:
                break
        count = last - first + 1
        ordered = np.searchsorted(signed, [*range(count), *range(-1, -1 - count, -1)])
        return Buckets(shift, first, last, ordered.astype(np.uint8))
