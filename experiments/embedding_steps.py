"""An embedding table of few bits: steps learned or fixed, codes rounded at random or to nearest.

A small language model whose other tensors are in binary32; AdamW makes the updates of all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.cells import Model
from experiments.common import FIGURES, in_processes, read_result, write_result
from experiments.learned_step import LearnedStepTable
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.schedule import clipped

RESULT = "embedding_steps"
MODEL, STEPS, SEEDS = Model(layers=1, width=32, heads=2, context=32), 300, (0, 1, 2)
SCHEDULE = mcf.Schedule(peak=3e-3, warmup=30, final=0.1)
HYPER = mcf.AdamW(beta2=0.95, weight_decay=0.0)
BITS = (2, 3, 4, 8)
#: Of the steps' gradient, times the schedule's shape.
STEP_RATE = 0.1
#: How a table is kept: whether steps are learned, and how codes are rounded.
KINDS = {
    "learned steps, at random": (True, "stochastic"),
    "fixed steps, at random": (False, "stochastic"),
    "learned steps, to nearest": (True, "nearest_even"),
    "fixed steps, to nearest": (False, "nearest_even"),
}
WHOLE = "float32 table"


def train(kind: str, bits: int, seed: int) -> list[float]:
    """Return the validation loss, and the mean of the last steps over that of the first."""
    problem = MODEL.problem()
    start = {name: np.asarray(x, np.float32) for name, x in problem.initial_parameters(seed).items()}
    optimizer = mcf.Optimizer(HYPER, mcf.strategy("fp32"), start, problem.decayed, steps=STEPS)
    place = optimizer.layout.slices["embedding"]
    kept = optimizer.state.parameter[0][place]
    if kind == WHOLE:
        table, learned = None, False
    else:
        learned, rounding = KINDS[kind]
        table = LearnedStepTable(start["embedding"], bits, seed, rounding=rounding)
        kept[:] = table.weights().ravel()
        first = table.steps.mean()
    scale = 1 / math.sqrt(problem.batch * problem.context * problem.width * (2 ** (bits - 1) - 1))
    for step in range(1, STEPS + 1):
        rate, weights = SCHEDULE.rate(step, STEPS), dict(optimizer.weights())
        weights["embedding"] = weights["embedding"].copy()
        others = {name: x.copy() for name, x in weights.items()} if learned else weights
        gradients, _ = clipped(problem.loss_and_gradient(weights, step, seed)[1], 1.0)
        update = optimizer.step(optimizer.receive(gradients), rate)
        if table is None:
            continue
        moved = table.moved(update[place].reshape(start["embedding"].shape))
        second = None
        if learned:
            there = others | {"embedding": moved.rounded}
            second = problem.loss_and_gradient(there, step, seed)[1]["embedding"]
        table.step(moved, second, STEP_RATE * rate / SCHEDULE.peak, scale)
        kept[:] = table.weights().ravel()
    loss = problem.validation_loss({name: np.asarray(x) for name, x in optimizer.weights().items()})
    return [loss, 1.0 if table is None else float(table.steps.mean() / first)]


def table() -> str:
    """Return the loss of each kind of table by bits, less that of one in binary32."""
    found = read_result(RESULT)["losses"]
    whole = np.array(found[WHOLE])[:, 0]
    rows = []
    for kind in KINDS:
        row = {"embedding table": kind}
        for bits in BITS:
            gap = np.array(found[kind][str(bits)])[:, 0] - whole
            row[f"{bits} bits"] = paired.shown(gap)
        rows.append(row)
    about = f"Validation loss less that of a float32 table, {whole.mean():.4f} +- {whole.std(ddof=1):.4f}."
    return f"{markdown_table(rows)}\n\n{about}"


def draw() -> None:
    """Draw the losses by bits."""
    found = read_result(RESULT)["losses"]
    colours = [COLOURS[name] for name in ("blue", "sky", "vermilion", "orange")]
    whole = np.array(found[WHOLE])[:, 0]
    with subplots(width=7.8, height=3.6) as (figure, ((panel,),)):
        for (kind, (learned, _)), colour in zip(KINDS.items(), colours, strict=True):
            gaps = np.array([np.array(found[kind][str(bits)])[:, 0] - whole for bits in BITS])
            panel.errorbar(
                range(len(BITS)), gaps.mean(axis=1), gaps.std(axis=1, ddof=1), color=colour, label=kind,
                marker="o", markersize=4, capsize=2, linestyle="-" if learned else (0, (4, 2)),
            )  # fmt: skip
        panel.axhline(0, color=COLOURS["grey"], linewidth=0.8)
        panel.set(xlabel="bits of the embedding table")
        panel.set_xticks(range(len(BITS)), [str(bits) for bits in BITS])
        panel.set_title("validation loss minus that of a float32 table (nats)")
        panel.legend(fontsize=8)
        message(
            figure,
            "A table of four bits learns when it is rounded at random, and stands still to nearest",
        )
        save(figure, FIGURES / RESULT)


def main() -> None:
    """Train all, and draw."""
    jobs: list[tuple[Any, ...]] = [(WHOLE, 8, seed) for seed in SEEDS]
    jobs += [(kind, bits, seed) for kind in KINDS for bits in BITS for seed in SEEDS]
    done = dict(zip(jobs, in_processes(train, jobs), strict=True))
    losses: dict[str, Any] = {
        kind: {str(bits): [done[kind, bits, seed] for seed in SEEDS] for bits in BITS} for kind in KINDS
    }
    losses[WHOLE] = [done[WHOLE, 8, seed] for seed in SEEDS]
    write_result(
        RESULT,
        {
            "settings": {"seeds": SEEDS, "steps": STEPS, "peak": SCHEDULE.peak, "step_rate": STEP_RATE}
            | {"problem": MODEL.problem().settings()},
            "losses": losses,
        },
    )
    draw()


if __name__ == "__main__":
    main()
