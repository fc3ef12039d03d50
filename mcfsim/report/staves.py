"""A drawing broken into staves, as music is: each takes as many columns as fit into a width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcfsim.report.wiring import Gate, Wire, Wiring

#: Around the sign of a gate: its sides, and room for a wire's mark and a piece of wire.
SIDES, ROOM = 2, 3


@dataclass(frozen=True)
class Stave:
    """Some columns of a drawing, measured in characters.

    Attributes
    ----------
    gates : tuple of Gate
    wires : tuple of Wire
        Those that are alive in it.
    first, last : int
        Its columns.
    rows : dict of int to int
        Where each row that is in use lies, from the top.
    centres : dict of int to int
        Where the middle of each column lies.
    left, right : int
        Where wires that come from before begin, and where those that go on end.
    """

    gates: tuple[Gate, ...]
    wires: tuple[Wire, ...]
    first: int
    last: int
    rows: dict[int, int]
    centres: dict[int, int]
    left: int
    right: int

    def span(self, wire: Wire) -> tuple[int, int]:
        """Return where a wire begins and ends in the stave."""
        start = self.left if wire.start < self.first else self.centres[wire.start]
        end = self.right if wire.end > self.last else self.centres.get(wire.end, self.left)
        return start, end

    def before(self, wire: Wire) -> str:
        """Return what stands before a wire that comes from the left."""
        return wire.name if wire.start < self.first else ""

    def after(self, wire: Wire, columns: int) -> str:
        """Return what stands behind a wire: what the result is called, or its name where it goes on."""
        if wire.end <= self.last:
            return ""
        return wire.result if self.last == columns - 1 else wire.name


def staves(wiring: Wiring, width: int | None = None) -> Iterator[Stave]:
    """Yield the staves of a drawing: one, or as many as a width in characters asks for."""
    widths = [0] * wiring.columns
    for gate in wiring.gates:
        widths[gate.column] = max(widths[gate.column], len(gate.label) + SIDES + ROOM)
    names = max((len(wire.name) for wire in wiring.wires), default=0) + 1
    results = max((max(len(wire.result), len(wire.name)) for wire in wiring.wires), default=0) + 2
    for first, last in _shared_out(widths, sum(widths) if width is None else width - names - results - 1):
        yield _stave(wiring, widths, first, last)


def _shared_out(widths: list[int], room: int) -> list[tuple[int, int]]:
    """Return the first and the last column of each stave: as few as there is room for, and about as wide."""

    def filled(room: int) -> list[tuple[int, int]]:
        found, first = [], 0
        while first < len(widths):
            last = first
            while last + 1 < len(widths) and sum(widths[first : last + 2]) <= room:
                last += 1
            found.append((first, last))
            first = last + 1
        return found

    best = filled(room)
    for narrower in range(room - 1, 0, -1):
        parts = filled(narrower)
        if len(parts) > len(best):
            break
        best = parts
    return best


def _stave(wiring: Wiring, widths: list[int], first: int, last: int) -> Stave:
    alive = tuple(x for x in wiring.wires if x.start <= last and x.end >= first)
    left = max((len(wire.name) for wire in alive if wire.start < first), default=0) + 1
    centres, place = {}, left
    for column in range(first, last + 1):
        centres[column] = place + (widths[column] + ROOM - 1) // 2
        place += widths[column]
    gates = tuple(gate for gate in wiring.gates if first <= gate.column <= last)
    used = sorted({wire.row for wire in alive})
    rows = {row: number for number, row in enumerate(used)}
    return Stave(gates, alive, first, last, rows, centres, left, place + 1)
