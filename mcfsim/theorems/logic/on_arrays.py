"""Propositions read on a block of cases, in arrays or on a recorded line, exactly.

Floats decide what they can: comparisons of words, sums of which binary64 holds every rounded part, ratios
away from a bound. Integers (`Exact`) decide the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mcfsim.rounding import Rounding
from mcfsim.theorems.exact import Exact
from mcfsim.theorems.logic import sums
from mcfsim.theorems.logic.algebra import (
    AllOf,
    AnyOf,
    AtMost,
    Below,
    Equal,
    Magnitude,
    Negative,
    Not,
    Number,
    Product,
    Proposition,
    Sum,
    Term,
)
from mcfsim.theorems.logic.bits import (
    exponent,
    half_step,
    has_bits,
    is_multiple,
    is_representable,
    is_value,
    low_bit,
    nonoverlapping,
    rounded_to_bits,
    strongly_nonoverlapping,
    ulp_of,
    units,
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
    spoken_of,
)
from mcfsim.theorems.logic.terms import (
    Computed,
    Exponent,
    InnerProduct,
    LowBit,
    Mean,
    Mixed,
    OfFormat,
    Operand,
    Result,
    Results,
    Rounded,
    RoundedToBits,
    Step,
    SumOfMagnitudes,
    Ulp,
    UnitRoundoff,
    Word,
)
from mcfsim.theorems.trial import Measured, Trial, Truth, all_hold, any_holds, exact_of, rarely, total
from mcfsim.theorems.trial import Mixed as MixedError

#: Binary64 quotients are wrong by less than this share: beyond it they decide, within it integers do.
_SHARE = 2.0**-45
#: The bits and the exponents of binary64.
_BITS, _LEAST, _MOST = 53, -1074, 1023


@dataclass(frozen=True)
class Reading:
    """How something is read of a trial: equal ones, of equal data, are read once (`Trial.once`)."""

    function: Callable[[Any, Trial], Any]
    said: Any

    def __call__(self, t: Trial) -> Any:
        """Return what the function reads."""
        return self.function(self.said, t)


def holds(said: Proposition, t: Trial) -> Truth:
    """Return of each case, or each of its paths, whether a proposition holds."""
    match said:
        case AllOf(parts):
            return all_hold(*(holds(part, t) for part in parts))
        case AnyOf(parts):
            return any_holds(*(_alternative(part, t) for part in parts))
        case Not(part):
            return ~holds(part, t)
        case Iff(first, second):
            return holds(first, t) == holds(second, t)
        case EveryDraw(part):
            return t.each(t.throughout(holds(part, t)))
        case Predicate(_, test):
            return test(t)
        case InFormat(_, of):
            return t.everywhere(of(t.format, t.rounding))
        case Within():
            return _within_bound(said, t)
        case Equal(x, y):
            return _equal(x, y, t)
        case AtMost(x, y):
            return _compared(x, y, t, strict=False)
        case Below(x, y):
            return _compared(x, y, t, strict=True)
    return _atom(said, t)


def _alternative(said: Proposition, t: Trial) -> Truth:
    """Return where one of several alternatives holds; of several parts the first is asked alone."""
    if isinstance(said, AllOf):
        first, *rest = said.parts
        if isinstance(first, InFormat):
            if not first.of(t.format, t.rounding):
                return t.everywhere(False)
            return _alternative(AllOf(tuple(rest)), t) if rest else t.everywhere(True)
        there = holds(first, t)
        return t.only(there, lambda some: holds(AllOf(tuple(rest)), some)) if rest else there
    return holds(said, t)


def _atom(said: Proposition, t: Trial) -> Truth:
    match said:
        case Same():
            half = len(t.results) // 2
            pairs = zip(t.results[:half], t.results[half:], strict=True)
            return all_hold(*((a == b) | (np.isnan(a) & np.isnan(b)) for a, b in pairs))
        case SameSign(x, y):
            return _and_finite(np.sign(_block(x, t)) * np.sign(_block(y, t)) >= 0, x, t, y)
        case NoOverflow() | Finite(None):
            return t.finite
        case Finite(Result(place)):
            return np.isfinite(t.results[place])
        case IsValue(x):
            return _is_value(x, t)
        case IsMultiple(x, of):
            return _is_multiple(x, of, t)
        case HasBits(x, bits):
            near = _near(x, t)
            if near is None or near[1] is not None:
                raise UnreadableError("bits are counted of words and results")
            return _and_finite(has_bits(_wide(near[0]), int(bits.of(t.format, t.rounding))), x, t)
        case Nonoverlapping(terms, factor):
            parts = [_block(term, t) for term in terms] if terms else t.results
            return nonoverlapping(parts, factor)
        case StronglyNonoverlapping():
            return strongly_nonoverlapping(t.results)
    raise UnreadableError(f"{type(said).__name__} cannot be read on arrays")


# -- comparisons --------------------------------------------------------------------------------------------
def _compared(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    """Return where ``x <= y``, or ``x < y``, and the results that these speak of are finite."""
    held = _in_range(x, y, t, strict=strict)
    if held is None:
        left, right = _near(x, t), _near(y, t)
        if left is None or right is None:
            held = _exactly(x, y, t, strict=strict)
        else:
            (a, sure), (b, also) = left, right
            a, b = _on_one_scale(a, b)
            held = a < b if strict else a <= b
            unsure = _unsure(sure, also)
            if unsure is not None:
                rest = t.rarely(
                    unsure & _finite(x, t) & _finite(y, t), lambda some: _exactly(x, y, some, strict=strict)
                )
                held = (held & ~unsure) | rest
    return _and_finite(held, x, t, y)


def _exactly(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth:
    a, b = exact(x, t), exact(y, t)
    return ~_at_most(b, a) if strict else _at_most(a, b)


def _at_most(a: Any, b: Any) -> Truth:
    """Return where ``a <= b``; one of them may be a Fraction, the same for all."""
    return b >= a if isinstance(a, Fraction) else a <= b


def _in_range(x: Term, y: Term, t: Trial, *, strict: bool) -> Truth | None:
    """Return where ``|a + b| <= c`` for two words and a value of the format, or None if this is another."""
    match x, y:
        case Magnitude(Sum((Word() as a, Word() as b))), OfFormat(_, of) if not strict:
            largest = float(of(t.format, t.rounding))
            if Fraction(largest) == of(t.format, t.rounding):
                return sums.at_most(_block(a, t), _block(b, t), largest)
    return None


def _equal(x: Term, y: Term, t: Trial) -> Truth:
    """Return where two numbers are equal, and the results that they speak of finite."""
    if isinstance(x, Rounded) or isinstance(y, Rounded):
        rounded, other = (x, y) if isinstance(x, Rounded) else (y, x)
        assert isinstance(rounded, Rounded)
        return _and_finite(_rounded(rounded, t) == _block(other, t), x, t, y)
    if isinstance(x, RoundedToBits) or isinstance(y, RoundedToBits):
        rounded_to, other = (x, y) if isinstance(x, RoundedToBits) else (y, x)
        assert isinstance(rounded_to, RoundedToBits)
        bits = int(rounded_to.bits.of(t.format, t.rounding))
        return _and_finite(rounded_to_bits(_block(other, t), _block(rounded_to.of, t), bits), other, t)
    found = _equal_in_floats(x, y, t)
    if found is not None:
        return found
    left, right = _near(x, t), _near(y, t)
    if left is not None and right is not None and left[1] is None and right[1] is None:
        a, b = _on_one_scale(left[0], right[0])
        return _and_finite(a == b, x, t, y)
    return _and_finite(_as_exact(x - y, t).is_zero(), x, t, y)


def _equal_in_floats(x: Term, y: Term, t: Trial) -> Truth | None:
    """Return where two sums of words, results and exact products are equal, of up to five in all."""
    given, made = _sides(_addends(x - y, t))
    if any(block.dtype == np.float64 for block in (*given, *made)):
        given, made = [_wide(block) for block in given], [_wide(block) for block in made]
    match len(given), len(made):
        case (2, 0):
            return given[0] == -given[1]
        case (1, 1):
            return given[0] == made[0]
        case (0, 2):
            return (made[0] == -made[1]) & np.isfinite(made[0])
        case (3, 0):
            return sums.is_difference(-given[2], given[0], -given[1])
        case (2, 1):
            return sums.is_difference(made[0], given[0], -given[1])
        case (1, 2):
            return sums.is_difference(made[0], given[0], made[1])
        case (2, 2):
            return sums.equal_pairs(*given, *made)
        case (2, 3):
            return sums.equal_to_three(*given, *made)
    return None


def _sides(addends: list[tuple[Any, int, bool]] | None) -> tuple[list[Any], list[Any]]:
    """Return what is given of a sum, and, subtracted from it, what is made: the results; of None, nothing."""
    given = [block if sign > 0 else -block for block, sign, operand in addends or () if operand]
    made = [-block if sign > 0 else block for block, sign, operand in addends or () if not operand]
    return given, made


def _addends(x: Term, t: Trial) -> list[tuple[Any, int, bool]] | None:
    """Return the blocks that a number is the sum of, with their signs, and whether they are given, finite."""
    match x:
        case Sum(terms):
            parts = [_addends(term, t) for term in terms]
            if any(part is None for part in parts):
                return None
            return [item for part in parts for item in part or ()]
        case Negative(term):
            inner = _addends(term, t)
            return None if inner is None else [(block, -sign, given) for block, sign, given in inner]
        case Operand(name):
            words = t[name]
            return [(block, 1, True) for block in (words if isinstance(words, tuple) else (words,))]
        case Results(first, stop):
            return [(block, 1, False) for block in t.results[first:stop]]
        case Result(place):
            return [(t.results[place], 1, False)]
        case Word():
            return [(_block(x, t), 1, True)]
        case Product(Word() | Result(), Word() | Result()):
            product = _near(x, t)
            return None if product is None else [(product[0], 1, not spoken_of(x))]
    return None


def _is_value(x: Term, t: Trial) -> Truth:
    """Return where a number is a finite value of the format, and the results it speaks of are finite."""
    given, made = _sides(_addends(x, t))
    if (len(given), len(made)) == (1, 1):
        rest, held = sums.rest_of(given[0], made[0])
        return held & is_value(rest, t.format)
    if (len(given), len(made)) == (2, 1):
        rest, held, sure = sums.rest_of_sum(given[0], given[1], made[0])
        other = t.rarely(~sure & _finite(x, t), lambda some: is_representable(some, _as_exact(x, some)))
        return (sure & held & is_value(rest, t.format)) | other
    return _and_finite(is_representable(t, _as_exact(x, t)), x, t)


def _is_multiple(x: Term, of: Term, t: Trial) -> Truth:
    """Return where a number is an integer times a power of two."""
    near = _near(x, t)
    if near is not None and near[1] is None:
        match of:
            case Ulp(Word() as y):
                return _and_finite(_is_whole(np.ldexp(_wide(near[0]), -_ulp_place(y, t))), x, t)
            case Product(Number(value), Ulp(Word() as y)) if value == 2:
                return _and_finite(_is_whole(np.ldexp(_wide(near[0]), -(_ulp_place(y, t) + 1))), x, t)
            case OfFormat(_, value_of):
                unit = Fraction(value_of(t.format, t.rounding))
                shift = unit.denominator.bit_length() - unit.numerator.bit_length()
                return _and_finite(_is_whole(np.ldexp(_wide(near[0]), shift)), x, t)
    match of:
        case Product(Ulp(whole), OfFormat() as share):
            bits = Fraction(_constant(share, t)).denominator.bit_length() - 1
            place = ulp_of(_as_exact(whole, t), t.format) - bits
            return _and_finite(is_multiple(_as_exact(x, t), place), x, t)
    raise UnreadableError("a multiple of that cannot be read on arrays")


def _ulp_place(x: Term, t: Trial) -> Any:
    """Return the exponent of the unit in the last place of a word or a result."""
    return np.maximum(exponent(_block(x, t), t.format), t.format.emin) - t.format.precision + 1


def _is_whole(x: Any) -> Any:
    return np.floor(x) == x


# -- bounds -------------------------------------------------------------------------------------------------
def measure(said: Within, t: Trial) -> Measured:
    """Return error and reference of each case."""
    error, reference = said.error, said.reference
    if isinstance(reference, Mixed):
        x, y = _as_exact(reference.x, t), _as_exact(reference.y, t)
        return MixedError(_as_exact(error, t), x, y, *reference.shares(t.format.precision))
    return Measured(_as_exact(error, t), _as_exact(reference, t))


def _within_bound(said: Within, t: Trial) -> Truth:
    found, p = t.once(Reading(measure, said)), t.format.precision
    above, below = said.bound.limits(p)
    held = _within(found, above, strict=said.bound.strict)
    if said.bound.squared:
        held = np.where(found.ratio >= 0, held, _within(found, below, strict=said.bound.strict))
    return held & t.finite


def _within(found: Measured, limit: Fraction, *, strict: bool) -> Any:
    """Return where ``|error| <= limit |reference|``, or below it."""
    ratio = np.abs(found.ratio)
    near = np.abs(ratio - float(limit)) <= _SHARE * float(limit)

    def exactly_within(some: Measured) -> Truth:
        size, most = abs(some.error) * limit.denominator, abs(some.reference) * limit.numerator
        return ~(most <= size) if strict else size <= most

    decided = (ratio <= float(limit)) & ~near
    return decided | rarely(near, exactly_within, found)


# -- numbers in floats --------------------------------------------------------------------------------------
def _near(x: Term, t: Trial) -> tuple[Any, Truth | None] | None:
    """Return a number in a carrier or in binary64, and where that is exact: None stands for everywhere.

    None in place of both: integers are needed.
    """
    match x:
        case Word() | Result():
            return _block(x, t), None
        case Operand(name):
            words = t[name]
            return None if isinstance(words, tuple) else (words, None)
        case Results(first, stop) if len(t.results[first:stop]) == 1:
            return t.results[first:stop][0], None
        case Number() | OfFormat() | UnitRoundoff():
            number = _constant(x, t)
            if isinstance(number, int):  # compared with exponents, it stays one
                return number, None
            return (float(number), None) if _is_binary64(number) else None
        case Magnitude(term) | Negative(term):
            inner = _near(term, t)
            if inner is None:
                return None
            return (abs(inner[0]) if isinstance(x, Magnitude) else -inner[0]), inner[1]
        case Product(first, second):
            return _near_product(first, second, t)
        case Sum():
            found: tuple[Any, Truth | None] | None = t.once(Reading(_near_sum, x))
            return found
        case Exponent(Word() | Result() as y):
            return exponent(_block(y, t), t.format), None
        case Exponent(LowBit(Word() | Result() as y)):
            return exponent(low_bit(_block(y, t)), t.format), None
        case Ulp(Word() | Result() as y):
            return np.ldexp(1.0, _ulp_place(y, t)), None
        case LowBit(Word() | Result() as y):
            return low_bit(_block(y, t)), None
        case Step(Word() as y, Word() as toward):
            return 2 * half_step(_wide(_block(y, t)), _block(toward, t), t.format), None
    return None


def _near_sum(x: Sum, t: Trial) -> tuple[Any, Truth | None] | None:
    """Return a sum of exponents; or of two floats, or of two and minus a result, in binary64."""
    if any(map(_is_integer, x.terms)):
        parts = [_near(term, t) for term in x.terms]
        whole = [part[0] for part in parts if part is not None]
        return (sum(whole[1:], whole[0]), None) if len(whole) == len(parts) else None
    given, made = _sides(_addends(x, t))
    match len(given), len(made):
        case (2, 0):
            return sums.rest_of(given[0], -given[1])
        case (1, 1):
            return sums.rest_of(given[0], made[0])
        case (2, 1):
            rest, held, sure = sums.rest_of_sum(given[0], given[1], made[0])
            return rest, held & sure
    return None


def _is_integer(x: Term) -> bool:
    """Whether a term is made of exponents and constants: an integer of the format's size."""
    match x:
        case Exponent():
            return True
        case Negative(term) | Magnitude(term):
            return _is_integer(term)
        case Sum(terms):
            return any(map(_is_integer, terms))
        case Product(first, second):
            return _is_integer(first) or _is_integer(second)
    return False


