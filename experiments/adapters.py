"""Adapters and gains of norms trained in bf16: what their steps lose, forecast and measured, and the cost.

A language model of source code, in bf16, learns prose by adapters of rank 8 and by its gains.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from experiments import paired, side_by_side, tuning
from experiments.cells import Model
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.drawing import draw_row
from mcfsim.models.audit import audit
from mcfsim.models.forecast import lengths
from mcfsim.models.known import RecordedUpdates
from mcfsim.models.plan import NoiseModel, Plan
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel
from mcfsim.training.problems.base import DataStream, LossAndGradient, Tensors, generator
from mcfsim.training.problems.language_model import Corpus

RESULT = "adapters"
RANK, ALPHA = 8, 16
MODEL, BATCH = Model(layers=2, width=64), 8
STEPS, WARMUP, RECORD_EVERY, SEEDS = 200, 20, 10, tuple(range(8))
BASE_STEPS, BASE_SCHEDULE = 600, mcf.Schedule(peak=2e-3, warmup=60, final=0.1)
#: At this beta2 a second moment in bf16 decays, so that all losses are losses of the weights.
HYPER = mcf.AdamW(beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.0)
OPTIONS, REFERENCE, LOSING = ("plain", "kahan", "collage-light", "fp32-master"), "fp32-master", "plain"
#: At this rate all are compared, too: an eighth of the best one of plain bf16.
LOW_RATE = 2e-3
#: How names of tensors end, by what they are.
PARTS = {"A": "lora_A.weight", "B": "lora_B.weight", "gains": "gain"}
#: The parts that are kept with fp32 master weights while the rest is in plain bf16.
KEPT = (("gains",), ("A",), ("B",), ("A", "B"))
#: What forecasts know of the updates.
KNOWN = ("nothing", "gradients")


def schedule(rate: float) -> mcf.Schedule:
    """Return the schedule of a peak rate."""
    return mcf.Schedule(peak=rate, warmup=WARMUP, final=0.1)


@lru_cache
def prose() -> Corpus:
    """Return a corpus of the topics of Python's help, which are prose about the language."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return Corpus.from_bytes(text.encode(), "the topics of Python's help")


@lru_cache
def base() -> dict[str, NDArray[Any]]:
    """Return the weights of a model of source code, trained with fp32 master weights, in bf16."""
    problem = MODEL.problem()
    start, hyper = problem.initial_parameters(0), mcf.AdamW(beta2=0.99, weight_decay=0.1)
    optimizer = mcf.Optimizer(hyper, mcf.strategy(REFERENCE), start, problem.decayed, steps=BASE_STEPS)
    side_by_side.make_steps(problem, optimizer, BASE_SCHEDULE, BASE_STEPS, 0)
    return {name: mcf.round_to(x, "bfloat16") for name, x in optimizer.weights().items()}


