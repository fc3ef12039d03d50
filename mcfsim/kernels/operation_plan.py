"""How each operation of a format is carried out in binary32 and binary64, and why that is exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, holds, is_filled
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

#: Between 2 to this power and its inverse, products, quotients and what they lose stay normal in binary64.
COMFORT = 480
OPERATIONS = ("add", "sub", "mul", "div", "sqrt", "fma")
_BITS = 53


class Way(StrEnum):
    """How an operation is carried out, before the result is rounded into the format.

    ``native``: in the carrier, rounded by it. ``wide``: the same in binary64. ``exact``: in binary64, which
    holds the result. ``sticky``: in binary64 with what it lost, made odd. ``exact within`` and ``sticky
    within``: the same in the carrier (`sum_within`). ``refused``: not at all.
    """

    NATIVE = "native"
    WIDE = "wide"
    EXACT = "exact"
    STICKY = "sticky"
    EXACT_WITHIN = "exact within"
    STICKY_WITHIN = "sticky within"
    REFUSED = "refused"


class Entry(NamedTuple):
    """How an operation is carried out, and why the result is that of one rounding, or why it is refused."""

    way: Way
    why: str


@dataclass(frozen=True)
class OperationPlan:
    """How all operations are carried out.

    Attributes
    ----------
    values : dict of str to Entry
        By operation, where all operands are values of the format.
    reals : dict of str to Entry
        The same where one is another real scalar.
    """

    values: dict[str, Entry]
    reals: dict[str, Entry]


@lru_cache(maxsize=256)
def plan(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> OperationPlan:
    """Return how the operations of a format are carried out in a carrier.

    Parameters
    ----------
    fmt : Format
        Of operands and results.
    rounding : Rounding
        Where operands are flushed, they are so before, and results stay gradual.
    carrier : dtype
        That holds the format.

    Notes
    -----
    Rounding twice to nearest is as rounding once for ``q >= 2 p + 2`` (Figueroa 1995), where the first
    rounding's underflow stays out of play, ``minsub <= 2**(emin - 3 p + 1)``. What is rounded to odd in two
    bits more than are needed may be rounded again in every mode (Boldo and Melquiond 2008).
    """
    flushes = rounding.underflow is Underflow.FLUSH_INPUTS
    of_results = replace(rounding, underflow=Underflow.GRADUAL) if flushes else rounding
    comfortable = fmt.emin - fmt.precision + 1 >= -COMFORT and fmt.emax < COMFORT
    exact_product = 2 * fmt.precision <= _BITS
    sticky = {operation: _sticky(operation, fmt, rounding, comfortable) for operation in OPERATIONS}
    values, span = dict(sticky), fmt.emax - fmt.emin + fmt.precision + 1
    if span <= _BITS:
        values["add"] = Entry(Way.EXACT, f"binary64 holds every sum of values: {span} bits at most")
        values["sub"] = values["add"]
    if exact_product and values["mul"].way is not Way.REFUSED:
        why = f"binary64 holds every product of values: {2 * fmt.precision} bits at most"
        values["mul"] = Entry(Way.EXACT, why)
    for way, wider in ((Way.WIDE, FLOAT64), (Way.NATIVE, carrier)):
        if way is Way.NATIVE and is_filled(carrier, fmt) and rounding == Rounding():
            why = f"every {carrier} is a value of the format"
        elif innocuous(wider, fmt, of_results):
            bits = np.finfo(wider).nmant + 1
            why = f"{wider} has {bits} bits, 2p + 2 or more: to round again changes nothing"
        else:
            continue
        values |= dict.fromkeys(OPERATIONS[:-1], Entry(way, why))
    return OperationPlan(values, sticky)


def sum_within(
    fmt: Format, rounding: Rounding, carrier: np.dtype[Any], *, values: bool = True
) -> Entry | None:
    """Return how sums and differences of values are carried out in the carrier, if they can be.

    A shorter way than the plan's for whoever computes one element after another. The terms may also be other
    numbers of the carrier.
    """
    bits, span = np.finfo(carrier).nmant + 1, fmt.emax - fmt.emin + fmt.precision + 1
    if values and span <= bits:
        return Entry(Way.EXACT_WITHIN, f"{carrier} holds every sum of values: {span} bits at most")
    # A sum that leaves the carrier rounds as its largest number does, but at random.
    leaves = rounding.stochastic and fmt.emax == np.finfo(carrier).maxexp - 1
    if type(fmt) is Format and fmt.precision + rounding.guard_bits <= bits and not leaves:
        return Entry(Way.STICKY_WITHIN, f"{carrier} has the bits that decide, and loses no more of a sum")
    return None


def _sticky(operation: str, fmt: Format, rounding: Rounding, comfortable: bool) -> Entry:
    """Return how an operation is made exact in binary64 in every mode, or why it is not."""
    needed = fmt.precision + rounding.guard_bits
    if needed > _BITS:
        return Entry(
            Way.REFUSED,
            f"rounding to odd needs {rounding.guard_bits} bits more than its precision, and "
            "binary64 has none to spare",
        )
    if operation not in ("add", "sub") and not comfortable:
        return Entry(Way.REFUSED, "products and quotients of its extreme values leave the range of binary64")
    return Entry(Way.STICKY, f"rounded to odd, binary64 has the {needed} bits that decide")


def refusal(operation: str, fmt: Format, rounding: Rounding, why: str) -> UnsupportedFormatError:
    """Return the error of an operation that is refused."""
    return UnsupportedFormatError(
        f"{operation} in {fmt}, rounding {rounding.mode}, has no exact path: {why}; use backend='exact'"
    )


def innocuous(carrier: np.dtype[Any], fmt: Format, rounding: Rounding) -> bool:
    """Whether + - * / sqrt to nearest in the carrier, rounded again, give what one rounding would."""
    info = np.finfo(carrier)
    q, emin, emax = info.nmant + 1, int(info.minexp), int(info.maxexp) - 1
    precise = q >= 2 * fmt.precision + 2 and emin - q + 1 <= fmt.emin - 3 * fmt.precision + 1
    # An overflow of the carrier itself looks like an infinite operand, which is never made finite.
    overflow_is_infinite = rounding.overflow is Overflow.IEEE and fmt.has_nan
    roomy = 2 * (fmt.emax + 1) <= emax and fmt.emax + 1 - (fmt.emin - fmt.precision + 1) <= emax
    nearest = rounding.mode in (Mode.NEAREST_EVEN, Mode.NEAREST_AWAY)
    # What is flushed depends on the exact result, which the carrier may have rounded up to a normal number.
    nearest = nearest and rounding.underflow is Underflow.GRADUAL
    # Without a zero, what is smaller than the smallest number becomes that, and an underflow to zero NaN.
    smallest = min(2 * fmt.emin, fmt.emin - fmt.emax - 1)
    nonzero = fmt.zero or smallest >= emin - q + 1
    # Of the other kinds of format nothing is claimed.
    floating = type(fmt) is Format and holds(carrier, fmt)
    return floating and nearest and precise and nonzero and (overflow_is_infinite or roomy)
