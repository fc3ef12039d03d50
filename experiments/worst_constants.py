"""The worst error of every double-word algorithm against the precision: how sharp its bound is.

Trying all operands takes about ten minutes on two idle cores; ``--quick`` only draws what was found.
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import Any

from experiments.common import FIGURES, WORKERS, read_result, write_result
from mcfsim.formats import Format
from mcfsim.report.plotting import COLOURS, save, subplots
from mcfsim.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, Certificate
from mcfsim.theorems.selection import Selection
from mcfsim.theorems.verification import prepare, run

RESULT = "worst_constants"
PRECISIONS = range(3, 12)
#: Cases of a core: all products of double words of p = 8 whose low words are zero or in one binade; and for
#: p = 11 those of a double word and a number. A variant has an eighth, and is given eight times as much.
LIMIT, LIMIT_OF_11 = 1_100_000_000, 2_200_000_000
SAMPLES = 1 << 24
#: From here on a bound counts as sharp.
SHARP = 0.9

#: Names of the algorithms as their authors have them, in the order of the panels.
ALGORITHMS = {
    "dw_plus_fp": "DWPlusFP",
    "grow_relaxed": "Grow, relaxed pairs (measured)",
    "sloppy_dw_plus_dw": "SloppyDWPlusDW, equal signs",
    "accurate_dw_plus_dw": "AccurateDWPlusDW",
    "add222": "madd (bound conjectured)",
    "dw_times_fp1": "DWTimesFP1",
    "dw_times_fp2": "DWTimesFP2",
    "dw_times_fp3": "DWTimesFP3",
    "sqrt_dw": "SQRTDWtoDW",
    "dw_times_dw1": "DWTimesDW1",
    "dw_times_dw2": "DWTimesDW2",
    "dw_times_dw3": "DWTimesDW3",
    "dw_div_fp3": "DWDivFP3",
    "dw_div_dw2": "DWDivDW2",
    "dw_div_dw2_fma": "DWDivDW2 with FP3 (measured)",
    "dw_div_dw3": "DWDivDW3 (bound for p >= 14)",
}
#: Whose bounds are measured.
UNPROVED = ("grow_relaxed", "add222", "dw_div_dw2_fma")
#: Of other statements the numbers alone are kept.
OTHERS = ("grow", "grow_unordered")


def measure(journal: str | None) -> None:
    """Find the worst constants and write them, exactly, with the operands."""
    checks = [
        prepare(
            name,
            Format(precision=p, emin=-100, emax=100),
            "nearest_even",
            Selection(
                limit=(LIMIT_OF_11 if p == 11 else LIMIT) * (8 if THEOREMS[name].variant else 1),
                samples=SAMPLES,
            ),
        )
        for name in (*ALGORITHMS, *OTHERS)
        for p in PRECISIONS
    ]
    found: dict[str, list[dict[str, Any]]] = {}
    with Sweep(WORKERS, journal=journal, progress=True) as sweep:
        for check, certificate in zip(checks, run(checks, sweep), strict=True):
            found.setdefault(certificate.theorem, []).append(_row(check.format.precision, certificate))
    statements = {
        name: {
            "statement": THEOREMS[name].statement,
            "source": THEOREMS[name].source,
            "claimed_from_precision": THEOREMS[name].precision,
            "holds": THEOREMS[name].holds,
            "worst": rows,
        }
        for name, rows in found.items()
    }
    write_result(RESULT, {"unit": "u^2, u = 2^-p", "samples": SAMPLES, "statements": statements})


def _row(p: int, certificate: Certificate) -> dict[str, Any]:
    worst = certificate.worst
    assert worst is not None
    return {
        "p": p,
        "constant": worst.constant,
        "decimal": worst.decimal,
        "bound": worst.bound,
        "operands": [operand.hexadecimal for operand in worst.case.operands],
        "exhaustive": any(part.kind == "core" for part in certificate.parts),
        "tried": {part.kind: part.cases for part in certificate.parts},
        "core": next((part.text for part in certificate.parts if part.kind == "core"), None),
        "violations": certificate.violations,
        "verdict": str(certificate.verdict),
    }


def draw() -> None:
    """Draw what was found."""
    statements = read_result(RESULT)["statements"]
    with subplots(4, 4, width=11, height=8.6) as (figure, axes):
        for panel, (name, title) in zip(axes.flat, ALGORITHMS.items(), strict=True):
            rows = statements[name]["worst"]
            proved = 99 if name in UNPROVED else statements[name]["claimed_from_precision"]
            share = _draw_panel(panel, rows, proved)
            panel.set_title(f"{title}\nreaches {int(100 * share)}% of its bound", color=_colour(share))
        axes[0][0].legend(loc="lower right", fontsize=8)
        for panel in axes[:, 0]:
            panel.set_ylabel("worst error / u^2")
        for panel in axes[-1]:
            panel.set_xlabel("precision p")
        save(figure, FIGURES / RESULT)


def _draw_panel(panel: Any, rows: list[dict[str, Any]], proved_from: int) -> float:
    """Draw bound and worst constants of an algorithm; return the share of the bound that is reached."""
    bounds = {row["p"]: float(Fraction(row["bound"])) for row in rows if row["p"] > 2}
    constants = {row["p"]: float(row["decimal"]) for row in rows}
    share = max(constants[p] / bounds[p] for p in constants if p >= 8)
    colour = _colour(share)
    proved = [p for p in bounds if p >= proved_from]
    panel.plot(
        list(bounds), list(bounds.values()), color=COLOURS["black"], linewidth=1, linestyle=(0, (2, 2))
    )
    panel.plot(
        proved, [bounds[p] for p in proved], color=COLOURS["black"], linewidth=1.6, label="proved bound"
    )
    panel.plot(list(constants), list(constants.values()), color=colour, linewidth=0.8, alpha=0.5)
    for exhaustive in (True, False):
        some = [row["p"] for row in rows if row["exhaustive"] == exhaustive]
        panel.plot(
            some,
            [constants[p] for p in some],
            "o",
            color=colour,
            markerfacecolor=colour if exhaustive else "white",
            markersize=5,
            label="every operand of the core" if exhaustive else "extremal and random ones",
        )
    panel.set_ylim(0, 1.12 * max(bounds[p] for p in bounds if p >= 5))
    panel.set_xticks(PRECISIONS)
    return share


def _colour(share: float) -> str:
    return COLOURS["blue" if share >= SHARP else "vermilion"]


def main(arguments: list[str] | None = None) -> None:
    """Measure, unless it shall be quick, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only draw what was found before")
    parser.add_argument("--journal", help="file from which an interrupted run goes on")
    given = parser.parse_args(arguments)
    if not given.quick:
        measure(given.journal)
    draw()


if __name__ == "__main__":
    main()
