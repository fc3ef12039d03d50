"""Single real numbers of any type, exact or rounded, and operations on arrays in exact fractions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import FORMATS, Format, Posit
from mcfsim.kernels.blocks import get_kernel
from mcfsim.kernels.carriers import FLOAT32, FLOAT64, UnsupportedFormatError, carrier_of, holds
from mcfsim.random import Words
from mcfsim.rounding import Mode, Overflow, Rounding

#: How real scalars enter operations: exactly, rounded into the format first, or into binary32 arithmetic.
Scalars = Literal["exact", "rounded", "float32"]
SCALARS: tuple[str, ...] = get_args(Scalars)
#: The format in which policy ``float32`` computes.
SINGLE = FORMATS["float32"]
#: Of a decimal or a binary number: far beyond every format, but with few enough digits to work with.
_LARGEST_EXPONENT = 1_000_000
#: Messages write out integers of up to this many bits; Python itself refuses very long ones.
_SHORT = 200
#: All integers up to here are binary64 numbers.
_EXACT = 2**53


def is_scalar(x: Any) -> bool:
    """Return whether x is a Python number, and so a real scalar: float, int, Fraction, Decimal or mpf.

    A NumPy scalar counts as an array of no dimensions, except ``np.float64``, which is a float. A truth value
    is no number.
    """
    if type(x) is float:
        return True
    if isinstance(x, np.ndarray):
        return False
    if isinstance(x, float | int):
        return not isinstance(x, bool)
    return not isinstance(x, np.generic) and (isinstance(x, Rational | Decimal) or is_mpf(x))


def is_mpf(x: Any) -> bool:
    """Return whether an object is a number of any mpmath context, infinities and NaN included."""
    return hasattr(type(x), "man_exp")


def to_fraction(x: Any) -> Fraction | None:
    """Return a real number exactly as a Fraction; None for NaN and the infinities.

    Parameters
    ----------
    x : float, int, Fraction, Decimal, NumPy or ml_dtypes scalar, or mpf
        The number.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it is a Decimal or an mpf with too large an exponent to be written out.
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
        return Fraction(*x.as_integer_ratio()) if np.isfinite(x) else None  # in its own dtype
    if type(x).__module__ == "ml_dtypes":
        return Fraction(float(x)) if math.isfinite(x) else None
    raise TypeError(f"{x!r} of type {type(x).__name__} is no real number")


def _check_exponent(x: Any, exponent: int) -> None:
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"{x!r} has too large an exponent to be taken exactly: beyond {_LARGEST_EXPONENT}")


def described(x: Any) -> str:
    """Return a description of a number for messages."""
    exact = to_fraction(x)
    longest = 0 if exact is None else max(exact.numerator.bit_length(), exact.denominator.bit_length())
    return repr(x) if longest <= _SHORT else f"a number of {longest} bits"


