"""Exponential averages in low formats: targets that leave a number unchanged, and where averages stall."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from mcfsim.analysis.preimage import (
    NOTHING,
    RealInterval,
    check_preimage,
    neighbour,
    point,
    preimage,
    unit,
)
from mcfsim.backends.factory import arithmetic
from mcfsim.checks import chosen, finite_number
from mcfsim.codec import decode, encode
from mcfsim.formats import Format, Grid, get_format
from mcfsim.formats.floating import floor_log2
from mcfsim.kernels.real_numbers import described, round_real, to_fraction
from mcfsim.optim.state import average
from mcfsim.optim.torchadamw import addcmul, inner, lerp, let_in
from mcfsim.rounding import NEAREST, Rounding, get_rounding

#: Up to this precision numbers are tried one after another.
_MOST_BITS = 16


class AverageForm(StrEnum):
    """How the new average is computed from a stored number s and a target g, with decay b.

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


# -- backward, on fractions -------------------------------------------------------------------------------
class Backward(NamedTuple):
    """The roundings of a step, to be undone one after another.

    Attributes
    ----------
    format, inner : Format
        The format of the stored number, and the format in which PyTorch computes.
    rounding, within : Rounding
        Their roundings.
    decay : Fraction
    """

    format: Format
    rounding: Rounding
    inner: Format
    within: Rounding
    decay: Fraction

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
        """Return the numbers whose stored values lie in an interval."""
        return preimage(values, self.format, self.rounding)

    def from_torch(self, values: RealInterval) -> RealInterval:
        """Return the exact results of a PyTorch operation whose stored values lie in an interval."""
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

        last = max(-fmt.low, fmt.high) if isinstance(fmt, Grid) else int(encode([float(fmt.max)], fmt)[0])
        codes = range(last + 1)  # of the magnitudes from 0 on, in order
        first = (bisect_left if left.with_low else bisect_right)(codes, left.low, key=entering)
        end = (bisect_right if left.with_high else bisect_left)(codes, left.high, key=entering)
        return RealInterval(value(first), value(end - 1), True, True) if first < end else NOTHING


