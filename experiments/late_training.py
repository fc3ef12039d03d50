"""What rounding costs late in training, by schedule and by size, from a half-trained state that all share.

A model is trained with fp32 master weights at a constant rate. From there plain bf16, Collage-plus and fp32
master weights go on, on the same batches: by a cosine to a hundredth, and at a constant small rate. Moments
start anew, with a short warm-up. The audit of the half-trained weights forecasts what plain bf16 loses.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress, t

import mcfsim as mcf
from experiments import paired, tuning
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.side_by_side import make_steps, weights_of
from mcfsim.models.audit import audit
from mcfsim.models.plan import NoiseModel, Plan
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.plotting import STRATEGY_STYLES, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel

RESULT = "late_training"
#: Three sizes, a factor of ten apart, and how many seeds each can afford.
MODELS = {"30 k": Model(width=30, heads=3), "300 k": Model(width=112), "3 M": Model(width=352)}
SEEDS = {"30 k": 8, "300 k": 6, "3 M": 3}
HALF, STEPS, WARMUP, RECORD_EVERY, SAMPLES = 600, 600, 50, 30, 1024
OPTIONS, REFERENCE = ("plain", "collage-plus", "fp32-master"), "fp32-master"
HYPER = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
#: The peak rate as a share of the half-trained rate, and the last rate as a share of the peak.
SCHEDULES = {"cosine to 1/100": (1.0, 0.01), "constant, 1/32": (1 / 32, 1.0)}
Tensors = dict[str, NDArray[np.float32]]


class HalfTrained(LanguageModel):
    """The language model from weights of a training, on the batches that come after it.

    Parameters
    ----------
    model : Model
        The shape.
    start : dict of str to ndarray of float32
        The weights after `HALF` steps.
    """

    def __init__(self, model: Model, start: Tensors) -> None:
        super().__init__(**asdict(model))
        self.start = start

    def settings(self) -> dict[str, Any]:
        """Return what names the shape and the text."""
        return {
            "kind": self.name,
            "layers": self.layers,
            "width": self.width,
            "corpus": self.corpus.settings(),
        }

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the half-trained weights, whatever the seed."""
        return {name: x.copy() for name, x in self.start.items()}

    def training_batch(self, step: int, seed: int) -> NDArray[np.uint8]:
        """Return the batch of a step after the half."""
        return super().training_batch(HALF + step, seed)


def half_trained(model: Model, rate: float, seed: int) -> tuple[Tensors, float]:
    """Return the master weights after the first half, and the validation loss there."""
    problem, schedule = model.problem(), mcf.Schedule(rate, WARMUP, final=1.0)
    start: Any = problem.initial_parameters(seed)
    optimizer = mcf.Optimizer(HYPER, mcf.strategy(REFERENCE), start, problem.decayed, steps=HALF)
    make_steps(problem, optimizer, schedule, HALF, seed)
    (master,) = optimizer.represented()
    kept = {name: np.array(x, np.float32) for name, x in optimizer.layout.split(master).items()}
    return kept, float(problem.validation_loss(weights_of(optimizer)))


def half_loss(size: str, rate: float, seed: int) -> float | None:
    """Return the validation loss after the first half; None if it diverged."""
    _, loss = half_trained(MODELS[size], rate, seed)
    return loss if np.isfinite(loss) else None


