"""What Newton-Schulz iterations make of matrices by their condition, coefficients and format of iterates."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from experiments.common import FIGURES, read_result, write_result
from experiments.drawing import draw_seeds
from mcfsim.optim.newton_schulz import (
    COEFFICIENTS,
    NewtonSchulz,
    lost_orthogonality,
    orthogonalize,
    polar_distance,
)
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "lost_directions"
SHAPE, SEEDS = (64, 128), range(5)
CONDITIONS = tuple(10.0 ** (k / 2) for k in range(13))
#: What iterates are kept in: a format, and how many numbers of it.
ITERATES: dict[str, dict[str, Any]] = {
    "bf16": {"iterate": "bfloat16"},
    "two bf16": {"iterate": "bfloat16", "components": 2},
    "fp16": {"iterate": "float16"},
    "fp32": {"iterate": "float32"},
}
STYLES: dict[str, dict[str, Any]] = {
    "bf16": {"color": COLOURS["vermilion"]},
    "two bf16": {"color": COLOURS["sky"], "linewidth": 4.5},
    "fp16": {"color": COLOURS["orange"], "linestyle": (0, (5, 2))},
    "fp32": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
}
#: The coefficients that are drawn, which converge; others leave singular values of .7 to 1.2 in any format.
DRAWN = "deepseek-v4"
SHOWN = 1e3


def matrix(condition: float, seed: int) -> np.ndarray[Any, Any]:
    """Return a matrix with singular values in a geometric row, and random directions."""
    random, (rows, columns) = np.random.default_rng(seed), SHAPE
    left = np.linalg.qr(random.standard_normal((rows, rows)))[0]
    right = np.linalg.qr(random.standard_normal((columns, rows)))[0]
    found: np.ndarray[Any, Any] = (left * np.geomspace(1, 1 / condition, rows)) @ right.T
    return found


@cache
def matrices(condition: float) -> np.ndarray[Any, Any]:
    """Return the matrices of a condition, one a seed."""
    return np.array([matrix(condition, seed) for seed in SEEDS])


def measured(coefficients: str, iterates: str) -> dict[str, list[list[float]]]:
    """Return both measures, a row a condition, a column a seed."""
    how = NewtonSchulz(coefficients, **ITERATES[iterates])
    rows: dict[str, list[list[float]]] = {"lost_orthogonality": [], "polar_distance": []}
    for condition in CONDITIONS:
        found = orthogonalize(matrices(condition), how)
        rows["lost_orthogonality"].append([lost_orthogonality(x) for x in found])
        pairs = zip(found, matrices(condition), strict=True)
        rows["polar_distance"].append([polar_distance(*pair) for pair in pairs])
    return rows


def draw() -> None:
    """Draw both measures against the condition."""
    found = read_result(RESULT)["measured"][DRAWN]
    titles = {
        "lost_orthogonality": "in bf16 rows look orthogonal at any\ncondition: |X X' - I| / sqrt n",
        "polar_distance": "yet its distance from the factor is\nthe largest: |X - U V'| / |U V'|",
    }
    with subplots(1, 2, width=10.5, height=4) as (figure, axes):
        for panel, (measure, title) in zip(axes[0], titles.items(), strict=True):
            panel.set_xscale("log")
            panel.set_yscale("log")
            for name, style in STYLES.items():
                numbers = np.array(found[name][measure]).T
                draw_seeds(panel, CONDITIONS, numbers, {"label": name, **style})
            panel.set_title(title)
            panel.set_xlabel("condition of the matrix")
            panel.set_ylim(1e-5, 2)
            label_ends(panel, gap=0.085)
        message(figure, "Two bf16 numbers an element keep the directions that one loses")
        save(figure, FIGURES / RESULT)


def table() -> str:
    """Return both measures at one condition, for all coefficients."""
    result = read_result(RESULT)
    place = min(range(len(CONDITIONS)), key=lambda i: abs(result["conditions"][i] - SHOWN))
    rows = []
    for coefficients, found in result["measured"].items():
        row = {"coefficients": f"`{coefficients}`", "iterations": str(len(COEFFICIENTS[coefficients]))}
        for name in ITERATES:
            pair = (np.mean(found[name][x][place]) for x in ("lost_orthogonality", "polar_distance"))
            row[name] = ", ".join(f"{number:.2g}" for number in pair)
        rows.append(row)
    return markdown_table(rows)


def main() -> None:
    """Run, write the numbers, draw."""
    write_result(
        RESULT,
        {
            "shape": SHAPE,
            "seeds": list(SEEDS),
            "conditions": CONDITIONS,
            "measured": {
                coefficients: {name: measured(coefficients, name) for name in ITERATES}
                for coefficients in COEFFICIENTS
            },
        },
    )
    draw()


if __name__ == "__main__":
    main()
