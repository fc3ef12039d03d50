"""The bytes it takes to send the weights that steps at a small rate change, by encoding; and a forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import mcfsim as mcf
from experiments import real_audit
from experiments.common import in_processes, read_result, write_result
from mcfsim.models.forecast import TensorRows, points_of
from mcfsim.models.forecast import forecast as forecast_of
from mcfsim.models.plan import NoiseModel, Plan
from mcfsim.models.samples import TensorSample
from mcfsim.models.transfer import Encoding
from mcfsim.models.weights import open_weights
from mcfsim.report.tables import markdown_table
from mcfsim.torch import AdamW, changes
from mcfsim.training.problems import LanguageModel

RESULT = "weight_transfers"
RATE, SEEDS, STRATEGIES = 3e-6, range(3), ("plain", "fp32-master")
#: Steps before the first that count, so that moments are those of a run; steps that count; steps between
#: two transfers.
BEFORE, STEPS, BETWEEN = 60, 8, (1, 4, 16)
#: How the language model is trained until then: so many steps at this rate.
TRAINED, TRAINED_RATE = 200, 2e-3
#: Published reports: source, model, the share that does not change, and the transfer.
PUBLISHED = (
    ("TRL, pull request 5417: indices and values", "Qwen3, 0.6 B", "more than 99 %", "20 to 35 MB of 1.2 GB"),
    ("PULSE, arXiv 2602.03839: gaps and values, zstd", "7 B", "about 99 %", "108 MB of 14 GB"),
    ("slime, pull request 1806: positions and values", "355 B", "about 97 %", "about 5 GB"),
)

Arrays = dict[str, np.ndarray[Any, Any]]
Gradients = Callable[[Arrays, int], Arrays]


def published(seed: int) -> tuple[Arrays, Gradients]:
    """Return the weights of a published voice detector, and gradients that are noise of one size a tensor."""
    weights = {
        name: x.read(0, x.size).reshape(x.shape) for name, x in open_weights(real_audit.weights()).items()
    }

    def gradients(_: Arrays, step: int) -> Arrays:
        rng = np.random.default_rng([seed, step])
        return {name: 1e-3 * rng.standard_normal(x.shape) for name, x in weights.items()}

    return weights, gradients


def trained(seed: int) -> tuple[Arrays, Gradients]:
    """Return the weights of a small language model after some training, and its gradients."""
    problem = LanguageModel()
    start = problem.initial_parameters(seed)
    optimizer = mcf.Optimizer(mcf.AdamW(), mcf.strategy("fp32"), start, problem.decayed)
    for step in range(TRAINED):
        _, gradient = problem.loss_and_gradient(optimizer.weights(), step, seed)
        optimizer.step(optimizer.receive(gradient), TRAINED_RATE)

    def gradients(weights: Arrays, step: int) -> Arrays:
        return problem.loss_and_gradient(weights, TRAINED + step, seed)[1]

    return {name: np.array(x) for name, x in optimizer.weights().items()}, gradients


MODELS = {"voice detector, gradients of noise": published, "language model": trained}


def sent(weights: Arrays, gradients: Gradients, strategy: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of steps between transfers: what changed, and bytes by encoding."""
    given = {name: torch.nn.Parameter(torch.tensor(x).bfloat16()) for name, x in weights.items()}
    optimizer = AdamW(given.values(), lr=RATE, weight_decay=0.0, strategy=strategy)
    count = 0
    for between in (None, *BETWEEN):  # the first steps are not recorded
        found: list[dict[str, float]] = []
        with changes(optimizer, before=True) as recorder:
            for step in range(BEFORE if between is None else max(STEPS, 2 * between)):
                now = {name: p.detach().double().numpy() for name, p in given.items()}
                for name, x in gradients(now, count).items():
                    given[name].grad = torch.tensor(x).bfloat16()
                optimizer.step()
                count += 1
                if between is not None and step % between == between - 1:
                    found.append(bytes_of(given, recorder))
                    recorder.clear()
        if between is not None:
            yield {"between": between} | {name: float(np.mean([x[name] for x in found])) for name in found[0]}


