"""Vectors of numbers that are kept in groups with a scale each, as codes and scales."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_loops import group_loops
from mcfsim.compile.group_text import GroupText
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT32, carrier_of
from mcfsim.kernels.codes_by_kind import code_dtype
from mcfsim.kernels.element.codes import MOST_BITS
from mcfsim.optim.edges import Edges
from mcfsim.optim.stored import FLOAT32 as SINGLE
from mcfsim.optim.vectors import packed_dtype, read, write
from mcfsim.scaled import ScaledFormat, ScaleRule, quantize
from mcfsim.scaled.by_text import LargestMagnitude
from mcfsim.scaled.quantisers import Quantiser

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Groups:
    """A vector of numbers, or a range of it, as codes of elements and a scale for each group of them.

    Parameters
    ----------
    codes : array, shape (elements,)
        Of the element format; its numbers where codes are longer than 16 bits.
    scales : array, shape (groups,) or (groups, shared)
        Of the scale format: codes, or its numbers where it has no short ones; or what a quantiser has of each
        group.
    kept : ScaledFormat or Quantiser
        The format of both.
    format : Format
        In which the numbers are computed: what elements and scales stand for is rounded into it, to nearest
        even.
    edges : Edges
        Of the groups.
    part : slice
        Which range of the vector it is.
    """

    codes: Array
    scales: Array
    kept: ScaledFormat | Quantiser
    format: Format
    edges: Edges
    part: slice

    @classmethod
    def whole(
        cls, codes: Array, scales: Array, kept: ScaledFormat | Quantiser, fmt: Format, edges: Edges
    ) -> Groups:
        """Return a vector of all elements."""
        return cls(codes, scales, kept, fmt, edges, slice(0, edges.size))

    @staticmethod
    def forms(kept: ScaledFormat | Quantiser) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Return the dtypes of codes and scales. A code of less than 8 bits takes a byte."""
        if isinstance(kept, Quantiser):
            return np.dtype(np.uint8), np.dtype(np.float32)
        element = kept.element
        short = element.bits <= MOST_BITS
        return code_dtype(element) if short else carrier_of(element), packed_dtype(kept.scale)

    @staticmethod
    def shared(kept: ScaledFormat | Quantiser) -> int:
        """Return how many numbers a group has."""
        return kept.shared if isinstance(kept, Quantiser) else 1

    @property
    def scaled(self) -> ScaledFormat:
        """The format of codes and scales, which it is that numbers are packed in."""
        assert isinstance(self.kept, ScaledFormat)
        return self.kept

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def __getitem__(self, block: slice) -> Groups:
        """Return a range that begins and ends where groups do; ValueError if it cuts one."""
        start, stop, _ = block.indices(self.part.stop - self.part.start)
        part = slice(self.part.start + start, self.part.start + max(start, stop))
        first = self.edges.groups(self.part).start
        groups = self.edges.groups(part)
        scales = self.scales[groups.start - first : groups.stop - first]
        codes = self.codes[start : max(start, stop)]
        return Groups(codes, scales, self.kept, self.format, self.edges, part)

    def numbers(self) -> Array:
        """Return the numbers in the carrier of their format."""
        if (text := text_of(self.kept, self.format)) is not None:
            found = np.empty(self.codes.size, np.float32)
            group_loops(text).decode(self.codes, self.scales, self.edges.bounds(self.part), found)
            return found
        kept = self.scaled
        exact = read(self.codes, kept.element).astype(kept.carrier)
        scales = read(self.scales, kept.scale).astype(kept.carrier)
        exact *= np.repeat(scales, self.edges.lengths(self.part))
        return np.asarray(round_to(exact, self.format), carrier_of(self.format))

    def keep(self, numbers: Array) -> None:
        """Quantise numbers: elements are rounded to nearest even, and saturate."""
        if (text := text_of(self.kept, self.format)) is not None:
            group_loops(text).encode(numbers, self.edges.bounds(self.part), self.codes, self.scales)
            return
        elements, scales = self._quantized(numbers, self.scaled)
        write(self.codes, elements, self.scaled.element)
        write(self.scales, scales, self.scaled.scale)

    def _quantized(self, numbers: Array, kept: ScaledFormat) -> tuple[Array, Array]:
        """Return elements, and the scales of their groups."""
        lengths = self.edges.lengths(self.part)
        if (lengths[:-1] == self.edges.group).all():
            found = quantize(numbers, kept)
            return found.elements, found.scale
        elements = np.empty(numbers.size, carrier_of(kept.element))
        scales = np.empty(lengths.size, carrier_of(kept.scale))
        starts = np.cumsum(lengths) - lengths
        for length in np.unique(lengths):  # groups of one length at once, however many tensors there are
            chosen = np.flatnonzero(lengths == length)
            places = starts[chosen, np.newaxis] + np.arange(length)
            found = quantize(numbers[places], kept)
            elements[places], scales[chosen] = found.elements, found.scale[:, 0]
        return elements, scales


@lru_cache(maxsize=64)
def text_of(kept: ScaledFormat | Quantiser, fmt: Format) -> GroupText | None:
    """Return the text by which groups of numbers of a format are kept, if there is one."""
    if carrier_of(fmt) != FLOAT32:
        return None
    if isinstance(kept, Quantiser):
        return kept if fmt == SINGLE else None
    return LargestMagnitude.of(kept, fmt)


def check_groups(name: str, slot: str, kept: ScaledFormat | Quantiser) -> None:
    """Raise ValueError unless groups of a moment are quantised one by one, and hold any of its numbers.

    Parameters
    ----------
    name, slot : str
        Of the strategy and the moment, for the error.
    kept : ScaledFormat or Quantiser
        The moment's.
    """
    if why := why_not_packed(kept):
        raise ValueError(
            f"strategy {name!r} keeps {slot} as {kept}, which is not packed: {why}; leave out packed=True"
        )


def why_not_packed(kept: ScaledFormat | Quantiser) -> str | None:
    """Return why groups are not quantised one by one, or do not hold any numbers of a moment; None if so."""
    if isinstance(kept, Quantiser):
        return "its codes are of no format"
    if not isinstance(kept.block, int) or kept.tensor_scale is not None:
        return "all numbers of a tensor share a scale, and a step of a block of them has not seen the others"
    if kept.rule is ScaleRule.MAX:
        return "its rule 'max' has no scale for a group without positive numbers"
    if not kept.element.zero:
        return f"its elements, of {kept.element}, have no zero, from which moments start"
    return None


def common_edges(vectors: Iterable[Any], tensors: Iterable[slice]) -> Edges | None:
    """Return the edges that all vectors of groups have, or None if there is no such vector."""
    sizes = [x.edges.group for x in vectors if isinstance(x, Groups)]
    return Edges(list(tensors), math.lcm(*sizes)) if sizes else None
