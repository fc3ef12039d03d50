"""Plans for performing each operation of a format in binary32 and binary64, and why they are exact."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mcfsim.formats import Format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, holds, is_filled
from mcfsim.rounding import NEAREST, Mode, Overflow, Rounding, Underflow

#: Between 2 to this power and its inverse, products, quotients and their errors stay normal in binary64.
COMFORT = 480
OPERATIONS = ("add", "sub", "mul", "div", "sqrt", "fma")
#: Operations that return one of their operands.
SELECTING = ("maximum", "minimum", "choose")
_BITS = 53


class Way(StrEnum):
    """The way to perform an operation, before its result is rounded into the format.

    ``native``: in the carrier, rounded by it. ``wide``: the same in binary64. ``exact``: in binary64, which
    holds the result. ``sticky``: in binary64, rounded to odd by its residual. ``exact within`` and ``sticky
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
    """The way of an operation, and why its result is that of one rounding, or why it is refused."""

    way: Way
    why: str


@dataclass(frozen=True)
class OperationPlan:
    """The ways of all operations of a format.

    Attributes
    ----------
    values : dict of str to Entry
        By operation, if all operands are values of the format.
    reals : dict of str to Entry
        By operation, if one operand is another real scalar.
    """

    values: dict[str, Entry]
    reals: dict[str, Entry]


@lru_cache(maxsize=256)
def plan(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> OperationPlan:
    """Return the plan for the operations of a format in a carrier.

    Parameters
    ----------
    fmt : Format
        The format of operands and results.
    rounding : Rounding
        If operands are flushed, that is done beforehand, and results underflow gradually.
    carrier : dtype
        A dtype that holds the format.

    Notes
    -----
    Rounding twice to nearest equals rounding once for ``q >= 2 p + 2`` (Figueroa 1995), if the underflow of
    the first rounding has no effect, ``minsub <= 2**(emin - 3 p + 1)``. A result rounded to odd with two bits
    more than needed may be rounded again in every mode (Boldo and Melquiond 2008).
    """
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
        if way is Way.NATIVE and is_filled(carrier, fmt) and rounding.standard:
            why = f"every {carrier} is a value of the format"
        elif innocuous(wider, fmt, rounding.of_results):
            bits = np.finfo(wider).nmant + 1
            why = f"{wider} has {bits} bits, 2p + 2 or more: to round again changes nothing"
        else:
            continue
        values |= dict.fromkeys(OPERATIONS[:-1], Entry(way, why))
    return OperationPlan(values, sticky)


def sum_within(
    fmt: Format, rounding: Rounding, carrier: np.dtype[Any], *, values: bool = True
) -> Entry | None:
    """Return the way of sums and differences of values in the carrier, or None if there is none.

    In code that computes one element after another, it takes fewer operations than the plan's way. With
    `values` false, the terms may also be other numbers of the carrier.
    """
    bits, span = np.finfo(carrier).nmant + 1, fmt.emax - fmt.emin + fmt.precision + 1
    if values and span <= bits:
        return Entry(Way.EXACT_WITHIN, f"{carrier} holds every sum of values: {span} bits at most")
    # A sum beyond the carrier's range rounds as its largest number does, except in stochastic rounding.
    leaves = rounding.stochastic and fmt.emax == np.finfo(carrier).maxexp - 1
    if type(fmt) is Format and fmt.precision + rounding.guard_bits <= bits and not leaves:
        return Entry(Way.STICKY_WITHIN, f"{carrier} has the bits that decide, and loses no more of a sum")
    return None


def _sticky(operation: str, fmt: Format, rounding: Rounding, comfortable: bool) -> Entry:
    """Return the way to make an operation exact in binary64 in every mode, or its refusal."""
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


def selecting_entry(operation: str, rounding: Rounding) -> Entry:
    """Return the way of an operation that returns one of its operands, or why it is refused."""
    if operation == "choose" and rounding.underflow is not Underflow.GRADUAL:
        return Entry(Way.REFUSED, "where small differences are flushed, their sign does not compare numbers")
    return Entry(Way.EXACT, "it returns one of its operands")


def refusal(operation: str, fmt: Format, rounding: Rounding, why: str) -> UnsupportedFormatError:
    """Return the error for a refused operation."""
    return UnsupportedFormatError(
        f"{operation} in {fmt}, rounding {rounding.mode}, has no exact path: {why}; use backend='exact'"
    )


def integers_as_binary64(fmt: Format, rounding: Rounding) -> bool:
    """Return whether a format rounds integers beyond ``2**53`` as binary64 does."""
    alike = type(fmt) is Format and fmt.precision == _BITS and fmt.emin <= _BITS
    return alike and rounding.mode is Mode.NEAREST_EVEN


def innocuous(carrier: np.dtype[Any], fmt: Format, rounding: Rounding) -> bool:
    """Return whether + - * / sqrt to nearest in the carrier, rounded again, equal one rounding."""
    info = np.finfo(carrier)
    q, emin, emax = info.nmant + 1, int(info.minexp), int(info.maxexp) - 1
    precise = q >= 2 * fmt.precision + 2 and emin - q + 1 <= fmt.emin - 3 * fmt.precision + 1
    # An overflow of the carrier itself looks like an infinite operand, which is never made finite.
    overflow_is_infinite = rounding.overflow is Overflow.IEEE and fmt.has_nan
    roomy = 2 * (fmt.emax + 1) <= emax and fmt.emax + 1 - (fmt.emin - fmt.precision + 1) <= emax
    nearest = rounding.mode in NEAREST
    # Flushing depends on the exact result, which the carrier may have rounded up to a normal number.
    nearest = nearest and rounding.underflow is Underflow.GRADUAL
    # In a format without zero, smaller numbers become the smallest number, and an underflow to zero NaN.
    smallest = min(2 * fmt.emin, fmt.emin - fmt.emax - 1)
    nonzero = fmt.zero or smallest >= emin - q + 1
    # Nothing is claimed for other kinds of format.
    floating = type(fmt) is Format and holds(carrier, fmt)
    return floating and nearest and precise and nonzero and (overflow_is_infinite or roomy)