class AdaptedModel:
    """The frozen base with adapters on the matrices of its layers; these and the gains are trained.

    A matrix W of shape (in, out) acts as ``W + (alpha / r) (B A)^T``. A starts uniform within
    ``1 / sqrt(in)`` and B at zero, as PEFT has them (Hu et al., LoRA, arXiv 2106.09685); gains start as the
    base has them.
    """

    name = "adapted-language-model"
    exact_capable = False
    decayed: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.model = LanguageModel(prose(), MODEL.layers, MODEL.width, MODEL.heads, MODEL.context, BATCH)
        self.gains = [name for name in self.model.shapes if name.endswith("gain")]
        self.adapted = {
            name: shape
            for name, shape in self.model.shapes.items()
            if name.startswith("layer") and len(shape) == 2
        }

    def settings(self) -> dict[str, Any]:
        """Return the kind, the adapters and the model."""
        return {"kind": self.name, "rank": RANK, "alpha": ALPHA, "model": self.model.settings()}

    def initial_parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return adapters that change nothing yet, and the gains of the base."""
        random, made = generator(seed, DataStream.PARAMETERS), {name: base()[name] for name in self.gains}
        for name, (inputs, outputs) in self.adapted.items():
            bound = 1.0 / math.sqrt(inputs)
            made[f"{name}.lora_A.weight"] = random.uniform(-bound, bound, (RANK, inputs)).astype(np.float32)
            made[f"{name}.lora_B.weight"] = np.zeros((outputs, RANK), np.float32)
        return made

    def weights(self, parameters: Tensors) -> dict[str, NDArray[Any]]:
        """Return the weights by which the model computes, in the dtype of the parameters."""
        gains = {name: parameters[name] for name in self.gains}
        dtype = gains[self.gains[0]].dtype
        found = {name: x.astype(dtype) for name, x in base().items()} | gains
        for name in self.adapted:
            a, b = parameters[f"{name}.lora_A.weight"], parameters[f"{name}.lora_B.weight"]
            found[name] += ALPHA / RANK * (b @ a).T
        return found

    def loss_and_gradient(self, parameters: Tensors, step: int, seed: int) -> LossAndGradient:
        """Return the mean loss over the batch of (seed, step), and the gradient by adapters and gains."""
        loss, whole = self.model.loss_and_gradient(self.weights(parameters), step, seed)
        found = {name: whole[name] for name in self.gains}
        for name in self.adapted:
            a, b = parameters[f"{name}.lora_A.weight"], parameters[f"{name}.lora_B.weight"]
            back = ALPHA / RANK * whole[name].T
            found[f"{name}.lora_A.weight"], found[f"{name}.lora_B.weight"] = b.T @ back, back @ a.T
        return loss, found

    def validation_loss(self, parameters: Tensors) -> float:
        """Return the mean loss on held-out prose."""
        return self.model.validation_loss(self.weights(parameters))


# -- runs ---------------------------------------------------------------------------------------------------
def of_parts(names: Sequence[str], series: Sequence[Any], sizes: Sequence[int]) -> dict[str, list[Any]]:
    """Return the mean of tensors' series over all elements, of each part; None where nothing is asked."""
    found = {}
    for part, ending in PARTS.items():
        rows = [place for place, name in enumerate(names) if name.endswith(ending)]
        table, weights = np.array([series[row] for row in rows]), np.array([sizes[row] for row in rows])
        there = ~np.isnan(table) * weights[:, None]
        counts = there.sum(axis=0)
        sums = (np.nan_to_num(table) * there).sum(axis=0)
        found[part] = [float(x / n) if n else None for x, n in zip(sums, counts, strict=True)]
    return found


def over_run(row: Sequence[float | None], steps: Sequence[int], rate: float) -> float:
    """Return the mean of a series, each step weighted by its learning rate, as audits have it."""
    there = [x is not None for x in row]
    weights = lengths(np.array(steps)) * [schedule(rate).rate(step, STEPS) for step in steps]
    return float(np.average([x for x in row if x is not None], weights=weights[there]))


