"""The error of long sums in bf16 against the number of terms: which sums stagnate, and which go on."""

from __future__ import annotations

from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, write_result
from mcfsim.multiword.summation import dw_sum, kahan_sum, neumaier_sum, recursive_sum
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots

FORMAT = mcf.get_format("bfloat16")
ONE_OVER_U = 2**FORMAT.precision
SUMS = 64
TERMS = sorted({2**k for k in range(15)} | {round(2 ** (k + 0.5)) for k in range(7, 12)})
QUARTILES = [25, 50, 75]
#: Terms are multiples of 2**-24, and so is all that is added here.
UNIT = 24
PANELS = {
    "positive": "terms from 0 to 1: plain sums stop at 256,\nNeumaier's at 512, the others never",
    "signed": "random signs: sums stay small,\nand nothing stops",
}
CURVES = {
    "plain": {"color": COLOURS["vermilion"]},
    "Neumaier": {"color": COLOURS["orange"]},
    "stochastic rounding": {"color": COLOURS["green"]},
    "Kahan": {"color": COLOURS["purple"]},
    "double word": {"color": COLOURS["blue"]},
}


def draw() -> np.ndarray[Any, Any]:
    """Return terms of bf16, of shape (terms, panels, sums)."""
    drawn = []
    for kind in PANELS:
        rng = np.random.default_rng(11)
        x = mcf.round_to(rng.random((TERMS[-1], SUMS), dtype=np.float32), FORMAT)
        drawn.append(x * rng.choice(np.float32([-1, 1]), x.shape) if kind == "signed" else x)
    return np.stack(drawn, axis=1)


def sums(terms: np.ndarray[Any, Any], seed: int) -> dict[str, tuple[Any, ...]]:
    """Return the sum of the terms by each way of adding, as one number or as two to be added."""
    ar, x = mcf.arithmetic(FORMAT), tuple(terms)

    def at_random(x: tuple[Any, ...]) -> Any:
        drawing = mcf.arithmetic(FORMAT, rounding="stochastic", random=mcf.RandomWords(seed))
        return recursive_sum(drawing, x)

    return {
        "plain": (recursive_sum(ar, x),),
        "Neumaier": (neumaier_sum(ar, x),),
        "stochastic rounding": (np.array([at_random(tuple(part)) for part in terms.swapaxes(0, 1)]),),
        "Kahan": (kahan_sum(ar, x)[0],),
        "double word": dw_sum(ar, x),
    }


def integers(x: Any) -> np.ndarray[Any, Any]:
    """Return terms and sums in units of 2**-24, exactly."""
    whole = np.ldexp(np.asarray(x, dtype=np.float64), UNIT).astype(np.int64)
    assert (np.ldexp(whole.astype(np.float64), -UNIT) == x).all()
    return whole


def errors() -> dict[str, np.ndarray[Any, Any]]:
    """Return ``|error| / (u S)`` by curve, of shape (numbers of terms, panels, sums)."""
    x = draw()
    whole = integers(x)
    rows: dict[str, list[Any]] = {name: [] for name in CURVES}
    for n in TERMS:
        exact, magnitudes = whole[:n].sum(axis=0), np.abs(whole[:n]).sum(axis=0)
        for name, parts in sums(x[:n], seed=n).items():
            off = np.abs(sum(map(integers, parts)) - exact)
            rows[name].append(ONE_OVER_U * off / magnitudes)
    return {name: np.array(row) for name, row in rows.items()}


def mark(panel: Any) -> None:
    """Draw where everything is lost, and up to how many terms Neumaier's sum has a bound."""
    style = {"color": COLOURS["grey"], "linewidth": 0.8, "linestyle": (0, (4, 2)), "zorder": 1}
    panel.axhline(ONE_OVER_U, **style)
    panel.axvline(ONE_OVER_U, **style)
    panel.annotate("100 %", (2, ONE_OVER_U), (3, -3), textcoords="offset points", va="top", fontsize=8.5)
    panel.annotate("n = 1/u", (ONE_OVER_U, 1e-5), (4, 3), textcoords="offset points", fontsize=8.5)


def main() -> None:
    """Run, write the numbers, draw."""
    result: dict[str, Any] = {"format": str(FORMAT), "sums": SUMS, "terms": TERMS, "error_over_u_S": {}}
    measured = errors()
    with subplots(1, 2, width=10.5, height=4) as (figure, axes):
        for place, (panel, (kind, title)) in enumerate(zip(axes[0], PANELS.items(), strict=True)):
            found = {name: error[:, place] for name, error in measured.items()}
            result["error_over_u_S"][kind] = {
                name: np.percentile(error, QUARTILES, axis=1).T.tolist() for name, error in found.items()
            }
            panel.set_xscale("log", base=2)
            panel.set_yscale("log", nonpositive="mask")
            mark(panel)
            for name, error in found.items():
                low, median, high = np.percentile(error, QUARTILES, axis=1)
                panel.plot(TERMS, median, label=name.replace(" ", "\n"), **CURVES[name])
                panel.fill_between(TERMS, low, high, color=CURVES[name]["color"], alpha=0.15, linewidth=0)
            panel.set_title(title)
            panel.set_xlabel("number of terms n")
            panel.set_ylim(1e-5, 2 * ONE_OVER_U)
            panel.set_xlim(2, TERMS[-1])
            label_ends(panel, gap=0.085)
        axes[0][0].set_ylabel(f"|error| / (u S)  (median and\nquartiles of {SUMS} sums)")
        message(
            figure,
            "Long plain sums in bf16 stop growing; Kahan's, a double word's and randomly rounded ones do not",
        )
        save(figure, FIGURES / "long_sums")
    write_result("long_sums", result)


if __name__ == "__main__":
    main()
