"""Rounding on the carrier's codes: what a format cuts off of a number are the low bits of its code.

Adding to these bits carries into the fraction and on into the exponent, as rounding up should, so that each
mode is an addition that depends on the mode followed by clearing the low bits; the sign stays where it is.
That holds as long as the quantum follows the carrier's exponent: for normal numbers of the format, and for
all numbers if its ``emin`` is the carrier's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Parity
from mcfsim.random import Words
from mcfsim.rounding import Mode, Rounding, Rule
from mcfsim.storage.buffers import scratch

Block = NDArray[Any]


class Coded:
    """Rounding of blocks by their codes. NaN and infinity come out as anything; the caller restores them.

    Parameters
    ----------
    fmt, rounding, carrier : Format, Rounding, dtype
        As for `mcfsim.kernels.floats.FloatKernel`.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        info = np.finfo(carrier)
        self.rounding = rounding
        self.integer = np.dtype(f"i{carrier.itemsize}")
        self.cut = info.nmant + 1 - fmt.precision
        self.one = self._constant(1)
        self.quantum_bit = self._constant(1 << self.cut)
        self.half = self._constant(1 << self.cut >> 1)
        self.cut_bits = self._constant((1 << self.cut) - 1)
        self.kept_bits = self._constant(~((1 << self.cut) - 1))
        self.sign_place = self._constant(8 * carrier.itemsize - 1)
        self.carry = self._carrying(self.cut)
        #: Where nearest_first rounds to the random bits, if they are fewer than those cut off.
        self.first_carry = self._carrying(max(self.cut - rounding.random_bits, 0))
        mode = rounding.mode
        self.flips = False
        if fmt.precision == 1:  # the last bit kept is the exponent's, and no bit of the significand
            if fmt.parity is Parity.CODE:
                self.flips = (fmt.bias - int(info.maxexp) + 1) % 2 == 1
            elif mode is Mode.NEAREST_EVEN:
                mode = Mode.NEAREST_AWAY
            elif mode is Mode.TO_ODD:
                mode = Mode.TOWARD_ZERO
        self._round = getattr(self, f"_{mode}")

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round ``x`` into ``out``, which may be ``x``; both contiguous and of the carrier."""
        if self.cut:
            self._round(x.view(self.integer), out.view(self.integer), words)
        elif out is not x:
            np.copyto(out, x)

    # -- one method a mode: codes in, codes out -----------------------------------------------------------
    def _nearest_even(self, bits: Block, out: Block, words: Words | None) -> None:
        np.bitwise_and(self._carried(bits, self.carry, self.flips), self.kept_bits, out=out)

    def _carried(self, bits: Block, carry: tuple[Block, Block], flips: bool = False) -> Block:
        """Add just under half a unit of some bit, and that bit (or its opposite): ties then go to even."""
        place, under_half = carry
        code = scratch("code", bits.size, self.integer)
        np.right_shift(bits, place, out=code)
        np.bitwise_and(code, self.one, out=code)
        if flips:
            np.bitwise_xor(code, self.one, out=code)
        np.add(code, under_half, out=code)
        np.add(code, bits, out=code)
        return code

    def _carrying(self, place: int) -> tuple[Block, Block]:
        return self._constant(place), self._constant((1 << place >> 1) - 1)

    def _constant(self, number: int) -> Block:
        """Return an array without axes: the operand of the least overhead."""
        return np.array(number, dtype=self.integer)

    def _nearest_away(self, bits: Block, out: Block, words: Words | None) -> None:
        np.add(bits, self.half, out=out)
        np.bitwise_and(out, self.kept_bits, out=out)

    def _toward_zero(self, bits: Block, out: Block, words: Words | None) -> None:
        np.bitwise_and(bits, self.kept_bits, out=out)

    def _up(self, bits: Block, out: Block, words: Words | None) -> None:
        negative = self._negative(bits)
        self._outward(bits, out, np.invert(negative, out=negative))

    def _down(self, bits: Block, out: Block, words: Words | None) -> None:
        self._outward(bits, out, self._negative(bits))

    def _negative(self, bits: Block) -> Block:
        signs = scratch("code", bits.size, self.integer)
        np.right_shift(bits, self.sign_place, out=signs)
        return signs

    def _outward(self, bits: Block, out: Block, where: Block) -> None:
        """Round away from zero where the mask is set, toward it elsewhere."""
        np.bitwise_and(where, self.cut_bits, out=where)
        np.add(where, bits, out=where)
        np.bitwise_and(where, self.kept_bits, out=out)

    def _to_odd(self, bits: Block, out: Block, words: Words | None) -> None:
        code = np.bitwise_and(bits, self.cut_bits, out=scratch("code", bits.size, self.integer))
        np.add(code, self.cut_bits, out=code)  # reaches the last bit kept if anything is cut off
        if self.flips:  # odd is a clear bit: move up from a set one
            np.bitwise_and(code, bits, out=code)
            np.bitwise_and(code, self.quantum_bit, out=code)
            np.add(code, bits, out=code)
        else:
            np.bitwise_or(code, bits, out=code)
        np.bitwise_and(code, self.kept_bits, out=out)

    def _stochastic(self, bits: Block, out: Block, words: Words | None) -> None:
        if words is None or words.shape != bits.shape:
            raise ValueError("stochastic rounding needs a random word for each element")
        if self.rounding.rule is Rule.NEAREST_FIRST and self.rounding.random_bits < self.cut:
            bits = self._carried(bits, self.first_carry)
        np.add(bits, self._addend(words), out=out)
        np.bitwise_and(out, self.kept_bits, out=out)

    def _addend(self, words: Words) -> Block:
        """Return what carries with the stated probability: the random bits, aligned below the last bit kept.

        With ``r`` random bits R the rules truncate and nearest_first carry if ``rest + R 2**(cut - r)``
        reaches ``2**cut``, and centred does with ``2 R + 1`` and ``r + 1`` in place of R and r. If there are
        more random bits than are cut off, the excess ones cannot matter and are dropped.
        """
        bits = self.rounding.random_bits
        draw = scratch("draw", words.size, self.integer if bits < 31 else np.dtype(np.int64))
        np.copyto(draw, draws(words, bits), casting="unsafe")
        if self.rounding.rule is Rule.CENTRED:
            bits += 1
            np.add(np.left_shift(draw, 1, out=draw), 1, out=draw)
        if bits < self.cut:
            np.left_shift(draw, self.cut - bits, out=draw)
        elif bits > self.cut:
            np.right_shift(draw, bits - self.cut, out=draw)
        return draw.astype(self.integer, copy=False)


def draws(words: Words, bits: int) -> Words:
    """Return the highest bits of random words, as integers."""
    excess = 8 * words.dtype.itemsize - bits
    if excess < 0:
        raise ValueError(f"words of {8 * words.dtype.itemsize} bits are too short for {bits} random bits")
    return words >> words.dtype.type(excess) if excess else words
