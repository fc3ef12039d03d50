"""The rounding points of our AdamW and of PyTorch's: which differ, and how much each matters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import read_result, write_result
from mcfsim.optim import adamw, torchadamw
from mcfsim.optim.adamw import AdamW, AdamWScalars
from mcfsim.optim.declaration import Slot
from mcfsim.optim.state import State, Step, converted, decayed_update, move
from mcfsim.optim.strategies import Roles, Strategy
from mcfsim.optim.torchadamw import TorchAdamW, TorchAdamWScalars, inner
from mcfsim.protocol import Value
from mcfsim.report.tables import markdown_table
from mcfsim.training.problems import Problem
from mcfsim.training.trainer import REFERENCE, REFERENCE_ROLES

STEPS, SIZE, SEEDS = 1000, 512, (0, 1, 2)
TRAINED = 200
RATE, HYPER = 1e-3, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1}
STORED = {"fp32": "fp32", "plain": "bf16"}
#: The parts of a step that are changed from ours to PyTorch's, the others left as they are; and labels.
CHANGED = {
    "ours": ((), "none: `AdamW`"),
    "m": (("m",), "m by `lerp_`"),
    "v": (("v",), "v by `mul_`, `addcmul_`"),
    "quotient": (("quotient",), "order and stores of divisions"),
    "added": (("added",), "decay and addition apart"),
    "torch": (("m", "v", "quotient", "added"), "all: `TorchAdamW`"),
}


def _of_ours(slot: Slot) -> Slot:
    """Return a slot whose average takes the scalars of both steps."""
    return Slot(slot.name, lambda ar, x, gradient, scalars: slot.average(ar, x, gradient, _apart(scalars)[0]))


def _apart(scalars: dict[str, Any]) -> tuple[AdamWScalars, TorchAdamWScalars]:
    """Return the scalars of our step and of PyTorch's."""
    return tuple(  # type: ignore[return-value]
        kind(**{name: scalars[f"{kind.__name__}_{name}"] for name in kind._fields})
        for kind in (AdamWScalars, TorchAdamWScalars)
    )


@dataclass(frozen=True)
class Mixed(AdamW):
    """AdamW with some parts of its step at PyTorch's rounding points."""

    slots = tuple(map(_of_ours, AdamW.slots))
    points: tuple[str, ...] = ()

    def scalars(self, roles: Roles, strategy: Strategy, step: int, rate: float, *, decayed: bool) -> Any:
        """Return the scalars of both by name, so that a step is recorded once for all."""
        given = roles, strategy, step, rate
        theirs = TorchAdamW(self.beta1, self.beta2, self.epsilon, self.weight_decay)
        both = super().scalars(*given, decayed=decayed), theirs.scalars(*given, decayed=decayed)
        return {f"{type(x).__name__}_{name}": number for x in both for name, number in x._asdict().items()}

    def step(self, roles: Roles, strategy: Strategy, state: State, gradient: Value, scalars: Any) -> Step:
        """Make one step, each part by the text that it is asked from."""
        ours, theirs = _apart(scalars)
        ar, second, up = roles.moments, roles.second_moment, roles.update

        def text(part: str) -> tuple[Any, Any]:
            return (torchadamw, theirs) if part in self.points else (adamw, ours)

        g = ar.round(gradient)
        of_m, for_m = text("m")
        m = of_m.first_moment(ar, state.m, g, for_m)
        of_v, for_v = text("v")
        v = of_v.second_moment(second, state.v, converted(second, g, ar), for_v)
        if "quotient" in self.points:
            asked = torchadamw.quotient(roles, m, v, theirs)
            update = converted(up, torchadamw.decayed(roles, strategy, state, asked, theirs), inner(up))
        else:
            direction, _ = adamw.quotient(roles, m, v, ours)
            asked = inner(up).round(up.mul(direction, -ours.rate))
            update = decayed_update(up, strategy, state, direction, ours)
        if "added" in self.points:
            parameter, extra = torchadamw.added(roles, strategy, state, asked, theirs)
        else:
            parameter, extra = move(roles, strategy, state, update)
        return Step(State(parameter, m, v, extra), update)


@cache
def gradients(step: int) -> np.ndarray[Any, Any]:
    """Return the gradients of a step, values of bf16: a third by each seed, of scales from 1 to 2^-10."""
    parts = []
    for seed in SEEDS:
        random = np.random.default_rng([seed, step])
        scale = 2.0 ** (-10 * np.arange(SIZE) / SIZE)
        parts.append((random.standard_normal(SIZE) + 0.1) * scale)
    return np.asarray(mcf.round_to(np.concatenate(parts), "bfloat16"))


