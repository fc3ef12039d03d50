"""Layout of tables for the width of the terminal, and legends for their headings."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from mcfsim.checks import printable
from mcfsim.report.tables import Rows, terminal_table

if TYPE_CHECKING:
    from rich.console import Console

# -- legends ----------------------------------------------------------------------------------------------
Legend = Mapping[str, str]

FORMATS: Legend = {
    "p": "significand bits, the implicit one included",
    "emin, emax": "exponents of the smallest normal and of the largest number",
    "max, smallest": "rounded to 6 digits",
    "u": "unit roundoff, the largest relative error of rounding to nearest",
    "-0": "whether the format has a negative zero",
}
INSPECT: Legend = {
    "relative error": "(rounded - number) / |number|, to 6 digits",
    "error in ulp": "the same difference in units in the last place of the number",
    "below, above": "the next values of the format, their codes in parentheses",
    "ulp": "distance between the values there: exact, and in decimal, rounded after 'about'",
    "components": "values of the format, each the rounded remainder of those before it",
    "residual": "number - sum of the components, to 17 digits",
    "-": "there is none",
}
PLAN: Legend = {
    "values": "how an operation on values of the format is carried out",
    "reals": "the same with a real scalar that is no value",
    "native": "in the carrier, and rounded into the format",
    "wide": "in binary64, and rounded into the format",
    "exact": "in binary64, which holds the result, and rounded",
    "sticky": "in binary64 with what it lost, made odd, and rounded",
    "refused": "not at all",
}
COST: Legend = {
    "operands": "whether all are values of the format, or one is a real scalar",
    "way": "how the operation is carried out, before its one rounding",
    "native": "in the carrier",
    "wide": "in binary64",
    "exact": "in binary64, which holds the result; a sign or a rounding alone, in the carrier",
    "sticky": "in binary64 with what it lost, made odd",
    "exact within, sticky within": "the same in the carrier",
    "refused": "not at all",
    "depth": "operations that follow one another on the longest way to a result",
    "live registers": "values that are wanted at once, at the most",
    "random words": "one for each operation that rounds at random; drawn before, by a loop of their own that "
    "is not counted",
    "machine": "operations of the generated line, a comparison counted for what it compares; numbers "
    "taken for their codes are left out",
    "bytes in carriers": "each value as a float32 or float64 number",
    "bytes in codes": "each value in the bits of its format",
}
NETWORK: Legend = {
    "●": "a value is taken",
    "○": "the same as subtrahend, as divisor or as an fma's addend",
    "RN, RU, RD, RZ, RO, SR": "rounding to nearest, up, down, toward zero, to odd, at random",
    "word0 ...": "the random word by which a result is rounded",
}
SIMULATE: Legend = {
    "late": "mean over the last fifth of the recorded steps",
    "lost": "share of the parameters that were to change and did not",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that was asked for and the "
    "change E that came of it: 1 if nothing is lost",
    "v / exact": "median ratio of the stored second moment to that of the same gradients in binary64",
    "one-step error": "||E - exact update|| / ||exact update||",
    "distance to exact": "||parameters - those of the exact run|| / ||those||",
    "minus fp32-master": "difference of the validation losses",
    "-": "not measured",
}
REPLAY: Legend = {
    **{term: text for term, text in SIMULATE.items() if term != "minus fp32-master"},
    "tensor": "those of each strategy whose EDQ is furthest from 1",
}
MEMORY: Legend = {
    "strategy": "those that cannot be had in the low format are left out",
    "parameter ... master": "bytes of each tensor for one parameter",
    "components": "those of expansions after the first, and a compensation",
    "master": "copy of the parameter to which the update is added",
    "saved": "share of the bytes of fp32 master weights",
    "GiB": "of the whole model, in 2^30 bytes, without activations",
    "-": "not stored",
}
AUDIT: Legend = {
    "lost": "share of the weights that were to change and would not: over the run, each step weighted by its "
    "rate",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that is asked for and the "
    "change E that would come of it, in the same mean: 1 if nothing is lost",
    "changed": "share of the parameters' codes, as others read them, that a step changes: a mean over steps",
    "least EDQ, of tensor": "that of the worst tensor, and which it is",
    "kind": "factors of adapters, their magnitudes (DoRA), and gains of norms, by names, shapes and numbers",
    "stays below": "the rate below which steps as long as the rate leave half of a tensor where it is, each "
    "weight one number of the low format: least and largest over tensors, toward zero and away from it",
    "lost at first": "share of the weights that the first update leaves where they are, at the largest rate",
    "cheapest that does": "the cheapest strategy that is enough for the kind; -: none of those tried",
    "rms": "root mean square of the weights",
    "stop": "tensors that stop before the end",
    "stops at": "the step from which to the end EDQ stays below --stopped; beyond: from which on weights are "
    "out of the format's range",
    "decay idle": "share of the weights that weight decay alone does not move at the largest rate",
    "v frozen": "share of numbers that beta2 does not move in the second moment: where it is not 0, v cannot "
    "decay. Of numbers that share a scale: where all decay together, to where the largest of them stays",
    "in the mix": "the cheapest strategy that is enough for the tensor, if this takes less than one for all",
    "enough": "whether EDQ of every tensor reaches --threshold, and v can decay",
    "bytes": "of parameter, gradient, moments and all else that is stored",
}
TRANSFER: Legend = {
    "changed": AUDIT["changed"],
    "mask": "bytes of a step's transfer: a bit for each code, and the codes that changed",
    "indices": "an index for each code that changed, and the code",
    "gaps": "the distance to the one before, in 16 bits, and the code",
    "dense": "all codes",
    "of dense": "the least of these, as a share of dense; nothing is compressed",
}
ASSIGN: Legend = {
    "bytes / parameter": "of parameter, gradient, moments and all else that is stored",
    "EDQ": "normalised effective descent quality <D, E> / <D, D>, of the update D that is asked for and the "
    "change E that would come of it: over the run, each step weighted by its rate; 1 if nothing is lost",
    "lost": "lost share of all that is asked of all tensors: by one tensor, or in all",
    "in budget": "whether all tensors may be stored so",
    "-": "some tensor cannot be stored so, or nothing is asked",
}
VERIFY: Legend = {
    "verified": "by trying every operand, or as many as stand for all",
    "core verified": "every operand of a stated core, the others sampled",
    "no counterexample": "among samples",
    "refuted": "there is a counterexample",
    "vacuous": "no operand meets the hypotheses",
    "holds": "expected, since it is claimed here",
    "fails": "expected, since it is known to be false here",
    "open": "neither is claimed or known here, and either verdict will do",
    "cases, applicable, violations": "operands tried, those that meet the hypotheses, those that fail",
    "M/s": "million cases a second",
    "worst, bound": "the largest constant found before the power of u, and the one that is claimed",
    "at": "where the worst is reached: the operands in parentheses, component by component, and the results",
    "counterexample": "operands and results in the same form, the simplest found that fail",
}
LISTING: Legend = {
    "is": "claimed, or false: stated because it does not hold, and refuted where it can be",
}
ALGORITHMS: Legend = {
    "takes": "operands, tuples in parentheses; tuples of variable length are shown with two",
}

#: The layout of tables, in words for the help.
LAYOUT = (
    "Tables are laid out for the width of the terminal, or COLUMNS if that is set: a row that is too wide "
    "goes on in the lines below it. To a file, a pipe or a dumb terminal each row is one "
    "line, with all columns."
)


def under(legend: Legend, headings: Iterable[str], cells: Iterable[str]) -> Legend:
    """Return the entries of a legend that explain headings or cells of the table."""
    words = " ".join(headings)
    texts = {part for cell in cells for part in cell.split(", ")}
    return {
        term: text
        for term, text in legend.items()
        if any(part in texts or (part in words and part != "-") for part in re.split(r", | \.\.\. ", term))
    }


def help_text(*legends: Legend) -> str:
    """Return legends as paragraphs for the help of a command."""
    lines = [f"{term}: {text}." for legend in legends for term, text in legend.items()]
    return "\n\n".join([*lines, LAYOUT])


# -- layout -----------------------------------------------------------------------------------------------
Item = TypeVar("Item")
#: Space between two cells, and before a continuation line of a row.
GAP, INDENT = "  ", "    "
RULE = "\u2500"
#: Least width of any layout, and largest width of a legend.
NARROWEST, WIDEST_TEXT = 40, 100


def output_width() -> int | None:
    """Return COLUMNS, or the width of the terminal; None of a file or pipe, or if TERM is dumb."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return max(NARROWEST, int(columns))
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console()
    return None if console.is_dumb_terminal else max(NARROWEST, console.width)


