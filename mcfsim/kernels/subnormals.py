"""Rounding of numbers below a format's smallest normal one, which all have one quantum: in units of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format
from mcfsim.kernels.by_bits import draws
from mcfsim.random import Words
from mcfsim.rounding import Rounding, Rule

Block = NDArray[Any]


class Subnormal:
    """Rounding of blocks of numbers of magnitude below ``2**emin`` to multiples of the quantum.

    Parameters
    ----------
    fmt, rounding, carrier : Format, Rounding, dtype
        As for `mcfsim.kernels.floats.FloatKernel`.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        self.rounding, self.carrier = rounding, carrier
        scale = fmt.precision - 1 - fmt.emin
        # The quantum and its reciprocal may exceed the carrier: multiply in two exact steps.
        halves = scale // 2, scale - scale // 2
        self.to_quanta = [carrier.type(2.0**half) for half in halves]
        self.to_numbers = [carrier.type(2.0**-half) for half in halves]
        self.loses = scale < 0  # numbers far below the quantum then leave the carrier's range
        self._round = getattr(self, f"_{rounding.mode}")

    def __call__(self, x: Block, words: Words | None = None) -> Block:
        """Return the rounded numbers, each with the sign of its ``x``, zeros too."""
        quanta = x * self.to_quanta[0] * self.to_quanta[1]
        if self.loses:
            lost = (quanta == 0) & (x != 0)
            np.copyto(quanta, np.copysign(np.finfo(self.carrier).tiny, x), where=lost)
        rounded: Block = self._round(quanta, words)
        np.multiply(rounded, self.to_numbers[0], out=rounded)
        np.multiply(rounded, self.to_numbers[1], out=rounded)
        return rounded

    # -- one method a mode: to integers -------------------------------------------------------------------
    def _nearest_even(self, quanta: Block, words: Words | None) -> Block:
        return np.rint(quanta)

    def _nearest_away(self, quanta: Block, words: Words | None) -> Block:
        whole = np.trunc(quanta)
        return self._outward(whole, np.abs(quanta - whole) >= 0.5, quanta)

    def _toward_zero(self, quanta: Block, words: Words | None) -> Block:
        return np.trunc(quanta)

    def _up(self, quanta: Block, words: Words | None) -> Block:
        return np.ceil(quanta)

    def _down(self, quanta: Block, words: Words | None) -> Block:
        return np.floor(quanta)

    def _to_odd(self, quanta: Block, words: Words | None) -> Block:
        whole = np.trunc(quanta)
        even = np.trunc(whole * 0.5) * 2 == whole
        return self._outward(whole, even & (whole != quanta), quanta)

    def _stochastic(self, quanta: Block, words: Words | None) -> Block:
        if words is None or words.shape != quanta.shape:
            raise ValueError("stochastic rounding needs a random word for each element")
        bits, rule = self.rounding.random_bits, self.rounding.rule
        draw = draws(words, bits).astype(np.int64)
        if rule is Rule.CENTRED:
            draw, bits = 2 * draw + 1, bits + 1
        whole = np.trunc(quanta)
        fraction = np.abs(quanta - whole).astype(np.float64) * 2.0**bits
        fraction = np.rint(fraction) if rule is Rule.NEAREST_FIRST else np.floor(fraction)
        outward = fraction.astype(np.int64) + draw >= 1 << bits
        return self._outward(whole, outward, quanta)

    def _outward(self, whole: Block, where: Block, quanta: Block) -> Block:
        """Add one quantum with the sign of the number where the mask is set."""
        whole += np.copysign(where.astype(self.carrier), quanta)
        return whole
