"""Translation of propositions about unknown numbers, with unbounded exponents, to formulas for the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from mcfsim.theorems.logic import (
    LARGEST,
    AllOf,
    AnyOf,
    EveryDraw,
    Exponent,
    Finite,
    Iff,
    IsMultiple,
    LowBit,
    NoOverflow,
    Not,
    Operand,
    Predicate,
    Proposition,
    Result,
    Results,
    Rounded,
    Same,
    SameSign,
    Term,
    Ulp,
    UnreadableError,
    Within,
    Word,
    written,
)
from mcfsim.theorems.logic.propositions import halves
from mcfsim.theorems.logic.terms import AtMost, Below, Equal, Magnitude, Negative, Product, Sum, UnitRoundoff
from mcfsim.theorems.logic.terms import Number as Constant
from mcfsim.theorems.solver.unknown_numbers import (
    TRUE,
    ZERO,
    Formula,
    LinearForm,
    UnknownArithmetic,
    UnknownNumber,
    all_of,
    equal,
    is_multiple_of_ulp,
)
from mcfsim.theorems.solver.unknown_numbers import Disjunction as Either
from mcfsim.theorems.symbolic import Polynomial, Relation, UndecidedError
from mcfsim.theorems.symbolic.decisions import first

FALSE = TRUE.denied()


@dataclass(frozen=True, eq=False)
class Signed:
    """A number as a sum: of a form, and of magnitudes of forms, each added (1) or subtracted (-1)."""

    plain: LinearForm = ZERO
    sizes: tuple[tuple[LinearForm, int], ...] = ()

    def __add__(self, other: Signed) -> Signed:
        return Signed(self.plain + other.plain, self.sizes + other.sizes)

    def times(self, factor: Fraction | int, power: int = 0) -> Signed:
        """Return the product with a number and a power of u."""
        sign = -1 if factor < 0 else 1
        sizes = ((form.times_u(power) * (sign * factor), sign * of) for form, of in self.sizes if factor)
        return Signed(self.plain.times_u(power) * factor, tuple(sizes))


@dataclass(frozen=True, eq=False)
class Unknowns:
    """A case of unknown numbers, about which propositions become formulas.

    Attributes
    ----------
    ar : UnknownArithmetic
        Carries out the roundings in propositions.
    operands : mapping
        The words of each operand, by name.
    results : sequence of UnknownNumber
    least : int
        The least precision. From there on, bounds must have no pole and must not be negative.
    supposing : bool
        Whether hypotheses are read. In these, the supposition that nothing overflows is simply true, since
        exponents are unbounded.
    """

    ar: UnknownArithmetic
    operands: Mapping[str, Sequence[UnknownNumber]]
    results: Sequence[UnknownNumber]
    least: int
    supposing: bool = False

    def formula(self, said: Proposition) -> Formula:
        """Return a hypothesis or a claim as a formula.

        Raises
        ------
        UnreadableError
            If it is a predicate on arrays, is not linear, or is about a format's bits or range.
        """
        match said:
            case AllOf(parts):
                return all_of(map(self.formula, parts))
            case AnyOf(parts):
                return Either(tuple(map(self.formula, parts)))
            case Not(part):
                return self.formula(part).denied()
            case Iff(first, second):
                one, other = self.formula(first), self.formula(second)
                return one.implies(other) & other.implies(one)
            case EveryDraw(part):
                return self.formula(part)
            case NoOverflow() | Finite() if self.supposing:
                return TRUE
            case AtMost(x, y) | Below(x, y):
                return self._compared(x, y, strict=isinstance(said, Below), said=said)
        return self._atom(said)

    def _atom(self, said: Proposition) -> Formula:
        match said:
            case Equal(x, y):
                return self._equal(x, y, said)
            case Same():
                return all_of(equal(a.value, b.value) for a, b in halves(self.results))
            case SameSign(x, y):
                a, b = self._number(x).value, self._number(y).value
                return ((a >= ZERO) & (b >= ZERO)) | ((a <= ZERO) & (b <= ZERO))
            case IsMultiple((Word() | Result()) as x, Ulp((Word() | Result()) as y)):
                return is_multiple_of_ulp(self._number(x), self._number(y))
            case Within(error, reference, bound) if bound.formula is not None and not bound.squared:
                above, below = bound.formula.numerator, bound.formula.denominator
                self._check_bound(above, Relation.NOT_NEGATIVE, said)
                self._check_bound(below, Relation.POSITIVE, said)
                wrong = self._size(error, below, 0, said)
                return _at_most(wrong, self._size(reference, above, bound.unit, said), strict=bound.strict)
            case Predicate(text, _):
                raise UnreadableError(f"{text!r} is a predicate on arrays, which the solver cannot read")
        raise self._unreadable(said)

    # -- comparisons ----------------------------------------------------------------------------------------
    def _compared(self, x: Term, y: Term, *, strict: bool, said: Proposition) -> Formula:
        # Exponents are unbounded: every number is below the largest.
        if self.supposing and LARGEST in (x, y):
            return TRUE if y == LARGEST else FALSE
        if isinstance(x, Exponent) and isinstance(y, Exponent):
            a, b = self._number(x.of).first, self._number(y.of).first
            return a < b if strict else a <= b
        return _at_most(self._signed(x, said), self._signed(y, said), strict=strict)

    def _equal(self, x: Term, y: Term, said: Proposition) -> Formula:
        if self.supposing and LARGEST in (x, y):
            return FALSE
        if isinstance(x, Rounded) and x.mode is None:
            rounded = self.ar.add(self._number(x.x), self._number(x.y))
            return equal(rounded.value, self._number(y).value)
        return self._compared(x, y, strict=False, said=said) & self._compared(y, x, strict=False, said=said)

    # -- terms ----------------------------------------------------------------------------------------------
    def _number(self, x: Term) -> UnknownNumber:
        match x:
            case Word(name, place):
                return _one(self.operands[name], place, name)
            case Operand(name) if len(self.operands[name]) == 1:
                return self.operands[name][0]
            case Result(place):
                return _one(self.results, place, "the algorithm")
            case Negative(term):
                return -self._number(term)
        raise UnreadableError(f"{written(x)} is no single unknown of the solver")

    def _signed(self, x: Term, said: Proposition) -> Signed:
        """Return a term as a sum of forms and magnitudes of forms."""
        match x:
            case Operand(name):
                return Signed(_total(self.operands[name]))
            case Results(first, stop):
                return Signed(_total(self.results[first:stop]))
            case Word() | Result():
                return Signed(self._number(x).value)
            case Sum(terms):
                return sum((self._signed(term, said) for term in terms), Signed())
            case Negative(term):
                return self._signed(term, said).times(-1)
            case Magnitude(term):
                return _magnitude(self._signed(term, said), said)
            case Ulp((Word() | Result()) as y):
                return Signed(self._number(y).ulp)
            case LowBit((Word() | Result()) as y):
                return Signed(self._number(y).last)
            case Constant(0):
                return Signed()
            case Product(UnitRoundoff(power), other) | Product(other, UnitRoundoff(power)):
                return self._signed(other, said).times(1, power)
            case Product(Constant(value), other) | Product(other, Constant(value)):
                return self._signed(other, said).times(value)
        raise self._unreadable(said)

    def _size(self, x: Term, polynomial: Polynomial, unit: int, said: Proposition) -> Signed:
        """Return the magnitude of a term times a polynomial in u, which is positive, and a power of u."""
        number = self._signed(x, said)
        if not number.sizes:
            return _magnitude(self._times(number, polynomial, unit), said)
        return self._times(_magnitude(number, said), polynomial, unit)

    def _times(self, number: Signed, polynomial: Polynomial, unit: int) -> Signed:
        """Return the product of a number, a polynomial in u and a power of u."""
        step, share = polynomial.over.unit
        if any(power % step for power, _ in polynomial.terms):
            raise UnreadableError("the solver knows bounds in powers of u alone")
        terms = ((power // step, c) for power, c in polynomial.terms)
        return sum((number.times(c / share**power, power + unit) for power, c in terms), Signed())

    def _check_bound(self, part: Polynomial, relation: Relation, said: Proposition) -> None:
        """Raise UnreadableError for a part of a bound that has the wrong sign at some precision."""
        with suppress(UndecidedError):
            if part.over.precision(first(relation, part)) <= self.least:
                return
        raise UnreadableError(
            f"the bound of {written(said)!r} is negative, or has a pole, at some p >= {self.least}"
        )

    def _unreadable(self, said: Proposition) -> UnreadableError:
        return UnreadableError(
            f"the solver cannot read {written(said)!r}: it knows sums, differences, multiples and magnitudes "
            "of operands and results, their exponents and ulps, and bounds that are functions of u"
        )


def _one(numbers: Sequence[UnknownNumber], place: int, of: str) -> UnknownNumber:
    if place >= len(numbers):
        raise UnreadableError(f"{of} has only {len(numbers)} numbers, none at place {place}")
    return numbers[place]


def _total(numbers: Sequence[UnknownNumber]) -> LinearForm:
    return sum((x.value for x in numbers), ZERO)


def _magnitude(number: Signed, said: Proposition) -> Signed:
    """Return the magnitude of a number; a sum of magnitudes is its own."""
    if not number.plain.terms and all(sign > 0 for _, sign in number.sizes):
        return number
    if not number.sizes:
        return Signed(sizes=((number.plain, 1),))
    raise UnreadableError(f"the solver cannot read magnitudes of magnitudes in {written(said)!r}")


def _at_most(x: Signed, y: Signed, *, strict: bool) -> Formula:
    """Return the formula ``x <= y``, where each magnitude is the larger of a form and its negative."""
    rest = y + x.times(-1)
    gains, losses = ([form for form, sign in rest.sizes if sign == of] for of in (1, -1))

    def of(signs: tuple[int, ...], others: tuple[int, ...]) -> Formula:
        parts = zip((*gains, *losses), (*signs, *(-sign for sign in others)), strict=True)
        side = sum((form * sign for form, sign in parts), rest.plain)
        return side > ZERO if strict else side >= ZERO

    ways = product((1, -1), repeat=len(gains))
    found = [all_of(of(signs, others) for others in product((1, -1), repeat=len(losses))) for signs in ways]
    return found[0] if len(found) == 1 else Either(tuple(found))
