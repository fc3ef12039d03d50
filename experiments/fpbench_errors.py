"""Errors of FPBench's straight-line functions: their sizes and origins in binary32, and the worst inputs.

The largest absolute errors found, in binary64 above all, stand beside the bounds that tools publish for them.
`python -m experiments.fpbench_errors` takes three minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from typing import Any

import numpy as np

import mcfsim as mcf
from experiments.common import read_result, write_result
from experiments.published_bounds import sharpest
from mcfsim.analysis.samplers import operand_names
from mcfsim.functions import FPBENCH
from mcfsim.kernels.carriers import carrier_of
from mcfsim.kernels.elementary import FUNCTIONS
from mcfsim.report.tables import markdown_table

NAME = "fpbench_errors"
FORMAT, COUNT, SEED = "float32", 4096, 0
#: Numbers of searches for absolute errors, and of inputs that each moves side by side; then the same for
#: benchmarks with elementary functions, which take long in binary64.
SEARCHES, ELEMENTARY = (4, 2000), (1, 400)


def analysed(name: str) -> dict[str, Any]:
    """Return what an analysis and a search find for a benchmark, on its published range of inputs."""
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


def with_decimals(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose constants are the decimals of its text, not the nearest binary64 numbers."""

    def decimal(x: Any) -> Any:
        return Fraction(str(x)) if isinstance(x, float) and Fraction(str(x)) != x else x

    class Decimals:
        def __init__(self, ar: Any) -> None:
            self.ar = ar

        def __getattr__(self, name: str) -> Callable[..., Any]:
            operation = getattr(self.ar, name)
            return lambda *operands: operation(*map(decimal, operands))

        def evaluate(self, function: Callable[..., Any], *operands: Any) -> Any:
            return function(self, *operands)

    return wraps(function)(lambda ar, *operands: function(Decimals(ar), *operands))


def drawn(name: str, fmt: str) -> dict[str, Any]:
    """Return inputs of a benchmark; the first two are the ends of its box, or the next numbers within it."""
    item, rng, carrier = FPBENCH[name], np.random.default_rng(SEED), carrier_of(mcf.get_format(fmt)).type
    inputs = {}
    for operand, (low, high) in zip(operand_names(item.function, {}), item.inputs.values(), strict=True):
        least, most = carrier(low), carrier(high)
        if Fraction(float(least)) < Fraction(str(low)):
            least = np.nextafter(least, carrier(np.inf))
        if Fraction(float(most)) > Fraction(str(high)):
            most = np.nextafter(most, carrier(-np.inf))
        numbers = rng.uniform(least, most, COUNT - 2).astype(carrier)
        inputs[operand] = np.clip(np.concatenate([[least, most], numbers]), least, most).astype(np.float64)
    return inputs


def largest_absolute(name: str, fmt: str) -> dict[str, Any]:
    """Return the largest absolute error that searches find, by the constants of the sharpest bound.

    The searches themselves have constants of binary64: in fractions, an operation takes fifty times as long.
    """
    known, function = sharpest(name, fmt), FPBENCH[name].function
    assert known is not None
    constants = known[0].constants
    report = mcf.analyse(function, drawn(name, fmt), fmt, scalars="rounded", truth=0)
    slow = any(step.operation in FUNCTIONS for step in report.rounded.program.steps)
    searches, starts = ELEMENTARY if slow else SEARCHES
    found = [report.search("absolute", starts=starts, seed=SEED + k).inputs for k in range(searches)]
    at = {operand: np.array([x[operand] for x in found]) for operand in found[0]}
    judge = with_decimals(function) if constants == "decimal" else function
    again = mcf.analyse(judge, at, fmt, scalars="rounded", truth=searches)  # all of them beside mpmath
    worst = int(np.abs(again.error).argmax())
    return {
        "found": abs(float(again.error[worst])),
        "at": found[worst],
        "off": again.truth.off,
        "constants": constants,
    }


def main() -> None:
    """Analyse all, and write what was found."""
    rows = {name: analysed(name) for name in FPBENCH}
    absolute = {
        fmt: {name: largest_absolute(name, fmt) for name in FPBENCH if sharpest(name, fmt)}
        for fmt in ("float64", "float32")
    }
    about = {"format": FORMAT, "count": COUNT, "seed": SEED}
    write_result(NAME, {**about, "benchmarks": rows, "absolute": absolute})


def beside_bound(name: str, found: float | None) -> dict[str, str]:
    """Return the cells of the largest absolute error in binary64 and of the sharpest bound."""
    known, cells = sharpest(name, "float64"), ("", "", "")
    if known is not None and found is not None:
        source, bound = known
        cells = (f"{found:.3g}", f"{bound:.3g} {source.tool}", f"{bound / found:.3g}")
    return dict(zip(("binary64, absolute", "bound", "bound / found"), cells, strict=True))


def table() -> str:
    """Return a row for each benchmark, the one with the largest error first."""
    result = read_result(NAME)
    found, absolute = result["benchmarks"], result["absolute"]["float64"]
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
            **beside_bound(name, absolute.get(name, {}).get("found")),
        }
        for name, x in sorted(found.items(), key=lambda pair: -pair[1]["found"])
    ]
    return markdown_table(rows)


if __name__ == "__main__":
    main()