def exact_or_binary64(x: Any) -> Fraction | float:
    """Return a real number as a float if that is exact, else as a Fraction.

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
    """Return a number as a float; beyond the range of binary64 it is infinite."""
    return math.nan if isinstance(x, Decimal) and x.is_snan() else nearest_binary64(x)


def signum(x: Any) -> Any:
    """Return 1 or -1 by the sign of each float or fraction in an array; zeros and NaN are unchanged."""
    sign = np.sign(x)
    return sign.astype(np.float64) if x.dtype == object else np.copysign(sign, x)


def is_widened(fmt: Format, scalars: Scalars) -> bool:
    """Return whether operations of a format with real scalars are carried out in binary32.

    By ``float32`` they are if binary32 holds the format and is another; else that policy is ``rounded``.
    """
    return scalars == "float32" and fmt != SINGLE and carrier_of(fmt) == FLOAT32


def enter(
    number: float | Fraction, fmt: Format, rounding: Rounding, scalars: Scalars
) -> tuple[float | Fraction, bool]:
    """Return a real scalar as an operation takes it, and whether it is no value of the format.

    Parameters
    ----------
    number : float or Fraction
        As `exact_or_binary64` returns it.
    fmt, rounding
        The format and the rounding of the operation.
    scalars : {"exact", "rounded", "float32"}
        The policy.
    """
    if is_widened(fmt, scalars):
        number, scalars = round_real(number, SINGLE, Rounding()), "exact"
    if scalars == "exact" and (isinstance(number, Fraction) or _is_longer(number, fmt)):
        return number, True
    if number == 0 and not fmt.has_negative_zero:
        number = 0.0  # also of a format that has none
    # Converting a scalar to the format is no operation, and is never rounded stochastically.
    value = round_real(number, fmt, Rounding() if rounding.stochastic else rounding)
    # An infinity stands for NaR in posits, and not for 1 / 0.
    nar = isinstance(fmt, Posit) and isinstance(number, float) and math.isinf(number)
    if scalars != "exact" or value == number or number != number or nar:
        return value, False
    return number, True


def _is_longer(x: float, fmt: Format) -> bool:
    """Return whether a finite number has more significant bits than all values of a binary format."""
    found = type(fmt) is Format and holds(FLOAT64, fmt) and math.isfinite(x)
    return found and math.ldexp(math.frexp(x)[0], fmt.precision) % 1 != 0


def is_value_of(x: Any, fmt: Format) -> bool:
    """Return whether a real number is a value of a format; NaN is one, and an infinity of a posit."""
    return not enter(exact_or_binary64(x), fmt, Rounding(), "exact")[1]


def changed_real(
    operation: str,
    x: Any,
    fmt: Format,
    rounding: Rounding,
    scalars: Scalars,
    words: Callable[[], Words | None] = lambda: None,
) -> float:
    """Return the result of a sign operation or a rounding on a real scalar, a value of the format.

    Parameters
    ----------
    operation : {"neg", "abs", "sign", "round", "settle"}
        ``settle`` leaves the number unchanged.
    x : real number
        As `exact_or_binary64` takes it.
    fmt, rounding, scalars
        As for `enter`; only ``round`` flushes small operands, and takes the number exactly by any policy.
    words : callable, optional
        Returns one random word; called only if the result is rounded.
    """
    if operation == "round":
        return round_real(x, fmt, rounding, words())
    entered, real = enter(exact_or_binary64(x), fmt, rounding, scalars)
    if operation == "settle" and not real:
        return float(entered)
    number = _CHANGES[operation](entered)
    rounding = rounding.of_results
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


def same_integers(integers: NDArray[Any], floats: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which integers equal floats at the same places; NumPy would compare them in binary64."""
    same = np.asarray(integers == floats)
    beyond = np.abs(floats) >= _EXACT
    if integers.dtype.itemsize == 8 and beyond.any():
        same[beyond] = integers[beyond].astype(object) == floats[beyond].astype(object)
    return same


def nearest_binary64(exact: Fraction | float) -> float:
    """Round a rational number to nearest even in binary64; a float is returned as it is."""
    try:
        return float(exact)
    except OverflowError:
        return -math.inf if exact < 0 else math.inf


def odd_binary64(exact: Fraction) -> float:
    """Round a rational number to odd in binary64; beyond its range, to its largest or smallest number."""
    top, bottom = abs(exact.numerator), exact.denominator
    try:
        y = top / bottom  # of integers, and so rounded once
    except OverflowError:
        y = sys.float_info.max
    else:
        of_y, unit = y.as_integer_ratio()
        if beyond := of_y * bottom - top * unit:
            truncated = y if beyond < 0 else math.nextafter(y, 0.0)
            bits = np.float64(truncated).view(np.int64) | 1
            y = float(bits.view(np.float64))
    return -y if exact < 0 else y


