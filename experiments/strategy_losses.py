"""Every strategy on a small language model: at one rate for all, and each at its own best one; ten seeds."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired, strategies, tuning
from experiments.cells import NOTHING, Cell, Model
from experiments.common import read_result, resumed, write_result
from mcfsim.optim.strategies import GRID_STRATEGIES, STRATEGIES
from mcfsim.report.tables import markdown_table

RESULT, LOW, REFERENCE = "strategy_losses", "bfloat16", "fp32-master"
MODEL, STEPS, BETA2 = Model(width=32), 200, 0.999
SEEDS = tuple(range(10))
#: How columns of differences are called.
LABELS = {
    "common": "minus `fp32-master`, both at its rate (95 % interval)",
    "own": "each at its own rate (95 % interval)",
}
Array = np.ndarray[Any, Any]


def names() -> list[str]:
    """Return the strategies that bfloat16 allows, except exact numbers."""
    return [name for name in (*STRATEGIES, *GRID_STRATEGIES) if strategies.bytes_of(name) is not None]


def train(name: str, rate: float, seed: int) -> dict[str, Any]:
    """Train one seed; return its loss, None if it diverged, its EDQ and the share that is lost."""
    cell = Cell(mcf.strategy(name, LOW), mcf.get_format(LOW), MODEL, rate, BETA2, STEPS)
    found = cell(seed, seed + 1)
    return {measure: found[measure][0] for measure in ("loss", "edq", "lost")}


def study() -> None:
    """Choose the rates, and train at the reference's and at each one's own; some 15 minutes on two cores."""
    options = names()
    tuned = tuning.tune(options, partial(tuning.losses, RESULT, train))
    best = {name: tuning.best_rate(tuned[name]) for name in options}
    rates = {name: {"common": best[REFERENCE], "own": best[name]} for name in options}
    jobs = [(name, rate, seed) for name in options for rate in {*rates[name].values()} for seed in SEEDS]
    made = dict(zip(jobs, resumed(RESULT, train, jobs), strict=True))
    rows = {
        name: {
            "rates": by_kind,
            "tuning": {f"{rate:g}": losses for rate, losses in tuned[name].items()},
            **{
                kind: {
                    measure: [made[name, rate, seed][measure] for seed in SEEDS]
                    for measure in ("loss", "edq", "lost")
                }
                for kind, rate in by_kind.items()
            },
        }
        for name, by_kind in rates.items()
    }
    settings = {"steps": STEPS, "beta2": BETA2, "seeds": SEEDS, "tuning_seeds": tuning.SEEDS}
    write_result(
        RESULT,
        {
            "settings": {**settings, "problem": MODEL.problem().settings()},
            "strategies": rows,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def losses(kind: str) -> dict[str, Array]:
    """Return the losses of each strategy, one a seed, at the ``common`` rate or each one's ``own``.

    A run that diverged counts as a model that knows nothing.
    """
    rows = read_result(RESULT)["strategies"]
    return {
        name: np.array([NOTHING if x is None else x for x in row[kind]["loss"]]) for name, row in rows.items()
    }


def better(kind: str) -> dict[str, list[str]]:
    """Return, for each strategy, those that lose less by an interval that excludes zero."""
    found = losses(kind)
    return {
        name: [
            other
            for other, theirs in found.items()
            if other != name and paired.interval(mine - theirs)[0] > 0
        ]
        for name, mine in found.items()
    }


def order() -> list[str]:
    """Return the strategies, each at its own rate, ordered by how many others are found to lose less."""
    found, means = better("own"), {name: row.mean() for name, row in losses("own").items()}
    return sorted(found, key=lambda name: (len(found[name]), means[name]))


def against_reference(kind: str, name: str) -> str:
    """Return what a strategy loses against the reference, with its interval, as tables show it."""
    found = losses(kind)
    return "" if name == REFERENCE else paired.shown(found[name] - found[REFERENCE], 3)


def table() -> str:
    """Return one row per strategy in bfloat16, ordered by how many others are found to lose less.

    Raises
    ------
    KeyError
        If a strategy has no words.
    """
    measured, less = read_result(RESULT)["strategies"], better("own")
    known = order()
    rows = []
    for name in [*known, *(name for name in (*STRATEGIES, *GRID_STRATEGIES) if name not in known)]:
        words, size, row = strategies.WORDS[name], strategies.bytes_of(name), measured.get(name)
        rows.append(
            {
                "strategy": f"`{name}`",
                "bytes": "" if size is None else f"{size:g}",
                "lose less": "" if row is None else str(len(less[name])),
                **{
                    label: "" if row is None else against_reference(kind, name)
                    for kind, label in LABELS.items()
                },
                "own rate": "" if row is None else f"{row['rates']['own']:g}",
                "EDQ": ""
                if row is None or None in row["own"]["edq"]
                else f"{np.mean(row['own']['edq']):.4f}",
                "what is lost": words.lost,
                "when it fails": words.fails,
                "source": words.source,
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    study()
