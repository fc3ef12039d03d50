"""The second moment at beta2 = .999 in bf16: in one component it stalls, in two it follows."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.optim.state import average
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots

BETA2 = 0.999
STEPS = 5000
#: One gradient for each of the 128 significands of bf16.
SIGNIFICANDS = 1 + np.arange(128, dtype=np.float32) / 128
CURVES = {
    "bf16": {"color": COLOURS["vermilion"]},
    "bf16, 2 components": {"color": COLOURS["blue"]},
    "exact": {"color": COLOURS["black"], "linestyle": (0, (4, 2))},
}


def gradients(kind: str, step: int) -> np.ndarray[Any, Any]:
    """Return the gradients of a step, values of bf16: constant, noisy, or shrunk tenfold after 1500 steps."""
    g = SIGNIFICANDS
    if kind == "noisy":
        g = g * np.random.default_rng([7, step]).standard_normal(g.size).astype(np.float32)
    if kind == "shrinking" and step > 1500:
        g = g * np.float32(0.1)
    return mcf.round_to(g, "bfloat16")


def follow(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return v of every step and element by curve, as binary64."""
    low, wide = mcf.arithmetic("bfloat16"), mcf.arithmetic("float64", backend="native", fused=False)
    beta = mcf.expand(low, BETA2, 2)
    zero = np.zeros_like(SIGNIFICANDS)
    state: dict[str, Any] = {
        "bf16": (zero,),
        "bf16, 2 components": (zero, zero),
        "exact": (zero.astype(np.float64),),
    }
    history: dict[str, list[Any]] = {name: [] for name in state}
    for step in range(1, STEPS + 1):
        g = gradients(kind, step)
        square = low.mul(g, g)
        state["bf16"] = average(low, state["bf16"], BETA2, square, 1 - BETA2)
        state["bf16, 2 components"] = average(low, state["bf16, 2 components"], beta, square, 1 - BETA2)
        exact = g.astype(np.float64) ** 2
        state["exact"] = average(wide, state["exact"], BETA2, exact, 1 - BETA2)
        for name, parts in state.items():
            history[name].append(np.sum([part.astype(np.float64) for part in parts], axis=0))
    return {name: np.array(rows) for name, rows in history.items()}


def main() -> None:
    """Run, write the numbers, draw."""
    scale = SIGNIFICANDS.astype(np.float64) ** 2
    panels = {
        "constant": "constant gradient:\nbf16 stalls at .26 to .51",
        "noisy": "noisy gradient:\nbf16 takes peaks, never decays",
        "shrinking": "gradient shrinks tenfold:\nbf16 never comes down",
    }
    result: dict[str, Any] = {"beta2": BETA2, "steps": STEPS, "v_over_g_squared_at_the_end": {}}
    with subplots(1, 3, width=10.5, height=3.3) as (figure, axes):
        for panel, (kind, title) in zip(axes[0], panels.items(), strict=True):
            ratios = {name: v / scale for name, v in follow(kind).items()}
            steps = np.arange(1, STEPS + 1)
            for name, ratio in ratios.items():
                panel.plot(steps[::10], np.median(ratio, axis=1)[::10], label=name, **CURVES[name])
                low, high = ratio.min(axis=1)[::10], ratio.max(axis=1)[::10]
                if name != "exact" and kind != "noisy":
                    panel.fill_between(
                        steps[::10], low, high, color=CURVES[name]["color"], alpha=0.2, linewidth=0
                    )
            result["v_over_g_squared_at_the_end"][kind] = {
                name: [float(ratio[-1].min()), float(np.median(ratio[-1])), float(ratio[-1].max())]
                for name, ratio in ratios.items()
            }
            panel.set_title(title)
            panel.set_xlabel("step")
            panel.set_ylim(bottom=0)
            panel.set_xlim(0, STEPS)
            label_ends(panel, gap=0.08)
        axes[0][0].set_ylabel("v / g^2  (median and range\nof the 128 significands)")
        message(figure, "The second moment in bf16 stalls or never decays; in two components it is right")
        save(figure, FIGURES / "beta2_expansion")
    result["expansions"] = {
        name: [*parts, float(sum(map(Fraction, parts)))]
        for name in ("0.95", "0.98", "0.99", "0.999", "0.9999")
        if (parts := mcf.expand(mcf.arithmetic("bfloat16"), Fraction(name), 2))
    }
    write_result("beta2_expansion", result)


if __name__ == "__main__":
    main()
