"""Encodings by which a program's real scalars, the same for all elements, enter its operations.

By the policy ``float32`` an operation with a real scalar is carried out in binary32, as PyTorch does it:
`by_policy` makes this steps of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mcfsim.compile.program import Operand, Program, ProgramStep, Register, Use
from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, carrier_of
from mcfsim.kernels.element.operations import MOST_IN_PARTS
from mcfsim.kernels.elementary import FUNCTIONS, function_entry, nearest_value, odd_value
from mcfsim.kernels.operation_plan import COMFORT, OPERATIONS, SELECTING, Way, refusal, sum_within
from mcfsim.kernels.real_numbers import (
    SINGLE,
    Scalars,
    changed_real,
    described,
    enter,
    exact_or_binary64,
    is_value_of,
    is_widened,
    round_real,
)
from mcfsim.kernels.stand_ins import stand_in
from mcfsim.protocol import RoundedNumber
from mcfsim.random import Words
from mcfsim.rounding import Rounding, Underflow

#: Operations that change at most a sign, and rounding: their result for a number is known without a line.
ON_SIGNS = ("neg", "abs", "sign", "round")


class ScalarEncoding(StrEnum):
    """The encoding by which a real scalar enters an operation.

    ``value``: it is a value of the format, or is rounded to one by policy. ``short``: such a value whose
    products with values the carrier holds. ``carrier``, ``wide``: by its stand-in, a number of the format's
    carrier or of binary64. ``real``: as a binary64 number, in an operation that keeps its rounding error.
    ``parts``: as the sum of two binary64 numbers whose products with values are exact.
    """

    VALUE = "value"
    SHORT = "short"
    CARRIER = "carrier"
    WIDE = "wide"
    REAL = "real"
    PARTS = "parts"


def is_result(x: Any, fmt: Format) -> bool:
    """Return whether a number is the result of an operation on numbers alone, and a value of the format."""
    return type(x) is RoundedNumber and is_value_of(x, fmt)


def encoding(
    use: Use, number: Any, policy: Scalars, *, search: bool = True
) -> tuple[ScalarEncoding, tuple[float, ...]]:
    """Return the encoding of a real scalar and the numbers that stand for it.

    Parameters
    ----------
    use : Use
    number : real number
        For ``neg``, ``abs``, ``sign``, ``round`` and elementary functions it enters as their result.
    policy : {"exact", "rounded", "float32"}
        By ``float32``, `use` must belong to a program of `by_policy`.
    search : bool, optional
        Whether to look for a stand-in even if there are other ways; that costs more than a few elements do.

    Raises
    ------
    UnsupportedFormatError
        If it is no value and has no stand-in, and binary64 does not hold both it and the errors of products
        with it.
    """
    # Zeros of either sign are equal, and signalling NaNs have no hash.
    kept = number and not (isinstance(number, Decimal) and number.is_snan())
    find = _entering if kept else _entering.__wrapped__
    return find(use.about, number, policy, search)


def numbers_by(use: Use, number: Any, policy: Scalars, way: ScalarEncoding) -> tuple[float, ...] | None:
    """Return the numbers that stand for a real scalar in a given encoding; None if that does not suit it.

    Many scalars have several encodings; `encoding` chooses the cheapest.
    """
    return _Entered.of(use.about, number, policy).by(way)


@lru_cache(maxsize=1024, typed=True)  # most scalars of an optimizer's step are those of the step before
def _entering(
    about: tuple[str, int, bool, Format, Rounding], number: Any, policy: Scalars, search: bool
) -> tuple[ScalarEncoding, tuple[float, ...]]:
    entered, operation = _Entered.of(about, number, policy), about[0]
    # In a product a value may be its own stand-in; in a quotient its reciprocal may have one.
    stand_ins = [ScalarEncoding.CARRIER] if entered.real or operation in ("mul", "div") else []
    others = [ScalarEncoding.SHORT, ScalarEncoding.VALUE]
    if entered.real:
        stand_ins, others = [*stand_ins, ScalarEncoding.WIDE], [ScalarEncoding.PARTS, ScalarEncoding.REAL]
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
    def of(cls, about: tuple[str, int, bool, Format, Rounding], number: Any, policy: Scalars) -> _Entered:
        operation, *_, fmt, rounding = about
        if operation in ON_SIGNS:
            return cls(*about, False, changed_real(operation, number, fmt, rounding, policy), False)
        if operation in FUNCTIONS:
            return cls(*about, False, function_of_real(operation, number, fmt, rounding, policy), False)
        exact: Any = exact_or_binary64(number)
        if is_widened(fmt, policy):
            assert operation in SELECTING  # `by_policy` has replaced all others
            exact = round_real(exact, SINGLE, Rounding())
        if operation in SELECTING:  # a rounded number compares with values as the number does
            value, real = enter(exact, fmt, rounding, "exact" if rounding.stochastic else "rounded")
            if real:
                raise UnsupportedFormatError(
                    f"{operation}, rounded at random, of {described(number)}, which is no value of {fmt}: "
                    "bring it in with .round(x) first"
                )
            return cls(*about, False, value, False)
        flushes = rounding.underflow is Underflow.FLUSH_INPUTS
        if flushes and abs(exact) < fmt.smallest_normal:
            exact = math.copysign(0.0, exact)
        rounding = rounding.of_results
        return cls(*about[:4], rounding, flushes, *enter(exact, fmt, rounding, policy))

    def by(self, way: ScalarEncoding) -> tuple[float, ...] | None:
        """Return the numbers that stand for it in an encoding; None if that does not suit it."""
        number, factor = self.number, self.operation == "fma" and self.alone and self.position < 2
        if way in (ScalarEncoding.CARRIER, ScalarEncoding.WIDE):
            carrier = carrier_of(self.format) if way is ScalarEncoding.CARRIER else FLOAT64
            given = self.operation, self.position, number, self.format, self.rounding, carrier
            found = stand_in(*given) if self.alone else None
            return None if found is None else (found,)
        if way in (ScalarEncoding.VALUE, ScalarEncoding.SHORT):
            short = factor and not self.flushes and _is_short(number, self.format, self.rounding)
            value = math.nan if number != number else float(number)
            return None if self.real or (way is ScalarEncoding.SHORT and not short) else (value,)
        if isinstance(number, Fraction):
            return None
        least = 2.0**-COMFORT if self.operation in ("mul", "div", "sqrt", "fma") else 0.0
        if number and math.isfinite(number) and not least <= abs(number) <= 2.0**COMFORT:
            return None
        if way is ScalarEncoding.REAL:
            return (number,)
        parted = factor and self.format.precision <= MOST_IN_PARTS and number
        return _parts(number, 53 - self.format.precision) if parted else None


def _is_short(number: Any, fmt: Format, rounding: Rounding) -> bool:
    """Return whether the carrier holds all products of a number with values, and the errors of their sums.

    Neither the last bit of a product nor the largest product leaves the carrier's range.
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
    """Split a number into its upper bits and the rest."""
    if not math.isfinite(number):
        return number, 0.0
    fraction, exponent = math.frexp(number)
    high = math.ldexp(math.trunc(math.ldexp(fraction, bits)), exponent - bits)
    return high, number - high


