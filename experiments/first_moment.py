"""What one ulp of beta1 does to a first moment of one bf16 component, and to the loss.

``.9 k`` lies near the middle of two bf16 numbers for one significand k in ten. double(.9) is above 9/10 and
sends all of these up, the next double below sends all of them down: nothing else differs between the two
trainings.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments import paired
from experiments.collage_options import PLUS_TWO_M
from experiments.common import read_result, resumed, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.installed import versions

RESULT = "first_moment"
STEPS, SEEDS, BETAS = 300, (0, 1, 2, 3, 4), (0.999, 0.95)
REFERENCE, LATE = "fp32-master", 0.2
#: Values of beta1, with what tables call them; and the components of m of each training.
BETA1 = {"double(.9)": 0.9, "the next double below": math.nextafter(0.9, 0.0), "double(.95)": 0.95}
TRAINED = {**{label: (beta1, 1) for label, beta1 in BETA1.items()}, "double(.9), m in 2 components": (0.9, 2)}
SCHEDULE = mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
#: All significands of bfloat16.
SIGNIFICANDS = range(128, 256)


def train(beta1: float, beta2: float, components: int, seed: int) -> list[float]:
    """Return how long Collage-plus's m is late in a run, and its loss less that of fp32 master weights.

    Of its first moment so many components are kept.
    """
    plus = PLUS_TWO_M if components == 2 else mcf.STRATEGIES["collage-plus"]
    run = mcf.simulate(
        "language-model",
        mcf.AdamW(beta1=beta1, beta2=beta2, epsilon=1e-8, weight_decay=0.1),
        [plus, REFERENCE],
        STEPS,
        SCHEDULE,
        seed,
        record_every=25,
        progress=False,
    )
    loss = {name: run.results[name]["validation_loss"] for name in (plus.name, REFERENCE)}
    return [run.late(plus.name, "m_ratio", LATE), loss[plus.name] - loss[REFERENCE]]


def middles(beta1: Fraction) -> list[int]:
    """Return the significands k for which ``beta1 k`` is the middle of two bf16 numbers."""
    found = []
    for k in SIGNIFICANDS:
        half_ulps = 2 * beta1 * k if beta1 * k >= 128 else 4 * beta1 * k
        if half_ulps.denominator == 1 and half_ulps % 2:
            found.append(k)
    return found


def ways(beta1: float, wanted: Fraction, *, single: bool = False) -> tuple[int, int]:
    """Return how many of the `middles` of a wanted beta1 go up and down when its stand-in multiplies them.

    Parameters
    ----------
    beta1 : float
        What multiplies.
    wanted : Fraction
        What is meant.
    single : bool, optional
        Whether factor and product are rounded to float32 first, as PyTorch's kernels do.
    """
    ar = mcf.arithmetic("bfloat16", scalars="float32" if single else "exact")
    up = down = 0
    for k in middles(wanted):
        product: Any = ar.mul(beta1, float(k))
        up, down = up + (Fraction(product) > wanted * k), down + (Fraction(product) < wanted * k)
    return up, down


def middles_table() -> str:
    """Return which way near middles go, by what stands for beta1."""
    rows = []
    for label, beta1 in BETA1.items():
        wanted = Fraction(str(round(beta1, 2)))
        cells = {}
        for heading, single in (("exact, then bf16", False), ("float32, then bf16", True)):
            up, down = ways(beta1, wanted, single=single)
            cells[f"{heading}: up, down"] = f"{up}, {down}"
        rows.append({"beta1": label, "middles of 128": str(len(middles(wanted))), **cells})
    return markdown_table(rows)


def table() -> str:
    """Return how long m is, and the loss, by beta1, and against the first row of its beta2."""
    found = read_result(RESULT)["m_ratio_and_difference"]
    rows = []
    for label, by_beta2 in found.items():
        for beta2, numbers in by_beta2.items():
            ratios, differences = np.array(numbers).T
            changed = differences - np.array(found["double(.9)"][beta2])[:, 1]
            rows.append(
                {
                    "beta1": label,
                    "beta2": beta2,
                    "m / exact, late": f"{ratios.mean():.5f} +- {ratios.std(ddof=1):.5f}",
                    f"minus `{REFERENCE}`": paired.shown(differences, 5),
                    "apart": paired.answer(differences),
                    "minus the row of double(.9)": paired.shown(changed, 5) if changed.any() else "",
                    "apart from it": paired.answer(changed),
                }
            )
    return markdown_table(rows)


def study() -> None:
    """Train with each beta1, and with m in two components."""
    jobs = [(*given, seed) for given in _given() for seed in SEEDS]
    made = iter(resumed(RESULT, train, [(beta1, beta2, n, seed) for _, beta1, beta2, n, seed in jobs]))
    rows: dict[str, dict[str, list[Any]]] = {}
    for label, _, beta2, _, _ in jobs:
        rows.setdefault(label, {}).setdefault(str(beta2), []).append(next(made))
    settings = {"steps": STEPS, "seeds": SEEDS, "rate": SCHEDULE.peak}
    write_result(RESULT, {"settings": settings, "versions": versions(), "m_ratio_and_difference": rows})


def _given() -> list[tuple[str, float, float, int]]:
    """Return the label, both betas and the components of m of each training, but for its seed."""
    return [(label, beta1, beta2, n) for label, (beta1, n) in TRAINED.items() for beta2 in BETAS]


if __name__ == "__main__":
    study()
