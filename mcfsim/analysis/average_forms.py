"""Steps of an exponential average: computed on arrays, and the targets that leave a number unchanged."""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mcfsim.analysis.preimage import NOTHING, RealInterval, point, preimage
from mcfsim.backends.factory import arithmetic
from mcfsim.codec import decode, encode
from mcfsim.formats import Format, Grid
from mcfsim.kernels.real_numbers import round_real, to_fraction
from mcfsim.optim.state import average
from mcfsim.optim.torchadamw import addcmul, inner, lerp, let_in
from mcfsim.rounding import Rounding


class AverageForm(StrEnum):
    """How the new average of a stored number s and a target g is made, with decay b.

    RN rounds into the format; R into binary32, or into binary64 for a format that binary32 does not hold.

    ``lerp``: ``RN(s + (1 - b) (g - s))``, rounded once. ``terms``: ``RN(RN(b s) + RN((1 - b) g))``.
    ``adamw``: ``RN(RN(b s) + (1 - b) g)``, the m and v of `mcfsim.AdamW`; for v the target is ``RN(g g)``.
    ``torch_lerp``: ``RN(R(s + R(1 - b) R(g - s)))``, which is ``lerp_``: the m of `torch.optim.AdamW`, and
    ``get_ema_multi_avg_fn`` of ``torch.optim.swa_utils``. ``torch_avg_fn``: ``get_ema_avg_fn`` of the same,
    ``RN(R(RN(R(R(b) s)) + RN(R(R(1 - b) g))))``. ``torch_addcmul``: the v of `torch.optim.AdamW` for a
    gradient g, ``RN(R(RN(R(R(b) s)) + R(R(1 - b) g) g))``.
    """

    LERP = "lerp"
    TERMS = "terms"
    ADAMW = "adamw"
    TORCH_LERP = "torch_lerp"
    TORCH_AVG_FN = "torch_avg_fn"
    TORCH_ADDCMUL = "torch_addcmul"


# -- forward, on arrays -----------------------------------------------------------------------------------
def _lerp_once(fmt: Format, rounding: Rounding, s: Any, g: Any, decay: float) -> Any:
    """Return averages in exact fractions, element by element, rounded once."""
    gain = 1 - Fraction(decay)

    def one(stored: float, target: float) -> float:
        start, end = to_fraction(stored), to_fraction(target)
        if start is None or end is None:  # NaN or infinite
            return round_real(stored + float(gain) * (target - stored), fmt, rounding)
        return round_real(start + gain * (end - start), fmt, rounding)

    ar = arithmetic(fmt, rounding)
    return ar.round(np.asarray(np.frompyfunc(one, 2, 1)(s, g), np.float64))


def step(form: AverageForm, fmt: Format, rounding: Rounding, s: Any, g: Any, decay: float) -> Any:
    """Return the new averages of arrays; see `MovingAverage.step`."""
    ar = arithmetic(fmt, rounding)
    s, g, scalar = ar.round(s), ar.round(g), let_in(inner(ar))
    match form:
        case AverageForm.LERP:
            return _lerp_once(fmt, rounding, s, g, decay)
        case AverageForm.TERMS:
            return ar.add(ar.mul(s, decay), ar.mul(g, 1.0 - decay))
        case AverageForm.ADAMW:
            return average(ar, (s,), decay, g, 1.0 - decay)[0]
        case AverageForm.TORCH_LERP:
            return lerp(ar, s, g, scalar(1.0 - decay), 0.0)
        case AverageForm.TORCH_AVG_FN:
            wide = inner(ar)
            terms = (wide.mul(s, scalar(decay)), wide.mul(g, scalar(1.0 - decay)))
            return ar.round(wide.add(*map(ar.round, terms)))
        case AverageForm.TORCH_ADDCMUL:
            return addcmul(ar, s, g, scalar(decay), scalar(1.0 - decay))


