"""What ulps of beta1, and how scalars enter, do to a first moment of one bf16 component, and to the loss.

``.9 k`` lies near the middle of two bf16 numbers for one significand k in ten. double(.9) is above 9/10 and
sends all of these up, the next double below sends all of them down: nothing else differs between the two
trainings. Scalars in float32 make them middles, and ties to even send half of them up.
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
from experiments.side_by_side import clipped_gradients, rounded_start, weights_of
from mcfsim.analysis.attribution import RoundedFunction
from mcfsim.analysis.samplers import inputs_of
from mcfsim.optim.state import State
from mcfsim.report.tables import markdown_table
from mcfsim.rounding import get_rounding

RESULT = "first_moment"
STEPS, SEEDS, BETAS = 300, (0, 1, 2, 3, 4), (0.999, 0.95)
REFERENCE, LATE = "fp32-master", 0.2
#: Values of beta1, with what tables call them.
BETA1 = {"double(.9)": 0.9, "the next double below": math.nextafter(0.9, 0.0), "double(.95)": 0.95}
#: Of each training beta1, how scalars enter, and the components of m.
TRAINED: dict[str, tuple[float, str, int]] = {
    **{
        f"double(.9) {ulps:+d} ulp" if ulps else "double(.9)": (0.9 + ulps * math.ulp(0.9), "exact", 1)
        for ulps in (-2, -1, 0, 1, 2)
    },
    "double(.9), scalars in float32": (0.9, "float32", 1),
    "double(.9), scalars rounded": (0.9, "rounded", 1),
    "double(.95)": (0.95, "exact", 1),
    "double(.9), m in 2 components": (0.9, "exact", 2),
}
BASE = "double(.9)"
SCHEDULE = mcf.Schedule(peak=3e-4, warmup=50, final=0.1)
#: All significands of bfloat16.
SIGNIFICANDS = range(128, 256)


def train(beta1: float, scalars: str, components: int, beta2: float, seed: int) -> list[float]:
    """Train Collage-plus, with so many components of m, and fp32 master weights.

    Returns
    -------
    list of float
        The length of m and that of the update D, late in the run and relative to exact arithmetic, and the
        loss less that of fp32 master weights. These take their scalars exactly.
    """
    plus = PLUS_TWO_M if components == 2 else mcf.STRATEGIES["collage-plus"]
    given: Any = {
        "optimizer": mcf.AdamW(beta1=beta1, beta2=beta2, epsilon=1e-8, weight_decay=0.1),
        **{"steps": STEPS, "schedule": SCHEDULE, "seed": seed, "record_every": 25, "progress": False},
    }
    run = mcf.simulate("language-model", strategies=plus, scalars=scalars, truth_sample=1000, **given)
    other = mcf.simulate("language-model", strategies=REFERENCE, **given)
    loss = run.results[plus.name]["validation_loss"] - other.results[REFERENCE]["validation_loss"]
    return [*(run.late(plus.name, measure, LATE) for measure in ("m_ratio", "update_length")), loss]


#: Names of the operations of D, after those of v.
OF_UPDATE = (
    *("m / (1 - beta1^t)", "v / (1 - beta2^t)", "root", "root + epsilon", "quotient"),
    *("lambda theta", "quotient + lambda theta", "-lr times that"),
)
OF_V, ALL = "v, in 2 components", "all"


def blame(seed: int) -> dict[str, float]:
    """Return the share of the length of Collage-plus's D that each rounding causes, late in a run.

    The error of D is the exact sum of shares of its operations (`mcfsim.analyse`). A share's length is its
    inner product with the exact D over the square of that.
    """
    problem, plus = mcf.get_problem("language-model"), mcf.strategy("collage-plus", "bfloat16")
    hyper = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
    start = rounded_start(problem, seed)
    optimizer = mcf.Optimizer(hyper, plus, start, problem.decayed, steps=STEPS)
    found: list[dict[str, float]] = []
    for step in range(1, STEPS + 1):
        gradients = clipped_gradients(problem, weights_of(optimizer), step, seed)
        received, rate = optimizer.receive(gradients), SCHEDULE.rate(step, STEPS)
        if step > (1 - LATE) * STEPS and step % 5 == 0:
            found.append(_blamed(optimizer, received, rate))
        optimizer.step(received, rate)
    return {label: float(np.mean([one[label] for one in found])) for label in found[0]}


def _blamed(optimizer: mcf.Optimizer, gradient: Any, rate: float) -> dict[str, float]:
    """Return the shares of the length of D in the next step, of weights that decay and have a v."""
    roles, part = optimizer.roles, slice(0, optimizer.layout.decayed_size)
    given: Any = optimizer.strategy, optimizer.count + 1, rate
    scalars = optimizer.hyper.scalars(roles, *given, decayed=True)

    def update(ar: Any, m: Any, v: Any, dv: Any, theta: Any, g: Any) -> Any:
        state = State((theta, theta), (m,), (v, dv), ())
        same = roles.mapped(lambda role: ar)
        return optimizer.hyper.step(same, optimizer.strategy, state, g, scalars).update

    (m,), (v, dv), (theta, _) = optimizer.state.m, optimizer.state.v, optimizer.state.parameter
    columns = [np.asarray(x[part], float) for x in (m, v, dv, theta, gradient)]
    kept = columns[1] > 0
    numbers = dict(zip(("m", "v", "dv", "theta", "g"), (x[kept] for x in columns), strict=True))
    inputs = inputs_of(update, numbers, {}, int(kept.sum()), 0)
    nearest, low = get_rounding("nearest_even"), mcf.get_format("bfloat16")
    asked = RoundedFunction(update, inputs, low, nearest, "exact", 0, "format", {})
    results = [step.result for step in asked.program.steps]
    of_v = dict.fromkeys(results[2 : -len(OF_UPDATE)], OF_V)
    labels = {**of_v, results[0]: "beta1 m", results[1]: "beta1 m + (1 - beta1) g"}
    labels |= dict(zip(results[-len(OF_UPDATE) :], OF_UPDATE, strict=True))
    found = asked.at(list(numbers.values()))
    exact = found.computed - found.error
    shares = dict.fromkeys((ALL, "beta1 m", "beta1 m + (1 - beta1) g", OF_V, *OF_UPDATE), 0.0)
    shares[ALL] = float(exact @ found.error / (exact @ exact))
    for register, share in found.shares():
        shares[labels[register]] += float(exact @ share / (exact @ exact))
    return shares


def blame_table() -> str:
    """Return which operation makes D too long by how much."""
    found = read_result(RESULT)["blame"]
    return markdown_table(
        [
            {"operation": label, "part of the length of D (95 % interval)": paired.percent(shares, 4)}
            for label, shares in found.items()
        ]
    )


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
    """Return how long m and D are, and the loss, by beta1 and policy, and against the base of its beta2."""
    rows = []
    for label, by_beta2 in read_result(RESULT)["trainings"].items():
        for beta2, numbers in by_beta2.items():
            lengths, updates, differences = np.array(numbers).T
            changed = differences - _base(beta2)
            rows.append(
                {
                    "beta1, scalars": label,
                    "beta2": beta2,
                    **{
                        f"{name} / exact, late": f"{found.mean():.5f} +- {found.std(ddof=1):.5f}"
                        for name, found in (("m", lengths), ("D", updates))
                    },
                    f"loss minus `{REFERENCE}` (95 % interval)": paired.shown(differences, 5),
                    "apart": paired.answer(differences),
                    f"minus that of {BASE}": paired.shown(changed, 5) if changed.any() else "",
                    "apart from it": paired.answer(changed),
                }
            )
    return markdown_table(rows)


def _base(beta2: str) -> np.ndarray[Any, Any]:
    """Return the differences of the losses of double(.9), one a seed."""
    found: np.ndarray[Any, Any] = np.array(read_result(RESULT)["trainings"][BASE][beta2])[:, 2]
    return found


def study() -> None:
    """Train with each beta1 and policy, and with m in two components."""
    jobs = [
        (label, (*given, beta2, seed))
        for label, given in TRAINED.items()
        for beta2 in BETAS
        for seed in SEEDS
    ]
    rows: dict[str, dict[str, list[Any]]] = {}
    made = resumed(RESULT, train, [job for _, job in jobs])
    for (label, (*_, beta2, _)), found in zip(jobs, made, strict=True):
        rows.setdefault(label, {}).setdefault(str(beta2), []).append(found)
    blamed = resumed(f"{RESULT}_blame", blame, [(seed,) for seed in SEEDS])
    write_result(
        RESULT,
        {
            "settings": {
                "problem": mcf.get_problem("language-model").settings(),
                "steps": STEPS,
                "seeds": SEEDS,
                "rate": SCHEDULE.peak,
            },
            "trainings": rows,
            "blame": {label: [one[label] for one in blamed] for label in blamed[0]},
        },
    )


if __name__ == "__main__":
    study()
