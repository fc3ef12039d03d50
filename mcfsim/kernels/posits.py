"""Rounding of blocks to posits, on the bits of the carrier's codes.

The posit standard rounds a number by its pattern, the code that it would have if codes had no end: n bits are
kept, and the rest, read as a binary fraction, decides. Between two neighbours the boundary of the modes to
nearest is therefore the posit of n + 1 bits between them, which is not the arithmetic mean where not all
exponent bits are kept.

Patterns are ordered as the numbers are, and so are a carrier's codes, whose low bits are those of the pattern
where anything is cut off. So the pattern need not be put together: rounding is an addition to the carrier's
code and a clearing of its low bits, how many of them depends on the number, and a carry into exponent and
regime leads to the next posit.

What binary64 can decide. All boundaries of rounding are posits of more bits: of n where it is directed or to
odd, of n + 1 where it is to nearest, of n + r + 1 at most where it takes r random bits. A posit of n + j bits
has at most p + j significant bits, p the precision of the format. So if p + j + 1 <= 53, no boundary lies
between an exact result and the binary64 number made odd of it, nor on the latter if not on the former, and
both round alike: in the deterministic modes up to n = 53 + es, with r random bits up to n = 53 + es - r. Here
as for floating-point formats 53 bits must hold the precision and `Rounding.guard_bits`. Exact results must
not leave binary64's range, either. Except for zero their magnitudes lie between minpos**2 and
maxpos**2 + maxpos, maxpos = 2**((n - 2) 2**es), that is, within 2**+-481 for n <= 32 and es <= 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats.posit import Posit
from mcfsim.kernels.by_bits import draws
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.kernels.posit_codes import Layout
from mcfsim.random import Words
from mcfsim.rounding import Rounding, Rule, Underflow

Block = NDArray[Any]


class _Parts(NamedTuple):
    """A block taken apart: offsets, how many low bits are cut off of them, ones in these, and sign bits."""

    offset: Block
    cut: Block
    ones: Block
    sign: Block


class PositKernel:
    """Rounding of blocks from one carrier type to posits.

    A mode decides on the fraction that is cut off of the pattern of the magnitude; ``up`` and ``down`` are
    directed by the sign, odd is a code whose last bit is 1, and ``nearest_even`` takes a tie to the other.
    In every mode, the directed ones and the stochastic one included, a number other than zero of magnitude
    below the smallest posit becomes the smallest, and one beyond the largest the largest, of the same sign: a
    posit neither underflows nor overflows, and overflow policies make no difference. NaN stays NaN with its
    sign, an infinity becomes NaN, and a zero positive.

    Parameters
    ----------
    fmt : Posit
        The target.
    rounding : Rounding
        Mode and random bits.
    carrier : dtype
        ``float32`` or ``float64``; every value of the format must be one of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format, or small numbers are to be flushed to zero.
    """

    #: Whether every number of the carrier is a value of the format: never, an infinity is not.
    exact = False

    def __init__(self, fmt: Posit, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        if rounding.underflow is not Underflow.GRADUAL:
            raise UnsupportedFormatError(
                f"{fmt} does not underflow: underflow must be 'gradual', not {rounding.underflow!s}"
            )
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        self.layout = Layout(fmt, carrier)
        self.integer = self.layout.integer
        self.unsigned = np.dtype(f"u{carrier.itemsize}")
        self.sign_bit = self.integer.type(np.iinfo(self.integer).min)
        self.sign_place = 8 * carrier.itemsize - 1
        self._addend = getattr(self, f"_{rounding.mode}")

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word an element.
        """
        bits, one = x.view(self.integer), self.layout.one
        sign = np.bitwise_and(bits, self.sign_bit)
        magnitude = np.bitwise_and(bits, ~self.sign_bit)
        # Zero, an infinity or NaN: one comparison does, as zero less one is the largest unsigned integer.
        code = np.subtract(magnitude, self.integer.type(1)).view(self.unsigned)
        special = np.flatnonzero(code >= self.unsigned.type(self.layout.infinity - 1))
        replacement = self._special(x[special])

        offset = np.subtract(magnitude, one, out=magnitude)
        np.clip(offset, self.layout.least, self.layout.greatest, out=offset)
        cut = self.layout.cut(offset)
        ones = self._ones(cut)
        np.add(offset, self._addend(_Parts(offset, cut, ones, sign), words), out=offset)
        np.bitwise_and(offset, np.invert(ones, out=ones), out=offset)
        np.add(offset, one, out=offset)
        np.bitwise_or(offset, sign, out=out.view(self.integer))
        out[special] = replacement

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the format alone; the sign of zero is not judged."""
        magnitude = np.bitwise_and(x.view(self.integer), ~self.sign_bit)
        given = magnitude - self.layout.one
        offset = np.clip(given, self.layout.least, self.layout.greatest)
        rest = np.bitwise_and(offset, self._ones(self.layout.cut(offset)))
        value = (offset == given) & (rest == 0)
        return bool((value | (magnitude == 0) | np.isnan(x)).all())

    def _special(self, given: Block) -> Block:
        """Return what zeros, infinities and NaN become."""
        nan = np.copysign(self.carrier.type("nan"), given)
        replacement: Block = np.where(given == 0, self.carrier.type(0), nan)
        return replacement

    def _ones(self, count: Block) -> Block:
        """Return integers of so many ones."""
        ones: Block = np.left_shift(self.integer.type(1), count)
        np.subtract(ones, self.integer.type(1), out=ones)
        return ones

    def _odd(self, parts: _Parts) -> Block:
        """Return the last bit of the code kept, as 0 or 1."""
        odd: Block = np.right_shift(parts.offset, parts.cut)
        np.bitwise_and(odd, 1, out=odd)
        # A regime that fills the code ends in 1 for k = 2 - n and in 0 for k = n - 3; so does k for odd n.
        if self.fmt.bits % 2 == 0:
            np.bitwise_xor(odd, parts.cut == self.layout.tail, out=odd)
        return odd

    # -- one method a mode: what to add to the offset before its low bits are cleared ----------------------
    def _nearest_even(self, parts: _Parts, words: Words | None) -> Block:
        # Half a unit of the last bit kept, or just less for an even code; nothing if nothing is cut off.
        addend = self._odd(parts)
        np.add(addend, parts.ones, out=addend)
        return np.right_shift(addend, 1, out=addend)

    def _nearest_away(self, parts: _Parts, words: Words | None) -> Block:
        addend: Block = np.add(parts.ones, self.integer.type(1))
        return np.right_shift(addend, 1, out=addend)

    def _toward_zero(self, parts: _Parts, words: Words | None) -> Block:
        return np.zeros(1, self.integer)

    def _up(self, parts: _Parts, words: Words | None) -> Block:
        nonnegative: Block = np.invert(np.right_shift(parts.sign, self.sign_place))
        return np.bitwise_and(nonnegative, parts.ones, out=nonnegative)

    def _down(self, parts: _Parts, words: Words | None) -> Block:
        negative: Block = np.right_shift(parts.sign, self.sign_place)
        return np.bitwise_and(negative, parts.ones, out=negative)

    def _to_odd(self, parts: _Parts, words: Words | None) -> Block:
        even = np.subtract(self._odd(parts), self.integer.type(1))  # all bits set, or none
        addend: Block = np.bitwise_and(even, parts.ones, out=even)
        return addend

    def _stochastic(self, parts: _Parts, words: Words | None) -> Block:
        if words is None or words.shape != parts.offset.shape:
            raise ValueError("stochastic rounding needs a random word for each element")
        rule, bits = self.rounding.rule, self.rounding.random_bits
        draw = draws(words, bits).astype(self.integer if bits < 31 else np.int64)
        if rule is Rule.CENTRED:
            draw, bits = 2 * draw + 1, bits + 1
        # Aligned below the last bit kept; of more bits than are cut off the excess cannot matter.
        beyond = parts.cut - self.integer.type(bits)
        addend = (draw << np.maximum(beyond, 0)) >> np.maximum(-beyond, 0)
        if rule is Rule.NEAREST_FIRST:
            np.maximum(beyond, 0, out=beyond)
            odd = (parts.offset >> beyond) & 1
            addend += (self._ones(beyond) + odd) >> 1
        aligned: Block = addend.astype(self.integer, copy=False)
        return aligned
