"""The common style of figures and pages: one palette, one size, and reproducible SVG and PNG files."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Colours that are distinct for every kind of colour vision: Okabe and Ito, 2008.
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

#: Line style of each strategy in all figures; styles differ in colour and in dashes.
STRATEGY_STYLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {"color": COLOURS["vermilion"], "linestyle": "-"},
        "fp32-optim": {"color": COLOURS["orange"], "linestyle": (0, (5, 2))},
        # It follows collage-light, which is drawn below all others: circles on a wide line.
        "kahan": {
            "color": COLOURS["purple"],
            "linestyle": "none",
            "marker": "o",
            "markersize": 5,
            "zorder": 3,
        },
        "collage-light": {"color": COLOURS["sky"], "linestyle": "-", "linewidth": 4.5},
        "collage-plus": {"color": COLOURS["blue"], "linestyle": "-"},
        "fp32-master": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
        # These lie near the strategy of the same colour, and differ in dashes.
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

#: Colour scale of EDQ from 0 to 1: darker is worse, also in greyscale. ColorBrewer's YlOrBr (Brewer, 2003),
#: readable with every kind of colour vision.
ARRIVING: Sequence[str] = (
    *("#662506", "#993404", "#CC4C02", "#EC7014", "#FE9929", "#FEC44F", "#FEE391", "#FFF7BC", "#FFFFE5"),
)
#: Colours for tensors without updates, and for tensors whose weights are out of the format's range.
UNASKED, BEYOND = "#C8C8C8", COLOURS["purple"]

#: File types of figures, and the metadata that keep dates and versions out of them.
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
    """Make a figure with subplots in the common style; sizes are in inches.

    Yields
    ------
    figure : matplotlib Figure
    axes : array of Axes, shape (rows, columns)
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")  # of no window, whatever the backend
        yield figure, figure.subplots(rows, columns, squeeze=False)


def message(figure: Figure, text: str) -> None:
    """Write above a figure what it shows."""
    figure.suptitle(text, fontsize=11.5, fontweight="bold", x=0.01, ha="left")


def save(figure: Figure, path: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as ``path.svg`` and ``path.png``, without dates, and return both paths."""
    written = [Path(path).with_suffix(suffix) for suffix in SUFFIXES]
    for target in written:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_one(figure, target)
    return written


def save_one(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to one file of the type given by its suffix, without a date.

    Raises
    ------
    ValueError
        If the suffix is not in `SUFFIXES`.
    """
    suffix = checked_suffix(path)
    with replacing(path) as file:
        figure.savefig(file, format=suffix[1:], metadata=SUFFIXES[suffix])


def checked_suffix(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a path; raise ValueError if it is no file type of figures."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"cannot draw {os.fspath(path)}: a figure's name ends in {' or '.join(SUFFIXES)}")
    return suffix


def page_file(name: str) -> str:
    """Return the text of a file from the folder of pages: a template, a style or a script."""
    return (files("mcfsim.report") / "page" / name).read_text("utf-8")


def filled_page(template: str, style: str, script: str = "", **parts: str) -> str:
    """Return a page: a template with a style, a script, and other parts by their names in it.

    The template can name the hashes of style and script in a Content-Security-Policy.
    """

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    parts |= {"style": style, "style_hash": digest(style), "script": script, "script_hash": digest(script)}
    return Template(page_file(template)).substitute(parts)


def label_ends(axes: Axes, *, gap: float = 0.055) -> None:
    """Write each line's label at its right end, with overlapping labels moved apart.

    A line that ends in NaN or infinity, such as that of a diverged run, is labelled at its last finite point,
    and the label says so. A line without a finite point has its label at the bottom.

    Parameters
    ----------
    axes : Axes
        Axes with labelled lines; the labels replace a legend.
    gap : float, optional
        Least distance between two labels, as a share of the axes' height.
    """
    axes.autoscale_view()  # else lines drawn since then would be placed by old limits
    to_axes = axes.transData + axes.transAxes.inverted()
    ends: list[list[Any]] = []
    for line in axes.get_lines():
        label = str(line.get_label())
        if not label.startswith("_"):
            points = np.asarray(line.get_xydata(), dtype=float)
            finite = points[np.isfinite(points).all(axis=1)]
            height = float(to_axes.transform(finite[-1])[1]) if finite.size else 0.0
            height = min(1.0, max(0.0, height))  # of a zero on a logarithmic axis, too
            whole = points.size and np.isfinite(points[-1]).all()
            ends.append([height, label if whole else f"{label} (not finite)", line.get_color()])
    ends.sort(key=lambda end: end[0])
    for _ in range(200):  # push neighbours apart in small steps, within the axes
        for lower, upper in pairwise(ends):
            push = max(0.0, (gap - (upper[0] - lower[0])) / 2)
            lower[0], upper[0] = max(0.0, lower[0] - push), min(1.0, upper[0] + push)
    for height, label, colour in ends:
        axes.text(1.02, height, label, color=colour, fontsize=8.5, va="center", transform=axes.transAxes)
