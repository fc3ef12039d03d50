"""A program's network of operations in characters: wires from left to right, a box for each operation."""

from __future__ import annotations

from mcfsim.report.staves import Stave, staves
from mcfsim.report.wiring import Wiring

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
