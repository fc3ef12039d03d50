"""Train under assignments of two strategies to tensors, at equal bytes: by sensitivity, by size, by chance.

The assignments follow from the initial weights, and from gradients recorded with fp32 master weights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import mcfsim as mcf
from experiments import paired, side_by_side
from experiments.cells import Model
from experiments.common import in_processes, read_result, write_result
from mcfsim.models.assigning import assign, candidates_of
from mcfsim.models.audit import audit
from mcfsim.models.known import RecordedUpdates
from mcfsim.models.plan import Plan
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.tables import markdown_table

RESULT = "assignment"
MODEL, STEPS, SEEDS = Model(layers=2, width=32, heads=4, context=64), 150, (0, 1, 2)
SCHEDULE = mcf.Schedule(peak=3e-4, warmup=15, final=0.1)
HYPER = mcf.AdamW(beta2=0.95, weight_decay=0.1)
#: The dearer and the cheaper strategy; 10 and 8 bytes.
HIGH, LOW = "collage-light", "plain"
BUDGETS = (8.25, 8.5, 9.0)
METHODS = ("sensitivity", "demotion", "chance")


def train(chosen: dict[str, str], seed: int, folder: Path | None = None) -> float:
    """Return the validation loss when each tensor has its strategy; record gradients in a folder."""
    problem = MODEL.problem()
    start = {name: np.asarray(x, np.float32) for name, x in problem.initial_parameters(seed).items()}
    strategies = {name: mcf.strategy(one) for name, one in chosen.items()}
    keep = None if folder is None else mcf.record(start, folder).step
    return side_by_side.train(problem, HYPER, strategies, start, SCHEDULE, STEPS, seed, keep)


def assigned(seed: int) -> dict[str, dict[str, str]]:
    """Return the strategy of each tensor, by method and budget, of a seed's model."""
    low = mcf.get_format("bfloat16")
    names = MODEL.problem().shapes
    found = {HIGH: dict.fromkeys(names, HIGH), LOW: dict.fromkeys(names, LOW)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(dict.fromkeys(names, "fp32-master"), seed, folder)
        samples = scan(open_weights(folder / "weights.safetensors"), 1024)
        plan = Plan(HYPER, SCHEDULE, STEPS, candidates_of([low], [HIGH, LOW]), RecordedUpdates(folder))
        audited = audit(samples, plan, low)
        for budget in BUDGETS:
            for method in METHODS[:2]:
                rows = assign(audited, samples, budget, method).tensors()
                found[f"{method} {budget}"] = {
                    tensor.name: item.name.partition(" ")[0] for tensor, item, _ in rows
                }
            found[f"chance {budget}"] = by_chance(budget, seed)
    return found


def by_chance(budget: float, seed: int) -> dict[str, str]:
    """Return the assignment that demotes tensors in a random order until a budget is kept."""
    sizes = {name: int(np.prod(shape)) for name, shape in MODEL.problem().shapes.items()}
    chosen, spent = dict.fromkeys(sizes, HIGH), 10.0
    for name in np.random.default_rng(seed).permutation(list(sizes)).tolist():
        if spent <= budget:
            break
        chosen[name] = LOW
        spent -= 2 * sizes[name] / sum(sizes.values())
    return chosen


def bytes_of(chosen: dict[str, str]) -> float:
    """Return the bytes per parameter of an assignment."""
    sizes = {name: int(np.prod(shape)) for name, shape in MODEL.problem().shapes.items()}
    total = sum(size * (10 if chosen[name] == HIGH else 8) for name, size in sizes.items())
    return total / sum(sizes.values())


def of_seed(seed: int) -> dict[str, list[float]]:
    """Return bytes and loss of each assignment."""
    return {name: [bytes_of(chosen), train(chosen, seed)] for name, chosen in assigned(seed).items()}


def table() -> str:
    """Return the loss of each method at each budget, less that of storing all tensors in components."""
    found = read_result(RESULT)["seeds"]
    base = np.array([seed[HIGH][1] for seed in found])
    rows = []
    for name in (LOW, *(f"{method} {budget}" for budget in BUDGETS for method in METHODS), HIGH):
        gap = np.array([seed[name][1] for seed in found]) - base
        method, _, budget = name.partition(" ")
        rows.append(
            {
                "assigned by": f"all `{name}`" if not budget else method,
                "budget": budget,
                "bytes": f"{np.mean([seed[name][0] for seed in found]):.3f}",
                f"loss minus all `{HIGH}`": "" if name == HIGH else paired.shown(gap),
            }
        )
    return markdown_table(rows)


def main() -> None:
    """Assign, and train."""
    seeds = in_processes(of_seed, [(seed,) for seed in SEEDS])
    write_result(
        RESULT,
        {
            "settings": {"seeds": SEEDS, "steps": STEPS, "peak": SCHEDULE.peak, "budgets": BUDGETS}
            | {"problem": MODEL.problem().settings()},
            "seeds": seeds,
        },
    )


if __name__ == "__main__":
    main()
