"""One function that draws what the package returns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mcfsim.analysis.curves import Curve
from mcfsim.analysis.error_report import Report
from mcfsim.report.analysis_figure import curve_figure, report_figure
from mcfsim.report.certificate_figure import certificate_figure
from mcfsim.report.plotting import checked_suffix, save_one
from mcfsim.report.run_figure import run_figure
from mcfsim.theorems.certificate import Certificate
from mcfsim.training.record import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = Run | Report | Curve | Certificate | Sequence[Certificate]


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
        If it is something else.
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
