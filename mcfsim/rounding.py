"""How a real number becomes a value of a format: the rounding mode and the overflow policy, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar


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
    ``saturate``: the largest finite number of the same sign. An *infinite* operand is never made finite:
    it stays infinite, or becomes NaN in a format without infinity.
    """

    IEEE = "ieee"
    SATURATE = "saturate"


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
    """A rounding mode with its overflow policy.

    Parameters
    ----------
    mode : Mode or str
        See `Mode`.
    overflow : Overflow or str
        See `Overflow`. Stochastic rounding overflows as it would round with the exponent unbounded.
    random_bits : int, optional
        Bits of each random word that stochastic rounding uses, its highest ones: 1 to 32. By default 16,
        as hardware has them for bfloat16.
    rule : Rule or str, optional
        See `Rule`.

    Raises
    ------
    ValueError
        If a name is unknown, with the allowed ones, or the random bits are out of range.
    """

    mode: Mode = Mode.NEAREST_EVEN
    overflow: Overflow = Overflow.IEEE
    random_bits: int = 16
    rule: Rule = Rule.TRUNCATE

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", _member(Mode, self.mode, "rounding"))
        object.__setattr__(self, "overflow", _member(Overflow, self.overflow, "overflow"))
        object.__setattr__(self, "rule", _member(Rule, self.rule, "rule"))
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


def get_rounding(rounding: Rounding | str, overflow: Overflow | str = Overflow.IEEE) -> Rounding:
    """Return the `Rounding` meant by a mode's name and an overflow policy's; a `Rounding` is kept as it is.

    Raises
    ------
    ValueError
        If a name is unknown, or a `Rounding` comes with another policy than its own.
    """
    if isinstance(rounding, Rounding):
        policy = _member(Overflow, overflow, "overflow")
        if policy not in (Overflow.IEEE, rounding.overflow):
            raise ValueError(f"{rounding} has its own overflow policy; overflow={policy!s} contradicts it")
        return rounding
    return Rounding(_member(Mode, rounding, "rounding"), _member(Overflow, overflow, "overflow"))


_Choice = TypeVar("_Choice", bound=StrEnum)


def _member(kind: type[_Choice], name: str, label: str) -> _Choice:
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"unknown {label} {name!r}; allowed: {', '.join(kind)}") from None
