"""An error analysis as one HTML page: the function's text with a heat behind each expression, and tables."""

from __future__ import annotations

import base64
import html
import io
import linecache
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mcfsim.analysis.advice import Advice
from mcfsim.analysis.blame import BlameRow
from mcfsim.analysis.curves import Curve
from mcfsim.analysis.error_report import QUANTILES, BoundRow, Report, error_text
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.worst_inputs import WorstInput
from mcfsim.report.analysis_figure import curve_figure, report_figure
from mcfsim.report.plotting import ARRIVING, filled_page, page_file

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
