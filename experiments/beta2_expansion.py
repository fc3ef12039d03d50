"""The second moment at beta2 = .999 in bf16: one component stalls, two components follow the exact one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.compile.loops import Loop
from mcfsim.compile.tracing import trace
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
#: Kinds of gradients: constant, noisy, or shrunk tenfold after 1500 steps.
PANELS = {
    "constant": "constant gradient:\nbf16 stalls at .26 to .51",
    "noisy": "noisy gradient:\nbf16 takes peaks, never decays",
    "shrinking": "gradient shrinks tenfold:\nbf16 never comes down",
}


def gradients() -> np.ndarray[Any, Any]:
    """Return gradients, values of bf16: by step, and by kind and significand."""
    steps = np.arange(1, STEPS + 1)[:, None]
    noise = [
        np.random.default_rng([7, step]).standard_normal(SIGNIFICANDS.size) for (step,) in steps.tolist()
    ]
    factors = {
        "constant": np.float32([[1]]),
        "noisy": np.float32(noise),
        "shrinking": np.where(steps > 1500, np.float32(0.1), np.float32(1)),
    }
    by_kind = [np.broadcast_to(SIGNIFICANDS * factors[kind], (STEPS, SIGNIFICANDS.size)) for kind in PANELS]
    return mcf.round_to(np.concatenate(by_kind, axis=1), "bfloat16")


def follow() -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """Return v of every step and significand as binary64, by kind of gradient and by curve."""
    low, wide = mcf.arithmetic("bfloat16"), mcf.arithmetic("float64", backend="native", fused=False)
    beta = mcf.expand(low, BETA2, 2)

    def moved(ar: mcf.Arithmetic, one: tuple[Any, ...], two: tuple[Any, ...], g: Any) -> Any:
        square = ar.mul(g, g)
        return (
            average(ar, one, BETA2, square, 1 - BETA2),
            average(ar, two, beta, square, 1 - BETA2),
        )

    # With so few numbers, calls of single operations would take most of the time.
    step = Loop(trace(moved, "bfloat16", operands=(("one",), ("high", "low"), "g")))
    given = gradients()
    zero = np.zeros(given.shape[1], np.float32)
    one, two, exact = (zero,), (zero, zero), (zero.astype(np.float64),)
    history = {name: np.empty(given.shape) for name in CURVES}
    for place, g in enumerate(given):
        one, two = step(one, two, g)
        exact = average(wide, exact, BETA2, g.astype(np.float64) ** 2, 1 - BETA2)
        for name, parts in zip(CURVES, (one, two, exact), strict=True):
            history[name][place] = sum(part.astype(np.float64) for part in parts)
    split = {name: np.split(v, len(PANELS), axis=1) for name, v in history.items()}
    return {kind: {name: split[name][place] for name in CURVES} for place, kind in enumerate(PANELS)}


def main() -> None:
    """Run, write the numbers, draw."""
    scale, found = SIGNIFICANDS.astype(np.float64) ** 2, follow()
    result: dict[str, Any] = {"beta2": BETA2, "steps": STEPS, "v_over_g_squared_at_the_end": {}}
    with subplots(1, 3, width=10.5, height=3.3) as (figure, axes):
        for panel, (kind, title) in zip(axes[0], PANELS.items(), strict=True):
            ratios = {name: v / scale for name, v in found[kind].items()}
            steps = np.arange(1, STEPS + 1, 10)
            for name, ratio in ratios.items():
                shown = ratio[::10]
                panel.plot(steps, np.median(shown, axis=1), label=name, **CURVES[name])
                if name != "exact" and kind != "noisy":
                    ends = shown.min(axis=1), shown.max(axis=1)
                    panel.fill_between(steps, *ends, color=CURVES[name]["color"], alpha=0.2, linewidth=0)
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
