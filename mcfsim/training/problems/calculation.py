"""Array operations of a network: in binary64, or with every result rounded into a format."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import hint
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, holds
from mcfsim.products import Accumulator, Products, matmul

Array = NDArray[Any]


class Sums(StrEnum):
    """The ways to round sums of products.

    ``once``: the exact sum is rounded, as in the quire of a posit unit. ``each``: each product is rounded,
    and so is the sum after each product.
    """

    ONCE = "once"
    EACH = "each"


class Calculation:
    """Array operations that round every result into one format, to nearest even.

    Parameters
    ----------
    fmt : Format or str or None
        The format; float32 must hold its values. None computes in binary64, by NumPy alone.
    sums : {"once", "each"}, optional
        See `Sums`; in binary64 NumPy decides.

    Attributes
    ----------
    format : Format or None
        The format.
    sums : Sums
        How sums are rounded.

    Raises
    ------
    ValueError
        If a name is unknown.
    UnsupportedFormatError
        If float32 does not hold the format.

    Notes
    -----
    Overflow follows IEEE 754: it gives an infinity, or NaN in a format without infinities; posits and grids
    saturate. NaN stays NaN. The exponential is computed in binary64, where its last bit may depend on the
    processor, and then rounded.
    """

    def __init__(self, fmt: Format | str | None, sums: Sums | str = Sums.ONCE) -> None:
        self.format = None if fmt is None else get_format(fmt)
        if sums not in tuple(Sums):
            raise ValueError(f"unknown sums {sums!r}{hint(str(sums), Sums)}; allowed: {', '.join(Sums)}")
        self.sums = Sums(sums)
        if self.format is None:
            self._ar: Any = arithmetic("float64", backend="native")
            return
        if not holds(FLOAT32, self.format):
            raise UnsupportedFormatError(
                f"{self.format} has numbers that float32, which gradients are handed on in, does not hold"
            )
        self._ar = arithmetic(self.format)
        self._accumulator = (
            Accumulator(self.format, block=None)
            if self.sums is Sums.ONCE
            else Accumulator(self.format, block=1, products=Products.ROUNDED)
        )

    def round(self, x: Array) -> Array:
        """Return numbers rounded into the format."""
        rounded: Array = self._ar.round(x)
        return rounded

    def product(self, a: Array, b: Array, added: Array | None = None) -> Array:
        """Return ``a @ b``, or ``added + a @ b`` with `added` as the first term of each sum."""
        if self.format is None:
            return a @ b if added is None else a @ b + added
        product: Array = matmul(a, b, self._accumulator, c=added)
        return product

    def sub(self, a: Array, b: Array) -> Array:
        """Return ``a - b``; the operands' shapes broadcast."""
        difference: Array = self._ar.sub(*np.broadcast_arrays(a, b))
        return difference

    def div(self, a: Array, b: Array | int) -> Array:
        """Return ``a / b``; the operands' shapes broadcast."""
        divisor = b if isinstance(b, int) else np.broadcast_to(b, a.shape)
        quotient: Array = self._ar.div(a, divisor)
        return quotient

    def exp(self, a: Array) -> Array:
        """Return the exponential of each element."""
        return self.round(np.exp(a.astype(np.float64)))
