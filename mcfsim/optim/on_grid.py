"""Parameters on grids: each tensor's weights are rounded onto a grid after each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import on_blocks
from mcfsim.compile.choice import loops
from mcfsim.compile.program import Program, Register, Scalar
from mcfsim.compile.tracing import trace
from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.kernels.carriers import carrier_of
from mcfsim.optim.stored import Reach, WeightGrid
from mcfsim.random import RandomWords
from mcfsim.rounding import Rounding
from mcfsim.scaled.rules import LEAST_MEAN, sum_of_magnitudes
from mcfsim.storage.buffers import BLOCK

Array = NDArray[Any]

#: The operation number of the random words for grids, beyond the numbers of all operations of a step.
_OPERATION = 1 << 24
_NEAREST = Rounding()
#: Whether a compiled loop puts weights on grids after a step; with None, it does if that pays.
COMPILED: bool | None = None


class OnGrid:
    """The grids of an optimizer's tensors: the same integers for all, and a scale for each tensor.

    Parameters
    ----------
    grid : WeightGrid
        The integers, and the rule for scales.
    fmt : Format
        The format of the parameter and of scales. Every operation rounds into it, to nearest even.
    tensors : mapping of str to slice
        The place of each tensor in the vector of all parameters.
    random : RandomWords
        A word depends on the step and on the element's index among all elements.

    Attributes
    ----------
    scales : array, shape (tensors,)
        The scales with which weights were last put on their grids.

    Notes
    -----
    A step raises no errors: it follows IEEE arithmetic, like the code of Zhao et al. A NaN stays, and makes
    its tensor NaN once the scale is computed from it; so does an infinity. A weight that became infinite in
    the step is clipped, if the scale is computed from others. With the reach ``max``, suppose that no weight
    is positive. If the largest is negative, so is s: the grid is turned around, and no number of it lies
    below that weight. If the largest is zero, s is infinite: all weights become zero, but exact zeros become
    NaN. A zero on a grid has the sign of s; in the published code it may be negative.
    """

    def __init__(
        self, grid: WeightGrid, fmt: Format, tensors: Mapping[str, slice], random: RandomWords
    ) -> None:
        self.grid, self.format = grid, fmt
        self._tensors = list(tensors.values())
        self._random = random.of(_OPERATION)
        self._arithmetic = on_blocks(fmt, _NEAREST)
        self.scales = np.ones(len(self._tensors), carrier_of(fmt))
        self._first = self.scales.copy()
        self._clipped = np.zeros(1, np.int64)

    @property
    def clipped(self) -> int:
        """The number of weights at the start that lay beyond the ends of their grid."""
        return int(self._clipped[0])

    @property
    def kept(self) -> tuple[Array, ...]:
        """What is kept between steps: the scales, those at the start, and the count of clipped weights."""
        return self.scales, self._first, self._clipped

    def begin(self, weights: Array) -> None:
        """Put the weights at the start on their grids, in place."""
        self._scale(weights, self.grid.start)
        self._first = self.scales.copy()
        self._clipped[0] = 0
        for part, scale in self._scaled():
            self._clipped += _put(weights[part], scale, self._arithmetic, self.grid, None)

    def go_on(self, other: OnGrid | None, weights: Array) -> None:
        """Continue from weights on the grids of `other`; without it, put them on grids as at the start."""
        if other is None:
            self.begin(weights)
            return
        for x, y in zip(self.kept, other.kept, strict=True):
            x[...] = y

    def before(self, weights: Array) -> None:
        """Compute the scales that depend on the weights before a step."""
        if self.grid.reach in (Reach.MAX, Reach.ABSMAX):
            self._scale(weights, self.grid.reach)

    def after(self, weights: Array, step: int, first: int = 0) -> None:
        """Put the weights on their grids after a step, in place; `first` is the index of the first one."""
        if self.grid.reach is Reach.ABSMEAN:
            self._scale(weights, self.grid.reach)
        for part, scale in self._scaled():
            # There are words for 2**32 steps; a grid that draws none can go on beyond them.
            words = replace(self._random, step=step) if self.grid.draws else self._random
            _put(weights[part], scale, self._arithmetic, self.grid, words, first + part.start)

    def measures(self, before: Array, after: Array, part: slice) -> dict[str, float]:
        """Return measures of how a step changed the grids of the tensors in a range of the vector.

        Parameters
        ----------
        before, after : array
            All weights before the step, and after it on their grids.
        part : slice
            A range from the beginning of a tensor to the end of one.

        Returns
        -------
        dict of str to float
            ``changed``, the share of weights whose integer differs from the one nearest to the weight before,
            by the scale of the step; ``at_ends``, the share at the ends of their grid; ``grid_size``, the
            distance of neighbours relative to that at the start, averaged over weights. NaN if there are no
            weights.
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
        """Return the integers nearest to weights, even beyond the ends of the grid."""
        whole = np.ascontiguousarray(weights)
        near: Array = np.rint(self._arithmetic.mul(whole, np.full_like(whole, scale)))
        return near

    def _scaled(self) -> Iterator[tuple[slice, Any]]:
        return zip(self._tensors, self.scales, strict=True)

    def _scale(self, weights: Array, reach: Reach) -> None:
        for place, part in enumerate(self._tensors):
            self.scales[place] = scale_of(weights[part], self.grid, reach, self.format)


