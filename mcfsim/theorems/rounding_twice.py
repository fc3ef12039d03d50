"""Double rounding: an operation rounded once, and the same one rounded to a wider format first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mcfsim.formats import FORMATS, Format
from mcfsim.protocol import Value
from mcfsim.rounding import Mode, Rounding, Underflow
from mcfsim.theorems.counterexamples import quantum
from mcfsim.theorems.hypotheses import of_format
from mcfsim.theorems.statement import Hypothesis

Widening = Callable[[Format], Format]


# -- the two ways to a result -------------------------------------------------------------------------------
def wider(precision: Callable[[int], int]) -> Widening:
    """Return a function that widens a format to a precision and to a range without over- or underflow."""

    def widen(fmt: Format) -> Format:
        reach = 2 * max(fmt.emax + 1, -quantum(fmt)) + 1
        return Format("", precision=precision(fmt.precision), emin=-reach, emax=reach)

    return widen


def twice(
    operation: str, widening: Widening, mode: Mode | None = None, underflow: Underflow = Underflow.GRADUAL
) -> Callable[..., tuple[Value, Value]]:
    """Return the algorithm that computes an operation both rounded once and through a wider format.

    Parameters
    ----------
    operation : str
        A method of `mcfsim.protocol.Arithmetic`.
    widening : callable
        Returns the wider format for a format.
    mode, underflow : optional
        Mode and underflow policy of the first rounding. By default, its mode is that of the second.

    Returns
    -------
    callable
        ``algorithm(ar, *operands)``, which returns both results.
    """

    def algorithm(ar: Any, *operands: Value) -> tuple[Value, Value]:
        first = replace(ar.rounding, mode=mode or ar.rounding.mode, underflow=underflow)
        once = _once(ar, operation, operands, to_odd=mode is Mode.TO_ODD)
        return once, ar.round(_operate(ar.like(widening(ar.format), first), operation, operands))

    return algorithm


def _once(ar: Any, operation: str, operands: tuple[Value, ...], *, to_odd: bool) -> Value:
    """Return the result rounded once, computed in another way than the one under test.

    To nearest, the emulator itself rounds through a carrier. So the exact result is rounded to odd first. If
    rounding to odd is itself under test, the emulator is used.
    """
    if to_odd:
        return getattr(ar, operation)(*operands)
    odd = ar.like(wider(lambda p: p + 2)(ar.format), replace(ar.rounding, mode=Mode.TO_ODD))
    return ar.round(_operate(odd, operation, operands))


def _operate(ar: Any, operation: str, operands: tuple[Value, ...]) -> Value:
    entered = [ar.round(x) for x in operands]
    if operation == "fma" and ar.format == FORMATS["float64"]:
        # The emulator has no fma there, but the product of narrow numbers is exact.
        a, b, c = entered
        return ar.add(ar.mul(a, b), c)
    return getattr(ar, operation)(*entered)


# -- what a carrier must have -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Need:
    """What a carrier must have so that rounding an operation in it, then again, is like rounding once.

    Attributes
    ----------
    bits : callable
        Returns the least precision of the carrier, for a format.
    quantum : callable
        Returns the largest exponent that the smallest subnormal number of the carrier may have.
    largest : callable
        Returns the exponent of the largest result. A carrier must have it if the format has no NaN: an
        overflow saturates in the format, but not in the carrier.
    formulas : tuple of str
        All three as text, in p, emin and emax of the format.
    """

    bits: Callable[[Format], int]
    quantum: Callable[[Format], int]
    largest: Callable[[Format], int]
    formulas: tuple[str, str, str]


#: The bits of the first four are those of Figueroa and Roux. Near underflow, a sum is a multiple of the
#: smallest subnormal number; a product near a midpoint of subnormals has no bits further than 2p below; a
#: quotient is at least a share 2**-p away from one; a root keeps all its bits. An fma is a multiple of the
#: smallest subnormal number, and fits while in range, or its product is so small beside c that no midpoint is
#: near.
NEEDS = {
    "add": Need(
        lambda f: 2 * f.precision + 1, quantum, lambda f: f.emax + 1, ("2p + 1", "emin - p + 1", "emax + 1")
    ),
    "mul": Need(
        lambda f: 2 * f.precision,
        lambda f: f.emin - 3 * f.precision + 1,
        lambda f: 2 * f.emax + 1,
        ("2p", "emin - 3p + 1", "2 emax + 1"),
    ),
    "div": Need(
        lambda f: 2 * f.precision,
        lambda f: f.emin - 2 * f.precision + 1,
        lambda f: f.emax - quantum(f),
        ("2p", "emin - 2p + 1", "emax - emin + p - 1"),
    ),
    "sqrt": Need(
        lambda f: 2 * f.precision + 2,
        lambda f: quantum(f) // 2 - 2 * f.precision - 1,
        lambda f: f.emax // 2,
        ("2p + 2", "floor((emin - p + 1)/2) - 2p - 1", "floor(emax/2)"),
    ),
    "fma": Need(
        lambda f: max(3 * f.precision + 3, f.emax + 1 - quantum(f)),
        lambda f: f.emin - 3 * f.precision + 1,
        lambda f: max(2 * f.emax + 1, f.emax) + 1,
        ("max(3p + 3, emax - emin + p)", "emin - 3p + 1", "max(2 emax + 1, emax) + 1"),
    ),
}


#: What a carrier must have to have all values of the format.
_VALUES = Need(lambda f: f.precision, quantum, lambda f: f.emax, ("p", "emin - p + 1", "emax"))


def suffices(operation: str, carrier: Format) -> Hypothesis:
    """Suppose that a carrier has the bits and the range that an operation needs."""
    need = NEEDS[operation]
    return _supposed(carrier, need, f", and {need.formulas[2]} if there is no NaN")


def held(carrier: Format) -> Hypothesis:
    """Suppose that a carrier has all values of the format."""
    return _supposed(carrier, _VALUES)


def _supposed(carrier: Format, need: Need, also: str = "") -> Hypothesis:
    def test(fmt: Format, _: Rounding) -> bool:
        enough = need.bits(fmt) <= carrier.precision and quantum(carrier) <= need.quantum(fmt)
        in_range = fmt.has_nan or need.largest(fmt) <= carrier.emax
        return enough and in_range and fmt.emax <= carrier.emax

    bits, least, _ = need.formulas
    text = f"{bits} <= {carrier.precision}, {quantum(carrier)} <= {least}, emax <= {carrier.emax}{also}"
    return of_format(text, test)
