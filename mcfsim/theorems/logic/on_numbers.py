"""Evaluation of propositions on one case of fractions, by definition and without the emulator's code.

Terms made of sums, products and magnitudes alone are evaluated on polynomials in u as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add, eq, le, lt
from typing import Any

from mcfsim.formats import Format
from mcfsim.oracle import FractionArithmetic, operate, round_fraction
from mcfsim.oracle.rationals import floor_log2
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.logic.propositions import (
    BEYOND,
    EveryDraw,
    Finite,
    HasBits,
    Iff,
    InFormat,
    IsMultiple,
    IsValue,
    Nonoverlapping,
    NoOverflow,
    Predicate,
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
    AtMost,
    Below,
    Computed,
    Equal,
    Expectation,
    Exponent,
    FixedTerm,
    InnerProduct,
    LowBit,
    Magnitude,
    Mixed,
    Negative,
    Not,
    Number,
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
    UnitRoundoff,
    Word,
    nodes,
    places_of,
)
from mcfsim.theorems.symbolic.polynomial import Precisions, unit

#: A fraction, or a float that is infinite or NaN.
Outcome = Fraction | float
#: Up to this precision the oracle rounds to formats; beyond it, exponents are unbounded.
_BINARY64 = 53
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {AtMost: le, Below: lt, Equal: eq}


@dataclass(frozen=True)
class Case:
    """One case: operands, and the results of the algorithm for them.

    Attributes
    ----------
    format : Format
    rounding : Rounding
    operands : mapping
        The words of each operand, by name.
    paths : sequence of (Fraction, sequence)
        The probability of each path and the flattened results on it. There is one path if nothing is drawn.
    """

    format: Format
    rounding: Rounding
    operands: Mapping[str, Sequence[Fraction]]
    paths: Sequence[tuple[Fraction, Sequence[Outcome]]]

    def holds(self, said: Proposition) -> bool:
        """Return whether a proposition holds on every path.

        Raises
        ------
        UnreadableError
            If it contains a predicate on arrays.
        """
        return all(_Path(self, results).holds(said) for _, results in self.paths)

    def value(self, x: Term, path: int = 0) -> Any:
        """Return the value of a term on a path; infinity for the last bit of zero.

        Raises
        ------
        UnreadableError
            If it is computed from arrays.
        """
        return _Path(self, self.paths[path][1]).value(x)


class Ring:
    """Operands and results that can be added and multiplied, such as polynomials in u.

    Parameters
    ----------
    operands : mapping
        The words of each operand, by name.
    results : sequence
    over : Precisions, optional
        The precisions of the polynomials. If given, powers of u are polynomials, too.
    """

    def __init__(
        self, operands: Mapping[str, Sequence[Any]], results: Sequence[Any], over: Precisions | None = None
    ) -> None:
        self.operands, self.results, self.over = operands, results, over

    def holds(self, said: Proposition) -> bool:
        """Return whether a proposition holds, by what `atom_holds` says of its parts."""
        match said:
            case AllOf(parts):
                return all(map(self.holds, parts))
            case AnyOf(parts):
                return any(map(self.holds, parts))
            case Not(part):
                return not self.holds(part)
            case Iff(first, second):
                return self.holds(first) == self.holds(second)
        return self.atom_holds(said)

    def atom_holds(self, said: Proposition) -> bool:
        """Return whether a proposition not made of others holds; raise ValueError if that is not known."""
        raise UnreadableError(f"{type(said).__name__} has no meaning for these numbers")

    def value(self, x: Term) -> Any:
        """Return the value of a term.

        Raises
        ------
        UnreadableError
            If it is made of anything but operands, results, sums, products, magnitudes and powers of u.
        """
        value = self.value
        match x:
            case Number(number):
                return number
            case UnitRoundoff(power) if self.over is not None:
                return unit(self.over) ** power
            case Operand(name):
                return reduce(add, self.operands[name])
            case Word(name, place):
                return self.operands[name][place]
            case Result(place):
                return self.results[place]
            case Results(first, stop):
                return reduce(add, self.results[first:stop])
            case Sum(terms):
                return reduce(add, map(value, terms))
            case Negative(term):
                return -value(term)
            case Product(first, second):
                return value(first) * value(second)
            case Magnitude(term):
                return abs(value(term))
            case SumOfMagnitudes(names):
                products = zip(*(self.operands[name] for name in names), strict=True)
                return reduce(add, (abs(math.prod(factors)) for factors in products))
            case InnerProduct(a, b):
                pairs = zip(self.operands[a], self.operands[b], strict=True)
                return reduce(add, (x * y for x, y in pairs))
            case Computed(_, text):
                raise UnreadableError(f"{text!r} is computed from arrays; single numbers are read from data")
        raise UnreadableError(f"{type(x).__name__} has no meaning for these numbers")


class _Path(Ring):
    def __init__(self, case: Case, results: Sequence[Outcome]) -> None:
        super().__init__(case.operands, results)
        self.case = case
        self.format, self.rounding = case.format, case.rounding

    # -- propositions ---------------------------------------------------------------------------------------
    def atom_holds(self, said: Proposition) -> bool:
        match said:
            case EveryDraw(part):
                return self.case.holds(part)
            case InFormat():
                return said.holds(self.format, self.rounding)
            case NoOverflow() | Finite(None):
                return all(map(_is_finite, self.results))
            case Finite(Result(place)):
                return _is_finite(self.results[place])
            case Same():
                return all(_same(*pair) for pair in halves(self.results))
            case Predicate(text, _):
                raise UnreadableError(f"{text!r} is a predicate on arrays; single numbers are read from data")
        return self._is_finite(said) and self._atom(said)

    def _is_finite(self, said: Proposition) -> bool:
        """Return whether all results in an atom are finite."""
        if any(isinstance(node, Expectation) for node in nodes(said)):
            return all(_is_finite(x) for _, results in self.case.paths for x in results)
        whole = isinstance(said, Within | StronglyNonoverlapping)
        whole |= isinstance(said, Nonoverlapping) and not said.terms
        count = len(self.results)
        places = range(count) if whole else places_of(said, count)
        return all(_is_finite(self.results[place]) for place in places)

    def _atom(self, said: Proposition) -> bool:
        value = self.value
        match said:
            case AtMost(x, y) | Below(x, y) | Equal(x, y):
                return bool(_COMPARED[type(said)](value(x), value(y)))
            case SameSign(x, y):
                return not (value(x) < 0 < value(y) or value(y) < 0 < value(x))
            case IsValue(x):
                return self._is_value(value(x))
            case IsMultiple(x, of):
                return bool((value(x) / value(of)).denominator == 1)
            case HasBits(x, bits):
                return _bits(value(x)) <= bits.at(self.format, self.rounding)
            case Within(error, reference, bound):
                wrong, right = value(error), value(reference)
                limit = bound.limits(self.format.precision)[0 if wrong * right >= 0 else 1]
                size, most = abs(wrong), limit * abs(right)
                return bool(size < most if bound.strict else size <= most)
            case Nonoverlapping(terms, factor):
                return _nonoverlapping([value(term) for term in terms] if terms else self.results, factor)
            case StronglyNonoverlapping():
                return _strongly_nonoverlapping(self.results)
        raise UnreadableError(f"{type(said).__name__} cannot be read on single numbers")

    def _is_value(self, x: Fraction) -> bool:
        fmt = self.format
        if type(fmt) is not Format:  # a posit or a grid lacks some of the numbers that have its bits
            return bool(round_fraction(x, fmt) == x)
        in_range = abs(x) <= fmt.max and _low_bit(x) >= Fraction(2) ** (fmt.emin - fmt.precision + 1)
        return bool(x.denominator & (x.denominator - 1) == 0 and in_range and _bits(x) <= fmt.precision)

    # -- terms ----------------------------------------------------------------------------------------------
    def value(self, x: Term) -> Any:
        fmt, value = self.format, self.value
        match x:
            case Exponent(of):
                return Fraction(_exponent(value(of), fmt))
            case Ulp(of):
                return Fraction(2) ** (max(_exponent(value(of), fmt), fmt.emin) - fmt.precision + 1)
            case LowBit(of):
                return _low_bit(value(of))
            case UlpTowards(of, toward):
                return self._step(value(of), value(toward))
            case Rounded(a, b, mode):
                return self._sum(value(a), value(b), self.rounding if mode is None else Rounding(mode))
            case RoundedToBits(of, bits):
                return FractionArithmetic(int(bits.at(fmt, self.rounding))).round(value(of))
            case Expectation(of):
                weighed = [p * _Path(self.case, results).value(of) for p, results in self.case.paths]
                return sum(weighed, Fraction(0))
            case FixedTerm():
                return Fraction(x.at(fmt, self.rounding))
            case Mixed(a, b, shares, _):
                first, second = shares(fmt.precision)
                return first * abs(value(a)) + second * value(b)
        return super().value(x)

    def _sum(self, x: Fraction, y: Fraction, rounding: Rounding) -> Outcome:
        if self.format.precision > _BINARY64:
            return FractionArithmetic(self.format.precision, rounding).round(x + y)
        found = operate("add", (x, y), self.format, rounding)
        return Fraction(found) if math.isfinite(found) else found

    def _step(self, x: Fraction, toward: Fraction) -> Fraction:
        """Return the distance to the neighbour, which is found by rounding a number a little beyond x."""
        fmt = self.format
        little = Fraction(2) ** (fmt.emin - 2 * fmt.precision - 2)
        up = (toward or x) >= 0
        beyond = x + (little if up else -little)
        # The largest number has a neighbour beyond the format's range, too.
        wide = Format("", precision=fmt.precision, emin=fmt.emin, emax=fmt.emax + 2)
        mode = Mode.UP if up else Mode.DOWN
        return abs(Fraction(round_fraction(beyond, wide, Rounding(mode))) - x)


# -- single numbers -----------------------------------------------------------------------------------------
def _is_finite(x: Outcome) -> bool:
    return isinstance(x, Fraction | int) or math.isfinite(x)


def _same(x: Outcome, y: Outcome) -> bool:
    return bool(x == y) or (x != x and y != y)


def _exponent(x: Outcome, fmt: Format) -> int:
    if isinstance(x, float):  # infinity, for the last bit of zero
        return BEYOND
    if x == 0:
        return fmt.emin - 2 * fmt.precision - 2
    return floor_log2(abs(x))


def _low_bit(x: Any) -> Any:
    """Return the value of the last nonzero bit of a dyadic number; infinity for zero."""
    n = abs(Fraction(x).numerator)
    return Fraction(n & -n, Fraction(x).denominator) if n else math.inf


def _bits(x: Fraction) -> int:
    return floor_log2(abs(x)) - floor_log2(_low_bit(x)) + 1 if x else 0


def _nonoverlapping(parts: Sequence[Any], factor: int) -> bool:
    return all(
        small == 0 or factor * abs(small) < _low_bit(large)
        for i, small in enumerate(parts)
        for large in parts[i + 1 :]
    )


def _strongly_nonoverlapping(parts: Sequence[Any]) -> bool:
    there = [x for x in parts if x]
    pairs = [(i, j) for j in range(len(there)) for i in range(j)]
    adjacent = [(i, j) for i, j in pairs if 2 * abs(there[i]) >= _low_bit(there[j])]
    powers = [abs(x) == _low_bit(x) for x in there]
    counts = [sum(k in pair for pair in adjacent) for k in range(len(there))]
    return (
        _nonoverlapping(there, 1)
        and all(powers[i] and powers[j] for i, j in adjacent)
        and all(count < 2 for count in counts)
    )
