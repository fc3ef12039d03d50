"""Exact evaluation of propositions on a block of cases, in arrays or as a recorded program.

Floats decide what they can: comparisons of words, sums whose rounded parts all fit binary64, ratios away
from a bound. Integers (`Exact`) decide the rest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.formats import Format
from mcfsim.rounding import Rounding
from mcfsim.theorems.logic import of_trials
from mcfsim.theorems.logic.in_floats import addends, exact, near, on_one_scale, sides
from mcfsim.theorems.logic.of_trials import (
    and_finite,
    block_of,
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
    LARGEST,
    AllOf,
    AnyOf,
    AtMost,
    Below,
    Equal,
    FixedTerm,
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

#: Binary64 quotients have a smaller relative error. Farther than this from a bound they decide; nearer to it,
#: integers do.
_SHARE = 2.0**-45


def holds(said: Proposition, t: Trial) -> Truth:
    """Return for each case, or each of its paths, whether a proposition holds."""
    known = _settled(said, t.format, t.rounding)
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
        case AtMost(x, y) | Below(x, y):
            return _compared(x, y, t, strict=isinstance(said, Below))
    return _atom(said, t)


def _settled(said: Proposition, fmt: Format, rounding: Rounding) -> bool | None:
    """Return the truth value that format and rounding alone give a proposition, or None if they do not."""
    match said:
        case InFormat():
            return said.holds(fmt, rounding)
        case AllOf(parts) | AnyOf(parts):
            found = {_settled(part, fmt, rounding) for part in parts}
            decisive = isinstance(said, AnyOf)
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case Not(part):
            held = _settled(part, fmt, rounding)
            return None if held is None else not held
    return None


def _part(said: Proposition, t: Trial) -> Truth:
    """Return where a part of a proposition holds; a predicate must return a truth value per case."""
    return t.truth(said.test(t)) if isinstance(said, Predicate) else holds(said, t)


def _open(parts: tuple[Proposition, ...], t: Trial) -> list[Proposition]:
    """Return the parts that format and rounding alone do not settle."""
    return [part for part in parts if _settled(part, t.format, t.rounding) is None]


def _alternative(said: Proposition, t: Trial) -> Truth:
    """Return where an alternative holds; in a conjunction, the first part limits where the rest runs."""
    if not isinstance(said, AllOf):
        return _part(said, t)
    first, *rest = _open(said.parts, t)
    there = _part(first, t)
    return t.only(there, lambda some: holds(AllOf(tuple(rest)), some)) if rest else there


def _atom(said: Proposition, t: Trial) -> Truth:
    match said:
        case Same():
            return all_hold(*((a == b) | (np.isnan(a) & np.isnan(b)) for a, b in halves(t.results)))
        case SameSign(x, y):
            return and_finite(np.sign(block_of(x, t)) * np.sign(block_of(y, t)) >= 0, t, x, y)
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
            significand = np.frexp(wide(number[0]))[0]  # subnormal numbers have their bits at the code's end
            return and_finite(has_bits(significand, int(bits.at(t.format, t.rounding))), t, x)
        case Nonoverlapping(terms, factor):
            return nonoverlapping([block_of(term, t) for term in terms] if terms else t.results, factor)
        case StronglyNonoverlapping():
            return strongly_nonoverlapping(t.results)
    raise UnreadableError(f"{type(said).__name__} cannot be read on arrays")


def _compared(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    """Return where ``x <= y``, or ``x < y``, and the results in both are finite."""
    match x, y:
        case Magnitude(Sum((Word() as u, Word() as v))), OfFormat() if y == LARGEST and not strict:
            return of_trials.at_most(block_of(u, t), block_of(v, t), float(t.format.max))
    left, right = near(x, t), near(y, t)
    if left is None or right is None:
        held = _exactly(x, y, t, strict=strict)
    else:
        (a, sure), (b, also) = left, right
        a, b = on_one_scale(a, b)
        held = a < b if strict else a <= b
        known = [one for one in (sure, also) if one is not None]
        if known:
            unsure = ~all_hold(*known)
            asked = unsure & finite(x, t) & finite(y, t)
            rest = t.rarely(asked, lambda some: _exactly(x, y, some, strict=strict))
            held = (held & ~unsure) | rest
    return and_finite(_of_every_case(held, t), t, x, y)


def _exactly(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    a, b = exact(x, t), exact(y, t)
    return ~_of_every_case(b <= a, t) if strict else _of_every_case(a <= b, t)


def _equal(x: Term, y: Term, t: Trial) -> Truth:
    """Return where two terms are equal and the results in both are finite."""
    match x, y:
        case (Rounded() as once, other) | (other, Rounded() as once):
            return and_finite(rounded(once, t) == block_of(other, t), t, x, y)
        case (RoundedToBits(of, bits), other) | (other, RoundedToBits(of, bits)):
            most = int(bits.at(t.format, t.rounding))
            return and_finite(rounded_to_bits(block_of(other, t), block_of(of, t), most), t, other)
    found = _equal_in_floats(x, y, t)
    if found is not None:
        return found
    left, right = near(x, t), near(y, t)
    if left is not None and right is not None and left[1] is None and right[1] is None:
        first, second = on_one_scale(left[0], right[0])
        return and_finite(_of_every_case(first == second, t), t, x, y)
    return and_finite(_of_every_case(exact(x, t) == exact(y, t), t), t, x, y)


def _of_every_case(held: Truth, t: Trial) -> Truth:
    """Return a truth value per case; a comparison of constants has only one, which is repeated."""
    return t.everywhere(bool(held)) if isinstance(held, bool | np.bool_) else held


def _equal_in_floats(x: Term, y: Term, t: Trial) -> Truth | None:
    """Return where two sums of words, results and exact products are equal, or None for unsupported ones."""
    given, made = sides(addends(x - y, t))
    if any(block.dtype == np.float64 for block in (*given, *made)):
        given, made = [wide(block) for block in given], [wide(block) for block in made]
    match given, made:
        case [], [r, s]:
            return (r == -s) & np.isfinite(r)
        case [_, _], [_, _]:
            return of_trials.equal_pairs(*given, *made)
        case [_, _], [_, _, _]:
            return of_trials.equal_sums(*given, *made)
    if given and 2 <= len(given) + len(made) <= 3:  # the first operand equals the sum of the rest
        rest = [*(-block for block in given[1:]), *made]
        return of_trials.is_difference(rest[1], given[0], rest[0]) if rest[1:] else given[0] == rest[0]
    return None


def _is_value(x: Term, t: Trial) -> Truth:
    """Return where a term is a finite value of the format and the results in it are finite."""
    if isinstance(x, FixedTerm):
        raise UnreadableError("a constant is the same in every case; write what is said of it as InFormat")
    match sides(addends(x, t)):
        case [a], [r]:
            rest, held = of_trials.rest_of(a, r)
            return held & is_value(rest, t.format)
        case [a, b], [r]:
            rest, held, sure = of_trials.rest_of_sum(a, b, r)
            other = t.rarely(~sure & finite(x, t), lambda some: is_representable(some, exact(x, some)))
            return (sure & held & is_value(rest, t.format)) | other
    return and_finite(is_representable(t, exact(x, t)), t, x)


def _is_multiple(x: Term, of: Term, t: Trial) -> Truth:
    """Return where a term is an integer multiple of a power of two."""
    match of:
        case Ulp(Word() | Result() as y):
            place = ulp_place(y, t)
        case Product(Number(2), Ulp(Word() | Result() as y)):
            place = ulp_place(y, t) + 1
        case OfFormat():
            place = _exponent_of(of, t)
        case Product(Ulp(whole), OfFormat() as share):
            place = ulp_of(exact(whole, t), t.format) + _exponent_of(share, t)
            return and_finite(is_multiple(exact(x, t), place), t, x)
        case _:
            raise UnreadableError(
                "multiples are read of a power of two, of ulp(x), and of a product of the two"
            )
    number = near(x, t)
    if number is None or number[1] is not None:
        return and_finite(is_multiple(exact(x, t), np.broadcast_to(place, t.size)), t, x, of)
    given = wide(number[0])
    units = np.ldexp(given, -place)  # zero if it underflows: the number is far below the unit
    held = (np.floor(units) == units) & ((units != 0) | (given == 0))
    return and_finite(_of_every_case(held, t), t, x, of)


def _exponent_of(unit: OfFormat, t: Trial) -> int:
    """Return the exponent of a power of two."""
    number = Fraction(unit.at(t.format, t.rounding))
    place = number.numerator.bit_length() - number.denominator.bit_length()
    if number != Fraction(2) ** place:
        raise UnreadableError(f"multiples are read of powers of two, not of {unit.text} = {number}")
    return place


def measure(said: Within, t: Trial) -> Measured:
    """Return the error and the reference of each case."""
    error, reference = exact(said.error, t), said.reference
    if isinstance(reference, Mixed):
        shares = reference.shares(t.format.precision)
        return MixedError(error, exact(reference.x, t), exact(reference.y, t), *shares)
    return Measured(error, exact(reference, t))


def _within_bound(said: Within, t: Trial) -> Truth:
    found = t.once(measure, said)
    above, below = said.bound.limits(t.format.precision)
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
