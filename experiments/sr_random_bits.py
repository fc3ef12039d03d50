"""What few random bits cost: the bias of stochastic rounding by rule, and of a long run with it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, read_result, resumed, write_result
from experiments.drawing import draw_seeds
from mcfsim.optim.strategies import FLOAT32, LOW, Stored, Strategy
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.rounding import Mode, Rounding, Rule

#: Bits of binary32 that bfloat16 cuts off: so many fractions there are.
CUT = 16
BITS = range(1, CUT + 1)
#: The numbers of bits that a page shows.
SHOWN = (1, 2, 4, 6, 8, 10, 12, 14, 16)
SEEDS = (0, 1, 2)
#: The long run: so many steps of 2**-AHEAD and a bit of a unit in the last place.
STEPS, ELEMENTS, AHEAD = 2000, 2048, 6
LOOK: dict[str, dict[str, Any]] = {
    Rule.TRUNCATE: {"color": COLOURS["vermilion"]},
    Rule.CENTRED: {"color": COLOURS["sky"], "linewidth": 3.6},
    # It follows the centred one, and is drawn on top of it.
    Rule.NEAREST_FIRST: {"color": COLOURS["black"], "linestyle": (0, (1, 2)), "zorder": 3},
}


def predicted(rule: Rule, bits: int) -> tuple[Fraction, Fraction]:
    """Return the mean bias and the largest, in units in the last place, over all fractions of 16 bits.

    Of a fraction f the number of words that go up is counted by the rule's own words, in whole numbers.
    """
    total, largest, words, cuts = 0, 0, 1 << bits, 1 << CUT
    for fraction in range(cuts):
        if rule is Rule.TRUNCATE:
            up = (fraction << bits) // cuts
        elif rule is Rule.CENTRED:  # so many words R have floor(2^(r+1) f) + 2 R + 1 >= 2^(r+1)
            up = ((fraction << (bits + 1)) // cuts + 1) // 2
        else:
            whole, rest = divmod(fraction << bits, cuts)
            up = whole + (2 * rest > cuts or (2 * rest == cuts and whole % 2 == 1))
        error = up * cuts - fraction * words
        total, largest = total + error, max(largest, abs(error))
    return Fraction(total, words * cuts * cuts), Fraction(largest, words * cuts)


def measured(rule: Rule, bits: int) -> tuple[Fraction, Fraction]:
    """Return the same biases of the emulator, from every fraction and every word.

    With more than eight bits the least word that goes up is found instead; all larger words go up, too.
    """
    numbers = (np.arange(1 << CUT, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)
    rounding = Rounding(Mode.STOCHASTIC, random_bits=bits, rule=rule)

    def goes_up(word: Any) -> Any:
        drawn = np.broadcast_to(np.asarray(word, np.uint32) << np.uint32(32 - bits), numbers.shape)
        return mcf.round_to(numbers, "bfloat16", rounding, random=np.ascontiguousarray(drawn)) > 1

    count = np.zeros(numbers.size, np.int64)
    if bits <= 8:
        for word in range(1 << bits):
            count += goes_up(word)
    else:
        low, high = np.zeros(numbers.size, np.int64), np.full(numbers.size, 1 << bits)
        while (low < high).any():
            middle = (low + high) // 2
            up = goes_up(np.minimum(middle, (1 << bits) - 1)) & (middle < 1 << bits)
            low, high = np.where(up | (low >= high), low, middle + 1), np.where(up, middle, high)
        count = (1 << bits) - low
    errors = count * (1 << (CUT - bits)) - np.arange(1 << CUT)  # in 2**-16 ulp
    return Fraction(int(errors.sum()), 1 << 2 * CUT), Fraction(int(np.abs(errors).max()), 1 << CUT)


def biases(rule: Rule, bits: int) -> dict[str, Any]:
    """Return the bias of a rule, predicted and measured, which must be the same."""
    mean, largest = predicted(rule, bits)
    found = measured(rule, bits)
    return {
        "predicted": [float(mean), float(largest)],
        "measured": [float(x) for x in found],
        "same": found == (mean, largest),
    }


def arrived(rule: Rule, bits: int) -> list[float]:
    """Return for each seed the share of a long run's updates that arrives in the mean."""
    wide = Stored(FLOAT32)
    stored = Stored(LOW, rounding=Mode.STOCHASTIC, random_bits=bits, rule=rule)
    drawing = mcf.strategy(Strategy(f"{rule}, {bits}", parameter=stored, m=wide, v=wide, gradient=wide))
    # Not a multiple of a power of two, so that each rule has something to round.
    update = 2.0**-7 * (2.0**-AHEAD + 2.0 ** -(AHEAD + 2) / 3)
    found = []
    for seed in SEEDS:
        start = {"w": np.ones(ELEMENTS)}
        optimizer = mcf.Optimizer(mcf.SGD(0.0), drawing, start, steps=STEPS, random=mcf.RandomWords(seed))
        gradient = optimizer.receive({"w": np.full(ELEMENTS, -update)})
        for _ in range(STEPS):
            optimizer.advance(gradient, 1.0)
        moved = optimizer.weights()["w"].astype(np.float64) - 1
        found.append(float(moved.mean() / (STEPS * float(gradient[0]) * -1)))
    return found


