"""Terms: the exact real numbers of a case that statements speak of, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.logic.algebra import Constant, Term


# -- of the case --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Operand(Term):
    """An operand: the exact sum of its words."""

    name: str


@dataclass(frozen=True)
class Word(Term):
    """One word of an operand: by default the first, which of a value is the value itself."""

    name: str
    place: int = 0


@dataclass(frozen=True)
class Result(Term):
    """One result of the algorithm, nested tuples laid flat, and what it is called."""

    place: int
    name: str = ""


@dataclass(frozen=True)
class Results(Term):
    """The exact sum of the results from `first` up to `stop`, by default all."""

    first: int = 0
    stop: int | None = None


# -- of the format ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OfFormat(Term):
    """A number that depends on format and rounding alone.

    Attributes
    ----------
    text : str
        As it is written.
    of : callable
        Returns it of a format and a rounding: an int or a Fraction.
    """

    text: str
    of: Callable[[Format, Rounding], Constant]

    def at(self, fmt: Format, rounding: Rounding) -> Constant:
        """Return it for a format and a rounding.

        Raises
        ------
        TypeError
            If what is returned is no int and no Fraction.
        """
        found = self.of(fmt, rounding)
        if isinstance(found, bool) or not isinstance(found, int | Fraction):
            raise TypeError(f"{self.text!r} must be an int or a Fraction, not {found!r}")
        return found


@dataclass(frozen=True)
class UnitRoundoff(Term):
    """A power of the unit roundoff ``u = 2**-p``."""

    power: int = 1


U = UnitRoundoff()
LARGEST = OfFormat("max", lambda fmt, _: fmt.max)
SMALLEST_NORMAL = OfFormat("2^emin", lambda fmt, _: Fraction(2) ** fmt.emin)
SMALLEST = OfFormat("2^(emin - p + 1)", lambda fmt, _: Fraction(2) ** (fmt.emin - fmt.precision + 1))
PRECISION = OfFormat("p", lambda fmt, _: fmt.precision)
EMIN = OfFormat("emin", lambda fmt, _: fmt.emin)
RANDOM_BITS = OfFormat("k", lambda _, rounding: rounding.random_bits)


# -- made of others -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SumOfMagnitudes(Term):
    """The sum of the magnitudes of an operand's words; of two operands, of the products of their words."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class InnerProduct(Term):
    """The exact sum of the products of two operands' words."""

    first: str
    second: str


@dataclass(frozen=True)
class Mixed(Term):
    """A reference ``a |x| + b y`` for ``y >= |x|``, with shares ``(a, b)`` that depend on the precision."""

    x: Term
    y: Term
    shares: Callable[[int], tuple[Fraction, Fraction]]
    text: str


@dataclass(frozen=True)
class Exponent(Term):
    """``e(x) = floor(log2 |x|)``, subnormal numbers included; of zero ``emin - 2p - 2``, below all others."""

    of: Term


@dataclass(frozen=True)
class Ulp(Term):
    """The unit in the last place: ``2**(max(e(x), emin) - p + 1)``."""

    of: Term


@dataclass(frozen=True)
class LowBit(Term):
    """The power of two that the last bit of x stands for that is not zero; of zero, infinity."""

    of: Term


@dataclass(frozen=True)
class UlpTowards(Term):
    """The distance from a value x that is not zero to its neighbour on the side of the sign of y."""

    of: Term
    toward: Term


@dataclass(frozen=True)
class Rounded(Term):
    """``RN(x + y)``: the sum of two values rounded, as the arithmetic does or in a mode of its own."""

    x: Term
    y: Term
    mode: Mode | None = None


@dataclass(frozen=True)
class RoundedToBits(Term):
    """A value rounded to so many bits, to nearest, ties to even; its exponent is not bounded."""

    of: Term
    bits: OfFormat


@dataclass(frozen=True)
class Expectation(Term):
    """The expectation over all draws of stochastic rounding."""

    of: Term


@dataclass(frozen=True)
class Computed(Term):
    """A number of one's own: what a function of a `Trial` returns, an `Exact`. Arrays alone can read it."""

    function: Callable[[Any], Any]
    text: str = "exact result"
