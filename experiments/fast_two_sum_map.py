"""Where Fast2Sum returns the exact error, in bf16: every pair of significands, by exponents and mode."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.theorems.claims import exact_sum
from mcfsim.theorems.operands import significands
from mcfsim.theorems.trial import Trial

FORMAT = mcf.get_format("bfloat16")
P = FORMAT.precision
GAPS = range(-2 * P - 6, 2 * P + 7)
#: Modes and the panel that shows them; another nearest mode, or direction, looks the same.
PANELS = {
    "nearest_even": "to nearest: exact\nwherever e(a) ≥ e(b)",
    "nearest_away": None,
    "toward_zero": "toward zero: beyond a gap of p\nonly where signs agree",
    "up": "up, down, to odd: beyond a gap of p\nonly one pair in two",
    "down": None,
    "to_odd": None,
}
SIGNS = {"exact, a and b of one sign": COLOURS["blue"], "exact, of opposite signs": COLOURS["sky"]}


def shares(mode: str) -> np.ndarray[Any, Any]:
    """Return the share of all pairs that is exact, for each gap: signs alike, and opposite."""
    ar, claim = mcf.arithmetic(FORMAT, rounding=mode), exact_sum()
    found = []
    for gap in GAPS:
        a, b = (significands(FORMAT, [exponent], signs=True) for exponent in (gap, 0))
        a, b = np.repeat(a, b.size), np.tile(b, a.size)
        exact = claim.test(Trial(ar, ("a", "b"), (a, b), mcf.fast_two_sum(ar, a, b)))
        alike = np.signbit(a) == np.signbit(b)
        found.append([np.mean(exact & alike), np.mean(exact & ~alike)])
    return np.array(found)


def main() -> None:
    """Run, write the numbers, draw."""
    by_mode = {mode: shares(mode) for mode in PANELS}
    drawn = {mode: title for mode, title in PANELS.items() if title}
    gaps = np.array(GAPS)
    with subplots(1, len(drawn), width=10.5, height=3.2) as (figure, axes):
        for panel, (mode, title) in zip(axes[0], drawn.items(), strict=True):
            panel.bar(gaps, 100, width=1, color=COLOURS["vermilion"], label="not exact")
            floor = np.zeros(gaps.size)
            for height, (label, colour) in zip(100 * by_mode[mode].T, SIGNS.items(), strict=True):
                panel.bar(gaps, height, width=1, bottom=floor, color=colour, label=label)
                floor = floor + height
            panel.axvline(-0.5, color="black", linewidth=1)
            panel.set_title(title)
            panel.set_xlabel("e(a) - e(b)")
            panel.set_xticks([-2 * P, -P, 0, P, 2 * P], ["-2p", "-p", "0", "p", "2p"])
            panel.set_yticks([])
            panel.set_xlim(gaps[0] - 0.5, gaps[-1] + 0.5)
            panel.set_ylim(0, 100)
            panel.grid(visible=False)
        axes[0][0].set_yticks([0, 50, 100])
        axes[0][0].set_ylabel("% of pairs (bf16, p = 8)")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        message(figure, "Fast2Sum of ordered operands is always exact only when sums round to nearest")
        save(figure, FIGURES / "fast_two_sum_map")
    exact = {mode: share.sum(axis=1).tolist() for mode, share in by_mode.items()}
    write_result("fast_two_sum_map", {"format": str(FORMAT), "gaps": list(GAPS), "exact": exact})


if __name__ == "__main__":
    main()
