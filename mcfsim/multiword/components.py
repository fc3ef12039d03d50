"""A real number as the sum of values of one format, and which formats have such sums."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mcfsim.checks.arguments import check_int
from mcfsim.checks.processor import check_processor
from mcfsim.codec import encode, ulp
from mcfsim.formats import Format, Parity, digits
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import round_real, to_fraction
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding


def expand(ar: Arithmetic, value: Any, n: int) -> tuple[Any, ...]:
    """Return the real number ``value`` as n components: each is the rest, rounded to nearest even.

    Parameters
    ----------
    ar : Arithmetic
        Its format takes the components, whatever its own rounding. An arithmetic without a format gives the
        number and n - 1 zeros.
    value : float, int, Fraction, Decimal or mpf
        A finite real number, taken exactly: ``0.999`` is the binary64 number, ``Decimal("0.999")`` is not.
        A zero loses its sign.
    n : int
        Number of components, at least 1.

    Returns
    -------
    tuple of float
        Values of the format, ``x[k] = RN(value - x[0] - ... - x[k - 1])`` for every k.

    Raises
    ------
    TypeError
        If `value` is no real number, or n no int.
    ValueError
        If n < 1, the value is not finite, or such a rounding is no value of the format; see below.

    Notes
    -----
    What the components leave of the number is what they do not say, and how much that is depends on the
    kind of format. Refused is in each of them a number beyond the maximum or the least value by more than
    rounding takes back, half the last step (or by just that, if the tie goes outward).

    *Floats with sign and zero.* Each component is at most half an ulp of the one before it. What is left is
    at most that of the last one, and at most half the smallest subnormal number where a component is zero.
    *Floats without sign.* The same, but a rest that rounds to less than zero is refused.
    *Floats without zero.* A rest of zero is refused, and so is a negative one without sign. A smaller rest
    than the smallest number is rounded to that, since it is the nearest there is.
    *Grids.* The components after the first are zero: it is off by at most half a step, or that beyond an end.
    *Posits.* They round by their codes, and never to zero: where the steps are large, or below the smallest
    number, a component may leave as much as there was, or more.
    """
    check_processor()
    check_int("n", n)
    if n < 1:
        raise ValueError(f"n = {n}: an expansion has at least one component")
    fmt = ar.format
    if fmt is None:
        if to_fraction(value) is None:
            raise ValueError(f"cannot expand {value!r}: it is not finite")
        return (ar.round(value), *(ar.round(0) for _ in range(n - 1)))
    return _of_float(value, fmt, n) if type(value) is float else _of_real(value, fmt, n)


def _of_real(value: Any, fmt: Format, n: int) -> tuple[float, ...]:
    return components(value, fmt, n, lambda rest: round_real(rest, fmt, Rounding()))


@lru_cache(maxsize=256)
def _of_float(value: float, fmt: Format, n: int) -> tuple[float, ...]:
    """Return the same, remembered: every step of an optimizer asks for its beta2."""
    return _of_real(value, fmt, n)


def components(value: Any, fmt: Format, n: int, rounded: Callable[[Fraction], float]) -> tuple[float, ...]:
    """Return n values of a format, each of them what remains of a number after the ones before it, rounded.

    Parameters
    ----------
    value : float, int, Fraction, Decimal or mpf
        The number, taken exactly.
    fmt : Format
        Of the components. See `mcfsim.expand` for what they are in each kind of format.
    n : int
        How many, at least 1.
    rounded : callable
        Rounds a rational number to nearest even in this format.

    Raises
    ------
    ValueError
        If the number is not finite, or one of the roundings is no value of the format: beyond its ends,
        negative without a sign, zero without a zero. The message says which.
    """
    rest = to_fraction(value)
    if rest is None:
        raise ValueError(f"cannot expand {value!r}: it is not finite")
    found: list[float] = []
    for _ in range(n):
        if reason := _why_no_value(rest, fmt):
            subject = f"what {' + '.join(map(str, found))} leaves" if found else "it"
            raise ValueError(f"cannot expand {_short(value)} in {n} of {fmt}: {subject} {reason}")
        found.append(rounded(rest))
        rest -= Fraction(found[-1])
    return tuple(found)


def check_components(fmt: Format | None) -> None:
    """Refuse a format whose rounding errors are not its own values: sums of several components need that.

    Raises
    ------
    UnsupportedFormatError
        If it is a posit format or a grid, or has no sign or no zero.
    """
    if fmt is None or (type(fmt) is Format and fmt.signed and fmt.zero):
        return
    if type(fmt) is not Format:
        reason = (
            f"the rounding error of a sum or product need not be a value of a {type(fmt).__name__.lower()}"
        )
    else:
        reason = f"rounding errors may be {'zero' if fmt.signed else 'negative'}, and it has no such number"
    raise UnsupportedFormatError(f"{fmt} is no format for several components: {reason}")


def _why_no_value(exact: Fraction, fmt: Format) -> str:
    """Return why the rounding of a number to nearest even is no value of the format; "" if it is one."""
    if exact == 0:
        return "" if fmt.zero else "is zero, which the format has not"
    if exact < 0 and not fmt.signed:
        vanishes = fmt.zero and -exact <= fmt.smallest_subnormal / 2
        return "" if vanishes else "is negative, and the format has no negative numbers"
    end = fmt.max if exact > 0 else fmt.lowest
    excess = abs(exact) - abs(end)
    if excess <= 0:
        return ""
    # Rounding goes on past the end in steps of the last one before it.
    half = Fraction(float(ulp([float(end)], fmt)[0])) / 2
    if excess < half or (excess == half and _is_even(end, fmt)):
        return ""
    return f"{'exceeds the maximum' if exact > 0 else 'lies below the least value'} {float(end)}"


def _is_even(value: Fraction, fmt: Format) -> bool:
    """Whether a tie between a value and the next one outward goes to the value."""
    if type(fmt) is Format and fmt.precision == 1 and fmt.parity is Parity.SIGNIFICAND:
        return False  # it goes to the larger one
    return int(encode([float(value)], fmt)[0]) % 2 == 0


def _short(value: Any) -> str:
    """Write a number of any size down."""
    try:
        return repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a number of some {digits(Fraction(value), 6)}"