def forecast(start: Tensors, schedule: mcf.Schedule) -> dict[str, list[float]]:
    """Return the share of updates that arrives in plain bf16, step by step, by the audit of the start."""
    low = mcf.get_format("bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        np.savez(path, **start)  # type: ignore[arg-type]
        samples = scan(open_weights(path), SAMPLES)
    plan = Plan(HYPER, schedule, STEPS, (mcf.strategy("plain", low),), NoiseModel())
    found = audit(samples, plan, low)
    shares = [item.found["plain"].edq_by_step for item in found.tensors]
    total = np.average(shares, axis=0, weights=[item.size for item in found.tensors])
    return {"steps": [int(step) for step in found.steps], "edq": total.tolist()}


def second_half(size: str, rate: float, seed: int) -> dict[str, Any]:
    """Train on by both schedules under every option; return losses, what arrives, and the forecast."""
    start, loss = half_trained(MODELS[size], rate, seed)
    problem, found = HalfTrained(MODELS[size], start), {}
    for label, (share, final) in SCHEDULES.items():
        schedule = mcf.Schedule(share * rate, WARMUP, final)
        run = mcf.simulate(
            problem, HYPER, OPTIONS, STEPS, schedule, seed, record_every=RECORD_EVERY, progress=False
        )
        found[label] = {
            "steps": run.steps.tolist(),
            "forecast": forecast(start, schedule),
            **{measure: {name: run.series[name][measure].tolist() for name in OPTIONS} for measure in KEPT},
            "validation_loss": {name: run.results[name]["validation_loss"] for name in OPTIONS},
        }
    return {"half": loss, "schedules": found}


KEPT = ("loss", "normalized_edq", "lost")


def study() -> None:
    """Choose a rate for each size, train the first half, and go on; some 80 minutes on two cores."""
    tuned = tuning.tune([*reversed(MODELS)], partial(resumed, RESULT, half_loss))
    rates = {size: tuning.best_rate(tuned[size]) for size in MODELS}
    longest_first = [(size, rates[size], seed) for size in reversed(MODELS) for seed in range(SEEDS[size])]
    runs: dict[str, list[Any]] = {}
    for (size, *_), found in zip(longest_first, resumed(RESULT, second_half, longest_first), strict=True):
        runs.setdefault(size, []).append(found)
    write_result(
        RESULT,
        {
            "settings": {
                "parameters": {size: model.parameters for size, model in MODELS.items()},
                "half": HALF,
                "steps": STEPS,
                "schedules": SCHEDULES,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
                "corpus": MODELS["30 k"].problem().corpus.settings(),
            },
            "tuning": {
                size: {f"{rate:g}": losses for rate, losses in tuned[size].items()} for size in MODELS
            },
            "rates": rates,
            "runs": runs,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def gap(size: str, schedule: str, option: str = "plain") -> NDArray[np.float64]:
    """Return the final validation losses of an option less the reference's, one a seed."""
    ends = [run["validation_loss"] for run in runs(size, schedule)]
    return np.array([end[option] - end[REFERENCE] for end in ends])


def runs(size: str, schedule: str) -> list[dict[str, Any]]:
    """Return what second halves recorded, one a seed."""
    return [run["schedules"][schedule] for run in read_result(RESULT)["runs"][size]]


def forecast_error(run: dict[str, Any]) -> float:
    """Return how far the forecast share of updates is off, averaged over the recorded steps."""
    foreseen = np.interp(run["steps"], run["forecast"]["steps"], run["forecast"]["edq"])
    return float(np.abs(foreseen - run["normalized_edq"]["plain"]).mean())


def exponent(schedule: str) -> tuple[float, float, float] | None:
    """Return the exponent of size in what plain bf16 loses, with its 95 % interval.

    It is the slope of the logarithm of the gap, a point a seed, by least squares, with Student's t. None
    where a gap is not positive, so that it has no logarithm.
    """
    sizes = read_result(RESULT)["settings"]["parameters"]
    gaps = {size: gap(size, schedule) for size in sizes}
    if any((found <= 0).any() for found in gaps.values()):
        return None
    x = np.log([sizes[size] for size, found in gaps.items() for _ in found])
    line: Any = linregress(x, np.log(np.concatenate(list(gaps.values()))))
    half = float(t.ppf(0.975, len(x) - 2)) * line.stderr
    return line.slope, line.slope - half, line.slope + half


def table() -> str:
    """Return what plain bf16 and Collage-plus lose at the end, by schedule and size, and the exponent."""
    result, rows = read_result(RESULT), []
    for schedule in SCHEDULES:
        found = exponent(schedule)
        told = "not told" if found is None else f"{found[0]:+.2f} ({found[1]:+.2f} to {found[2]:+.2f})"
        for size, count in result["settings"]["parameters"].items():
            rows.append(
                {
                    "schedule": schedule,
                    "parameters": f"{count:,}",
                    "rate": f"{result['rates'][size]:g}",
                    "seeds": str(len(result["runs"][size])),
                    **{f"`{name}`": paired.shown(gap(size, schedule, name)) for name in OPTIONS[:-1]},
                    "exponent of the size, `plain`": told,
                }
            )
    return markdown_table(rows)


def draw() -> None:
    """Draw what two options lose step by step, and the share of updates that arrives, with the forecast."""
    result = read_result(RESULT)
    with subplots(2 * len(SCHEDULES), len(MODELS), width=10.5, height=9) as (figure, axes):
        for row, schedule in enumerate(SCHEDULES):
            for column, size in enumerate(MODELS):
                losses, shares = axes[2 * row][column], axes[2 * row + 1][column]
                trained = runs(size, schedule)
                steps, foreseen = trained[0]["steps"], [run["forecast"] for run in trained]
                found = {name: np.array([run["loss"][name] for run in trained]) for name in OPTIONS}
                for name in OPTIONS[:-1]:
                    apart = found[name] - found[REFERENCE]
                    style = STRATEGY_STYLES[name]
                    losses.plot(steps, apart.mean(axis=0), label=name, **style)
                    bounds = np.array([paired.interval(at) for at in apart.T]).T
                    losses.fill_between(steps, *bounds, color=style["color"], alpha=0.15, linewidth=0)
                    arrived = np.mean([run["normalized_edq"][name] for run in trained], axis=0)
                    shares.plot(steps, arrived, label=name, **style)
                mean = np.mean([item["edq"] for item in foreseen], axis=0)
                shares.plot(foreseen[0]["steps"], mean, "k:", label="plain, forecast by the audit")
                losses.set_title(f"{schedule}; {result['settings']['parameters'][size]:,} parameters")
                shares.set(ylim=(-0.05, 1.2), xlabel="step after the half")
        for row in range(len(SCHEDULES)):
            axes[2 * row][0].set_ylabel("training loss minus\nfp32 master's (nats)")
            axes[2 * row + 1][0].set_ylabel("share of the update\nthat arrives (EDQ)")
        axes[0][0].legend(fontsize=8)
        axes[1][0].legend(fontsize=8)
        message(figure, TITLE)
        save(figure, FIGURES / RESULT)


TITLE = "Late in training updates vanish in plain bf16, as the audit forecasts, and the loss pays for it"


if __name__ == "__main__":
    study()
