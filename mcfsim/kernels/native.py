"""Arithmetics of libraries' or the hardware's number types, and binary64 operations with their residuals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mcfsim.checks import check_processor
from mcfsim.eft import two_prod, two_sum
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError, native_dtype
from mcfsim.kernels.real_numbers import is_scalar, round_real
from mcfsim.protocol import Forwarding, Value
from mcfsim.rounding import Rounding


class Settling(Forwarding):
    """The common base of arithmetics that settle the Python numbers that an algorithm returns unchanged."""

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``, with Python numbers converted to its values."""
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        if isinstance(results, tuple):
            return tuple(map(self._leave, results))
        return self._settled(results) if is_scalar(results) else results

    def _settled(self, number: Any) -> Any:
        return self.round(number)


class LibraryArithmetic(Settling):
    """The common base of arithmetics on the number types of libraries.

    Parameters
    ----------
    fmt : Format
        The format of the dtype.
    dtype : dtype
        The library's dtype.
    fused : bool
        If true, `fma` is refused, as the library has none; else it is a product and a sum, rounded twice.
    """

    scalars = "rounded"
    #: To nearest even, with the policies of IEEE 754.
    rounding = Rounding()

    def __init__(self, fmt: Format, dtype: Any, *, fused: bool) -> None:
        self.format, self._fused = fmt, fused
        self.dtype = self.carrier = dtype

    def like(self, fmt: Format, rounding: Rounding) -> Self:
        """Return the arithmetic of another dtype.

        Raises
        ------
        UnsupportedFormatError
            If no dtype holds the format, or the rounding is not that of dtypes.
        """
        if not rounding.standard:
            raise UnsupportedFormatError(
                f"native arithmetic rounds to nearest even, with the policies of IEEE 754, not {rounding}"
            )
        return self._of(fmt)

    @abstractmethod
    def _of(self, fmt: Format) -> Self:
        """Return the arithmetic of another format."""

    def on_block(self, step: int, start: int) -> Self:
        """Return itself: the elements of a block are like any others."""
        return self

    @abstractmethod
    def round(self, x: Value) -> Value:
        """Cast to the dtype, rounding Python numbers once."""