def _near_product(first: Term, second: Term, t: Trial) -> tuple[Any, Truth | None] | None:
    """Return a product of two words, which binary64 holds if they are short, or of one and a constant."""
    for x, y in ((first, second), (second, first)):
        if isinstance(y, Number | OfFormat | UnitRoundoff):
            factor, inner = Fraction(_constant(y, t)), _near(x, t)
            if inner is None:
                return None
            if _is_integer(x):
                return (int(factor) * inner[0], inner[1]) if factor.denominator == 1 else None
            if not isinstance(x, Word | Result | Magnitude | Step | Ulp | LowBit | Product):
                return None
            return (_wide(inner[0]) * float(factor), inner[1]) if _fits(factor, x, t) else None
    fmt = t.format
    low, high = 2 * (fmt.emin - fmt.precision + 1), 2 * (fmt.emax + 1)
    if 2 * fmt.precision > _BITS or low < _LEAST or high > _MOST:
        return None
    a, b = _near(first, t), _near(second, t)
    if a is None or b is None or (a[1], b[1]) != (None, None):
        return None
    if isinstance(a[0], float) or isinstance(b[0], float):
        return a[0] * b[0], None
    return np.multiply(a[0], b[0], dtype=np.float64), None


def _fits(factor: Fraction, x: Term, t: Trial) -> bool:
    """Whether binary64 holds a constant times numbers of the format, or their products."""
    n, d = abs(factor.numerator), factor.denominator
    if d & (d - 1) or not n:
        return False
    fmt, zeros = t.format, (n & -n).bit_length() - 1
    times = 2 if any(isinstance(part, Product) for part in (x, getattr(x, "term", None))) else 1
    bits = n.bit_length() - zeros
    bits += 0 if bits == 1 else times * fmt.precision - 1
    low = times * (fmt.emin - fmt.precision + 1) + zeros - d.bit_length() + 1
    high = times * (fmt.emax + 1) + n.bit_length() - d.bit_length() + 1
    return bits <= _BITS and low >= _LEAST and high <= _MOST + 1


