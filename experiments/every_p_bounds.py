"""Bounds of sums for every precision at once: what the solver proves of the algorithms, and what it is told.

The longest take ten minutes each; what was answered before is kept, unless ``--anew``.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from experiments.common import processor, read_result, write_result
from mcfsim.report.tables import markdown_table
from mcfsim.theorems import THEOREMS
from mcfsim.theorems.solver import ASSUMED, facts, prove, readable

RESULT = "every_p_bounds"
#: Where the statements stand, seen from the page of this table.
STATEMENTS = "../reference/theorems.md"


def table() -> str:
    """Return one row per statement: what was asked, and what the solver said."""
    result = read_result(RESULT)
    rows = []
    for name in _asked():
        answer, theorem = result["answers"].get(name), THEOREMS[name]
        if answer is None:
            continue
        rows.append(
            {
                "statement": f"[`{name}`](../reference/theorems.md#{name})"
                + ("" if theorem.holds else " *(false)*"),
                "in words": theorem.statement,
                "found": f"**{answer['found']}**" if answer["found"] == "proved" else answer["found"],
                "for every": f"p >= {answer['least']}",
                "ties": answer["ties"],
                "after": ", ".join(f"`{other}`" for other in answer["rests_on"]),
                "s": f"{answer['seconds']:.0f}",
            }
        )
    about = result["versions"]
    return (
        f"{markdown_table(rows)}\n\n"
        f"Assumed: {result['assumed']}. {about['solver']}, seconds of one core of {about['processor']}; "
        "no answer: ended after so many."
    )


def facts_table() -> str:
    """Return the axioms, in words."""
    groups = (
        facts.OF_A_NUMBER,
        facts.OF_A_POWER,
        facts.OF_A_VALUE,
        facts.OF_TWO_POWERS,
        facts.OF_A_SUM,
        facts.EVEN_TIES,
        facts.OF_TWO_SUMS,
    )
    return markdown_table([{"fact": fact.text, "because": fact.source} for group in groups for fact in group])


def _asked() -> list[str]:
    """Return the statements that the solver can be asked about."""
    return [name for name, theorem in THEOREMS.items() if readable(theorem)]


def main(arguments: list[str] | None = None) -> None:
    """Ask about each statement that has no answer yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="the longest for each statement")
    parser.add_argument("--anew", action="store_true", help="ask again what was answered before")
    parser.add_argument("statements", nargs="*", metavar="ID", help="by default all that are translated")
    options = parser.parse_args(arguments)
    kept: dict[str, Any] = {}
    if not options.anew:
        with suppress(FileNotFoundError):
            kept = read_result(RESULT)["answers"]
    for name in options.statements or _asked():
        if name in kept:
            continue
        answer = prove(THEOREMS[name], seconds=options.seconds)
        print(answer, flush=True)
        row = asdict(answer)
        kept[row.pop("statement")] = row
        versions = {"solver": row.pop("solver"), "processor": processor()}
        answers = {name: kept[name] for name in _asked() if name in kept}
        write_result(RESULT, {"assumed": ASSUMED, "answers": answers, "versions": versions})


if __name__ == "__main__":
    main()
