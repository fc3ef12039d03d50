"""Network drawings of programs: the layout of gates and wires, and a drawing in characters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcfsim.compile.program import Program, ProgramStep, Register, Scalar
from mcfsim.formats import Format
from mcfsim.report.terminal import shared_out
from mcfsim.rounding import Mode

_SIGNS = {
    "add": "+",
    "sub": "−",
    "mul": "×",
    "div": "÷",
    "sqrt": "√",
    "neg": "−x",
    "abs": "|x|",
    "sign": "sgn",
}
#: Notation of roundings in the literature.
_ROUNDED = {Mode.UP: "RU", Mode.DOWN: "RD", Mode.TOWARD_ZERO: "RZ", Mode.TO_ODD: "RO", Mode.STOCHASTIC: "SR"}
#: Position of the operand that a drawing must distinguish from the others.
_OTHER = {"sub": 1, "div": 1, "fma": 2}
#: Largest distance of a result from a free row; beyond it, a new row is inserted.
_NEAR = 2


@dataclass(frozen=True)
class Gate:
    """A gate of the drawing: one operation.

    Attributes
    ----------
    step : ProgramStep
    label : str
        The operation's sign, with the real scalars and the random word that it takes.
    depth, column, row : int
    taken : tuple of (int, bool)
        The row of each operand, and whether it is the subtrahend, divisor or addend.
    """

    step: ProgramStep
    label: str
    depth: int
    column: int
    row: int
    taken: tuple[tuple[int, bool], ...]

    @property
    def rows(self) -> list[int]:
        """The rows that the gate's vertical line reaches, including its own."""
        return [self.row, *(row for row, _ in self.taken)]


@dataclass(frozen=True)
class Wire:
    """A wire of the drawing: one value.

    Attributes
    ----------
    name : str
        Name of the value's register.
    format : Format
    row : int
    start, end : int
        Columns of the gate that computes the value and of the last gate that takes it; -1 for an operand of
        the algorithm, and the number of columns for a result. Unused operands have no wire.
    result : str
        Name of the algorithm's result, if the value is one.
    """

    name: str
    format: Format
    row: int
    start: int
    end: int
    result: str


@dataclass(frozen=True)
class Wiring:
    """The layout of a drawing: all gates and wires, and the numbers of rows and columns."""

    name: str
    gates: tuple[Gate, ...]
    wires: tuple[Wire, ...]
    rows: int
    columns: int


class _Row:
    """A row whose number is not yet known, and the value that it holds."""

    def __init__(self, value: Register | None) -> None:
        self.value = value


def wired(program: Program, results: tuple[str, ...]) -> Wiring:
    """Return the layout of a program.

    Parameters
    ----------
    program : Program
    results : tuple of str
        Names of the program's results.
    """
    depths = program.depths()
    order = sorted(program.steps, key=lambda step: depths[step.result])
    called: dict[Any, str] = {}
    for label, x in zip(results, program.outputs(), strict=True):
        if isinstance(x, Register):
            called[x] = f"{called[x]}, {label}" if x in called else label
    last = {x: place for place, step in enumerate(order) for x in step.registers}
    last |= dict.fromkeys(called, len(order))
    of = {x: _Row(x) for x in program.inputs if x in last}
    rows = list(of.values())
    for place, step in enumerate(order):
        for x in step.registers:
            of[x].value = x if last[x] > place else None
        row = _place(rows, [of[x] for x in step.registers])
        row.value = step.result
        of[step.result] = row
    number = {row: place for place, row in enumerate(rows)}
    columns = _columns(order, depths, {x: number[row] for x, row in of.items()})
    count = max(columns.values(), default=-1) + 1
    several = len({step.result.format for step in order}) > 1

    def gate(step: ProgramStep) -> Gate:
        label = " ".join(filter(None, (sign_of(step, with_format=several), program.words.get(step.draw))))
        registers = [(place, x) for place, x in enumerate(step.operands) if isinstance(x, Register)]
        # With a scalar, the label tells the operands apart, except for the addend of an fma.
        other = _OTHER.get(step.operation) if len(registers) > 1 else None
        taken = tuple(dict.fromkeys((number[of[x]], place == other) for place, x in registers))
        x = step.result
        return Gate(step, label, depths[x], columns[x], number[of[x]], taken)

    ends: dict[Any, int] = {}
    for step in order:
        for x in step.registers:
            ends[x] = max(ends.get(x, -1), columns[step.result])
    wires = tuple(
        Wire(
            *(str(x), x.format, number[row], columns.get(x, -1)),
            end=count if x in called else ends.get(x, -1),
            result=called.get(x, ""),
        )
        for x, row in of.items()
    )
    return Wiring(program.name, tuple(map(gate, order)), wires, len(rows), count)


def sign_of(step: ProgramStep, *, with_format: bool = False) -> str:
    """Return the label of an operation in a drawing: its sign, and the real scalars that it takes."""
    if step.operation == "round":
        letters = _ROUNDED.get(step.rounding.mode, "RN")
        return f"{letters} {step.result.format}" if with_format else letters
    given = [x for x in step.operands if not isinstance(x, Register)]
    scalars = [f"{x}" if isinstance(x, Scalar) else f"{float(x):.6g}" for x in given]
    scalars = [text.replace("-", "−", 1) if text.startswith("-") else text for text in scalars]
    if step.operation == "mul" and not scalars and len(set(step.registers)) == 1:
        return "x²"
    before = scalars and step.operation in ("sub", "div") and not isinstance(step.operands[0], Register)
    sign = _SIGNS.get(step.operation, step.operation)
    return " ".join([*scalars, sign] if before else [sign, *scalars])


