"""How a real number becomes a value of a format: mode, overflow and underflow policy, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from mcfsim.checks.arguments import check_int
from mcfsim.checks.names import hint


class Mode(StrEnum):
    """Direction of rounding.

    ``nearest_even`` and ``nearest_away``: to the nearest value, ties to the even significand or away from
    zero. ``toward_zero``, ``up`` and ``down``: directed. ``to_odd``: an inexact result takes the neighbour
    with the odd significand, so that a second rounding to at least two bits less is innocuous
    (Boldo and Melquiond, IEEE Trans. Comput. 57(4), 2008). ``stochastic``: an inexact result moves away
    from zero with a probability that is the fraction of the quantum above its truncation, as far as the
    random bits resolve it, see `Rule`; a value of the format never moves.
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


class Overflow(StrEnum):
    """What becomes of a finite number whose rounding, with the exponent unbounded, exceeds the maximum.

    ``ieee``: as IEEE 754 has it: the nearest modes give infinity, the directed modes infinity or the
    largest finite number, whichever lies in their direction; ``to_odd`` gives the largest finite number.
    A format without infinity gives NaN in infinity's place, and a format with neither saturates.
    In the stochastic mode the number rounds between the maximum and the next number that the precision
    would allow, and overflows if it rounds there.
    ``saturate``: the largest finite number of the same sign.
    ``nearest_boundary``, in the stochastic mode only: the number overflows as by ``ieee``, with a
    probability that reaches 1 already at the boundary to the nearest mode's overflow, half a quantum above
    the maximum.

    An *infinite* operand is never made finite: it stays infinite, or becomes NaN in a format without
    infinity. A negative number of an unsigned format, judged after it is rounded, is NaN, or the least
    number if the policy is to saturate or there is no NaN.
    """

    IEEE = "ieee"
    SATURATE = "saturate"
    NEAREST_BOUNDARY = "nearest_boundary"


class Underflow(StrEnum):
    """What becomes of numbers of magnitude below the smallest normal number, zero apart.

    ``gradual``: they are rounded to subnormal numbers, as IEEE 754 has it. The others put a zero of the same
    sign in place of ... ``flush_inputs``: operands that are so small (x86's DAZ); results stay gradual.
    ``flush_before``: results that are so small before they are rounded (Arm's FZ). ``flush_after``: results
    that are so small once rounded to the precision with the exponent unbounded (x86's FTZ).

    A format without zero has its smallest number below which there is none: under ``gradual`` every smaller
    positive number becomes it, and a zero or a flushed number NaN.
    """

    GRADUAL = "gradual"
    FLUSH_INPUTS = "flush_inputs"
    FLUSH_BEFORE = "flush_before"
    FLUSH_AFTER = "flush_after"


class Rule(StrEnum):
    """How r random bits R decide the stochastic rounding of a fraction f: upward if ...

    ``truncate``: ``floor(2^r f) + R >= 2^r`` (biased toward zero by half of 2^-r quanta on average, and
    exact for a fraction of at most r bits); ``centred``: ``floor(2^(r+1) f) + 2 R + 1 >= 2^(r+1)``;
    ``nearest_first``: ``RNE(2^r f) + R >= 2^r``. They are stochastic rounding A, B and C of IEEE P3109.
    """

    TRUNCATE = "truncate"
    CENTRED = "centred"
    NEAREST_FIRST = "nearest_first"


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
        Bits of each random word that stochastic rounding uses, its highest ones: 1 to 32. By default 16,
        as hardware has them for bfloat16.
    rule : Rule or str, optional
        See `Rule`.
    underflow : Underflow or str, optional
        See `Underflow`.

    Raises
    ------
    TypeError
        If the random bits are no int.
    ValueError
        If a name is unknown, with the allowed ones, the random bits are out of range, or the overflow policy
        is one of stochastic rounding and the mode another.
    """

    mode: Mode = Mode.NEAREST_EVEN
    overflow: Overflow = Overflow.IEEE
    random_bits: int = 16
    rule: Rule = Rule.TRUNCATE
    underflow: Underflow = Underflow.GRADUAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _member(Mode, self.mode, "rounding"))
        object.__setattr__(self, "overflow", _member(Overflow, self.overflow, "overflow"))
        object.__setattr__(self, "rule", _member(Rule, self.rule, "rule"))
        object.__setattr__(self, "underflow", _member(Underflow, self.underflow, "underflow"))
        if self.overflow is Overflow.NEAREST_BOUNDARY and not self.stochastic:
            raise ValueError(f"overflow 'nearest_boundary' is for stochastic rounding, not {self.mode!s}")
        check_int("random_bits", self.random_bits)
        if not 1 <= self.random_bits <= 32:
            raise ValueError(f"random_bits = {self.random_bits} must lie between 1 and 32")

    @property
    def stochastic(self) -> bool:
        """Whether random words are needed."""
        return self.mode is Mode.STOCHASTIC

    @property
    def guard_bits(self) -> int:
        """Bits that a number rounded to odd needs beyond the target's precision, to round like the exact."""
        return 2 + (self.random_bits if self.stochastic else 0)


def get_rounding(
    rounding: Rounding | str,
    overflow: Overflow | str = Overflow.IEEE,
    underflow: Underflow | str = Underflow.GRADUAL,
) -> Rounding:
    """Return the `Rounding` meant by a mode's name and policies' names; a `Rounding` is kept as it is.

    Raises
    ------
    ValueError
        If a name is unknown, or a `Rounding` comes with other policies than its own.
    """
    if isinstance(rounding, str) and isinstance(overflow, str) and isinstance(underflow, str):
        return _named(rounding, overflow, underflow)
    if not isinstance(rounding, Rounding):
        return _named.__wrapped__(rounding, overflow, underflow)  # refused, and what cannot be kept as well
    if _member(Overflow, overflow, "overflow") not in (Overflow.IEEE, rounding.overflow):
        raise ValueError(f"{rounding} has its own overflow policy; overflow={overflow!s} contradicts it")
    if _member(Underflow, underflow, "underflow") not in (Underflow.GRADUAL, rounding.underflow):
        raise ValueError(f"{rounding} has its own underflow policy; underflow={underflow!s} contradicts it")
    return rounding


@lru_cache(maxsize=256)
def _named(rounding: str, overflow: str, underflow: str) -> Rounding:
    return Rounding(
        _member(Mode, rounding, "rounding"),
        _member(Overflow, overflow, "overflow"),
        underflow=_member(Underflow, underflow, "underflow"),
    )


_Choice = TypeVar("_Choice", bound=StrEnum)


def _member(kind: type[_Choice], name: str, label: str) -> _Choice:
    if type(name) is kind:
        return name
    try:
        return kind(name)
    except ValueError:
        raise ValueError(
            f"unknown {label} {name!r}{hint(str(name), kind)}; allowed: {', '.join(kind)}"
        ) from None
