"""What of a tensor has one number: each element, or all of a row, a column, a matrix or the whole."""

from __future__ import annotations

import math
from enum import Enum

#: A tensor as a stack of matrices: how many, rows, columns.
Shape = tuple[int, int, int]


class Over(Enum):
    """What of a tensor has a number each.

    The last two indices of a tensor are its rows and columns, those before count matrices. What is shared is
    an array of three indices, of which those that do not matter have length 1: so NumPy broadcasts it.
    """

    ELEMENT = (True, True, True)
    ROW = (True, True, False)
    COLUMN = (True, False, True)
    MATRIX = (True, False, False)
    TENSOR = (False, False, False)

    @property
    def place(self) -> int:
        """Return its place among all."""
        return list(Over).index(self)

    def shape(self, whole: Shape) -> Shape:
        """Return the shape of the numbers of a tensor."""
        stack, rows, columns = (
            size if matters else 1 for size, matters in zip(whole, self.value, strict=True)
        )
        return stack, rows, columns

    def count(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers a tensor has; an empty one has none."""
        whole = stacked(shape)
        return math.prod(self.shape(whole)) if math.prod(whole) else 0


def stacked(shape: tuple[int, ...]) -> Shape:
    """Return a tensor's shape as a stack of matrices; fewer than two indices are those of one row."""
    *stack, rows, columns = (1, 1, *shape)[-max(2, len(shape)) :]
    return math.prod(stack), rows, columns
