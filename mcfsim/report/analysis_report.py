"""An error analysis as figures and as one HTML page, which shades each expression by its share."""

from __future__ import annotations

import base64
import html
import io
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.analysis.advice import Advice
from mcfsim.analysis.blame import BlameRow
from mcfsim.analysis.curves import ALONG, Curve
from mcfsim.analysis.error_report import QUANTILES, BoundRow, Report, error_text
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.worst_inputs import WorstInput
from mcfsim.report.plotting import ARRIVING, COLOURS, filled_page, page_file, subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Expressions that are drawn, and characters of each.
_ROWS, _CHARACTERS = 8, 46


@contextmanager
def report_figure(report: Report) -> Iterator[Figure]:
    """Draw the distribution of errors, and the share of each expression.

    Parameters
    ----------
    report : Report

    Yields
    ------
    figure : matplotlib Figure
    """
    rows = [row for row in report.blame() if 0 < row.rms < np.inf][:_ROWS]
    with subplots(1, 2, width=11.0, height=max(2.8, 0.9 + 0.34 * len(rows))) as (figure, axes):
        _draw_distribution(axes[0][0], report)
        _draw_blame(axes[0][1], rows)
        name, inputs = report.rounded.program.name, report.rounded.inputs.size
        sizes = error_text(report).partition(";")[0]
        figure.suptitle(f"{name} in {report.format}: error {sizes}; {inputs:,} inputs", x=0.01, ha="left")
        yield figure


def _draw_distribution(axes: Any, report: Report) -> None:
    relative = report.relative
    errors = relative[np.isfinite(relative)] / report.u
    positive = errors[errors > 0]
    axes.set_title("Relative errors of all inputs")
    axes.set_xlabel("relative error, in units of u")
    axes.set_ylabel("inputs")
    if not positive.size:
        axes.text(0.5, 0.5, "no error at all", ha="center", transform=axes.transAxes)
        return
    least = max(positive.min(), positive.max() * 1e-6)
    edges = np.geomspace(least, positive.max() * (1 + 1e-9), 40) if least < positive.max() else 10
    axes.hist(np.maximum(positive, least), bins=edges, color=COLOURS["sky"])
    axes.set_xscale("log")
    with np.errstate(all="ignore"):
        for name, colour in (("first order", "vermilion"), ("3 sigma", "black")):
            bound = np.median((report.columns[name] / np.abs(report.exact) / report.u)[report.finite])
            if np.isfinite(bound) and bound > 0:
                axes.axvline(bound, color=COLOURS[colour], linestyle="--", label=f"{name}, median bound")
    if axes.get_legend_handles_labels()[0]:  # the bounds of some formats are infinite
        axes.legend(fontsize=8, loc="upper left")


def _draw_blame(axes: Any, rows: list[Any]) -> None:
    names = []
    for row in rows:
        where = row.expression
        text = f"{where.text}  :{where.line}" if isinstance(where, Expression) else str(where)
        names.append(text if len(text) <= _CHARACTERS else f"…{text[-_CHARACTERS + 1 :]}")
    places = np.arange(len(rows))[::-1]
    axes.barh(places, [row.rms for row in rows], color=COLOURS["orange"])
    axes.set_yticks(places, names, fontsize=8, family="monospace", parse_math=False)
    for place, row in zip(places, rows, strict=True):
        if np.isfinite(row.explains):
            axes.annotate(f" {100 * row.explains:.0f} %", (row.rms, place), va="center", fontsize=8)
    axes.margins(x=0.12)
    axes.set_title("Share of each expression, and what part of the error it explains")
    axes.set_xlabel("root mean square share, in units of u")


