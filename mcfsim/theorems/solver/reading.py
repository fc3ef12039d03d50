"""Translation of propositions about unknown numbers, with unbounded exponents, to formulas for the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from mcfsim.theorems.logic.terms import AtMost, Below, Equal, Magnitude, Negative, Product, Sum, UnitRoundoff
from mcfsim.theorems.logic.terms import Number as Constant
from mcfsim.theorems.solver.linear_forms import (
    TRUE,
    ZERO,
    Formula,
    LinearForm,
    UnknownNumber,
    all_of,
    equal,
    is_multiple_of_ulp,
)
from mcfsim.theorems.solver.linear_forms import Disjunction as Either
from mcfsim.theorems.solver.unknown_arithmetic import UnknownArithmetic
from mcfsim.theorems.symbolic import Polynomial, Relation, UndecidedError
from mcfsim.theorems.symbolic.decisions import first

#: A number as a sum. Each form is added itself (0), or its magnitude is added (1) or subtracted (-1).
Signed = list[tuple[LinearForm, int]]
FALSE = TRUE.denied()


class Unknowns:
    """A case of unknown numbers, about which propositions become formulas.

    Parameters
    ----------
    ar : UnknownArithmetic
        Carries out the roundings in propositions.
    operands : mapping
        The words of each operand, by name.
    results : sequence of UnknownNumber
    least : int
        The least precision. From there on bounds must have no pole and not be negative.
    """

    def __init__(
        self,
        ar: UnknownArithmetic,
        operands: Mapping[str, Sequence[UnknownNumber]],
        results: Sequence[UnknownNumber],
        least: int,
    ) -> None:
        self._ar, self._operands, self._results, self._least = ar, operands, results, least
        self._supposing = False

    def supposed(self, said: Proposition) -> Formula:
        """Return a hypothesis as a formula; exponents are unbounded, so absence of overflow is just true."""
        self._supposing = True
        try:
            return self.formula(said)
        finally:
            self._supposing = False

    def formula(self, said: Proposition) -> Formula:
        """Return a claim as a formula.

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
            case NoOverflow() | Finite() if self._supposing:
                return TRUE
            case AtMost(x, y) | Below(x, y):
                return self._compared(x, y, strict=isinstance(said, Below), said=said)
        return self._atom(said)

    def _atom(self, said: Proposition) -> Formula:
        match said:
            case Equal(x, y):
                return self._equal(x, y, said)
            case Same():
                half = len(self._results) // 2
                pairs = zip(self._results[:half], self._results[half:], strict=True)
                return all_of(equal(a.value, b.value) for a, b in pairs)
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
        if self._supposing and LARGEST in (x, y):
            return TRUE if y == LARGEST else FALSE
        if isinstance(x, Exponent) and isinstance(y, Exponent):
            a, b = self._number(x.of).first, self._number(y.of).first
            return a < b if strict else a <= b
        return _at_most(self._signed(x, said), self._signed(y, said), strict=strict)

    def _equal(self, x: Term, y: Term, said: Proposition) -> Formula:
        if self._supposing and LARGEST in (x, y):
            return FALSE
        if isinstance(x, Exponent) and isinstance(y, Exponent):
            return equal(self._number(x.of).first, self._number(y.of).first)
        if isinstance(x, Rounded) and x.mode is None:
            rounded = self._ar.add(self._number(x.x), self._number(x.y))
            return equal(rounded.value, self._number(y).value)
        left, right = self._signed(x, said), self._signed(y, said)
        return _at_most(left, right, strict=False) & _at_most(right, left, strict=False)

    # -- terms ----------------------------------------------------------------------------------------------
    def _number(self, x: Term) -> UnknownNumber:
        match x:
            case Word(name, place):
                return _one(self._operands[name], place, name)
            case Operand(name) if len(self._operands[name]) == 1:
                return self._operands[name][0]
            case Result(place):
                return _one(self._results, place, "the algorithm")
            case Negative(term):
                return -self._number(term)
        raise UnreadableError(f"{written(x)} is no single unknown of the solver")

    def _signed(self, x: Term, said: Proposition) -> Signed:
        """Return a term as a sum of forms and magnitudes of forms."""
        match x:
            case Operand(name):
                return [(_total(self._operands[name]), 0)]
            case Results(first, stop):
                return [(_total(self._results[first:stop]), 0)]
            case Word() | Result():
                return [(self._number(x).value, 0)]
            case Sum(terms):
                return _collected([part for term in terms for part in self._signed(term, said)])
            case Negative(term):
                return [(-form if not sign else form, -sign) for form, sign in self._signed(term, said)]
            case Magnitude(term):
                return _magnitude(self._signed(term, said), said)
            case Ulp((Word() | Result()) as y):
                return [(self._number(y).ulp, 0)]
            case LowBit((Word() | Result()) as y):
                return [(self._number(y).last, 0)]
            case Constant(value) if value == 0:
                return []
            case Product(first, second):
                for factor, other in ((first, second), (second, first)):
                    if isinstance(factor, Constant):
                        return _scaled(self._signed(other, said), factor.value)
                    if isinstance(factor, UnitRoundoff):
                        return [(f.times_u(factor.power), s) for f, s in self._signed(other, said)]
        raise self._unreadable(said)

    def _size(self, x: Term, polynomial: Polynomial, unit: int, said: Proposition) -> Signed:
        """Return the magnitude of a term times a polynomial in u, which is positive, and a power of u."""
        number = self._signed(x, said)
        if all(not sign for _, sign in number):
            return _magnitude(self._times(number, polynomial, unit), said)
        return self._times(_magnitude(number, said), polynomial, unit)

    def _times(self, number: Signed, polynomial: Polynomial, unit: int) -> Signed:
        """Return the product of a number, a polynomial in u and a power of u."""
        step, _ = polynomial.over.unit
        parts: Signed = []
        for power, c in polynomial.terms:
            if power % step:
                raise UnreadableError("the solver knows bounds in powers of u alone")
            whole = c / polynomial.over.unit[1] ** (power // step)
            parts += [(f.times_u(power // step + unit), s) for f, s in _scaled(number, whole)]
        return _collected(parts)

    def _check_bound(self, part: Polynomial, relation: Relation, said: Proposition) -> None:
        """Raise UnreadableError for a part of a bound that has the wrong sign at some precision."""
        with suppress(UndecidedError):
            if part.over.precision(first(relation, part)) <= self._least:
                return
        raise UnreadableError(
            f"the bound of {written(said)!r} is negative, or has a pole, at some p >= {self._least}"
        )

    def _unreadable(self, said: Proposition) -> UnreadableError:
        return UnreadableError(
            f"the solver cannot read {written(said)!r}: it knows sums, differences, multiples and magnitudes "
            "of operands and results, their exponents and ulps, and bounds that are functions of u"
        )


def _one(numbers: Sequence[UnknownNumber], place: int, of: str) -> UnknownNumber:
    if place >= len(numbers):
        raise UnreadableError(f"{of} has {len(numbers)} numbers, and none of number {place}")
    return numbers[place]


def _total(numbers: Sequence[UnknownNumber]) -> LinearForm:
    return sum((x.value for x in numbers), ZERO)


def _scaled(number: Signed, factor: Fraction) -> Signed:
    if factor < 0:
        number, factor = [(-f if not s else f, -s) for f, s in number], -factor
    return [(f * factor, s) for f, s in number] if factor else []


def _collected(parts: Signed) -> Signed:
    """Return a sum in which all forms that are no magnitudes are added up."""
    plain = sum((form for form, sign in parts if not sign), ZERO)
    return [(plain, 0), *((form, sign) for form, sign in parts if sign)]


def _magnitude(number: Signed, said: Proposition) -> Signed:
    """Return the magnitude of a number; a sum of magnitudes is its own."""
    signs = {sign for form, sign in number if form.terms}
    if signs <= {1}:
        return number  # it is not negative
    if signs <= {0}:
        return [(sum((form for form, _ in number), ZERO), 1)]
    raise UnreadableError(f"the solver cannot read magnitudes of magnitudes in {written(said)!r}")


def _at_most(x: Signed, y: Signed, *, strict: bool) -> Formula:
    """Return the formula ``x <= y``, where each magnitude is the larger of a form and its negative."""
    parts = [*y, *((-form if not sign else form, -sign) for form, sign in x)]
    plain = sum((form for form, sign in parts if not sign), ZERO)
    gains = [form for form, sign in parts if sign > 0]
    losses = [form for form, sign in parts if sign < 0]

    def of(signs: tuple[int, ...], others: tuple[int, ...]) -> Formula:
        side = plain
        for form, sign in zip(gains, signs, strict=True):
            side = side + form * sign
        for form, sign in zip(losses, others, strict=True):
            side = side - form * sign
        return side > ZERO if strict else side >= ZERO

    ways = product((1, -1), repeat=len(gains))
    found = [all_of(of(signs, others) for others in product((1, -1), repeat=len(losses))) for signs in ways]
    return found[0] if len(found) == 1 else Either(tuple(found))
