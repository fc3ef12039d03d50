"""How much of a small update arrives: schemes and formats, against the size of update by weight."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, read_result, resumed, write_result
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.strategies import FLOAT32, LOW, STRATEGIES, Stored, Strategy
from mcfsim.report.plotting import ARRIVING, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.rounding import Mode

#: The updates are 2**-k of the weight.
EXPONENTS = range(25)
#: The same update is made so often, or less often where the weight would grow by more than an eighth.
STEPS = 2000
SEEDS = (0, 1, 2)
#: Elements for each exponent and seed where rounding is random: copies of the significands.
DRAWN = 5120
#: Significands of a format, spread evenly where it has more.
MOST = 128
#: Exponents that a page shows.
SHOWN = (7, 9, 12, 15, 16, 17, 20, 23, 24)
MOMENTUM = 0.9
#: Weights begin here, in the middle of what the formats reach below and above.
BINADES = {"bfloat16": 0, "float16": 10, "float8_e5m2": 8, "float8_e4m3fn": 4}
#: Colours of shares from 1 to 1.5, an eighth apart as in `ARRIVING`. ColorBrewer's Blues (Brewer, 2003).
ABOVE = ("#C6DBEF", "#6BAED6", "#2171B5", "#08519C")


def _drawn(name: str, bits: int) -> Strategy:
    return Strategy(name, parameter=Stored(LOW, rounding=Mode.STOCHASTIC, random_bits=bits))


#: The rows: what each is called, and how it adds.
SCHEMES: dict[str, Strategy] = {
    "nearest": STRATEGIES["plain"],
    "stochastic, 8 bits": _drawn("stochastic, 8 bits", 8),
    "stochastic, 16 bits": _drawn("stochastic, 16 bits", 16),
    "stochastic, 32 bits": _drawn("stochastic, 32 bits", 32),
    "Kahan": STRATEGIES["kahan"],
    "2 components": STRATEGIES["collage-light"],
    "3 components": STRATEGIES["mcf-3"],
    "error feedback (ECO)": STRATEGIES["eco"],
    "remainder of 8 bits": STRATEGIES["remainder-8"],
    "remainder of 16 bits": STRATEGIES["remainder-16"],
    "split 16 + 16": STRATEGIES["split-truncated"],
    "binary32 master": STRATEGIES["fp32-master"],
}


def scheme(name: str, low: str) -> Strategy:
    """Return a scheme in a format, whose updates come in binary32: so it is the addition that is judged."""
    wide = Stored(FLOAT32)
    chosen = replace(SCHEMES[name], m=wide, v=wide, gradient=wide, beta2_components=1)
    return mcf.strategy(chosen, low)


def steps_of(exponent: int) -> int:
    """Return how many times an update of 2**-exponent is made."""
    return max(1, min(STEPS, 2 ** (exponent - 3) if exponent > 3 else 1))


def retained(name: str, low: str, seed: int) -> list[float]:
    """Return the share of all updates by which the weights moved, for each exponent; a mean."""
    chosen, fmt = scheme(name, low), mcf.get_format(low)
    count = min(1 << (fmt.precision - 1), MOST)
    weights = np.ldexp(1 + np.arange(count) / count, BINADES[low])
    draws = DRAWN // count if chosen.draws else 1
    start = np.tile(weights, (len(EXPONENTS), draws))
    update = start * np.ldexp(1.0, -np.array(EXPONENTS))[:, np.newaxis]
    feeding = chosen.addition == "feedback"
    hyper = mcf.SGD(MOMENTUM if feeding else 0.0)
    words = {"random": mcf.RandomWords(seed)} if chosen.draws else {}
    optimizer = mcf.Optimizer(hyper, chosen, {"w": start}, steps=STEPS, **words)
    # With momentum the same update is reached in the end; what was asked for is counted as it was.
    gain = 1 - MOMENTUM if feeding else 1.0
    gradient = optimizer.receive({"w": -update * gain})
    asked, size, found = np.zeros(start.shape), 0.0, [math.nan] * len(EXPONENTS)
    for step in range(1, STEPS + 1):
        optimizer.advance(gradient, 1.0)
        size = hyper.momentum * size + gain
        asked += size * update
        ends = [place for place, exponent in enumerate(EXPONENTS) if steps_of(exponent) == step]
        if ends:
            now = np.sum([x.astype(np.float64) for x in optimizer.represented()], axis=0).reshape(start.shape)
            moved = (now - start) / asked
            for place in ends:
                found[place] = float(moved[place].mean())
    return found


def jobs() -> list[tuple[str, str, int]]:
    """Return the schemes in the formats that allow them, and a seed, or several where rounding is random."""
    found = []
    for low in BINADES:
        for name in SCHEMES:
            try:
                drawing = scheme(name, low).draws
            except UnsupportedFormatError:  # split, of a format that does not lead binary32
                continue
            found += [(name, low, seed) for seed in (SEEDS if drawing else SEEDS[:1])]
    return found


def study() -> None:
    """Measure all, write the numbers, draw."""
    runs: dict[str, dict[str, list[list[float]]]] = {}
    made = jobs()
    for (name, low, _), shares in zip(made, resumed("lost_update_phase", retained, made), strict=True):
        runs.setdefault(low, {}).setdefault(name, []).append(shares)
    found = {
        low: {
            name: {
                "mean": np.mean(rows, axis=0).tolist(),
                "spread": np.std(rows, axis=0, ddof=1).tolist() if len(rows) > 1 else None,
            }
            for name, rows in schemes.items()
        }
        for low, schemes in runs.items()
    }
    about = {"steps": STEPS, "seeds": list(SEEDS), "drawn": DRAWN, "exponents": list(EXPONENTS)}
    write_result("lost_update_phase", about | {"retained": found})
    draw()


def table() -> str:
    """Return rows of bfloat16 from the result file, at some ratios."""
    rows = []
    for name, found in read_result("lost_update_phase")["retained"]["bfloat16"].items():
        cells = {"scheme": name}
        for exponent in SHOWN:
            spread = f" +- {found['spread'][exponent]:.1g}" if found["spread"] else ""
            cells[f"2^-{exponent}"] = f"{found['mean'][exponent]:.3f}{spread}"
        rows.append(cells)
    return markdown_table(rows)


def draw() -> None:
    """Draw a heat map for each format, from the result file."""
    from matplotlib.colors import LinearSegmentedColormap

    result: dict[str, dict[str, Any]] = read_result("lost_update_phase")["retained"]
    colours = LinearSegmentedColormap.from_list("share", [*ARRIVING, *ABOVE])
    tables = {low: np.array([row["mean"] for row in rows.values()]) for low, rows in result.items()}
    with subplots(2, 2, width=11.5, height=7.4) as (figure, axes):
        for panel, (low, table) in zip(axes.ravel(), tables.items(), strict=True):
            image = panel.imshow(table, cmap=colours, vmin=0, vmax=1.5, aspect="auto")
            for y, values in enumerate(table):
                for x, value in enumerate(values):
                    if abs(value - 1) >= 0.05 and value >= 0.05:
                        shade = "white" if value < 0.3 or value > 1.35 else "black"
                        text = f"{value:.2f}".removeprefix("0") if value < 1 else f"{value:.1f}"
                        panel.text(x, y, text, ha="center", va="center", fontsize=6, color=shade)
            fmt = mcf.get_format(low)
            panel.axvline(fmt.precision + 0.5, color="black", linewidth=1)
            panel.set_yticks(range(len(table)), list(result[low]), fontsize=7.5)
            panel.set_xticks(range(0, 25, 4), ["1", *(f"$2^{{-{k}}}$" for k in range(4, 25, 4))])
            panel.set_title(f"{low}: nearest loses all from $2^{{-{fmt.precision + 1}}}$")
            panel.grid(visible=False)
        for panel in axes[1]:
            panel.set_xlabel("|update| / |weight|")
        bar = figure.colorbar(image, ax=axes, aspect=40, pad=0.01)
        bar.set_label("share that arrives: 1 is all", labelpad=8)
        message(
            figure,
            "Rounding to nearest loses small updates; more random bits, or bits beside the weight, "
            "let smaller ones arrive",
        )
        save(figure, FIGURES / "lost_update_phase")


if __name__ == "__main__":
    study()
