"""Tables laid out for the width there is; for a file or pipe one line a row, however long.

A table that is too wide for a terminal has several lines a row: its cells share as many as they need, the
first one flush left and the others indented, and the headings do the same. No number is broken.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping

from mcfsim.checks.printable import printable
from mcfsim.report.legends import Legend, under
from mcfsim.report.tables import Rows, terminal_table

#: Between two cells, and before a line that goes on with a row.
GAP, INDENT = "  ", "    "
RULE = "\u2500"
#: Nothing is laid out for less than this, and no legend for more than that.
NARROWEST, WIDEST_TEXT = 40, 100


def output_width() -> int | None:
    """Return the width of standard output; None if it is a file or pipe, and COLUMNS is not set."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    from rich.console import Console

    return max(NARROWEST, Console().width)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, made fit for a terminal by `printable`; to standard error, if that is asked for."""
    for line in lines:
        print(printable(line), file=sys.stderr if err else sys.stdout, flush=True)


def say_text(text: str) -> None:
    """Print a text of several lines, see `say`."""
    say(*text.split("\n"))


def print_rows(rows: Rows, legend: Legend, long: Collection[str] = (), *, numbers: bool = True) -> None:
    """Print rows as a table, and below it what its headings mean if it was laid out for a width.

    Parameters
    ----------
    rows : sequence of mapping of str to str
        As for `mcfsim.report.tables.markdown_table`.
    legend : mapping of str to str
        Of which headings that are there are explained.
    long : collection of str, optional
        Headings of text of any length: a table that is laid out has it below the row, on lines of its own.
    numbers : bool, optional
        Whether cells are numbers, and go to the right.
    """
    rows, width = _printable(rows), output_width()
    if width is None:
        _print_table(rows, numbers=numbers)
        return
    there = [heading for heading in rows[0] if heading not in long or any(row[heading] for row in rows)]
    shown = _only(rows, there)
    below = [heading for heading in there if heading in long]
    short = [heading for heading in there if heading not in long]
    if not below and len(_shared_out(shown, short, width)) > 1 and _fits(shown, width, numbers=numbers):
        _print_table(shown, numbers=numbers)  # with headings of several lines it fits
    else:
        _print_lines(stacked(shown, width, below))
    print_legend(under(legend, there, _cells(rows)), width)


def print_columns(rows: Rows, legend: Legend) -> None:
    """Print rows whose columns are things to compare: as many side by side as there is room for.

    One that is too wide even alone is printed as labels and text, the text below its label where it must.
    """
    rows, width = _printable(rows), output_width()
    label, *names = rows[0]
    while names:
        count = len(names)
        while count and not (width is None or _fits(_only(rows, [label, *names[:count]]), width)):
            count -= 1
        part = _only(rows, [label, *names[: count or 1]])
        if count:
            _print_table(part, numbers=False)
        else:
            _print_lines(labelled(part, width or WIDEST_TEXT))
        names = names[count or 1 :]
        if names:
            print()
    if width is not None:
        print_legend(under(legend, [row[label] for row in rows], _cells(rows)), width)


def print_legend(legend: Legend, width: int | None = None) -> None:
    """Print terms and what they mean, after an empty line."""
    if legend:
        print()
    for term, text in legend.items():
        for line in _wrapped(f"{term}: {text}", min(width or WIDEST_TEXT, WIDEST_TEXT), "", GAP):
            print(line)


def stacked(rows: Rows, width: int, long: Collection[str] = ()) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table with several a row, and whether each is of headings."""
    lines = _shared_out(rows, [heading for heading in rows[0] if heading not in long], width)
    widths = _widths(rows)
    numbers = {heading for heading in rows[0] if any(re.match(r"[-+]?\d", row[heading]) for row in rows)}
    numbers.discard(lines[0][0])

    def text(row: Mapping[str, str], line: list[str]) -> str:
        cells = [f"{row[heading]:{'>' if heading in numbers else '<'}{widths[heading]}}" for heading in line]
        return (INDENT * (line is not lines[0]) + GAP.join(cells)).rstrip()

    for line in lines:
        yield text(dict(zip(line, line, strict=True)), line), True
    longest = max(
        len(text(row, line)) for row in [{heading: heading for heading in rows[0]}, *rows] for line in lines
    )
    yield RULE * longest, False
    for row in rows:
        for line in lines:
            yield text(row, line), False
        for heading in long:
            if row[heading]:
                for part in _wrapped(f"{heading}: {row[heading]}", width, INDENT, INDENT + GAP):
                    yield part, False


def labelled(rows: Rows, width: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table of two columns, a label and text, for any width."""
    left, right = rows[0]
    indent = max(len(row[left]) for row in rows) + len(GAP)
    for label, text in [(left, right), *((row[left], row[right]) for row in rows)]:
        if len(label) < indent and indent + max(map(len, text.split()), default=0) <= width:
            lines = _wrapped(text, width - indent, "", "")
            parts = [f"{label:{indent}}{lines[0]}", *(" " * indent + line for line in lines[1:])]
        else:
            parts = [label, *_wrapped(text, width, INDENT, INDENT)]
        for part in parts:
            yield part, label == left
        if label == left:
            yield RULE * min(width, max(indent + len(row[right]) for row in rows)), False


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    """Break text at spaces only: what is longer than a line stays whole."""
    return textwrap.wrap(
        *(text, width),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def _shared_out(rows: Rows, headings: list[str], width: int) -> list[list[str]]:
    """Return which columns share a line: as few lines as the width allows, none longer than it need be."""
    widths = _widths(rows)

    def filled(width: int) -> list[list[str]]:
        lines: list[list[str]] = []
        room = 0
        for heading in headings:
            if len(GAP) + widths[heading] > room:
                lines.append([])
                room = width + len(GAP) - (len(INDENT) if len(lines) > 1 else 0)
            lines[-1].append(heading)
            room -= len(GAP) + widths[heading]
        return lines

    best = filled(width)
    for narrower in range(width, 0, -1):
        lines = filled(narrower)
        if len(lines) > len(best):
            break
        best = lines
    return best


def _widths(rows: Rows) -> dict[str, int]:
    return {heading: max(len(heading), *(len(row[heading]) for row in rows)) for heading in rows[0]}


def _cells(rows: Rows) -> set[str]:
    return {text for row in rows for text in row.values()}


def _printable(rows: Rows) -> Rows:
    return [{printable(heading): printable(text) for heading, text in row.items()} for row in rows]


def _fits(rows: Rows, width: int, *, numbers: bool = False) -> bool:
    from rich.console import Console

    table = terminal_table(rows, breakable=not numbers)
    return Console(width=1_000_000).measure(table).maximum <= width


def _only(rows: Rows, headings: Iterable[str]) -> Rows:
    return [{heading: row[heading] for heading in headings} for row in rows]


def _print_table(rows: Rows, *, numbers: bool) -> None:
    from rich.console import Console

    Console(width=1_000_000, highlight=False).print(terminal_table(rows, breakable=not numbers))


def _print_lines(lines: Iterable[tuple[str, bool]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line, heading in lines:
        console.print(Text(line, style="bold" if heading else ""), soft_wrap=True)