# -- backward, on fractions -------------------------------------------------------------------------------
class Backward(NamedTuple):
    """The roundings of a step, to be undone one after another.

    Attributes
    ----------
    format, inner : Format
        Of the stored number, and that in which PyTorch computes.
    rounding, within : Rounding
        Their roundings.
    decay : Fraction
    """

    format: Format
    rounding: Rounding
    inner: Format
    within: Rounding
    decay: Fraction

    @classmethod
    def of(cls, fmt: Format, rounding: Rounding, decay: float) -> Backward:
        """Return the roundings of a format and a decay."""
        wide: Any = inner(arithmetic(fmt, rounding))
        return cls(fmt, rounding, wide.format, wide.rounding, Fraction(decay))

    @property
    def gain(self) -> Fraction:
        """The weight of the target, exactly."""
        return 1 - self.decay

    def stored(self, x: Fraction) -> Fraction:
        """Return a number rounded into the format."""
        return Fraction(round_real(x, self.format, self.rounding))

    def by_torch(self, x: Fraction) -> Fraction:
        """Return a number rounded as PyTorch rounds a result, that is, into the inner format."""
        return Fraction(round_real(x, self.inner, self.within))

    def scalar(self, x: Fraction) -> Fraction:
        """Return a scalar as PyTorch's operations take it."""
        return Fraction(round_real(x, self.inner, Rounding()))

    def from_stored(self, values: RealInterval) -> RealInterval:
        """Return the numbers that are stored in an interval."""
        return preimage(values, self.format, self.rounding)

    def from_torch(self, values: RealInterval) -> RealInterval:
        """Return the exact results of an operation of PyTorch that are stored in an interval."""
        stored = self.from_stored(values)
        return stored if self.inner == self.format else preimage(stored, self.inner, self.within)

    def still(self, form: AverageForm, s: Fraction) -> RealInterval:
        """Return the targets that leave s unchanged; see `MovingAverage.still`."""
        if form is AverageForm.LERP:
            return self.from_stored(point(s)).shifted(-s).divided(self.gain).shifted(s)
        if form is AverageForm.TORCH_LERP:
            apart = self.from_torch(point(s)).shifted(-s).divided(self.scalar(self.gain))
            return preimage(apart, self.inner, self.within).shifted(s)
        if form in (AverageForm.TERMS, AverageForm.ADAMW):
            left = self.from_stored(point(s)).shifted(-self.stored(self.decay * s))
            return (self.from_stored(left) if form is AverageForm.TERMS else left).divided(self.gain)
        shrunk = self.stored(self.by_torch(self.scalar(self.decay) * s))
        left, gain = self.from_torch(point(s)).shifted(-shrunk), self.scalar(self.gain)
        if form is AverageForm.TORCH_AVG_FN:
            return self.from_torch(left).divided(gain)
        return self.gradients(left, gain)

    def gradients(self, left: RealInterval, gain: Fraction) -> RealInterval:
        """Return the magnitudes of gradients g of the format with ``R(gain g) g`` in an interval."""
        fmt = self.format

        def value(code: int) -> Fraction:
            if isinstance(fmt, Grid):
                return code * fmt.quantum
            return Fraction(float(decode([code], fmt)[0]))

        def entering(code: int) -> Fraction:
            g = value(code)
            return self.by_torch(gain * g) * g

        def reached(code: int) -> bool:
            x = entering(code)
            return x > left.low or (left.with_low and x == left.low)

        def passed(code: int) -> bool:
            x = entering(code)
            return x > left.high or (not left.with_high and x == left.high)

        last = max(-fmt.low, fmt.high) if isinstance(fmt, Grid) else int(encode([float(fmt.max)], fmt)[0])
        codes = range(last + 1)  # of the magnitudes from 0 on, in order
        first, end = bisect_left(codes, True, key=reached), bisect_left(codes, True, key=passed)
        return RealInterval(value(first), value(end - 1), True, True) if first < end else NOTHING