# -- the average ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MovingAverage:
    """An exponential average whose stored number is rounded into a format at each step.

    Parameters
    ----------
    format : Format or str
        Any format with a zero, including posits and grids; or an unsigned one without zero, such as
        ``float8_e8m0fnu``.
    decay : float
        The weight b of the stored number: more than 1/2 and less than 1, so that 1 - b is exact.
    form : AverageForm or str, optional
        The operations of a step: see `AverageForm`.
    rounding : Rounding or str, optional
        Rounding into the format: not stochastic, with gradual underflow.

    Raises
    ------
    TypeError
        If the decay is no number.
    ValueError
        If the decay, the rounding or a name is out of range.
    UnsupportedFormatError
        If the format has no zero, and is signed, has no NaN, or saturates.

    Notes
    -----
    A step is monotone in its target, so the targets that leave s where it is are an interval. It is found by
    going backward through the roundings of the step, in fractions. With one rounding to nearest, s stays if
    ``(1 - b) |g - s|`` is below half the gap between s and its neighbour on the side of g, or equals half of
    it and s is even.

    Examples
    --------
    >>> average = MovingAverage("bfloat16", 0.999, "torch_lerp")
    >>> still = average.still(1.0)
    >>> round(float(still.low), 4), round(float(still.high), 4)  # about 1 - 2^-9 / .001, 1 + 2^-8 / .001
    (-0.9532, 4.9063)
    >>> float(average.stalls_at(1.0, 5.0))
    1.09375
    """

    format: Format
    decay: float
    form: AverageForm = AverageForm.LERP
    rounding: Rounding = field(default_factory=Rounding)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", get_format(self.format))
        object.__setattr__(self, "rounding", get_rounding(self.rounding))
        object.__setattr__(self, "form", chosen("form", self.form, AverageForm))
        object.__setattr__(self, "decay", finite_number("decay", self.decay))
        if not 0.5 < self.decay < 1:
            raise ValueError(f"decay = {self.decay} must lie between 1/2 and 1, both excluded")
        check_preimage(self.format, self.rounding)

    def step(self, stored: Any, target: Any) -> Any:
        """Return the new averages of arrays, by the emulator.

        Parameters
        ----------
        stored, target : array_like
            Values of the format, of one shape. The target is the number that enters the average; for
            ``torch_addcmul`` it is the gradient, which the step squares.

        Returns
        -------
        array
            In the format's carrier. NaN and infinities propagate as in the operations. ``lerp`` is computed
            in fractions, element by element, and is slow.

        Raises
        ------
        UnsupportedFormatError
            If the emulator has no exact path for an operation, such as PyTorch's fma in binary64.
        """
        ar = arithmetic(self.format, self.rounding)
        wide, decay, gain = inner(ar), self.decay, 1.0 - self.decay
        s, g, scalar = ar.round(stored), ar.round(target), let_in(wide)
        match self.form:
            case AverageForm.LERP:
                return _lerp_once(ar, s, g, decay)
            case AverageForm.TERMS:
                return ar.add(ar.mul(s, decay), ar.mul(g, gain))
            case AverageForm.ADAMW:
                return average(ar, (s,), decay, g, gain)[0]
            case AverageForm.TORCH_LERP:
                return lerp(ar, s, g, scalar(gain), 0.0)
            case AverageForm.TORCH_AVG_FN:
                terms = (wide.mul(s, scalar(decay)), wide.mul(g, scalar(gain)))
                return ar.round(wide.add(*map(ar.round, terms)))
            case AverageForm.TORCH_ADDCMUL:
                return addcmul(ar, s, g, scalar(decay), scalar(gain))

    def still(self, stored: Any) -> RealInterval:
        """Return the exact interval of targets that leave a stored number unchanged.

        Parameters
        ----------
        stored : real number
            A finite value of the format.

        Returns
        -------
        RealInterval
            Of real targets; empty if every target changes the number. For ``torch_addcmul``, whose gradient
            enters twice, it contains magnitudes of gradients, and its ends are values of the format.

        Raises
        ------
        TypeError, ValueError
            If the argument is no number, or no finite value of the format.
        """
        return self.backward.still(self.form, self._value("stored", stored))

    def stalls_at(self, start: Any, target: Any) -> Fraction | None:
        """Return the first number, from a start toward a constant target, that the target leaves unchanged.

        Parameters
        ----------
        start, target : real number
            Finite values of the format. For ``torch_addcmul`` the target is the gradient.

        Returns
        -------
        Fraction or None
            None if there is none before the target. In the form ``lerp``, rounded to nearest, the average
            stalls there for good: from k gaps before this number no step is longer than k gaps. In other
            forms a step may pass it.

        Raises
        ------
        TypeError, ValueError
            If an argument is no number, or no finite value of the format; or if the format has more than 16
            bits of precision (a posit, a grid, or one without zero: 16 bits), too many to try its numbers one
            after another.
        """
        bits, of = (self.format.precision, " of precision") if self._in_binades else (self.format.bits, "")
        if bits > _MOST_BITS:
            raise ValueError(
                f"{self.format} has {bits} bits{of}: numbers are tried one after another up to {_MOST_BITS}"
            )
        return _first_still(self, self._value("start", start), self._value("target", target))

    def wrong_from(self, start: Any, target: Any) -> int | None:
        """Return the first step after which the exact average rounds to a number beyond `stalls_at`.

        Parameters
        ----------
        start, target : real number
            As for `stalls_at`.

        Returns
        -------
        int or None
            The number of the step, from 1: after this and all later steps the stored average is wrong, unless
            it has passed `stalls_at`. It is the first wrong step if the average stalls at its start. None if
            it stalls nowhere, or at a number to which the exact average rounds for good.
        """
        stall = self.stalls_at(start, target)
        if stall is None:
            return None
        s, goal = self._value("start", start), self.goal(self._value("target", target))
        cell = self.backward.from_stored(point(stall))
        end, within = (cell.high, cell.with_high) if s < goal else (cell.low, cell.with_low)
        if cell.holds(goal) or end == goal:  # the exact average never leaves the cell
            return None
        return _first_below(Fraction(self.decay), Fraction((goal - end) / (goal - s)), reached=not within)

    # -- what these share --------------------------------------------------------------------------------
    @cached_property
    def backward(self) -> Backward:
        """The roundings of a step."""
        wide: Any = inner(arithmetic(self.format, self.rounding))
        return Backward(self.format, self.rounding, wide.format, wide.rounding, Fraction(self.decay))

    def _value(self, label: str, x: Any) -> Fraction:
        exact = to_fraction(x)
        if exact is None or round_real(exact, self.format, Rounding()) != exact:
            raise ValueError(f"{label} = {described(x)} is no finite value of {self.format}; round it first")
        return exact

    def goal(self, target: Fraction) -> Fraction:
        """Return the number that the average should reach."""
        return target**2 if self.form is AverageForm.TORCH_ADDCMUL else target

    @property
    def _in_binades(self) -> bool:
        """Whether the ulps of a binade's numbers can tell that the average does not stall there."""
        return type(self.format) is Format and self.format.precision > 1 and self.format.zero

    def way(self, start: Fraction, goal: Fraction) -> Iterator[Fraction]:
        """Yield values from a start to the last one before a goal, except in binades where none is still.

        An end of the format, where results may saturate, is never left out.

        The product with b and the sum are each off by at most an ulp of s, and ``(1 - b) g`` by at most half
        of the move that s should make, plus an ulp. So a number that should move by eight ulps does move.
        Rounding to nearest halves these errors, and four ulps are enough.
        """
        fmt, up, s = self.format, start < goal, start
        sure = 4 if self.rounding.mode in NEAREST else 8
        gain = 1 - Fraction(self.decay)
        end = fmt.max if up else fmt.lowest
        while s != goal and (s < goal) == up and (s <= end if up else s >= end):
            if self._in_binades:
                outward = s >= 0 if up else s <= 0
                low = Fraction(2) ** floor_log2(abs(s)) if abs(s) >= fmt.smallest_normal else Fraction(0)
                size = max(2 * low, fmt.smallest_normal) if outward else low
                last = size if s > 0 or (s == 0 and up) else -size  # where the binade ends
                if s != end and (last < goal) == up and gain * abs(goal - last) >= sure * unit(s, fmt):
                    s = last if outward else neighbour(last, fmt, up=up)
                    s = min(s, end) if up else max(s, end)
                    continue
            yield s
            s = neighbour(s, fmt, up=up)


