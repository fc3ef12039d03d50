"""Curves of a function's error along precision, length, condition, components or rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mcfsim.analysis.analyse import analyse
from mcfsim.analysis.error_report import Report
from mcfsim.analysis.samplers import Sampler, sampler
from mcfsim.checks import hint
from mcfsim.rounding import Mode

#: What a curve runs along, with the values that it takes unless told, and whether its axis is logarithmic.
ALONG: Mapping[str, tuple[Sequence[Any], bool]] = MappingProxyType(
    {
        "precision": (tuple(range(5, 25)), False),
        "length": (tuple(2**k for k in range(2, 11)), True),
        "condition": ((), True),
        "components": ((1, 2, 3), False),
        "rounding": (tuple(mode.value for mode in Mode if mode is not Mode.STOCHASTIC), False),
    }
)


@dataclass(frozen=True)
class Point:
    """A point of a curve.

    Attributes
    ----------
    at : number or str
        The precision, length, condition number, number of components, or rounding mode.
    median, largest : float
        The median and the largest relative error of its inputs.
    first_order, sigma : float
        Medians of the bound of first order and of three standard deviations, relative.
    inputs : int
    """

    at: Any
    median: float
    largest: float
    first_order: float
    sigma: float
    inputs: int


@dataclass(frozen=True)
class Curve:
    """The errors of a function along one quantity.

    Attributes
    ----------
    name : str
        The function.
    along : str
    points : tuple of Point
    slope : float
        The fitted slope of log2 of the median error: by the precision itself, or by log2 of the length or
        condition number. NaN where there are fewer than three points with a nonzero error.
    interval : tuple of two float
        Its confidence interval at 95 %, by Student's t.
    """

    name: str
    along: str
    points: tuple[Point, ...]
    slope: float
    interval: tuple[float, float]

    def table(self) -> list[dict[str, str]]:
        """Return a row for each point, as text."""
        return [
            {
                self.along: f"{x.at:g}" if isinstance(x.at, float) else str(x.at),
                "median error": f"{x.median:.3g}",
                "largest": f"{x.largest:.3g}",
                "first order": f"{x.first_order:.3g}",
                "3 sigma": f"{x.sigma:.3g}",
                "inputs": str(x.inputs),
            }
            for x in self.points
        ]

    def __str__(self) -> str:
        low, high = self.interval
        head = f"{self.name} along {self.along}"
        if np.isfinite(self.slope):
            head += f": slope of log2 error {self.slope:.3g}, 95 % between {low:.3g} and {high:.3g}"
        rows = self.table()
        widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
        lines = ["  ".join(key.rjust(width) for key, width in widths.items())]
        lines += ["  ".join(row[key].rjust(width) for key, width in widths.items()) for row in rows]
        return "\n".join([head, *lines])


def curve(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    along: str = "precision",
    at: Sequence[Any] | None = None,
    *,
    formats: Any = "bfloat16",
    components: str = "k",
    options: Mapping[str, Any] = MappingProxyType({}),
    **others: Any,
) -> Curve:
    """Return how a function's error depends on one quantity.

    Parameters
    ----------
    function, inputs, formats, options
        As for `analyse`, for one format.
    along : {"precision", "length", "condition", "components", "rounding"}, optional
        ``length`` changes the number of elements of operands that are tuples, which must have samplers;
        ``condition`` sorts the inputs of one analysis by the binade of their condition number;
        ``components`` sets an option of the function, and the sum of its results is analysed.
    at : sequence, optional
        The values, by default those of `ALONG`.
    components : str, optional
        The option that is the number of components.
    **others
        Further arguments of `analyse`.

    Raises
    ------
    ValueError
        If there is nothing of this name to go along, or no operand whose length can change.
    """
    if along not in ALONG:
        raise ValueError(f"no curve along {along!r}{hint(along, ALONG)}; known: {', '.join(ALONG)}")
    places = list(ALONG[along][0] if at is None else at)
    given: dict[str, Any] = {"options": options, "truth": 0, **others}
    if along == "precision":
        reports = analyse(function, inputs, precisions=places, **given)
    elif along == "rounding":
        reports = [analyse(function, inputs, formats, rounding=mode, **given) for mode in places]
    elif along == "length":
        reports = [analyse(function, _of_length(inputs, n), formats, **given) for n in places]
    elif along == "components":
        reports = [
            analyse(
                function, inputs, formats, **{**given, "output": "sum", "options": {**options, components: k}}
            )
            for k in places
        ]
    else:
        report = analyse(function, inputs, formats, **given)
        return _fitted(report.rounded.program.name, along, _by_condition(report))
    points = [_point(x, report) for x, report in zip(places, reports, strict=True)]
    return _fitted(reports[0].rounded.program.name, along, points)


def _of_length(inputs: Mapping[str, Any], length: int) -> dict[str, Any]:
    made, changed = {}, 0
    for name, source in inputs.items():
        found = sampler(source) if isinstance(source, str) else source
        if isinstance(found, Sampler) and found.count is not None:
            found, changed = replace(found, count=length), changed + 1
        made[name] = found
    if not changed:
        raise ValueError(
            "a curve along length needs an operand that is a tuple with a sampler, as 'normal()*4'"
        )
    return made


def _point(at: Any, report: Report, chosen: Any = None) -> Point:
    chosen = slice(None) if chosen is None else chosen
    with np.errstate(all="ignore"):
        exact = np.abs(report.exact)[chosen]
        usable = report.finite[chosen] & (exact > 0)
        scale = exact[usable]
        relative = np.abs(report.error[chosen][usable]) / scale
        bounds = [report.columns[name][chosen][usable] / scale for name in ("first order", "3 sigma")]
    if not relative.size:
        none = float("nan")
        return Point(at, none, none, none, none, 0)
    first, sigma = (float(np.median(x)) for x in bounds)
    return Point(at, float(np.median(relative)), float(relative.max()), first, sigma, int(relative.size))


#: The fewest inputs of a binade of condition numbers.
_FEW = 4


def _by_condition(report: Report) -> list[Point]:
    with np.errstate(all="ignore"):
        binade = np.floor(np.log2(report.condition))
    points = []
    for exponent in np.unique(binade[np.isfinite(binade)]):
        chosen = binade == exponent
        if np.count_nonzero(chosen) >= _FEW:
            points.append(_point(float(2.0**exponent), report, chosen))
    if not points:
        raise ValueError("no input has a finite condition number")
    return points


def _fitted(name: str, along: str, points: list[Point]) -> Curve:
    """Return a curve with its slope by least squares, and the slope's interval."""
    from scipy.stats import linregress, t

    numbers = [x for x in points if not isinstance(x.at, str) and x.median > 0 and np.isfinite(x.median)]
    none = float("nan")
    if len(numbers) < 3:
        return Curve(name, along, tuple(points), none, (none, none))
    x = np.array([float(point.at) for point in numbers])
    fit = linregress(np.log2(x) if ALONG[along][1] else x, np.log2([point.median for point in numbers]))
    half = float(t.ppf(0.975, len(numbers) - 2) * fit.stderr)
    slope = float(fit.slope)
    return Curve(name, along, tuple(points), slope, (slope - half, slope + half))