def trained(strategy: str, parts: tuple[str, ...]) -> dict[int, dict[str, np.ndarray[Any, Any]]]:
    """Return m, v and the parameter after the first and the last step."""
    start = np.random.default_rng(7).standard_normal(SIZE * len(SEEDS)) * 0.1
    start = mcf.round_to(start, "bfloat16")
    chosen = mcf.strategy(strategy, "bfloat16")
    optimizer = mcf.Optimizer(Mixed(**HYPER, points=parts), chosen, {"w": start}, {"w"}, steps=STEPS)
    found = {}
    for step in range(1, STEPS + 1):
        optimizer.advance(optimizer.receive({"w": gradients(step)}), RATE)
        if step in (1, STEPS):
            state = optimizer.state
            found[step] = {"m": state.m[0].copy(), "v": state.v[0].copy(), "theta": state.parameter[0].copy()}
    return found


def exact() -> dict[str, np.ndarray[Any, Any]]:
    """Return m and v after the last step in binary64."""
    m: tuple[Any, ...] = (np.zeros(SIZE * len(SEEDS)),)
    v, hyper = m, AdamW(**HYPER)
    for step in range(1, STEPS + 1):
        g = gradients(step).astype(np.float64)
        scalars = hyper.scalars(REFERENCE_ROLES, mcf.strategy("exact"), step, RATE, decayed=True)
        m = adamw.first_moment(REFERENCE, m, g, scalars)
        v = adamw.second_moment(REFERENCE, v, g, scalars)
    return {"m": m[0], "v": v[0]}


def by_seed(x: np.ndarray[Any, Any]) -> list[float]:
    """Return the mean of a measure of all elements for each seed."""
    return [float(part.mean()) for part in x.reshape(len(SEEDS), SIZE)]


@cache
def logistic() -> Problem:
    """Return logistic regression, whose data take a while to make."""
    return mcf.get_problem("logistic")


def losses(strategy: str, parts: tuple[str, ...]) -> list[float]:
    """Return the final loss of logistic regression for each seed."""
    found, problem = [], logistic()
    for seed in SEEDS:
        run = mcf.simulate(
            *(problem, Mixed(**HYPER, points=parts), strategy, TRAINED),
            schedule=mcf.Schedule(peak=1e-2, warmup=10),
            seed=seed,
            record_every=TRAINED,
        )
        found.append(float(run.series[strategy]["loss"][-1]))
    return found


def table() -> str:
    """Return how much each part matters."""
    rows = []
    for strategy, by_name in read_result("rounding_points")["table"].items():
        for name, row in by_name.items():
            shown = {"format": STORED[strategy], "PyTorch's": CHANGED[name][1]}
            for part in ("m", "v", "theta"):
                first, last = (_percent(row[f"{part} at {step}"]) for step in (1, STEPS))
                shown[f"{part} differs"] = f"{first}, {last}" if name != "ours" else ""
            for part in ("m", "v"):
                shown[f"error of {part}"] = f"{float(np.mean(row[f'error of {part}'])):.2g}"
            gained = np.subtract(row["loss"], by_name["ours"]["loss"])
            shown["loss"] = f"{np.mean(row['loss']):.5f}" if name == "ours" else _signed(gained)
            rows.append(shown)
    return markdown_table(rows)


def _percent(shares: list[float]) -> str:
    """Return the mean of shares."""
    return f"{100 * np.mean(shares):.3g} %"


def _signed(x: Any) -> str:
    """Return the mean of differences, with how far the seeds lie from it at most."""
    if np.abs(x).max() < 1e-6:  # of what a result file keeps of a loss
        return "below 1e-6"
    return f"{np.mean(x):+.1e} +- {np.abs(x - np.mean(x)).max():.0e}"


def main() -> None:
    """Run, and write the numbers."""
    truth = exact()
    result: dict[str, Any] = {"steps": STEPS, "elements": SIZE, "seeds": list(SEEDS), "table": {}}
    for strategy in STORED:
        ours = trained(strategy, ())
        for name, (parts, _) in CHANGED.items():
            found = ours if not parts else trained(strategy, parts)
            row: dict[str, Any] = {
                f"{part} at {step}": by_seed(found[step][part] != ours[step][part])
                for step in (1, STEPS)
                for part in ("m", "v", "theta")
            }
            for part, right in truth.items():
                error = np.square(found[STEPS][part] - right).reshape(len(SEEDS), SIZE).mean(axis=1)
                size = np.square(right).reshape(len(SEEDS), SIZE).mean(axis=1)
                row[f"error of {part}"] = [float(x) for x in np.sqrt(error / size)]
            row["loss"] = losses(strategy, parts)
            result["table"].setdefault(strategy, {})[name] = row
    write_result("rounding_points", result)


if __name__ == "__main__":
    main()