def function_of_real(
    name: str,
    x: Any,
    fmt: Format,
    rounding: Rounding,
    scalars: Scalars,
    words: Callable[[], Words | None] = lambda: None,
) -> float:
    """Return an elementary function of a real scalar, rounded once: a value of the format.

    By policy ``float32`` its value in binary32 is rounded into the format; no small operand is flushed there.

    Parameters
    ----------
    name : str
        A name in `mcfsim.kernels.elementary.FUNCTIONS`.
    x, fmt, rounding, scalars, words
        As for `mcfsim.kernels.real_numbers.changed_real`.

    Raises
    ------
    UnsupportedFormatError
        If binary64 lacks the bits that decide.
    """
    way, why = function_entry(fmt, rounding)
    if way is Way.REFUSED:
        raise refusal(name, fmt, rounding, why)
    exact: Any = exact_or_binary64(x)
    flushes, rounding = rounding.underflow is Underflow.FLUSH_INPUTS, rounding.of_results
    if is_widened(fmt, scalars):
        return round_real(function_of_real(name, x, SINGLE, Rounding(), scalars), fmt, rounding, words())
    if flushes and abs(exact) < fmt.smallest_normal:
        exact = math.copysign(0.0, exact)
    entered, _ = enter(exact, fmt, rounding, scalars)
    if way is Way.NATIVE:
        return nearest_value(name, entered)
    return round_real(odd_value(name, entered), fmt, rounding, words())


# -- operations carried out in binary32 -------------------------------------------------------------------
_NEAREST, _FLUSHING = Rounding(), Rounding(underflow=Underflow.FLUSH_INPUTS)


def by_policy(program: Program, scalars: Scalars) -> Program:
    """Return a program as `encoding` takes it by a policy for its real scalars.

    By ``float32`` its operations with real scalars are carried out in binary32, to nearest even. Their
    results are rounded into their own formats, by their own roundings and random words. If the rounding
    flushes operands, values are flushed first; a real scalar, an operand in binary32, is not. Real scalars
    and draws keep their order. Operations on signs, roundings, functions and selections stay as they are:
    `encoding` applies the policy to their real scalars.
    """
    if scalars != "float32":
        return program
    steps: list[ProgramStep] = []
    brought: dict[tuple[Register, bool], Register] = {}

    def rounded(x: Register, fmt: Format, rounding: Rounding) -> Register:
        result = Register(f"{x}_{fmt}", fmt)
        steps.append(ProgramStep("round", rounding, (x,), result))
        return result

    def bring(x: Operand, flushes: bool) -> Operand:
        if not isinstance(x, Register):
            return x
        if (x, flushes) not in brought:
            value = rounded(x, x.format, _FLUSHING) if flushes else x
            brought[x, flushes] = rounded(value, SINGLE, _NEAREST)
        return brought[x, flushes]

    for step in program.steps:
        has_scalars = len(step.registers) < len(step.operands)
        if not (has_scalars and step.operation in OPERATIONS and is_widened(step.result.format, "float32")):
            steps.append(step)
            continue
        flushes = step.rounding.underflow is Underflow.FLUSH_INPUTS
        operands = tuple(bring(x, flushes) for x in step.operands)
        made = Register(f"{step.result}_{SINGLE}", SINGLE)
        steps.append(replace(step, rounding=_NEAREST, operands=operands, result=made, draw=None))
        steps.append(replace(step, operation="round", rounding=step.rounding.of_results, operands=(made,)))
    return replace(program, steps=tuple(steps))
