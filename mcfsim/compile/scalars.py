"""How the real scalars of a program enter its operations: numbers that are the same for all elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mcfsim.compile.program import Program, ProgramStep, Register, Scalar
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.operations import MOST_IN_PARTS
from mcfsim.kernels.operation_plan import COMFORT, sum_within
from mcfsim.kernels.real_numbers import Scalars, changed_real, described, enter, exact_or_binary64
from mcfsim.kernels.stand_ins import stand_in
from mcfsim.rounding import Rounding, Underflow

#: Operations that change at most a sign, and rounding: what they make of a number is known without a line.
ON_SIGNS = ("neg", "abs", "sign", "round")


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
    step: ProgramStep
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


def entering(
    use: Use, number: Any, policy: Scalars, *, search: bool = True
) -> tuple[Entering, tuple[float, ...]]:
    """Return as what a real scalar enters, and the numbers that stand for it.

    Parameters
    ----------
    use : Use
    number : real number
        Of ``neg``, ``abs``, ``sign`` and ``round`` it enters as what they make of it.
    policy : {"exact", "rounded"}
    search : bool, optional
        Whether to look for a stand-in though there are other ways, which takes longer than a few elements.

    Raises
    ------
    UnsupportedFormatError
        If neither is it a value or has a stand-in, nor does binary64 hold it and what is lost of products
        with it.
    """
    # Zeros of either sign are equal, and NaN that signal have no hash.
    kept = number and not (isinstance(number, Decimal) and number.is_snan())
    find = _entering if kept else _entering.__wrapped__
    return find(*_about(use), number, policy, search)


def numbers_by(use: Use, number: Any, policy: Scalars, way: Entering) -> tuple[float, ...] | None:
    """Return the numbers that stand for a real scalar which is to enter in a given way; None if it does not.

    Many a scalar may enter in several ways, of which `entering` chooses the cheapest.
    """
    return _Entered.of(*_about(use), number, policy).by(way)


def _about(use: Use) -> tuple[str, int, bool, Format, Rounding]:
    """Return operation, position, whether the other operands are all values, format and rounding."""
    step = use.step
    alone = sum(isinstance(x, Register) for x in step.operands) == len(step.operands) - 1
    return step.operation, use.position, alone, step.result.format, step.rounding


@lru_cache(maxsize=1024, typed=True)  # most scalars of an optimizer's step are those of the step before
def _entering(
    operation: str, position: int, alone: bool, fmt: Format, rounding: Rounding, number: Any,
    policy: Scalars, search: bool,
) -> tuple[Entering, tuple[float, ...]]:  # fmt: skip
    entered = _Entered.of(operation, position, alone, fmt, rounding, number, policy)
    # In a product a value may be its own stand-in, or its reciprocal have one.
    stand_ins = [Entering.CARRIER] if entered.real or operation in ("mul", "div") else []
    others = [Entering.PARTS, Entering.REAL] if entered.real else [Entering.SHORT, Entering.VALUE]
    stand_ins += [Entering.WIDE] if entered.real else []
    for way in stand_ins + others if search else others + stand_ins:
        if (found := entered.by(way)) is not None:
            return way, found
    raise UnsupportedFormatError(
        f"{operation} with {described(number)} is beyond what a compiled loop takes exactly"
    )


class _Entered(NamedTuple):
    """A real scalar at its place in an operation, inputs flushed; `real` if it is no value of the format."""

    operation: str
    position: int
    alone: bool
    format: Format
    rounding: Rounding
    flushes: bool
    number: Any
    real: bool

    @classmethod
    def of(
        cls, operation: str, position: int, alone: bool, fmt: Format, rounding: Rounding, number: Any,
        policy: Scalars,
    ) -> _Entered:  # fmt: skip
        if operation in ON_SIGNS:
            changed = changed_real(operation, number, fmt, rounding, policy)
            return cls(operation, position, alone, fmt, rounding, False, changed, False)
        exact: Any = exact_or_binary64(number)
        flushes = rounding.underflow is Underflow.FLUSH_INPUTS
        if flushes:
            rounding = replace(rounding, underflow=Underflow.GRADUAL)
            if abs(exact) < fmt.smallest_normal:
                exact = math.copysign(0.0, exact)
        return cls(operation, position, alone, fmt, rounding, flushes, *enter(exact, fmt, rounding, policy))

    def by(self, way: Entering) -> tuple[float, ...] | None:
        """Return the numbers by which it enters in a way; None if it does not."""
        number, factor = self.number, self.operation == "fma" and self.alone and self.position < 2
        if way in (Entering.CARRIER, Entering.WIDE):
            carrier = carrier_of(self.format) if way is Entering.CARRIER else FLOAT64
            given = self.operation, self.position, number, self.format, self.rounding, carrier
            found = stand_in(*given) if self.alone else None
            return None if found is None else (found,)
        if way in (Entering.VALUE, Entering.SHORT):
            short = factor and not self.flushes and _is_short(number, self.format, self.rounding)
            value = math.nan if number != number else float(number)
            return None if self.real or (way is Entering.SHORT and not short) else (value,)
        if isinstance(number, Fraction):
            return None
        least = 2.0**-COMFORT if self.operation in ("mul", "div", "sqrt", "fma") else 0.0
        if number and math.isfinite(number) and not least <= abs(number) <= 2.0**COMFORT:
            return None
        if way is Entering.REAL:
            return (number,)
        parted = factor and self.format.precision <= MOST_IN_PARTS and number
        return _parts(number, 53 - self.format.precision) if parted else None


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
