"""Exact evaluation of propositions on a block of cases, in arrays or as a recorded program.

Floats decide what they can: comparisons of words, sums whose rounded parts all fit binary64, ratios away
from a bound. Integers (`Exact`) decide the rest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.theorems.logic import of_trials
from mcfsim.theorems.logic.in_floats import addends, as_exact, exact, near, on_one_scale, sides, unsure_of
from mcfsim.theorems.logic.of_trials import (
    and_finite,
    block_of,
    constant_of,
    finite,
    has_bits,
    is_multiple,
    is_representable,
    is_value,
    nonoverlapping,
    rounded,
    rounded_to_bits,
    strongly_nonoverlapping,
    ulp_of,
    ulp_place,
    wide,
)
from mcfsim.theorems.logic.propositions import (
    EveryDraw,
    Finite,
    HasBits,
    Iff,
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
    settled,
)
from mcfsim.theorems.logic.terms import (
    LARGEST,
    AllOf,
    AnyOf,
    AtMost,
    Below,
    Equal,
    Magnitude,
    Mixed,
    Not,
    Number,
    OfFormat,
    Product,
    Proposition,
    Result,
    Rounded,
    RoundedToBits,
    Sum,
    Term,
    Ulp,
    Word,
)
from mcfsim.theorems.trial import Measured, Trial, Truth, all_hold, any_holds, rarely
from mcfsim.theorems.trial import MixedError as MixedError

#: Binary64 quotients have a smaller relative error: farther from a bound they decide, nearer integers do.
_SHARE = 2.0**-45


def holds(said: Proposition, t: Trial) -> Truth:
    """Return for each case, or each of its paths, whether a proposition holds."""
    known = settled(said, t.format, t.rounding)
    if known is not None:
        return t.everywhere(known)
    match said:
        case AllOf(parts):
            return all_hold(*(_part(part, t) for part in _open(parts, t)))
        case AnyOf(parts):
            return any_holds(*(_alternative(part, t) for part in _open(parts, t)))
        case Not(part):
            return ~_part(part, t)
        case Iff(first, second):
            return _part(first, t) == _part(second, t)
        case EveryDraw(part):
            return t.each(t.throughout(_part(part, t)))
        case Predicate(_, test):
            return test(t)
        case Within():
            return _within_bound(said, t)
        case Equal(x, y):
            return _equal(x, y, t)
        case AtMost(x, y):
            return _compared(x, y, t, strict=False)
        case Below(x, y):
            return _compared(x, y, t, strict=True)
    return _atom(said, t)


def _part(said: Proposition, t: Trial) -> Truth:
    """Return where a part of a proposition holds; a predicate must return a truth value per case."""
    return t.truth(said.test(t)) if isinstance(said, Predicate) else holds(said, t)


def _open(parts: tuple[Proposition, ...], t: Trial) -> list[Proposition]:
    """Return the parts that format and rounding alone do not settle."""
    return [part for part in parts if settled(part, t.format, t.rounding) is None]


def _alternative(said: Proposition, t: Trial) -> Truth:
    """Return where an alternative holds; of a conjunction, the first part limits where the rest runs."""
    if not isinstance(said, AllOf):
        return _part(said, t)
    first, *rest = _open(said.parts, t)
    there = _part(first, t)
    return t.only(there, lambda some: holds(AllOf(tuple(rest)), some)) if rest else there


def _atom(said: Proposition, t: Trial) -> Truth:
    match said:
        case Same():
            half = len(t.results) // 2
            pairs = zip(t.results[:half], t.results[half:], strict=True)
            return all_hold(*((a == b) | (np.isnan(a) & np.isnan(b)) for a, b in pairs))
        case SameSign(x, y):
            return and_finite(np.sign(block_of(x, t)) * np.sign(block_of(y, t)) >= 0, x, t, y)
        case NoOverflow() | Finite(None):
            return t.finite
        case Finite(Result(place)):
            return np.isfinite(t.results[place])
        case IsValue(x):
            return _is_value(x, t)
        case IsMultiple(x, of):
            return _is_multiple(x, of, t)
        case HasBits(x, bits):
            number = near(x, t)
            if number is None or number[1] is not None:
                raise UnreadableError("bits are counted of words and results")
            return and_finite(has_bits(wide(number[0]), int(bits.at(t.format, t.rounding))), x, t)
        case Nonoverlapping(terms, factor):
            parts = [block_of(term, t) for term in terms] if terms else t.results
            return nonoverlapping(parts, factor)
        case StronglyNonoverlapping():
            return strongly_nonoverlapping(t.results)
    raise UnreadableError(f"{type(said).__name__} cannot be read on arrays")


def _compared(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    """Return where ``x <= y``, or ``x < y``, and the results in both are finite."""
    held = _in_range(x, y, t, strict=strict)
    if held is None:
        left, right = near(x, t), near(y, t)
        if left is None or right is None:
            held = _exactly(x, y, t, strict=strict)
        else:
            (a, sure), (b, also) = left, right
            a, b = on_one_scale(a, b)
            held = a < b if strict else a <= b
            unsure = unsure_of(sure, also)
            if unsure is not None:
                rest = t.rarely(
                    unsure & finite(x, t) & finite(y, t), lambda some: _exactly(x, y, some, strict=strict)
                )
                held = (held & ~unsure) | rest
    return and_finite(_of_every_case(held, t), x, t, y)


def _exactly(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    a, b = exact(x, t), exact(y, t)
    return ~_of_every_case(_at_most(b, a), t) if strict else _of_every_case(_at_most(a, b), t)


def _at_most(a: Any, b: Any) -> Truth:
    """Return where ``a <= b``; one of them may be a Fraction, common to all cases."""
    return b >= a if isinstance(a, Fraction) else a <= b


def _in_range(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth | None:
    """Return where ``|a + b| <= max`` for two words, or None for any other comparison."""
    match x, y:
        case Magnitude(Sum((Word() as a, Word() as b))), OfFormat() if y == LARGEST and not strict:
            return of_trials.at_most(block_of(a, t), block_of(b, t), float(t.format.max))
    return None


def _equal(x: Term, y: Term, t: Trial) -> Truth:
    """Return where two terms are equal and the results in both are finite."""
    if isinstance(x, Rounded) or isinstance(y, Rounded):
        once, other = (x, y) if isinstance(x, Rounded) else (y, x)
        assert isinstance(once, Rounded)
        return and_finite(rounded(once, t) == block_of(other, t), x, t, y)
    if isinstance(x, RoundedToBits) or isinstance(y, RoundedToBits):
        rounded_to, other = (x, y) if isinstance(x, RoundedToBits) else (y, x)
        assert isinstance(rounded_to, RoundedToBits)
        bits = int(rounded_to.bits.at(t.format, t.rounding))
        return and_finite(rounded_to_bits(block_of(other, t), block_of(rounded_to.of, t), bits), other, t)
    found = _equal_in_floats(x, y, t)
    if found is not None:
        return found
    left, right = near(x, t), near(y, t)
    if left is not None and right is not None and left[1] is None and right[1] is None:
        first, second = on_one_scale(left[0], right[0])
        return and_finite(_of_every_case(first == second, t), x, t, y)
    a, b = exact(x, t), exact(y, t)
    if isinstance(a, Fraction) or isinstance(b, Fraction):  # a Fraction need not be dyadic
        return and_finite(_of_every_case(b == a if isinstance(a, Fraction) else a == b, t), x, t, y)
    return and_finite((a - b).is_zero(), x, t, y)


def _of_every_case(held: Truth, t: Trial) -> Truth:
    """Return a truth value per case; a comparison of constants has only one, which is repeated."""
    return t.everywhere(bool(held)) if isinstance(held, bool | np.bool_) else held


def _equal_in_floats(x: Term, y: Term, t: Trial) -> Truth | None:
    """Return where two sums of words, results and exact products are equal, or None for unsupported ones."""
    given, made = sides(addends(x - y, t))
    if any(block.dtype == np.float64 for block in (*given, *made)):
        given, made = [wide(block) for block in given], [wide(block) for block in made]
    match len(given), len(made):
        case (2, 0):
            return given[0] == -given[1]
        case (1, 1):
            return given[0] == made[0]
        case (0, 2):
            return (made[0] == -made[1]) & np.isfinite(made[0])
        case (3, 0):
            return of_trials.is_difference(-given[2], given[0], -given[1])
        case (2, 1):
            return of_trials.is_difference(made[0], given[0], -given[1])
        case (1, 2):
            return of_trials.is_difference(made[0], given[0], made[1])
        case (2, 2):
            return of_trials.equal_pairs(*given, *made)
        case (2, 3):
            return of_trials.equal_to_three(*given, *made)
    return None


def _is_value(x: Term, t: Trial) -> Truth:
    """Return where a term is a finite value of the format and the results in it are finite."""
    given, made = sides(addends(x, t))
    if (len(given), len(made)) == (1, 1):
        rest, held = of_trials.rest_of(given[0], made[0])
        return held & is_value(rest, t.format)
    if (len(given), len(made)) == (2, 1):
        rest, held, sure = of_trials.rest_of_sum(given[0], given[1], made[0])
        other = t.rarely(~sure & finite(x, t), lambda some: is_representable(some, as_exact(x, some)))
        return (sure & held & is_value(rest, t.format)) | other
    return and_finite(is_representable(t, as_exact(x, t)), x, t)


def _is_multiple(x: Term, of: Term, t: Trial) -> Truth:
    """Return where a term is an integer multiple of a power of two."""
    number = near(x, t)
    if number is not None and number[1] is None:
        match of:
            case Ulp(Word() | Result() as y):
                return and_finite(_is_whole(np.ldexp(wide(number[0]), -ulp_place(y, t))), x, t, y)
            case Product(Number(value), Ulp(Word() | Result() as y)) if value == 2:
                return and_finite(_is_whole(np.ldexp(wide(number[0]), -(ulp_place(y, t) + 1))), x, t, y)
            case OfFormat():
                unit = Fraction(of.at(t.format, t.rounding))
                shift = unit.denominator.bit_length() - unit.numerator.bit_length()
                return and_finite(_is_whole(np.ldexp(wide(number[0]), shift)), x, t)
    match of:
        case Product(Ulp(whole), OfFormat() as share):
            bits = Fraction(constant_of(share, t)).denominator.bit_length() - 1
            place = ulp_of(as_exact(whole, t), t.format) - bits
            return and_finite(is_multiple(as_exact(x, t), place), x, t)
    raise UnreadableError("a multiple of that cannot be read on arrays")


def _is_whole(x: Any) -> Any:
    return np.floor(x) == x


def measure(said: Within, t: Trial) -> Measured:
    """Return the error and the reference of each case."""
    error, reference = said.error, said.reference
    if isinstance(reference, Mixed):
        x, y = as_exact(reference.x, t), as_exact(reference.y, t)
        return MixedError(as_exact(error, t), x, y, *reference.shares(t.format.precision))
    return Measured(as_exact(error, t), as_exact(reference, t))


def _within_bound(said: Within, t: Trial) -> Truth:
    found, p = t.once(measure, said), t.format.precision
    above, below = said.bound.limits(p)
    held = _within(found, above, strict=said.bound.strict)
    if said.bound.squared:
        held = np.where(found.ratio >= 0, held, _within(found, below, strict=said.bound.strict))
    return held & t.finite


def _within(found: Measured, limit: Fraction, *, strict: bool) -> Any:
    """Return where ``|error| <= limit |reference|``, or ``<`` if strict."""
    ratio = np.abs(found.ratio)
    near = np.abs(ratio - float(limit)) <= _SHARE * float(limit)
    if strict:  # zero is not below zero
        near = near | (ratio == 0)

    def exactly_within(some: Measured) -> Truth:
        size, most = abs(some.error) * limit.denominator, abs(some.reference) * limit.numerator
        return ~(most <= size) if strict else size <= most

    decided = (ratio <= float(limit)) & ~near
    return decided | rarely(near, exactly_within, found)