class NativeArithmetic(LibraryArithmetic):
    """NumPy's operators on arrays of one dtype, used for comparisons and inside the emulator.

    Rounding is to nearest even, as the type's library does it. Python numbers are first rounded to the dtype,
    each once, so the scalar policy is ``rounded``. Floating-point warnings are NumPy's.

    Parameters
    ----------
    dtype : dtype-like
        ``float16``, ``float32``, ``float64`` or an ml_dtypes type.
    fused : bool, optional
        If true, `fma` is refused, as NumPy has none; else it is a product and a sum, rounded twice.
    """

    dtype: np.dtype[Any]

    def __init__(self, dtype: Any, *, fused: bool = True) -> None:
        super().__init__(get_format(np.dtype(dtype)), np.dtype(dtype), fused=fused)

    def _of(self, fmt: Format) -> Self:
        return type(self)(native_dtype(fmt), fused=self._fused)

    def _enter(self, x: Value) -> Value:
        """Convert Python numbers, which ml_dtypes' operators refuse."""
        return self.round(x) if is_scalar(x) else x

    def add(self, a: Value, b: Value) -> Value:
        """Return ``a + b``."""
        check_processor()
        return np.add(self._enter(a), self._enter(b), dtype=self.dtype)

    def sub(self, a: Value, b: Value) -> Value:
        """Return ``a - b``."""
        check_processor()
        return np.subtract(self._enter(a), self._enter(b), dtype=self.dtype)

    def mul(self, a: Value, b: Value) -> Value:
        """Return ``a * b``."""
        check_processor()
        return np.multiply(self._enter(a), self._enter(b), dtype=self.dtype)

    def div(self, a: Value, b: Value) -> Value:
        """Return ``a / b``."""
        check_processor()
        return np.divide(self._enter(a), self._enter(b), dtype=self.dtype)

    def sqrt(self, a: Value) -> Value:
        """Return the square root."""
        check_processor()
        return np.sqrt(self._enter(a), dtype=self.dtype)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded twice, if `fused` is false.

        Raises
        ------
        UnsupportedFormatError
            Otherwise: neither NumPy nor ml_dtypes has a fused multiply-add.
        """
        if not self._fused:
            return self.add(self.mul(a, b), c)
        raise UnsupportedFormatError(
            f"fma in native {self.dtype}: NumPy has no fused multiply-add, and a wider multiplication and "
            "addition round twice; use backend='numpy'"
        )

    def neg(self, a: Value) -> Value:
        """Return ``-a``."""
        return np.negative(self._enter(a), dtype=self.dtype)

    def abs(self, a: Value) -> Value:
        """Return ``|a|``."""
        return np.absolute(self._enter(a), dtype=self.dtype)

    def sign(self, a: Value) -> Value:
        """Return 1 or -1 by the sign of `a`, and a zero or NaN unchanged."""
        a = self._enter(a)
        return np.copysign(np.sign(a, dtype=self.dtype), a, dtype=self.dtype)

    def _operate(self, name: str, *operands: Value) -> Value:
        """Return an elementary function as the library has it, correctly rounded or not, or a selection."""
        check_processor()
        given = [self._enter(x) for x in operands]
        if name == "choose":
            s, x, y = given
            return np.where(s >= 0, x, np.where(s < 0, y, s)).astype(self.dtype)
        if name == "erf":
            from scipy.special import erf

            return erf(given[0].astype(np.float64)).astype(self.dtype)
        return getattr(np, name)(*given, dtype=self.dtype)

    def round(self, x: Value) -> Value:
        """Cast to the dtype; the library casts arrays, and may round twice from float64."""
        check_processor()
        if is_scalar(x) and not (isinstance(x, float) and self.dtype == FLOAT64):
            x = round_real(x, self.format, Rounding())
        return np.asarray(x).astype(self.dtype)


# -- binary64 operations with their residuals -------------------------------------------------------------
Wide = NDArray[np.float64]
BINARY64 = NativeArithmetic(np.float64)


def add(a: Any, b: Any) -> tuple[Wide, Wide]:
    """Return the sum and its residual."""
    return two_sum(BINARY64, a, b)


def mul(a: Any, b: Any) -> tuple[Wide, Wide]:
    """Return the product and its residual."""
    return two_prod(BINARY64, a, b)


def div(a: Any, b: Any) -> tuple[Wide, Wide]:
    """Return the quotient and a residual of the right sign."""
    quotient = np.divide(a, b)
    high, low = two_prod(BINARY64, quotient, b)
    remainder = (a - high) - low
    return quotient, remainder * np.sign(b)


def sqrt(a: Any) -> tuple[Wide, Wide]:
    """Return the square root and a residual of the right sign."""
    root = np.sqrt(a)
    high, low = two_prod(BINARY64, root, root)
    return root, (a - high) - low


def fma(a: Any, b: Any, c: Any) -> tuple[Wide, Wide]:
    """Return ``a b + c`` and its residual, as a sum of three terms: Boldo and Melquiond 2008, Fig. 5."""
    high, low = two_prod(BINARY64, a, b)
    t_high, t_low = two_sum(BINARY64, c, low)
    v_high, v_low = two_sum(BINARY64, high, t_high)
    rest, residual = two_sum(BINARY64, t_low, v_low)
    y, last = two_sum(BINARY64, v_high, make_odd(rest, residual))
    # Infinities, NaN and the sign of an exact zero are right without the residuals and wrong with them.
    plainly = np.multiply(a, b, dtype=np.float64) + c
    return np.where(np.isfinite(plainly) & (y != 0), y, plainly), last


def make_odd(y: Wide, residual: Wide) -> Wide:
    """Round ``y + residual`` to odd, in place in ``y``, where the residual is nonzero."""
    bits = np.asarray(y).view(np.int64)
    inexact = np.abs(residual) > 0  # False for NaN: y is then infinite or NaN itself
    opposite = (bits ^ np.asarray(residual).view(np.int64)) < 0
    np.subtract(bits, opposite & inexact, out=bits, dtype=np.int64, casting="unsafe")
    np.bitwise_or(bits, inexact, out=bits, dtype=np.int64, casting="unsafe")
    return y
