"""Whether negating operands leaves hypotheses and claim of a statement unchanged, read from its data."""

from __future__ import annotations

from collections.abc import Iterable

from mcfsim.rounding import Mode
from mcfsim.theorems.homogeneity import Scales
from mcfsim.theorems.logic.propositions import (
    EveryDraw,
    Finite,
    HasBits,
    Iff,
    InFormat,
    IsMultiple,
    IsValue,
    Nonoverlapping,
    NoOverflow,
    Same,
    SameSign,
    StronglyNonoverlapping,
    UnreadableError,
    Within,
    halves,
)
from mcfsim.theorems.logic.terms import (
    AllOf,
    AnyOf,
    Equal,
    Exponent,
    FixedTerm,
    InnerProduct,
    LowBit,
    Magnitude,
    Mixed,
    Negative,
    Not,
    OfTwo,
    Operand,
    Product,
    Proposition,
    Result,
    Results,
    Rounded,
    RoundedToBits,
    Sum,
    SumOfMagnitudes,
    Term,
    Ulp,
    UlpTowards,
    Word,
)
from mcfsim.theorems.statement import Theorem

#: For each sign that may change, whether a number changes with it; None for zero.
Signs = tuple[bool, ...] | None


class _DifferentSignsError(ValueError):
    """Raised if numbers are joined whose signs change differently, as an operand is with a constant."""


def indifferent(theorem: Theorem, scales: Scales, *, each: bool) -> bool | None:
    """Return whether hypotheses, claim and error do not depend on the signs of operands; None if not known.

    Parameters
    ----------
    theorem : Theorem
    scales : Scales
        How the numbers in its algorithm scale, in a rounding that treats both signs alike.
    each : bool
        Whether each operand may be negated by itself; if not, all are negated together.
    """
    if scales.divides_by_sums or not (scales.odd_in_each if each else scales.odd):
        return None
    reader = _SignReader(theorem, scales, each)
    try:
        for said in (theorem.claim.said, *(hypothesis.said for hypothesis in theorem.where)):
            reader.read(said)
    except _DifferentSignsError:
        return False
    return None if reader.unread else True


class _SignReader:
    """A reader of propositions, which refuses those that depend on signs, and notes those that may."""

    def __init__(self, theorem: Theorem, scales: Scales, each: bool) -> None:
        self._names = [operand.name for operand in theorem.operands]
        self._each = each
        self.unread = False
        self._scales = scales
        self._results = [None if x.zero else self._together(x.signs) for x in scales.results]
        self._even = self._together((False,) * len(self._names))

    def _together(self, signs: tuple[bool, ...]) -> Signs:
        """Return how a number changes with each sign, or with all of them at once."""
        return signs if self._each else (sum(signs) % 2 == 1,)

    def read(self, said: Proposition) -> None:
        """Note whether a proposition may depend on signs."""
        try:
            self._read(said)
        except (UnreadableError, LookupError):
            self.unread = True

    def _read(self, said: Proposition) -> None:
        match said:
            case InFormat() | NoOverflow() | Finite() | StronglyNonoverlapping() | Nonoverlapping(()):
                pass
            case AllOf(parts) | AnyOf(parts):
                for part in parts:
                    self.read(part)
            case Not(part) | EveryDraw(part):
                self.read(part)
            case Iff(first, second):
                self.read(first)
                self.read(second)
            case Same():
                for pair in halves(self._results):
                    _one_of(pair)
            case Within(error, reference, bound) if bound.squared:  # which depends on their quotient's sign
                self._alike(error, reference)
            case Within(error, reference):
                self._of(error), self._of(reference)
            case HasBits(x) | IsValue(x):
                self._of(x)
            case IsMultiple(x, of):
                self._of(x), self._of(of)
            case Nonoverlapping(terms):
                for term in terms:
                    self._of(term)
            case SameSign(x, y) | Equal(x, y):
                self._alike(x, y)
            case OfTwo(x, y) if self._alike(x, y) in (None, self._even):
                pass
            case _:
                raise UnreadableError(f"{said} may depend on signs")

    def _alike(self, *terms: Term) -> Signs:
        """Return how terms change with signs; refuse them if they do not change alike."""
        return _one_of(map(self._of, terms))

    def _of(self, x: Term) -> Signs:
        """Return how a term changes with signs; refuse one if more than its sign may change."""
        match x:
            case FixedTerm():
                return self._even if x.at(self._scales.format, self._scales.rounding) else None
            case Operand(name) | Word(name):
                return self._together(tuple(name == other for other in self._names))
            case Result(place):
                return self._results[place]
            case Results(first, stop):
                return _one_of(self._results[first:stop])
            case Sum(terms):
                return self._alike(*terms)
            case Negative(term) | RoundedToBits(term):
                return self._of(term)
            case Rounded(one, other, mode) if mode not in (Mode.UP, Mode.DOWN):
                return self._alike(one, other)
            case Product(first, second):
                a, b = self._of(first), self._of(second)
                return a and b and tuple(p != q for p, q in zip(a, b, strict=True))
            case InnerProduct(one, other):
                return self._of(Product(Operand(one), Operand(other)))
            case Magnitude(term) | Exponent(term) | Ulp(term) | LowBit(term):
                self._of(term)
                return self._even
            case UlpTowards(of, toward):
                self._alike(of, toward)
                return self._even
            case SumOfMagnitudes():
                return self._even
            case Mixed(size, bound) if self._of(bound) in (None, self._even):
                self._of(size)
                return self._even
        raise UnreadableError(f"{x} may depend on signs")


def _one_of(signs: Iterable[Signs]) -> Signs:
    """Return the value that all of them share, except for zeros."""
    found = set(signs) - {None}
    if len(found) > 1:
        raise _DifferentSignsError("numbers are joined whose signs change differently")
    return found.pop() if found else None
