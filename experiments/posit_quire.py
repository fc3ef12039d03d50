"""Training with posits and quires: how forward and backward pass compute, and what the optimizer keeps.

A perceptron on handwritten digits, each format at its own best learning rate. `python -m
experiments.posit_quire` takes a quarter of an hour, and goes on where it was interrupted.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments.common import read_result, resumed, write_result
from mcfsim.codec import decode
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import Digits

NAME = "posit_quire"
STEPS, SEEDS, RATES = 200, (0, 1, 2), tuple(2.0**-k for k in range(-1, 6))
MOMENTUM = 0.5


class Settings(NamedTuple):
    """The formats of forward and backward pass, loss and optimizer, and how the optimizer keeps numbers."""

    forward: str | None
    loss: str | None
    low: str
    strategy: str = "plain"


#: The settings that are compared; the first one's sums are those of NumPy in binary64.
CHOICES = (
    Settings(None, None, "float32"),
    Settings("bfloat16", None, "bfloat16"),
    Settings("posit16", None, "posit16"),
    Settings("float8_e5m2", None, "float8_e5m2"),
    Settings("float8_e4m3fn", None, "float8_e4m3fn"),
    Settings("posit8", None, "posit8"),
    Settings("posit8es0", None, "posit8es0"),
    Settings("float8_e4m3fn", "bfloat16", "bfloat16"),
    Settings("posit8", "posit12", "posit12"),
    Settings("posit8", "posit16", "posit16"),
    Settings("posit8es0", "posit16", "posit16"),
    Settings("posit8", "posit16", "posit8"),
    Settings("posit8", "posit16", "posit8", "kahan"),
    Settings("posit8", "posit16", "posit8", "stochastic-parameter"),
)
#: Settings that are also trained with sums rounded at each term, at the best rate for sums rounded once.
EACH = (
    Settings("bfloat16", None, "bfloat16"),
    Settings("posit16", None, "posit16"),
    Settings("float8_e4m3fn", None, "float8_e4m3fn"),
    Settings("posit8", None, "posit8"),
    Settings("float8_e4m3fn", "bfloat16", "bfloat16"),
    Settings("posit8", "posit16", "posit16"),
)
ONCE = [(item, rate, "once", seed) for item, rate, seed in product(CHOICES, RATES, SEEDS)]

#: Formats in which a second moment is kept, and its decays.
KEPT = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "posit8", "posit12", "posit16")
BETAS = (0.9, 0.95, 0.99, 0.999)


def key(settings: Settings, rate: float, sums: str, seed: int) -> str:
    """Return the name of a training in the result file."""
    return f"{', '.join(map(str, settings))}, rate {rate:g}, sums {sums}, seed {seed}"


def trained(settings: Settings, rate: float, sums: str, seed: int) -> dict[str, float]:
    """Return the results of a training."""
    run = mcf.simulate(
        Digits(format=settings.forward, loss_format=settings.loss, sums=sums),
        mcf.SGD(momentum=MOMENTUM),
        settings.strategy,
        STEPS,
        mcf.Schedule(peak=rate, warmup=0),
        seed,
        low=settings.low,
        clip=None,
        record_every=2,
    )
    name = settings.strategy
    return {
        "training": run.late(name, "loss"),
        "lost": run.late(name, "lost"),
        **run.results[name],
    }


def about() -> dict[str, Any]:
    """Return what all trainings have in common."""
    return {"problem": Digits().settings(), "steps": STEPS, "momentum": MOMENTUM}


def best(runs: dict[str, Any], settings: Settings) -> float:
    """Return the rate whose trainings, with sums rounded once, have the least final loss."""

    def late(rate: float) -> float:
        loss = float(np.mean([runs[key(settings, rate, "once", seed)]["training"] for seed in SEEDS]))
        return loss if np.isfinite(loss) else np.inf

    return min(RATES, key=late)


def jobs(runs: dict[str, Any]) -> list[tuple[Settings, float, str, int]]:
    """Return all trainings; the results with sums rounded once determine the rates of the others."""
    return [*ONCE, *((item, best(runs, item), "each", seed) for item, seed in product(EACH, SEEDS))]


def table() -> str:
    """Return the final loss of each choice."""
    runs, rows = read_result(NAME)["runs"], []
    for item in CHOICES:
        rate = best(runs, item)
        once = [runs[key(item, rate, "once", seed)] for seed in SEEDS]
        row = {
            "forward, backward": item.forward or "binary64",
            "loss": item.loss or item.forward or "binary64",
            "optimizer": item.low if item.strategy == "plain" else f"{item.low}, `{item.strategy}`",
            "rate": f"{rate:g}",
            "lost": f"{np.mean([run['lost'] for run in once]):.2f}",
            "training loss": _spread([run["training"] for run in once]),
            "validation loss": _spread([run["validation_loss"] for run in once]),
            "rounded at each term": "",
        }
        if item in EACH:
            each = [runs[key(item, rate, "each", seed)] for seed in SEEDS]
            row["rounded at each term"] = _spread(
                [a["validation_loss"] - b["validation_loss"] for a, b in zip(each, once, strict=True)], "+"
            )
        rows.append(row)
    return markdown_table(rows)


def decay_table() -> str:
    """Return in which binades ``RN(beta2 v)`` is less than v for every v."""
    rows = []
    for name in KEPT:
        fmt = mcf.get_format(name)
        v = decode(np.arange(1, 2 ** (fmt.bits - 1), dtype=np.uint64), fmt)
        v = v[np.isfinite(v)]
        binades = np.frexp(v)[1] - 1
        row = {"format": name}
        for beta2 in BETAS:
            decays = np.asarray(mcf.arithmetic(fmt).mul(mcf.round_to(v, fmt), beta2)) < v
            stays = set(binades[~decays].tolist())
            whole = [int(k) for k in np.unique(binades) if k not in stays]
            if whole:
                reach = "up" if whole[-1] == binades.max() else f"to 2^{whole[-1] + 1}"
                row[f"beta2 = {beta2}"] = f"2^{whole[0]} {reach}"
            else:
                row[f"beta2 = {beta2}"] = "for some v" if decays.any() else "nowhere"
        rows.append(row)
    return markdown_table(rows)


def _spread(numbers: list[float], sign: str = "") -> str:
    """Return a mean, and the sample standard deviation."""
    return f"{np.mean(numbers):{sign}.3f} +- {np.std(numbers, ddof=1):.3f}"


def main() -> None:
    """Train once at every rate, and then each at its best one."""
    runs = _train(ONCE)
    write_result(NAME, {**about(), "runs": _train(jobs(runs))})


def _train(asked: list[tuple[Settings, float, str, int]]) -> dict[str, Any]:
    """Return the results of trainings, by their keys."""
    return {key(*job): found for job, found in zip(asked, resumed(NAME, trained, asked), strict=True)}


if __name__ == "__main__":
    main()