@contextmanager
def curve_figure(curve: Curve) -> Iterator[Figure]:
    """Draw a curve: median and largest errors, and medians of both bounds.

    Parameters
    ----------
    curve : Curve

    Yields
    ------
    figure : matplotlib Figure
    """
    with subplots(1, 1, width=6.4, height=3.8) as (figure, axes):
        panel = axes[0][0]
        _draw_lines(panel, [(label, curve, key, style) for key, (label, style) in _LINES.items()])
        panel.set_ylabel("relative error")
        low, high = curve.interval
        known = np.isfinite(curve.slope)
        slope = f": slope {curve.slope:.2f} [{low:.2f}, {high:.2f}]" if known else ""
        panel.set_title(f"Error of {curve.name} along {curve.along}{slope}")
        panel.legend(fontsize=8)
        yield figure


def draw_curves(axes: Any, curves: Mapping[str, Curve], *, exact: float | None = None) -> None:
    """Draw the median errors of several curves along one quantity into one plot.

    Parameters
    ----------
    axes : matplotlib Axes
    curves : mapping of str to Curve
        By their labels.
    exact : float, optional
        Where errors of zero are drawn, which have no place on a logarithmic axis; by default below all.
    """
    pairs = product(range(len(_MARKERS)), enumerate(_COLOURS))  # after all colours, with other markers
    styles = [(COLOURS[colour], _MARKERS[(k + turn) % len(_MARKERS)]) for turn, (k, colour) in pairs]
    lines = [
        (label, curve, "median", {"color": colour, "marker": marker, "markersize": 5})
        for (label, curve), (colour, marker) in zip(curves.items(), cycle(styles), strict=False)
    ]
    _draw_lines(axes, lines, exact)


#: The lines of one curve: labels and styles.
_LINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "largest": ("largest", {"color": COLOURS["sky"], "marker": "o", "markersize": 3.5}),
    "median": ("median", {"color": COLOURS["blue"], "marker": "o", "markersize": 3.5}),
    "first_order": ("first order bound, median", {"color": COLOURS["vermilion"], "linestyle": "--"}),
    "sigma": ("3 sigma, median", {"color": COLOURS["black"], "linestyle": ":"}),
}
_COLOURS = ("blue", "vermilion", "green", "purple", "orange", "black", "sky", "grey")
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
_UNITS = {"precision": "precision, bits", "condition": "condition number"}