def round_real(x: Any, fmt: Format, rounding: Rounding, words: Words | None = None) -> float:
    """Round one exactly known real number into a format, once. See `mcfsim.convert.round_to`.

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
    if type(x) is float and rounding.standard and fmt == SINGLE:
        with np.errstate(over="ignore"):
            return float(np.float32(x))  # which is many times as fast
    exact = None if isinstance(x, float) else to_fraction(x)
    if not exact:
        binary64 = as_float(x)
    elif fmt.precision + rounding.guard_bits > 53:
        binary64 = nearest_binary64(exact)
        finite = math.isfinite(binary64)
        # The format rounds as binary64 does, and an overflow may be treated like an infinite operand.
        once = rounding.mode is Mode.NEAREST_EVEN and fmt.precision == 53 and fmt.emin == -1022
        harmless = once and (finite or (rounding.overflow is Overflow.IEEE and fmt.has_nan))
        if not harmless and not (finite and Fraction(binary64) == exact):
            raise UnsupportedFormatError(
                f"{described(x)} cannot be rounded once to {fmt}, rounding {rounding.mode}, by way of float64"
            )
    else:
        binary64 = odd_binary64(exact)
        # Numbers beyond binary64's range overflow whatever their random words. Only a format with binary64's
        # largest exponent needs this; in others, the largest number of binary64 overflows as surely.
        if rounding.stochastic and words is not None and fmt.emax == 1023 and abs(exact) >= 2**1024:
            words = np.full_like(words, np.iinfo(words.dtype).max)
    block = np.array([binary64])
    with np.errstate(all="ignore"):
        get_kernel(fmt, rounding, FLOAT64)(block, block, words)
    return float(block[0])


# -- operations in fractions, element by element ----------------------------------------------------------
Number = float | Fraction
#: The fewest bits to which a root is rounded to odd, before it is rounded to odd in binary64.
_ROOT_BITS = 64


def _root(x: Fraction) -> Fraction:
    """Return the square root of a positive number, rounded to odd in more bits than binary64 has."""
    length = x.numerator.bit_length() - x.denominator.bit_length()
    scale = max(0, _ROOT_BITS - length // 2)
    square, rest = divmod(x.numerator << (2 * scale), x.denominator)
    root = math.isqrt(square)
    return Fraction(2 * root + (rest != 0 or root * root != square), 2 << scale)


_EXACTLY: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x + y,  # y is the negative already, as in `mcfsim.kernels.native`
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "sqrt": _root,
    "fma": lambda x, y, z: x * y + z,
}
_PLAINLY: dict[str, Callable[..., Any]] = {**_EXACTLY, "div": np.divide, "sqrt": np.sqrt}


def exactly(operation: str, *operands: Number) -> Number:
    """Return the exact result of an operation as a Fraction; a zero, an infinity or NaN as a float.

    A square root is rounded to odd in 64 bits or more.
    """
    if all(isinstance(x, Fraction) or math.isfinite(x) for x in operands):
        numbers = [x if isinstance(x, Fraction) else Fraction(x) for x in operands]
        there = (operation != "div" or numbers[1] != 0) and (operation != "sqrt" or numbers[0] > 0)
        if there and (exact := _EXACTLY[operation](*numbers)):
            return exact
        if there and operation == "fma" and numbers[0] and numbers[1]:
            return 0.0  # two terms cancel
    # Results with zeros, infinities and NaN depend only on the signs of the other operands.
    plain = [np.float64(_like(x)) for x in operands]
    return float(_PLAINLY[operation](*plain))


def _like(x: Number) -> float:
    """Return a zero, an infinity or NaN unchanged, and for another number 1 or -1, by its sign."""
    special = isinstance(x, float) and (not x or not math.isfinite(x))
    return float(x) if special else -1.0 if x < 0 else 1.0


def decided(operation: str, *operands: NDArray[Any]) -> NDArray[np.float64]:
    """Return results rounded to odd in binary64; beyond its range, its largest or smallest number.

    Parameters
    ----------
    operation : {"add", "sub", "mul", "div", "sqrt", "fma"}
        ``sub`` adds, as its second operand is negated already.
    *operands : array of float64, or of Fraction
        They broadcast.
    """

    def settled(exact: Number) -> tuple[float]:
        return (odd_binary64(exact) if isinstance(exact, Fraction) else exact,)

    return _each(settled, 1, operation, operands)[0]


def with_residual(operation: str, *operands: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return results rounded to nearest in binary64, and residuals, which are zero only for exact results."""

    def settled(exact: Number) -> tuple[float, float]:
        nearest = nearest_binary64(exact)
        if not isinstance(exact, Fraction):
            return nearest, 0.0
        return nearest, odd_binary64(exact - Fraction(nearest)) if math.isfinite(nearest) else math.nan

    nearest, rest = _each(settled, 2, operation, operands)
    return nearest, rest


def _each(
    settle: Callable[[Number], tuple[float, ...]],
    count: int,
    operation: str,
    operands: tuple[NDArray[Any], ...],
) -> list[NDArray[np.float64]]:
    """Return `count` arrays of the numbers that `settle` makes of each exact result."""
    run = np.frompyfunc(lambda *numbers: settle(exactly(operation, *numbers)), len(operands), 1)
    long = [place for place, x in enumerate(operands) if x.size > 1]
    given, where = list(operands), None
    if len(long) == 1 and operands[long[0]].dtype != object:  # numbers of a short format repeat often
        block = np.asarray(operands[long[0]], dtype=np.float64)
        codes, where = np.unique(block.view(np.int64), return_inverse=True)
        given[long[0]], where = codes.view(np.float64), where.reshape(block.shape)
    made = np.asarray(run(*given), dtype=object)
    parts = np.array(made.reshape(-1).tolist(), dtype=np.float64).reshape(-1, count)
    found = [part.reshape(made.shape) for part in parts.T]
    return found if where is None else [x[where] for x in found]
