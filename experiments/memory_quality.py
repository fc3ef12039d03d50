"""Memory against quality: every strategy in three formats on the language model, and the frontier forecast.

The measured frontier beside one that is completed from a fifth of the cells: what strategies and formats have
in common is learned from tasks that are cheap, a smaller model trained a shorter time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.cells import NOTHING, Cell, Model, sweep_options, train
from experiments.common import FIGURES, read_result, write_result
from experiments.low_rank import best_rank, complete, d_optimal, embeddings, frontier, regret
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.strategies import GRID_STRATEGIES, STRATEGIES
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "memory_quality"
FORMATS = ("bfloat16", "float16", "float8_e4m3fn")
REFERENCE = ("fp32-master", "bfloat16")
MODEL, SEEDS, STEPS = Model(layers=2, width=32, heads=4, context=64), 3, 100
#: Each configuration uses its best peak: a larger rate can make up for updates that rounding shortens.
PEAKS = (1e-3, 3e-3, 1e-2)
#: The small model on which all configurations are tried first, with one seed for each rate and beta2.
SMALL, SMALL_STEPS = Model(layers=1, width=16, heads=2, context=32), 60
TASKS = tuple((rate, beta2) for rate in PEAKS for beta2 in (0.95, 0.999))
#: The share of the configurations that is measured, and the number of random choices to compare with.
SHARE, DRAWS = 0.2, 200
#: Mark and colour of each format.
LOOK = {
    "bfloat16": ("o", COLOURS["blue"]),
    "float16": ("s", COLOURS["green"]),
    "float8_e4m3fn": ("D", COLOURS["vermilion"]),
}
#: Losses below are drawn nearer, with the names of some configurations of bfloat16, points from their marks.
LOW = 3.03
NAMED = {
    "plain": (14, 4),
    "stochastic": (-4, -13),
    "fp8-moments": (6, -11),
    "collage-plus": (-26, -13),
    "fp32-master": (7, -4),
    "mcf-3": (-20, -13),
    "bitnet": (7, -3),
}


def configurations() -> list[tuple[mcf.Strategy, mcf.Format]]:
    """Return every strategy in every format that allows it, none twice, without exact numbers.

    Weights on grids of integers are the same in every low format: they are in the first one alone.
    """
    found: dict[tuple[Any, ...], tuple[mcf.Strategy, mcf.Format]] = {}
    for low in FORMATS:
        for name in (*STRATEGIES, *GRID_STRATEGIES) if low == FORMATS[0] else STRATEGIES:
            try:
                item = mcf.strategy(name, low)
            except UnsupportedFormatError:
                continue
            if item.bytes_per_parameter is not None:  # that of fp32 is the same in every low format
                found.setdefault((name, *item.tensors.values()), (item, mcf.get_format(low)))
    return list(found.values())


def measure(given: Any) -> None:
    """Train all configurations, and write the results."""
    chosen = configurations()
    full = [Cell(item, low, MODEL, peak, steps=STEPS) for item, low in chosen for peak in PEAKS]
    small = [
        Cell(item, low, SMALL, rate, beta2, SMALL_STEPS) for rate, beta2 in TASKS for item, low in chosen
    ]
    found, cheap = train(full, SEEDS, given), train(small, 1, given)
    cells = []
    for place, (item, low) in enumerate(chosen):
        runs = found[place * len(PEAKS) : (place + 1) * len(PEAKS)]
        losses = [[NOTHING if loss != loss else min(loss, NOTHING) for loss in run["loss"]] for run in runs]
        best = int(np.argmin(np.mean(losses, axis=1)))
        cells.append(
            {
                "strategy": item.name,
                "format": str(low),
                "bytes": item.bytes_per_parameter,
                "peak": PEAKS[best],
                "loss": losses[best],
                "diverged": sum(loss != loss for loss in runs[best]["loss"]),
                "edq": _mean(runs[best]["edq"]),
                "lost": _mean(runs[best]["lost"]),
            }
        )
    known = np.array([item["loss"][0] for item in cheap]).reshape(len(TASKS), len(chosen))
    write_result(
        RESULT,
        {
            "settings": {
                "seeds": SEEDS,
                "steps": STEPS,
                "peaks": PEAKS,
                "beta2": full[0].beta2,
                "problem": full[0].model.problem().settings(),
                "tasks": TASKS,
                "small": SMALL.problem().settings(),
                "small_steps": SMALL_STEPS,
            },
            "cells": cells,
            "tasks": np.fmin(known, NOTHING).tolist(),
        },
    )


def _mean(numbers: list[float]) -> float | None:
    kept = [number for number in numbers if number == number]
    return float(np.mean(kept)) if kept else None


def completion() -> dict[str, Any]:
    """Return the frontier completed from a fifth of the cells, beside that of all cells."""
    result = read_result(RESULT)
    cells, tasks = result["cells"], np.array(result["tasks"])
    costs = np.array([cell["bytes"] for cell in cells], float)
    losses = np.array([np.mean(cell["loss"]) for cell in cells])
    count = round(SHARE * len(cells))
    rank = best_rank(tasks, count)
    vectors = embeddings(tasks, rank)
    chosen = d_optimal(vectors, count)
    forecast = complete(vectors, chosen, losses[chosen])
    hidden = np.setdiff1d(np.arange(len(cells)), chosen)
    rng = np.random.default_rng(0)
    others = []
    for _ in range(DRAWS):
        drawn = rng.choice(len(cells), count, replace=False).tolist()
        guess = complete(vectors, drawn, losses[drawn])
        others.append((np.abs(np.delete(guess - losses, drawn)).mean(), regret(costs, losses, guess)))
    return {
        "rank": rank,
        "chosen": chosen,
        "forecast": forecast,
        "losses": losses,
        "costs": costs,
        "measured frontier": frontier(costs, losses),
        "forecast frontier": frontier(costs, forecast),
        "mean error": float(np.abs(forecast - losses)[hidden].mean()),
        "largest error": float(np.abs(forecast - losses)[hidden].max()),
        "regret": regret(costs, losses, forecast),
        "random": np.median(others, axis=0).tolist(),
    }


def against_reference(cell: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return a cell's losses less those of the reference, seed by seed."""
    (against,) = (
        item["loss"]
        for item in read_result(RESULT)["cells"]
        if (item["strategy"], item["format"]) == REFERENCE
    )
    return np.subtract(cell["loss"], against)


