"""Operations computed in binary64 together with what binary64 lost of them.

The residual need not be the whole error: it has the error's sign, and is zero or NaN exactly where there
is none. `make_odd` turns the pair into the binary64 number rounded to odd, from which any later rounding
to at most 51 bits is as if made from the exact result (Boldo and Melquiond 2008). The error-free
transformations are those of `mcfsim.eft`, run on binary64 itself; the caller keeps operands within
``[2**-480, 2**480]``, where nothing over- or underflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.eft import two_prod, two_sum
from mcfsim.kernels.native import NativeArithmetic

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
    """Return ``a b + c`` and its residual: a sum of three terms, by Boldo and Melquiond 2008, Fig. 5."""
    high, low = two_prod(BINARY64, a, b)
    t_high, t_low = two_sum(BINARY64, c, low)
    v_high, v_low = two_sum(BINARY64, high, t_high)
    rest, residual = two_sum(BINARY64, t_low, v_low)
    y, last = two_sum(BINARY64, v_high, make_odd(rest, residual))
    # Infinities and NaN, and the sign of an exact zero, are right without the residuals and wrong with them.
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
