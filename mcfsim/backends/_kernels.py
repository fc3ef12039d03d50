"""The one rounding kernel: a block of carrier numbers to the values of a format.

The carrier is binary32 or binary64. Two ways to reach the neighbour below ``|x|`` are used, both exact:

*aligned*: adding the power of two whose unit in the last place is the format's quantum at ``x`` makes the
carrier's own addition round to nearest even, subnormals included, and subtracting it again is exact. It
needs that power to be a finite carrier number for every exponent of the format.

*bits*: adding to, or clearing, the low bits of the carrier's code. It has no such limit, since a carry
runs into the exponent as it should, but the format's subnormals (if it has a larger ``emin`` than the
carrier) need the aligned way with its one fixed power, and NaN must be put back.

Nearest even takes the shortest path. Every other mode truncates, looks at the exact fraction of the
quantum that was cut off, and moves up where the mode says so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.carriers import UnsupportedFormatError, holds
from mcfsim.formats import Format
from mcfsim.random import Words
from mcfsim.rounding import Mode, Overflow, Rounding, Rule

Block = NDArray[Any]


class Kernel:
    """Rounding of blocks from one carrier type to one format.

    Parameters
    ----------
    fmt : Format
        The target.
    rounding : Rounding
        Mode and overflow policy.
    carrier : dtype
        ``float32`` or ``float64``; every value of the format must be one of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier cannot hold the format.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        info = np.finfo(carrier)
        q, carrier_emin, carrier_emax = info.nmant + 1, int(info.minexp), int(info.maxexp) - 1
        if not holds(carrier, fmt):
            raise UnsupportedFormatError(f"{fmt} has values that {carrier} cannot hold")
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        self.integer = np.dtype(f"i{carrier.itemsize}")
        cut = q - fmt.precision
        one = self.integer.type(1)
        field = q - 1  # position of the exponent field
        bias = carrier_emax
        self.sign_bit = self.integer.type(np.iinfo(self.integer).min)
        self.magnitude_bits = self.integer.type(np.iinfo(self.integer).max)
        self.exponent_bits = self.integer.type((2 * carrier_emax + 1) << field)
        self.cut = self.integer.type(cut)
        self.quantum_bit = one << self.cut
        self.cut_bits = self.quantum_bit - one
        self.half_minus_one = (one << (self.cut - one)) - one if cut else self.integer.type(0)
        self.max = carrier.type(fmt.max)
        self.aligned = (
            cut > 0 and fmt.emax + 1 + cut <= carrier_emax and fmt.precision - 1 - fmt.emin <= carrier_emax
        )
        self.lowest_field = self.integer.type((fmt.emin + bias) << field)
        self.highest_field = self.integer.type((min(fmt.emax + 1, carrier_emax) + bias) << field)
        self.to_power = self.integer.type(cut << field)  # from the field of 2**e to that of 2**(e + cut)
        self.power_of_one = self.integer.type((cut + bias) << field)
        self.inverse_of_one = self.integer.type((fmt.precision - 1 + bias) << field)
        self.has_small = not self.aligned and fmt.emin > carrier_emin
        if self.has_small:
            self.smallest_normal = carrier.type(fmt.smallest_normal)
            self.small_power = carrier.type(2.0 ** (fmt.emin + cut))
            scale = fmt.precision - 1 - fmt.emin
            # 1/quantum may exceed the carrier: multiply in two exact steps.
            self.small_scales = carrier.type(2.0 ** (scale // 2)), carrier.type(2.0 ** (scale - scale // 2))
        self.full_range = fmt.emax == carrier_emax and fmt.has_infinity
        #: Whether the sign may stay in place while nearest even is done on the codes.
        self.carries = (
            rounding.mode is Mode.NEAREST_EVEN
            and cut > 0
            and not (self.aligned or self.has_small)
            and fmt.has_negative_zero
        )
        self.exact = cut == 0 and fmt.emin == carrier_emin and fmt.emax == carrier_emax and fmt.has_infinity

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word an element.
        """
        if self.exact:
            if out is not x:
                np.copyto(out, x)
            return
        if self.carries and x.size and -self.max <= x.min() and x.max() <= self.max:
            self._carry(x.view(self.integer), out.view(self.integer))
            return
        magnitude = np.empty_like(x)
        np.bitwise_and(x.view(self.integer), self.magnitude_bits, out=magnitude.view(self.integer))
        if self.rounding.mode is Mode.NEAREST_EVEN:
            rounded = self._nearest_even(magnitude)
            upward = None
        else:
            rounded, upward = self._directed(x, magnitude, words)
        # One reduction finds overflow, infinity and NaN: NaN makes the comparison false as well.
        beyond = x.size and not magnitude.max() <= self.max
        sign = np.bitwise_and(x.view(self.integer), self.sign_bit)
        if beyond:
            self._repair(magnitude, sign < 0, rounded, upward)
        np.bitwise_or(rounded.view(self.integer), sign, out=out.view(self.integer))
        if not self.fmt.has_negative_zero:
            np.add(out, self.carrier.type(0), out=out)  # -0 + 0 is +0

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the format alone; the sign of zero is not judged."""
        if self.carries and self.full_range and not np.bitwise_and(x.view(self.integer), self.cut_bits).any():
            return True
        rounded = np.empty_like(x)
        get_kernel(self.fmt, Rounding(), self.carrier)(x, rounded)
        return bool(((rounded == x) | np.isnan(x)).all())

    # -- nearest even -----------------------------------------------------------------------------------
    def _nearest_even(self, magnitude: Block) -> Block:
        rounded: Block = np.empty_like(magnitude)
        if self.aligned:
            power = self._power(magnitude)
            np.add(magnitude, power, out=rounded)
            return np.subtract(rounded, power, out=rounded)
        bits = magnitude.view(self.integer)
        if self.cut:
            self._carry(bits, rounded.view(self.integer))
        else:
            np.copyto(rounded, magnitude)
        if self.has_small:
            small = magnitude < self.smallest_normal
            aligned = (magnitude + self.small_power) - self.small_power
            np.copyto(rounded, aligned, where=small)
        return rounded

    def _carry(self, bits: Block, out: Block) -> None:
        """Add just under half a quantum, and the last bit kept, to the codes and clear what is cut off."""
        code = np.right_shift(bits, self.cut)
        np.bitwise_and(code, 1, out=code)
        np.add(code, self.half_minus_one, out=code)
        np.add(code, bits, out=code)
        np.bitwise_and(code, ~self.cut_bits, out=out)

    def _power(self, magnitude: Block) -> Block:
        """Return the power of two whose unit in the last place is the format's quantum at each element."""
        code = np.bitwise_and(magnitude.view(self.integer), self.exponent_bits)
        np.clip(code, self.lowest_field, self.highest_field, out=code)
        np.add(code, self.to_power, out=code)
        power: Block = code.view(self.carrier)
        return power

    # -- the other modes ----------------------------------------------------------------------------------
    def _directed(self, x: Block, magnitude: Block, words: Words | None) -> tuple[Block, Block | None]:
        below, above, fraction, odd = self._neighbours(magnitude)
        negative = np.signbit(x)
        mode = self.rounding.mode
        if mode is Mode.TOWARD_ZERO:
            return below, np.zeros_like(negative)
        if mode is Mode.NEAREST_AWAY:
            upward = fraction >= 0.5
        elif mode is Mode.TO_ODD:
            upward = (fraction > 0) & ~odd
        elif mode is Mode.STOCHASTIC:
            upward = self._drawn(fraction, words)
        elif mode is Mode.UP:
            upward = (fraction > 0) & ~negative
        else:
            upward = (fraction > 0) & negative
        np.copyto(below, above, where=upward)
        return below, ~negative if mode is Mode.UP else negative if mode is Mode.DOWN else None

    def _drawn(self, fraction: Block, words: Words | None) -> Block:
        """Tell where the random words say up; every scaling is by a power of two, hence exact."""
        if words is None or words.shape != fraction.shape:
            raise ValueError("stochastic rounding needs a random word for each element")
        bits, rule = self.rounding.random_bits, self.rounding.rule
        draw, whole = (words >> np.uint32(32 - bits)).astype(np.int64), 2**bits
        if rule is Rule.CENTRED:
            draw, whole = 2 * draw + 1, 2 * whole
        cut = np.rint if rule is Rule.NEAREST_FIRST else np.floor
        # NaN, of an infinity, becomes some integer here and NaN or infinity again in the repair.
        upward: Block = cut(fraction * self.carrier.type(whole)).astype(np.int64) + draw >= whole
        return upward

    def _neighbours(self, magnitude: Block) -> tuple[Block, Block, Block, Block]:
        """Return the values below and above, the fraction of the quantum between, and odd significands."""
        if self.aligned:
            power = self._power(magnitude)
            shifted = magnitude + power
            below = shifted - power
            quantum = power * self.carrier.type(np.finfo(self.carrier).eps)
            np.subtract(below, quantum, out=below, where=below > magnitude)
            exponent_field = power.view(self.integer) - self.power_of_one
            inverse: Block = (self.inverse_of_one - exponent_field).view(self.carrier)
            fraction = self._not_lost((magnitude - below) * inverse, magnitude, below)
            odd = ((below + power).view(self.integer) & 1).astype(bool)
            return below, below + quantum, fraction, odd
        bits = magnitude.view(self.integer)
        code = bits & ~self.cut_bits
        fraction = (bits & self.cut_bits).astype(self.carrier) / self.carrier.type(self.quantum_bit)
        below = code.view(self.carrier)
        above = (code + self.quantum_bit).view(self.carrier)
        odd = (code & self.quantum_bit).astype(bool)
        if self.has_small:
            self._small_neighbours(magnitude, below, above, fraction, odd)
        return below, above, fraction, odd

    def _small_neighbours(
        self, magnitude: Block, below: Block, above: Block, fraction: Block, odd: Block
    ) -> None:
        small = magnitude < self.smallest_normal
        quantum = self.carrier.type(self.fmt.smallest_subnormal)
        low = (magnitude + self.small_power) - self.small_power
        np.subtract(low, quantum, out=low, where=low > magnitude)
        np.copyto(below, low, where=small)
        np.copyto(above, low + quantum, where=small)
        first, second = self.small_scales
        cut_off = self._not_lost((magnitude - low) * first * second, magnitude, low)
        np.copyto(fraction, cut_off, where=small)
        np.copyto(odd, ((low + self.small_power).view(self.integer) & 1).astype(bool), where=small)

    def _not_lost(self, fraction: Block, magnitude: Block, below: Block) -> Block:
        """Keep fractions from underflowing to zero, as they can only where the quantum exceeds 1."""
        if self.fmt.emin >= self.fmt.precision:
            tiny = np.finfo(self.carrier).tiny
            np.copyto(fraction, tiny, where=(fraction == 0) & (magnitude > below))
        return fraction

    # -- beyond the largest finite number -------------------------------------------------------------------
    def _repair(self, magnitude: Block, negative: Block, rounded: Block, away: Block | None) -> None:
        """Apply the overflow policy and restore NaN and infinity, in place.

        ``away`` tells where overflow goes to infinity rather than to the largest finite number; None
        stands for the mode's fixed rule.
        """
        fmt, rounding = self.fmt, self.rounding
        infinity = self.carrier.type("inf" if fmt.has_infinity else "nan")
        finite = np.isfinite(magnitude)
        overflow = finite & ~(rounded <= self.max)
        if rounding.overflow is Overflow.SATURATE or not fmt.has_nan or rounding.mode is Mode.TO_ODD:
            np.copyto(rounded, self.max, where=overflow)
        elif away is None:
            np.copyto(rounded, infinity, where=overflow)
        else:
            np.copyto(rounded, self.max, where=overflow & ~away)
            np.copyto(rounded, infinity, where=overflow & away)
        np.copyto(rounded, infinity, where=np.isinf(magnitude))
        np.copyto(rounded, self.carrier.type("nan"), where=np.isnan(magnitude))


@lru_cache(maxsize=256)
def get_kernel(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> Kernel:
    """Return the kernel for these three, made once."""
    return Kernel(fmt, rounding, carrier)