def say(*lines: str, err: bool = False) -> None:
    """Print lines, made safe for a terminal by `printable`; to standard error if `err` is True."""
    for line in lines:
        print(printable(line), file=sys.stderr if err else sys.stdout, flush=True)


def say_text(text: str) -> None:
    """Print a string of several lines, see `say`."""
    say(*text.split("\n"))


def print_rows(rows: Rows, legend: Legend, long: Collection[str] = (), *, numbers: bool = True) -> None:
    """Print rows as a table, followed by a legend if the table is laid out for a width.

    Parameters
    ----------
    rows : sequence of mapping of str to str
        As for `mcfsim.report.tables.markdown_table`.
    legend : mapping of str to str
        The legend; entries for headings and cells of the table are printed.
    long : collection of str, optional
        Headings of text of any length, which a laid-out table prints below its row, on separate lines.
    numbers : bool, optional
        Whether cells are numbers, to be right-aligned.
    """
    rows, width = _printable(rows), output_width()
    if width is None:
        _print_table(rows, numbers=numbers)
        return
    there = [heading for heading in rows[0] if heading not in long or any(row[heading] for row in rows)]
    shown = _only(rows, there)
    below = [heading for heading in there if heading in long]
    if not below and len(_lines(shown, below, width)) > 1 and _fits(shown, width, numbers=numbers):
        _print_table(shown, numbers=numbers)  # it fits if headings take several lines
    else:
        _print_lines(stacked(shown, width, below))
    print_legend(under(legend, there, _cells(rows)), width)


