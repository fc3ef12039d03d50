"""A program as a drawing's skeleton: each value a wire in a row, each operation a gate in a column.

Wires run from left to right, from what makes a value to what takes it last. A gate stands in the row of its
result, and takes its operands along a vertical line. Gates of one depth share a column as far as their
vertical lines leave room for each other; another column of the same depth follows where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcfsim.compile.program import Program, ProgramStep, Register, Scalar
from mcfsim.formats import Format
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
#: What a rounding is written as in the literature.
_ROUNDED = {Mode.UP: "RU", Mode.DOWN: "RD", Mode.TOWARD_ZERO: "RZ", Mode.TO_ODD: "RO", Mode.STOCHASTIC: "SR"}
#: The operand that a drawing must tell from the others, by its place.
_OTHER = {"sub": 1, "div": 1, "fma": 2}
#: How far a result may go for a free row, before it has a new one.
_NEAR = 2


@dataclass(frozen=True)
class Gate:
    """An operation.

    Attributes
    ----------
    step : Step
    label : str
        Its sign, and a real scalar and a random word that it takes.
    depth, column, row : int
    taken : tuple of (int, bool)
        The rows of its operands, and whether each is the subtrahend, divisor or addend.
    """

    step: ProgramStep
    label: str
    depth: int
    column: int
    row: int
    taken: tuple[tuple[int, bool], ...]

    @property
    def rows(self) -> list[int]:
        """The rows that its vertical line leads to, its own among them."""
        return [self.row, *(row for row, _ in self.taken)]


@dataclass(frozen=True)
class Wire:
    """A value.

    Attributes
    ----------
    name : str
        Of its register.
    format : Format
    row : int
    start, end : int
        Columns of the gates that make it and that take it last; -1 for an operand of the text, and the number
        of columns for a result. Operands that nothing takes have no wire.
    result : str
        What the text's result is called, if it is one.
    """

    name: str
    format: Format
    row: int
    start: int
    end: int
    result: str


@dataclass(frozen=True)
class Wiring:
    """All gates and wires, and how many rows and columns they take."""

    name: str
    gates: tuple[Gate, ...]
    wires: tuple[Wire, ...]
    rows: int
    columns: int


class _Row:
    """A row while its number is not settled, and the value that it holds."""

    def __init__(self, value: Register | None) -> None:
        self.value = value


def wired(program: Program, results: tuple[str, ...]) -> Wiring:
    """Lay a program out.

    Parameters
    ----------
    program : Program
    results : tuple of str
        What its results are called.
    """
    depths: dict[Any, int] = {}
    for step in program.steps:
        depths[step.result] = 1 + max((depths.get(x, 0) for x in step.registers), default=0)
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
        registers = step.registers
        for x in registers:
            of[x].value = x if last[x] > place else None
        row = _place(rows, [of[x] for x in registers])
        row.value = step.result
        of[step.result] = row
    number = {row: place for place, row in enumerate(rows)}
    columns = _columns(order, depths, {x: number[row] for x, row in of.items()})
    count = max(columns.values(), default=-1) + 1
    several = len({step.result.format for step in order}) > 1
    labels = {
        step: " ".join(filter(None, (sign_of(step, with_format=several), program.words.get(step.draw))))
        for step in order
    }
    gates = tuple(_gate(step, label, columns, depths, number, of) for step, label in labels.items())
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
    return Wiring(program.name, gates, wires, len(rows), count)


def sign_of(step: ProgramStep, *, with_format: bool = False) -> str:
    """Return what a drawing writes for an operation: its sign, and the real scalars that it takes."""
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
    """Return the row of a result: that of an operand not wanted any more, a free one, or a new one."""
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


def _columns(order: list[ProgramStep], depths: dict[Any, int], row: dict[Any, int]) -> dict[Any, int]:
    """Return the columns of results: by depth, and within one apart where vertical lines would meet."""
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


def _gate(
    step: ProgramStep,
    label: str,
    columns: dict[Any, int],
    depths: dict[Any, int],
    number: dict[_Row, int],
    of: dict[Any, _Row],
) -> Gate:
    other = _OTHER.get(step.operation)
    registers = [(place, x) for place, x in enumerate(step.operands) if isinstance(x, Register)]
    # Beside a scalar the sign says which is which, but for the addend of an fma.
    told = len(registers) > 1
    taken = tuple(dict.fromkeys((number[of[x]], told and place == other) for place, x in registers))
    x = step.result
    return Gate(step, label, depths[x], columns[x], number[of[x]], taken)
