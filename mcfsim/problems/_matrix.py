"""Matrices of float64 data that multiply float64 vectors, or vectors of mpmath numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class DataMatrix:
    """A float64 matrix for products ``matrix @ vector``.

    Entries of a product with mpmath numbers are exact up to one rounding to the working precision of the
    numbers' context.
    """

    def __init__(self, entries: NDArray[np.float64]) -> None:
        self.entries = entries
        self._rows: dict[Any, list[list[Any]]] = {}  # the entries as numbers of each context met so far

    def __matmul__(self, vector: NDArray[Any]) -> NDArray[Any]:
        if vector.dtype != object:
            product: NDArray[Any] = self.entries @ vector
            return product
        context = vector[0].context
        if context not in self._rows:
            # convert(), unlike the constructor mpf(), never rounds a float to the working precision.
            self._rows[context] = [list(map(context.convert, row)) for row in self.entries.tolist()]
        numbers = vector.tolist()
        return np.array([context.fdot(row, numbers) for row in self._rows[context]], dtype=object)

    def __reduce__(self) -> tuple[type[DataMatrix], tuple[NDArray[np.float64]]]:
        return DataMatrix, (self.entries,)  # contexts of mpmath cannot be pickled
