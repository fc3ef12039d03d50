"""The best learning rates of options on the small model, at which `experiments.collage_options` trains."""

from __future__ import annotations

from typing import Any

import mcfsim as mcf
from experiments import tuning
from experiments.common import read_result, resumed, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import LanguageModel

RESULT = "best_rates"
STEPS, WARMUP, BETAS = 300, 50, (0.999, 0.95)
STRATEGIES = ("plain", "fp32-optim", "kahan", "collage-light", "collage-plus", "fp32-master")


def settings(beta2: float, rate: float) -> dict[str, Any]:
    """Return the optimizer, length and schedule of a training of the small model."""
    return {
        "optimizer": mcf.AdamW(beta1=0.9, beta2=beta2, epsilon=1e-8, weight_decay=0.1),
        "steps": STEPS,
        "schedule": mcf.Schedule(peak=rate, warmup=WARMUP, final=0.1),
    }


def train(strategy: str, beta2: float, rate: float, seed: int) -> float | None:
    """Return the validation loss; None if the training diverged."""
    given = settings(beta2, rate)
    run = mcf.simulate(
        "language-model", strategies=strategy, seed=seed, record_every=STEPS, progress=False, **given
    )
    found = run.results[strategy]
    return None if "diverged_at" in found else found["validation_loss"]


def _losses(jobs: list[Any]) -> list[float | None]:
    """Return the losses of options at rates, on seeds; an option is a strategy and beta2."""
    return resumed(RESULT, train, [(*option, rate, seed) for option, rate, seed in jobs])


def study() -> None:
    """Choose the rates; minutes."""
    tuned = tuning.tune([(name, beta2) for beta2 in BETAS for name in STRATEGIES], _losses)
    rows = [
        {"strategy": name, "beta2": beta2, "best": tuning.best_rate(found), "losses": list(found.items())}
        for (name, beta2), found in tuned.items()  # type: ignore[misc]
    ]
    write_result(
        RESULT,
        {
            "settings": {
                "problem": LanguageModel().settings(),
                **{"steps": STEPS, "warmup": WARMUP, "seeds": tuning.SEEDS},
            },
            "tuned": rows,
        },
    )


def best(strategy: str, beta2: float) -> float:
    """Return the rate that was chosen for a strategy."""
    (row,) = (
        row for row in read_result(RESULT)["tuned"] if (row["strategy"], row["beta2"]) == (strategy, beta2)
    )
    return float(row["best"])


def table() -> str:
    """Return the losses from which each rate was chosen."""
    rows = read_result(RESULT)["tuned"]
    rates = sorted({rate for row in rows for rate, _ in row["losses"]})
    return markdown_table(
        [
            {
                "option": f"`{row['strategy']}`",
                "beta2": f"{row['beta2']:g}",
                **{f"{rate:g}": tuning.shown(dict(row["losses"]).get(rate, [])) for rate in rates},
                "chosen": f"{row['best']:g}",
            }
            for row in rows
        ]
    )


if __name__ == "__main__":
    study()
