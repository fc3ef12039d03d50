"""Roundings as data: the mode, the overflow policy, the underflow policy and the random bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

from mcfsim.checks import check_int, chosen


class Mode(StrEnum):
    """A rounding mode.

    ``nearest_even`` and ``nearest_away``: to the nearest value, ties to the even significand or away from
    zero. ``toward_zero``, ``up`` and ``down``: directed. ``to_odd``: an inexact result becomes the neighbour
    with the odd significand, so that a second rounding to at least two bits less is innocuous (Boldo and
    Melquiond, IEEE Trans. Comput. 57(4), 2008). ``stochastic``: an inexact number is rounded away from zero
    with probability f, the fraction of the quantum by which it exceeds its truncation, as far as the random
    bits resolve f, see `Rule`; a value of the format stays as it is.
    """

    NEAREST_EVEN = "nearest_even"
    NEAREST_AWAY = "nearest_away"
    TOWARD_ZERO = "toward_zero"
    UP = "up"
    DOWN = "down"
    TO_ODD = "to_odd"
    STOCHASTIC = "stochastic"


#: The modes that need no random words.
DETERMINISTIC = tuple(mode for mode in Mode if mode is not Mode.STOCHASTIC)
#: The modes that round to the nearest value.
NEAREST = frozenset({Mode.NEAREST_EVEN, Mode.NEAREST_AWAY})


class Overflow(StrEnum):
    """Overflow policy: the result if a finite number, rounded with unbounded exponent, exceeds the maximum.

    ``ieee``: as in IEEE 754. The nearest modes give infinity. The directed modes give infinity or the largest
    finite number, whichever lies in their direction. ``to_odd`` gives the largest finite number. A format
    without infinity gives NaN instead of infinity, and a format with neither saturates. The stochastic mode
    rounds to the maximum or to the next number that the precision would allow, and the latter overflows.
    ``saturate``: the largest finite number of the same sign.
    ``nearest_boundary``, in the stochastic mode only: overflow as with ``ieee``, but with a probability that
    reaches 1 half a quantum above the maximum, where the nearest modes begin to overflow.

    An *infinite* operand never becomes finite: it stays infinite, or becomes NaN in a format without
    infinity. In an unsigned format a number that is negative after rounding becomes NaN, or the least number
    if the policy is ``saturate`` or the format has no NaN.
    """

    IEEE = "ieee"
    SATURATE = "saturate"
    NEAREST_BOUNDARY = "nearest_boundary"


class Underflow(StrEnum):
    """Underflow policy: the treatment of nonzero numbers below the smallest normal number in magnitude.

    ``gradual``: they are rounded to subnormal numbers, as in IEEE 754. The other policies replace some of
    them by a zero of the same sign. ``flush_inputs``: small operands (x86's DAZ); results stay gradual.
    ``flush_before``: results that are small before rounding (Arm's FZ). ``flush_after``: results that are
    small after rounding to the precision with unbounded exponent (x86's FTZ).

    In a format without zero, ``gradual`` rounds every smaller positive number to the smallest number, and a
    zero or a flushed number becomes NaN.
    """

    GRADUAL = "gradual"
    FLUSH_INPUTS = "flush_inputs"
    FLUSH_BEFORE = "flush_before"
    FLUSH_AFTER = "flush_after"


class Rule(StrEnum):
    """Rule by which r random bits R decide the stochastic rounding of a fraction f.

    Each rule is the condition under which the number is rounded away from zero. ``truncate``:
    ``floor(2^r f) + R >= 2^r`` (biased toward zero by half of 2^-r quanta on average, and exact for a
    fraction of at most r bits). ``centred``: ``floor(2^(r+1) f) + 2 R + 1 >= 2^(r+1)``. ``nearest_first``:
    ``RNE(2^r f) + R >= 2^r``. These are stochastic rounding A, B and C of IEEE P3109.
    """

    TRUNCATE = "truncate"
    CENTRED = "centred"
    NEAREST_FIRST = "nearest_first"


_STANDARD = Mode.NEAREST_EVEN, Overflow.IEEE, Underflow.GRADUAL


@dataclass(frozen=True)
class Rounding:
    """A rounding mode with its overflow and underflow policies.

    Parameters
    ----------
    mode : Mode or str
        See `Mode`.
    overflow : Overflow or str
        See `Overflow`.
    random_bits : int, optional
        Number of leading bits of each random word that stochastic rounding uses: 1 to 32. The default is 16,
        as in hardware for bfloat16.
    rule : Rule or str, optional
        See `Rule`.
    underflow : Underflow or str, optional
        See `Underflow`.

    Raises
    ------
    TypeError
        If the random bits are no int.
    ValueError
        If a name is unknown (the message lists the allowed ones), the random bits are out of range, or the
        overflow policy is only for stochastic rounding and the mode is not stochastic.
    """

    mode: Mode = Mode.NEAREST_EVEN
    overflow: Overflow = Overflow.IEEE
    random_bits: int = 16
    rule: Rule = Rule.TRUNCATE
    underflow: Underflow = Underflow.GRADUAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", chosen("rounding", self.mode, Mode))
        object.__setattr__(self, "overflow", chosen("overflow", self.overflow, Overflow))
        object.__setattr__(self, "rule", chosen("rule", self.rule, Rule))
        object.__setattr__(self, "underflow", chosen("underflow", self.underflow, Underflow))
        if self.overflow is Overflow.NEAREST_BOUNDARY and not self.stochastic:
            raise ValueError(f"overflow 'nearest_boundary' is for stochastic rounding, not {self.mode!s}")
        check_int("random_bits", self.random_bits, 1, 32)

    @cached_property
    def stochastic(self) -> bool:
        """Whether the mode is stochastic and needs random words."""
        return self.mode is Mode.STOCHASTIC

    @property
    def standard(self) -> bool:
        """Whether the mode is nearest even and the policies are IEEE 754's; random bits do not matter."""
        return (self.mode, self.overflow, self.underflow) == _STANDARD

    @property
    def of_results(self) -> Rounding:
        """The rounding of results: they underflow gradually if only operands are flushed."""
        flushes = self.underflow is Underflow.FLUSH_INPUTS
        return replace(self, underflow=Underflow.GRADUAL) if flushes else self

    @property
    def drawn_bits(self) -> int:
        """The random bits that an operation draws: none unless rounding is stochastic."""
        return self.random_bits if self.stochastic else 0

    @property
    def guard_bits(self) -> int:
        """Extra bits beyond the target's precision that make rounding to odd first innocuous."""
        return 2 + self.drawn_bits


def get_rounding(
    rounding: Rounding | str,
    overflow: Overflow | str = Overflow.IEEE,
    underflow: Underflow | str = Underflow.GRADUAL,
) -> Rounding:
    """Return the `Rounding` for the names of a mode and policies; return a `Rounding` as it is.

    Raises
    ------
    ValueError
        If a name is unknown, or a `Rounding` is given with policies that contradict its own.
    """
    if isinstance(rounding, str) and isinstance(overflow, str) and isinstance(underflow, str):
        return _named(rounding, overflow, underflow)
    if not isinstance(rounding, Rounding):
        return _named.__wrapped__(rounding, overflow, underflow)  # raises; also takes unhashable arguments
    if chosen("overflow", overflow, Overflow) not in (Overflow.IEEE, rounding.overflow):
        raise ValueError(f"{rounding} has its own overflow policy; overflow={overflow!s} contradicts it")
    if chosen("underflow", underflow, Underflow) not in (Underflow.GRADUAL, rounding.underflow):
        raise ValueError(f"{rounding} has its own underflow policy; underflow={underflow!s} contradicts it")
    return rounding


@lru_cache(maxsize=256)
def _named(rounding: str, overflow: str, underflow: str) -> Rounding:
    return Rounding(
        chosen("rounding", rounding, Mode),
        chosen("overflow", overflow, Overflow),
        underflow=chosen("underflow", underflow, Underflow),
    )
