"""A program for people: its costs as tables, and its network of operations as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mcfsim.compile.llvm_source import source
from mcfsim.compile.lowering import Lowered, lower, way_of
from mcfsim.compile.program import Program, Register
from mcfsim.compile.scalars import ScalarEncoding, encoding
from mcfsim.compile.triton_source import kernel_source
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.machine import Type
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.kernels.operation_plan import SELECTING
from mcfsim.report.algorithms import RecordedAlgorithm
from mcfsim.report.plotting import COLOURS, subplots
from mcfsim.report.tables import Rows
from mcfsim.report.wiring import SIDES, Gate, Stave, Wiring, staves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TYPES = {
    Type.F32: "binary32",
    Type.F64: "binary64",
    Type.I32: "32-bit integer",
    Type.I64: "64-bit integer",
    Type.TRUTH: "truth value",
}
#: Verbs that take no processor operation: inputs, constants, and numbers reinterpreted as codes or back.
_NONE = ("input", "constant", "bits", "number")


def generated_source(recorded: RecordedAlgorithm) -> str:
    """Return the source of the loop that LLVM compiles, which need not be installed.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return source(lower(recorded.program, _entering(recorded)), _about(recorded))


def generated_kernel(recorded: RecordedAlgorithm) -> str:
    """Return the source of the kernel that Triton compiles for a GPU; neither need be present.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    return kernel_source(lower(recorded.program, _entering(recorded), clean=False), _about(recorded))


def _about(recorded: RecordedAlgorithm) -> str:
    return f"{recorded.program.name}, {len(recorded.program.steps)} operations."


def operation_table(recorded: RecordedAlgorithm) -> Rows:
    """Return a row for each kind of operation in each format: count, implementation, and its reason."""
    program, made = recorded.program, {step.result: step for step in recorded.program.steps}
    ways: dict[Any, set[ScalarEncoding]] = {step: set() for step in program.steps}
    for use, way in zip(program.uses, _entering(recorded), strict=True):
        ways[use.step].add(way)
    counted: Counter[tuple[str, ...]] = Counter()
    for step in program.steps:
        chosen, why = way_of(step, ways[step], made)
        taken = "a scalar" if ways[step] else "values"
        counted[step.operation, str(step.result.format), taken, chosen, why] += 1
    return [
        {"operation": name, "format": fmt, "operands": of, "how many": f"{many}", "way": way, "why": why}
        for (name, fmt, of, way, why), many in counted.items()
    ]


def summary_table(recorded: RecordedAlgorithm) -> Rows:
    """Return a row for each measure of a program's size."""
    program = recorded.program
    numbers = {
        "operations": len(program.steps),
        "of these changes of sign": sum(step.operation in ("neg", "abs", "sign") for step in program.steps),
        "depth": program.depth(),
        "live registers": program.registers(),
        **({"random words": len(program.words)} if program.words else {}),
    }
    return [{"program": label, "an element": f"{number}"} for label, number in numbers.items()]


def machine_table(recorded: RecordedAlgorithm) -> Rows:
    """Return a row for each machine type: its number of operations per element.

    Raises
    ------
    UnsupportedFormatError
        If an operation has no exact path in binary64.
    """
    lowered = lower(recorded.program, _entering(recorded))
    counted = machine_operations(lowered)
    rows = {_TYPES[kind]: counted[kind] for kind in Type if counted[kind]}
    rows["all"] = sum(rows.values())
    return [{"machine": label, "operations": f"{number}"} for label, number in rows.items()]


def machine_operations(lowered: Lowered) -> Counter[Type]:
    """Return the number of operations of each type; a comparison counts for the type of its operands."""
    counted: Counter[Type] = Counter()
    for value in lowered.line.needed(lowered.results):
        if value.verb not in _NONE:
            compares = value.type is Type.TRUTH and value.operands
            counted[value.operands[0].type if compares else value.type] += 1
    return counted


