"""Terms in integers: exact numbers of whatever bits they need, where floats do not do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from mcfsim.theorems.exact import Exact
from mcfsim.theorems.logic.algebra import (
    Magnitude,
    Negative,
    Number,
    Product,
    Sum,
    Term,
)
from mcfsim.theorems.logic.bits import (
    half_step,
    units,
)
from mcfsim.theorems.logic.of_trials import (
    Reading,
    block_of,
    constant_of,
    wide,
)
from mcfsim.theorems.logic.propositions import (
    UnreadableError,
)
from mcfsim.theorems.logic.terms import (
    Computed,
    Expectation,
    InnerProduct,
    OfFormat,
    Operand,
    Result,
    Results,
    SumOfMagnitudes,
    Ulp,
    UlpTowards,
    UnitRoundoff,
    Word,
)
from mcfsim.theorems.trial import Trial, exact_of, total


def exact(x: Term, t: Trial) -> Exact | Fraction:
    """Return a number exactly; one that is the same for all cases as a Fraction."""
    if isinstance(x, Number | OfFormat | UnitRoundoff):
        return Fraction(constant_of(x, t))
    found: Exact | Fraction = t.once(Reading(_computed, x))
    return found


def as_exact(x: Term, t: Trial) -> Any:
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
            return exact_of(block_of(x, t), t.format.precision)
        case Sum(terms):
            return total([as_exact(term, t) for term in terms])
        case Negative(term):
            return -exact(term, t)
        case Magnitude(term):
            return abs(exact(term, t))
        case Product(first, second):
            return exact(first, t) * exact(second, t)
        case Ulp(of):
            return units(as_exact(of, t), t.format)
        case Expectation(of):
            return t.mean(as_exact(of, t))
        case SumOfMagnitudes(names):
            return _sum_of_magnitudes(names, t)
        case InnerProduct(a, b):
            p = t.format.precision
            pairs = zip(t[a], t[b], strict=True)
            return total([exact_of(x, p) * exact_of(y, p) for x, y in pairs])
        case UlpTowards(Word() as y, Word() as toward):
            step = 2 * half_step(wide(block_of(y, t)), block_of(toward, t), t.format)
            return Exact.of(step, 1)
        case Computed(function, text):
            found = function(t)
            if type(found) is not t.numbers:
                raise TypeError(f"{text!r} must be an exact number of every case, not {type(found).__name__}")
            return found
    raise UnreadableError(f"{type(x).__name__} cannot be read as an exact number of arrays")


def _sum_of_magnitudes(names: tuple[str, ...], t: Trial) -> Any:
    parts = [[abs(exact_of(part, t.format.precision)) for part in t[name]] for name in names]
    products = parts[0] if len(parts) == 1 else [a * b for a, b in zip(*parts, strict=True)]
    return total(products)
