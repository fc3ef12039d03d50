"""A master copy that lies in memory as a remainder of few bits beside the parameter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.formats import Format
from mcfsim.optim.remainder import steps_of, with_steps
from mcfsim.optim.vectors import read

Array = NDArray[Any]


@dataclass(frozen=True)
class Remainder:
    """A vector of float32 numbers that lie within half an ulp of the values of another vector.

    Parameters
    ----------
    leading : array
        Codes of a format, or its numbers.
    rest : array of uint8 or uint16
        Remainders, in two's complement.
    low : Format
        The format.
    bits : int
        Of a remainder.
    """

    leading: Array
    rest: Array
    low: Format
    bits: int

    def __getitem__(self, block: slice) -> Remainder:
        return replace(self, leading=self.leading[block], rest=self.rest[block])

    def numbers(self) -> Array:
        """Return the numbers: NaN where the leading value is not finite."""
        steps = self.rest.view(f"i{self.rest.itemsize}").astype(np.float32)
        return self._made(with_steps, steps)

    def keep(self, numbers: Array) -> None:
        """Keep what is left of numbers, of which the leading vector has the rounded ones; of NaN zero."""
        steps = self._made(steps_of, np.asarray(numbers, np.float32))
        np.copyto(steps, 0.0, where=np.isnan(steps))
        self.rest[...] = steps.astype(f"i{self.rest.itemsize}").view(self.rest.dtype)

    def _made(self, text: Any, beside: Array) -> Array:
        """Return what a text makes of leading values and of what is beside them."""
        ar, leading = arithmetic("float32", compiled=False), read(self.leading, self.low)
        with np.errstate(all="ignore"):
            return np.array(text(ar, self.low, self.bits, leading, beside), np.float32)