def _place(rows: list[_Row], taken: list[_Row]) -> _Row:
    """Return the row of a result: that of an operand no longer needed, a free row, or a new one."""
    for row in taken:
        if row.value is None:
            return row
    middle = sum(map(rows.index, taken)) / len(taken) if taken else 0
    free = [(abs(place - middle), place) for place, row in enumerate(rows) if row.value is None]
    if free and min(free)[0] <= _NEAR:
        return rows[min(free)[1]]
    new = _Row(None)
    rows.insert(max(map(rows.index, taken), default=len(rows) - 1) + 1, new)
    return new


def _columns(order: list[ProgramStep], depths: dict[Register, int], row: dict[Any, int]) -> dict[Any, int]:
    """Return the columns of results, by depth; where vertical lines would meet, a depth takes several."""
    levels: dict[Any, tuple[int, int]] = {}
    spans: dict[int, list[tuple[int, int, int]]] = {}
    for step in order:
        met = [row[x] for x in (*step.registers, step.result)]
        low, high, there = min(met), max(met), spans.setdefault(depths[step.result], [])
        level = 1 + max((at for at, a, b in there if a <= high and low <= b), default=-1)
        there.append((level, low, high))
        levels[step.result] = depths[step.result], level
    numbers = {pair: place for place, pair in enumerate(sorted(set(levels.values())))}
    return {x: numbers[pair] for x, pair in levels.items()}


# -- in characters ----------------------------------------------------------------------------------------
WIRE, LINE, CROSSING = "─", "│", "┼"
#: Marks where an operation takes a value; the second mark is for a subtrahend, divisor or fma addend.
TAKEN, OTHER = "●", "○"


def network_text(wiring: Wiring, width: int | None = None) -> str:
    """Return a drawing in characters, split into parts below each other if it exceeds a width.

    Parameters
    ----------
    wiring : Wiring
    width : int, optional
        Largest length of a line in characters; unlimited by default.
    """
    return "\n\n".join(map(_drawn, staves(wiring, width)))


def _drawn(stave: Stave) -> str:
    """Return a stave in characters, with a line between its rows."""
    longest = max((len(stave.after(wire)) for wire in stave.wires), default=0)
    page = [[" "] * (stave.right + longest + 3) for _ in range(2 * len(stave.rows))]

    def write(row: int, place: int, text: str) -> None:
        page[2 * stave.rows[row]][place : place + len(text)] = text

    for wire in stave.wires:
        start, end = stave.span(wire)
        write(wire.row, start, WIRE * (end - start))
        before, after = stave.before(wire), stave.after(wire)
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
            # A wire that ends in the box needs a mark only if it is the operand to distinguish.
            if row != gate.row:
                write(row, centre, OTHER if other else TAKEN)
            elif other:
                write(row, left - 1, OTHER)
    return "\n".join("".join(line).rstrip() for line in page).rstrip("\n")


#: Characters around a gate's label: its sides, and room for a mark and a piece of wire.
SIDES, ROOM = 2, 3


@dataclass(frozen=True)
class Stave:
    """A stave: consecutive columns of a drawing, measured in characters.

    Attributes
    ----------
    gates : tuple of Gate
    wires : tuple of Wire
        The wires that are alive in the stave.
    first, last : int
        First and last column.
    final : bool
        Whether the drawing ends with it.
    rows : dict of int to int
        Position of each row in use, from the top.
    centres : dict of int to int
        Position of the middle of each column.
    left, right : int
        Where wires from the previous stave begin, and where wires to the next stave end.
    """

    gates: tuple[Gate, ...]
    wires: tuple[Wire, ...]
    first: int
    last: int
    final: bool
    rows: dict[int, int]
    centres: dict[int, int]
    left: int
    right: int

    def span(self, wire: Wire) -> tuple[int, int]:
        """Return the positions where a wire begins and ends in the stave."""
        start = self.left if wire.start < self.first else self.centres[wire.start]
        end = self.right if wire.end > self.last else self.centres.get(wire.end, self.left)
        return start, end

    def before(self, wire: Wire) -> str:
        """Return the text before a wire: its name if it comes from the left, else nothing."""
        return wire.name if wire.start < self.first else ""

    def after(self, wire: Wire) -> str:
        """Return the text after a wire: the name of the result, or the wire's name if it goes on."""
        if wire.end <= self.last:
            return ""
        return wire.result if self.final else wire.name


def staves(wiring: Wiring, width: int | None = None) -> Iterator[Stave]:
    """Yield the staves of a drawing: one, or as many as a width in characters requires."""
    widths = [0] * wiring.columns
    for gate in wiring.gates:
        widths[gate.column] = max(widths[gate.column], len(gate.label) + SIDES + ROOM)
    names = max((len(wire.name) for wire in wiring.wires), default=0) + 1
    results = max((max(len(wire.result), len(wire.name)) for wire in wiring.wires), default=0) + 2
    room = sum(widths) if width is None else width - names - results - 1
    for columns in shared_out(dict(enumerate(widths)), room):
        first, last = columns[0], columns[-1]
        alive = tuple(x for x in wiring.wires if x.start <= last and x.end >= first)
        left = place = max((len(wire.name) for wire in alive if wire.start < first), default=0) + 1
        centres = {}
        for column in columns:
            centres[column] = place + (widths[column] + ROOM - 1) // 2
            place += widths[column]
        gates = tuple(gate for gate in wiring.gates if gate.column in centres)
        rows = {row: number for number, row in enumerate(sorted({wire.row for wire in alive}))}
        final = last == wiring.columns - 1
        yield Stave(gates, alive, first, last, final, rows, centres, left, place + 1)
