"""Terms as data: the exact real numbers of a case in hypotheses and claims, and their algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, dataclass_transform

from mcfsim.formats import Format
from mcfsim.rounding import Mode, Rounding

#: A number that may be combined with a term; it is the same in every format.
Constant = int | Fraction


@dataclass_transform(frozen_default=True)
class Said:
    """The base class of terms and propositions: frozen dataclasses without a truth value.

    An integer or a fraction in place of a term becomes one; for anything else see `as_term`.
    """

    #: The error message of `bool`.
    truthless: ClassVar[str]
    #: The fields that hold a term.
    _terms: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        made: Any = dataclass(frozen=True)(cls)
        cls._terms = tuple(part.name for part in fields(made) if part.type == "Term")

    def __post_init__(self) -> None:
        for name in self._terms:
            object.__setattr__(self, name, as_term(getattr(self, name)))

    def __bool__(self) -> bool:
        raise TypeError(self.truthless)


# -- terms --------------------------------------------------------------------------------------------------
class Term(Said):
    """A real number for each case. It has no truth value."""

    truthless = "a term is a number of every case, and has no truth value"

    def __add__(self, other: Term | Constant) -> Term:
        return Sum((self, as_term(other)))

    def __radd__(self, other: Constant) -> Term:
        return as_term(other) + self

    def __sub__(self, other: Term | Constant) -> Term:
        return self + -as_term(other)

    def __rsub__(self, other: Constant) -> Term:
        return as_term(other) - self

    def __neg__(self) -> Term:
        return Negative(self)

    def __abs__(self) -> Term:
        return Magnitude(self)

    def __mul__(self, other: Term | Constant) -> Term:
        return Product(self, as_term(other))

    def __rmul__(self, other: Constant) -> Term:
        return Product(as_term(other), self)

    def __le__(self, other: Term | Constant) -> Proposition:
        return AtMost(self, as_term(other))

    def __lt__(self, other: Term | Constant) -> Proposition:
        return Below(self, as_term(other))

    def __ge__(self, other: Term | Constant) -> Proposition:
        return as_term(other) <= self

    def __gt__(self, other: Term | Constant) -> Proposition:
        return as_term(other) < self


def as_term(x: Any) -> Term:
    """Return a term unchanged, and a number as a term.

    Raises
    ------
    TypeError
        If it is neither. Write floats as fractions.
    """
    if isinstance(x, Term):
        return x
    if isinstance(x, bool) or not isinstance(x, int | Fraction):
        raise TypeError(
            f"a term goes with terms, int and Fraction, not with {x!r} of type {type(x).__name__}"
        )
    return Number(Fraction(x))


class FixedTerm(Term):
    """A term that depends on format and rounding alone."""

    def at(self, fmt: Format, rounding: Rounding) -> Constant:
        """Return the number for a format and a rounding."""
        raise NotImplementedError


class Number(FixedTerm):
    """A number that is the same in every format."""

    value: Fraction

    def at(self, fmt: Format, rounding: Rounding) -> Fraction:
        """Return the number."""
        return self.value


class Sum(Term):
    """The exact sum of terms."""

    terms: tuple[Term, ...]


class Negative(Term):
    """The negative of a term."""

    term: Term


class Product(Term):
    """The exact product of two terms."""

    first: Term
    second: Term


class Magnitude(Term):
    """The magnitude of a term."""

    term: Term


# -- propositions --------------------------------------------------------------------------------------------
class Proposition(Said):
    """A statement that is true or false of each case. It has no truth value by itself."""

    truthless = "a proposition is true or false of a case: join two by & and |, deny one by ~"

    def __and__(self, other: Proposition) -> Proposition:
        return AllOf((self, other))

    def __or__(self, other: Proposition) -> Proposition:
        return AnyOf((self, other))

    def __invert__(self) -> Proposition:
        return Not(self)


class AllOf(Proposition):
    """The conjunction of propositions."""

    parts: tuple[Proposition, ...]


class AnyOf(Proposition):
    """The disjunction of propositions."""

    parts: tuple[Proposition, ...]


class Not(Proposition):
    """The negation of a proposition."""

    part: Proposition


class OfTwo(Proposition):
    """A proposition about two terms."""

    x: Term
    y: Term


class AtMost(OfTwo):
    """The proposition ``x <= y``."""


class Below(OfTwo):
    """The proposition ``x < y``."""


class Equal(OfTwo):
    """The proposition that ``x = y`` exactly."""


def equal(x: Any, y: Any) -> Proposition:
    """Return the proposition that two terms are equal."""
    return Equal(x, y)


# -- terms of the case --------------------------------------------------------------------------------------
class Operand(Term):
    """An operand: the exact sum of its words."""

    name: str


class Word(Term):
    """One word of an operand, by default the first. A value is its own first word."""

    name: str
    place: int = 0


class Result(Term):
    """One result of the algorithm, by its place in the flattened results, and its name."""

    place: int
    name: str = ""


class Results(Term):
    """The exact sum of the results ``[first:stop]``, by default of all."""

    first: int = 0
    stop: int | None = None


# -- of the format ------------------------------------------------------------------------------------------
class OfFormat(FixedTerm):
    """A number that depends on format and rounding alone.

    Attributes
    ----------
    text : str
        Its notation.
    of : callable
        Returns the number for a format and a rounding: an int or a Fraction.
    """

    text: str
    of: Callable[[Format, Rounding], Constant]

    def at(self, fmt: Format, rounding: Rounding) -> Constant:
        """Return the number for a format and a rounding.

        Raises
        ------
        TypeError
            If `of` returns neither an int nor a Fraction.
        """
        found = self.of(fmt, rounding)
        if isinstance(found, bool) or not isinstance(found, int | Fraction):
            raise TypeError(f"{self.text!r} must be an int or a Fraction, not {found!r}")
        return found


class UnitRoundoff(FixedTerm):
    """A power of the unit roundoff ``u = 2**-p``."""

    power: int = 1

    def at(self, fmt: Format, rounding: Rounding) -> Fraction:
        """Return the power for a format."""
        return Fraction(1, 2 ** (self.power * fmt.precision))


U = UnitRoundoff()
LARGEST = OfFormat("max", lambda fmt, _: fmt.max)
SMALLEST_NORMAL = OfFormat("2^emin", lambda fmt, _: Fraction(2) ** fmt.emin)
SMALLEST = OfFormat("2^(emin - p + 1)", lambda fmt, _: Fraction(2) ** (fmt.emin - fmt.precision + 1))
PRECISION = OfFormat("p", lambda fmt, _: fmt.precision)
EMIN = OfFormat("emin", lambda fmt, _: fmt.emin)
RANDOM_BITS = OfFormat("k", lambda _, rounding: rounding.random_bits)


# -- derived ------------------------------------------------------------------------------------------------
class SumOfMagnitudes(Term):
    """The sum of ``|x_i|`` over the words of one operand, or of ``|x_i y_i|`` over those of two."""

    names: tuple[str, ...]


class InnerProduct(Term):
    """The exact sum of the products of two operands' words."""

    first: str
    second: str


