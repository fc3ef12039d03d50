"""The kernels that round blocks of carrier numbers, made once, and what kind of format takes what policy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.block_rounding import RoundingKernel
from mcfsim.kernels.carriers import UnsupportedFormatError, carrier_of
from mcfsim.rounding import Rounding, Underflow


@lru_cache(maxsize=256)
def get_kernel(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> RoundingKernel:
    """Return the kernel that rounds numbers of a carrier to a format, made once.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format, or the format does not know a policy.
    """
    if isinstance(fmt, Posit | Grid) and rounding.underflow is not Underflow.GRADUAL:
        why = "does not underflow" if isinstance(fmt, Posit) else "has no subnormal numbers to flush"
        raise UnsupportedFormatError(f"{fmt} {why}: underflow must be 'gradual', not {rounding.underflow!s}")
    return RoundingKernel(fmt, rounding, carrier)


@lru_cache(maxsize=256)
def rounds(operation: str, fmt: Format) -> bool:
    """Return whether an operation on values rounds, as those on signs do only where they leave the format."""
    if operation in ("neg", "abs"):
        return fmt.lowest != -fmt.max and (fmt.signed or operation == "neg")
    if operation == "sign":
        carrier = carrier_of(fmt)
        units = np.array([1.0, -1.0 if fmt.signed else 1.0], carrier)
        return not get_kernel(fmt, Rounding(), carrier).keeps(units)
    return True
