"""Parts of figures of several experiments: rows of paired differences, and ranges of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import paired

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_row(panel: Axes, place: int, differences: np.ndarray[Any, Any], colour: str) -> None:
    """Draw differences in a row: their 95 % interval, a dot for each, and their mean."""
    panel.plot(paired.interval(differences), [place, place], color=colour, linewidth=2.2)
    panel.plot(differences, [place] * differences.size, "o", color=colour, markersize=2.5, alpha=0.5)
    panel.plot(differences.mean(), place, "D", color=colour, markersize=5)


def draw_seeds(
    panel: Axes,
    x: Sequence[float],
    by_seed: np.ndarray[Any, Any],
    style: Mapping[str, Any],
    *,
    alpha: float = 0.15,
) -> None:
    """Draw the mean of seeds, which are rows, as a line in a style, and their range as a band."""
    panel.plot(x, by_seed.mean(axis=0), **style)
    ends = by_seed.min(axis=0), by_seed.max(axis=0)
    panel.fill_between(x, *ends, color=style["color"], alpha=alpha, linewidth=0)
