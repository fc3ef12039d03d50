"""The error of a product of FP8 operands against its length, by the matrix unit that sums it.

All units multiply the same numbers of float8_e4m3fn, which bfloat16 and float32 hold, too. So products are
exact, and units differ only in how they cut sums. Beside this stands the error of rounding the operands to
FP8: from the length on at which sums lose more, they need promotion.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES, read_result, write_result
from mcfsim.products import get_unit
from mcfsim.report.plotting import COLOURS, label_ends, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.rounding import Mode

RESULT = "gemm_promotion"
FORMAT = "float8_e4m3fn"
LENGTHS = tuple(2**k for k in range(5, 15))
ROWS = COLUMNS = 16
QUARTILES = [25, 50, 75]
PANELS = {"signed": "weights of both signs", "positive": "all products positive"}


class Sum(NamedTuple):
    """A unit, and after how many products its sum is added in float32."""

    unit: str
    promote_every: int | None = None


SUMS = {
    "Hopper, FP8": Sum("hopper_fp8"),
    "Hopper, FP8, promoted every 128": Sum("hopper_fp8", 128),
    "Ampere, bf16": Sum("ampere_bf16"),
    "Hopper, bf16": Sum("hopper_bf16"),
    "Blackwell, FP8": Sum("blackwell_fp8"),
    "float32, one by one": Sum("cdna3_fp32"),
}
#: Units that are drawn with their bounds.
BOUNDED = ("Hopper, FP8", "Hopper, FP8, promoted every 128", "Blackwell, FP8")
OPERANDS = "rounding the operands to FP8"
STYLES: dict[str, dict[str, Any]] = {
    OPERANDS: {"color": COLOURS["grey"], "linestyle": (0, (4, 2))},
    "Hopper, FP8": {"color": COLOURS["vermilion"]},
    "Hopper, FP8, promoted every 128": {"color": COLOURS["blue"]},
    "Ampere, bf16": {"color": COLOURS["orange"]},
    "Hopper, bf16": {"color": COLOURS["green"]},
    "Blackwell, FP8": {"color": COLOURS["purple"]},
    "float32, one by one": {"color": COLOURS["black"]},
}


def bound(way: Sum, length: int) -> float:
    """Return a bound of ``|error| / sum |a b|``.

    A group of k products and the sum before it are aligned to the largest of these k + 1 terms and cut below
    f bits of its fraction, so that each loses less than 2**-f of it; then the sum is cut, or rounded, to the
    output. A chain of fused multiply-adds rounds each. Terms and sums are at most the sum of magnitudes,
    times 1 + bound for what was lost before.
    """
    unit = get_unit(way.unit)
    ulp = 2.0 ** (1 - unit.output.precision)
    cut = ulp / 2 if unit.rounding is Mode.NEAREST_EVEN else ulp
    lost = cut if unit.fraction_bits is None else (unit.k + 1) * 2.0**-unit.fraction_bits + cut
    inner = length if way.promote_every is None else min(length, way.promote_every)
    once = (1 + lost) ** (inner / unit.k) - 1
    adds = 0 if way.promote_every is None else length // inner
    return float((1 + once) * (1 + 2.0**-24) ** adds - 1)


def operands(kind: str, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return activations, which are positive, and weights, before they are rounded."""
    rng = np.random.default_rng([length, len(kind)])
    a = 16 * np.abs(rng.standard_normal((ROWS, length), dtype=np.float32))
    b = 16 * rng.standard_normal((length, COLUMNS), dtype=np.float32)
    return a, np.abs(b) if kind == "positive" else b


