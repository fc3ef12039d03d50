"""What the last steps in float32 recover of what plain bf16 has lost, and at which rate plain bf16 learns.

A model is trained in plain bf16. Copies of it go on in float32, or with float32 master weights, for the last
steps, on the same batches. They are compared with a training with float32 master weights all along. Then both
are trained at several rates: at which rate do master weights end like plain bf16 at a given one?
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from experiments import paired
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.side_by_side import clipped_gradients, rounded_start, weights_of
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "switch"
MODEL, STEPS, WARMUP, FINAL = Model(layers=1, width=32), 600, 60, 0.01
HYPER = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
BEGUN, REFERENCE = "plain", "fp32-master"
#: What takes the place of plain bf16, and for how many of the last steps.
LATE, LAST = ("fp32", "fp32-master"), (60, 150, 300, 450)
#: Peak rates; the switch is made at one of them.
RATES, RATE = (0.001, 0.002, 0.004, 0.008), 0.004
SEEDS = tuple(range(5))


def losses(strategy: str, rate: float, seed: int, last: tuple[int, ...]) -> dict[str, Any]:
    """Return the validation loss of a training, and those of its copies that were switched."""
    problem, schedule = MODEL.problem(), mcf.Schedule(rate, WARMUP, FINAL)
    start = rounded_start(problem, seed)
    optimizer = mcf.Optimizer(HYPER, mcf.strategy(strategy), start, problem.decayed, steps=STEPS)
    copies = {}
    for step in range(1, STEPS + 1):
        if (left := STEPS + 1 - step) in last:
            copies[left] = {name: optimizer.switched(mcf.strategy(name)) for name in LATE}
        _step(problem, optimizer, schedule, step, seed)
    for left, switched in copies.items():
        for one in switched.values():
            for step in range(STEPS + 1 - left, STEPS + 1):
                _step(problem, one, schedule, step, seed)
    switched_losses = {
        str(left): {name: _loss(problem, one) for name, one in switched.items()}
        for left, switched in copies.items()
    }
    return {"loss": _loss(problem, optimizer), "switched": switched_losses}


def _step(problem: Any, optimizer: mcf.Optimizer, schedule: mcf.Schedule, step: int, seed: int) -> None:
    """Make a step as `mcfsim.simulate` does."""
    gradients = clipped_gradients(problem, weights_of(optimizer), step, seed)
    optimizer.advance(optimizer.receive(gradients), schedule.rate(step, STEPS))


def _loss(problem: Any, optimizer: mcf.Optimizer) -> float:
    return float(problem.validation_loss(weights_of(optimizer)))


def study() -> None:
    """Train, and write the results; some 15 minutes on a core."""
    jobs = [
        (strategy, rate, seed, LAST if (strategy, rate) == (BEGUN, RATE) else ())
        for seed in SEEDS
        for strategy in (BEGUN, REFERENCE)
        for rate in RATES
    ]
    found: dict[str, dict[str, list[float]]] = {BEGUN: {}, REFERENCE: {}}
    switched: dict[str, dict[str, list[float]]] = {name: {str(k): [] for k in LAST} for name in LATE}
    for (strategy, rate, *_), run in zip(jobs, resumed(RESULT, losses, jobs), strict=True):
        found[strategy].setdefault(f"{rate:g}", []).append(run["loss"])
        for last, by_name in run["switched"].items():
            for name, loss in by_name.items():
                switched[name][last].append(loss)
    settings = {
        "problem": MODEL.problem().settings(),
        "parameters": MODEL.parameters,
        "steps": STEPS,
        "warmup": WARMUP,
        "final": FINAL,
        "rate": RATE,
        "seeds": SEEDS,
    }
    write_result(RESULT, {"settings": settings, "losses": found, "switched": switched})


# -- what came of it ----------------------------------------------------------------------------------------
def gap() -> NDArray[np.float64]:
    """Return what plain bf16 loses against master weights at the same rate, one a seed."""
    return _losses(BEGUN, RATE) - _losses(REFERENCE, RATE)


def lower(last: int, name: str = LATE[0]) -> NDArray[np.float64]:
    """Return by how much the last steps under a strategy lower the loss of plain bf16, one a seed."""
    return _losses(BEGUN, RATE) - np.array(read_result(RESULT)["switched"][name][str(last)])


def share(last: int) -> tuple[float, float, float]:
    """Return the share of the gap that the last steps in float32 recover, and the ends of its interval."""
    return paired.quotient(lower(last), gap())


def rate_of(rate: float) -> NDArray[np.float64]:
    """Return the logarithm to base 2 of the rate at which master weights end like plain bf16 at a rate.

    Between two rates the loss is interpolated linearly in the logarithm of the rate, seed by seed; up to the
    rate at which master weights end lowest.

    Raises
    ------
    ValueError
        If a loss of plain bf16 is not among those of master weights.
    """
    curves = np.array([_losses(REFERENCE, each) for each in RATES]).T
    found = []
    for curve, loss in zip(curves, _losses(BEGUN, rate), strict=True):
        falling = curve[: int(curve.argmin()) + 1]
        if (np.diff(falling) >= 0).any() or not falling[-1] <= loss <= falling[0]:
            raise ValueError(f"{loss} at rate {rate:g} is no loss of {REFERENCE}, {curve.tolist()}")
        found.append(float(np.interp(-loss, -falling, np.log2(RATES[: falling.size]))))
    return np.array(found)


def _losses(strategy: str, rate: float) -> NDArray[np.float64]:
    return np.array(read_result(RESULT)["losses"][strategy][f"{rate:g}"])


def table() -> str:
    """Return what the last steps recover, by the number of these steps."""
    rows = []
    for last in LAST:
        mean, low, high = share(last)
        rows.append(
            {
                "last steps in `fp32`": f"{last} of {STEPS}",
                "loss minus that of `plain` (95 % interval)": paired.shown(-lower(last)),
                "minus that of `fp32-master`": paired.shown(gap() - lower(last)),
                "share of the gap recovered": f"{mean:.0%} ({low:.0%} to {high:.0%})",
                "the same in `fp32-master`, minus `fp32`": paired.shown(lower(last) - lower(last, LATE[1])),
            }
        )
    return markdown_table(rows)


def rate_table() -> str:
    """Return the losses at each rate, and the rate at which master weights end like plain bf16."""
    rows = []
    for rate in RATES:
        plain, reference = _losses(BEGUN, rate), _losses(REFERENCE, rate)
        rows.append(
            {
                "peak rate": f"{rate:g}",
                **{f"`{name}`": f"{x.mean():.4f}" for name, x in ((BEGUN, plain), (REFERENCE, reference))},
                "difference (95 % interval)": paired.shown(plain - reference),
                f"equivalent rate of `{REFERENCE}`": _equivalent(rate),
            }
        )
    return markdown_table(rows)


def _equivalent(rate: float) -> str:
    """Return the equivalent rate and its interval as a table shows them; nothing where there is none."""
    try:
        found = rate_of(rate)
    except ValueError:
        return ""
    low, high = paired.interval(found)
    return f"{2 ** found.mean():.5f} ({2**low:.5f} to {2**high:.5f})"


def draw() -> None:
    """Draw the share of the gap that the last steps recover, against their share of the training."""
    with subplots(1, 1, width=7.5, height=4) as (figure, axes):
        panel, colour = axes[0][0], COLOURS["blue"]
        x = 100 * np.array([0, *LAST]) / STEPS
        mean, low, high = 100 * np.array([(0, 0, 0), *map(share, LAST)]).T
        panel.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.plot(x, mean, "o-", color=colour)
        panel.plot([0, 100], [0, 100], ":", color=COLOURS["grey"])
        panel.annotate("in proportion\nto the steps", (76.5, 109), va="top", color=COLOURS["grey"])
        panel.annotate("mean of five seeds\nand 95 % interval", (76.5, 66), va="top", color=colour)
        panel.set(xlim=(0, 100), ylim=(-3, 112))
        panel.set_xlabel("last steps in fp32 (% of the training)")
        panel.set_ylabel("recovered of what plain bf16 loses\nagainst fp32 master weights (%)")
        message(figure, TITLE)
        save(figure, FIGURES / RESULT)


TITLE = "The last tenth in fp32 recovers 4 % of what plain bf16 has lost, the last half 52 %"


if __name__ == "__main__":
    study()
