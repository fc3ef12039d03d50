"""Rounding to binary floating point: a block of carrier numbers to the values of a format.

The carrier is binary32 or binary64. A block is rounded in one of two ways, both exact: by alignment
(`by_addition`), subnormals included, where the carrier's range and precision allow it; otherwise by the codes
(`by_bits`), with subnormal numbers in units of the quantum (`subnormals`). What no rounding is comes after:
overflow, NaN and infinity, flushed numbers, and what an unsigned or zero-less format does not have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.formats import Format, Specials
from mcfsim.kernels.by_addition import Aligned
from mcfsim.kernels.by_bits import Coded
from mcfsim.kernels.carriers import UnsupportedFormatError, holds
from mcfsim.kernels.subnormals import Subnormal
from mcfsim.random import Words
from mcfsim.rounding import Mode, Overflow, Rounding, Underflow
from mcfsim.storage.buffers import scratch

Block = NDArray[Any]


class FloatKernel:
    """Rounding of blocks from one carrier type to a binary floating-point format.

    Parameters
    ----------
    fmt : Format
        The target.
    rounding : Rounding
        Mode and policies. Here ``flush_inputs`` is ``flush_before``: what is rounded is the operand.
    carrier : dtype
        ``float32`` or ``float64``; every value of the format must be one of the carrier.

    Raises
    ------
    UnsupportedFormatError
        If the carrier does not hold the format.
    """

    def __init__(self, fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> None:
        if not holds(carrier, fmt):
            raise UnsupportedFormatError(f"{fmt} has values that {carrier} cannot hold")
        self.fmt, self.rounding, self.carrier = fmt, rounding, carrier
        info = np.finfo(carrier)
        full_range = fmt.emin == info.minexp and fmt.emax == info.maxexp - 1 and fmt.has_infinity
        flushes = rounding.underflow is not Underflow.GRADUAL
        self.unusual = flushes or not (fmt.signed and fmt.zero)
        self.exact = fmt.precision == info.nmant + 1 and full_range and not self.unusual
        self.max, self.smallest_normal = carrier.type(fmt.max), carrier.type(fmt.smallest_normal)
        self.method: Aligned | Coded
        self.subnormal: Subnormal | None = None
        if Aligned.serves(fmt, rounding, carrier):
            self.method = Aligned(fmt, rounding, carrier)
        else:
            self.method = Coded(fmt, rounding, carrier)
            # By the code, a tie below the smallest number of precision 1 would go to an even exponent.
            if fmt.emin > info.minexp or fmt.precision == 1:
                self.subnormal = Subnormal(fmt, rounding, carrier)
        #: Whether overflow and infinity come out right by the carry alone, as IEEE 754 and the code have it.
        self.carries_over = (
            isinstance(self.method, Coded)
            and full_range
            and fmt.precision > 1
            and rounding.overflow is Overflow.IEEE
            and rounding.mode in (Mode.NEAREST_EVEN, Mode.NEAREST_AWAY, Mode.UP, Mode.DOWN, Mode.STOCHASTIC)
        )
        #: Whether the values of the format are the numbers whose codes have nothing to cut off.
        self.codes_suffice = isinstance(self.method, Coded) and full_range and fmt.signed and fmt.zero

    def __call__(self, x: Block, out: Block, words: Words | None = None) -> None:
        """Round the one-dimensional contiguous ``x`` into ``out``, which may be ``x`` itself.

        Stochastic rounding takes one random word an element.
        """
        if self.exact:
            if out is not x:
                np.copyto(out, x)
            return
        if not x.size:
            return
        # NaN makes the comparisons false as well.
        if self.carries_over:
            within = not np.isnan(np.maximum.reduce(x))
        else:
            within = np.minimum.reduce(x) >= -self.max and np.maximum.reduce(x) <= self.max
        judged = self.unusual or not within
        given = x.copy() if judged and np.may_share_memory(out, x) else x
        if self.subnormal is None:
            self.method(x, out, words)
        else:
            magnitude = np.abs(x, out=scratch("magnitude", x.size, self.carrier))
            below = np.less(magnitude, self.smallest_normal, out=scratch("below", x.size, np.bool_))
            small = np.flatnonzero(below)
            rounded = self.subnormal(x[small], None if words is None else words[small])
            self.method(x, out, words)
            out[small] = rounded
        if not within:
            self._repair(given, out, words)
        if self.unusual:
            self._restrict(given, out, words)
        if not self.fmt.has_negative_zero:
            np.add(out, self.carrier.type(0), out=out)  # -0 + 0 is +0

    def keeps(self, x: Block) -> bool:
        """Return whether a block holds NaN and values of the format alone; the sign of zero is not judged."""
        method = self.method
        if isinstance(method, Coded) and self.codes_suffice:
            rest = np.bitwise_and(
                x.view(method.integer), method.cut_bits, out=scratch("code", x.size, method.integer)
            )
            if np.maximum.reduce(rest, initial=0) == 0:  # faster than any()
                return True
        rounded = np.empty_like(x)
        float_kernel(self.fmt, Rounding(Mode.TOWARD_ZERO), self.carrier)(x, rounded)
        return bool(((rounded == x) | np.isnan(x)).all())

    # -- beyond the largest finite number -------------------------------------------------------------------
    def _repair(self, given: Block, out: Block, words: Words | None) -> None:
        """Apply the overflow policy, and restore NaN and infinity."""
        fmt, rounding = self.fmt, self.rounding
        infinity = self.carrier.type("inf" if fmt.has_infinity else "nan")
        overflow = ~(np.abs(out) <= self.max) & np.isfinite(given)
        if rounding.overflow is Overflow.NEAREST_BOUNDARY:
            beyond = np.isfinite(given) & (np.abs(given) > self.max)
            np.copyto(out, np.copysign(self.max, given), where=beyond)
            overflow = self._past_boundary(given, words)
        if rounding.overflow is Overflow.SATURATE or not fmt.has_nan:
            outward = np.zeros_like(overflow)
        else:
            outward = overflow & {
                Mode.UP: given > 0,
                Mode.DOWN: given < 0,
                Mode.TOWARD_ZERO: np.False_,
                Mode.TO_ODD: np.False_,
            }.get(rounding.mode, np.True_)
        np.copyto(out, np.copysign(self.max, given), where=overflow & ~outward)
        np.copyto(out, np.copysign(infinity, given), where=outward | np.isinf(given))
        np.copyto(out, given, where=np.isnan(given))

    def _past_boundary(self, given: Block, words: Words | None) -> Block:
        """Return where numbers overflow by their random words: from the maximum to half a quantum above it.

        The excess over the maximum is exact. In units of the half quantum it is rounded to 0 or 1.
        """
        unit = Format(precision=1, emin=0, emax=0, specials=Specials.NONE)
        half_quantum = self.carrier.type(2.0 ** (self.fmt.emax - self.fmt.precision))
        excess = (np.abs(given) - self.max) / half_quantum
        finite = np.isfinite(given) & (excess > 0)
        share = np.where(finite, np.minimum(excess, 1), 0).astype(self.carrier)
        rounding = replace(self.rounding, overflow=Overflow.SATURATE, underflow=Underflow.GRADUAL)
        float_kernel(unit, rounding, self.carrier)(share, share, words)
        past: Block = share > 0
        return past

    # -- what a format or a policy does not have ------------------------------------------------------------
    def _restrict(self, given: Block, out: Block, words: Words | None) -> None:
        """Flush small numbers, and replace what an unsigned or zero-less format does not have."""
        fmt, underflow = self.fmt, self.rounding.underflow
        tiny = (np.abs(given) < self.smallest_normal) & (given != 0)
        if underflow is not Underflow.GRADUAL:
            flushed = tiny
            if underflow is Underflow.FLUSH_AFTER:
                flushed = tiny & ~self._survives(given, words)
                np.copyto(out, np.copysign(self.smallest_normal, given), where=tiny & ~flushed)
            np.copyto(out, np.copysign(self.carrier.type(0), given), where=flushed)
        elif not fmt.zero:
            np.copyto(out, np.copysign(self.smallest_normal, given), where=tiny)
        nan = self.carrier.type("nan")
        if not fmt.signed:
            saturates = self.rounding.overflow is Overflow.SATURATE or not fmt.has_nan
            below = (given < 0) & (out != 0)
            least = self.carrier.type(fmt.lowest) if saturates else nan
            np.copyto(out, np.where(np.isinf(given), nan, least), where=below)
        if not fmt.zero:
            np.copyto(out, nan, where=out == 0)

    def _survives(self, given: Block, words: Words | None) -> Block:
        """Return where numbers below the smallest normal one round to it with the exponent unbounded.

        Four times the number is normal, and rounds as the number would: to four times the smallest normal
        number, or not. (Two binades up, codes of precision 1 are even or odd as they were.)
        """
        fmt, four = self.fmt, self.carrier.type(4)
        normal = replace(fmt, name="", emax=fmt.emin + 2, specials=Specials.NONE, signed=True)
        rounding = replace(self.rounding, overflow=Overflow.SATURATE, underflow=Underflow.GRADUAL)
        limit = four * self.smallest_normal
        scaled = np.clip(four * given, -limit, limit)
        float_kernel(normal, rounding, self.carrier)(scaled, scaled, words)
        survives: Block = np.abs(scaled) >= limit
        return survives


@lru_cache(maxsize=256)
def float_kernel(fmt: Format, rounding: Rounding, carrier: np.dtype[Any]) -> FloatKernel:
    """Return the kernel for these three, made once."""
    return FloatKernel(fmt, rounding, carrier)
