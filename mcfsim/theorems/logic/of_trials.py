"""What all readings take of a trial: blocks, constants, where results are finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.rounding import Rounding
from mcfsim.theorems.logic.algebra import (
    Number,
    Term,
)
from mcfsim.theorems.logic.bits import (
    exponent,
)
from mcfsim.theorems.logic.propositions import (
    UnreadableError,
    spoken_of,
)
from mcfsim.theorems.logic.terms import (
    OfFormat,
    Operand,
    Result,
    Results,
    Rounded,
    UnitRoundoff,
    Word,
)
from mcfsim.theorems.trial import Trial, Truth, all_hold


@dataclass(frozen=True)
class Reading:
    """How something is read of a trial: equal ones, of equal data, are read once (`Trial.once`)."""

    function: Callable[[Any, Trial], Any]
    said: Any

    def __call__(self, t: Trial) -> Any:
        """Return what the function reads."""
        return self.function(self.said, t)


def block_of(x: Term, t: Trial) -> Any:
    """Return the block of a word or a result."""
    match x:
        case Word(name, place):
            words = t[name]
            if not isinstance(words, tuple):
                words = (words,)
            if place >= len(words):
                raise IndexError(f"{name} has no word number {place}; it has {len(words)}")
            return words[place]
        case Result(place):
            return t.results[place]
        case Operand(name) if not isinstance(t[name], tuple):
            return t[name]
    raise UnreadableError(f"{type(x).__name__} stands where a word or a result must")


def constant_of(x: Term, t: Trial) -> int | Fraction:
    """Return a number that is the same for all cases."""
    match x:
        case Number(value):
            return value
        case OfFormat():
            return x.at(t.format, t.rounding)
        case UnitRoundoff(power):
            return Fraction(1, 2 ** (power * t.format.precision))
    raise TypeError(f"{x!r} is no constant")


def rounded(x: Rounded, t: Trial) -> Any:
    """Return a sum as the arithmetic, or one of another mode, rounds it."""
    ar: Any = t.ar if x.mode is None else t.under(Rounding(x.mode))
    a, b = block_of(x.x, t), block_of(x.y, t)
    return ar.add(a, b) if x.mode is None else ar.add(a.astype(ar.carrier), b.astype(ar.carrier))


def wide(x: Any) -> Any:
    """Return a block in binary64, and a number as it is."""
    return x.astype(np.float64, copy=False) if hasattr(x, "dtype") else x


def ulp_place(x: Term, t: Trial) -> Any:
    """Return the exponent of the unit in the last place of a word or a result."""
    return np.maximum(exponent(block_of(x, t), t.format), t.format.emin) - t.format.precision + 1


def and_finite(held: Truth, x: Term, t: Trial, y: Term | None = None) -> Truth:
    """Return where something holds and all results are finite that one or two terms speak of."""
    for term in (x, y):
        if term is not None and spoken_of(term):
            held = held & finite(term, t)
    return held


def finite(x: Term, t: Trial) -> Truth:
    """Return where all results are finite that a term speaks of."""
    spoken = spoken_of(x)
    if any(isinstance(one, Results) for one in spoken):
        return t.finite
    places = sorted({one.place for one in spoken if isinstance(one, Result)})
    return all_hold(*(np.isfinite(t.results[place]) for place in places)) if places else t.everywhere(True)
