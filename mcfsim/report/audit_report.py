"""Audits as one HTML page at several learning rates, and as a figure: when tensors stop, and their EDQ."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from mcfsim.models.audit import EDGES, Audit, Total, audit
from mcfsim.models.forecast import edges_of
from mcfsim.models.product_rows import ProductRow
from mcfsim.models.samples import TensorSample
from mcfsim.models.tensor_findings import AuditedTensor, TensorFinding
from mcfsim.report import terminal
from mcfsim.report.audits import frozen, mix_offered, product_table, update_model
from mcfsim.report.plotting import ARRIVING, BEYOND, COLOURS, UNASKED, filled_page, page_file, subplots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# -- the page ---------------------------------------------------------------------------------------------
#: Peak learning rates of the page, as multiples of the plan's rate.
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Files of the script, in order; each uses those before it.
_SCRIPTS = ("elements.js", "heat_map.js", "charts.js", "table.js", "audit.js")


def at_rates(samples: Iterable[TensorSample], found: Audit) -> list[Audit]:
    """Return audits of the same samples by the same plan at all peak rates of `RATES`.

    Parameters
    ----------
    samples : iterable of TensorSample
        The samples that were audited.
    found : Audit
        Their audit at the plan's own rate, which is not repeated.

    Raises
    ------
    ValueError
        If a rate is beyond the range of binary64.
    """
    kept, schedule = list(samples), found.plan.schedule
    schedules = [replace(schedule, peak=schedule.peak * times) for times in RATES]
    return [
        found if times == 1 else audit(kept, replace(found.plan, schedule=other), found.low)
        for times, other in zip(RATES, schedules, strict=True)
    ]


def audit_page(
    source: str, audits: Sequence[Audit], left_out: Mapping[str, str], products: Sequence[ProductRow] = ()
) -> str:
    """Return a complete HTML page: a recommendation, tables, heat maps, and a histogram of each tensor.

    The page contains its scripts and styles, and its Content-Security-Policy allows only these: no request
    and no other script. Strings from files, such as tensor names, enter as data and are shown as plain text.
    The data are JSON, deflated because they are long; browsers of 2023 or later inflate them.

    Parameters
    ----------
    source : str
        The weights that were audited.
    audits : sequence of Audit
        Audits of the same tensors and strategies at different peak rates; see `at_rates`.
    left_out : mapping of str to str
        Tensors that were not audited, and the reasons.
    products : sequence of ProductRow, optional
        What `mcfsim.torch.watch_products` measured, for a table of its own.

    Raises
    ------
    ValueError
        If there is no audit or no tensor, or audits are of different tensors, strategies or steps.
    """
    palette = "".join(f"--{name}: {colour}; " for name, colour in COLOURS.items())
    style = f":root {{ {palette}}}\n" + page_file("audit.css")
    script = "".join(map(page_file, _SCRIPTS))
    data = json.dumps(page_data(source, audits, left_out, products), allow_nan=False, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(data.encode())).decode()
    return filled_page("audit.html", style, script, data=packed)


def page_data(
    source: str, audits: Sequence[Audit], left_out: Mapping[str, str], products: Sequence[ProductRow] = ()
) -> dict[str, Any]:
    """Return the contents of the page as JSON data.

    Shares have four decimal places, other numbers four significant digits; NaN, where no update is asked for,
    is null.
    """
    first = _alike(audits)
    totals = {total.strategy.name: total for total in first.totals()}
    shown = {total.strategy.name for item in audits for total in item.shown()}
    names = [name for name in totals if name in shown]
    return {
        "source": source,
        "parameters": first.size,
        "plan": _plan(first),
        "updates": update_model(first),
        "low": str(first.low),
        "stopped": first.plan.stopped,
        "left_out": list(left_out.items()),
        "products": product_table(products),
        "terms": list(terminal.AUDIT.items()),
        "colours": list(ARRIVING),
        "beyond": BEYOND,
        "unasked": UNASKED,
        "steps": list(first.steps),
        "edges": EDGES.tolist(),
        "strategies": [
            {"name": name, "bytes_per_parameter": totals[name].strategy.bytes_per_parameter} for name in names
        ],
        "also": [name for name in totals if name not in names],
        "tensors": [_tensor(first, item) for item in first.tensors],
        "runs": [_run(item, names) for item in audits],
    }


def _alike(audits: Sequence[Audit]) -> Audit:
    """Return the first audit; raise if the audits cannot be shown on one page."""
    if not audits or not audits[0].tensors:
        raise ValueError("a page needs at least one audit, of at least one tensor")
    first = audits[0]
    for other in audits[1:]:
        for label, here, there in (
            ("tensors", [item.name for item in first.tensors], [item.name for item in other.tensors]),
            ("strategies", first.plan.strategies, other.plan.strategies),
            ("steps", first.steps, other.steps),
        ):
            if here != there:
                raise ValueError(f"audits of one page must have the same {label}: {here}, and {there}")
    return first


def _plan(audit: Audit) -> list[tuple[str, str]]:
    """Return the plan of the audit, in words."""
    plan, hyper = audit.plan, audit.plan.hyper
    course = "constant" if plan.schedule.final == 1 else f"cosine to {plan.schedule.final:g} of the peak rate"
    return [
        (
            "optimizer",
            f"AdamW, beta1 = {hyper.beta1:g}, beta2 = {hyper.beta2:g}, epsilon = {hyper.epsilon:g}, "
            f"weight decay {hyper.weight_decay:g}",
        ),
        ("schedule", f"{plan.steps:,} steps, {plan.schedule.warmup:,} of them warm-up, then {course}"),
        ("low format", str(audit.low)),
        ("threshold", f"{plan.threshold:g}: EDQ that every tensor must reach (--threshold)"),
        ("stopped", f"{plan.stopped:g}: EDQ below which a tensor has stopped (--stopped)"),
    ]


def _tensor(audit: Audit, item: AuditedTensor) -> dict[str, Any]:
    return {
        "name": item.name,
        "shape": list(item.shape),
        "parameters": item.size,
        "format": item.format,
        "decayed": item.decayed and audit.plan.hyper.weight_decay > 0,
        "rms": _short(item.rms),
        "zeros": _share(item.zeros),
        "direction_rms": _short(item.direction_rms),
    }


def _run(audit: Audit, names: Sequence[str]) -> dict[str, Any]:
    """Return the findings at one peak rate under the named strategies."""
    recommended, why = audit.recommended()
    totals = {total.strategy.name: total for total in audit.totals()}
    plan, below = audit.plan, EDGES.tolist().index(-1.0)
    return {
        "peak": _short(plan.schedule.peak),
        "rates": [_short(plan.schedule.rate(step, plan.steps)) for step in audit.steps],
        "recommended": None if recommended is None else names.index(recommended.strategy.name),
        "reason": why,
        "mix": mix_offered(audit),
        "totals": [_total(totals[name]) for name in names],
        "tensors": [
            {
                "histogram": [_share(share) for share in item.histogram],
                # Rounded once, because rounded shares need not add up.
                "below_half": _share(math.fsum(item.histogram[:below])),
                "found": [_found(item.found[name]) for name in names],
            }
            for item in audit.tensors
        ],
    }


def _total(total: Total) -> dict[str, Any]:
    return {
        "bytes": total.bytes,
        "lost": _share(total.lost),
        "edq": _share(total.edq),
        "least": _share(total.of_worst.edq),
        "worst": total.worst,
        "stopped": total.stopped,
        "frozen": frozen(total),
        "sufficient": total.sufficient,
    }


def _found(found: TensorFinding) -> dict[str, Any]:
    return {
        "lost": _share(found.lost),
        "edq": _share(found.edq),
        "stops": found.stops,
        "beyond": found.beyond,
        "idle": _share(found.idle),
        "bytes": found.bytes,
        "course": [_share(edq) for edq in found.edq_by_step],
    }


def _share(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else round(number, 4)


def _short(number: float) -> float:
    return float(f"{number:.4g}")


# -- the figure -------------------------------------------------------------------------------------------
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
