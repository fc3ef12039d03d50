"""A program's network of operations in characters: wires from left to right, a box for each operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcfsim.report.wiring import Gate, Wire, Wiring

WIRE, LINE, CROSSING = "─", "│", "┼"
#: Where an operation takes a value; the second is its subtrahend, its divisor or an fma's addend.
TAKEN, OTHER = "●", "○"


def network_text(wiring: Wiring, width: int | None = None) -> str:
    """Return a drawing as text, in several parts below each other where a width asks for it.

    Parameters
    ----------
    wiring : Wiring
    width : int, optional
        Of a line in characters; any by default.
    """
    return "\n\n".join(_drawn(stave, wiring) for stave in staves(wiring, width))


def _drawn(stave: Stave, wiring: Wiring) -> str:
    """Return a stave as text, with a line between its rows."""
    longest = max((len(stave.after(wire, wiring.columns)) for wire in stave.wires), default=0)
    page = [[" "] * (stave.right + longest + 3) for _ in range(2 * len(stave.rows))]

    def write(row: int, place: int, text: str) -> None:
        page[2 * stave.rows[row]][place : place + len(text)] = text

    for wire in stave.wires:
        start, end = stave.span(wire)
        write(wire.row, start, WIRE * (end - start))
        before, after = stave.before(wire), stave.after(wire, wiring.columns)
        write(wire.row, stave.left - 1 - len(before), before)
        write(wire.row, end + 1, after)
    for gate in stave.gates:
        centre, rows = stave.centres[gate.column], [stave.rows[row] for row in gate.rows]
        for line in range(2 * min(rows), 2 * max(rows) + 1):
            page[line][centre] = CROSSING if page[line][centre] == WIRE else LINE
    for gate in stave.gates:
        centre, box = stave.centres[gate.column], f"[{gate.label}]"
        left = centre - (len(box) - 1) // 2
        write(gate.row, left, box)
        for row, other in gate.taken:
            # A wire that ends in the box itself needs a mark only if it is the one to tell.
            if row != gate.row:
                write(row, centre, OTHER if other else TAKEN)
            elif other:
                write(row, left - 1, OTHER)
    return "\n".join("".join(line).rstrip() for line in page).rstrip("\n")


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
