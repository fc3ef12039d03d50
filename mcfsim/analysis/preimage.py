"""Which real numbers round to a value: intervals with rational ends, by the definition of a rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from mcfsim.formats import Format
from mcfsim.formats.floating import floor_log2
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

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
    """Raise unless `preimage` knows a format and a rounding.

    Raises
    ------
    UnsupportedFormatError
        If the format is a grid or a posit, has one bit of precision, or has no zero.
    ValueError
        If the rounding is stochastic, or flushes small numbers.
    """
    if type(fmt) is not Format or fmt.precision < 2 or not fmt.zero:
        raise UnsupportedFormatError(
            f"{fmt}: numbers that round to a value are known of binary floating point with a zero and at "
            "least two bits of precision"
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
        Where the rounding shall lie.
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
    (low, with_low), (high, with_high) = (
        _end(least, fmt, rounding, up=False),
        _end(greatest, fmt, rounding, up=True),
    )
    return RealInterval(low, high, with_low, with_high)


def unit(x: Fraction, fmt: Format) -> Fraction:
    """Return the ulp of a number, with no largest exponent."""
    exponent = floor_log2(abs(x)) if x else fmt.emin
    return Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)


def beside(x: End, fmt: Format, *, up: bool) -> Fraction:
    """Return the value at a number or next to it above (`up`) or below, with no largest exponent.

    An infinity gives the finite end of the format on its side.
    """
    if isinstance(x, float):
        return fmt.max if x > 0 else fmt.lowest
    step = unit(x, fmt)
    return step * (math.ceil(x / step) if up else math.floor(x / step))


def neighbour(x: Fraction, fmt: Format, *, up: bool) -> Fraction:
    """Return the next value above (`up`) or below a value, with no largest exponent."""
    step = unit(x, fmt)
    inward = x > 0 if not up else x < 0
    if inward and abs(x) == step * 2 ** (fmt.precision - 1) and abs(x) > fmt.smallest_normal:
        step /= 2  # below a power of two, values are twice as dense
    return x + step if up else x - step


def _end(value: Fraction, fmt: Format, rounding: Rounding, *, up: bool) -> tuple[End, bool]:
    """Return how far the numbers that round to a value reach, and whether this end is one of them."""
    mode, beyond = rounding.mode, neighbour(value, fmt, up=up)
    outward = abs(beyond) > abs(value)
    if value == (fmt.max if up else fmt.lowest) and _stays(fmt, rounding, up=up):
        return (math.inf if up else -math.inf), False
    odd = value / unit(value, fmt) % 2 == 1
    if mode is Mode.NEAREST_EVEN:
        return (value + beyond) / 2, not odd
    if mode is Mode.NEAREST_AWAY:
        return (value + beyond) / 2, not outward
    back = {Mode.TOWARD_ZERO: outward, Mode.UP: not up, Mode.DOWN: up, Mode.TO_ODD: odd}[mode]
    return (beyond, False) if back else (value, True)


def _stays(fmt: Format, rounding: Rounding, *, up: bool) -> bool:
    """Return whether all that lies beyond an end of the format is rounded to that end."""
    if rounding.overflow is Overflow.SATURATE or not fmt.has_nan:
        return True
    mode = rounding.mode
    inward = mode in (Mode.TOWARD_ZERO, Mode.TO_ODD) or mode is (Mode.DOWN if up else Mode.UP)
    return inward and (up or fmt.signed)
