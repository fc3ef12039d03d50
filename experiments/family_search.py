"""Search for the families of extremal operands of every double-word algorithm, and prove what is found.

A statement takes one to five minutes of a core; those that have a result already are left as they are.
``--again`` searches anew, beginning with the families that are known.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from experiments.common import read_result, write_result
from experiments.families.search import Search, search
from mcfsim.formats import Format
from mcfsim.report.tables import markdown_table
from mcfsim.theorems import THEOREMS, verify
from mcfsim.theorems.every_p import Proof
from mcfsim.theorems.every_p.family_certificate import terms
from mcfsim.theorems.every_p.family_proof import members
from mcfsim.theorems.symbolic import EVEN, EVERY, ODD, Family, Precisions

RESULT = "family_search"
#: The result file that has the worst cases.
CASES = "worst_constants"
#: The largest precision at which a family's error is reported.
LAST = 24


@dataclass(frozen=True)
class Plan:
    """How a statement's families are searched for.

    Attributes
    ----------
    seeds : tuple of int
        Of the climbs; none if worst cases follow polynomials in u that reach the bound.
    steps : int
        Of each climb.
    mode : str
        How results are rounded.
    statement : str
        Its id, if the plan has another name.
    """

    seeds: tuple[int, ...] = ()
    steps: int = 2000
    mode: str = "nearest_even"
    statement: str = ""


PLANS = {
    "dw_plus_fp": Plan(),
    "dw_plus_fp, ties away": Plan(mode="nearest_away", statement="dw_plus_fp"),
    "grow": Plan(),
    "grow_relaxed": Plan(),
    "grow_unordered": Plan(),
    "sloppy_dw_plus_dw": Plan(),
    "accurate_dw_plus_dw": Plan(),
    "add222": Plan(),
    "dw_times_dw1": Plan(),
    "dw_times_dw2": Plan(),
    "dw_times_dw3": Plan(),
    "sqrt_dw": Plan(),
    "dw_times_fp1": Plan((0,)),
    "dw_times_fp2": Plan((0,)),
    "dw_times_fp3": Plan((0,)),
    "dw_div_fp2": Plan((0,)),
    "dw_div_fp3": Plan((0,)),
    "dw_div_dw2": Plan((0,)),
    "dw_div_dw2_fma": Plan((0,)),
    "dw_div_dw3": Plan((0, 1)),
    "dw_times_dw1_any_ties": Plan((0,), mode="nearest_away"),
}
#: Precisions at which all operands are tried, in half a minute, if known worst cases are of another mode.
TRIED = range(3, 7)
#: How a mode is written.
AWAY = ", ties away"
#: How precisions are written.
WORDS = {EVERY: "every p", EVEN: "even p", ODD: "odd p"}


def measure(names: list[str], *, again: bool) -> None:
    """Search, and write what was found after each statement."""
    try:
        done = read_result(RESULT)["statements"]
    except FileNotFoundError:
        done = {}
    for name in names:
        if again or name not in done:
            done[name] = _searched(name, PLANS[name])
            print(f"{name}: {_said(done[name])}", flush=True)
            ordered = {key: done[key] for key in PLANS if key in done}
            write_result(RESULT, {"unit": "u^2, u = 2^-p", "statements": ordered})


def _searched(key: str, plan: Plan) -> dict[str, Any]:
    name = plan.statement or key
    if plan.mode == "nearest_even":
        cases, exhaustive = _cases(name)
    else:
        cases, exhaustive = ({}, {}) if plan.seeds else _tried(name, plan.mode)
    found = search(
        THEOREMS[name],
        cases,
        guesses=_known(name),
        over=(EVEN, ODD) if plan.seeds else (EVERY,),
        seeds=plan.seeds,
        steps=plan.steps,
        mode=plan.mode,
    )
    bound = THEOREMS[name].claim.bound
    formula = bound and bound.formula
    return {
        "rounding": plan.mode,
        "bound": str(formula) if formula else None,
        "bound_limit": str(formula.limit) if formula else None,
        "worst_cases_at": sorted(cases),
        "climbs": {
            WORDS[over]: {"seeds": len(plan.seeds), "families": tried} for over, tried in found.tried.items()
        },
        "limit": _text(found.limit),
        "families": {WORDS[over]: _row(found, over, proof) for over, proof in _best(found).items()},
        "worst": {str(p): constant for p, constant in exhaustive.items()},
        "refused": len(found.refused),
        "reasons": sorted({reason[:200] for reason in found.refused})[:3],
    }


def _best(found: Search) -> dict[Precisions, Proof]:
    """Return the best families: that of every precision alone, if those of both parities have its limit."""
    every = found.best.get(EVERY)
    if every is not None and every.limit == found.limit:
        return {EVERY: every}
    return {over: found.best[over] for over in (EVERY, EVEN, ODD) if over in found.best}


def _known(name: str) -> tuple[Family, ...]:
    """Return the families that a statement has."""
    try:
        return members(THEOREMS[name])
    except ValueError:
        return ()


def _cases(name: str) -> tuple[dict[int, tuple[Fraction, ...]], dict[int, str]]:
    """Return the exhaustive worst cases that are known of a statement, and their constants."""
    try:
        known = read_result(CASES)["statements"][name]["worst"]
    except KeyError:
        return {}, {}
    rows = [row for row in known if row["exhaustive"]]
    cases = {row["p"]: tuple(Fraction(float.fromhex(x)) for x in row["operands"]) for row in rows}
    return cases, {row["p"]: row["decimal"] for row in rows}


def _tried(name: str, mode: str) -> tuple[dict[int, tuple[Fraction, ...]], dict[int, str]]:
    """Return the worst cases of a statement in a mode, all operands tried, and their constants."""
    cases, constants = {}, {}
    for p in TRIED:
        worst = verify(name, Format(precision=p, emin=-100, emax=100), mode, samples=1).worst
        assert worst is not None
        cases[p] = tuple(Fraction(float.fromhex(x.hexadecimal)) for x in worst.case.operands)
        constants[p] = worst.decimal
    return cases, constants


def _row(found: Search, over: Precisions, proof: Proof) -> dict[str, Any]:
    assert proof.in_unit is not None
    return {
        "family": str(proof.family),
        "operands": _operands(proof.family),
        "origin": found.origin[over],
        "error": str(proof.in_unit) + (", of squares" if proof.bound.squared else ""),
        "limit": _text(proof.limit),
        "from_p": proof.first,
        "sharpness": str(proof.sharpness),
        "at": {str(p): float(proof.constant(p)) for p in range(proof.first, LAST + 1) if p in over},
    }


def _operands(family: Family) -> Mapping[str, Any]:
    return {name: [terms(part) for part in parts] for name, parts in family.operands}


def _text(number: Fraction | None) -> str | None:
    return None if number is None else str(number)


def _said(row: dict[str, Any]) -> str:
    return f"limit {row['limit']} of {row['bound_limit']}; " + "; ".join(
        f"{over}: {one['limit']} {one['sharpness']} from p = {one['from_p']}, {one['family']}"
        for over, one in row["families"].items()
    )


def table() -> str:
    """Return one row per statement: its bound, what was searched, and the best that was found."""
    rows = []
    for name, found in read_result(RESULT)["statements"].items():
        climbed = sum(one["families"] for one in found["climbs"].values())
        said = {one["sharpness"] for one in found["families"].values()}
        rows.append(
            {
                "statement": f"`{name.split(',')[0]}`" + AWAY * (found["rounding"] == "nearest_away"),
                "bound": found["bound_limit"] or "",
                "worst cases at p": _span(found["worst_cases_at"]),
                "families climbed": f"{climbed:,}" if climbed else "",
                "limit": found["limit"] or "none",
                "from p": ", ".join(str(one["from_p"]) for one in found["families"].values()),
                "": ", ".join(sorted(said)),
            }
        )
    return markdown_table(rows)


def _span(precisions: list[int]) -> str:
    return f"{precisions[0]} to {precisions[-1]}" if precisions else ""


def main(arguments: list[str] | None = None) -> None:
    """Search the families of all statements, or of some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="search anew what has a result")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PLANS)}")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(PLANS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    measure(given.names or list(PLANS), again=given.again)


if __name__ == "__main__":
    main()
