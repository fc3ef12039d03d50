"""Vectors stored in groups that share a scale, as codes and scales, and the boundaries of groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_algorithm import GroupAlgorithm
from mcfsim.compile.group_loops import group_loops, uniform
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of, code_dtype
from mcfsim.kernels.element.codes import MOST_BITS
from mcfsim.optim.stored import FLOAT32 as SINGLE
from mcfsim.optim.vectors import packed_dtype, read, write
from mcfsim.scaled import ScaledFormat, ScaleRule, quantize
from mcfsim.scaled.quantisers import Quantiser
from mcfsim.scaled.quantization import LargestMagnitude


# -- where groups begin -----------------------------------------------------------------------------------
class GroupBoundaries:
    """The boundaries (edges) of groups in a vector: a tensor begins a group, and its last one may be shorter.

    Parameters
    ----------
    tensors : sequence of slice
        Where each tensor lies, in order and without gaps; some may be empty.
    group : int
        Number of elements in a group.

    Attributes
    ----------
    group : int
        Number of elements in a group, at most the number of all elements.
    size, count : int
        Numbers of all elements and of all groups.
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
        """Return the last edge at or before element number `place`."""
        start = int(self._tensors[self._tensor(place)])
        return start + (place - start) // self.group * self.group

    def groups(self, part: slice) -> slice:
        """Return the range of groups in a range of elements that begins and ends at edges."""
        return slice(self._groups_before(part.start), self._groups_before(part.stop))

    def lengths(self, part: slice) -> NDArray[Any]:
        """Return how many elements each group has, in a range of elements that begins and ends at edges."""
        return np.diff(self.bounds(part))

    def bounds(self, part: slice) -> NDArray[np.int64]:
        """Return where each group of a range begins, counted from its start, and where the last one ends."""
        first, last = self._tensor(part.start), self._tensor(max(part.start, part.stop - 1))
        if first == last:
            return uniform(part.stop - part.start, self.group)
        edges = np.clip(self._tensors[first : last + 2], part.start, part.stop) - part.start
        counts = -(-np.diff(edges) // self.group)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.append(np.repeat(edges[:-1], counts) + within * self.group, edges[-1])

    def _tensor(self, place: int) -> int:
        """Return the number of the tensor that contains an element; at the end, the number of tensors."""
        return int(np.searchsorted(self._tensors, place, "right")) - 1

    def _groups_before(self, edge: int) -> int:
        tensor = self._tensor(edge)
        groups, rest = divmod(edge - int(self._tensors[tensor]), self.group)
        if rest:
            raise ValueError(f"element {edge} lies inside a group of {self.group} that share a scale")
        return int(self._before[tensor]) + groups


# -- codes and scales -------------------------------------------------------------------------------------
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Groups:
    """A vector of numbers, or a range of it, stored as codes of elements and a scale per group.

    Parameters
    ----------
    codes : array, shape (elements,)
        Codes of the element format; its numbers if codes are longer than 16 bits.
    scales : array, shape (groups,) or (groups, shared)
        Codes of the scale format, or its numbers if it has no short codes; or the numbers that a quantiser
        keeps for each group.
    kept : ScaledFormat or Quantiser
        The format of codes and scales.
    format : Format
        The format of computation: the numbers that codes and scales stand for are rounded into it, to nearest
        even.
    edges : GroupBoundaries
        The boundaries of the groups.
    part : slice
        The range of the vector.
    """

    codes: Array
    scales: Array
    kept: ScaledFormat | Quantiser
    format: Format
    edges: GroupBoundaries
    part: slice

    @classmethod
    def whole(
        cls, codes: Array, scales: Array, kept: ScaledFormat | Quantiser, fmt: Format, edges: GroupBoundaries
    ) -> Groups:
        """Return the whole vector that codes and scales make up."""
        return cls(codes, scales, kept, fmt, edges, slice(0, edges.size))

    @staticmethod
    def forms(kept: ScaledFormat | Quantiser) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Return the dtypes of codes and scales; a code of fewer than 8 bits takes a byte."""
        if isinstance(kept, Quantiser):
            return np.dtype(np.uint8), np.dtype(np.float32)
        element = kept.element
        short = element.bits <= MOST_BITS
        return code_dtype(element) if short else carrier_of(element), packed_dtype(kept.scale)

    @staticmethod
    def shared(kept: ScaledFormat | Quantiser) -> int:
        """Return how many numbers the elements of a group share."""
        return kept.shared if isinstance(kept, Quantiser) else 1

    @property
    def scaled(self) -> ScaledFormat:
        """The scaled format of packed numbers; `kept` must be one."""
        assert isinstance(self.kept, ScaledFormat)
        return self.kept

    @property
    def nbytes(self) -> int:
        """Number of bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def __getitem__(self, block: slice) -> Groups:
        """Return a range of the vector; raise ValueError if it cuts a group."""
        start, stop, _ = block.indices(self.part.stop - self.part.start)
        part = slice(self.part.start + start, self.part.start + max(start, stop))
        first = self.edges.groups(self.part).start
        groups = self.edges.groups(part)
        scales = self.scales[groups.start - first : groups.stop - first]
        codes = self.codes[start : max(start, stop)]
        return Groups(codes, scales, self.kept, self.format, self.edges, part)

    def numbers(self) -> Array:
        """Return the numbers as an array in the carrier of their format."""
        if (algorithm := group_algorithm(self.kept, self.format)) is not None:
            found = np.empty(self.codes.size, np.float32)
            group_loops(algorithm).decode(self.codes, self.scales, self.edges.bounds(self.part), found)
            return found
        kept = self.scaled
        exact = read(self.codes, kept.element).astype(kept.carrier)
        scales = read(self.scales, kept.scale).astype(kept.carrier)
        exact *= np.repeat(scales, self.edges.lengths(self.part))
        return np.asarray(round_to(exact, self.format), carrier_of(self.format))

    def keep(self, numbers: Array) -> None:
        """Quantise numbers and store them; elements are rounded to nearest even, and saturate."""
        if (algorithm := group_algorithm(self.kept, self.format)) is not None:
            group_loops(algorithm).encode(numbers, self.edges.bounds(self.part), self.codes, self.scales)
            return
        elements, scales = self._quantized(numbers, self.scaled)
        write(self.codes, elements, self.scaled.element)
        write(self.scales, scales, self.scaled.scale)

    def _quantized(self, numbers: Array, kept: ScaledFormat) -> tuple[Array, Array]:
        """Return the elements of numbers and the scales of their groups."""
        lengths = self.edges.lengths(self.part)
        if (lengths[:-1] == self.edges.group).all():
            found = quantize(numbers, kept)
            return found.elements, found.scale
        elements = np.empty(numbers.size, carrier_of(kept.element))
        scales = np.empty(lengths.size, carrier_of(kept.scale))
        starts = np.cumsum(lengths) - lengths
        for length in np.unique(lengths):  # all groups of one length at once, over all tensors
            chosen = np.flatnonzero(lengths == length)
            places = starts[chosen, np.newaxis] + np.arange(length)
            found = quantize(numbers[places], kept)
            elements[places], scales[chosen] = found.elements, found.scale[:, 0]
        return elements, scales


@lru_cache(maxsize=64)
def group_algorithm(kept: ScaledFormat | Quantiser, fmt: Format) -> GroupAlgorithm | None:
    """Return the algorithm that stores groups of numbers of a format, or None if there is none."""
    if carrier_of(fmt) != FLOAT32:
        return None
    if isinstance(kept, Quantiser):
        return kept if fmt == SINGLE else None
    return LargestMagnitude.of(kept, fmt)


def check_groups(name: str, slot: str, kept: ScaledFormat | Quantiser) -> None:
    """Raise ValueError unless a moment's groups can be packed: quantised one by one, whatever their numbers.

    Parameters
    ----------
    name, slot : str
        Names of the strategy and the moment, for the error message.
    kept : ScaledFormat or Quantiser
        The format of the moment.
    """
    if why := why_not_packed(kept):
        raise ValueError(
            f"strategy {name!r} keeps {slot} as {kept}, which is not packed: {why}; leave out packed=True"
        )


def why_not_packed(kept: ScaledFormat | Quantiser) -> str | None:
    """Return the reason why a moment's groups cannot be packed (see `check_groups`); None if they can."""
    if isinstance(kept, Quantiser):
        return "its codes are of no format"
    if not isinstance(kept.block, int) or kept.tensor_scale is not None:
        return "all numbers of a tensor share a scale, and a step of a block of them has not seen the others"
    if kept.rule is ScaleRule.MAX:
        return "its rule 'max' has no scale for a group without positive numbers"
    if not kept.element.zero:
        return f"its elements, of {kept.element}, have no zero, from which moments start"
    return None


def common_edges(vectors: Iterable[Any], tensors: Iterable[slice]) -> GroupBoundaries | None:
    """Return the edges that all vectors in groups have in common, or None if there is no such vector."""
    sizes = [x.edges.group for x in vectors if isinstance(x, Groups)]
    return GroupBoundaries(list(tensors), math.lcm(*sizes)) if sizes else None
