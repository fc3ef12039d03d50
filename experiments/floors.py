"""The floors of the package, as `make lint` holds them, and the ways of a sum and of a step through them."""

from __future__ import annotations

import tomllib
from typing import Any

from matplotlib.patches import FancyBboxPatch

from experiments.common import FIGURES, ROOT
from mcfsim.report.plotting import COLOURS, message, save, subplots

#: The ways that the design page describes: where each of its numbered steps happens.
WAYS = {
    "a sum, ar.add(a, b)": ("blue", 2.2, {"1": "backends", "2, 3": "kernels"}),
    "a step, Optimizer.step(gradient, rate)": (
        "vermilion",
        -2.2,
        {"1": "optim", "2": "compile", "3": "kernels"},
    ),
}
#: Widths of a letter and of what surrounds a name, in units of the picture.
LETTER, AROUND, APART = 1.0, 3.2, 1.0


def contracted_floors() -> list[list[str]]:
    """Return the names on each floor, from the top, as the contract in `pyproject.toml` has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("mcfsim.") for name in floor.split(":")] for floor in layers]


def _draw(axes: Any, given: list[list[str]]) -> dict[str, tuple[float, float]]:
    """Draw a box for each name, and return the middle of each box."""
    middles = {}
    for row, names in enumerate(given):
        widths = [LETTER * len(name) + AROUND for name in names]
        left, height = -(sum(widths) + APART * (len(names) - 1)) / 2, -row
        for name, width in zip(names, widths, strict=True):
            judge = name == "oracle"
            box = FancyBboxPatch(
                (left, height - 0.3),
                width,
                0.6,
                boxstyle="round,pad=0,rounding_size=0.15",
                mutation_aspect=0.12,
                facecolor="#FFF3D6" if judge else "#F2F2F2",
                edgecolor=COLOURS["orange"] if judge else "#BDBDBD",
            )
            axes.add_patch(box)
            axes.text(left + width / 2, height, name, ha="center", va="center", family="monospace", size=9)
            middles[name] = left + width / 2, height
            left += width + APART
    return middles


def main() -> None:
    """Draw."""
    given = contracted_floors()
    with subplots(1, 1, width=9.5, height=4.6) as (figure, grid):
        axes = grid[0][0]
        axes.axis("off")
        middles = _draw(axes, given)
        wide = max(abs(x) for x, _ in middles.values()) + 14
        axes.set_xlim(-wide - 6, wide)
        axes.set_ylim(-len(given) + 0.4, 0.6)
        axes.annotate(
            "imports",
            (-wide - 1, -len(given) + 0.6),
            (-wide - 1, 0.2),
            ha="center",
            color=COLOURS["grey"],
            arrowprops={"arrowstyle": "-|>", "color": COLOURS["grey"], "linewidth": 1.5},
        )
        for label, (colour, aside, places) in WAYS.items():
            points = [(middles[name][0] + aside, middles[name][1] - 0.3) for name in places.values()]
            axes.plot(*zip(*points, strict=True), color=COLOURS[colour], zorder=0, label=label)
            for steps, (x, y) in zip(places, points, strict=True):
                box = {"boxstyle": "round,pad=0.25", "facecolor": COLOURS[colour], "edgecolor": "none"}
                axes.text(x, y, steps, ha="center", va="center", color="white", size=7.5, bbox=box)
        axes.plot([], [], "s", color=COLOURS["orange"], label="the judge: shares no code with what it judges")
        axes.legend(loc="upper right")
        message(figure, "Imports point down: a folder or module uses only its own floor and those below")
        save(figure, FIGURES / "floors")


if __name__ == "__main__":
    main()
