"""Train with some tensors on a grid and the others with fp32 master weights: which of them cost the loss.

Direct quantised training in 8 bits and BitNet, as in `experiments.dqt_bits`, with the same tensors on their
grids. What a strategy loses by a tensor on a grid shows when that tensor alone is taken off it, or put on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired, side_by_side
from experiments.common import read_result, resumed, write_result
from experiments.dqt_bits import BITNET, HYPER, LONG, RATE, REFERENCE, SEEDS
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel
from mcfsim.training.problems.language_model import VOCABULARY

RESULT, DQT = "dqt_tensors", "dqt-int8"
SCHEDULE = mcf.Schedule(peak=RATE, warmup=0, final=1.0)
#: Steps of the comparison of widths.
SHORT, WIDTHS = 120, (64, 128, 256)
#: Which tensors lie on grids, by what tables call them.
CHOICES: dict[str, Callable[[str], bool]] = {
    "all": lambda name: True,
    "all but the gains": lambda name: not name.endswith("gain"),
    "all but the embedding": lambda name: name != "embedding",
    "the layers' matrices": lambda name: name.startswith("layer") and not name.endswith("gain"),
    "the embedding": lambda name: name == "embedding",
}
ALL, MATRICES = "all", "the layers' matrices"


def loss(strategy: str, choice: str, width: int, steps: int, seed: int) -> float:
    """Return the validation loss of a model of some width with the chosen tensors on a strategy's grid."""
    problem = LanguageModel(width=width)
    start = side_by_side.rounded_start(problem, seed)
    chosen = {
        name: mcf.strategy(strategy if CHOICES[choice](name) else REFERENCE, "bfloat16") for name in start
    }
    return side_by_side.train(problem, HYPER, chosen, start, SCHEDULE, steps, seed)


def jobs() -> list[tuple[str, str, int, int, int]]:
    """Return the arguments of every training."""
    shapes = [(choice, 64, LONG) for choice in CHOICES]
    shapes += [(choice, width, SHORT) for width in WIDTHS for choice in (ALL, MATRICES)]
    return [(one, *shape, seed) for shape in shapes for one in (DQT, BITNET) for seed in SEEDS]


def study() -> None:
    """Train all."""
    made = resumed(RESULT, loss, jobs())
    rows = [
        {"strategy": one, "on the grid": choice, "width": width, "steps": steps, "seed": seed, "loss": found}
        for (one, choice, width, steps, seed), found in zip(jobs(), made, strict=True)
    ]
    settings = {"problem": LanguageModel().settings(), "rate": RATE, "seeds": SEEDS}
    write_result(RESULT, {"settings": settings, "runs": rows})


def losses() -> dict[tuple[str, int, int], dict[str, list[float]]]:
    """Return the losses of both strategies, one a seed, by tensors on the grid, width and steps."""
    found: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for row in read_result(RESULT)["runs"]:
        shape = row["on the grid"], row["width"], row["steps"]
        found.setdefault(shape, {}).setdefault(row["strategy"], []).append(row["loss"])
    return found


def above_bitnet(found: dict[str, list[float]]) -> np.ndarray[Any, Any]:
    """Return what 8 bits lose against BitNet, relative, seed by seed."""
    return np.array(found[DQT]) / found[BITNET] - 1


def least_loss(width: int) -> float:
    """Return the least possible loss of a model while embedding and last gain keep to their first grids.

    Magnitudes of the normalised stream add up to the width at most. A gain is 128/127 at most, and a weight
    of the embedding, which is the head, 128/127 of the mean magnitude at the start. That bounds logits.
    """
    table = LanguageModel(width=width).initial_parameters(SEEDS[0])["embedding"]
    logit = width * float(np.abs(table).mean()) * (128 / 127) ** 2
    return math.log1p((VOCABULARY - 1) * math.exp(-2 * logit))


def table() -> str:
    """Return what 8 bits lose against BitNet, by the tensors that lie on grids."""
    rows = []
    for (choice, width, steps), found in losses().items():
        above = above_bitnet(found)
        rows.append(
            {
                "on grids": choice,
                "width": str(width),
                "steps": str(steps),
                f"`{DQT}`": f"{np.mean(found[DQT]):.3f}",
                f"`{BITNET}`": f"{np.mean(found[BITNET]):.3f}",
                f"against `{BITNET}` (95 % interval)": paired.percent(above),
                "apart": paired.answer(above),
                "loses at least": f"{least_loss(width):.2f}" if choice == ALL else "",
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    study()
