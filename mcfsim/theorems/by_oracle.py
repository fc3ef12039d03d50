"""Cases of a statement run by the oracle, an operation and a number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.oracle import OracleArithmetic
from mcfsim.theorems.judge import blaming, structured
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.sealed_blocks import Sealed
from mcfsim.theorems.statement import Theorem
from mcfsim.theorems.trial import Block, Trial, flat


def results_of(theorem: Theorem, truth: OracleArithmetic, case: list[float]) -> list[float]:
    """Return what the algorithm gives for a case, component by component.

    Raises
    ------
    ValueError
        If it raises an exception, which is the cause.
    """
    with blaming(theorem, "the algorithm, run by the oracle,"):
        return [float(x) for x in flat(theorem.algorithm(truth, *structured(theorem.operands, case)))]


def trial_of(
    theorem: Theorem, truth: OracleArithmetic, cases: list[list[float]], results: list[list[float]]
) -> Trial:
    """Return cases and their results, one a row, as predicates see them: a block a component."""
    carrier = carrier_of(truth.format)
    blocks, made = (
        [np.array(column, dtype=carrier) for column in zip(*rows, strict=True)] for rows in (cases, results)
    )
    names = tuple(operand.name for operand in theorem.operands)
    in_blocks: Any = _InBlocks(truth)
    given, sealed = Sealed(blocks), Sealed(made)
    operands = structured(theorem.operands, given.blocks)
    return Trial(in_blocks, names, operands, tuple(sealed.blocks), (given, sealed))


def is_of_kind(operand: OperandSpec, words: Any, fmt: Format) -> bool:
    """Return whether values of a format are an operand of its kind."""
    if not operand.paired:
        return True
    high, low = words
    if operand.kind == "double word":
        return bool(OracleArithmetic(fmt).add(high, low) == high)
    exponent = max(math.frexp(high)[1] - 1, fmt.emin)
    return bool(abs(low) <= math.ldexp(1.0, exponent - fmt.precision) if high else low == 0)


class _InBlocks:
    """The oracle on blocks, a number at a time: the arithmetic that predicates may ask."""

    def __init__(self, truth: OracleArithmetic) -> None:
        self._truth, self.format, self.rounding = truth, truth.format, truth.rounding

    def __getattr__(self, operation: str) -> Callable[..., Block]:
        return np.vectorize(getattr(self._truth, operation), otypes=[carrier_of(self.format)])
