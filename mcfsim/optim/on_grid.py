"""Weights that are put on a grid after each step, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.weight_grid import Reach, WeightGrid
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.scaled.mean import sum_of_magnitudes
from mcfsim.scaled.rules import LEAST_MEAN
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]

#: Where the words of grids begin, beyond those of all operations of a step.
_OPERATION = 1 << 24
_NEAREST = Rounding()


class OnGrid:
    """The grids of an optimizer's tensors: each has the same integers, and a scale of its own.

    Parameters
    ----------
    grid : WeightGrid
        The integers, and how scales follow.
    fmt : Format
        Of the parameter: scales are numbers of it, and every operation is rounded into it, to nearest even.
    tensors : mapping of str to slice
        Where each tensor lies in the vector of all parameters.
    random : RandomWords
        A word depends on the step and on the element's index among all elements.

    Attributes
    ----------
    scales : array, shape (tensors,)
        Those by which weights were last put on their grids.
    clipped : int
        How many weights of the start lay beyond the ends of their grid.

    Notes
    -----
    Nothing is refused in a step: it goes as IEEE arithmetic does, and as in the code of Zhao et al. A NaN
    stays, and makes its tensor NaN as soon as the scale is made of it; so does an infinity. A weight that
    became infinite in the step is clipped, if the scale is made of others. Where no weight is positive, and
    the grid reaches up to the largest one: the grid is turned around if that is negative, so that no weight
    lies below it; and if it is zero, s is infinite, all weights become zero, and one that is exactly zero
    NaN. Zero has no sign on a grid but that of s, where the code's may be negative.
    """

    def __init__(
        self, grid: WeightGrid, fmt: Format, tensors: Mapping[str, slice], random: RandomWords
    ) -> None:
        self.grid, self.format = grid, fmt
        self._tensors = list(tensors.values())
        self._random = random.of(_OPERATION)
        self._arithmetic = on_blocks(fmt, _NEAREST)
        self.scales = np.ones(len(self._tensors), carrier_of(fmt))
        self._first = self.scales
        self.clipped = 0

    def begin(self, weights: Array) -> None:
        """Put the start on its grids, in place."""
        self._scale(weights, self.grid.start)
        self._first = self.scales.copy()
        for part, scale in self._scaled():
            self.clipped += _put(weights[part], scale, self._arithmetic, self.grid, None)

    def before(self, weights: Array) -> None:
        """Look at the weights before a step, from which some scales follow."""
        if self.grid.reach in (Reach.MAX, Reach.ABSMAX):
            self._scale(weights, self.grid.reach)

    def after(self, weights: Array, step: int) -> None:
        """Put the weights that a step left on their grids, in place."""
        if self.grid.reach is Reach.ABSMEAN:
            self._scale(weights, self.grid.reach)
        for part, scale in self._scaled():
            words = replace(self._random, step=step)
            _put(weights[part], scale, self._arithmetic, self.grid, words, part.start)

    def measures(self, before: Array, after: Array, part: slice) -> dict[str, float]:
        """Return what a step did to the grids of the tensors in a range of the vector.

        Parameters
        ----------
        before, after : array
            All weights before the step, and those that it put on their grids.
        part : slice
            From the beginning of a tensor to the end of one.

        Returns
        -------
        dict of str to float
            ``changed``, the share of weights whose integer is another than the one that the weight before is
            nearest to, by the scale of the step; ``at_ends``, the share at the ends of their grid;
            ``grid_size``, the distance of neighbours relative to that at the start, in the mean over weights.
            NaN of no weights.
        """
        changed, ends, size, total = 0, 0, 0.0, part.stop - part.start
        integers = self.grid.integers
        with np.errstate(all="ignore"):
            for (tensor, scale), first in zip(self._scaled(), self._first, strict=True):
                if not (part.start <= tensor.start and tensor.stop <= part.stop):
                    continue
                old, new = (self._integers(x[tensor], scale) for x in (before, after))
                changed += int(np.count_nonzero(old != new))
                ends += int(np.count_nonzero((new == integers.low) | (new == integers.high)))
                size += (tensor.stop - tensor.start) * float(first / np.float64(scale))
        counts = {"changed": changed, "at_ends": ends, "grid_size": size}
        return {name: count / total if total else math.nan for name, count in counts.items()}

    def _integers(self, weights: Array, scale: Any) -> Array:
        """Return the integers that weights are nearest to, beyond the ends too."""
        whole = np.ascontiguousarray(weights)
        near: Array = np.rint(self._arithmetic.mul(whole, np.full_like(whole, scale)))
        return near

    def _scaled(self) -> Iterator[tuple[slice, Any]]:
        return zip(self._tensors, self.scales, strict=True)

    def _scale(self, weights: Array, reach: Reach) -> None:
        for place, part in enumerate(self._tensors):
            self.scales[place] = scale_of(weights[part], self.grid, reach, self.format)


def on_grid(weights: Array, grid: WeightGrid | str, fmt: Format) -> Array:
    """Return a tensor on the grid of its start, rounded to nearest even: as for inference by fewer bits.

    Parameters
    ----------
    weights : array
        Numbers of the format, of any shape.
    grid : WeightGrid or str
        Or the name of its integers, as ``"ternary"``.
    fmt : Format
        In which this is computed.
    """
    grid = grid if isinstance(grid, WeightGrid) else WeightGrid(grid)  # type: ignore[arg-type]
    grid.check_in(fmt)
    made = np.array(weights, carrier_of(fmt)).reshape(-1)
    _put(made, scale_of(made, grid, grid.start, fmt), on_blocks(fmt, _NEAREST), grid, None)
    return made.reshape(np.shape(weights))


def scale_of(weights: Array, grid: WeightGrid, reach: Reach, fmt: Format) -> Any:
    """Return the scale of a tensor, ``RN(Q / RN(reach))``: a number of the format in its carrier.

    NaN if a weight is, zero if what it follows from is infinite, infinite if that is zero; 1 for no weights.

    Parameters
    ----------
    weights : array, shape (elements,)
        Numbers of the format.
    grid : WeightGrid
    reach : Reach
        But not ``fixed``.
    fmt : Format
    """
    carrier = carrier_of(fmt)
    if not weights.size:
        return carrier.type(1)
    with np.errstate(all="ignore"):
        reached = np.full(1, _reached(weights, reach, fmt), carrier)
        return on_blocks(fmt, _NEAREST).div(np.full(1, grid.integers.high, carrier), reached)[0]


def _reached(weights: Array, reach: Reach, fmt: Format) -> Any:
    largest = weights.max()
    if reach is Reach.MAX:
        return largest + 0.0  # of zeros of both signs NumPy may return either
    largest = np.maximum(np.abs(largest), np.abs(weights.min()))
    if reach is Reach.ABSMAX or (total := sum_of_magnitudes(weights)) is None:
        return largest  # of numbers that are not all finite the mean is what the largest is
    return round_to(max(total / weights.size, LEAST_MEAN), fmt)


def _put(
    weights: Array, scale: Any, ar: Any, grid: WeightGrid, random: RandomWords | None, first: int = 0
) -> int:
    """Put weights on a grid in place, a block at a time; return how many lay beyond its ends.

    They are rounded to nearest even, or if there are random words as the grid says; then the first of them
    is the element of this index.
    """
    rounding = _NEAREST if random is None else grid.rounding
    integers, clipped = on_blocks(grid.integers, rounding), 0
    for start in range(0, weights.size, BLOCK):
        block = weights[start : start + BLOCK]
        by = np.full(block.size, scale, block.dtype)
        with np.errstate(all="ignore"):
            x = np.array(ar.mul(np.ascontiguousarray(block), by))
            clipped += int(np.count_nonzero((x < grid.integers.low) | (x > grid.integers.high)))
            np.clip(x, grid.integers.low, grid.integers.high, out=x)
            block[...] = ar.div(integers.at(random, first + start).round(x), by)
    return clipped