def bytes_of(given: dict[str, torch.nn.Parameter], recorder: Any) -> dict[str, float]:
    """Return shares of codes that changed, and of the bytes that send all."""
    sizes = dict.fromkeys((*map(str, Encoding), "gaps, deflated", "xor, deflated"), 0)
    for p in given.values():
        delta, whole = recorder.delta(p), p.detach().view(torch.int16).numpy()
        for encoding in Encoding:
            sizes[encoding] += len(delta.encode(encoding, whole))
        for name in ("gaps", "xor"):
            sizes[f"{name}, deflated"] += len(delta.encode(name, compress=True))
    shares = {name: size / sizes["dense"] for name, size in sizes.items()}
    return {"touched": recorder.share(), "differ": recorder.share(returned=False), **shares}


def forecast(weights: Arrays, strategy: str) -> float:
    """Return the share of codes that each step that counts changes, forecast by an audit of all weights."""
    stored = [mcf.round_to(x.ravel(), "bfloat16") for x in weights.values()]
    sizes = np.array([x.size for x in stored])
    table = np.array([np.resize(x, sizes.max()) for x in stored], float)
    pairs = zip(weights, table, strict=True)
    samples = [TensorSample(name, x.shape, "BF16", x, 0.0, 0.0) for name, x in pairs]
    schedule, steps, tried = mcf.Schedule(RATE, warmup=0, final=1.0), BEFORE + STEPS, mcf.strategy(strategy)
    directions = NoiseModel().directions(samples, Plan(mcf.AdamW(), schedule, steps, (tried,)))
    rows = TensorRows(table, directions, np.zeros(len(table), np.bool_))
    points, rates = points_of(schedule, steps), schedule.rates(steps)
    course = forecast_of(rows, mcf.AdamW(), tried, points, rates)
    changed = course.changed[:, course.steps > BEFORE].mean(axis=1)
    return float(changed @ sizes / sizes.sum())


def studied(model: str, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a model and a seed, with the forecast of a single step."""
    torch.set_num_threads(1)
    weights, gradients = MODELS[model](seed)
    rows = []
    for strategy in STRATEGIES:
        about = {"model": model, "seed": seed, "strategy": strategy, "forecast": forecast(weights, strategy)}
        rows += [{**about, **row} for row in sent(weights, gradients, strategy)]
    return rows


def main() -> None:
    """Measure, and write the numbers."""
    made = in_processes(studied, [(model, seed) for model in MODELS for seed in SEEDS])
    about = {"torch": torch.__version__}
    write_result(RESULT, {"versions": about, "rate": RATE, "rows": [row for rows in made for row in rows]})


def table() -> str:
    """Return what changed and what it takes to send it, and what others report."""
    result, shown = read_result(RESULT), []
    for model in MODELS:
        for strategy in STRATEGIES:
            for between in BETWEEN:
                rows = [
                    x
                    for x in result["rows"]
                    if (x["model"], x["strategy"], x["between"]) == (model, strategy, between)
                ]
                shown.append(
                    {
                        "model": model,
                        "strategy": f"`{strategy}`",
                        "steps": str(between),
                        "changed": _ends([x["touched"] for x in rows]),
                        "forecast": _ends([x["forecast"] for x in rows]) if between == 1 else "",
                        **{
                            name: _ends([x[name] for x in rows])
                            for name in ("mask", "indices", "gaps", "gaps, deflated", "xor, deflated")
                        },
                    }
                )
    others = [dict(zip(("reported by", "model", "unchanged", "sent"), x, strict=True)) for x in PUBLISHED]
    return f"{markdown_table(shown)}\n\n{markdown_table(others)}"


def _ends(shares: list[float]) -> str:
    """Return the least and the largest of some shares, in percent."""
    least, most = (f"{100 * x:.2f}" for x in (min(shares), max(shares)))
    return f"{least} %" if least == most else f"{least} to {most} %"


if __name__ == "__main__":
    main()
