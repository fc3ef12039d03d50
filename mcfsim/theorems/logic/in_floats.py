"""Evaluation of terms on a block of cases: in floats where exact, otherwise in integers of any length."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.logic import of_trials
from mcfsim.theorems.logic.of_trials import (
    block_of,
    exponent,
    half_step,
    low_bit,
    rounded,
    ulp_place,
    units,
    wide,
)
from mcfsim.theorems.logic.propositions import BEYOND, UnreadableError
from mcfsim.theorems.logic.terms import (
    Computed,
    Expectation,
    Exponent,
    FixedTerm,
    InnerProduct,
    LowBit,
    Magnitude,
    Negative,
    Operand,
    Product,
    Result,
    Results,
    Rounded,
    Sum,
    SumOfMagnitudes,
    Term,
    Ulp,
    UlpTowards,
    Word,
    spoken_of,
)
from mcfsim.theorems.trial import Trial, Truth, exact_of, total


# -- integers ---------------------------------------------------------------------------------------------
def exact(x: Term, t: Trial) -> Any:
    """Return the exact value of a term per case; that of a constant as one Fraction."""
    if isinstance(x, FixedTerm):
        return Fraction(x.at(t.format, t.rounding))
    return t.once(_computed, x)


def _computed(x: Term, t: Trial) -> Any:
    match x:
        case Operand(name):
            return t.exact(name)
        case Results(first, stop):
            return t.result(first, stop)
        case Result(place):
            return t.result(place, place + 1)
        case Word():
            return exact_of(block_of(x, t), t.format.precision)
        case Sum(terms):
            rest = None if t.numbers is Exact else _rest_of_two(x, t)
            return total([exact(term, t) for term in terms]) if rest is None else rest
        case Negative(term):
            return -exact(term, t)
        case Magnitude(term):
            return abs(exact(term, t))
        case Product(first, second):
            return exact(first, t) * exact(second, t)
        case Ulp(of):
            return units(exact(of, t), t.format)
        case Expectation(of):
            return t.mean(exact(of, t))
        case SumOfMagnitudes(names):
            parts = [[abs(exact_of(part, t.format.precision)) for part in t[name]] for name in names]
            return total(reduce(mul, factors) for factors in zip(*parts, strict=True))
        case InnerProduct(a, b):
            parts = [[exact_of(part, t.format.precision) for part in t[name]] for name in (a, b)]
            return total(x * y for x, y in zip(*parts, strict=True))
        case UlpTowards(Word() as y, Word() as toward):
            step = 2 * half_step(wide(block_of(y, t)), block_of(toward, t), t.format)
            return Exact.of(step, 1)
        case Computed(function, text):
            found = function(t)
            if type(found) is not t.numbers:
                raise TypeError(f"{text!r} must be an exact number of every case, not {type(found).__name__}")
            return found
    raise UnreadableError(f"{type(x).__name__} cannot be read as an exact number of arrays")


def _rest_of_two(x: Sum, t: Trial) -> Any:
    """Return the sum of two operands minus that of two results, of a recorded program; None for others.

    Operands may lie so far apart that binary64 does not hold their sum, but it holds the difference.
    """
    given, made = sides(addends(x, t))
    if (len(given), len(made)) != (2, 2) or any(block.format is None for block in (*given, *made)):
        return None
    rest, held, sure = of_trials.rest_of_sum(given[0], given[1], made[0])
    numbers: Any = t.numbers
    return numbers.rest(rest, t.format, held & sure) - exact_of(made[1], t.format.precision)


# -- floats -----------------------------------------------------------------------------------------------
#: The bits and the exponents of binary64.
_BITS, _LEAST, _MOST = 53, -1074, 1023
_Near = tuple[Any, Truth | None] | None


def near(x: Term, t: Trial) -> _Near:
    """Return a term in the carrier or binary64, and where this is exact, with None for everywhere.

    Return a single None if integers are needed.
    """
    match x:
        case Word() | Result():
            return block_of(x, t), None
        case Rounded():
            return rounded(x, t), None
        case Operand(name) if not isinstance(t[name], tuple):
            return t[name], None
        case Results(first, stop) if len(t.results[first:stop]) == 1:
            return t.results[first:stop][0], None
        case FixedTerm():
            number = x.at(t.format, t.rounding)
            if not _is_binary64(number):
                return None
            # It may be compared with exponents, so an int stays one.
            return number if isinstance(number, int) else float(number), None
        case Magnitude(term) | Negative(term):
            inner = near(term, t)
            if inner is None:
                return None
            return (abs(inner[0]) if isinstance(x, Magnitude) else -inner[0]), inner[1]
        case Product(first, second):
            return _near_product(first, second, t)
        case Sum():
            return t.once(_near_sum, x)
        case Exponent(Word() | Result() as y):
            return exponent(block_of(y, t), t.format), None
        case Exponent(LowBit(Word() | Result() as y)):
            bit = low_bit(block_of(y, t))
            return np.where(np.isinf(bit), BEYOND, exponent(bit, t.format)), None
        case Ulp(Word() | Result() as y):
            return np.ldexp(1.0, ulp_place(y, t)), None
        case LowBit(Word() | Result() as y):
            return low_bit(block_of(y, t)), None
        case UlpTowards(Word() as y, Word() as toward):
            return 2 * half_step(wide(block_of(y, t)), block_of(toward, t), t.format), None
    return None


def _near_sum(x: Sum, t: Trial) -> _Near:
    """Return a sum of exponents, or in binary64 one of two floats, or of two floats minus a result."""
    if any(map(_is_integer, x.terms)):
        parts = [near(term, t) for term in x.terms]
        whole = [part[0] for part in parts if part is not None]
        return (sum(whole[1:], whole[0]), None) if len(whole) == len(parts) else None
    given, made = sides(addends(x, t))
    match len(given), len(made):
        case (2, 0):
            return of_trials.rest_of(given[0], -given[1])
        case (1, 1):
            return of_trials.rest_of(given[0], made[0])
        case (2, 1):
            rest, held, sure = of_trials.rest_of_sum(given[0], given[1], made[0])
            return rest, held & sure
    return None


def _is_integer(x: Term) -> bool:
    """Return whether a term is made of exponents and constants: an integer of the format's size."""
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


