"""Replicas that train on the mean of their gradients and round at random: with one seed, and with two."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import read_result, resumed, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import Quadratic

DIMENSION, STEPS, RATE = 200, 400, 1e-3
#: Steps at which the replicas are compared.
SHOWN = (1, 10, 50, 100, 200, 400)
#: Pairs of runs, by what they start from and what they draw.
SEEDS = (0, 1, 2)
STRATEGIES = ("stochastic-parameter", "stochastic")


def apart(strategy: str, seed: int, shared: bool) -> list[float]:
    """Return the root mean square of two replicas' difference after some steps, relative to the weights'."""
    problem, chosen = Quadratic(DIMENSION, 100.0, seed=seed), mcf.strategy(strategy)
    start = problem.initial_parameters(seed)
    words = [mcf.RandomWords(2 * seed), mcf.RandomWords(2 * seed + (not shared))]
    pair = [mcf.Optimizer(mcf.AdamW(), chosen, start, random=drawn) for drawn in words]
    found = []
    for step in range(1, STEPS + 1):
        given = []
        for replica in pair:
            weights = {name: x.astype(np.float64) for name, x in replica.weights().items()}
            given.append(problem.loss_and_gradient(weights, step, seed)[1])
        mean = {name: (given[0][name] + given[1][name]) / 2 for name in given[0]}
        for replica in pair:
            replica.advance(replica.receive(mean), RATE)
        if step in SHOWN:
            one, other = (r.weights()["x"].astype(np.float64) for r in pair)
            found.append(float(np.sqrt(np.sum((one - other) ** 2) / np.sum(one**2))))
    return found


def table() -> str:
    """Return the table of the result file."""
    result = read_result("replicas")
    rows = []
    for name, kinds in result["apart"].items():
        for kind, by_seed in kinds.items():
            runs = np.array(by_seed)
            cells = {"strategy": f"`{name}`", "seeds": kind}
            for place, step in enumerate(result["shown"]):
                middle, spread = runs[:, place].mean(), runs[:, place].std(ddof=1)
                cells[f"step {step}"] = f"{middle:.2e} +- {spread:.0e}" if runs.any() else "0"
            rows.append(cells)
    return markdown_table(rows)


def study() -> None:
    """Run, and write the numbers."""
    jobs = [(name, seed, shared) for name in STRATEGIES for shared in (True, False) for seed in SEEDS]
    found: dict[str, dict[str, Any]] = {name: {"one": [], "two": []} for name in STRATEGIES}
    for (name, _, shared), run in zip(jobs, resumed("replicas", apart, jobs), strict=True):
        found[name]["one" if shared else "two"].append(run)
    write_result("replicas", {"steps": STEPS, "rate": RATE, "shown": list(SHOWN), "apart": found})


if __name__ == "__main__":
    study()
