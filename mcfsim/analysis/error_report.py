"""The report of an error analysis: errors of each input, blame, bounds, and what to ask next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.advice import Advice, advise
from mcfsim.analysis.attribution import RoundedFunction
from mcfsim.analysis.blame import Blame, BlameRow
from mcfsim.analysis.bounds import BOUNDS, interval
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.truth import TruthCheck
from mcfsim.analysis.worst_inputs import WorstInput, search
from mcfsim.codec import ulp
from mcfsim.formats import Format
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.storage.sealed import without_nan

Array = NDArray[np.float64]
#: The quantiles that are reported.
QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)
#: Inputs whose intervals are computed, which takes several runs of the program.
_INTERVALS = 512


@dataclass(frozen=True)
class BoundRow:
    """A bound, compared with the measured errors.

    Attributes
    ----------
    name : str
    claim : {"bound", "first order", "heuristic"}
        ``bound``: no error exceeds it. ``first order``: none does while products of errors are negligible and
        no choice turns. ``heuristic``: few errors do, if rounding errors act as if they were independent,
        which is not so where a sum stagnates.
    about : str
        A description, with its source.
    over : float
        Median of bound over error, where both are finite and the error is not zero.
    inputs : int
        Inputs with a finite bound and a finite error.
    exceeded : int
        Inputs whose error exceeds the bound.
    """

    name: str
    claim: str
    about: str
    over: float
    inputs: int
    exceeded: int

    @property
    def verdict(self) -> str:
        """Whether it holds."""
        if not self.inputs:
            return "says nothing"
        return f"exceeded by {self.exceeded} of {self.inputs}" if self.exceeded else "holds"


@dataclass(frozen=True, eq=False)
class Report:
    """What rounding does to a function on many inputs.

    Arrays have an element for each input. Errors are computed minus exact result.

    Parameters
    ----------
    rounded : RoundedFunction
        Function, format, rounding and inputs.
    sums : Blame
    columns : mapping of str to array
        Computed results, errors, condition numbers and bounds.
    truth : TruthCheck or None
        The comparison with mpmath.
    """

    rounded: RoundedFunction
    sums: Blame
    columns: Mapping[str, Array]
    truth: TruthCheck | None

    # -- each input ---------------------------------------------------------------------------------------
    @property
    def format(self) -> Format:
        """The format."""
        return self.rounded.format

    @property
    def u(self) -> float:
        """The unit roundoff of the format, 2 to the minus precision."""
        return float(2.0**-self.format.precision)

    @property
    def computed(self) -> Array:
        """Computed results."""
        return self.columns["computed"]

    @property
    def error(self) -> Array:
        """Computed minus exact results."""
        return self.columns["error"]

    @property
    def exact(self) -> Array:
        """Exact results."""
        with np.errstate(invalid="ignore"):
            return self.computed - self.error

    @property
    def relative(self) -> Array:
        """Magnitudes of errors relative to exact results; NaN where the exact result is zero."""
        exact = self.exact
        with np.errstate(all="ignore"):
            return np.where(exact == 0, np.nan, np.abs(self.error / exact))

    @property
    def ulps(self) -> Array:
        """Magnitudes of errors in ulps of the exact result in the report's format, see `mcfsim.codec.ulp`."""
        with np.errstate(all="ignore"):
            return np.abs(self.error) / ulp(self.exact, self.format)

    @property
    def condition(self) -> Array:
        """Relative condition numbers of the function with respect to its operands."""
        return self.columns["condition"]

    @property
    def ratio(self) -> Array:
        """Relative errors over condition number times u; where large, the algorithm itself is to blame.

        A condition number below 1 counts as 1: rounding the result alone costs u.
        """
        with np.errstate(all="ignore"):
            return self.relative / (np.maximum(self.condition, 1.0) * self.u)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Where the error is finite: no infinity and no NaN was computed."""
        return np.isfinite(self.error) & np.isfinite(self.computed)

    @property
    def zeros(self) -> int:
        """The number of inputs whose exact result is zero, which have no relative error."""
        return int(np.count_nonzero(self.finite & (self.exact == 0)))

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> dict[str, list[float]]:
        """Return quantiles of relative errors, ulps, condition numbers and ratios, where they are finite."""
        columns = ("relative", "ulps", "condition", "ratio")
        return {name: [_quantile(getattr(self, name), share) for share in shares] for name in columns}

    def median(self) -> float:
        """Return the median relative error."""
        return _quantile(self.relative, 0.5)

    def worst(self) -> float:
        """Return the largest finite relative error; `finite` tells which inputs have finite results."""
        return _quantile(self.relative, 1.0)

    @cached_property
    def widths(self) -> Array | None:
        """For the first inputs, the largest distance of a computed result from an end of its interval."""
        rounded = self.rounded
        if rounded.data == "real":
            return None
        numbers = [x[:_INTERVALS] for x in rounded.inputs.block(0)]
        given, _ = rounded.rounded_inputs(numbers)
        try:
            low, high = interval(rounded.program, rounded.outputs, given)
        except UnsupportedFormatError:  # binary64 has no operations that round outward
            return None
        computed = self.computed[:_INTERVALS]
        with np.errstate(all="ignore"):
            width: Array = np.maximum(high - computed, computed - low)
        return np.where(np.isnan(width), np.inf, width)

    # -- which expressions, which bounds ------------------------------------------------------------------
    def blame(self) -> list[BlameRow]:
        """Return a row for each expression, the one with the largest share of the error first."""
        return self.sums.rows(self.u)

    def opened(self) -> dict[Expression, list[BlameRow]]:
        """Return, for each expression that calls others, the rows of these, such as the operations of a 2Sum.

        Their shares are those of the first block of inputs.
        """
        program = self.rounded.program
        origins: list[Any] = [step.text for step in program.steps]
        if all(x.row == x.detail for x in origins):
            return {}
        sums = Blame(program, attrgetter("text.row", "text.detail"))
        sums.add(sums.summed(self.rounded.block(0)))
        found: dict[Expression, list[BlameRow]] = {}
        for row in sums.rows(self.u):
            if isinstance(row.expression, tuple):
                outer, inner = row.expression
                found.setdefault(outer, []).append(replace(row, expression=inner))
        return {outer: rows for outer, rows in found.items() if [x.expression for x in rows] != [outer]}

    def bounds(self) -> list[BoundRow]:
        """Return the bounds of the literature, compared with the measured errors."""
        error, rows = np.abs(self.error), []
        for name, (claim, about) in BOUNDS.items():
            values = self.widths if name == "interval" else self.columns.get(name)
            if values is None:
                continue
            measured = error[: len(values)]
            there = np.isfinite(values) & np.isfinite(measured)
            some = there & (measured > 0)
            with np.errstate(all="ignore"):
                over = values[some] / measured[some]
            # The measured error is right only to some units of binary64, so a bound is not checked closer.
            exceeded = there & (measured > values * (1 + 1e-10) + 1e-300)
            rows.append(
                BoundRow(
                    *(name, claim, about),
                    over=float(np.median(over)) if over.size else float("nan"),
                    inputs=int(there.sum()),
                    exceeded=int(exceeded.sum()),
                )
            )
        return rows

    # -- what next ----------------------------------------------------------------------------------------
    def advise(self, target: float | str, wide: Format | str = "float32", **options: Any) -> Advice:
        """Return the smallest set of expressions in a wider format that brings errors below a target.

        See `mcfsim.analysis.advice.advise`.
        """
        return advise(self.rounded, target, wide, **options)

    def search(self, objective: str = "error/(cond u)", **options: Any) -> WorstInput:
        """Return the worst input that a search among the format's values finds.

        See `mcfsim.analysis.worst_inputs.search`.
        """
        return search(self.rounded, objective, **options)

    # -- as data and text ---------------------------------------------------------------------------------
    def as_json(self, **more: Any) -> dict[str, Any]:
        """Return what was found as JSON data: no arrays, and NaN and infinities as None.

        Parameters
        ----------
        **more
            Results of `advise`, `search` and `mcfsim.curve`, by the names that they are to have.
        """
        rounded = self.rounded
        opened: Mapping[Any, list[BlameRow]] = self.opened()

        def data(row: BlameRow) -> dict[str, Any]:
            if not isinstance(row.expression, Expression):
                return asdict(row)
            place = {**asdict(row.expression), "where": row.expression.where}
            return {**asdict(row), "expression": place}

        blame = [
            {**data(row), "within": [data(x) for x in opened.get(row.expression, ())]} for row in self.blame()
        ]
        found = {
            "function": rounded.program.name,
            "format": str(self.format),
            "rounding": str(rounded.rounding.mode),
            "scalars": rounded.scalars,
            "data": rounded.data,
            "output": rounded.output,
            "inputs": {
                "text": str(rounded.inputs),
                "count": rounded.inputs.size,
                "seed": rounded.inputs.seed,
            },
            "operations": len(rounded.program.steps),
            "unit_roundoff": self.u,
            "error": {
                "median": self.median(),
                "largest": self.worst(),
                "largest_over_condition": _quantile(self.ratio, 1.0),
                "quantiles": {"at": QUANTILES, **self.quantiles()},
                "zeros": self.zeros,
                "not_finite": int(np.count_nonzero(~self.finite)),
            },
            "truth": None if self.truth is None else asdict(self.truth),
            "blame": blame,
            "bounds": [asdict(row) for row in self.bounds()],
            **{name: asdict(found) for name, found in more.items()},
        }
        return without_nan(found)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return report_text(self)

    __repr__ = __str__


def _quantile(x: Array, share: float) -> float:
    known = x[np.isfinite(x)]
    return float(np.quantile(known, share)) if known.size else float("nan")


# -- as text ----------------------------------------------------------------------------------------------
#: The most expressions that are shown.
_ROWS = 8


def report_text(report: Report) -> str:
    """Return a report as lines of text."""
    rounded, truth = report.rounded, report.truth
    lines = [
        f"{rounded.program.name}, {report.format}, {rounded.rounding.mode}: "
        f"{len(rounded.program.steps)} operations, {rounded.inputs.size} inputs ({rounded.inputs})"
    ]
    if truth is not None:
        lines.append(
            f"truth    {truth.compared} of {truth.inputs} errors compared with mpmath, {truth.bits} bits: "
            f"{truth.off:.1g} off"
        )
        if about := truth.about_constants(report.u):
            lines.append(f"         {about}")
    lines.append(f"error    {error_text(report)}")
    shown = [row for row in report.blame() if row.rms > 0 or row.nonfinite or row.stagnant or row.turned]
    for place, row in enumerate(shown[:_ROWS]):
        where = row.expression
        name, line = (where.text, where.where) if isinstance(where, Expression) else (where, "")
        differs = np.isfinite(row.first_order) and abs(row.first_order - row.rms) > 0.1 * row.rms
        notes = [f"by derivatives {row.first_order:.3g} u"] if differs else []
        notes += [
            f"{count} {what}"
            for count, what in (
                (row.nonfinite, "first infinite or NaN"),
                (row.stagnant, "sums that stay"),
                (row.turned, "choices turned"),
            )
            if count
        ]
        explains = f"{100 * row.explains:5.0f} %" if np.isfinite(row.explains) else "      -"
        lines.append(
            f"{'blame' if not place else '':8s} rms {row.rms:8.3g} u   explains {explains}   "
            f"{name}   {line}{'   ' + ', '.join(notes) if notes else ''}".rstrip()
        )
    if len(shown) > _ROWS:
        lines.append(f"         and {len(shown) - _ROWS} more")
    for place, bound in enumerate(report.bounds()):
        head = "" if place else "bounds"
        over = f"{bound.over:.3g} times the error in the median; " if np.isfinite(bound.over) else ""
        lines.append(f"{head:8s} {bound.name}: {over}{bound.verdict} ({bound.claim})")
    return "\n".join(lines)


def error_text(report: Report) -> str:
    """Return the sizes of errors in one line, in units of u."""
    u, ratio = report.u, report.ratio
    known = ratio[np.isfinite(ratio)]
    if np.isfinite(report.median()):
        text = f"median {report.median() / u:.3g} u, largest {report.worst() / u:.3g} u"
    elif report.finite.any():
        size = np.abs(report.error[report.finite])
        text = f"absolute: median {np.median(size):.3g}, largest {size.max():.3g}"
    else:
        text = "no result is a number"
    if known.size:
        text += f"; / (cond u) largest {known.max():.3g}"
    turned = int(np.count_nonzero(report.columns["turned"]))
    text += f"; {turned} inputs with a turned choice" if turned else ""
    if lost := int(np.count_nonzero(~report.finite)):
        text += f"; {lost} infinite or NaN"
    if report.zeros:
        text += f"; {report.zeros} with an exact result of 0, which has no relative error"
    return text
