"""Functions that split a real number into values of one format, and check whether a format allows it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mcfsim.checks import check_int, check_processor
from mcfsim.codec import encode, ulp
from mcfsim.formats import Format, Parity, digits
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import round_real, to_fraction
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Rounding


def expand(ar: Arithmetic, value: Any, n: int) -> tuple[Any, ...]:
    """Split the real number ``value`` into n components: each is the remainder, rounded to nearest even.

    Parameters
    ----------
    ar : Arithmetic
        The components are values of its format; its own rounding is ignored. An arithmetic without a format
        gives the number and n - 1 zeros.
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
        If `value` is not a real number, or n is not an int.
    ValueError
        If n < 1, the value is not finite, or one of these roundings is not a value of the format; see below.

    Notes
    -----
    The final remainder depends on the kind of format. Every format refuses a number that lies beyond its
    maximum or its least value by more than rounding takes back: by more than half the last step, or by
    exactly half if the tie goes outward.

    *Floats with sign and zero.* Each component is at most half an ulp of the one before it. The remainder is
    at most half an ulp of the last one, and at most half the smallest subnormal number if a component is
    zero.
    *Floats without sign.* The same, but a remainder that rounds to less than zero is refused.
    *Floats without zero.* A zero remainder is refused, and so is a negative one if there is no sign. A
    remainder below the smallest number is rounded to that number, the nearest one.
    *Grids.* Components after the first are zero. The error is at most half a step, also beyond an end.
    *Posits.* They round by their codes and never to zero. Where the steps are large, or below the smallest
    number, a component may leave a remainder as large as the one before, or larger.
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
    parts = _of_float(value, fmt, n) if type(value) is float else _of_real(value, fmt, n)
    noted: Callable[..., tuple[Any, ...]] | None = getattr(ar, "expanded", None)
    return parts if noted is None else noted(value, parts)


def _of_real(value: Any, fmt: Format, n: int) -> tuple[float, ...]:
    return components(value, fmt, n, lambda rest: round_real(rest, fmt, Rounding()))


#: The same with a cache: every step of an optimizer asks for its beta2.
_of_float = lru_cache(maxsize=256)(_of_real)


def components(value: Any, fmt: Format, n: int, rounded: Callable[[Fraction], float]) -> tuple[float, ...]:
    """Split a number into n values of a format: each is the remainder after the ones before it, rounded.

    Parameters
    ----------
    value : float, int, Fraction, Decimal or mpf
        The number, taken exactly.
    fmt : Format
        Format of the components. `mcfsim.expand` describes them for each kind of format.
    n : int
        Number of components, at least 1.
    rounded : callable
        Rounds a rational number to nearest even in this format.

    Raises
    ------
    ValueError
        If the number is not finite, or a rounding is not a value of the format: it lies beyond the ends, or
        is negative or zero in a format without such numbers. The message says which.
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
    """Raise unless rounding errors are values of the format, as sums of several components require.

    Raises
    ------
    UnsupportedFormatError
        If the format is a posit format or a grid, or has no sign or no zero.
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
    """Say why a number rounded to nearest even is not a value of the format; "" if it is one."""
    if exact == 0:
        return "" if fmt.zero else "is zero, which the format lacks"
    if exact < 0 and not fmt.signed:
        vanishes = fmt.zero and -exact <= fmt.smallest_subnormal / 2
        return "" if vanishes else "is negative, and the format has no negative numbers"
    end = fmt.max if exact > 0 else fmt.lowest
    excess = abs(exact) - abs(end)
    if excess <= 0:
        return ""
    # Beyond the end rounding continues with the last step before it.
    half = Fraction(float(ulp([float(end)], fmt)[0])) / 2
    if excess < half or (excess == half and _is_even(end, fmt)):
        return ""
    return f"{'exceeds the maximum' if exact > 0 else 'lies below the least value'} {float(end)}"


def _is_even(value: Fraction, fmt: Format) -> bool:
    """Return whether a tie between a value and its outward neighbour goes to the value."""
    if type(fmt) is Format and fmt.precision == 1 and fmt.parity is Parity.SIGNIFICAND:
        return False  # the tie goes to the larger one
    return int(encode([float(value)], fmt)[0]) % 2 == 0


def _short(value: Any) -> str:
    """Return a number of any size as text."""
    try:
        return repr(value)
    except ValueError:  # an integer with more digits than Python writes
        return f"a number of some {digits(Fraction(value), 6)}"
