"""Error of a sum, a moving average and a repeated update against the number of components."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.multiword.expansion import value
from mcfsim.optim.state import average
from mcfsim.report.plotting import COLOURS, save, subplots

FORMATS = {
    "bfloat16": (COLOURS["blue"], "o"),
    "float16": (COLOURS["vermilion"], "s"),
    "float8_e4m3fn": (COLOURS["green"], "^"),
    "float8_e5m2": (COLOURS["purple"], "v"),
}
COMPONENTS = (1, 2, 3, 4)
TRIALS, TERMS = 32, 500
BETA = Fraction(99, 100)
#: Where an error of zero is drawn.
EXACT = 1e-10

Numbers = np.ndarray[Any, Any]


def terms(fmt: str, low: float, high: float) -> Numbers:
    """Return values of the format, shape (TERMS, TRIALS), uniform between two bounds but for rounding."""
    return mcf.round_to(np.random.default_rng(5).uniform(low, high, (TERMS, TRIALS)).astype(np.float32), fmt)


def total(ar: Any, n: int) -> tuple[Any, list[Fraction]]:
    """Sum 500 numbers around 1/4."""
    x = terms(ar.format.name, 0.125, 0.5)
    parts: Any = tuple(np.zeros(TRIALS, np.float32) for _ in range(n))
    for term in x:
        parts = mcf.grow(ar, parts, term)
    return parts, [sum(map(Fraction, column.tolist())) for column in x.T]


def moving_average(ar: Any, n: int) -> tuple[Any, list[Fraction]]:
    """Average 500 numbers around 1 with beta = .99; its components are those of the average."""
    x = terms(ar.format.name, 0.5, 1.5)
    beta = mcf.expand(ar, BETA, n)
    gain = float(1 - BETA)
    parts: Any = tuple(np.zeros(TRIALS, np.float32) for _ in range(n))
    exact = [Fraction(0)] * TRIALS
    for term in x:
        parts = average(ar, parts, beta, term, gain)
        exact = [BETA * e + Fraction(gain) * Fraction(g) for e, g in zip(exact, term.tolist(), strict=True)]
    return parts, exact


def update(ar: Any, n: int) -> tuple[Any, list[Fraction]]:
    """Move weights around 1 by 500 steps of about a thousandth."""
    x = terms(ar.format.name, 0.0, 0.002) if ar.format.precision > 4 else terms(ar.format.name, 0.0, 0.008)
    start = mcf.round_to(np.linspace(1, 2, TRIALS, dtype=np.float32), ar.format)
    parts: Any = (start, *(0 * start for _ in range(n - 1)))
    for step in x:
        parts = mcf.grow(ar, parts, step)
    exact = [
        Fraction(s) + sum(map(Fraction, column.tolist()))
        for s, column in zip(start.tolist(), x.T, strict=True)
    ]
    return parts, exact


def error(parts: Any, exact: list[Fraction]) -> float:
    """Return the median relative error over the trials."""
    found = [value(tuple(float(part[i]) for part in parts)) for i in range(TRIALS)]
    return float(np.median([float(abs(f - e) / abs(e)) for f, e in zip(found, exact, strict=True)]))


def main() -> None:
    """Run, write the numbers, draw."""
    tasks = {
        "sum of 500 numbers:\nexact with enough components": total,
        "moving average, beta = .99:\nwhat is left is rounded on entry": moving_average,
        "500 small updates of a weight:\nlost in one, kept in two or three": update,
    }
    result: dict[str, Any] = {"trials": TRIALS, "terms": TERMS, "median_relative_error": {}}
    with subplots(1, 3, width=10.5, height=3.4) as (figure, axes):
        for panel, (title, task) in zip(axes[0], tasks.items(), strict=True):
            rows = result["median_relative_error"][title.split(":")[0]] = {}
            for fmt, (colour, marker) in FORMATS.items():
                ar = mcf.arithmetic(fmt)
                rows[fmt] = [error(*task(ar, n)) for n in COMPONENTS]
                # An exact result has no place on a logarithmic axis: it is drawn at the bottom.
                panel.semilogy(
                    COMPONENTS, [max(e, EXACT) for e in rows[fmt]], color=colour, marker=marker, label=fmt
                )
            panel.set_title(title)
            panel.set_xticks(COMPONENTS)
            panel.set_xlabel("components")
            panel.set_ylim(EXACT / 3, 3)
            panel.set_yticks(
                [1, 1e-2, 1e-4, 1e-6, 1e-8, EXACT],
                ["1", "$10^{-2}$", "$10^{-4}$", "$10^{-6}$", "$10^{-8}$", "exact"],
            )
            panel.minorticks_off()
        axes[0][0].set_ylabel("median relative error")
        axes[0][1].legend(loc="lower left", fontsize=8.5, ncols=2)
        save(figure, FIGURES / "precision_curves")
    write_result("precision_curves", result)


if __name__ == "__main__":
    main()