def _constant(x: Term, t: Trial) -> int | Fraction:
    match x:
        case Number(value):
            return value
        case OfFormat(_, of):
            return of(t.format, t.rounding)
        case UnitRoundoff(power):
            return Fraction(1, 2 ** (power * t.format.precision))
    raise TypeError(f"{x!r} is no constant")


def _is_binary64(number: int | Fraction) -> bool:
    try:
        return Fraction(float(number)) == number
    except OverflowError:
        return False


def _on_one_scale(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands of a comparison in one type, lest a constant be rounded into a narrower one."""
    kinds = [x.dtype for x in (a, b) if hasattr(x, "dtype")]
    for number in (a, b):
        if isinstance(number, float) and len(kinds) == 1 and kinds[0] == np.float32:
            near = np.float32(number) if abs(number) <= np.finfo(np.float32).max else None
            if near is None or float(near) != number:
                return _wide(a) if number is b else a, _wide(b) if number is a else b
    if len(kinds) == 2 and kinds[0] != kinds[1] and np.dtype(np.float32) in kinds:
        return _wide(a), _wide(b)
    return a, b


def _wide(x: Any) -> Any:
    return x.astype(np.float64, copy=False) if hasattr(x, "dtype") else x


def _unsure(*sure: Truth | None) -> Truth | None:
    """Return where one of several numbers is not exact; None if all are."""
    known = [one for one in sure if one is not None]
    return ~all_hold(*known) if known else None


def _block(x: Term, t: Trial) -> Any:
    match x:
        case Word(name, place):
            words = t[name]
            return words[place] if isinstance(words, tuple) else words
        case Result(place):
            return t.results[place]
        case Operand(name) if not isinstance(t[name], tuple):
            return t[name]
    raise UnreadableError(f"{type(x).__name__} stands where a word or a result must")


def _rounded(x: Rounded, t: Trial) -> Any:
    ar: Any = t.ar if x.mode is None else t.under(Rounding(x.mode))
    a, b = _block(x.x, t), _block(x.y, t)
    return ar.add(a, b) if x.mode is None else ar.add(a.astype(ar.carrier), b.astype(ar.carrier))


def _and_finite(held: Truth, x: Term, t: Trial, y: Term | None = None) -> Truth:
    """Return where something holds and all results are finite that one or two terms speak of."""
    for term in (x, y):
        if term is not None and spoken_of(term):
            held = held & _finite(term, t)
    return held


def _finite(x: Term, t: Trial) -> Truth:
    """Return where all results are finite that a term speaks of."""
    spoken = spoken_of(x)
    if any(isinstance(one, Results) for one in spoken):
        return t.finite
    places = sorted({one.place for one in spoken if isinstance(one, Result)})
    return all_hold(*(np.isfinite(t.results[place]) for place in places)) if places else t.everywhere(True)


# -- numbers in integers ------------------------------------------------------------------------------------
def exact(x: Term, t: Trial) -> Exact | Fraction:
    """Return a number exactly; one that is the same for all cases as a Fraction."""
    if isinstance(x, Number | OfFormat | UnitRoundoff):
        return Fraction(_constant(x, t))
    found: Exact | Fraction = t.once(Reading(_computed, x))
    return found


def _as_exact(x: Term, t: Trial) -> Any:
    """Return a number that differs from case to case exactly."""
    return exact(x, t)


def _computed(x: Term, t: Trial) -> Any:
    match x:
        case Operand(name):
            return t.exact(name)
        case Results(first, stop):
            return t.result(first, stop)
        case Result(place):
            return t.result(place, place + 1)
        case Word():
            return exact_of(_block(x, t), t.format.precision)
        case Sum(terms):
            return total([_as_exact(term, t) for term in terms])
        case Negative(term):
            return -exact(term, t)
        case Magnitude(term):
            return abs(exact(term, t))
        case Product(first, second):
            return exact(first, t) * exact(second, t)
        case Ulp(of):
            return units(_as_exact(of, t), t.format)
        case Mean(of):
            return t.mean(_as_exact(of, t))
        case SumOfMagnitudes(names):
            return _sum_of_magnitudes(names, t)
        case InnerProduct(a, b):
            p = t.format.precision
            pairs = zip(t[a], t[b], strict=True)
            return total([exact_of(x, p) * exact_of(y, p) for x, y in pairs])
        case Step(Word() as y, Word() as toward):
            step = 2 * half_step(_wide(_block(y, t)), _block(toward, t), t.format)
            return Exact.of(step, 1)
        case Computed(function):
            return function(t)
    raise UnreadableError(f"{type(x).__name__} cannot be read as an exact number of arrays")


def _sum_of_magnitudes(names: tuple[str, ...], t: Trial) -> Any:
    parts = [[abs(exact_of(part, t.format.precision)) for part in t[name]] for name in names]
    products = parts[0] if len(parts) == 1 else [a * b for a, b in zip(*parts, strict=True)]
    return total(products)