def table() -> str:
    """Return each configuration with its bytes, its losses, measured and forecast, and its frontiers."""
    cells, found = read_result(RESULT)["cells"], completion()
    order = sorted(range(len(cells)), key=lambda place: (found["costs"][place], found["losses"][place]))
    rows = []
    for place in order:
        cell, difference = cells[place], against_reference(cells[place])
        rows.append(
            {
                "bytes": f"{cell['bytes']:g}",
                "strategy": f"`{cell['strategy']}`",
                "format": cell["format"],
                "rate": f"{cell['peak']:g}",
                "validation loss": f"{np.mean(cell['loss']):.4f}" + ("*" if cell["diverged"] else ""),
                "minus `fp32-master`, bfloat16": paired.shown(difference),
                "apart": paired.answer(difference),
                "EDQ": "" if cell["edq"] is None else f"{cell['edq']:.4f}",
                "completed": "measured" if place in found["chosen"] else f"{found['forecast'][place]:.4f}",
                "frontier": ", ".join(
                    label for label in ("measured", "forecast") if place in found[f"{label} frontier"]
                ),
            }
        )
    random_error, random_regret = found["random"]
    about = (
        f"Of {len(cells)} cells {len(found['chosen'])} were measured, by D-optimal choice, and the others "
        f"completed at rank {found['rank']}: off by {found['mean error']:.4f} in the mean and "
        f"{found['largest error']:.4f} at most. Who follows the forecast frontier loses at most "
        f"{found['regret']:.4f} nats at any budget; with cells chosen at random (medians of {DRAWS} draws) "
        f"the mean error is {random_error:.4f}, and {random_regret:.4f} are lost. * diverged: counted as "
        "log 256."
    )
    return f"{markdown_table(rows)}\n\n{about}"


