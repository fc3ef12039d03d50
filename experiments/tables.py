"""Put the tables made from the result files into README and docs, between their markers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from experiments.common import ROOT, read_result
from mcfsim.formats import format_table
from mcfsim.tables import markdown_table

#: Rows of the README's table, by the result's name for the strategy.
OPTIONS = {
    "plain": "`plain`: bf16 throughout (A)",
    "fp32-optim": "`fp32-optim`: moments in fp32",
    "kahan": "`kahan`",
    "collage-light": "`collage-light` (B)",
    "collage-plus": "`collage-plus` (C)",
    "collage-plus, m in 2": "the same, m in 2 components",
    "scalars rounded": "the same as C, scalars rounded first",
    "fp32-master": "`fp32-master` (D)",
}


def formats() -> str:
    """Return the table of all formats."""
    return markdown_table(format_table())


def options() -> str:
    """Return what each option costs and loses, for every beta2."""
    rows = []
    result = read_result("collage_options")
    for beta2, by_name in result["table"].items():
        by_name["scalars rounded"] = result["rounded_scalars"] if beta2 == "0.999" else None
        for name, label in OPTIONS.items():
            if by_name[name] is None:
                continue
            row = by_name[name]
            edq = f"{row['normalized_edq']:.4f} ({row['late_normalized_edq']:.4f})"
            against = f"{row['difference']:+.4f} +- {row['spread']:.4f}"
            rows.append(
                {
                    "option": label,
                    "bytes": f"{row['bytes_per_parameter']:g}",
                    "beta2": beta2,
                    "lost arithmetic (late)": f"{row['lost']:.3f} ({row['late_lost']:.3f})",
                    "normalised EDQ (late)": edq,
                    "v / exact, late": f"{row['late_v_ratio']:.4f}",
                    "validation loss": f"{row['validation_loss']:.4f}",
                    "minus `fp32-master`": "" if name == "fp32-master" else against,
                }
            )
    return markdown_table(rows)


def benchmarks() -> str:
    """Return the benchmark of the emulator beside its peers."""
    result = read_result("benchmarks")
    rows = [
        {
            "operation": pair["operation"],
            "peer": pair["peer"],
            "ns / element": f"{pair['ns']:.2f}",
            "peer's": f"{pair['peer_ns']:.2f}",
            "times as fast": f"{pair['ratio']:.2f}",
        }
        for pair in result["pairs"]
    ]
    about = result["versions"]
    steps = ", ".join(f"{row['strategy']} {row['ns_per_parameter']:.0f}" for row in result["adamw"])
    return "\n".join(
        [
            markdown_table(rows),
            "",
            f"{about['processor']}, one thread, 2^{result['size'].bit_length() - 1} elements, medians; NumPy "
            f"{about['numpy']}, ml_dtypes {about['ml_dtypes']}, Python {about['python']}. One AdamW step: "
            f"{steps} ns a parameter.",
        ]
    )


#: What stands between the markers of each name.
TABLES: dict[str, Callable[[], str]] = {"formats": formats, "options": options, "benchmarks": benchmarks}
PAGES = (ROOT / "README.md",)


def fill(text: str) -> str:
    """Return a page with every marked table made anew.

    Raises
    ------
    ValueError
        If a marker names no table.
    """

    def make(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise ValueError(f"a marker names the table {name!r}; known tables: {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end of table -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end of table -->", make, text, flags=re.DOTALL)


def main() -> None:
    """Rewrite the pages, and print what the options cost."""
    for page in PAGES:
        Path(page).write_text(fill(page.read_text()))
    print(options())


if __name__ == "__main__":
    main()