def print_columns(rows: Rows, legend: Legend) -> None:
    """Print rows whose columns are to be compared, with as many columns side by side as fit.

    A column that is too wide even alone is printed as labels and text, with text below its label if needed.
    """
    rows, width = _printable(rows), output_width()
    label, *names = rows[0]
    while names:
        counts = range(len(names), 0, -1)
        fit = (n for n in counts if width is None or _fits(_only(rows, [label, *names[:n]]), width))
        count = next(fit, 0)
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
    """Print an empty line, then the terms of a legend and their meanings."""
    if legend:
        print()
    for term, text in legend.items():
        for line in _wrapped(f"{term}: {text}", min(width or WIDEST_TEXT, WIDEST_TEXT), "", GAP):
            print(line)


def stacked(rows: Rows, width: int, long: Collection[str] = ()) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table with several lines per row; each with whether it is a heading."""
    lines = _lines(rows, long, width)
    widths = _widths(rows)
    numbers = {heading for heading in rows[0] if any(re.match(r"[-+]?\d", row[heading]) for row in rows)}
    numbers.discard(lines[0][0])

    def text(row: Mapping[str, str], line: list[str]) -> str:
        cells = [f"{row[heading]:{'>' if heading in numbers else '<'}{widths[heading]}}" for heading in line]
        return (INDENT * (line is not lines[0]) + GAP.join(cells)).rstrip()

    headings = {heading: heading for heading in rows[0]}
    for line in lines:
        yield text(headings, line), True
    yield RULE * max(len(text(row, line)) for row in (headings, *rows) for line in lines), False
    for row in rows:
        for line in lines:
            yield text(row, line), False
        for heading in long:
            if row[heading]:
                for part in _wrapped(f"{heading}: {row[heading]}", width, INDENT, INDENT + GAP):
                    yield part, False


def labelled(rows: Rows, width: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a table of two columns, label and text, for any width."""
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
    """Return text broken at spaces only; longer words stay whole."""
    return textwrap.wrap(
        *(text, width),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first]


def shared_out(sizes: Mapping[Item, int], width: int, gap: int = 0, indent: int = 0) -> list[list[Item]]:
    """Return items in lines: as few lines as a width allows, and each as short as possible.

    Parameters
    ----------
    sizes : mapping of item to int
        The width of each item, in order.
    width : int
        The width of a line.
    gap, indent : int, optional
        Space between two items of a line, and at the start of each line after the first.
    """

    def filled(width: int) -> list[list[Item]]:
        lines: list[list[Item]] = []
        room = 0
        for item, size in sizes.items():
            if not lines or gap + size > room:
                lines.append([])
                room = width + gap - (indent if len(lines) > 1 else 0)
            lines[-1].append(item)
            room -= gap + size
        return lines

    best = filled(width)
    for narrower in range(width - 1, 0, -1):
        lines = filled(narrower)
        if len(lines) > len(best):
            break
        best = lines
    return best


def _lines(rows: Rows, long: Collection[str], width: int) -> list[list[str]]:
    """Return the headings of each line, without those of `long`."""
    widths = {heading: size for heading, size in _widths(rows).items() if heading not in long}
    return shared_out(widths, width, len(GAP), len(INDENT))


def _widths(rows: Rows) -> dict[str, int]:
    return {heading: max(len(heading), *(len(row[heading]) for row in rows)) for heading in rows[0]}


def _cells(rows: Rows) -> set[str]:
    return {text for row in rows for text in row.values()}


def _printable(rows: Rows) -> Rows:
    return [{printable(heading): printable(text) for heading, text in row.items()} for row in rows]


def _fits(rows: Rows, width: int, *, numbers: bool = False) -> bool:
    return _wide_console().measure(terminal_table(rows, breakable=not numbers)).maximum <= width


def _only(rows: Rows, headings: Iterable[str]) -> Rows:
    return [{heading: row[heading] for heading in headings} for row in rows]


def _wide_console() -> Console:
    from rich.console import Console

    # Without a height, a dumb terminal would be 80 wide.
    return Console(width=1_000_000, height=25, highlight=False)


def _print_table(rows: Rows, *, numbers: bool) -> None:
    _wide_console().print(terminal_table(rows, breakable=not numbers))


def _print_lines(lines: Iterable[tuple[str, bool]]) -> None:
    from rich.text import Text

    console = _wide_console()
    for line, heading in lines:
        console.print(Text(line, style="bold" if heading else ""), soft_wrap=True)
