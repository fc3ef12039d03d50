"""Figures of error analyses: distribution of errors and blame, and curves with their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.analysis.curves import ALONG, Curve
from mcfsim.analysis.error_report import Report, error_text
from mcfsim.analysis.expressions import Expression
from mcfsim.report.plotting import COLOURS, subplots

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
    rows = [row for row in report.blame() if row.rms > 0][:_ROWS]
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
        named = any(isinstance(x.at, str) for x in curve.points)
        at = list(range(len(curve.points))) if named else [x.at for x in curve.points]
        for key, label, colour, style in (
            ("largest", "largest", "sky", "-"),
            ("median", "median", "blue", "-"),
            ("first_order", "first order bound", "vermilion", "--"),
            ("sigma", "3 sigma", "black", ":"),
        ):
            numbers = np.array([getattr(x, key) for x in curve.points])
            panel.plot(
                at,
                np.where(numbers > 0, numbers, np.nan),
                style,
                color=COLOURS[colour],
                marker="o" if style == "-" else None,
                markersize=3.5,
                label=label,
            )
        if any(x.largest > 0 for x in curve.points):
            panel.set_yscale("log")
            if ALONG[curve.along][1]:
                panel.set_xscale("log", base=2)
        else:
            panel.text(0.5, 0.5, "no error at all", ha="center", transform=panel.transAxes)
        if named:
            panel.set_xticks(at, [str(x.at) for x in curve.points], rotation=20)
        units = {"precision": "precision, bits", "condition": "condition number", "length": "length"}
        panel.set_xlabel(units.get(curve.along, curve.along))
        panel.set_ylabel("relative error")
        low, high = curve.interval
        known = np.isfinite(curve.slope)
        slope = f": slope {curve.slope:.2f} [{low:.2f}, {high:.2f}]" if known else ""
        panel.set_title(f"Error of {curve.name} along {curve.along}{slope}")
        panel.legend(fontsize=8)
        yield figure