def _draw_lines(axes: Any, lines: Sequence[tuple[str, Curve, str, Any]], exact: float | None = None) -> None:
    """Draw columns of curves; zeros in a place of their own below all others."""
    columns = [np.array([getattr(x, key) for x in curve.points]) for _, curve, key, _ in lines]
    drawn = np.concatenate(columns)
    positive = drawn[(drawn > 0) & np.isfinite(drawn)]
    bottom, top = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    floor = 10.0 ** (np.floor(np.log10(bottom)) - 1) if exact is None else exact
    first = lines[0][1]
    named = any(isinstance(x.at, str) for x in first.points)
    for (label, curve, _, style), numbers in zip(lines, columns, strict=True):
        at = range(len(curve.points)) if named else [x.at for x in curve.points]
        if named:  # nothing lies between two of them
            style = {"marker": "_", "markersize": 14, **style, "linestyle": "none"}
        axes.plot(at, np.where(numbers == 0, floor, numbers), label=label, **style)
    axes.set_yscale("log")
    if ALONG[first.along][1]:
        axes.set_xscale("log", base=2)
    if named:
        axes.set_xticks(range(len(first.points)), [str(x.at) for x in first.points], rotation=20)
    elif first.along in ("precision", "components"):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if not np.isfinite(drawn).any():
        axes.text(0.5, 0.5, "no relative error is a number", ha="center", transform=axes.transAxes)
    axes.set_xlabel(_UNITS.get(first.along, first.along))
    if exact is not None or (drawn == 0).any():
        highest = int(np.ceil(np.log10(top)))
        lowest = int(np.ceil(np.log10(floor))) + 1
        step = max(1, -(-(highest - lowest) // 5))
        powers = [k for k in range(highest, lowest - 1, -1) if k % step == 0]
        labels = ["1" if k == 0 else f"$10^{{{k}}}$" for k in powers]
        axes.set_yticks([*(10.0**k for k in powers), floor], [*labels, "exact"])
        axes.set_ylim(floor / 3, 3 * max(top, 10.0**highest))
        axes.minorticks_off()


#: Shades of the heat, from none to the largest share; the text is white on the darkest ones.
_SHADES = tuple(reversed(ARRIVING))
_DARK = 6
#: Lines that are shown before and after each expression.
_AROUND = 3


def analysis_page(
    report: Report,
    advice: Advice | None = None,
    found: WorstInput | None = None,
    curve: Curve | None = None,
) -> str:
    """Return a complete HTML page, which needs no script and no network.

    All text from the function's source is shown as plain text.

    Parameters
    ----------
    report : Report
    advice, found, curve : optional
        What `Report.advise`, `Report.search` and `mcfsim.curve` returned, to be shown as well.
    """
    rounded, rows = report.rounded, report.blame()
    title = f"{rounded.program.name} in {report.format}, {rounded.rounding.mode}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        _paragraph(
            f"{len(rounded.program.steps)} operations, {rounded.inputs.size} inputs ({rounded.inputs}). "
            f"Error: {error_text(report)}. u = {report.u:.3g}."
        ),
        _truth(report),
        "<h2>Where the error comes from</h2>",
        *_sources(rows),
        _blame_table(rows, report.opened()),
        "<h2>How errors are distributed</h2>",
        _quantile_table(report),
        _picture(report_figure(report), "distribution of errors, and shares of expressions"),
        "<h2>Bounds</h2>",
        _bounds_table(report),
    ]
    if advice is not None:
        parts += ["<h2>What cures it</h2>", _paragraph(str(advice))]
    if found is not None:
        parts += ["<h2>Worst input</h2>", _paragraph(str(found))]
    if curve is not None:
        parts += [
            f"<h2>Along {html.escape(curve.along)}</h2>",
            _picture(curve_figure(curve), "curve of errors"),
            f"<pre>{html.escape(str(curve))}</pre>",
        ]
    return filled_page("analysis.html", _style(), title=html.escape(title), body="\n".join(parts))


def _style() -> str:
    """Return the style of the page, with a class for each shade."""
    shades = (
        f".h{k} {{ background: {colour}; color: {'#fff' if k >= _DARK else '#222'}; }}\n"
        for k, colour in enumerate(_SHADES)
    )
    return f"\n{page_file('analysis.css')}{''.join(shades)}"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _truth(report: Report) -> str:
    truth = report.truth
    if truth is None:
        return _paragraph("No error was compared with mpmath.")
    text = (
        f"{truth.compared} of {truth.inputs} errors were compared with mpmath, up to {truth.bits} bits: "
        f"{truth.off:.1g} off."
    )
    about = truth.about_constants(report.u)
    return _paragraph(f"{text} {about[0].upper()}{about[1:]}." if about else text)


# -- the function's text ----------------------------------------------------------------------------------
def _sources(rows: Sequence[BlameRow]) -> Iterable[str]:
    """Return the lines of each file that rows are in, each expression on the shade of its share."""
    own = [(row.expression, row) for row in rows if isinstance(row.expression, Expression)]
    largest = max((row.rms for _, row in own), default=0.0)
    for file in dict.fromkeys(place.file for place, _ in own):
        here = [(place, row) for place, row in own if place.file == file]
        near = {k for place, _ in here for k in range(place.line - _AROUND, place.last_line + _AROUND + 1)}
        shown = [k for k in sorted(near) if linecache.getline(file, k)]
        text = []
        for before, number in pairwise([0, *shown]):
            if before and number > before + 1:
                text.append('<span class="line">    ...</span>')
            source = linecache.getline(file, number).rstrip("\n")
            text.append(f'<span class="line">{number:5d}  </span>{_heated(source, number, here, largest)}')
        if text:
            yield f"<p><code>{html.escape(Path(file).name)}</code></p>\n<pre>{chr(10).join(text)}</pre>"


