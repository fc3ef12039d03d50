"""Tables of inspections, memory, certificates and losses of runs, and their printed forms."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from mcfsim.formats import Format, digits
from mcfsim.report.inspect import LENGTHS, Inspection, Neighbour
from mcfsim.rounding import Rounding
from mcfsim.training.record import Run

if TYPE_CHECKING:
    from rich.table import Table

    from mcfsim.models.memory import Model
    from mcfsim.theorems.certificate import Certificate
    from mcfsim.theorems.statement import Theorem


Rows = Sequence[Mapping[str, str]]

#: What a cell of numbers begins with, or is.
_NUMBER = re.compile(r"[-+(`*~<>]*[.\d]|(-|yes|no|inf|NaN)$")
#: Characters of the longest cell in a column of text whose cells are made equally long.
_PADDED = 50
#: Most digits of a decimal that is printed as exact.
SHOWN_DIGITS = 12


def markdown_table(rows: Rows) -> str:
    """Return rows as a GitHub table: text left-aligned, numbers right-aligned, and long text not padded.

    Parameters
    ----------
    rows : sequence of mapping of str to str
        Cells by heading; all rows have the same headings in the same order.

    Raises
    ------
    ValueError
        If there are no rows, or their headings differ.

    Examples
    --------
    >>> print(markdown_table([{"format": "bfloat16", "p": "8"}]))
    | format   |   p |
    | :------- | --: |
    | bfloat16 |   8 |
    """
    headings = _headings(rows)
    lines = [[text.replace("|", r"\|") for text in line] for line in (headings, *_cells(rows))]
    columns = []
    for place, (heading, *cells) in enumerate(zip(*lines, strict=True)):
        width = max(3, *map(len, (heading, *cells)))
        if place and all(_NUMBER.match(cell) for cell in cells if cell):
            columns.append([text.rjust(width) for text in (heading, "-" * (width - 1) + ":", *cells)])
        else:
            width = width if width <= _PADDED else 0
            columns.append([text.ljust(width) for text in (heading, ":" + "-" * max(2, width - 1), *cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def terminal_table(rows: Rows, *, breakable: bool = False) -> Table:
    """Return rows as a table for `rich` to print.

    Parameters
    ----------
    rows : sequence of mapping of str to str
        As for `markdown_table`.
    breakable : bool, optional
        Whether cells may be broken into lines where the table is wider than the terminal. Otherwise cells
        are unbroken numbers, right-aligned, in columns as narrow as they and the words of the heading allow.

    Raises
    ------
    ValueError
        If there are no rows, or their headings differ.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    cells = _cells(rows)
    for index, heading in enumerate(_headings(rows)):
        longest = max(map(len, [*heading.split(), *(line[index] for line in cells)]))
        table.add_column(
            Text(heading),
            justify="left" if index == 0 or breakable else "right",
            overflow="fold",
            width=None if breakable and index else longest,
        )
    for line in cells:
        table.add_row(*map(Text, line))
    return table


def inspection_table(number: str, inspections: Sequence[Inspection]) -> list[dict[str, str]]:
    """Return one row of strings per property, with one column per format.

    Parameters
    ----------
    number : str
        The number as it was given; heading of the first column.
    inspections : sequence of Inspection
        Inspections of the number in several formats.
    """
    columns = {str(item.format): _properties(item) for item in inspections}
    labels = next(iter(columns.values()), {})
    return [{number: label, **{name: texts[label] for name, texts in columns.items()}} for label in labels]


def _properties(item: Inspection) -> dict[str, str]:
    """Return the properties of an inspection as strings by label; "-" marks those that do not exist."""
    fmt = item.format
    beyond = ""
    if item.beyond_maximum:
        end = f"beyond the maximum {decimal_text(float(fmt.max))}"
        if item.exact and item.exact < 0:
            end = f"below the least value {decimal_text(float(fmt.lowest))}"
        beyond = f" (the number is {end})"
    texts = {
        "rounded": decimal_text(item.rounded),
        "hex float": hexadecimal_text(item.rounded),
        "kind": item.kind + beyond,
        "relative error": _signed(item.relative_error),
        "error in ulp": _signed(item.ulp_error),
        "sign | exponent | fraction": "no code" if item.bits is None else " | ".join(item.bits),
        "code": "no code" if item.code is None else code_text(item.code, fmt),
        "below": _neighbour(item.below, fmt),
        "above": _neighbour(item.above, fmt),
        "ulp": "-" if item.ulp is None else power_text(item.ulp),
    }
    for length in LENGTHS:
        texts |= {f"{length} components": "-", f"residual of {length}": "-"}
    for expansion in item.expansions:
        texts[f"{len(expansion)} components"] = ", ".join(map(decimal_text, expansion))
        texts[f"residual of {len(expansion)}"] = digits(item.residual(expansion), 17)
    return texts


