"""Errors of FPBench's straight-line functions in binary32: their sizes, their origins, and the worst inputs.

`python -m experiments.fpbench_errors` takes a minute or two.
"""

from __future__ import annotations

from typing import Any

import mcfsim as mcf
from experiments.common import read_result, write_result
from mcfsim.analysis.samplers import operand_names
from mcfsim.functions import FPBENCH
from mcfsim.report.tables import markdown_table
from mcfsim.storage.sweeps.installed import versions

NAME = "fpbench_errors"
FORMAT, COUNT, SEED = "float32", 4096, 0


def analysed(name: str) -> dict[str, Any]:
    """Return what an analysis and a search find of a benchmark, on its published range of inputs."""
    item = FPBENCH[name]
    ranges = [f"uniform({low!r}, {high!r})" for low, high in item.inputs.values()]
    inputs = dict(zip(operand_names(item.function, {}), ranges, strict=True))
    report = mcf.analyse(item.function, inputs, FORMAT, count=COUNT, seed=SEED)
    first, *_ = report.blame()
    worst = report.search("error/u")
    assert report.truth is not None
    return {
        "operations": len(report.rounded.program.steps),
        "median": report.median() / report.u,
        "largest": report.worst() / report.u,
        "condition": float(max(x for x in report.condition if x == x)),
        "expression": first.expression.text if not isinstance(first.expression, str) else first.expression,
        "explains": first.explains,
        "found": worst.value,
        "at": worst.inputs,
        "off": report.truth.off,
    }


def main() -> None:
    """Analyse all, and write what was found."""
    rows = {name: analysed(name) for name in FPBENCH}
    about = {"format": FORMAT, "count": COUNT, "seed": SEED, "versions": versions()}
    write_result(NAME, {**about, "benchmarks": rows})


def table() -> str:
    """Return a row for each benchmark, that with the largest error first."""
    found = read_result(NAME)["benchmarks"]
    rows = [
        {
            "benchmark": name,
            "operations": str(x["operations"]),
            "median, u": f"{x['median']:.2g}",
            "largest, u": f"{x['largest']:.3g}",
            "found, u": f"{x['found']:.3g}",
            "at": ", ".join(f"{y:.6g}" for y in x["at"].values()),
            "largest share": f"`{x['expression']}`",
            "explains": f"{100 * x['explains']:.0f} %",
        }
        for name, x in sorted(found.items(), key=lambda pair: -pair[1]["found"])
    ]
    return markdown_table(rows)


if __name__ == "__main__":
    main()
