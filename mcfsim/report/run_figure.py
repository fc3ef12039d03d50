"""A figure of a run: its measures step by step, a line for each strategy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.report.plotting import COLOURS, STRATEGY_STYLES, label_ends, subplots
from mcfsim.training.record import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Measures that are drawn where a run has them: title, and the scale of the axis.
PANELS = {
    "loss": ("training loss", "linear"),
    "lost": ("share of weights whose update is lost", "linear"),
    "normalized_edq": ("share of the update that arrives (EDQ)", "linear"),
    "distance": ("distance to the exact run, relative", "log"),
}


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
                _draw(panel, run, measure)
        figure.suptitle(repr(run)[1:-1], x=0.01, ha="left")
        yield figure


def _draw(panel: Any, run: Run, measure: str) -> None:
    title, scale = PANELS[measure]
    others = itertools.cycle(COLOURS.values())
    for name, series in run.series.items():
        if measure in series:
            style = STRATEGY_STYLES.get(name) or {"color": next(others)}
            panel.plot(run.steps, np.asarray(series[measure]), label=name, **style)
    panel.set(title=title, xlabel="step", yscale=scale)
    label_ends(panel)
