"""Embedding tables of integers whose steps are learned, row by row, and which are rounded at random."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.checks import Whole, finite_number, real_array, whole_number
from mcfsim.convert import round_to
from mcfsim.formats import get_format
from mcfsim.optim.declaration import Interval
from mcfsim.products import Accumulator, dot
from mcfsim.random import RandomWords
from mcfsim.rounding import get_rounding

Table = NDArray[np.float32]

#: Numbers and operations between integers are in binary32; the sum of a row is rounded once.
FLOAT32 = get_format("float32")
_SUM = Accumulator(FLOAT32, block=None)
#: The operation that draws after each step; the first codes take operation 0 of step 0.
_STEP = 1


class ParameterSlice(NamedTuple):
    """A table within a step: the weights after an update, and the rounded ones for the second pass.

    Attributes
    ----------
    weights : array of float32, shape (rows, columns)
        ``RN(step * code) + D``, rounded: on no grid.
    rounded : array of float32
        The nearest multiples of the steps, ties to even, within the range of codes.
    """

    weights: Table
    rounded: Table


class LearnedStepTable:
    """A table of integers, each row with a step that is learned with it.

    An update D of the weights is followed by one of the steps, by the gradient of a second pass with weights
    rounded to nearest, and then the weights are rounded at random to multiples of the new steps. Nothing but
    integers and steps is kept. Every operation is in binary32 and rounded once, to nearest even:
    ``w = step * code``; ``w' = w + D``; ``x = w' / step``; ``step * R(x)`` for the second pass, R to the
    nearest integer; ``d = R(x) - x``, or the end of the range beyond it; the sum of ``gradient * d`` over a
    row, exact and rounded once, times a real scale; times the rate; subtracted from the step; ``w' / step``
    by the new step, rounded at random.

    Parameters
    ----------
    weights : array_like, shape (rows, columns)
        Finite. They are rounded into binary32, and then at random to multiples of their row's first step,
        ``2 mean |w| / sqrt(largest code)``.
    bits : int
        Of a code, from 2 to 8.
    seed : int, optional
        Of the random words.
    least : float, optional
        No step becomes less; that of a row of zeros begins with it.
    rounding : str, optional
        Of the codes; another mode than ``"stochastic"``, to compare with, takes no random words.

    Attributes
    ----------
    codes : array of float32, shape (rows, columns)
        Whole numbers from ``-2^(bits - 1)`` to ``2^(bits - 1) - 1``.
    steps : array of float32, shape (rows, 1)
        Positive.
    count : int
        Steps that were made.
    whole : Whole
        Whether the last one came to its end. One that was broken off raises SpoiltStateError from then on.

    Raises
    ------
    TypeError, ValueError
        If weights are no finite table of real numbers, or bits, seed or `least` out of range.

    References
    ----------
    Li et al., Adaptive Low-Precision Training for Embeddings (ALPT), arXiv 2212.05735, AAAI 2023; the
    gradient of a step and its first value are those of Esser et al., Learned Step Size Quantization, ICLR
    2020.
    """

    def __init__(
        self, weights: ArrayLike, bits: int, seed: int = 0, least: float = 1e-8, rounding: str = "stochastic"
    ) -> None:
        table = real_array(weights, "weights")
        if table.ndim != 2 or not table.size or not np.isfinite(table).all():
            raise ValueError(f"weights must be a table of finite numbers, not of shape {table.shape}")
        if not 2 <= whole_number("bits", bits, least=2) <= 8:
            raise ValueError(f"bits = {bits} must lie in [2, 8]")
        if not 0 < finite_number("least", least) < 1:
            raise ValueError(f"least = {least} must lie in (0, 1)")
        self.grid = get_format(f"int{bits}")
        self.lowest, self.highest = float(self.grid.lowest), float(self.grid.max)
        self._ar: Any = arithmetic(FLOAT32)
        self._rounding = get_rounding(rounding, "saturate")
        self._words = RandomWords(seed)
        self.least = np.float32(round_to(least, FLOAT32, "up"))
        kept = np.asarray(self._ar.round(table), np.float32)
        first = 2 * np.abs(kept).mean(axis=1, keepdims=True) / self.highest**0.5
        self.steps: Table = np.maximum(np.asarray(first, np.float32), self.least)
        self.codes: Table = self._drawn(kept, self.steps, self._words)
        self.count = 0
        self.whole = Whole("make the table anew from the weights")

    @property
    def bytes_per_parameter(self) -> float:
        """What codes and steps take."""
        return float(self.grid.bits / 8 + 4 / self.codes.shape[1])

    def weights(self) -> Table:
        """Return the numbers that the table stands for."""
        self.whole.check()
        return np.asarray(self._ar.mul(self.steps, self.codes), np.float32)

    def moved(self, update: ArrayLike) -> ParameterSlice:
        """Return where an update takes the weights; the table stays as it is.

        Raises
        ------
        ValueError
            If the update has another shape, or is not finite.
        """
        change = self._same(update, "update")
        with np.errstate(over="ignore"):
            weights = np.asarray(self._ar.add(self.weights(), self._ar.round(change)), np.float32)
        if not np.isfinite(weights).all():
            raise ValueError("the update takes weights out of the range of float32")
        nearest = self._nearest(self._ar.div(weights, self.steps))
        return ParameterSlice(weights, np.asarray(self._ar.mul(self.steps, nearest), np.float32))

    def step(
        self, moved: ParameterSlice, gradient: ArrayLike | None = None, rate: float = 0.0, scale: float = 1.0
    ) -> None:
        """Change the steps by a second pass, and then round the weights at random.

        Parameters
        ----------
        moved : ParameterSlice
            From `moved`.
        gradient : array_like, shape (rows, columns), optional
            Of the loss, at ``moved.rounded``; without it the steps stay as they are.
        rate : float, optional
            Learning rate of the steps: finite, and not negative.
        scale : float, optional
            Factor of their gradient; ALPT takes ``1 / sqrt(numbers in a batch * largest code)``.

        Raises
        ------
        ValueError
            If the gradient has another shape, or is not finite, or rate or scale out of range. Nothing has
            changed then.
        """
        rate, scale = Interval.NOT_NEGATIVE.number("rate", rate), finite_number("scale", scale)
        self.whole.check()
        steps = self.steps
        if gradient is not None:
            slope = self._slopes(moved.weights)
            with np.errstate(over="ignore", invalid="ignore"):
                total = dot(self._ar.round(self._same(gradient, "gradient")), slope, _SUM)[:, None]
                change = self._ar.mul(self._ar.mul(total, scale), rate)
                steps = np.maximum(np.asarray(self._ar.sub(steps, change), np.float32), self.least)
            if not np.isfinite(steps).all():
                raise ValueError("steps leave the range of float32; a smaller rate keeps them within")
        count = self.count + 1
        codes = self._drawn(moved.weights, steps, RandomWords(self._words.seed, count).of(_STEP))
        with self.whole.changing(f"step {count}"):
            self.steps, self.codes, self.count = steps, codes, count

    def _slopes(self, weights: Table) -> Table:
        """Return the derivative of each rounded weight by its step."""
        x = np.asarray(self._ar.div(weights, self.steps), np.float32)
        inside = np.asarray(self._ar.sub(self._nearest(x), x), np.float32)
        found: Table = np.where(
            x <= self.lowest, self.lowest, np.where(x >= self.highest, self.highest, inside)
        )
        return found.astype(np.float32)

    def _nearest(self, x: Any) -> Table:
        return np.asarray(round_to(x, self.grid, "nearest_even", "saturate"), np.float32)

    def _drawn(self, weights: Table, steps: Table, words: RandomWords) -> Table:
        """Return codes of weights, rounded at random."""
        with np.errstate(over="ignore"):
            x = np.clip(np.asarray(self._ar.div(weights, steps), np.float32), self.lowest, self.highest)
        return np.asarray(round_to(x, self.grid, self._rounding, random=words), np.float32)

    def _same(self, numbers: ArrayLike, label: str) -> NDArray[Any]:
        """Return an array of the table's shape."""
        found = real_array(numbers, label)
        if found.shape != self.codes.shape or not np.isfinite(found).all():
            raise ValueError(
                f"the {label} must be finite, of shape {self.codes.shape}; it has shape {found.shape}"
            )
        return found
