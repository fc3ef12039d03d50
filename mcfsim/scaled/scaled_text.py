"""What the algorithms of scaled formats have in common, and the magnitudes of blocks that are finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mcfsim.compile.group_text import GroupText
from mcfsim.kernels.element.machine import Value
from mcfsim.rounding import Rounding
from mcfsim.scaled.formats import ScaledFormat

#: Infinity's bits in binary32: the measure of a block of finite numbers is less.
INFINITE = 0xFF << 23


@dataclass(frozen=True)
class ScaledText(GroupText):
    """An algorithm of a scaled format whose elements are numbers of binary32.

    The first shared number of a block is its scale. Two further numbers are the same for all blocks; the last
    is the tensor scale, or 1.

    Parameters
    ----------
    format : ScaledFormat
    rounding : Rounding
        Of the elements.
    """

    format: ScaledFormat
    rounding: Rounding

    coded: ClassVar[bool] = False
    numbers: ClassVar[int] = 2

    @property
    def random_bits(self) -> int:
        """Those of stochastic rounding."""
        return self.rounding.drawn_bits

    def decoded(self, code: Value, *shared: Value) -> Value:
        """Return the element times the scales."""
        scale, *_, tensor_scale = shared
        x = code.widen()
        return x.equals(x).select(x * (scale.widen() * tensor_scale), x)


def finite(found: NDArray[np.int32]) -> NDArray[Any]:
    """Return the largest magnitudes of the blocks of finite numbers, from the greatest measures of all."""
    return found[found < INFINITE].view(np.float32)
