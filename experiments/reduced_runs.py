"""What a training loses by the order and format in which it adds the gradients of its micro-batches."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.common import read_result, resumed, write_result
from experiments.reduced_gradients import WAYS
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel

RESULT = "reduced_runs"
PARTS, STEPS = 128, 60
#: Rates are tried on one seed, and the best reported on the others.
RATES, TRIED, SEEDS = (2e-3, 4e-3, 8e-3), 1000, tuple(range(6))
REFERENCE = "fp32, then bf16"


def problem() -> LanguageModel:
    """Return a small model, with one sequence a micro-batch."""
    return LanguageModel(layers=1, width=32, batch=1)


def train(way: str, rate: float, seed: int) -> float:
    """Return the validation loss of a training with fp32 master weights."""
    run = mcf.simulate(
        problem(),
        mcf.AdamW(beta2=0.95),
        "fp32-master",
        STEPS,
        mcf.Schedule(rate, warmup=STEPS // 10, final=0.1),
        seed,
        reduction=mcf.Reduction(PARTS, **WAYS[way]),
        record_every=STEPS,
        progress=False,
    )
    return float(run.results["fp32-master"]["validation_loss"])


def study() -> None:
    """Choose the rates, train, and write the results; some eight minutes on one core."""
    tried = [(way, rate, TRIED) for way in WAYS for rate in RATES]
    by_rate = dict(zip(tried, resumed(RESULT, train, tried), strict=True))
    best = {way: min(RATES, key=lambda rate, way=way: by_rate[way, rate, TRIED]) for way in WAYS}  # type: ignore[misc]
    jobs = [(way, best[way], seed) for way in WAYS for seed in SEEDS]
    losses = dict(zip(jobs, resumed(RESULT, train, jobs), strict=True))
    write_result(
        RESULT,
        {
            "settings": {
                "problem": problem().settings(),
                "micro_batches": PARTS,
                "steps": STEPS,
                "tuning_seed": TRIED,
                "seeds": SEEDS,
            },
            "tuning": {way: {f"{rate:g}": by_rate[way, rate, TRIED] for rate in RATES} for way in WAYS},
            "runs": {
                way: {"rate": best[way], "loss": [losses[way, best[way], seed] for seed in SEEDS]}
                for way in WAYS
            },
        },
    )


def difference(way: str) -> np.ndarray[Any, Any]:
    """Return the losses of a way less those of the reference, seed by seed, each at its own best rate."""
    runs = read_result(RESULT)["runs"]
    return np.array(runs[way]["loss"], float) - np.array(runs[REFERENCE]["loss"], float)


def table() -> str:
    """Return the final loss of each way."""
    runs, rows = read_result(RESULT)["runs"], []
    for way, row in runs.items():
        gap = difference(way)
        rows.append(
            {
                "added in": way,
                "best rate": f"{row['rate']:g}",
                "validation loss": f"{np.mean(row['loss']):.4f}",
                "minus the last row's (95 % interval)": "" if way == REFERENCE else paired.shown(gap),
                "apart": paired.answer(gap),
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    study()
