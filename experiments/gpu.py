"""Kernels on a GPU, as a table, from what `make bench-gpu` has measured there."""

from __future__ import annotations

from experiments.common import RESULTS, read_result
from mcfsim.report.tables import markdown_table

NOT_MEASURED = (
    "**Not measured**: no GPU has run these kernels yet. What is said of speed is a count of instructions,\n"
    "and what is said of bits is shown without a GPU, in two halves: that a kernel's operations give the\n"
    "emulator's bits, where NumPy carries them out, and that the compilers keep just these operations."
)


def measured() -> str:
    """Return what a GPU took, or that none was measured."""
    if not (RESULTS / "gpu.json").exists():
        return NOT_MEASURED
    result = read_result("gpu")
    copy = _rate(result["copy"])
    rows = [
        {
            "what": row["name"],
            "elements": f"{row['elements']:.3g}",
            "ms": f"{1e3 * row['seconds']:.4g}",
            "10^9 elements / s": f"{row['elements'] / row['seconds'] / 1e9:.4g}",
            "GB / s": f"{_rate(row) / 1e9:.4g}",
            "of a copy": f"{_rate(row) / copy:.2f}",
        }
        for row in [result["copy"], *(row for rows in result["rows"].values() for row in rows)]
    ]
    wrong = "; ".join(
        f"{name} {share:.2%}" for name, share in result["not the exact step rounded once"].items()
    )
    about = result["versions"]
    return "\n".join(
        [
            markdown_table(rows),
            "",
            f"{result['device']}; torch {about['torch']}, Triton {about['triton']}, "
            f"Python {about['python']}. Parameters that are not the exact first step rounded once: {wrong}.",
        ]
    )


def _rate(row: dict[str, float]) -> float:
    """Return the bytes a second that a row's call read and wrote."""
    return row["elements"] * row["bytes"] / row["seconds"]
