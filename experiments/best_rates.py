"""Options of Collage, each at several learning rates: what they lose at the rate that is best for each."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.common import read_result, resumed, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.installed import blas, versions

RESULT = "best_rates"
STEPS, SEEDS, BETA2 = 300, (0, 1, 2), 0.999
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
STRATEGIES = ("plain", "collage-plus", "fp32-master")
REFERENCE = "fp32-master"


def train(strategy: str, rate: float, seed: int) -> float:
    """Return the validation loss, all but the rate as in `experiments.collage_options`."""
    run = mcf.simulate(
        "language-model",
        mcf.AdamW(beta1=0.9, beta2=BETA2, epsilon=1e-8, weight_decay=0.1),
        strategy,
        STEPS,
        mcf.Schedule(peak=rate, warmup=50, final=0.1),
        seed,
        record_every=STEPS,
        progress=False,
    )
    return run.results[strategy]["validation_loss"]


def study() -> None:
    """Train all."""
    jobs = [(strategy, rate, seed) for strategy in STRATEGIES for rate in RATES for seed in SEEDS]
    losses = np.array(resumed(RESULT, train, jobs)).reshape(len(STRATEGIES), len(RATES), len(SEEDS))
    write_result(
        RESULT,
        {
            "settings": {"steps": STEPS, "seeds": SEEDS, "beta2": BETA2, "rates": RATES},
            "versions": {**versions(), "blas": blas()},
            "losses": dict(zip(STRATEGIES, losses.tolist(), strict=True)),
        },
    )


def differences() -> dict[str, tuple[float, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return each option's best rate; its losses less the reference's at one rate, and each at its best."""
    losses = {name: np.array(found) for name, found in read_result(RESULT)["losses"].items()}
    best = {name: int(np.argmin(found.mean(axis=1))) for name, found in losses.items()}
    against, place = losses[REFERENCE], best[REFERENCE]
    return {
        name: (RATES[best[name]], found[0] - against[0], found[best[name]] - against[place])
        for name, found in losses.items()
    }


def table() -> str:
    """Return what each option loses at one rate, and at its own."""
    rows = []
    losses = read_result(RESULT)["losses"]
    for name, (rate, same, own) in differences().items():
        rows.append(
            {
                "option": f"`{name}`",
                **{f"loss at {r:g}": f"{np.mean(x):.4f}" for r, x in zip(RATES, losses[name], strict=True)},
                "best rate": f"{rate:g}",
                f"minus `{REFERENCE}`, both at {RATES[0]:g}": "" if name == REFERENCE else paired.shown(same),
                f"minus `{REFERENCE}`, each at its best": "" if name == REFERENCE else paired.shown(own),
                "apart": "" if name == REFERENCE else "yes" if paired.apart(own) else "no",
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    study()
