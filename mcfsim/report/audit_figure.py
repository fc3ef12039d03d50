"""Figures of audits: when each tensor stops learning, and its EDQ under each strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.models.audit import Audit
from mcfsim.models.forecast import edges_of
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding
from mcfsim.report.plotting import ARRIVING, BEYOND, COLOURS, UNASKED, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Largest number of drawn tensors, and of characters of a name.
MOST, _NAME = 40, 44
#: Sizes in inches: heights of a row, of the rest of the figure, and of the colour scale; widths of a
#: strategy's column, of the steps, of a character, and of the colour scale.
_ROW, _ABOVE, _SCALE = 0.2, 1.4, 1.5
_COLUMN, _STEPS, _CHARACTER, _BESIDE = 0.66, 5.0, 0.075, 1.0

#: Marks weights in a table that are out of the format's range.
_BEYOND = 2.0


@contextmanager
def audit_figure(audit: Audit, most: int = MOST) -> Iterator[Figure]:
    """Draw two heat maps of EDQ: tensors by steps under the cheapest strategy, and tensors by strategies.

    The worst tensor is on top. EDQ is drawn in [0, 1]. Grey means that no update is asked for; purple means
    that weights are out of the format's range.

    Parameters
    ----------
    audit : Audit
        The audit to draw.
    most : int, optional
        Largest number of tensors; a label gives the number of others.

    Yields
    ------
    figure : matplotlib Figure
    """
    totals = audit.shown()
    first = totals[0].strategy.name
    worst = audit.worst_first(first)
    shown, others = worst[:most], worst[most:]
    names = _names([item.name for item in shown])
    rows, columns = _ROW * max(6, len(shown)), max(2.2, _COLUMN * len(totals))
    width = _CHARACTER * max(map(len, names)) + _STEPS + columns + _BESIDE
    with subplots(1, 2, width=width, height=rows + _ABOVE) as (figure, axes):
        by_step, by_strategy = axes[0]
        by_step.get_gridspec().set_width_ratios([_STEPS, columns])
        _draw_steps(by_step, audit, first, shown)
        by_step.set_yticks(range(len(shown)), names, parse_math=False)
        _draw_strategies(by_strategy, audit, shown)
        if others:
            found = [item.found[first].edq for item in others]  # NaN is an end only if all are
            least, largest = (f"{end.reduce(found):.2f}" for end in (np.fmin, np.fmax))
            by_step.set_xlabel(f"step\nand {len(others)} more, of EDQ {least} to {largest} over the run")
        _add_scale(figure, by_strategy, min(1.0, _SCALE / rows))
        yield figure


def _draw_steps(axes: Axes, audit: Audit, name: str, tensors: Sequence[AuditedTensor]) -> None:
    """Draw each tensor's EDQ by step, and a mark where the tensor stops."""
    steps = np.array(audit.steps)
    edges = edges_of(steps)
    table = np.array([np.clip(item.found[name].edq_by_step, 0.0, 1.0) for item in tensors])
    for row, item in enumerate(tensors):
        if (beyond := item.found[name].beyond) is not None:
            table[row, steps >= beyond] = _BEYOND
    _draw_table(axes, edges, table)
    for row, item in enumerate(tensors):
        if (stop := item.found[name].stops) is not None:
            for colour, width in (("white", 4.0), (COLOURS["blue"], 2.0)):
                ends = row - 0.42, row + 0.42
                axes.plot([stop, stop], ends, color=colour, lw=width, solid_capstyle="butt", clip_on=False)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("step")
    count = sum(item.found[name].stops is not None for item in audit.tensors)
    what = f"blue: from here to the end EDQ stays below {audit.plan.stopped:g}"
    if (table == _BEYOND).any():
        what = f"{what}; purple: out of the format's range"
    axes.set_title(f"Under {name}, by step: {count} of {len(audit.tensors)} tensors stop\n{what}")


