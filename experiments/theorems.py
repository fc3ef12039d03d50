"""The whole catalogue of statements on four formats: verdicts, worst constants and counterexamples."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from experiments.common import WORKERS, read_result, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.catalogue import CHAPTERS
from mcfsim.theorems.certificate import Certificate
from mcfsim.theorems.verification import FORMATS, plan, run

#: How a format is called at the head of a column.
SHORT = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "bfloat16": "bf16", "float16": "fp16"}
#: The sign for each verdict.
SIGNS = {
    "verified": "verified",
    "core verified": "core",
    "no counterexample": "sampled",
    "refuted": "refuted",
    "vacuous": "-",
}


def summary(certificate: Certificate) -> dict[str, Any]:
    """Return what a page shows of a certificate: nothing that depends on the machine or the day."""
    case, worst = certificate.simplest or next(iter(certificate.witnesses), None), certificate.worst
    return {
        "theorem": certificate.theorem,
        "format": certificate.format,
        "rounding": certificate.rounding,
        "verdict": str(certificate.verdict),
        "expected": certificate.expected,
        "cases": certificate.tried,
        "applicable": certificate.applicable,
        "violations": certificate.violations,
        "worst": worst and {**asdict(worst), "case": str(worst.case)},
        "counterexample": case and str(case),
        "digest": certificate.digest,
    }


def overview() -> str:
    """Return one row per statement: its words, and the verdict in every format."""
    found = _by_theorem()
    lines = []
    for title, theorems in CHAPTERS.items():
        rows = []
        for theorem in theorems:
            verdicts = {SHORT[name]: _verdict(found[theorem.name].get(name)) for name in FORMATS}
            name = f"[`{theorem.name}`](#{theorem.name})" + ("" if theorem.holds else " *(false)*")
            words = theorem.statement + ("" if theorem.precision == 2 else f"; p >= {theorem.precision}")
            rows.append({"statement": name, "in words": words} | verdicts)
        lines += [f"### {title}", "", markdown_table(rows), ""]
    return "\n".join(lines).rstrip()


def details() -> str:
    """Return a section per statement: its source, and a row of measured numbers for each format."""
    found, proved = _by_theorem(), read_result("every_p_bounds")["answers"]
    lines = []
    for theorem in THEOREMS.values():
        status = "" if theorem.status == "claimed" else f" {theorem.status.capitalize()}."
        lines += [f"### {theorem.name}", "", f"{theorem.statement}.{status} Source: {theorem.source}."]
        if theorem.sharp:
            lines += [f"Sharpness: {theorem.sharp}."]
        if (answer := proved.get(theorem.name, {})).get("found") == "proved":
            ties = "" if answer["ties"] == "any" else f", ties {answer['ties']}"
            lines += [f"[Proved](../background/every_bound.md) for every p >= {answer['least']}{ties}."]
        rows = [_row(found[theorem.name][name]) for name in FORMATS if name in found[theorem.name]]
        if rows:
            used = [key for key in rows[0] if any(row[key] for row in rows)]
            lines += ["", markdown_table([{key: row[key] for key in used} for row in rows])]
        else:
            lines.append("It says nothing of these four formats.")
        lines.append("")
    return "\n".join(lines).rstrip()


def _row(item: dict[str, Any]) -> dict[str, str]:
    worst = item["worst"]
    return {
        "format": SHORT[item["format"]],
        "rounding": item["rounding"].replace("_", " "),
        "verdict": item["verdict"],
        "cases": f"{item['cases']:,}",
        "applicable": f"{item['applicable']:,}",
        "violations": f"{item['violations']:,}" if item["violations"] else "",
        "worst constant": worst["decimal"] if worst else "",
        "exactly": _shortened(worst["constant"]) if worst else "",
        "at": worst["case"] if worst else "",
        "counterexample": item["counterexample"] or "",
        "certificate": f"`{item['digest'][:12]}`",
    }


def _shortened(number: str) -> str:
    return number if len(number) <= 32 else number[:29] + "..."


def _verdict(item: dict[str, Any] | None) -> str:
    if item is None:
        return ""
    text = SIGNS[item["verdict"]]
    if item["worst"]:
        text += f", {float(item['worst']['decimal']):.5g}"
    return f"({text})" if item["expected"] == "open" else text


def _by_theorem() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in THEOREMS}
    for item in read_result("theorems")["certificates"]:
        found[item["theorem"]][item["format"]] = item
    return found


def main(arguments: list[str] | None = None) -> None:
    """Verify everything; takes minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", help="file from which an interrupted run goes on")
    journal = parser.parse_args(arguments).journal
    with Sweep(WORKERS, journal=journal, progress=True) as sweep:
        certificates = list(run(plan(), sweep))
    write_result("theorems", {"certificates": [summary(item) for item in certificates]})
    unexpected = [item.name for item in certificates if not item.as_expected]
    print("unexpected:", ", ".join(unexpected) or "nothing")


if __name__ == "__main__":
    main()
