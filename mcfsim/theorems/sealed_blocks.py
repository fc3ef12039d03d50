"""Blocks that are handed out to be read: copies that cannot be written to, and a look at them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Sealed:
    """Blocks for code of anybody's, which may read them.

    Parameters
    ----------
    blocks : sequence of array
        Kept as they are, and not handed out.

    Attributes
    ----------
    blocks : list of array
        Copies, of type `numpy.ndarray` and read-only.
    """

    def __init__(self, blocks: Sequence[NDArray[Any]]) -> None:
        self._kept = blocks
        self.blocks = [np.array(block, order="C") for block in blocks]
        for block in self.blocks:
            block.flags.writeable = False

    def check(self) -> None:
        """Raise ValueError if copies were written to, for which NumPy leaves some ways."""
        for ours, theirs in zip(self._kept, self.blocks, strict=True):
            code = f"u{ours.itemsize}"  # the sign of a zero counts, and a NaN equals itself
            if not np.array_equal(np.ascontiguousarray(ours).view(code), theirs.view(code)):
                raise ValueError("a block of operands or results was written to; they are for reading alone")


def is_block(x: Any, kind: str, shape: tuple[int, ...]) -> bool:
    """Return whether it is an array of a kind and a shape, of no subclass."""
    return type(x) is np.ndarray and x.dtype.kind == kind and x.shape == shape
