"""Which real numbers round to a value: intervals with rational ends, by the definition of a rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from mcfsim.codec import decode, encode
from mcfsim.formats import Format, Grid, Parity, Posit
from mcfsim.formats.floating import floor_log2
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.real_numbers import round_real
from mcfsim.rounding import NEAREST, Mode, Overflow, Rounding, Underflow

#: A rational number, or an infinity.
End = Fraction | float


class RealInterval(NamedTuple):
    """An interval of real numbers.

    Attributes
    ----------
    low, high : Fraction or float
        The ends; only an infinite end is a float. The interval is empty if they are in the wrong order.
    with_low, with_high : bool
        Whether the ends belong to it.
    """

    low: End
    high: End
    with_low: bool
    with_high: bool

    @property
    def empty(self) -> bool:
        """Whether no number belongs to the interval."""
        return self.low > self.high or (self.low == self.high and not (self.with_low and self.with_high))

    def holds(self, x: End) -> bool:
        """Return whether a number belongs to the interval."""
        return (self.low < x or (self.with_low and self.low == x)) and (
            x < self.high or (self.with_high and self.high == x)
        )

    def shifted(self, by: Fraction) -> RealInterval:
        """Return the interval moved by a number."""
        return self._replace(low=self.low + by, high=self.high + by)

    def divided(self, by: Fraction) -> RealInterval:
        """Return the interval divided by a positive number."""
        return self._replace(low=self.low / by, high=self.high / by)


#: The interval of no number.
NOTHING = RealInterval(math.inf, -math.inf, False, False)


def point(x: Fraction) -> RealInterval:
    """Return the interval of one number."""
    return RealInterval(x, x, True, True)


def check_preimage(fmt: Any, rounding: Rounding) -> None:
    """Raise unless `preimage` supports a format and a rounding.

    Raises
    ------
    UnsupportedFormatError
        If the format has no zero, and numbers on both sides of zero round to one value, or to its negative:
        they do not form an interval.
    ValueError
        If the rounding is stochastic, or flushes small numbers.
    """
    if not isinstance(fmt, Format):
        raise UnsupportedFormatError(f"{fmt!r} is no format")
    if not fmt.zero and (fmt.signed or rounding.overflow is Overflow.SATURATE or not fmt.has_nan):
        raise UnsupportedFormatError(
            f"{fmt} has no zero: numbers on both sides of zero round to its least values, but zero to none, "
            "so they form no interval; an unsigned format with NaN and overflow 'ieee' is supported"
        )
    if rounding.stochastic:
        raise ValueError("a stochastic rounding has no interval of numbers that round to a value")
    if rounding.underflow is not Underflow.GRADUAL:
        raise ValueError(f"underflow {rounding.underflow!s}: only gradual underflow is supported")


def preimage(values: RealInterval, fmt: Format, rounding: Rounding) -> RealInterval:
    """Return the real numbers whose roundings lie in an interval.

    Parameters
    ----------
    values : RealInterval
        The interval in which the rounded numbers lie.
    fmt : Format
        The format; see `check_preimage`.
    rounding : Rounding
        A deterministic mode with gradual underflow.

    Returns
    -------
    RealInterval
        One interval, since rounding is monotone; empty if no value of the format lies in `values`. An end is
        infinite where overflow gives the largest finite number.
    """
    least, greatest = beside(values.low, fmt, up=True), beside(values.high, fmt, up=False)
    if least == values.low and not values.with_low:
        least = neighbour(least, fmt, up=True)
    if greatest == values.high and not values.with_high:
        greatest = neighbour(greatest, fmt, up=False)
    least, greatest = max(least, fmt.lowest), min(greatest, fmt.max)
    if values.empty or least > greatest:
        return NOTHING
    low, with_low = _end(least, fmt, rounding, up=False)
    high, with_high = _end(greatest, fmt, rounding, up=True)
    return RealInterval(low, high, with_low, with_high)


def unit(x: Fraction, fmt: Format) -> Fraction:
    """Return the ulp of a number, with no largest exponent; for a grid, the distance between neighbours."""
    if isinstance(fmt, Grid):
        return fmt.quantum
    exponent = floor_log2(abs(x)) if x else fmt.emin
    return Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)


def beside(x: End, fmt: Format, *, up: bool) -> Fraction:
    """Return a number if it is a value, else the next value above (`up`) or below; no largest exponent.

    An infinity gives the finite end of the format on its side.
    """
    if isinstance(x, float):
        return fmt.max if x > 0 else fmt.lowest
    if isinstance(fmt, Posit):
        near = Fraction(round_real(x, fmt, Rounding()))
        return neighbour(near, fmt, up=up) if (near < x if up else near > x) else near
    step = unit(x, fmt)
    return step * (math.ceil(x / step) if up else math.floor(x / step))


def neighbour(x: Fraction, fmt: Format, *, up: bool) -> Fraction:
    """Return the next value above (`up`) or below a value, with no largest exponent.

    Beyond the ends of a posit format it is some number of larger magnitude.
    """
    inward = x > 0 if not up else x < 0
    if isinstance(fmt, Posit):
        magnitude = _of_code(abs(_code(x, fmt) + (-1 if inward else 1)), fmt)
        return magnitude if up != inward else -magnitude
    step = unit(x, fmt)
    ends = not isinstance(fmt, Grid) and abs(x) == step * 2 ** (fmt.precision - 1)  # where a binade ends
    if inward and ends and abs(x) > fmt.smallest_normal:
        step /= 2  # below a power of two, values are twice as dense
    return x + step if up else x - step


def _end(value: Fraction, fmt: Format, rounding: Rounding, *, up: bool) -> tuple[End, bool]:
    """Return how far the numbers that round to a value reach, and whether this end is one of them."""
    if value == (fmt.max if up else fmt.lowest) and _stays(fmt, rounding, up=up):
        return (math.inf if up else -math.inf), False
    if not fmt.zero and value == fmt.lowest and not up:
        return Fraction(0), False  # zero itself has no value
    mode, beyond = rounding.mode, neighbour(value, fmt, up=up)
    outward = abs(beyond) > abs(value)
    inner, outer = (value, beyond) if outward else (beyond, value)
    if isinstance(fmt, Posit) and not inner:
        return Fraction(0), not value  # nothing but zero becomes zero
    odd = _is_odd(inner, fmt)
    if mode in NEAREST:
        tie_goes_outward = odd or mode is Mode.NEAREST_AWAY
        return _middle(inner, outer, fmt), tie_goes_outward != outward
    directed = {Mode.TOWARD_ZERO: False, Mode.UP: outer > inner, Mode.DOWN: outer < inner}
    goes_outward = directed.get(mode, not odd)  # or to odd
    return (beyond, False) if goes_outward != outward else (value, True)


def _is_odd(x: Fraction, fmt: Format) -> bool:
    """Return whether a value is odd, in the unit of the gap to the next larger magnitude."""
    if isinstance(fmt, Posit):
        return _code(x, fmt) % 2 == 1
    if x and fmt.precision == 1 and fmt.parity is Parity.CODE and not isinstance(fmt, Grid):
        return (floor_log2(abs(x)) + fmt.bias) % 2 == 1
    return x / unit(x, fmt) % 2 == 1


def _middle(inner: Fraction, outer: Fraction, fmt: Format) -> Fraction:
    """Return where rounding to nearest switches between neighbours; for posits, the posit of one more bit."""
    if not isinstance(fmt, Posit):
        return (inner + outer) / 2
    between = _of_code(2 * _code(inner, fmt) + 1, Posit(fmt.bits + 1, fmt.es))
    return between if outer > 0 else -between


@lru_cache(maxsize=1 << 12)
def _code(x: Fraction, fmt: Posit) -> int:
    """Return the code of a posit's magnitude."""
    return int(encode([float(abs(x))], fmt)[0])


@lru_cache(maxsize=1 << 12)
def _of_code(code: int, fmt: Posit) -> Fraction:
    """Return the posit of a code that begins with a zero bit; some larger number beyond the last one."""
    if code >= 1 << (fmt.bits - 1):
        return 2 * fmt.max
    return Fraction(float(decode([code], fmt)[0]))


def _stays(fmt: Format, rounding: Rounding, *, up: bool) -> bool:
    """Return whether all numbers beyond an end of the format are rounded to that end."""
    if rounding.overflow is Overflow.SATURATE or not fmt.has_nan or isinstance(fmt, Posit):
        return True
    mode = rounding.mode
    inward = mode in (Mode.TOWARD_ZERO, Mode.TO_ODD) or mode is (Mode.DOWN if up else Mode.UP)
    return inward and (up or fmt.signed)