def on_grid(weights: Array, grid: WeightGrid | str, fmt: Format) -> Array:
    """Return a tensor rounded to nearest even onto its grid at the start, as for inference in fewer bits.

    Parameters
    ----------
    weights : array
        Numbers of the format, of any shape.
    grid : WeightGrid or str
        The grid, or the name of its integers, such as ``"ternary"``.
    fmt : Format
        The format of computation.
    """
    grid = grid if isinstance(grid, WeightGrid) else WeightGrid(grid)  # type: ignore[arg-type]
    grid.check_in(fmt)
    made = np.array(weights, carrier_of(fmt)).reshape(-1)
    _put(made, scale_of(made, grid, grid.start, fmt), on_blocks(fmt, _NEAREST), grid, None)
    return made.reshape(np.shape(weights))


def scale_of(weights: Array, grid: WeightGrid, reach: Reach, fmt: Format) -> Any:
    """Return the scale of a tensor, ``RN(Q / RN(reach))``: a number of the format in its carrier.

    It is NaN if a weight is, zero if the reach is infinite, infinite if the reach is zero, and 1 if there are
    no weights.

    Parameters
    ----------
    weights : array, shape (elements,)
        Numbers of the format.
    grid : WeightGrid
    reach : Reach
        Any but ``fixed``.
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
        return largest + 0.0  # from zeros of both signs, NumPy may return either
    largest = np.maximum(np.abs(largest), np.abs(weights.min()))
    if reach is Reach.ABSMAX or (total := sum_of_magnitudes(weights)) is None:
        return largest  # unless all numbers are finite, the mean equals the largest
    return round_to(max(total / weights.size, LEAST_MEAN), fmt)


def _put(
    weights: Array, scale: Any, ar: Any, grid: WeightGrid, random: RandomWords | None, first: int = 0
) -> int:
    """Put weights on a grid in place, a block at a time; return how many lay beyond its ends at the start.

    They are rounded to nearest even, or with random words by the grid's rounding; `first` is then the index
    of the first weight.
    """
    rounding, clipped = _NEAREST if random is None else grid.rounding, 0
    if random is not None and _looped(weights, scale, _program(grid, ar.format, rounding), random, first):
        return clipped
    integers, scales = on_blocks(grid.integers, rounding), np.full(BLOCK, scale, weights.dtype)
    for start in range(0, weights.size, BLOCK):
        block = weights[start : start + BLOCK]
        by = scales[: block.size]
        with np.errstate(all="ignore"):
            x = np.array(ar.mul(np.ascontiguousarray(block), by))
            if random is None:  # at the start
                clipped += int(np.count_nonzero((x < grid.integers.low) | (x > grid.integers.high)))
            np.clip(x, grid.integers.low, grid.integers.high, out=x)
            block[...] = ar.div(integers.at(random, first + start).round(x), by)
    return clipped


def _looped(weights: Array, scale: Any, program: Program, random: RandomWords, first: int) -> bool:
    """Put weights on a grid in place by a compiled loop; return whether there is one."""
    given = weights.size, COMPILED, {"s": float(scale)}, lambda _: {0: random}
    if (loop := loops("exact").bound_loop(lambda: program, *given)) is None:
        return False
    for start in range(0, weights.size, BLOCK):
        block = weights[start : start + BLOCK]
        loop([block], [block], first + start)
    return True


@lru_cache(maxsize=64)
def _program(grid: WeightGrid, fmt: Format, rounding: Rounding) -> Program:
    """Return the algorithm of `_put` as a program for one weight."""

    def put(ar: Any, weight: Any, scale: Any) -> Any:
        within = ar.minimum(ar.maximum(ar.mul(weight, scale), grid.integers.low), grid.integers.high)
        return ar.div(ar.round(ar.like(grid.integers, rounding).round(within)), scale)

    return trace(put, fmt, operands=(Register("weight", fmt), Scalar("s")))
