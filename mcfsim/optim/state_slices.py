"""Where the state of each tensor lies in the vectors of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import Layout
from mcfsim.optim.over import Over
from mcfsim.optim.strategies import Strategy
from mcfsim.optim.strategy import SLOTS


@dataclass(frozen=True)
class StateSlices:
    """Where a slot of state lies in its vector: what it keeps of each tensor, in the order of the tensors.

    Attributes
    ----------
    slices : mapping of str to mapping of str to slice
        By tensor, and by the name of what is kept.
    size : int
        Numbers in all.
    """

    slices: Mapping[str, Mapping[str, slice]]
    size: int

    @classmethod
    def of(cls, hyper: Declaration, slot: str, layout: Layout) -> StateSlices:
        """Return where an optimizer's slot lies for tensors of a layout."""
        size, found = 0, dict[str, dict[str, slice]]()
        for tensor, shape in layout.shapes.items():
            found[tensor] = {}
            for name, over in hyper.parts(slot, shape).items():
                count = over.count(shape)
                found[tensor][name] = slice(size, size + count)
                size += count
        return cls(found, size)

    def tensor(self, name: str) -> slice:
        """Return all that is kept of a tensor."""
        parts = list(self.slices[name].values())
        return slice(parts[0].start, parts[-1].stop)

    def every(self) -> list[slice]:
        """Return what is kept of all tensors, part by part: numbers share scales within one."""
        return [part for parts in self.slices.values() for part in parts.values()]


def parts_of(hyper: Declaration, layout: Layout) -> dict[str, StateSlices]:
    """Return where the slots of an optimizer lie, by name."""
    return {slot.name: StateSlices.of(hyper, slot.name, layout) for slot in hyper.slots}


def offsets(layout: Layout) -> dict[str, dict[Over, int]]:
    """Return how many numbers tensors before each one have, for each thing that has one."""
    found, before = {}, dict.fromkeys(Over, 0)
    for tensor, shape in layout.shapes.items():
        found[tensor] = dict(before)
        for over in Over:
            before[over] += over.count(shape)
    return found


def bytes_per_parameter(hyper: Declaration, strategy: Strategy, layout: Layout) -> float | None:
    """Return the bytes that an optimizer stores for each parameter of a layout; None for exact numbers.

    Of no parameters they are those of any number, all of them vectors.
    """
    slots = parts_of(hyper, layout)
    if not layout.size:
        return strategy.stored_bytes(slots)
    total = Fraction(0)
    for label in strategy.tensors:
        size = strategy.size_of(label)
        if size is None:
            return None
        count = layout.size if label not in SLOTS else slots[label].size if label in slots else 0
        total += size * count / layout.size
    return int(total) if total.denominator == 1 else float(total)
