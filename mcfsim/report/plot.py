"""One function that draws what the package returns: runs, analyses, curves of errors, certificates."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.analysis.curves import Curve
from mcfsim.analysis.error_report import Report
from mcfsim.report.analysis_report import curve_figure, report_figure
from mcfsim.report.plotting import COLOURS, STRATEGY_STYLES, checked_suffix, label_ends, save_one, subplots
from mcfsim.theorems.certificate import Certificate
from mcfsim.training.record import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = Run | Report | Curve | Certificate | Sequence[Certificate]
#: Measures that are drawn where a run has them: title, and the scale of the axis.
PANELS = {
    "loss": ("training loss", "linear"),
    "lost": ("share of weights whose update is lost", "linear"),
    "normalized_edq": ("share of the update that arrives (EDQ)", "linear"),
    "distance": ("distance to the exact run, relative", "log"),
}


def plot(drawn: Drawn, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a run, an analysis, a curve of errors, or certificates.

    Parameters
    ----------
    drawn : Run, Report, Curve, Certificate or sequence of Certificate
        What `mcfsim.simulate`, `mcfsim.analyse`, `mcfsim.curve` and `mcfsim.verify` return.
    path : path, optional
        Write the figure here, as ``.svg`` or ``.png``.

    Returns
    -------
    figure : matplotlib Figure
        It belongs to no window; a notebook shows it.

    Raises
    ------
    TypeError
        If it is anything else.
    ValueError
        If the path has another suffix, or there is nothing to draw.
    """
    if path is not None:
        if isinstance(path, Certificate):
            raise TypeError("several certificates are drawn as one list: mcfsim.plot([first, second])")
        checked_suffix(path)
    with _figure(drawn) as figure:
        if path is not None:
            save_one(figure, path)
        return figure


def _figure(drawn: Drawn) -> AbstractContextManager[Figure]:
    match drawn:
        case Run():
            return run_figure(drawn)
        case Report():
            return report_figure(drawn)
        case Curve():
            return curve_figure(drawn)
        case Certificate():
            return certificate_figure([drawn])
        case [Certificate(), *_] if all(isinstance(item, Certificate) for item in drawn):
            return certificate_figure(drawn)
    raise TypeError(
        f"cannot draw a {type(drawn).__name__}: a Run, Report, Curve, Certificate, or several Certificates"
    )


@contextmanager
def run_figure(run: Run) -> Iterator[Figure]:
    """Draw the loss, what is lost, what arrives, and the distance to the exact run if there is one.

    Parameters
    ----------
    run : Run

    Yields
    ------
    figure : matplotlib Figure

    Raises
    ------
    ValueError
        If the run has recorded none of these.
    """
    panels = [measure for measure in PANELS if any(measure in series for series in run.series.values())]
    if not panels or not run.steps.size:
        raise ValueError(f"the run has recorded nothing that can be drawn: {', '.join(PANELS)}")
    rows = -(-len(panels) // 2)
    with subplots(rows, min(2, len(panels)), width=11, height=0.4 + 2.9 * rows) as (figure, axes):
        for panel, measure in itertools.zip_longest(axes.flat, panels):
            if measure is None:
                panel.set_axis_off()
            else:
                _draw_measure(panel, run, measure)
        figure.suptitle(repr(run)[1:-1], x=0.01, ha="left")
        yield figure


def _draw_measure(panel: Any, run: Run, measure: str) -> None:
    title, scale = PANELS[measure]
    others = itertools.cycle(COLOURS.values())
    for name, series in run.series.items():
        if measure in series:
            style = STRATEGY_STYLES.get(name) or {"color": next(others)}
            panel.plot(run.steps, np.asarray(series[measure]), label=name, **style)
    panel.set(title=title, xlabel="step", yscale=scale)
    label_ends(panel)


@contextmanager
def certificate_figure(certificates: Sequence[Certificate]) -> Iterator[Figure]:
    """Draw a row for each certificate: what was tried, the verdict, and the worst error found.

    The bar is the worst error as a share of the claimed bound, which is at 1. There is none without errors.

    Parameters
    ----------
    certificates : sequence of Certificate

    Yields
    ------
    figure : matplotlib Figure

    Raises
    ------
    ValueError
        If there are none.
    """
    if not certificates:
        raise ValueError("there is no certificate to draw")
    with subplots(1, 1, width=10, height=1.3 + 0.5 * len(certificates)) as (figure, ((panel,),)):
        for place, item in enumerate(certificates):
            share = item.worst and float(Fraction(item.worst.constant) / Fraction(item.worst.bound))
            colour = COLOURS["vermilion" if item.violations else "blue"]
            panel.barh(place, share or 0, color=colour, height=0.5)
            found = "no error is measured" if share is None else f"worst error {share:.4f} of the bound"
            said = f"{item.verdict}: {item.violations:,} of {item.applicable:,} cases violate it; {found}"
            panel.text(0.01, place - 0.42, said, fontsize=8.5, color=colour if item.violations else "black")
        panel.axvline(1, color=COLOURS["black"], linewidth=1)
        labels = [f"{item.theorem}\n{item.format}, {item.rounding}" for item in certificates]
        panel.set_yticks(range(len(certificates)), labels)
        panel.set(ylim=(len(certificates) - 0.4, -0.7), xlabel="worst error found, as a share of the bound")
        panel.grid(axis="y", visible=False)
        panel.set_axisbelow(True)
        violated = sum(item.violations > 0 for item in certificates)
        figure.suptitle(f"{len(certificates)} tried, {violated} violated", x=0.01, ha="left")
        yield figure
