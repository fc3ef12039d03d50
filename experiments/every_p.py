"""The error of every double-word algorithm at every precision: how sharp its bound is.

What families of operands give at every precision is proved in seconds. Trying all operands of 3 to 11 bits
takes about ten minutes on two idle cores; ``--quick`` leaves that as it was found.
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from typing import Any

from experiments.common import FIGURES, WORKERS, read_result, write_result
from mcfsim.formats import Format
from mcfsim.report.plotting import COLOURS, message, save, subplots
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS, Certificate, Theorem
from mcfsim.theorems.every_p import EveryCertificate, Proof, Sharpness, covering
from mcfsim.theorems.every_p.family_proof import with_families
from mcfsim.theorems.parts import Selection
from mcfsim.theorems.verification import prepare, run

#: Result files: what families give, and the worst errors of the operands tried.
RESULT, CONSTANTS = "every_p", "worst_constants"
PRECISIONS = range(3, 12)
#: Curves are drawn up to here.
LAST = 24
#: Cases of a core: all products of double words of p = 8 whose low words are zero or in one binade; and for
#: p = 11 those of a double word and a number. A variant has an eighth, and is given eight times as much.
LIMIT, LIMIT_OF_11 = 1_100_000_000, 2_200_000_000
SAMPLES = 1 << 24
#: The algorithms by the names that their authors give them, in the order of the panels.
ALGORITHMS = {
    "dw_plus_fp": "DWPlusFP",
    "grow_relaxed": "Grow, relaxed pairs",
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
#: Those that the first page shows.
FEW = ("dw_times_dw1", "dw_times_dw3", "dw_div_dw3")
#: Statements of which only the numbers are kept.
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
    write_result(CONSTANTS, {"unit": "u^2, u = 2^-p", "samples": SAMPLES, "statements": statements})


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


def prove() -> None:
    """Prove what the best families give at every precision, and write it."""
    statements = {
        theorem.name: {
            "bound": str(theorem.claim.bound.formula) if theorem.claim.bound.formula else None,
            "unit": theorem.claim.bound.unit,
            "holds": theorem.holds,
            "families": [_proved(proof) for proof in covering(theorem)],
        }
        for theorem in with_families()
        if theorem.claim.bound is not None and theorem.claim.bound.unit
    }
    write_result(RESULT, {"statements": statements})


def _proved(proof: Proof) -> dict[str, Any]:
    over = proof.family.over
    drawn = [p for p in range(max(proof.first, 3), LAST + 1) if p in over]
    return {
        "precisions": str(over),
        "rounding": str(proof.mode),
        "operands": str(proof.family),
        "error": str(proof.in_unit),
        "of_squares": proof.bound.squared,
        "limit": None if proof.limit is None else str(proof.limit),
        "sharpness": str(proof.sharpness),
        "first": proof.first,
        "decided": proof.decided,
        "below": proof.below,
        "emin": str(proof.emin),
        "emax": str(proof.emax),
        "obligations": len(proof.obligations),
        "digest": EveryCertificate.of(proof).digest,
        "constants": {str(p): f"{float(proof.constant(p)):.8g}" for p in drawn},
    }


# -- tables -------------------------------------------------------------------------------------------------
def table() -> str:
    """Return one row per family: operands, error function, limit, and what that says of the bound."""
    rows = []
    for name, item in read_result(RESULT)["statements"].items():
        for found in item["families"]:
            error = f"of squares: {found['error']}" if found["of_squares"] else found["error"]
            rows.append(
                {
                    "statement": f"`{name}`" + ("" if item["holds"] else " *(false)*"),
                    "bound": _bound(name, item),
                    "limit": _limit(found),
                    "is": found["sharpness"],
                    "best family": _of(found) + found["operands"],
                    "error": error,
                    "from p": str(found["first"]),
                    "certificate": f"`{found['digest'][:12]}`",
                }
            )
    return markdown_table(rows)


def overview() -> str:
    """Return one row per statement: bound, limit of the best family, and whether the bound is sharp."""
    rows = []
    for name, item in read_result(RESULT)["statements"].items():
        found = item["families"]
        limits = [(_of(one) if len(found) > 1 else "") + _limit(one) for one in found]
        rows.append(
            {
                "statement": f"[`{name}`](#{name})" + ("" if item["holds"] else " *(false)*"),
                "bound": _bound(name, item),
                "limit of the best family": ", ".join(dict.fromkeys(limits)),
                "bound is": ", ".join(dict.fromkeys(one["sharpness"] for one in found)),
                "from p": ", ".join(dict.fromkeys(str(one["first"]) for one in found)),
            }
        )
    return markdown_table(rows)


def _bound(name: str, item: dict[str, Any]) -> str:
    of_u = " (u)" if item["unit"] == 1 else ""
    return ("" if proved(THEOREMS[name]) else "measured: ") + str(item["bound"]) + of_u


def _limit(found: dict[str, Any]) -> str:
    return found["limit"] or "none: it grows"


def _of(found: dict[str, Any]) -> str:
    """Return the precisions that a result is about, in words; nothing if all."""
    return {"p": "", "2 n": "even p: ", "2 n + 1": "odd p: "}[found["precisions"]]


def proved(theorem: Theorem) -> bool:
    """Return whether a statement's bound is proved, by its source or here, or measured."""
    return not any(word in theorem.source for word in ("measured", "conjecture")) or not theorem.holds


