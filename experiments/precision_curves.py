"""Error of a sum, a moving average and a repeated update, by precision and by the number of components.

`python -m experiments.precision_curves` takes a minute or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mcfsim as mcf
from experiments.common import FIGURES, in_processes, write_result
from mcfsim.analysis.curves import Curve
from mcfsim.functions import ema_in_components
from mcfsim.report.analysis_report import draw_curves
from mcfsim.report.plotting import COLOURS, message, save, subplots

NAME = "precision_curves"
COUNT, TERMS = 32, 128
PRECISIONS = tuple(range(4, 25, 2))
#: From this precision on nothing stagnates, and the slope is fitted.
ASYMPTOTIC = 12
FORMATS = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
NAMED = {4: "e4m3", 8: "bf16", 11: "fp16", 16: "", 20: "", 24: "fp32"}
#: Where an error of zero is drawn.
EXACT = 1e-11


def total(ar: Any, x: Any, k: int) -> Any:
    """Add numbers one by one to an expansion of k components."""
    parts = (x[0], *(0.0,) * (k - 1))
    for term in x[1:]:
        parts = mcf.grow(ar, parts, term)
    return parts


def update(ar: Any, w: Any, steps: Any, k: int) -> Any:
    """Move a weight of k components by small steps."""
    return total(ar, (w, *steps), k)


#: For each task its function, inputs and options, and the numbers of components in the formats.
TASKS: Mapping[str, tuple[Any, dict[str, str], dict[str, Any], tuple[int, ...]]] = {
    "sum": (total, {"x": f"uniform(0.125, 0.5)*{TERMS}"}, {}, (1, 2, 3, 4)),
    "average": (
        ema_in_components,
        {"x": f"uniform(0.5, 1.5)*{TERMS}"},
        {"beta": Fraction(99, 100)},
        (1, 2, 3),
    ),
    "updates": (update, {"w": "uniform(1, 2)", "steps": f"uniform(0, 0.002)*{TERMS}"}, {}, (1, 2, 3, 4)),
}
TITLES = {
    "sum": f"sum of {TERMS} numbers:\nexact with enough components",
    "average": "moving average, beta = .99:\nwhat is left is rounded on entry",
    "updates": f"{TERMS} small updates of a weight:\nlost in one, kept in two or three",
}


def along_precision(task: str, k: int) -> Curve:
    """Return the errors of a task in k components by the precision of a component."""
    function, inputs, options, _ = TASKS[task]
    given = {"options": {**options, "k": k}, "output": "sum", "count": COUNT}
    return mcf.curve(function, inputs, "precision", PRECISIONS, **given)


def along_components(task: str, fmt: str) -> Curve:
    """Return the errors of a task in a format by the number of components."""
    function, inputs, options, components = TASKS[task]
    return mcf.curve(function, inputs, "components", components, formats=fmt, options=options, count=COUNT)


def numbers(curve: Curve) -> dict[str, Any]:
    """Return what is kept of a curve."""
    return {
        "at": [x.at for x in curve.points],
        "median": [x.median for x in curve.points],
        "largest": [x.largest for x in curve.points],
    }


def _end(curve: Curve) -> Curve:
    return curve.between(ASYMPTOTIC, PRECISIONS[-1])


def with_slope(curve: Curve) -> dict[str, Any]:
    """Return what is kept of a curve by precision: its slope where nothing stagnates, too."""
    end = _end(curve)
    slope = {"slope": end.slope, "interval": list(end.interval)} if len(end.fitted) > 2 else {}
    return {**numbers(curve), "first_order": [x.first_order for x in curve.points], **slope}


def _write_slope(axes: Any, curve: Curve, colour: str) -> None:
    end = _end(curve)
    if len(end.fitted) > 2:
        place = end.fitted[len(end.fitted) // 2]
        near = {
            "xytext": (-5, -13),
            "ha": "right",
            "textcoords": "offset points",
            "color": colour,
            "fontsize": 8.5,
        }
        axes.annotate(f"slope {end.slope:.2f}", (place.at, place.median), **near)


def main() -> None:
    """Run, write the numbers, draw."""
    lines = [(task, k) for task in TASKS for k in (1, 2)]
    bars = [(task, fmt) for task in TASKS for fmt in FORMATS]
    by_precision = dict(zip(lines, in_processes(along_precision, lines), strict=True))
    by_components = dict(zip(bars, in_processes(along_components, bars), strict=True))
    result: dict[str, Any] = {"count": COUNT, "terms": TERMS}
    for task in TASKS:
        result[task] = {
            "by_precision": {str(k): with_slope(by_precision[task, k]) for k in (1, 2)},
            "by_components": {fmt: numbers(by_components[task, fmt]) for fmt in FORMATS},
        }
    write_result(NAME, result)
    with subplots(2, 3, width=10.5, height=6.4) as (figure, axes):
        for place, (task, title) in enumerate(TITLES.items()):
            above, below = axes[0][place], axes[1][place]
            named = {f"{k} component{'s' if k > 1 else ''}": by_precision[task, k] for k in (1, 2)}
            draw_curves(above, named, exact=EXACT)
            draw_curves(below, {fmt: by_components[task, fmt] for fmt in FORMATS}, exact=EXACT)
            above.set_title(title)
            above.set_xticks(list(NAMED), [f"{p}\n{name}" for p, name in NAMED.items()])
            below.set_xticks([1, 2, 3, 4])
            below.set_xlim(0.9, 4.1)
            for panel in (above, below):
                panel.set_ylim(EXACT / 3, 9)
            for curve, colour in zip(named.values(), (COLOURS["blue"], COLOURS["vermilion"]), strict=True):
                _write_slope(above, curve, colour)
            single = named["1 component"]
            bound = [x.first_order for x in single.points]
            above.plot(PRECISIONS, bound, "--", color=COLOURS["blue"], label="1 component, first order bound")
        for row in axes:
            row[0].set_ylabel("median relative error")
        axes[0][1].legend(loc="lower left", fontsize=8.5)
        axes[1][1].legend(loc="lower left", fontsize=8.5)
        message(figure, "A second component of bf16 is worth more than eight bits of precision")
        save(figure, FIGURES / NAME)


if __name__ == "__main__":
    main()