def table() -> str:
    """Return the table of the result file, some bits a row."""
    result = read_result("sr_random_bits")
    rows = []
    for bits in SHOWN:
        cells: dict[str, str] = {"r": str(bits)}
        for rule, found in result["rules"].items():
            row = found[bits - 1]
            seeds = np.array(row["arrived"])
            cells[f"`{rule}`: mean bias, ulp"] = f"{row['measured'][0]:.3g}"
            cells[f"`{rule}`: predicted"] = f"{row['predicted'][0]:.3g}"
            cells[f"`{rule}`: arrives"] = f"{seeds.mean():.3f} +- {seeds.std(ddof=1):.1g}"
        rows.append(cells)
    return markdown_table(rows)


def draw() -> None:
    """Draw the bias, and what comes of a long run, from the result file."""
    result = read_result("sr_random_bits")
    with subplots(1, 2, width=10.5, height=3.8) as (figure, axes):
        left, right = axes[0]
        for rule, look in LOOK.items():
            rows = result["rules"][str(rule)]
            left.plot(list(BITS), [row["measured"][0] for row in rows], **look)
            draw_seeds(right, list(BITS), np.array([row["arrived"] for row in rows]).T, look)
        left.set_yscale("symlog", base=2, linthresh=2.0**-18)
        left.set_yticks([*(-(2.0**-k) for k in (2, 7, 12, 17)), 0, 2.0**-17])
        left.minorticks_off()
        left.set_ylim(-0.5, 2.0**-15)
        left.set_title("mean bias (ulp): below 0 is toward zero")
        right.axhline(1, color=COLOURS["grey"], linewidth=0.8, zorder=0)
        right.set_title(f"share that arrives of {STEPS} updates of ulp / {2**AHEAD * 12 // 13}")
        for panel, rule, at, text in (
            (left, Rule.TRUNCATE, (6.5, -(2.0**-6)), "truncate: 2^-17 - 2^-(r+1)"),
            (left, Rule.CENTRED, (1, 2.0**-16.4), "centred"),
            (left, Rule.NEAREST_FIRST, (1, -(2.0**-17.9)), "nearest_first"),
            (right, Rule.TRUNCATE, (6.2, 0.6), "truncate"),
            (right, Rule.CENTRED, (5.4, 1.8), "centred"),
            (right, Rule.NEAREST_FIRST, (5.4, 1.6), "nearest_first"),
        ):
            panel.text(*at, text, color=LOOK[rule]["color"], fontsize=9)
        for panel in (left, right):
            panel.set_xlabel("random bits r")
            panel.set_xticks(list(BITS)[::3])
        message(
            figure,
            "Truncation is biased toward zero; by every rule few random bits lose small updates",
        )
        save(figure, FIGURES / "sr_random_bits")


def row(name: str, bits: int) -> dict[str, Any]:
    """Return all that is known of a rule with so many bits."""
    rule = Rule(name)
    return {"bits": bits} | biases(rule, bits) | {"arrived": arrived(rule, bits)}


def study() -> None:
    """Run, write the numbers, draw."""
    jobs = [(str(rule), bits) for rule in Rule for bits in BITS]
    rows = resumed("sr_random_bits", row, jobs)
    by_rule: dict[str, list[Any]] = {}
    for (rule, _), found in zip(jobs, rows, strict=True):
        by_rule.setdefault(rule, []).append(found)
    result = {"cut": CUT, "steps": STEPS, "elements": ELEMENTS, "seeds": list(SEEDS), "rules": by_rule}
    write_result("sr_random_bits", result)
    draw()


if __name__ == "__main__":
    study()
