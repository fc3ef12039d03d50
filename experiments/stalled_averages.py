"""Exponential averages in low formats: where they stall, by the rule and by trial; a real second moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mcfsim as mcf
from experiments import paired
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.side_by_side import clipped_gradients, weights_of
from mcfsim.analysis.preimage import beside
from mcfsim.models.forecast import significands
from mcfsim.optim.state import average
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table

RESULT = "stalled_averages"
Array = NDArray[Any]

# -- a constant target --------------------------------------------------------------------------------------
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
DECAYS = (0.9, 0.99, 0.999, 0.9999)
FORMS = ("adamw", "torch_lerp", "torch_avg_fn")
#: Those that the page shows.
SHOWN_FORMS = ("adamw", "torch_lerp")
#: How many significands of the target are tried per format, spread evenly.
TARGETS = 4


def constant(name: str, form: str, decay: float) -> dict[str, list[Any]]:
    """Return where averages from 0 to constant targets stall, and from when on they are wrong.

    Returns
    -------
    dict of str to list
        A number for each target: its share at which the average stalls, by the rule and by trial, and the
        step from which on the stored average is wrong, by both.
    """
    made = mcf.MovingAverage(name, decay, form)
    numbers = significands(made.format)
    targets = numbers[:: max(1, numbers.size // TARGETS)]
    said = [made.stalls_at(0.0, g) for g in targets]
    ends, right = _trial(made, targets)
    return {
        "share_by_rule": [float(g if x is None else x) / g for x, g in zip(said, targets, strict=True)],
        "share_by_trial": (ends / targets).tolist(),
        "wrong_by_rule": [made.wrong_from(0.0, g) for g in targets],
        "wrong_by_trial": [None if x is None else x + 1 for x in right],
    }


def _trial(made: mcf.MovingAverage, targets: Array) -> tuple[Array, list[int | None]]:
    """Return where averages end, and the last step after which each was right; None if it is so at the end.

    An average is right if it is what the exact one rounds to. That is known to 13 digits, and both numbers to
    which it may round then are right.
    """
    carrier = mcf.arithmetic(made.format).carrier
    g, s = targets.astype(carrier), np.zeros(targets.size, carrier)
    right, still, step = np.zeros(targets.size, np.int64), np.zeros(targets.size, bool), 0
    while not still.all() or _share(made.decay, step) < 1 - float(made.format.unit_roundoff) / 16:
        step += 1
        if not still.all():
            moved = made.step(s, g)
            s, still = moved, moved == s
        exact = targets * _share(made.decay, step)
        ends = (mcf.round_to(exact * (1 + by), made.format) for by in (-1e-13, 1e-13))
        right[np.any([s == x for x in ends], axis=0)] = step
    return s, [None if x == step else int(x) for x in right]


def _share(decay: float, step: int) -> float:
    """Return the share of a constant target that the exact average from 0 has reached after a step."""
    return float(-np.expm1(step * np.log(decay)))


def constant_table() -> str:
    """Return where averages from 0 stall, and from when on they are wrong."""
    return markdown_table(
        [
            {
                "format": found["format"],
                "form": f"`{found['form']}`",
                "decay": f"{found['decay']:g}",
                "share of the target, by the rule": _range(found["share_by_rule"], ".3f"),
                "by trial": _range(found["share_by_trial"], ".3f"),
                "wrong at the latest from step, by the rule": _range(found["wrong_by_rule"], "d"),
                "wrong for good from, by trial": _range(found["wrong_by_trial"], "d"),
            }
            for found in read_result(RESULT)["constant"]
            if found["form"] in SHOWN_FORMS and found["decay"] != 0.99
        ]
    )


def agreement() -> tuple[int, int]:
    """Return how many averages stall where the rule says, and how many there are."""
    rows = read_result(RESULT)["constant"]
    same = [a == b for row in rows for a, b in zip(row["share_by_rule"], row["share_by_trial"], strict=True)]
    return sum(same), len(same)


def _range(numbers: list[Any], form: str) -> str:
    """Return the least and the largest number; nothing if none is there."""
    there = [x for x in numbers if x is not None]
    if not there:
        return "never"
    low, high = (format(f(there), form) for f in (min, max))
    return (low if low == high else f"{low} to {high}") + ("" if len(there) == len(numbers) else ", or never")


# -- weights ------------------------------------------------------------------------------------------------
#: How an average of weights is stored: by a form in a format, or in components of bf16.
STORED: dict[str, tuple[str, str] | int] = {
    "`AveragedModel` in bf16, `get_ema_multi_avg_fn`": ("bfloat16", "torch_lerp"),
    "`AveragedModel` in bf16, `get_ema_avg_fn`": ("bfloat16", "torch_avg_fn"),
    "`AveragedModel` in fp32, `get_ema_multi_avg_fn`": ("float32", "torch_lerp"),
    "`mcfsim.torch.average`, 2 components of bf16": 2,
    "`mcfsim.torch.average`, 3 components of bf16": 3,
}
AVERAGED_STEPS, START, TARGET = 5000, 1.0, 5.0


def averaged(stored: tuple[str, str] | int, decay: float) -> float:
    """Return an average of a constant weight after many steps."""
    if isinstance(stored, int):
        low, x = mcf.arithmetic("bfloat16"), START
        for _ in range(AVERAGED_STEPS):
            x = sum(reversed(mcf.expand(low, x + (TARGET - x) * (1.0 - decay), stored)))
        return float(x)
    made = mcf.MovingAverage(stored[0], decay, stored[1])
    s, g = np.float32([START]), np.float32([TARGET])
    for _ in range(AVERAGED_STEPS):
        s = made.step(s, g)
    return float(s[0])


def weights_table() -> str:
    """Return where averages of a weight arrive."""
    found = read_result(RESULT)["averaged"]
    exact = {f"{b:g}": TARGET + (START - TARGET) * b**AVERAGED_STEPS for b in DECAYS[2:]}
    rows = [
        {"stored as": name, **{f"b = {b}": f"{x:.4f}" for b, x in row.items()}} for name, row in found.items()
    ]
    return markdown_table(
        [*rows, {"stored as": "exact", **{f"b = {b}": f"{x:.4f}" for b, x in exact.items()}}]
    )


# -- the second moment of a model ---------------------------------------------------------------------------
STEPS, WINDOW, SEEDS, BETAS = 600, 50, range(6), (0.999, 0.95)
SCHEDULE = mcf.Schedule(peak=2e-3, warmup=50, final=0.1)
#: What the tables call v in bf16 by the operations of PyTorch.
TORCH = "bf16, PyTorch's form"
STYLES: dict[str, dict[str, Any]] = {
    "bf16": {"color": COLOURS["vermilion"]},
    TORCH: {"color": COLOURS["orange"], "linestyle": (0, (5, 2))},
    "bf16, 2 components": {"color": COLOURS["blue"]},
    "fp32": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
}


def gradients(seed: int) -> Iterator[Array]:
    """Yield the gradients of a training with fp32 master weights, in bf16, each as one vector."""
    problem = mcf.get_problem("language-model")
    start: Any = problem.initial_parameters(seed)
    hyper = mcf.AdamW(beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.1)
    optimizer = mcf.Optimizer(hyper, mcf.strategy("fp32-master"), start, problem.decayed, steps=STEPS)
    for step in range(1, STEPS + 1):
        received = optimizer.receive(clipped_gradients(problem, weights_of(optimizer), step, seed))
        yield mcf.round_to(np.asarray(received), "bfloat16")
        optimizer.step(received, SCHEDULE.rate(step, STEPS))


class Moments:
    """Second moments of the same gradients, stored in several ways, at one beta2."""

    def __init__(self, beta2: float, size: int) -> None:
        self.beta2, self.low = beta2, mcf.arithmetic("bfloat16")
        self.expanded = mcf.expand(self.low, beta2, 2)
        self.forms = {
            "bf16": mcf.MovingAverage("bfloat16", beta2, "adamw"),
            TORCH: mcf.MovingAverage("bfloat16", beta2, "torch_addcmul"),
            "fp32": mcf.MovingAverage("float32", beta2, "adamw"),
        }
        self.ends = ends(self.forms["bf16"])
        self.v: dict[str, Array] = {name: np.zeros(size, np.float32) for name in STYLES}
        self.rest, self.exact = np.zeros(size, np.float32), np.zeros(size)
        self.stayed: dict[str, Array] = {}
        self.asked = self.said_wrongly = 0
        self.begin()

    def begin(self) -> None:
        """Begin a window of steps."""
        size = self.exact.size
        self.given, self.stayed = np.zeros(size, bool), {name: np.ones(size, bool) for name in STYLES}

    def enter(self, g: Array) -> None:
        """Let a gradient enter all second moments."""
        square = self.low.mul(g, g)
        parts = self.v["bf16, 2 components"], self.rest
        head, rest = average(self.low, parts, self.expanded, square, 1.0 - self.beta2)
        entering = {"bf16": square, TORCH: g, "fp32": np.float32(g) ** 2}
        new = {name: form.step(self.v[name], entering[name]) for name, form in self.forms.items()}
        new["bf16, 2 components"] = head
        for name, x in new.items():
            self.stayed[name] &= x == self.v[name]
        self.stayed["bf16, 2 components"] &= rest == self.rest
        self._ask(square, new["bf16"])
        self.given |= g != 0
        self.v, self.rest = new, rest
        self.exact += (1.0 - self.beta2) * (g.astype(np.float64) ** 2 - self.exact)

    def _ask(self, square: Array, new: Array) -> None:
        """Compare the rule with what the plain bf16 average does, number by number."""
        v = self.v["bf16"].astype(np.float64)
        there = v >= 2.0**-100
        significand, exponent = np.frexp(v[there])  # from 1/2 to 1
        low, high = self.ends[:, np.int64(significand * 256) - 128]
        scaled = np.ldexp(square[there].astype(np.float64), 1 - exponent)
        said = (low <= scaled) & (scaled <= high)
        self.asked += said.size
        self.said_wrongly += int((said != (new == self.v["bf16"])[there]).sum())

    def still(self) -> dict[str, float]:
        """Return the share of the numbers that had a gradient, but did not move in this window."""
        return {name: float(x[self.given].mean()) for name, x in self.stayed.items()}

    def ratios(self) -> dict[str, float]:
        """Return the median of v over the exact one."""
        there = self.exact > 0
        whole = {**self.v, "bf16, 2 components": self.v["bf16, 2 components"] + self.rest.astype(np.float64)}
        return {name: float(np.median(x[there] / self.exact[there])) for name, x in whole.items()}


def ends(form: mcf.MovingAverage) -> Array:
    """Return the least and the greatest value that leave each significand from 1 to 2 still."""
    found = []
    for s in significands(form.format):
        still = form.still(s)
        low, high = beside(still.low, form.format, up=True), beside(still.high, form.format, up=False)
        found.append(
            (
                float(low) if still.holds(low) else np.nextafter(float(low), np.inf),
                float(high) if still.holds(high) else np.nextafter(float(high), -np.inf),
            )
        )
    return np.array(found).T


def second_moments(seed: int) -> dict[str, Any]:
    """Return, by beta2, the shares of v that stayed in each window, and v over the exact one at the end."""
    moments: dict[float, Moments] = {}
    still: dict[str, dict[str, list[float]]] = {str(b): {name: [] for name in STYLES} for b in BETAS}
    for step, g in enumerate(gradients(seed), 1):
        for beta2 in BETAS:
            if step == 1:
                moments[beta2] = Moments(beta2, g.size)
            moments[beta2].enter(g)
            if step % WINDOW == 0:
                for name, share in moments[beta2].still().items():
                    still[str(beta2)][name].append(share)
                moments[beta2].begin()
    return {
        "still": still,
        "ratios": {str(b): x.ratios() for b, x in moments.items()},
        "asked": sum(x.asked for x in moments.values()),
        "said_wrongly": sum(x.said_wrongly for x in moments.values()),
    }


def last(beta2: str, name: str) -> Array:
    """Return the share of v that did not move in the last window, one number per seed."""
    return np.array([run["still"][beta2][name][-1] for run in read_result(RESULT)["runs"]])


def ratios(beta2: str, name: str) -> Array:
    """Return the median of v over the exact one at the end, one a seed."""
    return np.array([run["ratios"][beta2][name] for run in read_result(RESULT)["runs"]])


def moments_table() -> str:
    """Return how much of v did not move in the last window, and how large v is."""
    rows = []
    for beta2 in map(str, BETAS):
        for name in STYLES:
            rows.append(
                {
                    "v stored in": name,
                    "beta2": beta2,
                    f"stood still in the last {WINDOW} steps (95 % interval)": _interval(last(beta2, name)),
                    "median of v / exact v (95 % interval)": _interval(ratios(beta2, name)),
                }
            )
    return markdown_table(rows)


def _interval(numbers: Array) -> str:
    low, high = paired.interval(numbers)
    return f"{numbers.mean():.4f} ({low:.4f} to {high:.4f})"


#: What the figure shows, by the words for it: PyTorch's form lies on bf16, and fp32 on two components.
DRAWN = {"bf16": "bf16", "bf16, 2 components": "bf16, 2 components;\nfp32"}
TITLE = "A sixth of a bf16 v stands still for 50 steps; in two components or fp32, none"


def draw() -> None:
    """Draw the shares of v that stand still, against the step."""
    runs = read_result(RESULT)["runs"]
    steps = np.arange(WINDOW, STEPS + 1, WINDOW)
    with subplots(1, 1, width=7.5, height=4) as (figure, axes):
        panel = axes[0][0]
        for name, label in DRAWN.items():
            style, shares = STYLES[name], np.array([run["still"]["0.999"][name] for run in runs])
            low, high = np.transpose([paired.interval(x) for x in shares.T])
            panel.plot(steps, shares.mean(axis=0), label=label, **style)
            panel.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)
        panel.set_ylim(-0.005, 0.3)
        panel.set_xlim(WINDOW, STEPS)
        panel.set_xlabel("step")
        panel.set_ylabel(f"share of v that did not move\nin the {WINDOW} steps before")
        label_ends(panel, gap=0.08)
        message(figure, TITLE)
        save(figure, FIGURES / RESULT)


def study() -> None:
    """Run all, and write the numbers."""
    rows = [
        {"format": label, "form": form, "decay": decay, **constant(name, form, decay)}
        for label, name in FORMATS.items()
        for form in FORMS
        for decay in DECAYS
    ]
    weights = {name: {f"{b:g}": averaged(stored, b) for b in DECAYS[2:]} for name, stored in STORED.items()}
    runs = resumed(RESULT, second_moments, [(seed,) for seed in SEEDS])
    settings = {"problem": mcf.get_problem("language-model").settings(), "steps": STEPS, "seeds": [*SEEDS]}
    write_result(RESULT, {**settings, "window": WINDOW, "averaged": weights, "constant": rows, "runs": runs})
    draw()


if __name__ == "__main__":
    study()
