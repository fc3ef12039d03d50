"""The error of a gradient that is a sum over many micro-batches or ranks, by order and format."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, read_result, write_result
from experiments.drawing import draw_seeds
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel

RESULT = "reduced_gradients"
COUNTS, SEEDS = tuple(2**k for k in range(9)), range(4)
#: How gradients are added: arguments of `mcf.reduce`.
WAYS: dict[str, dict[str, Any]] = {
    "bf16, one after another": {"order": "sequential", "format": "bfloat16"},
    "bf16, ring": {"order": "ring", "format": "bfloat16"},
    "bf16, tree": {"order": "binomial", "format": "bfloat16"},
    "fp32, then bf16": {"order": "sequential", "format": "float32", "out_format": "bfloat16"},
}
STYLES: dict[str, dict[str, Any]] = {
    "bf16, one after another": {"color": COLOURS["vermilion"]},
    "bf16, ring": {"color": COLOURS["orange"], "linestyle": (0, (5, 2))},
    "bf16, tree": {"color": COLOURS["blue"]},
    "fp32, then bf16": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
}


def gradients(seed: int) -> list[np.ndarray[Any, Any]]:
    """Return the gradients of many batches at the initial weights, in bf16, each as one vector."""
    problem = LanguageModel()
    weights = problem.initial_parameters(seed)
    found = []
    for batch in range(COUNTS[-1]):
        _, gradient = problem.loss_and_gradient(weights, batch, seed)
        whole = np.concatenate([gradient[name].ravel() for name in sorted(gradient)])
        found.append(mcf.round_to(whole, "bfloat16"))
    return found


def errors(seed: int) -> dict[str, list[float]]:
    """Return the relative error of each way's sum, a number for each count."""
    parts, rows = gradients(seed), {name: list[float]() for name in WAYS}
    for count in COUNTS:
        exact = np.sum(parts[:count], axis=0, dtype=np.float64)
        for name, options in WAYS.items():
            off = mcf.reduce(parts[:count], **options) - exact
            rows[name].append(float(np.linalg.norm(off) / np.linalg.norm(exact)))
    return rows


def draw() -> None:
    """Draw the errors against the number of gradients."""
    found = read_result(RESULT)["errors"]
    with subplots(1, 1, width=7.5, height=4) as (figure, axes):
        panel = axes[0][0]
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        for name, style in STYLES.items():
            draw_seeds(panel, COUNTS[1:], np.array(found[name])[:, 1:], {"label": name, **style})
        panel.set_xlabel("gradients that are added (micro-batches or ranks)")
        panel.set_ylabel("error of the sum,\nrelative to its norm")
        label_ends(panel, gap=0.085)
        message(figure, "Gradients added in bf16 one after another lose ever more; a tree or fp32 does not")
        save(figure, FIGURES / RESULT)


def table() -> str:
    """Return the errors of some counts."""
    found, rows = read_result(RESULT)["errors"], []
    for name in WAYS:
        numbers = np.array(found[name])
        rows.append(
            {
                "added in": name,
                **{
                    f"{count} gradients": f"{numbers[:, COUNTS.index(count)].mean():.2%}"
                    for count in (2, 8, 64, 256)
                },
            }
        )
    return markdown_table(rows)


def main() -> None:
    """Run, write the numbers, draw."""
    made = [errors(seed) for seed in SEEDS]
    write_result(
        RESULT,
        {
            "problem": LanguageModel().settings(),
            "seeds": list(SEEDS),
            "counts": COUNTS,
            "errors": {name: [rows[name] for rows in made] for name in WAYS},
        },
    )
    draw()


if __name__ == "__main__":
    main()
