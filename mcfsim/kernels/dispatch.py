"""The rounding kernels: what turns blocks of carrier numbers into values of a format, by kind of format."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.formats.grids import Grid
from mcfsim.formats.posit import Posit
from mcfsim.kernels.floats import FloatKernel
from mcfsim.kernels.grids import GridKernel
from mcfsim.kernels.posits import PositKernel
from mcfsim.random import Words
from mcfsim.rounding import Rounding

Block = NDArray[Any]


class RoundingKernel(Protocol):
    """What rounds the blocks of one carrier type to one kind of format."""

    #: Whether every number of the carrier is a value of the format, and nothing is ever changed.
    exact: bool

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself."""

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the format alone."""


@lru_cache(maxsize=256)
def get_kernel(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> RoundingKernel:
    """Return the kernel that rounds numbers of a carrier to a format, made once.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format, or the format does not know a policy.
    """
    if isinstance(fmt, Posit):
        return PositKernel(fmt, rounding, carrier)
    if isinstance(fmt, Grid):
        return GridKernel(fmt, rounding, carrier)
    return FloatKernel(fmt, rounding, carrier)
