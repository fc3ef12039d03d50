"""Growing a double word of bf16 by a number: Collage's Grow needs the number to be the smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.theorems.claims import relative_error, sum_of
from mcfsim.theorems.operands import significands
from mcfsim.theorems.trial import Trial

FORMAT = mcf.get_format("bfloat16")
P, U = FORMAT.precision, 2.0**-FORMAT.precision
OCTAVES = range(-12, 13)
#: Bins an octave, and random low words for each pair of significands.
BINS, LOW_WORDS = 4, 4
FORMS = {"Fast2Sum": True, "2Sum": False}
#: Where the two agree, one is seen behind the other.
LOOK: dict[str, dict[str, Any]] = {
    "Fast2Sum": {"color": COLOURS["vermilion"], "linewidth": 3.5},
    "2Sum": {"color": COLOURS["blue"], "linewidth": 1.6},
}


def operands(octave: int) -> tuple[Any, ...]:
    """Return double words and numbers: every pair of significands that far apart, a of either sign."""
    rng = np.random.default_rng([5, octave + 99])
    high = significands(FORMAT, [0], signs=False)
    a = significands(FORMAT, [octave - 1, octave], signs=True)
    high, a = np.repeat(high, a.size * LOW_WORDS), np.tile(np.repeat(a, LOW_WORDS), high.size)
    # Half an ulp of the high word is u; a few low words lie much deeper.
    depth = rng.choice([0, 0, 1, 2, 5, 9], high.size)
    low = np.ldexp(rng.uniform(0.5, 1.0, high.size), -depth) * rng.choice([-U, U], high.size)
    low = mcf.round_to(low.astype(np.float32), FORMAT)
    ar = mcf.arithmetic(FORMAT)
    there = (ar.add(high, low) == high) & (np.floor(np.log2(np.abs(a / high))) == octave)
    return high[there], low[there], a[there]


def errors(octave: int) -> tuple[Any, dict[str, Any]]:
    """Return the ratios |a| / |x|, and the relative errors of both forms in units of u**2."""
    ar, measure = mcf.arithmetic(FORMAT), relative_error(2, sum_of("x", "a")).measure
    high, low, a = operands(octave)
    found = {}
    for form, ordered in FORMS.items():
        grown = mcf.grow(ar, (high, low), a, ordered=ordered)
        # The error itself is exact; its quotient is rounded to binary64.
        found[form] = np.abs(measure(Trial(ar, ("x", "a"), ((high, low), a), grown)).ratio) / U**2
    return np.abs(a / high), found


def main() -> None:
    """Run, write the numbers, draw."""
    centres: list[float] = []
    curves: dict[str, dict[str, list[float]]] = {form: {"worst": [], "mean": []} for form in FORMS}
    for octave in OCTAVES:
        ratio, found = errors(octave)
        place = np.floor(BINS * (np.log2(ratio) - octave)).astype(int)
        for i in range(BINS):
            centres.append(octave + (i + 0.5) / BINS)
            for form, error in found.items():
                curves[form]["worst"].append(float(error[place == i].max()))
                curves[form]["mean"].append(float(error[place == i].mean()))
    with subplots(width=7.5, height=3.6) as (figure, axes):
        panel = axes[0][0]
        for form, by_kind in curves.items():
            for kind, style in (("worst", "-"), ("mean", (0, (3, 2)))):
                panel.plot(centres, by_kind[kind], **LOOK[form], linestyle=style, label=f"{form}, {kind}")
        panel.axhline(1 / U, color=COLOURS["grey"], linewidth=1)
        panel.text(-11.8, 1.2 / U, "u: no better than one bf16 number", color=COLOURS["grey"], fontsize=8.5)
        panel.axvline(0, color="black", linewidth=1)
        panel.set_yscale("log", base=2)
        panel.set_ylim(top=4 / U)
        panel.set_xlim(OCTAVES[0], OCTAVES[-1] + 1)
        panel.set_xticks(range(-12, 13, 4), [f"$2^{{{k}}}$" if k else "1" for k in range(-12, 13, 4)])
        panel.set_xlabel("|a| / |x|")
        panel.set_ylabel("relative error of x + a, in u²")
        message(figure, "Grow by Fast2Sum loses its compensation once |a| > |x|; by 2Sum it never does")
        label_ends(panel, gap=0.07)
        save(figure, FIGURES / "grow_error")
    write_result("grow_error", {"format": str(FORMAT), "log2_ratio": centres, "errors_in_u2": curves})


if __name__ == "__main__":
    main()
