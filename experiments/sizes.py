"""Steps of optimizers by size, as tables, from what `tests.benchmarks.sizes` has measured."""

from __future__ import annotations

from experiments.common import read_result, versions_of
from mcfsim.report.tables import markdown_table


def memory() -> str:
    """Return time and memory by size."""
    rows = read_result("sizes")["memory"]
    return markdown_table(
        [
            {
                "parameters": f"{row['parameters']:.3g}",
                "threads": str(row["threads"]),
                "s": f"{row['seconds']:.3g}",
                "ns a parameter": f"{row['ns']:.2f}",
                "state and gradient, MB": f"{row['state'] / 1e6:.0f}",
                "beyond it, MB": f"{row['beyond'] / 1e6:.0f}",
            }
            for row in rows
        ]
    )


def beside() -> str:
    """Return the times of a step beside its peers, and of a step on files beside a copy of the files."""
    result = read_result("sizes")
    rows = [
        {"step": row["name"], "threads": str(row["threads"]), "ns a parameter": f"{row['ns']:.2f}"}
        for row in result["compared"]
    ]
    files = "; ".join(
        f"{row['parameters']:.3g} parameters {row['seconds']:.1f} s, "
        f"a copy of their bytes {row['copy']:.1f} s, "
        f"{row['RssAnon'] / 1e6:.0f} MB of its own"
        for row in result["files"]
    )
    about = result["versions"]
    return (
        f"{markdown_table(rows)}\n\n"
        f"Out of files, from the disk and back to it: {files}. {about['processor']}; {versions_of(about)}."
    )
