"""Blame: how much of a function's error each expression causes, summed up over blocks of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import Attribution, all_finite, contributed, number
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.secants import flipped
from mcfsim.compile.program import Program, ProgramStep, Register

Array = NDArray[np.float64]
#: The label of the rounding of inputs, where that is part of the error.
INPUTS = "the rounding of inputs"
#: If the variance of errors is a smaller share of their mean square, it may be rounding in the sums alone.
_NOISE = 2.0**-34


@dataclass(frozen=True)
class BlameRow:
    """What one expression does to the result.

    Attributes
    ----------
    expression : Expression or str
        The expression; a text for the rounding of inputs.
    operations : int
        How many operations it stands for.
    rms : float
        Root mean square of its share of the error, relative to the exact result, in units of u.
    explains : float
        Covariance of its share with the error, divided by the variance of the error, both relative; these add
        up to 1 over all expressions. An expression whose share others cancel explains little. NaN where all
        inputs have the same relative error.
    first_order : float
        The rms that derivatives give in place of secants.
    median : float
        Median of the magnitude of its share, relative and in units of u, over the first inputs.
    nonfinite, stagnant, turned : int
        Over all inputs, the numbers of infinities or NaNs that first appear here; of sums that return one
        term although the other is not zero; and of choices that differ from those with exact operands.
    """

    expression: Expression | str
    operations: int
    rms: float
    explains: float
    first_order: float
    median: float
    nonfinite: int
    stagnant: int
    turned: int


class ShareSums(NamedTuple):
    """Sums over a block of inputs.

    Attributes
    ----------
    total : array, shape (3,)
        How many inputs have a finite, nonzero exact result; sums over these of the relative error and of its
        square.
    rows : array, shape (rows, len(SUMMED))
        For each expression the sums over inputs that `SUMMED` names.
    sample : array, shape (rows, inputs)
        Magnitudes of shares relative to exact results, of these inputs.
    """

    total: Array
    rows: Array
    sample: Array


#: Share, its square, its product with the error, and the square of its first order, all relative to the exact
#: result; then counts, as `BlameRow` has them.
SUMMED = ("share", "square", "product", "first_square", "nonfinite", "stagnant", "turned")


class Blame:
    """Sums over all blocks of inputs, for each expression of a program.

    Parameters
    ----------
    program : Program
        As `mcfsim.analysis.expressions.recorded_function` returns it.
    row : callable, optional
        Returns the row of a step; by default the expression that an analysis names.

    Attributes
    ----------
    names : list of Expression or str
        The rows: the expressions, after the rounding of inputs.
    row_of : dict of Register to int
        The row of each input and result.
    """

    def __init__(self, program: Program, row: Callable[[ProgramStep], Any] = attrgetter("text.row")) -> None:
        self._steps: dict[Any, list[ProgramStep]] = {INPUTS: []}
        for step in program.steps:
            self._steps.setdefault(row(step), []).append(step)
        self.names = list(self._steps)
        self.row_of: dict[Register, int] = dict.fromkeys(program.inputs, 0)
        self.row_of |= {step.result: row for row, name in enumerate(self.names) for step in self._steps[name]}
        rows = len(self.names)
        self._sums = ShareSums(np.zeros(3), np.zeros((rows, len(SUMMED))), np.zeros((rows, 0)))
        self._inputs = False

    def add(self, sums: ShareSums, *, inputs: bool = False) -> None:
        """Add a block's sums; `inputs` says whether the rounding of inputs is part of the error."""
        mine = self._sums
        self._sums = ShareSums(
            mine.total + sums.total,
            mine.rows + sums.rows,
            mine.sample if mine.sample.size else sums.sample,
        )
        self._inputs = self._inputs or inputs

    def summed(self, found: Attribution) -> ShareSums:
        """Return a block's sums; inputs without a finite, nonzero exact result have no relative shares."""
        rows = np.zeros((len(self.names), len(SUMMED)))
        with np.errstate(all="ignore"):
            scale = np.abs(found.exact)
            usable = np.isfinite(found.error) & np.isfinite(scale) & (scale > 0)
            divisor = np.where(usable, scale, 1.0)
            relative = np.where(usable, found.error / divisor, 0.0)
            shares, first = self._by_row(found.shares()), self._by_row(self._first_order(found))
            sample = np.zeros((len(self.names), int(usable.sum())))
            for row, share in shares.items():
                part = np.where(usable, share / divisor, 0.0)
                ahead = np.where(usable, first.get(row, 0.0) / divisor, 0.0)
                sample[row] = np.abs(part[usable])
                rows[row, :4] = part.sum(), part @ part, part @ relative, ahead @ ahead
            self._watch(found, rows)
        return ShareSums(np.array([usable.sum(), relative.sum(), relative @ relative]), rows, sample)

    def _by_row(self, parts: Iterable[tuple[Register, Any]]) -> dict[int, Any]:
        by_row: dict[int, Any] = {}
        for x, share in parts:
            row = self.row_of[x]
            by_row[row] = by_row[row] + share if row in by_row else share
        return by_row

    @staticmethod
    def _first_order(found: Attribution) -> Iterator[tuple[Register, Any]]:
        for x, factor in found.sensitivities.items():
            local = found.run.errors.get(x, found.input_errors.get(x))
            if local is not None:
                yield x, contributed(factor, local)

    def _watch(self, found: Attribution, rows: Array) -> None:
        """Note where infinities and NaN appear first, where sums stagnate, and which choices turned."""
        values, bad = found.run.values, np.zeros(found.computed.shape, np.bool_)
        nonfinite, stagnant, turned = rows[:, 4:].T
        for step in found.run.program.steps:
            row, result = self.row_of[step.result], values[step.result]
            if not all_finite(result):
                now = ~np.isfinite(result) & ~bad
                nonfinite[row] += np.count_nonzero(now)
                bad |= now
            if step.operation in ("add", "sub"):
                a, b = (number(x, values) for x in step.operands)
                b = -b if step.operation == "sub" else b
                own = found.run.errors[step.result]
                # Where something was lost, the other term is not zero.
                kept = ((result == a) | (result == b)) & (own != 0)
                stagnant[row] += np.count_nonzero(kept)
            if step.operation == "choose":
                h = [number(x, values) for x in step.operands]
                d = found.errors[step.operands[0]] if isinstance(step.operands[0], Register) else 0.0
                turned[row] += np.count_nonzero(flipped(h[0], h[1], h[2], d)[0])

    def rows(self, u: float) -> list[BlameRow]:
        """Return the rows, those of the largest share first.

        Parameters
        ----------
        u : float
            The unit roundoff of the format.
        """
        found = []
        usable, error, error_square = self._sums.total.tolist()
        count = max(1.0, usable)
        mean_square = error_square / count
        variance = mean_square - (error / count) ** 2
        varies = variance > _NOISE * mean_square
        for name, row, sample in zip(self.names, self._sums.rows, self._sums.sample, strict=True):
            if name is INPUTS and not self._inputs:
                continue
            share, square, product, first_square, *counts = row.tolist()
            nonfinite, stagnant, turned = map(int, counts)
            covariance = product / count - share / count * error / count
            found.append(
                BlameRow(
                    *(name, len(self._steps[name])),
                    rms=float(np.sqrt(square / count)) / u,
                    explains=covariance / variance if varies else float("nan"),
                    first_order=float(np.sqrt(first_square / count)) / u,
                    median=float(np.median(sample)) / u if sample.size else 0.0,
                    nonfinite=nonfinite,
                    stagnant=stagnant,
                    turned=turned,
                )
            )
        return sorted(found, key=lambda row: -row.rms)

    def steps_of(self, rows: Sequence[Any]) -> list[ProgramStep]:
        """Return the operations of some expressions."""
        return [step for row in rows for step in self._steps.get(row, ())]
