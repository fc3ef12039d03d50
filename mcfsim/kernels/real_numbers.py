"""Single real numbers of any kind: exactly, rounded to binary64, and rounded once into a format."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any, Literal

import numpy as np

from mcfsim.formats import Format, Posit
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError
from mcfsim.kernels.dispatch import get_kernel
from mcfsim.random import Words
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow

#: How real scalars enter operations: as they are, or rounded into the format first.
Scalars = Literal["exact", "rounded"]
#: Decimal or binary; far beyond every format, and few enough digits to work with.
_LARGEST_EXPONENT = 1_000_000
#: Integers of so many bits are written out in messages; Python itself refuses very long ones.
_SHORT = 200
#: All integers up to here are binary64 numbers.
_EXACT = 2**53


def is_scalar(x: Any) -> bool:
    """Return whether x is a Python number, and so a real scalar: float, int, Fraction, Decimal or mpf.

    A NumPy scalar is an array of no dimensions, but for ``np.float64``, which is a float. A truth value is
    no number.
    """
    if type(x) is float:
        return True
    if isinstance(x, np.ndarray):
        return False
    if isinstance(x, float | int):
        return not isinstance(x, bool)
    return not isinstance(x, np.generic) and (isinstance(x, Rational | Decimal) or is_mpf(x))


def is_mpf(x: Any) -> bool:
    """Return whether an object is a number of mpmath, of any of its contexts; infinities and NaN are, too."""
    return hasattr(type(x), "man_exp")


def to_fraction(x: Any) -> Fraction | None:
    """Return a real number exactly; None for NaN and the infinities.

    Parameters
    ----------
    x : float, int, Fraction, Decimal, NumPy or ml_dtypes scalar, or mpf
        The number.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it is a Decimal or an mpf with too many digits to be written out.
    """
    if isinstance(x, bool | np.bool_):
        raise TypeError("a truth value is no real number")
    if isinstance(x, np.timedelta64):  # an np.integer to NumPy
        raise TypeError("a time is no real number")
    if isinstance(x, int | Rational | np.integer):
        return Fraction(int(x)) if isinstance(x, np.integer) else Fraction(x)
    if isinstance(x, Decimal):
        if not x.is_finite():
            return None
        _check_exponent(x, x.adjusted())
        return Fraction(x)
    if is_mpf(x):
        if x - x != 0:  # NaN or infinite
            return None
        mantissa, exponent = x.man_exp  # of the magnitude, in some versions with the sign
        _check_exponent(x, int(exponent))
        magnitude = Fraction(abs(int(mantissa))) * Fraction(2) ** int(exponent)
        return -magnitude if x < 0 else magnitude
    if isinstance(x, float | np.floating):
        return Fraction(*x.as_integer_ratio()) if math.isfinite(x) else None
    if type(x).__module__ == "ml_dtypes":
        return Fraction(float(x)) if math.isfinite(x) else None
    raise TypeError(f"{x!r} of type {type(x).__name__} is no real number")


def _check_exponent(x: Any, exponent: int) -> None:
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"{x!r} has too large an exponent to be taken exactly: beyond {_LARGEST_EXPONENT}")


def described(x: Any) -> str:
    """Return a number as a message names it."""
    exact = to_fraction(x)
    longest = 0 if exact is None else max(exact.numerator.bit_length(), exact.denominator.bit_length())
    return repr(x) if longest <= _SHORT else f"a number of {longest} bits"


def exact_or_binary64(x: Any) -> Fraction | float:
    """Return a real number as the float that it is, and as a Fraction if there is none.

    NaN, infinities and signed zeros are floats.
    """
    if isinstance(x, float) or (type(x) is int and -_EXACT <= x <= _EXACT):
        return float(x)
    exact = to_fraction(x)
    if not exact:
        return as_float(x)
    nearest = nearest_binary64(exact)
    return nearest if math.isfinite(nearest) and Fraction(nearest) == exact else exact


def as_float(x: Any) -> float:
    """Return NaN, an infinity or a signed zero, or another number that is a float, as a float."""
    return math.nan if isinstance(x, Decimal) and x.is_snan() else float(x)


def signum(x: Any) -> Any:
    """Return 1 and -1 by the signs of an array of floats, or of fractions; zeros and NaN as they are."""
    sign = np.sign(x)
    return sign.astype(np.float64) if x.dtype == object else np.copysign(sign, x)


def enter(
    number: float | Fraction, fmt: Format, rounding: Rounding, scalars: Scalars
) -> tuple[float | Fraction, bool]:
    """Return a real scalar as an operation takes it, and whether it is no value of the format.

    Parameters
    ----------
    number : float or Fraction
        As `exact_or_binary64` returns it.
    fmt, rounding
        Of the operation.
    scalars : {"exact", "rounded"}
        The policy.
    """
    if isinstance(number, Fraction) and scalars == "exact":
        return number, True
    if number == 0 and not fmt.has_negative_zero:
        number = 0.0  # also of a format that has none
    # A scalar that must be a value of the format is no operation: it is never rounded stochastically.
    value = round_real(number, fmt, Rounding() if rounding.stochastic else rounding)
    # An infinity stands for NaR in posits, and not for 1 / 0.
    nar = isinstance(fmt, Posit) and isinstance(number, float) and math.isinf(number)
    if scalars == "rounded" or value == number or number != number or nar:
        return value, False
    return number, True


def changed_real(
    operation: str,
    x: Any,
    fmt: Format,
    rounding: Rounding,
    scalars: Scalars,
    words: Callable[[], Words | None] = lambda: None,
) -> float:
    """Return what an operation on signs, or rounding, makes of a real scalar: a value of the format.

    Parameters
    ----------
    operation : {"neg", "abs", "sign", "round", "settle"}
        ``settle`` leaves the number as it is.
    x : real number
        As `exact_or_binary64` takes it.
    fmt, rounding, scalars
        As for `enter`; but for ``round``, small operands are not flushed.
    words : callable, optional
        Returns one random word; called only if the result is rounded.
    """
    if operation == "round":
        return round_real(x, fmt, rounding, words())
    entered, real = enter(exact_or_binary64(x), fmt, rounding, scalars)
    if operation == "settle" and not real:
        return float(entered)
    number = _CHANGES[operation](entered)
    if rounding.underflow is Underflow.FLUSH_INPUTS:  # a result is no operand
        rounding = replace(rounding, underflow=Underflow.GRADUAL)
    with np.errstate(over="ignore"):
        if isinstance(number, float) and get_kernel(fmt, rounding, FLOAT64).keeps(np.array([number])):
            return number if fmt.has_negative_zero else number + 0.0
    return round_real(number, fmt, rounding, words())


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: float(signum(np.array([x]))[0]),
    "settle": lambda x: x,
}


def nearest_binary64(exact: Fraction) -> float:
    """Round a rational number to nearest even in binary64."""
    try:
        return float(exact)
    except OverflowError:
        return -math.inf if exact < 0 else math.inf


def odd_binary64(exact: Fraction) -> float:
    """Round a rational number to odd in binary64, or to its largest or smallest number beyond its range."""
    largest, smallest = Fraction(np.finfo(np.float64).max), Fraction(5e-324)
    magnitude = min(abs(exact), largest)
    if magnitude and magnitude < smallest:
        return -5e-324 if exact < 0 else 5e-324
    y = float(magnitude)
    if Fraction(y) != magnitude:
        truncated = y if Fraction(y) < magnitude else math.nextafter(y, 0.0)
        bits = np.float64(truncated).view(np.int64) | 1
        y = float(bits.view(np.float64))
    return -y if exact < 0 else y


def leaves_binary64(exact: Fraction, fmt: Format) -> bool:
    """Whether a number is beyond binary64, and so beyond what its random words could save from overflow.

    That matters where the format's largest numbers are binary64's: elsewhere the largest number of binary64
    is as far beyond.
    """
    return fmt.emax == 1023 and abs(exact) >= 2**1024


def round_real(x: Any, fmt: Format, rounding: Rounding, words: Words | None = None) -> float:
    """Round one real number, exactly known, into a format. See `mcfsim.convert.round_to`.

    Parameters
    ----------
    x : float, int, Fraction, Decimal, NumPy or ml_dtypes scalar, or mpf
        The number.
    fmt : Format
        The format.
    rounding : Rounding
        Mode and policies.
    words : array of one random word, optional
        For stochastic rounding.

    Raises
    ------
    TypeError, ValueError
        As `to_fraction` does.
    UnsupportedFormatError
        If float64 cannot hold the format, or the number cannot be rounded once.
    """
    exact = None if isinstance(x, float) else to_fraction(x)
    if not exact:
        binary64 = as_float(x)
    elif fmt.precision + rounding.guard_bits > 53:
        binary64 = nearest_binary64(exact)
        finite = math.isfinite(binary64)
        # The format rounds as binary64 does, and an overflow to infinity may pass for an infinity.
        once = rounding.mode is Mode.NEAREST_EVEN and fmt.precision == 53 and fmt.emin == -1022
        harmless = once and (finite or (rounding.overflow is Overflow.IEEE and fmt.has_nan))
        if not harmless and not (finite and Fraction(binary64) == exact):
            raise UnsupportedFormatError(
                f"{described(x)} cannot be rounded once to {fmt}, rounding {rounding.mode}, by way of float64"
            )
    else:
        binary64 = odd_binary64(exact)
        if rounding.stochastic and words is not None and leaves_binary64(exact, fmt):
            words = np.full_like(words, np.iinfo(words.dtype).max)  # it overflows whatever is drawn
    block = np.array([binary64])
    with np.errstate(all="ignore"):
        get_kernel(fmt, rounding, FLOAT64)(block, block, words)
    return float(block[0])
