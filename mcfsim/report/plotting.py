"""The look of the figures: one palette, one size, both file types, the same bytes each time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that stay apart for every kind of colour vision: Okabe and Ito, 2008.
COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "black": "#000000",
        "orange": "#E69F00",
        "sky": "#56B4E9",
        "green": "#009E73",
        "blue": "#0072B2",
        "vermilion": "#D55E00",
        "purple": "#CC79A7",
        "grey": "#8C8C8C",
    }
)

#: How each strategy is drawn, everywhere: apart in colour and in dashes.
STRATEGY_STYLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {"color": COLOURS["vermilion"], "linestyle": "-"},
        "fp32-optim": {"color": COLOURS["orange"], "linestyle": (0, (5, 2))},
        # It runs along with collage-light, and is drawn upon it.
        "kahan": {"color": COLOURS["purple"], "linestyle": (0, (1, 3)), "zorder": 3},
        "collage-light": {"color": COLOURS["sky"], "linestyle": "-"},
        "collage-plus": {"color": COLOURS["blue"], "linestyle": "-"},
        "fp32-master": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
        # The rest by its colour and dashes alone: it lies where the one of the same colour does.
        "split-master": {"color": COLOURS["black"], "linestyle": (0, (1, 2))},
        "split-truncated": {"color": COLOURS["black"], "linestyle": (0, (4, 1, 1, 1))},
        "remainder-8": {"color": COLOURS["purple"], "linestyle": "-"},
        "remainder-16": {"color": COLOURS["purple"], "linestyle": (0, (5, 2))},
        "eco": {"color": COLOURS["vermilion"], "linestyle": (0, (4, 2))},
        "mcf-2": {"color": COLOURS["blue"], "linestyle": (0, (4, 2))},
        "mcf-3": {"color": COLOURS["blue"], "linestyle": (0, (1, 2))},
        "fp8-moments": {"color": COLOURS["orange"], "linestyle": "-"},
        "int8-moments": {"color": COLOURS["orange"], "linestyle": (0, (1, 2))},
        "coat-moments": {"color": COLOURS["orange"], "linestyle": (0, (4, 1, 1, 1))},
        "stochastic-parameter": {"color": COLOURS["green"], "linestyle": "-"},
        "stochastic": {"color": COLOURS["green"], "linestyle": (0, (4, 2))},
        "fp32": {"color": COLOURS["grey"], "linestyle": "-"},
    }
)

#: From nothing that arrives to all: darker is worse, also in grey. ColorBrewer's YlOrBr (Brewer, 2003), which
#: can be read with every kind of colour vision.
ARRIVING: Sequence[str] = (
    *("#662506", "#993404", "#CC4C02", "#EC7014", "#FE9929", "#FEC44F", "#FEE391", "#FFF7BC", "#FFFFE5"),
)
#: Beside them: of a tensor of which nothing is asked, and of one whose weights have left a format's range.
UNASKED, BEYOND = "#C8C8C8", COLOURS["purple"]

#: The types of file that figures are written as, and what keeps dates and versions out of them.
SUFFIXES: Mapping[str, Mapping[str, None]] = MappingProxyType(
    {".svg": {"Date": None}, ".png": {"Software": None}}
)

_STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
    "svg.hashsalt": "mcfsim",
    "savefig.bbox": "tight",
    "savefig.dpi": 160,
}


@contextmanager
def subplots(rows: int = 1, columns: int = 1, *, width: float = 9.5, height: float = 3.2) -> Iterator[Any]:
    """Make a figure in the house style; sizes are in inches.

    Yields
    ------
    figure : matplotlib Figure
    axes : array of Axes, shape (rows, columns)
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            rows, columns, figsize=(width, height), squeeze=False, layout="constrained"
        )
        try:
            yield figure, axes
        finally:
            pyplot.close(figure)


def save(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as ``path.svg`` and ``path.png`` and return both; no dates inside."""
    written = [Path(path).with_suffix(suffix) for suffix in SUFFIXES]
    for target in written:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_one(figure, target)
    return written


def save_one(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as one file, of the type that its suffix names; no date inside.

    Raises
    ------
    ValueError
        If the suffix is another than those of `SUFFIXES`.
    """
    suffix = checked_suffix(path)
    with replacing(path) as file:
        figure.savefig(file, format=suffix[1:], metadata=SUFFIXES[suffix])


def checked_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path; raise ValueError unless figures are written with it."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"cannot draw {os.fspath(path)}: a figure's name ends in {' or '.join(SUFFIXES)}")
    return suffix


def label_ends(axes: Axes, *, gap: float = 0.055, fontsize: float = 8.5) -> None:
    """Write each line's label at its right end, moved apart where they would overlap.

    A line that ends in NaN or infinity, as that of a run that diverged, ends at its last finite point, and
    the label says so; one without a finite point has its label at the bottom.

    Parameters
    ----------
    axes : Axes
        With labelled lines; their labels replace a legend.
    gap : float, optional
        Least distance of two labels, as a share of the axes' height.
    """
    axes.autoscale_view()  # or lines drawn since the last look would be placed by old limits
    to_axes = axes.transData + axes.transAxes.inverted()
    ends: list[list[Any]] = []
    for line in axes.get_lines():
        label = str(line.get_label())
        if not label.startswith("_"):
            points = np.asarray(line.get_xydata(), dtype=float)
            finite = points[np.isfinite(points).all(axis=1)]
            height = float(to_axes.transform(finite[-1])[1]) if finite.size else 0.0
            whole = points.size and np.isfinite(points[-1]).all()
            ends.append([height, label if whole else f"{label} (not finite)", line.get_color()])
    ends.sort(key=lambda end: end[0])
    for _ in range(200):  # push neighbours apart, a little at a time, and keep all inside
        for lower, upper in pairwise(ends):
            push = max(0.0, (gap - (upper[0] - lower[0])) / 2)
            lower[0], upper[0] = max(0.0, lower[0] - push), min(1.0, upper[0] + push)
    for height, label, colour in ends:
        axes.text(1.02, height, label, color=colour, fontsize=fontsize, va="center", transform=axes.transAxes)
