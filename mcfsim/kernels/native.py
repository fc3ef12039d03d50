"""The hardware's or a library's own number type, behind the common interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from mcfsim.checks.processor import check_processor
from mcfsim.formats import FORMATS, Format, get_format
from mcfsim.kernels.carriers import FLOAT64, UnsupportedFormatError
from mcfsim.kernels.real_numbers import is_scalar, round_real
from mcfsim.protocol import Value
from mcfsim.rounding import Rounding


def native_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes dtype whose values are those of the format.

    Raises
    ------
    UnsupportedFormatError
        If there is none.
    """
    import ml_dtypes

    for name, known in FORMATS.items():
        scalar = getattr(ml_dtypes, name, None) or getattr(np, name, None)
        if known == fmt and scalar is not None:
            dtype: np.dtype[Any] = np.dtype(scalar)
            return dtype
    raise UnsupportedFormatError(f"no dtype of NumPy or ml_dtypes holds {fmt} and its codes")


class LibraryArithmetic(ABC):
    """What the arithmetics of libraries' own number types are, whatever their operations.

    Parameters
    ----------
    fmt : Format
        That of the dtype.
    dtype : dtype
        The library's.
    fused : bool
        If true, `fma` is refused, as the library has none; else it is a product and a sum, rounded twice.
    """

    scalars = "rounded"

    def __init__(self, fmt: Format, dtype: Any, *, fused: bool) -> None:
        self.dtype = dtype
        self._format, self._fused = fmt, fused

    @property
    def format(self) -> Format:
        """The format of the dtype."""
        return self._format

    @property
    def carrier(self) -> Any:
        """The dtype."""
        return self.dtype

    @property
    def rounding(self) -> Rounding:
        """To nearest even, with the policies of IEEE 754."""
        return Rounding()

    def like(self, fmt: Format, rounding: Rounding) -> Self:
        """Return the arithmetic of another dtype.

        Raises
        ------
        UnsupportedFormatError
            If no dtype holds the format, or the rounding is not that of dtypes.
        """
        if rounding != Rounding():
            raise UnsupportedFormatError(
                f"native arithmetic rounds to nearest even, with the policies of IEEE 754, not {rounding}"
            )
        return self._of(fmt)

    @abstractmethod
    def _of(self, fmt: Format) -> Self:
        """Return the arithmetic of another format."""

    def on_block(self, step: int, start: int) -> Self:
        """Return itself: elements of a block are as any."""
        return self

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``; a Python number leaves converted."""
        return self._leave(function(self, *operands, **options))

    def _leave(self, results: Any) -> Any:
        if isinstance(results, tuple):
            return tuple(map(self._leave, results))
        return self.round(results) if is_scalar(results) else results

    @abstractmethod
    def round(self, x: Value) -> Value:
        """Cast to the dtype; Python numbers are rounded once."""


class NativeArithmetic(LibraryArithmetic):
    """NumPy's operators on arrays of one dtype: to compare with, and the inner workings of the emulator.

    Rounding is to nearest even, as the type's library does it. Python numbers are rounded to the dtype first,
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
        """Return ``a * b + c`` if two roundings were agreed to.

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
        """Return 1 or -1 by the sign of `a`, and a zero or NaN as it is."""
        a = self._enter(a)
        return np.copysign(np.sign(a, dtype=self.dtype), a, dtype=self.dtype)

    def round(self, x: Value) -> Value:
        """Cast to the dtype: arrays by its library, which for float64 sources may round twice."""
        check_processor()
        if is_scalar(x) and not (isinstance(x, float) and self.dtype == FLOAT64):
            x = round_real(x, self._format, Rounding())
        return np.asarray(x).astype(self.dtype)
