"""How the real scalars of a program enter its operations: numbers that are the same for all elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from mcfsim.compile.program import Program, Register, Scalar, Step
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.operations import MOST_IN_PARTS
from mcfsim.kernels.plan import COMFORT, sum_within
from mcfsim.kernels.real_numbers import Scalars, described, enter, exact_or_binary64
from mcfsim.kernels.stand_ins import stand_in
from mcfsim.rounding import Rounding, Underflow


class Entering(StrEnum):
    """As what a real scalar enters an operation.

    ``value``: it is a value of the format, or is rounded to one by policy. ``short``: one whose products with
    values the carrier holds. ``carrier``, ``wide``: by its stand-in, a number of the format's carrier or of
    binary64. ``real``: as a binary64 number, and the operation carries what it loses along. ``parts``: as the
    sum of two binary64 numbers whose products with values are exact.
    """

    VALUE = "value"
    SHORT = "short"
    CARRIER = "carrier"
    WIDE = "wide"
    REAL = "real"
    PARTS = "parts"


@dataclass(frozen=True, eq=False)
class Use:
    """A real scalar as an operand.

    Attributes
    ----------
    name : str
        Of the number that the line is given.
    step : Step
    position : int
        Among the step's operands.
    """

    name: str
    step: Step
    position: int

    def number(self, scalars: Mapping[str, Any]) -> Any:
        """Return the real scalar."""
        operand = self.step.operands[self.position]
        if not isinstance(operand, Scalar):
            return operand
        return -scalars[operand.name] if operand.negative else scalars[operand.name]


def uses(program: Program) -> tuple[Use, ...]:
    """Return where a program takes real scalars, in its order."""
    found = [
        (step, position)
        for step in program.steps
        for position, operand in enumerate(step.operands)
        if not isinstance(operand, Register)
    ]
    return tuple(Use(f"s{number}", step, position) for number, (step, position) in enumerate(found))


def entering(use: Use, number: Any, policy: Scalars) -> tuple[Entering, tuple[float, ...]]:
    """Return as what a real scalar enters, and the numbers that stand for it.

    Raises
    ------
    UnsupportedFormatError
        If neither is it a value or has a stand-in, nor does binary64 hold it and what is lost of products
        with it.
    """
    step = use.step
    alone = sum(isinstance(x, Register) for x in step.operands) == len(step.operands) - 1
    # Zeros of either sign are equal.
    find = _entering if number else _entering.__wrapped__
    return find(step.operation, use.position, alone, step.result.format, step.rounding, number, policy)


@lru_cache(maxsize=1024, typed=True)  # most scalars of an optimizer's step are those of the step before
def _entering(
    operation: str, position: int, alone: bool, fmt: Format, rounding: Rounding, number: Any, policy: Scalars
) -> tuple[Entering, tuple[float, ...]]:
    """Return the same for an operation, whose other operands are all values if it is alone."""
    exact: Any = exact_or_binary64(number)
    flushes = rounding.underflow is Underflow.FLUSH_INPUTS
    if flushes:
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
        if abs(exact) < fmt.smallest_normal:
            exact = math.copysign(0.0, exact)
    entered: Any
    entered, real = enter(exact, fmt, rounding, policy)
    if alone:
        for carrier, way in ((carrier_of(fmt), Entering.CARRIER), (FLOAT64, Entering.WIDE)):
            # In a product a value may be its own stand-in, or its reciprocal have one.
            if real or (way is Entering.CARRIER and operation in ("mul", "div")):
                found = stand_in(operation, position, entered, fmt, rounding, carrier)
                if found is not None:
                    return way, (found,)
    if not real:
        factor = operation == "fma" and alone and position < 2 and not flushes
        short = factor and _is_short(entered, fmt, rounding)
        value = math.nan if entered != entered else float(entered)
        return Entering.SHORT if short else Entering.VALUE, (value,)
    least = 2.0**-COMFORT if operation in ("mul", "div", "sqrt", "fma") else 0.0
    far = math.isfinite(entered) and not least <= abs(entered) <= 2.0**COMFORT
    if isinstance(entered, Fraction) or far:
        raise UnsupportedFormatError(
            f"{operation} with {described(number)} is beyond what a compiled loop takes exactly"
        )
    if operation == "fma" and alone and position < 2 and fmt.precision <= MOST_IN_PARTS and entered:
        return Entering.PARTS, _parts(entered, 53 - fmt.precision)
    return Entering.REAL, (entered,)


def _is_short(number: Any, fmt: Format, rounding: Rounding) -> bool:
    """Return whether the carrier holds all products of a value with values, and what sums with them lose.

    Neither the last bit of a product leaves its range, nor does the largest one.
    """
    carrier = carrier_of(fmt)
    info = np.finfo(carrier)
    floating = type(fmt) is Format and 2 * fmt.precision <= info.nmant + 1
    summed = sum_within(fmt, rounding, carrier, values=False) is not None
    if not (floating and summed and math.isfinite(number) and number):
        return False
    exact = abs(Fraction(number))
    deep = exact * fmt.smallest_subnormal / Fraction(2) ** (int(info.minexp) - info.nmant)
    return deep.denominator == 1 and exact * fmt.max <= Fraction(float(info.max))


def _parts(number: float, bits: int) -> tuple[float, float]:
    """Return the upper bits of a number, and the others."""
    fraction, exponent = math.frexp(number)
    high = (
        math.ldexp(math.trunc(math.ldexp(fraction, bits)), exponent - bits)
        if math.isfinite(number)
        else number
    )
    return high, (number - high if math.isfinite(number) else 0.0)