def memory_table(recorded: RecordedAlgorithm) -> Rows:
    """Return a row for reads and one for writes: bytes per element, in carriers and in codes."""
    program = recorded.program
    results = {
        label: x
        for label, x in zip(recorded.results, program.outputs(), strict=True)
        if isinstance(x, Register)
    }
    taken = {x for step in program.steps for x in step.registers} | set(results.values())
    parts: Mapping[str, Sequence[Register]] = {
        "read": [x for x in program.inputs if x in taken],
        "written": [x for label, x in results.items() if label != "update"],
        # Used only to observe a step.
        "written, the update": [x for label, x in results.items() if label == "update"],
    }
    rows = {label: [x.format for x in part] for label, part in parts.items() if part}
    rows["all"] = [fmt for formats in rows.values() for fmt in formats]
    return [
        {
            "memory": label,
            "values": f"{len(formats)}",
            "bytes in carriers": f"{sum(carrier_of(fmt).itemsize for fmt in formats)}",
            "bytes in codes": f"{sum(fmt.bits for fmt in formats) / 8:g}",
        }
        for label, formats in rows.items()
    ]


def refused(recorded: RecordedAlgorithm) -> str | None:
    """Return the reason why a program cannot be lowered to a line, or None if it can."""
    try:
        lower(recorded.program, _entering(recorded))
    except (UnsupportedFormatError, TypeError) as problem:
        return str(problem)
    return None


def _entering(recorded: RecordedAlgorithm) -> tuple[ScalarEncoding, ...]:
    """Return how each real scalar enters under the exact policy."""
    program: Program = recorded.program
    return tuple(
        encoding(use, number, "exact")[0]
        for use, number in zip(program.uses, program.reals(recorded.numbers), strict=True)
    )


#: Width of a stave in characters; inches per character and per row; rows between two staves.
WIDTH, CHARACTER, ROW, BETWEEN = 140, 0.094, 0.36, 1.7
#: Half the height of a box, in rows.
_HALF = 0.36
#: Kinds of operations: the fill of their boxes, and the operations.
_KINDS = {
    "sum, difference": ("#CFE6F5", ("add", "sub")),
    "product, fma": ("#FBE3B5", ("mul", "fma")),
    "quotient, root": ("#F6D3C2", ("div", "sqrt")),
    "sign, rounding": ("#E9E9E9", ("neg", "abs", "sign", "round")),
    "choice": ("#D5EBD5", SELECTING),
    "function": ("#E6DCF0", FUNCTIONS),
}
#: Meaning of the mark of an operation's other operand.
_OTHER = {"sub": "subtrahend", "div": "divisor", "fma": "addend of fma"}
#: Colours of the wires, by format; all are black if there is one format.
_WIRES = ("black", "blue", "vermilion", "green", "purple")


@contextmanager
def network_figure(wiring: Wiring, title: str) -> Iterator[Figure]:
    """Draw a network, in several staves below each other if it is long.

    Parameters
    ----------
    wiring : Wiring
    title : str
        Title above the drawing.

    Yields
    ------
    figure : matplotlib Figure
    """
    parts = list(staves(wiring, WIDTH))
    rows = sum(len(part.rows) for part in parts) + BETWEEN * (len(parts) - 1)
    ends = max(len(wire.result) for wire in wiring.wires) + 2
    across = max((part.right for part in parts), default=0) + ends
    formats = list(dict.fromkeys(wire.format for wire in wiring.wires))
    colours = {str(fmt): COLOURS[_WIRES[place % len(_WIRES)]] for place, fmt in enumerate(formats)}
    # The legend needs some width, and a row above and below the drawing.
    width = max(across * CHARACTER, 5.5)
    with subplots(width=width, height=(rows + 2) * ROW) as (figure, axes):
        page: Axes = axes[0, 0]
        page.set_axis_off()
        page.set_xlim(0, max(across, width / CHARACTER))
        page.set_ylim(rows - 0.2, -1.2)
        page.set_title(title)
        top = 0.0
        for part in parts:
            _draw(page, part, top, colours)
            top += len(part.rows) + BETWEEN
        _explain(page, wiring, colours)
        yield figure


