"""Curves of a function's error along precision, length, condition, components or rounding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mcfsim.analysis.analyse import analyse
from mcfsim.analysis.error_report import Report
from mcfsim.analysis.samplers import Sampler, name_of, sampler
from mcfsim.checks import hint, whole_number
from mcfsim.formats import Format
from mcfsim.rounding import Mode, get_rounding

#: What a curve runs along, with its default values, and whether its axis is logarithmic.
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
        Medians of the first-order bound and of the bound of three standard deviations, relative.
    inputs : int
        How many inputs have a finite error and a nonzero exact result.
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
        The fitted slope of log2 of the median error against the precision or the number of components, or
        against log2 of the length or condition number. NaN where fewer than three points have a median error
        above zero.
    interval : tuple of two float
        Its confidence interval at 95 %, by Student's t with two fewer degrees of freedom than points.
    """

    name: str
    along: str
    points: tuple[Point, ...]
    slope: float
    interval: tuple[float, float]

    @property
    def fitted(self) -> tuple[Point, ...]:
        """The points that the slope is fitted to: those at a number, with a median error above zero."""
        return tuple(
            x for x in self.points if not isinstance(x.at, str) and x.median > 0 and np.isfinite(x.median)
        )

    def between(self, low: float, high: float) -> Curve:
        """Return the part of the curve between two places, both included, with a slope of its own.

        Raises
        ------
        ValueError
            If no point at a number lies there.
        """
        some = [x for x in self.points if not isinstance(x.at, str) and low <= x.at <= high]
        if not some:
            raise ValueError(f"the curve of {self.name} along {self.along} has no point from {low} to {high}")
        return _fitted(self.name, self.along, some)

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
            some = len(self.fitted) < len(self.points)
            head += f" ({len(self.fitted)} of {len(self.points)} points)" if some else ""
        rows = self.table()
        rows = [{key: key for key in rows[0]}, *rows]
        widths = {key: max(len(row[key]) for row in rows) for key in rows[0]}
        lines = ["  ".join(row[key].rjust(width) for key, width in widths.items()) for row in rows]
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
        As for `analyse`, for one format, which is ignored along ``precision``.
    along : {"precision", "length", "condition", "components", "rounding"}, optional
        ``length`` changes the number of elements of operands that are tuples, which must have samplers;
        ``condition`` sorts the inputs of one analysis by the binade of their condition number;
        ``components`` sets an option of the function, and the sum of its results is analysed.
    at : sequence, optional
        The values, by default those of `ALONG`; along ``condition`` they follow from the inputs.
    components : str, optional
        The option that is the number of components.
    **others
        Further arguments of `analyse`, except those that the curve sets.

    Raises
    ------
    TypeError, ValueError
        If `along` is unknown; if values are missing, repeated or of the wrong kind; if no operand's length
        can change, or the function has no such option; if an argument is given that the curve sets; or where
        `analyse` raises them.

    Examples
    --------
    >>> import mcfsim
    >>> def total(ar, x):
    ...     s = x[0]
    ...     for t in x[1:]:
    ...         s = ar.add(s, t)
    ...     return s
    >>> found = mcfsim.curve(total, {"x": "uniform(1, 2)*8"}, "precision", range(8, 25, 4), count=100)
    >>> found.interval[0] < -1 < found.interval[1]
    True
    """
    if along not in ALONG:
        raise ValueError(f"no curve along {along!r}{hint(str(along), ALONG)}; known: {', '.join(ALONG)}")
    if not isinstance(formats, Format | str):
        raise ValueError(f"a curve takes one format, not {formats!r}")
    if stray := [x for x in (*SET.get(along, ()), "precisions") if x in others]:
        raise ValueError(f"{stray[0]} cannot be given for a curve along {along}; its values are given as at=")
    if along == "components" and components in options:
        raise ValueError(f"the option {components} is what the curve goes along: give its values as at=")
    given: dict[str, Any] = {"options": options, "truth": 0, **others}
    if along == "condition":
        if at is not None:
            raise ValueError("along condition the values follow from the inputs: none can be given")
        report = analyse(function, inputs, formats, **given)
        return _fitted(report.rounded.program.name, along, _by_condition(report))
    points = []
    for place in _places(along, ALONG[along][0] if at is None else at):
        if along == "precision":
            (report,) = analyse(function, inputs, precisions=[place], **given)
        elif along == "rounding":
            report = analyse(function, inputs, formats, rounding=place, **given)
        elif along == "length":
            report = analyse(function, _of_length(inputs, place), formats, **given)
        else:
            _check_option(function, components)
            several = {**given, "output": "sum", "options": {**options, components: place}}
            report = analyse(function, inputs, formats, **several)
        points.append(_point(str(place.mode) if along == "rounding" else place, report))
    return _fitted(report.rounded.program.name, along, points)


#: Arguments of `analyse` that a curve sets itself.
SET: Mapping[str, Sequence[str]] = {"rounding": ("rounding",), "components": ("output",)}
#: The least value of each quantity that is a whole number.
_LEAST = {"precision": 2, "length": 1, "components": 1}


def _places(along: str, at: Any) -> list[Any]:
    """Return the values to go along, which are checked before any work."""
    if isinstance(at, str) or not isinstance(at, Iterable):
        raise TypeError(f"at must be a sequence of values, not {at!r}")
    if along == "rounding":
        found: list[Any] = [get_rounding(x) for x in at]
    else:
        found = [whole_number(along, x, _LEAST[along]) for x in at]
    if not found:
        raise ValueError(f"a curve along {along} needs at least one value")
    if repeated := [x for place, x in enumerate(found) if x in found[:place]]:
        twice = getattr(repeated[0], "mode", repeated[0])
        raise ValueError(f"{along}: {twice} is among the values more than once")
    return found


def _check_option(function: Callable[..., Any], name: str) -> None:
    taken = inspect.signature(function).parameters
    if name not in taken and not any(x.kind is x.VAR_KEYWORD for x in taken.values()):
        raise ValueError(
            f"{name_of(function)} has no option {name!r}{hint(name, taken)} that is the number of components"
        )


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


def _point(at: Any, report: Report, chosen: Any = ...) -> Point:
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


#: A binade of condition numbers makes a point if it has at least this many inputs.
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
        raise ValueError(
            f"no binade of condition numbers holds {_FEW} inputs: more inputs are needed, or other ones"
        )
    return points


def _fitted(name: str, along: str, points: list[Point]) -> Curve:
    """Return a curve with its slope by least squares, and the slope's interval."""
    from scipy.special import stdtrit

    none = float("nan")
    found = Curve(name, along, tuple(points), none, (none, none))
    if len(found.fitted) < 3:
        return found
    x = np.array([float(point.at) for point in found.fitted])
    x = np.log2(x) if ALONG[along][1] else x
    y = np.log2([point.median for point in found.fitted])
    across = float(np.sum(np.square(x - x.mean())))
    slope = float(np.sum((x - x.mean()) * (y - y.mean()))) / across
    rest = y - y.mean() - slope * (x - x.mean())
    half = float(stdtrit(len(y) - 2, 0.975) * np.sqrt(np.sum(np.square(rest)) / (len(y) - 2) / across))
    return replace(found, slope=slope, interval=(slope - half, slope + half))
