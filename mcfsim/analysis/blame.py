"""Blame: how much of a function's error each expression causes, summed up over blocks of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.analysis.attribution import Attribution
from mcfsim.analysis.expressions import Expression
from mcfsim.analysis.secants import flipped
from mcfsim.compile.program import Program, ProgramStep, Register
from mcfsim.kernels.real_numbers import as_float

Array = NDArray[np.float64]
#: The label of the rounding of inputs, where that is part of the question.
INPUTS = "the rounding of inputs"


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
        Covariance of its share with the error over the variance of the error, both relative; over all
        expressions they add up to 1. An expression whose share others cancel explains little.
    first_order : float
        The rms as derivatives give it.
    median : float
        Median of the magnitude of its share, relative and in units of u, over the first inputs.
    nonfinite, stagnant, turned : int
        Inputs for which an infinity or NaN first appears here; sums of it that return one term although the
        other is not zero; and choices that take the other value than with exact operands.
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


@dataclass
class _Sums:
    """Sums over inputs for one row: of share, its square, its product with the error, and of first order."""

    share: float = 0.0
    square: float = 0.0
    product: float = 0.0
    first_square: float = 0.0
    nonfinite: int = 0
    stagnant: int = 0
    turned: int = 0
    sample: Array = field(default_factory=lambda: np.zeros(0))


class Blame:
    """Sums over all blocks of inputs, for each expression of a program.

    Parameters
    ----------
    program : Program
        As `mcfsim.analysis.expressions.recorded_function` returns it.
    """

    def __init__(self, program: Program) -> None:
        self._row_of: dict[Register, Any] = dict.fromkeys(program.inputs, INPUTS)
        self._row_of |= {step.result: step.text.row for step in program.steps}  # type: ignore[attr-defined]
        self._steps: dict[Any, list[ProgramStep]] = {}
        for step in program.steps:
            self._steps.setdefault(step.text.row, []).append(step)  # type: ignore[attr-defined]
        self._sums: dict[Any, _Sums] = {}
        self._count, self._error, self._square = 0, 0.0, 0.0
        self._program = program

    def add(self, found: Attribution) -> None:
        """Add a block of inputs; those without a finite, nonzero exact result have no relative shares."""
        with np.errstate(all="ignore"):
            scale = np.abs(found.exact)
            usable = np.isfinite(found.error) & np.isfinite(scale) & (scale > 0)
            relative = np.where(usable, found.error / np.where(usable, scale, 1.0), 0.0)
            by_row: dict[Any, Any] = {}
            for x, share in found.shares():
                row = self._row_of[x]
                by_row[row] = by_row[row] + share if row in by_row else share
            first = self._first_order(found)
            self._count += int(usable.sum())
            self._error += float(relative.sum())
            self._square += float(np.square(relative).sum())
            sampled = not any(x.sample.size for x in self._sums.values())
            for row, share in by_row.items():
                sums = self._sums.setdefault(row, _Sums())
                part = np.where(usable, share / np.where(usable, scale, 1.0), 0.0)
                sums.share += float(part.sum())
                sums.square += float(np.square(part).sum())
                sums.product += float((part * relative).sum())
                ahead = np.where(usable, first.get(row, 0.0) / np.where(usable, scale, 1.0), 0.0)
                sums.first_square += float(np.square(ahead).sum())
                if sampled:
                    sums.sample = np.abs(part[usable])
            self._watch(found)

    def _first_order(self, found: Attribution) -> dict[Any, Any]:
        by_row: dict[Any, Any] = {}
        for x, factor in found.sensitivities.items():
            local = found.run.errors.get(x, found.input_errors.get(x))
            if local is not None:
                row, share = self._row_of[x], factor * local
                by_row[row] = by_row[row] + share if row in by_row else share
        return by_row

    def _watch(self, found: Attribution) -> None:
        """Note where infinities and NaN appear first, where sums stagnate, and which choices turned."""
        values, bad = found.run.values, np.zeros(found.computed.shape, np.bool_)
        for step in self._program.steps:
            sums = self._sums.setdefault(self._row_of[step.result], _Sums())
            result = values[step.result]
            if not np.isfinite(np.sum(result)):  # one pass, for what hardly any block has
                now = ~np.isfinite(result) & ~bad
                sums.nonfinite += int(np.count_nonzero(now))
                bad |= now
            if step.operation in ("add", "sub"):
                a, b = (self._number(x, values) for x in step.operands)
                b = -b if step.operation == "sub" else b
                own = found.run.errors[step.result]
                # Where something was lost, the other term is not zero.
                kept = ((result == a) | (result == b)) & (own != 0)
                sums.stagnant += int(np.count_nonzero(kept))
            if step.operation == "choose":
                h = [self._number(x, values) for x in step.operands]
                d = [found.errors[x] if isinstance(x, Register) else 0.0 for x in step.operands]
                sums.turned += int(np.count_nonzero(flipped(h, d)[0]))

    @staticmethod
    def _number(x: Any, values: Mapping[Register, Array]) -> Any:
        return values[x] if isinstance(x, Register) else as_float(x)

    def rows(self, u: float) -> list[BlameRow]:
        """Return the rows, those of the largest share first.

        Parameters
        ----------
        u : float
            The unit roundoff of the format.
        """
        count = max(1, self._count)
        variance = self._square / count - (self._error / count) ** 2
        found = []
        for row, sums in self._sums.items():
            covariance = sums.product / count - sums.share / count * self._error / count
            found.append(
                BlameRow(
                    expression=row,
                    operations=len(self._steps.get(row, ())),
                    rms=float(np.sqrt(sums.square / count)) / u,
                    explains=covariance / variance if variance > 0 else float("nan"),
                    first_order=float(np.sqrt(sums.first_square / count)) / u,
                    median=float(np.median(sums.sample)) / u if sums.sample.size else 0.0,
                    nonfinite=sums.nonfinite,
                    stagnant=sums.stagnant,
                    turned=sums.turned,
                )
            )
        return sorted(found, key=lambda row: -row.rms)

    def steps_of(self, rows: Sequence[Any]) -> list[ProgramStep]:
        """Return the operations of some expressions."""
        return [step for row in rows for step in self._steps.get(row, ())]
