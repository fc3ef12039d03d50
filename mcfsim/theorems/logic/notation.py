"""Mathematical notation of terms and propositions, made from the data that is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any

from mcfsim.theorems.logic.propositions import (
    Bound,
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
    Within,
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
    OfFormat,
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
    spoken_of,
)

#: The meaning of the notation.
LEGEND = {
    "h1, h2: c": "h1 and h2 are supposed, and c is claimed; a comma is 'and'",
    "u": "2^-p, p the precision",
    "x y, x/2": "the exact product, and half of x; all sums and products are exact but within RN",
    "xh, xl": "the high and the low word of a pair x; x is their exact sum",
    "x_i, n": "the numbers of a sequence x, or the words of x, and how many there are",
    "r; r1, r2": "the exact sum of the results; single results, where they have no names",
    "RN(x + y)": "x + y rounded, in the mode of the statement if none is given",
    "e(x), ulp(x)": "the exponent floor(log2 |x|), and the unit in the last place",
    "lowbit(x)": "the power of two of the last bit of x that is not zero",
    "step(x, y)": "the distance from x to its neighbour on the side of the sign of y",
    "max, emin": "the largest number, and the exponent of the smallest normal one",
    "gamma(n)": "n u / (1 - n u)",
    "E[x], k": "the expectation over all draws of stochastic rounding, by k random bits",
}
#: The kinds of operands by name. The first word of a pair x is xh; that of a value x is x.
Kinds = Mapping[str, str]
#: Suffixes of the words of a pair.
_HIGH_LOW = "hl"
#: Notations into which all parts are inserted, in their order.
_FORMS: Mapping[type, str] = {
    # propositions
    AtMost: "{} <= {}",
    Below: "{} < {}",
    Equal: "{} = {}",
    Same: "{} = {}, bit for bit",
    NoOverflow: "no overflow",
    IsValue: "{} is a value of the format",
    IsMultiple: "{} is a multiple of {}",
    HasBits: "{} has at most {} bits",
    StronglyNonoverlapping: "the results are strongly nonoverlapping",
    InFormat: "{}",
    Predicate: "{}",
    # terms
    Number: "{}",
    OfFormat: "{}",
    Magnitude: "|{}|",
    Exponent: "e({})",
    Ulp: "ulp({})",
    LowBit: "lowbit({})",
    UlpTowards: "step({}, {})",
    RoundedToBits: "RN({}, {} bits, ties to even)",
    Expectation: "E[{}]",
    InnerProduct: "sum {}_i {}_i",
    Computed: "{1}",
}


def written(said: Proposition | Term, kinds: Kinds | None = None) -> str:
    """Return a proposition or a term in mathematical notation."""
    writer = _Writer(kinds or {})
    return writer.proposition(said) if isinstance(said, Proposition) else writer.term(said)


class _Writer:
    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    # -- propositions ---------------------------------------------------------------------------------------
    def proposition(self, said: Proposition) -> str:
        term = self.term
        match said:
            case AtMost(x, y) | Below(x, y) if _constant(x) and not _constant(y):  # as in |a| >= 1
                return f"{term(y)} {'>=' if isinstance(said, AtMost) else '>'} {term(x)}"
            case SameSign(x, y):
                return f"{self._factor(x)} {self._factor(y)} >= 0"
            case Not(Equal(x, y)):
                return f"{term(x)} != {term(y)}"
            case Not(part):
                return self._denied(part)
            case AllOf((only,)) | AnyOf((only,)):
                return self.proposition(only)
            case AllOf(parts):
                return ", ".join(self._within(part, AnyOf, Iff) for part in parts)
            case AnyOf(parts):
                return " or ".join(self._within(part, AllOf, Iff) for part in parts)
            case Iff(first, second):
                sides = (self._within(part, AllOf, AnyOf) for part in (first, second))
                return " if and only if ".join(sides)
            case EveryDraw(part):
                return f"{self._within(part, AllOf, AnyOf, Iff)} on every draw"
            case Within():
                return self._bound(said)
            case Finite(of):
                return "all results are finite" if of is None else f"{term(of)} is finite"
            case Nonoverlapping(terms, factor):
                kind = "nonoverlapping" if factor == 1 else "nonadjacent"
                if not terms:
                    return f"the results are {kind}"
                return f"({', '.join(map(term, terms))}) {kind} (smallest first)"
        return self._formed(said, "proposition")

    def _denied(self, part: Proposition) -> str:
        if not spoken_of(part):  # operands are finite: a comparison or its reverse holds
            match part:
                case AtMost(x, y):
                    return self.proposition(Below(y, x))
                case Below(x, y):
                    return self.proposition(AtMost(y, x))
                case SameSign(x, y):
                    return f"{self._factor(x)} {self._factor(y)} < 0"
        return f"not {self._within(part, Proposition)}"

    def _within(self, part: Proposition, *looser: type) -> str:
        if not isinstance(part, looser):
            return self.proposition(part)
        if isinstance(part, AllOf):
            return f"({' and '.join(self._within(each, AnyOf, Iff) for each in part.parts)})"
        return f"({self.proposition(part)})"

    def _formed(self, x: Any, kind: str) -> str:
        """Return the notation of a term or proposition by its entry in `_FORMS`."""
        if type(x) not in _FORMS:
            raise TypeError(f"{x!r} is no {kind}")
        parts = (getattr(x, field.name) for field in fields(x))
        return _FORMS[type(x)].format(*(self.term(y) if isinstance(y, Term) else y for y in parts))

    def _bound(self, said: Within) -> str:
        error, reference, bound = said.error, said.reference, said.bound
        sign = "<" if bound.strict else "<="
        if bound.squared and isinstance(error, Sum):
            x = self.term(reference)
            result = error.terms[0].first if isinstance(error.terms[0], Product) else error.terms[0]
            return f"|{self.term(result)} - sqrt({x})| {sign} {bound_text(bound)} sqrt({x})"
        size = self.term(error) if _never_negative(error) else f"|{self.term(error)}|"
        about = reference if _never_negative(reference) else Magnitude(reference)
        factor = bound_text(bound)
        return f"{size} {sign} {self.term(about) if factor == '1' else f'{factor} {self._factor(about)}'}"

    # -- terms ----------------------------------------------------------------------------------------------
    def term(self, x: Term) -> str:
        match x:
            case Operand(name):
                return f"sum {name}_i" if self._kinds.get(name) == "sequence" else name
            case Word(name, place):
                return self._word(name, place)
            case Result(place, name):
                return name or f"r{place + 1}"
            case Results(first, stop):
                if first == 0 and stop is None:
                    return "r"
                if stop == first + 1:
                    return f"r{stop}"
                return f"(r{first + 1} + {'... + ' if stop != first + 2 else ''}r{stop or 'n'})"
            case UnitRoundoff(power):
                return "u" if power == 1 else f"u^{power}"
            case Sum(terms):
                text = self._addend(terms[0], last=len(terms) == 1)
                for part in terms[1:]:
                    minus, inner = _signed(part)
                    last = part is terms[-1]
                    text += f" {'-' if minus else '+'} {self._addend(inner, minus=minus, last=last)}"
                return text
            case Negative(part):
                return f"-{self._factor(part)}"
            case Product(first, Number(value)) if value.numerator == 1 and value != 1:
                return f"{self._factor(first)}/{value.denominator}"
            case Product(first, Number() as number) if not isinstance(first, Number):
                return self.term(Product(number, first))
            case Product(Number(value), second) if value > 0:
                other = self._factor(second)
                return f"{value} ({other})" if other[0].isdigit() else f"{value} {other}"
            case Product(first, second) if first == second:
                text = self._factor(first)
                return f"({text})^2" if isinstance(first, Product) or "^" in text else f"{text}^2"
            case Product(first, second):
                return f"{self._factor(first)} {self._factor(second)}"
            case Rounded(a, b, mode):
                return f"RN({self.term(Sum((a, b)))}{f', {mode}' if mode else ''})"
            case SumOfMagnitudes(names):
                return f"sum |{' '.join(f'{name}_i' for name in names)}|"
            case Mixed(x=exact, y=sizes, text=text):
                also = f", s = {self.term(exact)}" if "|s|" in text else ""
                return f"{text}{also}, S = {self.term(sizes)}"
        return self._formed(x, "term")

    def _word(self, name: str, place: int) -> str:
        kind = self._kinds.get(name, "value" if place == 0 else "sequence")
        if kind == "value":
            return name
        if kind == "sequence":
            return f"{name}_{place + 1}"
        return f"{name}{_HIGH_LOW[place]}"

    def _addend(self, x: Term, *, last: bool, minus: bool = False) -> str:
        text = self.term(x)
        loose = (minus and _is_sum(x)) or (not last and self._goes_on(x))
        return f"({text})" if loose else text

    def _factor(self, x: Term) -> str:
        text = self.term(x)
        loose = _is_sum(x) or isinstance(x, Negative) or self._goes_on(x)
        return f"({text})" if loose or (isinstance(x, Number) and not text.isdigit()) else text

    def _goes_on(self, x: Term) -> bool:
        """Return whether text to the right of a term would be read as a part of it."""
        return isinstance(x, InnerProduct) or (
            isinstance(x, Operand) and self._kinds.get(x.name) == "sequence"
        )


def _signed(x: Term) -> tuple[bool, Term]:
    """Return whether a term has a minus sign, and the term without it."""
    if isinstance(x, Number) and x.value < 0:
        return True, Number(-x.value)
    if isinstance(x, Negative):
        minus, inner = _signed(x.term)
        return not minus, inner
    return False, x


def _is_sum(x: Term) -> bool:
    return isinstance(x, Sum) or (isinstance(x, OfFormat) and " " in x.text and x.text[0] != "(")


def bound_text(bound: Bound) -> str:
    """Return the notation of a bound, such as ``3 u^2 / (1 - 4 u)``."""
    if bound.text:
        return bound.text
    unit = "" if bound.unit == 0 else "u" if bound.unit == 1 else f"u^{bound.unit}"
    if bound.formula is None:
        return f"c(p) {unit}".strip()
    over = str(bound.formula.denominator)
    number = bound.formula.numerator
    text = str(number)
    if over.isdigit() and " " not in text:
        constant = all(power == 0 for power, _ in number.terms)
        text, over = str(Fraction(number.at(2)) / int(over)) if constant else text, "1"
    if text == "1" and unit:
        text = ""
    text = f"({text}) {unit}" if " " in text else f"{text} {unit}"
    return text.strip() if over == "1" else f"({text.strip()} / ({over}))"


def _never_negative(x: Term) -> bool:
    """Return whether a term is written without magnitude bars."""
    if isinstance(x, Sum):
        return all(map(_never_negative, x.terms))
    if isinstance(x, Product):
        known = _constant(x.second) or _never_negative(x.second)
        return x.first == x.second or (_never_negative(x.first) and known)
    return isinstance(x, Magnitude | Ulp | SumOfMagnitudes | Mixed)


def _constant(x: Term) -> bool:
    return isinstance(x, FixedTerm) or (isinstance(x, Product) and _constant(x.first) and _constant(x.second))