def plan_table(fmt: Format, rounding: Rounding) -> list[dict[str, str]]:
    """Return one row of strings per operation: its implementation, and why that is exact.

    Raises
    ------
    UnsupportedFormatError
        If float64 does not hold the format.
    """
    from mcfsim.kernels.carriers import carrier_of
    from mcfsim.kernels.operation_plan import plan

    found = plan(fmt, rounding, carrier_of(fmt))
    return [
        {"format": str(fmt), "operation": name, "values": way, "reals": found.reals[name].way, "why": why}
        for name, (way, why) in found.values.items()
    ]


def memory_table(
    models: Sequence[Model], low: Format | str, strategies: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return one row of strings per strategy: bytes per tensor and model, and the saving.

    Parameters
    ----------
    models : sequence of Model
        The models, each with its number of parameters.
    low : Format or str
        The strategies' low format.
    strategies : sequence of str, optional
        Names of the strategies; by default all that the format allows.

    Raises
    ------
    ValueError
        If a name or the format is unknown, or a named strategy is not possible in the format.
    """
    from mcfsim.models.memory import REFERENCE, footprint, footprints
    from mcfsim.optim.strategies import strategy

    reference = footprint(strategy(REFERENCE, low))
    return [
        {
            "strategy": name,
            **{label: f"{float(size):g}" if size else "-" for label, size in vars(stored).items()},
            "bytes / parameter": f"{float(stored.total):g}",
            f"saved against {REFERENCE}": f"{float(stored.saving(reference)):.1%}",
            **{f"{item.name}, GiB": f"{float(stored.total * item.size / 2**30):.2f}" for item in models},
        }
        for name, stored in footprints(low, strategies).items()
    ]


def certificate_table(certificates: Sequence[Certificate]) -> list[dict[str, str]]:
    """Return one row of strings per certificate: verdict, cases, the worst constant and its operands."""
    return [
        {
            "theorem": item.theorem,
            "format": item.format,
            "rounding": item.rounding,
            "verdict": str(item.verdict) + ("" if item.as_expected else ", unexpected"),
            "expected": item.expected,
            "cases": f"{item.tried:,}",
            "applicable": f"{item.applicable:,}",
            "violations": f"{item.violations:,}",
            "M/s": f"{item.rate / 1e6:.1f}",
            "worst": item.worst.decimal if item.worst else "",
            "bound": f"{float(Fraction(item.worst.bound)):.8g}" if item.worst else "",
            "at": str(item.worst.case) if item.worst else "",
            "counterexample": str(item.simplest or item.witnesses[0]) if item.witnesses else "",
        }
        for item in certificates
    ]


def theorem_table(theorems: Iterable[Theorem]) -> list[dict[str, str]]:
    """Return one row of strings per statement: its wording and its source."""
    return [
        {
            "id": item.name,
            "statement": item.statement,
            "is": item.status,
            "source": item.source,
        }
        for item in theorems
    ]


def decimal_text(value: float) -> str:
    """Return a float in decimal, exactly, with as many digits as needed."""
    return str(Decimal(value)).lower() if math.isfinite(value) else str(value)


def hexadecimal_text(value: float) -> str:
    """Return a float in hexadecimal, as C writes it, without trailing zeros."""
    return re.sub(r"\.?0*p", "p", value.hex()) if math.isfinite(value) else str(value)


def power_text(number: Fraction) -> str:
    """Return an integer times a power of two in this form and in decimal, exactly or approximately."""
    odd, exponent = number.numerator, 1 - number.denominator.bit_length()
    twos = (odd & -odd).bit_length() - 1
    odd, exponent = odd >> twos, exponent + twos
    product = f"2^{exponent}" if odd == 1 else f"{odd} * 2^{exponent}"
    decimal = digits(number, SHOWN_DIGITS)
    return (
        f"{product} = {decimal}" if Fraction(decimal) == number else f"{product}, about {digits(number, 6)}"
    )


def code_text(code: int, fmt: Format) -> str:
    """Return a code in hexadecimal, with leading zeros."""
    return f"0x{code:0{-(-fmt.bits // 4)}x}"


def _signed(number: Fraction | None) -> str:
    if number is None:
        return "-"
    return "0" if number == 0 else ("+" if number > 0 else "") + digits(number, 6)


def _neighbour(neighbour: Neighbour | None, fmt: Format) -> str:
    if neighbour is None:
        return "-"
    return f"{decimal_text(neighbour.value)} ({code_text(neighbour.code, fmt)})"


def _headings(rows: Rows) -> list[str]:
    if not rows:
        raise ValueError("a table has at least one row")
    headings = list(rows[0])
    for number, row in enumerate(rows):
        if list(row) != headings:
            raise ValueError(f"row {number} has the headings {list(row)}, but row 0 has {headings}")
    return headings


def _cells(rows: Rows) -> list[list[str]]:
    return [list(row.values()) for row in rows]


# -- losses of runs ---------------------------------------------------------------------------------------
#: The strategy with which losses of the others are compared.
REFERENCE = "fp32-master"

#: Measures shown late in the run, by heading: the series, and its number format.
LATE: Mapping[str, tuple[str, str]] = {
    "lost late": ("lost", ".2%"),
    "EDQ late": ("normalized_edq", ".4f"),
    "v / exact": ("v_ratio", ".4f"),
    "one-step error": ("one_step_error", ".2e"),
    "distance to exact": ("distance", ".2e"),
}
#: The measure that orders tensors.
_QUALITY = "normalized_edq"


def run_table(run: Run) -> list[dict[str, str]]:
    """Return one row of strings per strategy: its memory, its final loss, and its measures late in the run.

    "Late" is the mean over the last fifth of the recorded steps. Measures and losses that no strategy has
    are left out. A measure that a strategy lacks is "-", and NaN is "nan". If a strategy diverged, a column
    gives the step.

    Parameters
    ----------
    run : Run
        A finished simulation or replay.
    """
    losses = {
        name: found["validation_loss"] for name, found in run.results.items() if "validation_loss" in found
    }
    rows = []
    for name in run.series:
        size = run.results[name].get("bytes_per_parameter")
        row = {"strategy": name, "bytes / parameter": "-" if size is None else f"{size:g}"}
        if losses:
            row["validation loss"] = f"{losses[name]:.6g}"
        if REFERENCE in losses:
            row[f"minus {REFERENCE}"] = f"{losses[name] - losses[REFERENCE]:+.3g}"
        row |= _late(run, name)
        if any("diverged_at" in results for results in run.results.values()):
            row["diverged at step"] = f"{run.results[name].get('diverged_at', '-')}"
        rows.append(row)
    return rows


def tensor_table(run: Run, most: int) -> list[dict[str, str]]:
    """Return one row of strings per strategy and tensor, with the worst tensors of each strategy first.

    The worst tensor is the one whose normalised EDQ late in the run is furthest from 1. Tensors whose EDQ is
    NaN, such as those without gradients, come last.

    Parameters
    ----------
    run : Run
        A finished simulation or replay.
    most : int
        Largest number of tensors of each strategy.

    Returns
    -------
    list of dict
        Empty if the run has a single tensor, whose measures are the totals.
    """
    rows = []
    for name, series in run.series.items():
        tensors = [key.partition("/")[2] for key in series if key.startswith(f"{_QUALITY}/")]
        off = {tensor: abs(run.late(name, f"{_QUALITY}/{tensor}") - 1) for tensor in tensors}
        worst = sorted(tensors, key=lambda tensor: (math.isnan(off[tensor]), -off[tensor]))
        for tensor in worst[:most]:
            row = {"strategy": name, "tensor": tensor if tensor.isprintable() else ascii(tensor)}
            rows.append(row | _late(run, name, f"/{tensor}"))
    return rows


def _late(run: Run, name: str, of: str = "") -> dict[str, str]:
    """Return a strategy's measures late in the run, in total or of a tensor: those that any strategy has."""
    found = {}
    for heading, (measure, form) in LATE.items():
        if any(measure + of in series for series in run.series.values()):
            number = run.late(name, measure + of) if measure + of in run.series[name] else None
            found[heading] = "-" if number is None else "nan" if math.isnan(number) else format(number, form)
    return found
