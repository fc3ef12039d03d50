"""Direct quantised training as published, against BitNet: by width, by steps, and by what lies on a grid.

Models have LLaMA's shape, with an embedding and a head of their own, and activations of 8 bits. The released
code puts every tensor on a grid of integers, also the embedding, the head and the gains; BitNet only the
matrices of the layers. Each training has its own best rate, chosen on a seed that is not reported.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired, side_by_side
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.dqt_bits import BITNET, BY_MEANS, HYPER, REFERENCE, changed
from mcfsim.optim.stored import Reach
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import Llama
from mcfsim.training.problems.language_model import VOCABULARY

RESULT = "dqt_published"
WIDTHS, STEPS, DEPTH = (64, 128, 256, 512), 150, 32
#: Lengths of run that are compared at one width.
LENGTHS, BETWEEN = (75, 150, 300, 600), 128
SEEDS, TUNING = (0, 1, 2), 1000
#: Peak rates of AdamW. Adafactor's are relative to the size of a tensor, of deviation .02.
RATES = tuple(2.5e-4 * 2**k for k in range(5))
#: The widest model takes the rates of the one before it.
TUNED = WIDTHS[:-1]
HYPERS: dict[str, Any] = {"AdamW": HYPER, "Adafactor": BY_MEANS}
PUBLISHED, MATRICES, WIDE = "all on grids, as released", "the layers' matrices", "all, grids that can grow"
WIDENED = changed("dqt-int8", "wide start, max-abs scale", start=Reach.ABSMAX, reach=Reach.ABSMAX)
#: Strategy of the tensors on grids, and whether embedding, head and gains are among them.
CHOICES: dict[str, tuple[Any, bool]] = {
    PUBLISHED: ("dqt-int8", True),
    MATRICES: ("dqt-int8", False),
    WIDE: (WIDENED, True),
    BITNET: (BITNET, False),
}
STYLES = {
    PUBLISHED: (COLOURS["vermilion"], "o"),
    MATRICES: (COLOURS["blue"], "s"),
    WIDE: (COLOURS["green"], "D"),
}


def loss(choice: str, optimizer: str, width: int, steps: int, rate: float, seed: int) -> float | None:
    """Return the validation loss of one training; None if it is not finite."""
    problem = Llama(width=width, heads=width // DEPTH, activation_bits=8)
    start = side_by_side.rounded_start(problem, seed)
    strategy, everything = CHOICES[choice]
    chosen = {
        name: mcf.strategy(strategy if everything or _in_layers(name) else REFERENCE, "bfloat16")
        for name in start
    }
    peak = rate / 0.02 if optimizer == "Adafactor" else rate
    schedule = mcf.Schedule(peak=peak, warmup=steps // 20, final=0.1)
    found = side_by_side.train(problem, HYPERS[optimizer], chosen, start, schedule, steps, seed)
    return found if math.isfinite(found) else None


def _in_layers(name: str) -> bool:
    return name.startswith("layer") and not name.endswith("gain")


def shapes() -> list[tuple[str, str, int, int]]:
    """Return choice, optimizer, width and steps of every training that is compared."""
    pairs = [(choice, optimizer) for optimizer in HYPERS for choice in CHOICES]
    pairs.remove((WIDE, "Adafactor"))
    by_width = [(*pair, width, STEPS) for width in WIDTHS for pair in pairs]
    return sorted(by_width, key=lambda shape: -shape[2]) + [
        (choice, "AdamW", BETWEEN, n) for n in LENGTHS if n != STEPS for choice in CHOICES
    ]


def study() -> None:
    """Choose the rates, and train at them; some 90 minutes on two cores."""
    tried = sorted({(*shape[:2], min(shape[2], TUNED[-1]), shape[3]) for shape in shapes()})
    jobs = [(*shape, rate, TUNING) for shape in tried for rate in RATES]
    tuned: dict[tuple[str, str, int, int], dict[float, float | None]] = {}
    for (*shape, rate, _), found in zip(jobs, resumed(RESULT, loss, jobs), strict=True):
        choice, optimizer, width, steps = shape
        tuned.setdefault((choice, optimizer, width, steps), {})[rate] = found
    runs = []
    for choice, optimizer, width, steps in shapes():
        by_rate = tuned[choice, optimizer, min(width, TUNED[-1]), steps]
        runs += [(choice, optimizer, width, steps, best_rate(by_rate), seed) for seed in SEEDS]
    made = resumed(RESULT, loss, runs)
    keys = ("choice", "optimizer", "width", "steps", "rate", "seed")
    settings = {
        "problem": Llama(activation_bits=8).settings(),
        **{"depth": DEPTH, "rates": RATES, "seeds": SEEDS, "tuning_seed": TUNING},
    }
    write_result(
        RESULT,
        {
            "settings": settings,
            "tuning": [{**dict(zip(keys, job, strict=True)), "loss": tuned[job[:4]][job[4]]} for job in jobs],
            "runs": [
                {**dict(zip(keys, run, strict=True)), "loss": x} for run, x in zip(runs, made, strict=True)
            ],
        },
    )


def best_rate(losses: dict[float, float | None]) -> float:
    """Return the rate of the least loss; the loss of a run that diverged is None."""
    return min(losses, key=lambda rate: math.inf if (found := losses[rate]) is None else found)


# -- what came of it ----------------------------------------------------------------------------------------
def gaps(optimizer: str, steps: int | None = STEPS) -> dict[tuple[str, int, int], np.ndarray[Any, Any]]:
    """Return what each choice loses against BitNet, relative, seed by seed, by choice, width and steps."""
    found: dict[tuple[str, int, int], list[float]] = {}
    for row in read_result(RESULT)["runs"]:
        if row["optimizer"] == optimizer and steps in (None, row["steps"]):
            found.setdefault((row["choice"], row["width"], row["steps"]), []).append(row["loss"])
    return {
        key: np.array(losses, float) / np.array(found[BITNET, *key[1:]], float) - 1
        for key, losses in found.items()
        if key[0] != BITNET
    }


def least_loss(width: int) -> float:
    """Return the least possible loss of a model while head and last gain keep to the grids of their start.

    Magnitudes of the normalised stream add up to the width at most. A gain is 128/127 at most, and a weight
    of the head 128/127 of the mean magnitude at the start. That bounds logits by width * mean|W|.
    """
    head = Llama(width=width, heads=width // DEPTH).initial_parameters(SEEDS[0])["head"]
    logit = width * float(np.abs(head).mean()) * (128 / 127) ** 2
    return math.log1p((VOCABULARY - 1) * math.exp(-2 * logit))


def table() -> str:
    """Return what 8 bits lose against BitNet, by what lies on grids, optimizer, width and steps."""
    rows = []
    for optimizer in HYPERS:
        for (choice, width, steps), gap in gaps(optimizer, None).items():
            rows.append(
                {
                    "on grids": choice,
                    "optimizer": optimizer,
                    "width": str(width),
                    "steps": str(steps),
                    f"loss against `{BITNET}` (95 % interval)": paired.percent(gap),
                    "apart": paired.answer(gap),
                    "loses at least": f"{least_loss(width):.2f}" if choice == PUBLISHED else "",
                }
            )
    return markdown_table(rows)


def draw() -> None:
    """Draw the gap to BitNet against width and against steps, with the least loss that the head allows."""
    with subplots(1, 3, width=11, height=3.7) as (figure, (panels,)):
        for panel, optimizer in zip(panels, HYPERS, strict=False):
            _draw_gaps(panel, gaps(optimizer), 1)
            panel.set_title(f"{optimizer}, {STEPS} steps")
            panel.set(xlabel="width of the model", xscale="log")
            panel.set_xticks(WIDTHS, map(str, WIDTHS))
            panel.minorticks_off()
        by_steps = {key: gap for key, gap in gaps("AdamW", None).items() if key[1] == BETWEEN}
        _draw_gaps(panels[2], by_steps, 2)
        panels[2].set_title(f"AdamW, width {BETWEEN}")
        panels[2].set(xlabel="steps", xscale="log")
        panels[2].set_xticks(LENGTHS, map(str, LENGTHS))
        panels[2].minorticks_off()
        bitnet = {
            row["width"]: row["loss"]
            for row in read_result(RESULT)["runs"]
            if (row["choice"], row["optimizer"], row["steps"]) == (BITNET, "AdamW", STEPS)
        }
        bound = [100 * (least_loss(width) / bitnet[width] - 1) for width in WIDTHS]
        panels[0].plot(
            WIDTHS,
            bound,
            color=COLOURS["grey"],
            linestyle=(0, (4, 2)),
            label="least by |logit| <= width mean|W|",
        )
        panels[0].set_ylabel(f"loss above {BITNET}'s (%), 95 % interval")
        panels[0].set_ylim(bottom=-20)  # where the bound is void
        panels[0].legend(fontsize=8)
        message(figure, TITLE)
        save(figure, FIGURES / RESULT)


TITLE = "8 bits without a master copy: at small widths embedding and head on grids make the gap to BitNet"


def _draw_gaps(panel: Any, found: dict[tuple[str, int, int], np.ndarray[Any, Any]], axis: int) -> None:
    """Draw gaps with their intervals against width (1) or steps (2)."""
    panel.axhline(0, color=COLOURS["black"], linewidth=0.8)
    for choice, (colour, marker) in STYLES.items():
        mine = sorted((key[axis], gap) for key, gap in found.items() if key[0] == choice)
        at = [x for x, _ in mine]
        means = [100 * gap.mean() for _, gap in mine]
        reach = [100 * (gap.mean() - paired.interval(gap)[0]) for _, gap in mine]
        panel.errorbar(at, means, reach, color=colour, marker=marker, markersize=4, capsize=2, label=choice)


if __name__ == "__main__":
    study()