def _heated(source: str, number: int, here: Sequence[tuple[Expression, BlameRow]], largest: float) -> str:
    """Return a line as HTML; of nested expressions, the innermost gives the shade."""
    code = source.encode()
    owner: list[BlameRow | None] = [None] * len(code)
    width = [1 << 30] * len(code)
    for place, row in here:
        if not place.line <= number <= place.last_line:
            continue
        start = place.start if number == place.line else len(code) - len(source.lstrip().encode())
        stop = place.stop if number == place.last_line else len(code)
        size = (place.last_line - place.line) * 1000 + place.stop - place.start
        for column in range(start, min(stop, len(code))):
            if size <= width[column]:
                owner[column], width[column] = row, size
    pieces, start = [], 0
    for column in range(1, len(code) + 1):
        if column == len(code) or owner[column] is not owner[start]:
            text = html.escape(code[start:column].decode(errors="replace"))
            if (found := owner[start]) is None:
                pieces.append(text)
            else:
                heat = found.rms / largest if largest else 0.0  # NaN if both are infinite
                shade = round((len(_SHADES) - 1) * (heat if np.isfinite(heat) else 1.0))
                note = f"rms {found.rms:.3g} u, explains {_percent(found.explains)}"
                pieces.append(f'<span class="h{shade}" title="{html.escape(note)}">{text}</span>')
            start = column
    return "".join(pieces)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if np.isfinite(share) else "-"


# -- tables and pictures ----------------------------------------------------------------------------------
def _table(head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a heading says whether its column holds numbers. Cells are HTML already."""
    kinds = [' class="n"' if number else "" for _, number in head]
    top = "".join(f"<th{kind}>{html.escape(name)}</th>" for (name, _), kind in zip(head, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _blame_table(
    rows: Sequence[BlameRow], opened: Mapping[Any, Sequence[BlameRow]], columns: int | None = None
) -> str:
    """Return the first columns of a table, in which an expression that calls others unfolds to these."""

    def cells(row: BlameRow) -> list[str]:
        where = row.expression
        text, place = (where.text, where.where) if isinstance(where, Expression) else (str(where), "")
        name = f"<code>{html.escape(text)}</code>"
        if within := opened.get(where):
            name = f"<details><summary>{name}</summary>{_blame_table(within, {}, 4)}</details>"
        counts = [str(x) if x else "" for x in (row.operations, row.nonfinite, row.stagnant, row.turned)]
        return [
            name,
            html.escape(place),
            f"{row.rms:.3g}",
            _percent(row.explains),
            f"{row.first_order:.3g}",
            f"{row.median:.3g}",
            *counts,
        ][:columns]

    head = [
        *(("expression", False), ("where", False), ("rms share, u", True), ("explains", True)),
        *(("first order, u", True), ("median, u", True), ("operations", True)),
        *(("first infinite or NaN", True), ("sums that stay", True), ("choices turned", True)),
    ]
    return _table(head[:columns], map(cells, rows))


def _bounds_table(report: Report) -> str:
    def cells(row: BoundRow) -> list[str]:
        name, claim, about = (html.escape(getattr(row, key)) for key in ("name", "claim", "about"))
        verdict = f'<span class="bad">{row.verdict}</span>' if row.exceeded else row.verdict
        over = f"{row.over:.3g}" if np.isfinite(row.over) else "-"
        return [name, claim, over, verdict, about]

    head = [("bound", False), ("claims", False), ("over the error", True), ("", False), ("what it is", False)]
    return _table(head, map(cells, report.bounds()))


def _quantile_table(report: Report) -> str:
    shown = {"relative": "relative error", "ratio": "error / (cond u)"}
    rows = [
        [shown.get(name, name), *(f"{x:.3g}" if np.isfinite(x) else "-" for x in found)]
        for name, found in report.quantiles().items()
    ]
    return _table([("", False), *((f"{100 * x:g} %", True) for x in QUANTILES)], rows)


def _picture(made: object, about: str) -> str:
    buffer = io.BytesIO()
    with made as figure:  # type: ignore[attr-defined]
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(about)}" src="data:image/svg+xml;base64,{data}">'