def errors(kind: str, length: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return ``|error| / sum |a b|`` of all sums, by the way they are made."""
    given = operands(kind, length)
    a, b = (mcf.round_to(x, FORMAT) for x in given)
    # Numbers of this format are multiples of 2**-9: these sums of products fit in binary64.
    exact, magnitudes = (x.astype(np.float64) @ y.astype(np.float64) for x, y in ((a, b), (a, abs(b))))
    wide = given[0].astype(np.float64) @ given[1].astype(np.float64)
    found = {OPERANDS: np.abs(exact - wide) / magnitudes}
    for name, way in SUMS.items():
        made = mcf.matmul(a, b, unit=way.unit, promote_every=way.promote_every)
        found[name] = np.abs(made.astype(np.float64) - exact) / magnitudes
        worst = float(found[name].max())
        assert worst <= bound(way, length), (name, length, worst)
    return found


def main() -> None:
    """Compute, write the numbers, draw."""
    result: dict[str, Any] = {"format": FORMAT, "sums": ROWS * COLUMNS, "lengths": LENGTHS, "errors": {}}
    for kind in PANELS:
        found = [errors(kind, length) for length in LENGTHS]
        result["errors"][kind] = {
            name: [np.percentile(row[name], QUARTILES).tolist() for row in found] for name in STYLES
        }
    result["bounds"] = {name: [bound(way, length) for length in LENGTHS] for name, way in SUMS.items()}
    write_result(RESULT, result)
    draw()


def needed_from(kind: str, name: str) -> int | None:
    """Return the length from which on a sum loses more, in the median, than rounding the operands did."""
    medians = {x: [row[1] for row in read_result(RESULT)["errors"][kind][x]] for x in (name, OPERANDS)}
    more = [a > b for a, b in zip(medians[name], medians[OPERANDS], strict=True)]
    beyond = [length for place, length in enumerate(LENGTHS) if all(more[place:])]
    return beyond[0] if beyond else None


def table() -> str:
    """Return errors at some lengths, and from which length on sums need promotion."""
    result, rows = read_result(RESULT), []
    shown = (128, 1024, 4096, 16384)
    for name in (*SUMS, OPERANDS):
        row = {"sum": name}
        for length in shown:
            place = LENGTHS.index(length)
            row[f"K = {length}"] = " and ".join(
                f"{result['errors'][kind][name][place][1]:.1e}" for kind in PANELS
            )
        start = {kind: needed_from(kind, name) if name in SUMS else None for kind in PANELS}
        row["above the operands' from"] = (
            " and ".join(str(x or "never") for x in start.values()) if name in SUMS else ""
        )
        row["bound at 16384"] = f"{result['bounds'][name][-1]:.1e}" if name in SUMS else ""
        rows.append(row)
    return markdown_table(rows)


def title() -> str:
    """Return what the figure shows, from its numbers."""
    start = needed_from("positive", "Hopper, FP8")
    held = needed_from("positive", "Hopper, FP8, promoted every 128") is None
    assert held
    return (
        "Hopper's FP8 sums of positive products lose more than the rounding of operands\n"
        f"from K = {start} on; promoted every 128, they do not"
    )


def draw() -> None:
    """Draw errors against length, with their bounds."""
    result = read_result(RESULT)
    with subplots(1, 2, width=11, height=4.8) as (figure, (axes,)):
        for panel, (kind, described) in zip(axes, PANELS.items(), strict=True):
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            for name, style in STYLES.items():
                quartiles = np.array(result["errors"][kind][name]).T
                low, median, high = np.where(quartiles > 0, quartiles, np.nan)
                panel.plot(LENGTHS, median, label=name.replace("FP8, ", "FP8,\n"), **style)
                panel.fill_between(LENGTHS, low, high, color=style["color"], alpha=0.12, linewidth=0)
                if name in BOUNDED:
                    dots = {"color": style["color"], "linestyle": (0, (1, 2)), "linewidth": 1.1}
                    panel.plot(LENGTHS, result["bounds"][name], **dots)
            panel.set_title(described)
            panel.set_xlabel("K, products in a sum (dots: bounds)")
            panel.set_xlim(LENGTHS[0], LENGTHS[-1])
            panel.set_ylim(3e-10, 12)
            label_ends(panel)
        axes[0].set_ylabel(f"|error| / sum |a b|\n(median and quartiles of {ROWS * COLUMNS} sums)")
        message(figure, title())
        save(figure, FIGURES / RESULT)


if __name__ == "__main__":
    main()
