"""Where groups of elements begin in a vector of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_loops import uniform


class Edges:
    """Where groups of so many elements begin and end: each tensor begins one, its last may be shorter.

    Parameters
    ----------
    tensors : sequence of slice
        Where each tensor lies, in order and without gaps; some may be empty.
    group : int
        Elements a group.

    Attributes
    ----------
    group : int
        Elements a group, and no more than there are.
    size, count : int
        Elements and groups in all.
    """

    def __init__(self, tensors: Sequence[slice], group: int) -> None:
        stops = np.array([0, *(part.stop for part in tensors)], np.int64)
        self.size = int(stops[-1])
        self.group = min(group, max(self.size, 1))
        groups = -(-np.diff(stops) // self.group)
        self._tensors = stops
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(groups)])
        self.count = int(self._before[-1])

    def last(self, place: int) -> int:
        """Return the last edge at or before an element."""
        start = int(self._tensors[self._tensor(place)])
        return start + (place - start) // self.group * self.group

    def groups(self, part: slice) -> slice:
        """Return which groups lie in a range, which must begin and end at edges."""
        return slice(self._groups_before(part.start), self._groups_before(part.stop))

    def lengths(self, part: slice) -> NDArray[Any]:
        """Return how many elements each group of a range has, which must begin and end at edges."""
        first, last = self._tensor(part.start), self._tensor(part.stop)
        inside = np.clip(self._tensors[first : last + 2], part.start, part.stop)
        sizes = np.diff(inside)
        counts = -(-sizes // self.group)
        lengths = np.full(counts.sum(), self.group)
        some = counts > 0
        lengths[np.cumsum(counts[some]) - 1] = sizes[some] - (counts[some] - 1) * self.group
        return lengths

    def bounds(self, part: slice) -> NDArray[np.int64]:
        """Return where each group of a range begins, counted from its start, and where the last one ends."""
        if self._tensor(part.start) == self._tensor(max(part.start, part.stop - 1)):
            return uniform(part.stop - part.start, self.group)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths(part))])

    def _tensor(self, place: int) -> int:
        """Return the place of the tensor that an element lies in; at the end how many there are."""
        return int(np.searchsorted(self._tensors, place, "right")) - 1

    def _groups_before(self, edge: int) -> int:
        tensor = self._tensor(edge)
        groups, rest = divmod(edge - int(self._tensors[tensor]), self.group)
        if rest:
            raise ValueError(f"element {edge} lies inside a group of {self.group} that share a scale")
        return int(self._before[tensor]) + groups