def _near_product(first: Term, second: Term, t: Trial) -> _Near:
    """Return a product of two words, if binary64 holds it, or of a term and a constant."""
    for x, y in ((first, second), (second, first)):
        if isinstance(y, FixedTerm):
            factor, inner = Fraction(y.at(t.format, t.rounding)), near(x, t)
            if inner is None:
                return None
            if _is_integer(x):
                return (int(factor) * inner[0], inner[1]) if factor.denominator == 1 else None
            if not isinstance(x, Word | Result | Magnitude | UlpTowards | Ulp | LowBit | Product):
                return None
            return (wide(inner[0]) * float(factor), inner[1]) if _fits(Product(x, y), t) else None
    if not _fits(Product(first, second), t):
        return None
    a, b = near(first, t), near(second, t)
    if a is None or b is None or a[1] is not None or b[1] is not None:
        return None
    return np.multiply(a[0], b[0], dtype=np.float64), None


def _fits(x: Term, t: Trial) -> bool:
    """Return whether binary64 holds a product of constants and of numbers of the format."""
    factor, numbers = _factors(x, t)
    n, d = abs(factor.numerator), factor.denominator
    if d & (d - 1) or not n:
        return False
    fmt, zeros, times = t.format, (n & -n).bit_length() - 1, len(numbers)
    bits = n.bit_length() - zeros - 1 + sum(numbers)
    low = times * (fmt.emin - fmt.precision + 1) + zeros - d.bit_length() + 1
    high = times * (fmt.emax + 1) + n.bit_length() - d.bit_length() + 1
    return bits <= _BITS and low >= _LEAST and high <= _MOST + 1


def _factors(x: Term, t: Trial) -> tuple[Fraction, list[int]]:
    """Return the constant in a product, and how many bits each other factor adds."""
    match x:
        case FixedTerm():
            return Fraction(x.at(t.format, t.rounding)), []
        case Product(first, second):
            (c, some), (d, others) = _factors(first, t), _factors(second, t)
            return c * d, some + others
        case Magnitude(term) | Negative(term):
            return _factors(term, t)
        case Ulp() | UlpTowards() | LowBit():  # powers of two
            return Fraction(1), [0]
        case Sum():
            return Fraction(1), [_BITS]
    return Fraction(1), [t.format.precision]


def _is_binary64(number: int | Fraction) -> bool:
    try:
        return Fraction(float(number)) == number
    except OverflowError:
        return False


def on_one_scale(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both sides of a comparison in one type, so that no constant is rounded to a narrower one."""
    kinds = [x.dtype for x in (a, b) if hasattr(x, "dtype")]
    others = [x for x in (a, b) if isinstance(x, int | float)]
    if np.dtype(np.float32) in kinds and (len({*kinds}) == 2 or not all(map(_is_binary32, others))):
        return wide(a), wide(b)
    return a, b


def _is_binary32(number: int | float) -> bool:
    return bool(abs(number) <= np.finfo(np.float32).max) and float(np.float32(number)) == number


def sides(addends: list[tuple[Any, int, bool]] | None) -> tuple[list[Any], list[Any]]:
    """Split a sum into operands and results: it is ``sum(given) - sum(made)``. None gives empty lists."""
    given = [block if sign > 0 else -block for block, sign, operand in addends or () if operand]
    made = [-block if sign > 0 else block for block, sign, operand in addends or () if not operand]
    return given, made


def addends(x: Term, t: Trial) -> list[tuple[Any, int, bool]] | None:
    """Return the blocks that add up to a term, each with its sign and whether it is a finite operand."""
    match x:
        case Sum(terms):
            parts = [addends(term, t) for term in terms]
            if any(part is None for part in parts):
                return None
            return [item for part in parts for item in part or ()]
        case Negative(term):
            inner = addends(term, t)
            return None if inner is None else [(block, -sign, given) for block, sign, given in inner]
        case Operand(name):
            words = t[name]
            return [(block, 1, True) for block in (words if isinstance(words, tuple) else (words,))]
        case Results(first, stop):
            return [(block, 1, False) for block in t.results[first:stop]]
        case Result(place):
            return [(t.results[place], 1, False)]
        case Word():
            return [(block_of(x, t), 1, True)]
        case Product(Word() | Result(), Word() | Result()):
            product = near(x, t)
            return None if product is None else [(product[0], 1, not spoken_of(x))]
    return None
