"""Rounding by alignment: adding a power of two whose unit in the last place is the format's quantum.

The carrier's own addition then rounds to nearest even, subnormals included, and subtracting the power again
is exact, and so is the error. The sum's code counts in quanta: one more or one less is the next value of the
format, to which the sign of the error leads in the other modes.

One and a half times the power is added, so that numbers of either sign stay within its binade. This takes two
bits of the carrier beyond the format's precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mcfsim.formats import Format
from mcfsim.random import Words
from mcfsim.rounding import Mode, Rounding
from mcfsim.storage.buffers import scratch

Block = NDArray[Any]


class Aligned:
    """Rounding of blocks by alignment; not stochastic rounding.

    NaN and infinity come out as anything, and overflow as something beyond the maximum or NaN; the caller
    restores them.

    Parameters
    ----------
    fmt, rounding, carrier : Format, Rounding, dtype
        As for `mcfsim.kernels.floats.FloatKernel`; `serves` tells whether they will do.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        info = np.finfo(carrier)
        place, bias = info.nmant, int(info.maxexp) - 1
        cut = place + 1 - fmt.precision
        self.carrier, self.integer = carrier, np.dtype(f"i{carrier.itemsize}")
        self.one = self._constant(1)
        self.sign_bit = self._constant(np.iinfo(self.integer).min)
        self.sign_place = self._constant(8 * carrier.itemsize - 1)
        self.exponent_bits = self._constant((2 * bias + 1) << place)
        self.lowest_field = self._constant((fmt.emin + bias) << place)
        self.highest_field = self._constant((fmt.emax + 1 + bias) << place)
        # From the code of 2**e to that of 1.5 * 2**(e + cut).
        self.to_power = self._constant((cut << place) + (1 << (place - 1)))
        self._round = getattr(self, f"_{rounding.mode}")

    @staticmethod
    def serves(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> bool:
        """Return whether the power exists for every exponent, and the mode is served."""
        info = np.finfo(carrier)
        cut, carrier_emax = info.nmant + 1 - fmt.precision, int(info.maxexp) - 1
        reaches = cut >= 2 and fmt.emax + 1 + cut <= carrier_emax
        # With one significand bit a sum's code does not tell even from odd.
        return reaches and fmt.precision > 1 and rounding.mode is not Mode.STOCHASTIC

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round ``x`` into ``out``, which may be ``x``; both contiguous and of the carrier."""
        sign = np.bitwise_and(x.view(self.integer), self.sign_bit, out=self._scratch("sign", x, self.integer))
        shifted, power = self._round(x)
        np.subtract(shifted, power, out=out)
        code = out.view(self.integer)
        np.bitwise_or(code, sign, out=code)

    # -- one method a mode: the aligned sum, and the power to be subtracted again --------------------------
    def _nearest_even(self, x: Block) -> tuple[Block, Block]:
        power = self._power(x)
        return np.add(x, power, out=self._scratch("shifted", x)), power

    def _up(self, x: Block) -> tuple[Block, Block]:
        shifted, power, nearest = self._rounded(x)
        np.subtract(nearest, x, out=nearest)  # exact; never -0, as `nearest` is no -0
        self._step(shifted, nearest, np.subtract)
        return shifted, power

    def _down(self, x: Block) -> tuple[Block, Block]:
        shifted, power = self._up(np.negative(x, out=self._scratch("operand", x)))
        # -(s - P) is (-s) - (-P).
        return np.negative(shifted, out=shifted), np.negative(power, out=power)

    def _toward_zero(self, x: Block) -> tuple[Block, Block]:
        magnitude = np.abs(x, out=self._scratch("operand", x))
        shifted, power, nearest = self._rounded(magnitude)
        self._step(shifted, np.subtract(magnitude, nearest, out=nearest), np.add)
        return shifted, power

    def _nearest_away(self, x: Block) -> tuple[Block, Block]:
        magnitude = np.abs(x, out=self._scratch("operand", x))
        shifted, power, nearest = self._rounded(magnitude)
        code = shifted.view(self.integer)
        above = self._scratch("above", x)
        np.add(code, self.one, out=above.view(self.integer))
        np.subtract(above, power, out=above)
        # A tie that went to zero is as far from the next number.
        np.subtract(above, magnitude, out=above)
        np.subtract(magnitude, nearest, out=nearest)
        np.add(code, np.equal(above, nearest, out=self._scratch("tie", x, np.bool_)), out=code)
        return shifted, power

    def _to_odd(self, x: Block) -> tuple[Block, Block]:
        magnitude = np.abs(x, out=self._scratch("operand", x))
        shifted, power, nearest = self._rounded(magnitude)
        error = np.subtract(magnitude, nearest, out=nearest)
        inexact = np.not_equal(error, 0, out=self._scratch("inexact", x, np.bool_))
        self._step(shifted, error, np.add)
        code = shifted.view(self.integer)
        np.bitwise_or(code, inexact, out=code)
        return shifted, power

    def _rounded(self, x: Block) -> tuple[Block, Block, Block]:
        """Return the aligned sum, the power, and their difference, which is x rounded to nearest."""
        power = self._power(x)
        shifted = np.add(x, power, out=self._scratch("shifted", x))
        return shifted, power, np.subtract(shifted, power, out=self._scratch("nearest", x))

    def _step(self, shifted: Block, error: Block, add: np.ufunc) -> None:
        """Add -1 to the code, or subtract it, where the error has a negative sign; the error is used up."""
        code, signs = shifted.view(self.integer), error.view(self.integer)
        add(code, np.right_shift(signs, self.sign_place, out=signs), out=code)

    def _power(self, x: Block) -> Block:
        """Return 1.5 times the power of two that aligns each element."""
        code = self._scratch("power", x, self.integer)
        np.bitwise_and(x.view(self.integer), self.exponent_bits, out=code)
        np.clip(code, self.lowest_field, self.highest_field, out=code)
        np.add(code, self.to_power, out=code)
        power: Block = code.view(self.carrier)
        return power

    def _constant(self, number: int) -> Block:
        """Return an array without axes: the operand of the least overhead."""
        return np.array(number, dtype=self.integer)

    def _scratch(self, place: str, x: Block, dtype: DTypeLike | None = None) -> Block:
        return scratch(place, x.size, self.carrier if dtype is None else dtype)