def draw() -> None:
    """Draw loss against bytes with both frontiers, low losses nearer, and losses against their forecast."""
    cells, found = read_result(RESULT)["cells"], completion()
    whole = [place for place, cell in enumerate(cells) if not cell["diverged"]]
    with subplots(1, 3, width=12, height=4.4) as (figure, (axes,)):
        left, near, right = axes
        for panel in (left, near):
            _draw_points(panel, whole, cells, found, found["costs"], found["losses"])
            _draw_frontiers(panel, whole, found)
            panel.set_xlabel("bytes a parameter")
        left.set(title="validation loss of the language model (nats)", ylim=(2.7, 5.2), xlim=(3.3, 20.7))
        _draw_diverged(left, cells, found["costs"])
        near.set(title=f"the same, below {LOW} nats", ylim=(2.77, LOW), xlim=(7.4, 20.7))
        _name(near, cells)
        _draw_points(right, range(len(cells)), cells, found, found["losses"], found["forecast"])
        ends = [found["losses"].min(), found["losses"].max()]
        right.plot(ends, ends, color=COLOURS["grey"], linewidth=0.8, zorder=0)
        right.set(xlabel="measured loss (nats)", title="loss completed from a fifth of the cells (nats)")
        right.text(
            0.97, 0.05, "filled: these were measured", ha="right", transform=right.transAxes, fontsize=8
        )
        right.annotate(
            "diverged, counted\nas log 256", (NOTHING, NOTHING), xytext=(-10, 0), ha="right", va="center",
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8.5)
        message(
            figure,
            f"A fifth of the cells, well chosen, tells the others to {found['mean error']:.2f} nats in the "
            f"mean; chosen at random, to {found['random'][0]:.2f}",
        )
        save(figure, FIGURES / RESULT)


def _name(panel: Any, cells: list[dict[str, Any]]) -> None:
    """Name some configurations, and draw how far seeds differ."""
    low = [cell["loss"] for cell in cells if np.mean(cell["loss"]) < LOW]
    spread = np.sqrt(np.var(low, axis=1, ddof=1).mean())
    grey = COLOURS["grey"]
    panel.errorbar(18, 2.955, spread, color=grey, capsize=3, linewidth=1.2)
    text = "+- one standard\ndeviation of\nthe seeds"
    panel.text(17.7, 2.955, text, ha="right", va="center", fontsize=8, color=grey)
    for cell in cells:
        if cell["format"] == FORMATS[0] and cell["strategy"] in NAMED:
            panel.annotate(
                cell["strategy"], (cell["bytes"], np.mean(cell["loss"])),
                xytext=NAMED[cell["strategy"]], textcoords="offset points", fontsize=8,
            )  # fmt: skip


def _draw_points(
    panel: Any, places: Iterable[int], cells: list[dict[str, Any]], found: dict[str, Any], x: Any, y: Any
) -> None:
    """Draw configurations, those filled that the forecast has seen."""
    for place in places:
        mark, colour = LOOK[cells[place]["format"]]
        inside = colour if place in found["chosen"] else "white"
        panel.plot(x[place], y[place], mark, color=colour, markersize=5.5, markerfacecolor=inside)


def _draw_frontiers(panel: Any, whole: list[int], found: dict[str, Any]) -> None:
    """Draw both frontiers of what was trained to the end, and their legend."""
    for low, (mark, colour) in LOOK.items():
        panel.plot([], [], mark, color=colour, label=low)
    for label, colour, style in (("measured", "black", "-"), ("forecast", "purple", (0, (3, 2)))):
        line = [place for place in found[f"{label} frontier"] if place in whole]
        costs, losses = found["costs"], found["losses"]
        panel.step(
            [*costs[line], costs.max()], [*losses[line], losses[line[-1]]], where="post", linestyle=style,
            linewidth=1.4, color=COLOURS[colour], label=f"{label} frontier", zorder=0,
        )  # fmt: skip


def _draw_diverged(panel: Any, cells: list[dict[str, Any]], costs: Any) -> None:
    """Draw the configurations that diverged at the top edge, one below the other."""
    high: dict[float, int] = {}
    for place, cell in enumerate(cells):
        if cell["diverged"]:
            row = high[costs[place]] = high.get(costs[place], -1) + 1
            mark, colour = LOOK[cell["format"]]
            panel.plot(
                costs[place], 0.99 - 0.035 * row, mark, color=colour, markersize=5.5, markerfacecolor="white",
                transform=panel.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip
    panel.text(
        max(high) + 0.5, 0.99, "diverged", va="center", fontsize=8, transform=panel.get_xaxis_transform()
    )


def study() -> None:
    """Measure, and draw: minutes."""
    main([])


def main(arguments: list[str] | None = None) -> None:
    """Measure, unless ``--quick`` is given, and draw."""
    given = sweep_options(__doc__, RESULT).parse_args(arguments)
    if not given.quick:
        measure(given)
    draw()


if __name__ == "__main__":
    main()