def _lerp_once(ar: Any, s: Any, g: Any, decay: float) -> Any:
    """Return averages in exact fractions, element by element, rounded once."""
    gain = 1 - Fraction(decay)

    def one(stored: float, target: float) -> float:
        start, end = to_fraction(stored), to_fraction(target)
        if start is None or end is None:  # NaN or infinite
            return round_real(stored + float(gain) * (target - stored), ar.format, ar.rounding)
        return round_real(start + gain * (end - start), ar.format, ar.rounding)

    return ar.round(np.asarray(np.frompyfunc(one, 2, 1)(s, g), np.float64))


@lru_cache
def _first_still(average: MovingAverage, start: Fraction, target: Fraction) -> Fraction | None:
    """Return what `MovingAverage.stalls_at` returns, for numbers that have been checked."""
    form, back = average.form, average.backward
    entering = abs(target) if form is AverageForm.TORCH_ADDCMUL else target
    way = average.way(start, average.goal(target))
    return next((s for s in way if back.still(form, s).holds(entering)), None)


def _first_below(decay: Fraction, share: Fraction, *, reached: bool) -> int:
    """Return the first t >= 1 with ``decay**t`` below a share of at most 1, or equal to it if `reached`."""
    from mpmath import mp, mpf, workprec

    with workprec(300):
        power = mp.log(mpf(share.numerator) / share.denominator) / mp.log(
            mpf(decay.numerator) / decay.denominator
        )
        nearest = int(mp.nint(power))
        if abs(power - nearest) > mpf(2) ** -200:
            return int(mp.floor(power)) + 1
    equal = decay**nearest == share
    return max(1, nearest + (not reached if equal else decay**nearest > share))
