"""Operations element by element in fractions: for real scalars that binary64 does not hold, or not safely.

A thousand times slower than `mcfsim.kernels.residuals`, for each number that is not among the others yet, and
without its limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.kernels.real_numbers import nearest_binary64, odd_binary64

Number = float | Fraction
#: Bits of a root beyond which it is rounded to odd, before it is so to binary64.
_ROOT_BITS = 64


def _root(x: Fraction) -> Fraction:
    """Return the square root of a positive number, rounded to odd in more bits than binary64 has."""
    length = x.numerator.bit_length() - x.denominator.bit_length()
    scale = max(0, _ROOT_BITS - length // 2)
    square, rest = divmod(x.numerator << (2 * scale), x.denominator)
    root = math.isqrt(square)
    return Fraction(2 * root + (rest != 0 or root * root != square), 2 << scale)


_EXACTLY: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x + y,  # of the negative, as in `residuals`
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "sqrt": _root,
    "fma": lambda x, y, z: x * y + z,
}
_PLAINLY: dict[str, Callable[..., Any]] = {
    **_EXACTLY,
    "div": np.divide,
    "sqrt": np.sqrt,
}


def exactly(operation: str, *operands: Number) -> Number:
    """Return a result as a fraction; a zero, an infinity and NaN as a float.

    A square root is rounded to odd in 64 bits or more.
    """
    if all(isinstance(x, Fraction) or math.isfinite(x) for x in operands):
        numbers = [Fraction(x) for x in operands]
        there = (operation != "div" or numbers[1] != 0) and (operation != "sqrt" or numbers[0] > 0)
        if there and (exact := _EXACTLY[operation](*numbers)):
            return Fraction(exact)
        if there and operation == "fma" and numbers[0] and numbers[1]:
            return 0.0  # of two terms that cancel
    # What comes of zeros, infinities and NaN depends on the signs of the other operands alone.
    plain = [np.float64(_like(x)) for x in operands]
    return float(_PLAINLY[operation](*plain))


def _like(x: Number) -> float:
    """Return a zero, an infinity or NaN as it is, and of another number 1 or -1, by its sign."""
    special = isinstance(x, float) and (not x or not math.isfinite(x))
    return float(x) if special else -1.0 if x < 0 else 1.0


def decided(operation: str, *operands: NDArray[Any]) -> NDArray[np.float64]:
    """Return results rounded to odd in binary64, or to its largest or smallest number beyond its range.

    Parameters
    ----------
    operation : {"add", "sub", "mul", "div", "sqrt", "fma"}
        ``sub`` adds, its second operand being the negative.
    *operands : array of float64, or of Fraction
        They broadcast.
    """
    return _each(
        lambda exact: odd_binary64(exact) if isinstance(exact, Fraction) else exact, operation, operands
    )


def with_residual(operation: str, *operands: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return results rounded to nearest in binary64, and the rest, which is zero only if there is none."""

    def rest(exact: Number) -> float:
        if not isinstance(exact, Fraction):
            return 0.0
        nearest = nearest_binary64(exact)
        return odd_binary64(exact - Fraction(nearest)) if math.isfinite(nearest) else math.nan

    def nearest(exact: Number) -> float:
        return nearest_binary64(exact) if isinstance(exact, Fraction) else exact

    return _each(nearest, operation, operands), _each(rest, operation, operands)


def _each(
    settle: Callable[[Number], float], operation: str, operands: tuple[NDArray[Any], ...]
) -> NDArray[np.float64]:
    def one(*numbers: Number) -> float:
        return settle(exactly(operation, *numbers))

    run = np.frompyfunc(one, len(operands), 1)
    long = [place for place, x in enumerate(operands) if x.size > 1]
    if len(long) != 1 or operands[long[0]].dtype == object:
        return np.asarray(run(*operands), dtype=np.float64)
    (place,) = long  # numbers of a short format come again and again
    block = np.asarray(operands[place], dtype=np.float64)
    codes, where = np.unique(block.view(np.int64), return_inverse=True)
    several = run(*operands[:place], codes.view(np.float64), *operands[place + 1 :])
    return np.asarray(several, dtype=np.float64)[where.reshape(block.shape)]