def train(option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train one option at one rate; return its loss, None if it diverged, and what parts lose by step."""
    problem = AdaptedModel()
    run = mcf.simulate(
        problem, HYPER, option, STEPS, schedule(rate), seed, record_every=RECORD_EVERY, progress=False
    )
    results, series = run.results[option], run.series[option]
    sizes = {name: x.size for name, x in problem.initial_parameters(seed).items()}
    return {
        "loss": None if "diverged_at" in results else results["validation_loss"],
        "steps": np.asarray(run.steps).tolist(),
        "lost": of_parts(list(sizes), [series[f"lost/{name}"] for name in sizes], list(sizes.values())),
    }


def keep(parts: Sequence[str], rate: float, seed: int) -> float:
    """Return the loss if some parts alone have fp32 master weights and the others are plain bf16."""
    problem, endings = AdaptedModel(), tuple(PARTS[part] for part in parts)
    start = side_by_side.rounded_start(problem, seed)
    chosen = {name: mcf.strategy(REFERENCE if name.endswith(endings) else LOSING) for name in start}
    return side_by_side.train(problem, HYPER, chosen, start, schedule(rate), STEPS, seed)


def forecast(rate: float, seed: int) -> dict[str, Any]:
    """Return what parts of plain bf16 are forecast to lose by step, from the start and from gradients."""
    problem, low, found = AdaptedModel(), mcf.get_format("bfloat16"), {}
    start = side_by_side.rounded_start(problem, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = dict.fromkeys(start, mcf.strategy(REFERENCE))
        recorder = mcf.record(start, folder)
        side_by_side.train(problem, HYPER, chosen, start, schedule(rate), STEPS, seed, recorder.step)
        samples = scan(open_weights(folder / "weights.safetensors"), 1024)
        for known, updates in zip(KNOWN, (NoiseModel(), RecordedUpdates(folder)), strict=True):
            strategies = (mcf.strategy(LOSING, low),)
            made = audit(samples, Plan(HYPER, schedule(rate), STEPS, strategies, updates), low)
            lost = [item.found[LOSING].lost_by_step for item in made.tensors]
            names, sizes = zip(*((item.name, item.size) for item in made.tensors), strict=True)
            found[known] = {"steps": list(made.steps), "lost": of_parts(names, lost, sizes)}
    return found


def _over_run(runs: Sequence[Any], rate: float) -> dict[str, list[float]]:
    """Return the share of each part's steps that is lost over the run, one number a seed."""
    return {part: [over_run(run["lost"][part], run["steps"], rate) for run in runs] for part in PARTS}


def _by_step(runs: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the steps, and each part's mean over seeds; None where nothing is asked."""
    means = {part: np.mean(np.array([run["lost"][part] for run in runs], float), axis=0) for part in PARTS}
    lists = {part: [None if np.isnan(x) else float(x) for x in row] for part, row in means.items()}
    return {"steps": runs[0]["steps"], **lists}


def study() -> None:
    """Choose the rates, train, forecast, and write the results; some 10 minutes on one core."""
    tuned = tuning.tune(OPTIONS, partial(tuning.losses, RESULT, train))
    best = {option: tuning.best_rate(tuned[option]) for option in OPTIONS}
    found: dict[str, Any] = {}
    for label, rates in (("best", best), ("low", dict.fromkeys(OPTIONS, LOW_RATE))):
        rate = rates[LOSING]
        trained = {
            option: resumed(RESULT, train, [(option, rates[option], seed) for seed in SEEDS])
            for option in OPTIONS
        }
        kept = {
            " and ".join(parts): resumed(f"{RESULT}_kept", keep, [(parts, rate, seed) for seed in SEEDS])
            for parts in KEPT
        }
        whole = resumed(RESULT, train, [(REFERENCE, rate, seed) for seed in SEEDS])
        made = resumed(f"{RESULT}_forecast", forecast, [(rate, seed) for seed in SEEDS])
        forecasts = {known: [item[known] for item in made] for known in KNOWN}
        found[label] = {
            "rates": rates,
            "losses": {option: [run["loss"] for run in runs] for option, runs in trained.items()},
            "kept": kept | {"all": [run["loss"] for run in whole]},
            "lost": {option: _over_run(runs, rates[option]) for option, runs in trained.items()},
            "forecast": {known: _over_run(runs, rate) for known, runs in forecasts.items()},
            "lost_by_step": _by_step(trained[LOSING]),
            "forecast_by_step": _by_step(forecasts["gradients"]),
        }
    problem = AdaptedModel()
    write_result(
        RESULT,
        {
            "settings": {
                "problem": problem.settings(),
                "base": MODEL.problem().settings(),
                "parameters": {
                    part: sum(
                        x.size for name, x in problem.initial_parameters(0).items() if name.endswith(ending)
                    )
                    for part, ending in PARTS.items()
                },
                "base_steps": BASE_STEPS,
                "steps": STEPS,
                "warmup": WARMUP,
                "beta2": HYPER.beta2,
                "tuning_seeds": tuning.SEEDS,
                "seeds": SEEDS,
            },
            "tuning": tuning.written(tuned),
            **found,
        },
    )


# -- what came of it ----------------------------------------------------------------------------------------
def difference(label: str, option: str) -> Any:
    """Return the losses of an option less those of the reference, seed by seed."""
    losses = read_result(RESULT)[label]["losses"]
    return np.array(losses[option], float) - np.array(losses[REFERENCE], float)


def without(label: str, parts: str) -> Any:
    """Return the losses less those of plain bf16 if some parts have fp32 master weights, at its rate."""
    found = read_result(RESULT)[label]
    return np.array(found["kept"][parts], float) - np.array(found["losses"][LOSING], float)


def table() -> str:
    """Return what options lose at their own best rates and at the low one."""
    rows = []
    for label in ("best", "low"):
        found = read_result(RESULT)[label]
        for option in OPTIONS:
            gap = difference(label, option)
            rows.append(
                {
                    "option": f"`{option}`",
                    "rate": f"{found['rates'][option]:g}",
                    **{f"lost of {part}": f"{np.mean(found['lost'][option][part]):.3f}" for part in PARTS},
                    "validation loss": f"{np.mean(found['losses'][option]):.4f}",
                    f"minus `{REFERENCE}` (95 % interval)": "" if option == REFERENCE else paired.shown(gap),
                    "apart": paired.answer(gap),
                }
            )
    return markdown_table(rows)


def kept_table() -> str:
    """Return what is gained by keeping one part in fp32, at both rates."""
    sizes, found = read_result(RESULT)["settings"]["parameters"], read_result(RESULT)
    rows = []
    for parts in found["low"]["kept"]:
        size = sum(number for part, number in sizes.items() if parts == "all" or part in parts.split(" and "))
        columns = {
            f"loss minus `{LOSING}`, rate {found[label]['rates'][LOSING]:g}": paired.shown(
                without(label, parts)
            )
            for label in ("best", "low")
        }
        rows.append({"in fp32": parts, "parameters": f"{size / sum(sizes.values()):.1%}", **columns})
    return markdown_table(rows)


def forecast_table() -> str:
    """Return the forecast losses of plain bf16 beside the measured ones."""
    rows = []
    for label in ("best", "low"):
        found = read_result(RESULT)[label]
        for part in PARTS:
            measured = np.array(found["lost"][LOSING][part])
            row = {
                "rate": f"{found['rates'][LOSING]:g}",
                "part": part,
                "lost, measured": f"{measured.mean():.3f}",
            }
            for known in KNOWN:
                shares = np.array(found["forecast"][known][part])
                row[f"forecast, {known} known"] = f"{shares.mean():.3f}"
                row[f"minus measured, {known} known"] = paired.shown(shares - measured, 3)
            rows.append(row)
    return markdown_table(rows)


def draw() -> None:
    """Draw what parts lose by step at the low rate, forecast and measured, and what keeping one gains."""
    found = read_result(RESULT)["low"]
    colours = dict(zip(PARTS, (COLOURS["blue"], COLOURS["green"], COLOURS["vermilion"]), strict=True))
    with subplots(1, 2, width=10, height=3.8) as (figure, (axes,)):
        left, right = axes
        for part, colour in colours.items():
            for series, style in (
                ("forecast_by_step", {"linestyle": (0, (4, 2)), "linewidth": 1}),
                ("lost_by_step", {"linewidth": 1.6, "label": part}),
            ):
                shares = np.array(found[series][part], float)
                left.plot(found[series]["steps"], shares, color=colour, **style)
        left.set(xlabel="step", xlim=(0, STEPS), ylim=(-0.03, 1.06))
        left.set_title(
            f"share of steps lost in plain bf16, peak rate {LOW_RATE:g}\n"
            "(solid: trained, dashed: forecast with gradients)"
        )
        label_ends(left, gap=0.085)
        names = list(found["kept"])
        for place, parts in enumerate(reversed(names)):
            draw_row(right, place, without("low", parts), colours.get(parts, COLOURS["black"]))
        right.axvline(0, color=COLOURS["black"], linewidth=1)
        right.set_xticks([-0.015, -0.01, -0.005, 0.0])
        right.set_yticks(range(len(names)), [f"{name} in fp32" for name in reversed(names)])
        right.set_title(f"loss minus that of plain bf16:\nmean, 95 % interval, {len(SEEDS)} seeds")
        message(
            figure,
            "At a small rate gains stay in bf16: kept in fp32 alone they win back nearly all that bf16 costs",
        )
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    study()