def _draw_strategies(axes: Axes, audit: Audit, tensors: Sequence[AuditedTensor]) -> None:
    """Draw each tensor's EDQ over the run under each strategy, with the number."""
    totals, (chosen, _) = audit.shown(), audit.recommended()
    table = np.array([[_drawn(item.found[total.strategy.name]) for total in totals] for item in tensors])
    _draw_table(axes, np.arange(len(totals) + 1) - 0.5, table)
    for row, item in enumerate(tensors):
        for column, total in enumerate(totals):
            text = _written(item.found[total.strategy.name])
            colour = "white" if table[row, column] < 0.5 else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    strategies = [total.strategy for total in totals]
    labels = [x.name.replace("-", "-\n", 1) + f"\n{x.bytes_per_parameter:g} B" for x in strategies]
    axes.set_xticks(range(len(totals)), labels, fontsize=8)
    advice = "none of them suffices"
    if chosen is not None:
        axes.get_xticklabels()[totals.index(chosen)].set_fontweight("bold")
        advice = f"recommended: {chosen.strategy.name}"
    axes.set_yticks([])
    axes.set_title(f"Over the run, by strategy\n{advice}")


def _drawn(found: TensorFinding) -> float:
    """Return the number that stands for a tensor's EDQ in a table of colours."""
    return _BEYOND if found.beyond is not None else float(np.clip(found.edq, 0.0, 1.0))


def _written(found: TensorFinding) -> str:
    return "beyond" if found.beyond is not None else "-" if math.isnan(found.edq) else f"{found.edq:.2f}"


def _draw_table(axes: Axes, edges: Any, table: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("arriving", list(ARRIVING)).with_extremes(
        bad=UNASKED, over=BEYOND
    )
    rows = np.arange(len(table) + 1) - 0.5
    masked = np.ma.masked_where(np.isnan(table), table)
    axes.pcolormesh(edges, rows, masked, cmap=colours, vmin=0.0, vmax=1.0, rasterized=True)
    axes.hlines(rows[1:-1], edges[0], edges[-1], color="white", linewidth=0.8)
    axes.set_ylim(rows[-1], rows[0])
    axes.grid(False)
    axes.tick_params(left=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _add_scale(figure: Figure, axes: Axes, share: float) -> None:
    """Draw a colour scale beside a table, in a share of its height."""
    place: dict[str, Any] = {"fraction": 0.06, "pad": 0.03, "aspect": 12, "anchor": (0.0, 1.0)}
    bar = figure.colorbar(axes.collections[0], ax=axes, shrink=share, **place)
    bar.outline.set_visible(False)
    bar.set_ticks([0.0, 0.5, 1.0], labels=["0: nothing\narrives", "0.5", "1: all\narrives"], fontsize=8)
    bar.ax.get_yticklabels()[0].set_verticalalignment("bottom")
    bar.ax.get_yticklabels()[2].set_verticalalignment("top")
    bar.ax.set_title("EDQ", fontsize=8.5, loc="left")


def _names(names: Sequence[str]) -> list[str]:
    """Return names in characters of the font; if some are long, without common first and last parts.

    Names that are still too long lose their middle.
    """
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    texts = [
        "".join(sign if sign.isprintable() and ord(sign) in known else ascii(sign)[1:-1] for sign in name)
        for name in names
    ]
    if max(map(len, texts)) > _NAME:
        split = [text.split(".") for text in texts]
        before, after = (_common([parts[::way] for parts in split]) for way in (1, -1))
        if all(before + after < len(parts) for parts in split):
            shorter = [".".join(parts[before : len(parts) - after]) for parts in split]
            texts = [f"{'…' * (before > 0)}{text}{'…' * (after > 0)}" for text in shorter]
    half = (_NAME - 1) // 2
    return [text if len(text) <= _NAME else f"{text[:half]}…{text[-half:]}" for text in texts]


def _common(lists: Sequence[Sequence[str]]) -> int:
    """Return the number of leading parts that all lists share."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*lists, strict=False)))
