"""Figures of error analyses: distribution of errors and blame, and curves with their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, product
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