class Mixed(Term):
    """A reference ``a |x| + b y`` for ``y >= |x|``, with shares ``(a, b)`` that depend on the precision."""

    x: Term
    y: Term
    shares: Callable[[int], tuple[Fraction, Fraction]]
    text: str


class Exponent(Term):
    """The exponent ``floor(log2 |x|)``, also of subnormal x; for zero ``emin - 2p - 2``, below all others."""

    of: Term


class Ulp(Term):
    """The unit in the last place: ``2**(max(e(x), emin) - p + 1)``."""

    of: Term


class LowBit(Term):
    """The value of the last nonzero bit of x; infinity for zero."""

    of: Term


class UlpTowards(Term):
    """The distance from a nonzero value x to its neighbour in the direction of the sign of y.

    Where y is zero of either sign, it is the neighbour away from zero.
    """

    of: Term
    toward: Term


class Rounded(Term):
    """``RN(x + y)``: the rounded sum of two values, in the arithmetic's mode or in a given one."""

    x: Term
    y: Term
    mode: Mode | None = None


class RoundedToBits(Term):
    """A value rounded to `bits` bits, to nearest, ties to even, with an unbounded exponent."""

    of: Term
    bits: OfFormat


class Expectation(Term):
    """The expectation of a term over all draws of stochastic rounding."""

    of: Term


class Computed(Term):
    """A number that a custom function of a `Trial` returns, as an `Exact`. Only arrays can evaluate it."""

    function: Callable[[Any], Any]
    text: str = "exact result"


# -- what occurs in them -----------------------------------------------------------------------------------
def nodes(said: Any) -> Iterator[Any]:
    """Yield a proposition or term and all its parts, recursively."""
    yield said
    for field in fields(said):
        part = getattr(said, field.name)
        for item in part if isinstance(part, tuple) else (part,):
            if isinstance(item, Term | Proposition):
                yield from nodes(item)


def places_of(said: Any, count: int) -> set[int]:
    """Return the places of the results, `count` in all, that occur in a proposition or term."""
    spoken = [slice(x.first, x.stop) if isinstance(x, Results) else x.place for x in spoken_of(said)]
    return {place for x in spoken for place in ([x] if isinstance(x, int) else range(count)[x])}


def spoken_of(said: Any) -> tuple[Result | Results, ...]:
    """Return the results that occur in a proposition or term."""
    return tuple(dict.fromkeys(node for node in nodes(said) if isinstance(node, Result | Results)))