def _draw(page: Axes, stave: Stave, top: float, colours: dict[str, str]) -> None:
    height = {row: top + place for row, place in stave.rows.items()}
    _draw_depths(page, stave, top)
    for wire in stave.wires:
        start, end = stave.span(wire)
        y, colour = height[wire.row], colours[str(wire.format)]
        page.plot([start, end], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt", zorder=2)
        for x, text, side, outer in (
            (start - 0.6, stave.before(wire), "right", wire.start < 0 and stave.first == 0),
            (end + 0.6, stave.after(wire), "left", stave.final),
        ):
            weight = "bold" if outer else "normal"
            page.text(x, y, text, ha=side, va="center", fontsize=8.5, color=colour, fontweight=weight)
    for gate in stave.gates:
        _draw_gate(page, gate, stave.centres[gate.column], height)


def _draw_depths(page: Axes, stave: Stave, top: float) -> None:
    """Shade every other depth, and write each depth's number above it."""
    depths: dict[int, list[int]] = {}
    for gate in stave.gates:
        depths.setdefault(gate.depth, []).append(gate.column)
    edges = {depth: _reach(stave, min(columns), max(columns)) for depth, columns in depths.items()}
    for depth, (left, right) in edges.items():
        if depth % 2 == 0:
            shares = _share(page, top - 0.6, top + len(stave.rows) - 0.4)
            page.axvspan(left, right, *shares, color="#F4F4F4", lw=0)
        page.text(
            (left + right) / 2, top - 0.62, f"{depth}", ha="center", va="bottom", fontsize=7, color="#8C8C8C"
        )


def _reach(stave: Stave, first: int, last: int) -> tuple[float, float]:
    """Return where a range of columns begins and ends: halfway to the adjacent columns."""
    before, behind = stave.centres.get(first - 1), stave.centres.get(last + 1)
    left = stave.left if before is None else (before + stave.centres[first]) / 2
    return left, stave.right if behind is None else (stave.centres[last] + behind) / 2


def _share(page: Axes, upper: float, lower: float) -> tuple[float, float]:
    """Return two heights as shares of the axes' height."""
    bottom, top = page.get_ylim()
    return (lower - bottom) / (top - bottom), (upper - bottom) / (top - bottom)


def _draw_gate(page: Axes, gate: Gate, centre: float, height: dict[int, float]) -> None:
    from matplotlib.patches import FancyBboxPatch

    y, black = height[gate.row], COLOURS["black"]
    ends = [height[row] for row in gate.rows]
    page.plot([centre, centre], [min(ends), max(ends)], color=black, linewidth=1.2, zorder=2.5)
    half = (len(gate.label) + SIDES) / 2
    box = FancyBboxPatch(
        (centre - half, y - _HALF),
        *(2 * half, 2 * _HALF),
        boxstyle="round,pad=0,rounding_size=0.35",
        mutation_aspect=CHARACTER / ROW,
        facecolor=_KINDS[_kind(gate)][0],
        edgecolor=black,
        linewidth=0.9,
        zorder=3,
    )
    page.add_patch(box)
    size = 11 if len(gate.label) == 1 else 8
    page.text(centre, y, gate.label, ha="center", va="center_baseline", fontsize=size, zorder=4)
    for row, other in gate.taken:
        inside = row == gate.row
        if not inside or other:
            x = centre - half - 0.45 if inside else centre
            page.plot([x], [height[row]], zorder=5, **_mark(other=other))


def _mark(*, other: bool) -> dict[str, Any]:
    """Return the style of a mark where a gate takes a value."""
    size, face = (5.5, "white") if other else (4.2, COLOURS["black"])
    edge = {"markeredgecolor": COLOURS["black"], "markeredgewidth": 1.2, "linestyle": "none"}
    return {"marker": "o", "markersize": size, "markerfacecolor": face, **edge}


def _kind(gate: Gate) -> str:
    return next(kind for kind, (_, operations) in _KINDS.items() if gate.step.operation in operations)


def _explain(page: Axes, wiring: Wiring, colours: dict[str, str]) -> None:
    """Write a legend below the drawing for the colours and marks that it has."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    there = {_kind(gate) for gate in wiring.gates}
    marked = {gate.step.operation for gate in wiring.gates if any(other for _, other in gate.taken)}
    handles: list[Any] = [
        Patch(facecolor=fill, edgecolor=COLOURS["black"], linewidth=0.9, label=kind)
        for kind, (fill, _) in _KINDS.items()
        if kind in there
    ]
    if marked:
        label = ", ".join(text for operation, text in _OTHER.items() if operation in marked)
        handles.append(Line2D([], [], label=label, **_mark(other=True)))
    if len(colours) > 1:
        handles += [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
    page.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        ncols=len(handles),
        fontsize=8,
        handlelength=1.4,
        columnspacing=1.2,
        borderaxespad=0,
    )