# -- the figures --------------------------------------------------------------------------------------------
def draw() -> None:
    """Draw all algorithms, and three of them for the first page."""
    families = read_result(RESULT)["statements"]
    found = {name: families.get(name, {"families": []})["families"] for name in ALGORITHMS}
    sharp = sum(map(_sharp, found.values()))
    title = (
        f"For {sharp} of {len(found)} algorithms (blue) the error of a family of operands tends to the bound"
    )
    _draw(found, 4, 9.6, title, RESULT)
    title = "Two products reach their error bounds in the limit; the best operands known of a quotient do not"
    _draw({name: found[name] for name in FEW}, 3, 3.2, title, f"{RESULT}_three")


def _draw(found: dict[str, list[dict[str, Any]]], columns: int, height: float, title: str, name: str) -> None:
    """Draw bounds, the worst of the operands tried, and what families reach at every precision."""
    constants = read_result(CONSTANTS)["statements"]
    with subplots(len(found) // columns, columns, width=11, height=height) as (figure, axes):
        for panel, (algorithm, families) in zip(axes.flat, found.items(), strict=True):
            colour = COLOURS["blue" if _sharp(families) else "vermilion"]
            panel.set_title(f"{ALGORITHMS[algorithm]}\n{_verdict(algorithm, families)}", color=colour)
            _draw_panel(panel, algorithm, constants[algorithm]["worst"], families, colour)
        for panel in axes[:, 0]:
            panel.set_ylabel("relative error / u^2")
        for panel in axes[-1]:
            panel.set_xlabel("precision p (u = 2^-p)")
        entries = axes[0][0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=len(entries[0]), fontsize=8.5)
        message(figure, title)
        save(figure, FIGURES / name)


def _draw_panel(
    panel: Any, name: str, rows: list[dict[str, Any]], found: list[dict[str, Any]], colour: str
) -> None:
    """Draw bound, worst constants and families of an algorithm."""
    bound = THEOREMS[name].claim.bound
    assert bound is not None
    proved_from = THEOREMS[name].precision if proved(THEOREMS[name]) else LAST + 1
    bounds = {p: float(bound.at(p)) for p in range(3, LAST + 1)}
    known = [p for p in bounds if p >= proved_from]
    line = {"color": COLOURS["black"], "linewidth": 1.2, "zorder": 3}
    panel.plot(known, [bounds[p] for p in known], label="bound, proved", **line)
    panel.plot(list(bounds), list(bounds.values()), linestyle=(0, (2, 2)), label="bound, not proved", **line)
    curve = {int(p): float(number) for one in found for p, number in one["constants"].items()}
    places = sorted(curve)
    panel.plot(
        places, [curve[p] for p in places], color=colour, linewidth=2, label="family of operands, every p"
    )
    for exhaustive in (True, False):
        some = [row for row in rows if row["exhaustive"] == exhaustive]
        panel.plot(
            [row["p"] for row in some],
            [float(row["decimal"]) for row in some],
            "o",
            color=colour,
            markerfacecolor=colour if exhaustive else "white",
            markersize=4.5,
            label="worst of every operand of a core" if exhaustive else "worst of extremal and random ones",
        )
    panel.set_ylim(0, 1.12 * max(bounds[p] for p in bounds if p >= 5))
    panel.set_xlim(2, LAST + 1)
    panel.set_xticks((3, 8, 11, 16, LAST))


def _verdict(name: str, found: list[dict[str, Any]]) -> str:
    """Return in few words what families say of a bound."""
    bound = THEOREMS[name].claim.bound
    formula = bound and bound.formula
    if not found or formula is None or formula.limit is None:
        return "no family known"
    # Families of even and of odd p may have limits of their own.
    limits = " and ".join(f"{float(x):.4g}" for x in sorted({Fraction(one["limit"]) for one in found}))
    return (
        f"tends to its bound, {limits}"
        if _sharp(found)
        else f"tends to {limits} of {float(formula.limit):.4g}"
    )


def _sharp(found: list[dict[str, Any]]) -> bool:
    """Return whether an algorithm has families, and all tend to its bound."""
    return bool(found) and all(one["sharpness"] == Sharpness.SHARP for one in found)


def main(arguments: list[str] | None = None) -> None:
    """Measure, unless ``--quick`` is given, then prove and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only prove, and draw what was found before")
    parser.add_argument("--journal", help="file from which an interrupted run goes on")
    given = parser.parse_args(arguments)
    if not given.quick:
        measure(given.journal)
    prove()
    draw()


if __name__ == "__main__":
    main()
