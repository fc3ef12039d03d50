"""Inspection of one number in a format: its rounding, code, neighbours, ulp and expansions, all exact.

All rounding follows the definition, in rational arithmetic. This is fast enough for one number, and no
combination of format and rounding mode has to be refused.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.codec import encode, next_down, next_up, ulp
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.real_numbers import to_fraction
from mcfsim.multiword.components import components
from mcfsim.oracle.definition import round_float, round_fraction
from mcfsim.rounding import Mode, Rounding, get_rounding

#: Lengths of the expansions shown.
LENGTHS = (2, 3)
#: Largest decimal or binary exponent read: far beyond every format, and small enough to write out.
EXPONENT_LIMIT = 20_000

_HEXADECIMAL = re.compile(r"([+-]?)0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d+))?")


@dataclass(frozen=True)
class Neighbour:
    """The next value of a format in one direction, with its code."""

    value: float
    code: int


@dataclass(frozen=True)
class Inspection:
    """A real number in a format: its rounding, errors, code, neighbours and expansions.

    Attributes
    ----------
    format, rounding : Format, Rounding
        The format, and the rounding to it.
    exact : Fraction or None
        The number itself; None for NaN and the infinities.
    rounded : float
        The rounded number.
    code : int or None
        Code of `rounded`; None for NaN in a format without NaN.
    below, above : Neighbour or None
        The next values of the format; None at its ends, and for NaN.
    ulp : Fraction or None
        Unit in the last place of `rounded`; None if it is not finite.
    expansions : tuple of tuple of float
        The number as 2 and as 3 components, see `mcfsim.expand`; empty if this raises for 3, or for NaN and
        the infinities.
    """

    format: Format
    rounding: Rounding
    exact: Fraction | None
    rounded: float
    code: int | None
    below: Neighbour | None
    above: Neighbour | None
    ulp: Fraction | None
    expansions: tuple[tuple[float, ...], ...]

    @property
    def kind(self) -> str:
        """Kind of the rounded number: ``NaN``, ``infinite``, ``zero``, ``subnormal`` or ``normal``."""
        if math.isnan(self.rounded):
            return "NaN"
        if math.isinf(self.rounded):
            return "infinite"
        if self.rounded == 0:
            return "zero"
        return "subnormal" if abs(Fraction(self.rounded)) < self.format.smallest_normal else "normal"

    @property
    def beyond_maximum(self) -> bool:
        """Whether the number is finite and lies beyond the largest or the least number of the format."""
        if self.exact is None or 0 <= self.exact < self.format.lowest:  # between zero and the least number
            return False
        return not self.format.lowest <= self.exact <= self.format.max

    @property
    def bits(self) -> tuple[str, ...] | None:
        """The code in binary: sign, exponent field and fraction; a grid's or posit's code is not split."""
        if self.code is None:
            return None
        text = f"{self.code:0{self.format.bits}b}"
        if type(self.format) is not Format:
            return (text,)
        sign = int(self.format.signed)
        fraction = sign + self.format.exponent_bits
        return tuple(part for part in (text[:sign], text[sign:fraction], text[fraction:]) if part)

    @property
    def error(self) -> Fraction | None:
        """The rounded number minus the number, exactly; None if one of them is not finite."""
        if self.exact is None or not math.isfinite(self.rounded):
            return None
        return Fraction(self.rounded) - self.exact

    @property
    def relative_error(self) -> Fraction | None:
        """The error divided by the magnitude of the number; 0 for zero."""
        error = self.error
        if error is None or self.exact is None:
            return None
        return error / abs(self.exact) if error else error

    @property
    def ulp_error(self) -> Fraction | None:
        """The error in units in the last place of the number, see `mcfsim.codec.ulp`."""
        if self.error is None or self.exact is None:
            return None
        # The ulp changes only at binary64 numbers.
        truncated = round_fraction(self.exact, FORMATS["float64"], Rounding(Mode.TOWARD_ZERO))
        return self.error / _ulp(truncated, self.format)

    def residual(self, expansion: tuple[float, ...]) -> Fraction:
        """Return the number minus the sum of the components, exactly."""
        if self.exact is None:
            raise ValueError("a number that is not finite has no expansion")
        return self.exact - sum(map(Fraction, expansion))


def inspect_value(
    value: Any,
    fmt: Format | str,
    rounding: Rounding | str = "nearest_even",
    overflow: str = "ieee",
    underflow: str = "gradual",
) -> Inspection:
    """Return the inspection of one real number in a format.

    Parameters
    ----------
    value : str or float, int, Fraction, Decimal or mpf
        The number, taken exactly; `read_number` reads a string. NaN, infinity and negative zero are allowed.
    fmt : Format or str
        The format.
    rounding : str or Rounding, optional
        A name of `mcfsim.rounding.Mode`.
    overflow : {"ieee", "saturate"}, optional
        See `mcfsim.rounding.Overflow`.
    underflow : {"gradual", "flush_inputs", "flush_before", "flush_after"}, optional
        See `mcfsim.rounding.Underflow`.

    Raises
    ------
    TypeError
        If `value` is no real number.
    ValueError
        If the string is no number, a name is unknown, or binary64 does not hold the values of the format.

    Examples
    --------
    >>> inspect_value("0.999", "bfloat16").expansions[0]
    (1.0, -0.00099945068359375)
    """
    fmt, rounding = get_format(fmt), get_rounding(rounding, overflow, underflow)
    number = read_number(value) if isinstance(value, str) else value
    exact = to_fraction(number)
    if exact is None:
        rounded = round_float(float(number), fmt, rounding)
    else:
        negative_zero = exact == 0 and math.copysign(1.0, number) < 0
        rounded = round_fraction(exact, fmt, rounding, negative_zero=negative_zero)
    nan = math.isnan(rounded)
    return Inspection(
        format=fmt,
        rounding=rounding,
        exact=exact,
        rounded=rounded,
        code=None if nan and not fmt.has_nan else _code(rounded, fmt),
        below=None if nan else _neighbour(rounded, fmt, next_down),
        above=None if nan else _neighbour(rounded, fmt, next_up),
        ulp=_ulp(rounded, fmt) if math.isfinite(rounded) else None,
        expansions=() if exact is None else _expansions(exact, fmt),
    )


def read_number(text: str) -> Fraction | float:
    """Return the exact number that a string denotes.

    Parameters
    ----------
    text : str
        A decimal (``0.999``, ``-1e-3``), a hexadecimal float (``0x1.8p3``), a fraction (``1/3``), ``inf``,
        ``nan``, or ``-0``.

    Returns
    -------
    Fraction or float
        A float for NaN, the infinities and negative zero, which are no fractions.

    Raises
    ------
    ValueError
        If the string is none of these, or its exponent exceeds `EXPONENT_LIMIT`.
    """
    key = text.strip().lower()
    if hexadecimal := _HEXADECIMAL.fullmatch(key):
        sign, whole, fraction, power = hexadecimal.groups()
        if whole or fraction:
            exponent = _checked(int(power or 0), text) - 4 * len(fraction)
            number = int(f"{sign}{whole}{fraction}", 16) * Fraction(2) ** exponent
            return -0.0 if sign == "-" and number == 0 else number
    elif "/" in key:
        try:
            return Fraction(key) or (-0.0 if key.startswith("-") else Fraction(0))
        except ZeroDivisionError:
            raise ValueError(f"{text!r} has the denominator zero") from None
        except ValueError:
            pass
    else:
        with suppress(InvalidOperation):
            decimal = Decimal(key)
            if decimal.is_nan():
                return math.nan
            if decimal.is_infinite():
                return float(decimal)
            if decimal.is_zero():
                return -0.0 if decimal.is_signed() else Fraction(0)
            _checked(decimal.adjusted(), text)
            return Fraction(decimal)
    raise ValueError(
        f"{text!r} is no number; allowed: a decimal as 0.999 or 1e-3, a hexadecimal float as 0x1.8p3, "
        "a fraction as 1/3, inf, nan, -0"
    )


def _checked(exponent: int, text: str) -> int:
    if abs(exponent) > EXPONENT_LIMIT:
        raise ValueError(f"the exponent of {text!r} exceeds {EXPONENT_LIMIT} in magnitude")
    return exponent


def _code(value: float, fmt: Format) -> int:
    return int(encode([value], fmt)[0])


def _neighbour(value: float, fmt: Format, direction: Any) -> Neighbour | None:
    with np.errstate(over="ignore"):  # infinity follows the largest number
        other = float(direction([value], fmt)[0])
    return None if other == value else Neighbour(other, _code(other, fmt))


def _ulp(value: float, fmt: Format) -> Fraction:
    return Fraction(float(ulp([value], fmt)[0]))


def _expansions(exact: Fraction, fmt: Format) -> tuple[tuple[float, ...], ...]:
    """Return the expansions of each of `LENGTHS`; none if the longest does not exist."""
    try:
        found = components(exact, fmt, max(LENGTHS), lambda rest: round_fraction(rest, fmt))
    except ValueError:
        return ()
    return tuple(found[:length] for length in LENGTHS)
