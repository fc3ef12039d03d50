"""Questions of hypotheses and claim whose answers depend on where numbers lie in the format's range.

Whether two sums of products are equal, or one error is at most a share of another, does not change if both
sides scale alike. Whether a number is a value of the format, or below a constant, may change, but only near
an end of the range or near the constant. Where the answer cannot change, the question is not asked; where it
may, two equivalent cells must have the number at the same place (`mcfsim.theorems.cells`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce

import numpy as np

from mcfsim.formats import Format
from mcfsim.formats.floating import floor_log2
from mcfsim.rounding import Rounding
from mcfsim.theorems.cells import FAILS, HOLDS, INSIDE, Cells, Place, Places, alone, packed, unread
from mcfsim.theorems.homogeneity import NotHomogeneousError, Quantity, Scales, negated
from mcfsim.theorems.logic.propositions import (
    Finite,
    HasBits,
    Iff,
    InFormat,
    IsMultiple,
    IsValue,
    NoOverflow,
    Same,
    SameSign,
    UnreadableError,
    Within,
    halves,
)
from mcfsim.theorems.logic.terms import (
    AllOf,
    AnyOf,
    AtMost,
    Below,
    Exponent,
    FixedTerm,
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
    Sum,
    Term,
    Ulp,
    UlpTowards,
    Word,
    nodes,
)
from mcfsim.theorems.statement import Theorem, names_of, propositions_of

#: The least and the largest exponent of a number in each cell.
Ends = tuple[Places, Places]


@dataclass(frozen=True)
class Asked:
    """The questions that hypotheses and claim of a statement on two values ask.

    Attributes
    ----------
    places : list of callable, optional
        What tells cells apart; None if not all can be read, and what can be read matters only near the ends
        of the range, where a claim that cannot be read sets all cells apart.
    everywhere : bool
        Whether something may also change far from the ends of the range: near a constant.
    gaps : list of callable
        What depends only on the distance between the exponents of both operands.
    ratio : int
        One operand is compared with at most ``2**ratio`` times the other, or as little as ``2**-ratio``.
    """

    places: list[Place] | None
    everywhere: bool
    gaps: list[Place]
    ratio: int


def asked(theorem: Theorem, scales: Scales) -> Asked:
    """Return the questions that hypotheses and claim of a statement on two values ask.

    Parameters
    ----------
    theorem : Theorem
    scales : Scales
        How the numbers in its algorithm scale.
    """
    reader = _Reader(theorem, scales)
    everywhere = bool(reader.inside if scales.common else reader.places)
    places: list[Place] | None = reader.places
    if reader.unread:  # what was read still matters
        places = [*reader.places, *unread(scales)] if everywhere else None
    return Asked(places, everywhere, reader.gaps, reader.ratio)


class _Reader:
    """A reader of a statement's propositions on quantities, which notes the places that matter.

    Some of them are also noted as `inside`, if they may matter far from the ends of the range; or as `gaps`,
    if they depend only on the gap between the exponents of the operands.
    """

    def __init__(self, theorem: Theorem, scales: Scales) -> None:
        self.places: list[Place] = []
        self.inside: list[Place] = []
        self.gaps: list[Place] = []
        self.ratio = 0
        self.unread = False
        self._names = names_of(theorem)
        self._results = scales.results
        # Exact numbers are not recorded among those of the algorithm.
        self._exact = Scales(scales.format, scales.rounding, scales.operands, scales.common)
        self._sum = partial(self._exact.sum, "the statement")
        for said in propositions_of(theorem):
            self.read(said)

    def read(self, said: Proposition) -> None:
        """Note the places at which a proposition may change, and whether all of it can be read."""
        try:
            self._read(said)
        except (UnreadableError, NotHomogeneousError, LookupError):
            self.unread = True

    def _read(self, said: Proposition) -> None:
        match said:
            case InFormat() | NoOverflow() | Finite():
                pass
            case AllOf(parts) | AnyOf(parts):
                for part in parts:
                    self.read(part)
            case Not(part):
                self.read(part)
            case Iff(first, second):
                self.read(first)
                self.read(second)
            case Same():
                for one, other in halves(self._results):
                    self._alike(one, other)
            case Within(error, Mixed(x, y)):
                self._alike(self._term(error), self._term(x))
                self._alike(self._term(error), self._term(y))
            case Within(error, reference):
                self._alike(self._term(error), self._term(reference))
            case SameSign(x, y):
                self._term(x), self._term(y)
            case HasBits(x):
                self._term(x)
            case IsValue(x):
                number = self._term(x)
                value = replace(number, exact=number.unit, before=number.most, format=self._exact.format)
                place = partial(_where_value, replace(value, rounding=Rounding()))
                # A sum of operands has no bits below their last ones, so it is exact even if it is subnormal.
                exact = sum(number.degrees) == 1 and number.unit >= 1 - self._exact.format.precision
                self._note(place, inside=not exact)
            case IsMultiple(x, of):
                self._multiple(self._term(x), self._term(of))
            case OfTwo(x, y) if any(isinstance(node, Exponent) for node in nodes(said)):
                difference = self._exponents(x).plus(self._exponents(y).negative())
                place = partial(difference.compared, type(said))
                moves = difference.moves(self._exact.format)
                self._note(place, inside=moves)
                self.gaps += [] if moves else [place]
            case OfTwo(x, y):
                self._two(self._term(x), self._term(y), type(said))
            case _:
                raise UnreadableError(f"{type(said).__name__} is not read")

    def _note(self, place: Place, *, inside: bool = True) -> None:
        self.places.append(place)
        self.inside += [place] if inside else []

    # -- terms ----------------------------------------------------------------------------------------------
    def _term(self, x: Term) -> Quantity:
        """Return a term as a quantity; it is exact."""
        match x:
            case FixedTerm():
                return self._constant(x)
            case Operand() | Word():
                return self._exact.operand(self._place(x))
            case Result(place):
                return self._results[place]
            case Results(first, stop):
                return reduce(self._sum, self._results[first:stop])
            case Sum(terms):
                return reduce(self._sum, map(self._term, terms))
            case Negative(term):
                return negated(self._term(term))
            case Magnitude(term):
                return replace(self._term(term), near=None)
            case Product(first, second):
                return self._exact.product(self._term(first), self._term(second))
            case Ulp(of) | UlpTowards(of):
                # This is for a normal number. Subnormal numbers form one class, and are not scaled.
                number = self._exact.operand(self._place(of))
                unit = 1 - self._exact.format.precision
                if isinstance(x, UlpTowards):  # below the least normal number, numbers are no denser
                    least = self._exact.number(Fraction(2) ** self._exact.format.emin)
                    self.places.append(partial(_against, replace(number, most=Fraction(1)), least, False))
                    unit -= 1
                most = Fraction(2) ** (2 - self._exact.format.precision)
                return replace(number, low=unit, unit=unit, most=most, near=None)
        raise UnreadableError(f"{type(x).__name__} is not read")

    def _constant(self, x: FixedTerm) -> Quantity:
        return self._exact.number(x.at(self._exact.format, self._exact.rounding))

    def _place(self, x: Term) -> int:
        """Return the place of an operand that is a value."""
        if isinstance(x, Operand) or (isinstance(x, Word) and x.place == 0):
            return self._names.index(x.name)
        raise UnreadableError(f"{type(x).__name__} is not read")

    # -- propositions on two terms --------------------------------------------------------------------------
    def _alike(self, x: Quantity, y: Quantity) -> None:
        """Refuse two numbers that do not scale alike."""
        if x.degrees != y.degrees and not (x.zero or y.zero):
            raise NotHomogeneousError("numbers that scale differently are compared")

    def _two(self, x: Quantity, y: Quantity, kind: type[OfTwo]) -> None:
        """Note where the comparison of numbers that do not scale alike may change."""
        if x.zero or y.zero:
            return
        if x.degrees == y.degrees:
            self._apart(x, y)
            return
        # At the bound itself, only these two are decided.
        if x.constant is None:
            decided = kind is AtMost and y.constant is not None and y.constant > 0
        else:
            decided = kind is Below and x.constant > 0
            x, y = y, x
        # A number that scales as operands do is near the largest numbers only if the larger operand is.
        largest = y.constant is not None and sum(x.degrees) == 1 and y.low >= self._exact.format.emax
        if largest:
            self._apart(x, self._exact.operand(0))
        self._note(partial(_against, x, y, decided), inside=not largest)

    def _apart(self, x: Quantity, y: Quantity) -> None:
        """Note how far apart operands may be while neither of two numbers is certainly the larger."""
        self.ratio = max(self.ratio, x.top - y.low, y.top - x.low)

    def _multiple(self, x: Quantity, of: Quantity) -> None:
        if of.constant is None:
            self._alike(x, of)
            self._apart(replace(x, low=x.unit), of)  # its last bit is what is compared
        elif of.constant > 0 and Fraction(2) ** floor_log2(of.constant) == of.constant:
            self._note(partial(_multiples, x, floor_log2(of.constant)))
        else:
            raise UnreadableError("only multiples of powers of two are read")

    # -- exponents ------------------------------------------------------------------------------------------
    def _exponents(self, x: Term) -> _Exponents:
        """Return a term made of exponents."""
        match x:
            case FixedTerm():
                constant = x.at(self._exact.format, self._exact.rounding)
                if constant.denominator > 1:
                    raise UnreadableError("an exponent is compared with a fraction")
                return _Exponents(partial(_everywhere, int(constant)))
            case Exponent(Operand() | Word() as of):
                return _Exponents(partial(_of_operand, self._place(of)))
            case Exponent(of) if (number := self._term(of)).nonzero:
                self._note(partial(_normal, number))
                return _Exponents(partial(_of_number, number))
            case Sum(terms):
                return reduce(_Exponents.plus, map(self._exponents, terms))
            case Negative(term):
                return self._exponents(term).negative()
            case Magnitude(term):
                inner = self._exponents(term)
                return _Exponents(partial(_magnitude, inner.ends), inner.sums)
        raise UnreadableError(f"{type(x).__name__} is not read among exponents")


def _where_value(x: Quantity, cells: Cells) -> Places:
    """Return where a number is, unless it is certainly a value of the format if it has at most p bits."""
    smallest, largest = cells.span(x.degrees)
    found = packed(smallest, largest)
    found[(smallest >= x.safe_from) & (largest <= x.safe_to)] = INSIDE
    return found


def _multiples(x: Quantity, least: int, cells: Cells) -> Places:
    """Return where a number is, unless it is certainly a multiple of ``2**least``."""
    smallest, largest = cells.span(x.degrees)
    found = packed(smallest, largest)
    found[smallest + x.unit >= least] = INSIDE
    return found


def _against(x: Quantity, y: Quantity, decided: bool, cells: Cells) -> Places:
    """Return where two numbers are, unless x is certainly below y in magnitude, or above it, or zero.

    If `decided`, it suffices that x is at most y, a constant.
    """
    (smallest, largest), (least, most) = cells.span(x.degrees), cells.span(y.degrees)
    smallest, largest = smallest - most, largest - least
    found = packed(smallest, largest)
    room = (Fraction(2) ** y.low if y.constant is None else abs(y.constant)) / x.most
    at = not decided and Fraction(2) ** floor_log2(room) == room
    found[largest <= floor_log2(room) - at] = HOLDS
    found[smallest > floor_log2(y.most / Fraction(2) ** x.low)] = FAILS
    return found


def _normal(x: Quantity, cells: Cells) -> Places:
    """Return a unique place for each cell where a number may be zero or subnormal."""
    smallest, _ = cells.span(x.degrees)
    some = cells.exponents if cells.common else cells.exponents[[degree != 0 for degree in x.degrees]]
    inside = (smallest + x.low >= x.format.emin) & (some >= cells.format.emin).all(axis=0)
    return alone(np.full(smallest.size, INSIDE), ~inside)


# -- exponents in cells -------------------------------------------------------------------------------------
class _Exponents:
    """A term made of exponents.

    Parameters
    ----------
    ends : callable
        Returns its least and its largest value in each cell.
    sums : tuple of callable, optional
        The same for the sums of exponents that it is made of; by default it is one such sum.
    """

    def __init__(self, ends: Callable[[Cells], Ends], sums: tuple[Callable[[Cells], Ends], ...] = ()) -> None:
        self.ends, self._sum, self.sums = ends, not sums, sums or (ends,)

    def plus(self, other: _Exponents) -> _Exponents:
        """Return the sum of both."""
        ends = partial(_added, self.ends, other.ends)
        return _Exponents(ends, () if self._sum and other._sum else (*self.sums, *other.sums))

    def negative(self) -> _Exponents:
        """Return the negative."""
        return _Exponents(partial(_negative, self.ends), () if self._sum else self.sums)

    def moves(self, fmt: Format) -> bool:
        """Return whether it changes if all operands are multiplied by one power of two."""
        two = fmt.emin + np.arange(2)
        cells = Cells(fmt, True, np.stack([two, two]))
        return any(
            (low[0], high[0]) != (low[1], high[1]) for low, high in (each(cells) for each in self.sums)
        )

    def compared(self, kind: type[OfTwo], cells: Cells) -> Places:
        """Return where all sums of exponents are, unless it is certain if this is zero, or at most zero."""
        low, high = self.ends(cells)
        rows = np.concatenate([each(cells) for each in self.sums])
        found: Places = np.unique(rows, axis=1, return_inverse=True)[1].reshape(-1)
        found[high < (1 if kind is AtMost else 0)] = HOLDS
        found[low > (-1 if kind is Below else 0)] = FAILS
        return found


def _everywhere(number: int, cells: Cells) -> Ends:
    found = np.full(cells.exponents.shape[1], number, np.int64)
    return found, found


def _of_operand(place: int, cells: Cells) -> Ends:
    """Return the ends of an operand's exponent; zero has that of `logic.of_trials.exponent`."""
    fmt, found = cells.format, cells.exponents[place]
    return np.where(found < fmt.emin, fmt.emin - 2 * fmt.precision - 2, found), found


def _of_number(x: Quantity, cells: Cells) -> Ends:
    """Return the ends of a normal number's exponent."""
    smallest, largest = cells.span(x.degrees)
    return smallest + x.low, largest + floor_log2(x.most)


def _added(one: Callable[[Cells], Ends], other: Callable[[Cells], Ends], cells: Cells) -> Ends:
    (low, high), (least, most) = one(cells), other(cells)
    return low + least, high + most


def _negative(part: Callable[[Cells], Ends], cells: Cells) -> Ends:
    low, high = part(cells)
    return -high, -low


def _magnitude(part: Callable[[Cells], Ends], cells: Cells) -> Ends:
    low, high = part(cells)
    least = np.where((low < 0) & (high > 0), 0, np.minimum(np.abs(low), np.abs(high)))
    return least, np.maximum(np.abs(low), np.abs(high))
