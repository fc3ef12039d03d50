"""Unknown numbers of p bits: linear forms in them, formulas that compare these, and their arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mcfsim.checks import Opaque
from mcfsim.theorems.operands import OperandSpec
from mcfsim.theorems.symbolic.polynomial import collected

#: An unknown, by name, times a power of u.
Term = tuple[str, int]


@dataclass(frozen=True, eq=False)
class LinearForm(Opaque):
    """A linear form: sorted terms with nonzero factors.

    Its comparisons are formulas. Use `equal` instead of ``==``.
    """

    terms: tuple[tuple[Term, Fraction], ...] = ()

    @staticmethod
    def unknown(name: str) -> LinearForm:
        """Return an unknown as a form."""
        return LinearForm((((name, 0), Fraction(1)),))

    def __add__(self, other: LinearForm) -> LinearForm:
        return LinearForm(collected((*self.terms, *_form(other).terms)))

    def __neg__(self) -> LinearForm:
        return LinearForm(tuple((term, -c) for term, c in self.terms))

    def __sub__(self, other: LinearForm) -> LinearForm:
        return self + -_form(other)

    def __mul__(self, factor: int | Fraction) -> LinearForm:
        return LinearForm(collected((term, c * factor) for term, c in self.terms))

    __rmul__ = __mul__

    def times_u(self, power: int = 1) -> LinearForm:
        """Return the product with ``u**power``."""
        return LinearForm(tuple(((name, k + power), c) for (name, k), c in self.terms))

    def __le__(self, other: LinearForm) -> Formula:
        return Comparison(_form(other) - self, strict=False)

    def __lt__(self, other: LinearForm) -> Formula:
        return Comparison(_form(other) - self, strict=True)

    def __ge__(self, other: LinearForm) -> Formula:
        return _form(other) <= self

    def __gt__(self, other: LinearForm) -> Formula:
        return _form(other) < self

    @cached_property
    def powers(self) -> range:
        """The powers of u from the least to the greatest; an empty range for the form zero."""
        found = [k for (_, k), _ in self.terms]
        return range(min(found), max(found) + 1) if found else range(0)

    @cached_property
    def primitive(self) -> LinearForm:
        """The form scaled by a positive number and a power of u, to small integers and u**0."""
        if not self.terms:
            return self
        factors = [c for _, c in self.terms]
        size = Fraction(gcd(*(c.numerator for c in factors)), lcm(*(c.denominator for c in factors)))
        return (self * (1 / size)).times_u(-self.powers.start)


ZERO = LinearForm()


def _form(x: Any) -> LinearForm:
    if not isinstance(x, LinearForm):
        raise TypeError(f"{x!r} is no form: forms go with forms, such as ZERO")
    return x


class Formula(Opaque):
    """A formula about unknowns. Its only negation is `denied`, which carries it to the comparisons."""

    opaque = "is neither true nor false, nor compared: write (a <= b) & (b <= c), not a <= b <= c"

    def denied(self) -> Formula:
        """Return the negation."""
        raise NotImplementedError

    def __and__(self, other: Formula) -> Formula:
        return all_of((self, other))

    def __or__(self, other: Formula) -> Formula:
        return Disjunction((self, formula(other)))

    def implies(self, other: Formula) -> Formula:
        """Return the implication from this formula to another."""
        return self.denied() | other


@dataclass(frozen=True, eq=False)
class Comparison(Formula):
    """The comparison ``form >= 0``, or ``form > 0`` if strict."""

    form: LinearForm
    strict: bool

    def denied(self) -> Formula:
        """Return ``-form > 0``, or ``-form >= 0`` if strict."""
        return Comparison(-self.form, not self.strict)


@dataclass(frozen=True, eq=False)
class Junction(Formula):
    """A conjunction or disjunction of formulas."""

    parts: tuple[Formula, ...]

    def denied(self) -> Formula:
        """Return the disjunction of the negations of a conjunction's parts, and the converse."""
        contrary = Disjunction if isinstance(self, Conjunction) else Conjunction
        return contrary(tuple(part.denied() for part in self.parts))


class Conjunction(Junction):
    """The conjunction of formulas; true if there are none."""


class Disjunction(Junction):
    """The disjunction of formulas; false if there are none."""


TRUE = Conjunction(())


def formula(x: Any) -> Formula:
    """Return a formula unchanged; raise TypeError for anything else."""
    if not isinstance(x, Formula):
        raise TypeError(
            f"{x!r} of type {type(x).__name__} is no formula: hypotheses and claims are comparisons of "
            "forms, such as a.value <= b.value, joined by & and |"
        )
    return x


def all_of(parts: Iterable[Formula]) -> Formula:
    """Return the conjunction of formulas."""
    return Conjunction(tuple(map(formula, parts)))


def equal(a: LinearForm, b: LinearForm) -> Formula:
    """Return the formula ``a = b``."""
    return (a <= b) & (b <= a)


def within(a: LinearForm, *bounds: LinearForm) -> Formula:
    """Return the formula that ``|a| <= b`` for each bound b."""
    return all_of(part for b in bounds for part in (a <= b, -a <= b))


def not_above(a: LinearForm, b: LinearForm) -> Formula:
    """Return the formula ``|a| <= |b|``."""
    return within(a, b) | within(a, -b)


# -- unknown numbers --------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class UnknownNumber(Opaque):
    """An unknown number of p bits, whose exponent may be any integer.

    Attributes
    ----------
    value : LinearForm
        The number.
    first, last : LinearForm
        The values of its first and its last nonzero bit, powers of two. For zero, which has no bits,
        `first` is a power of two below everything that it is compared with, and `last` is one above.
    """

    value: LinearForm
    first: LinearForm
    last: LinearForm

    @staticmethod
    def unknown(name: str) -> UnknownNumber:
        """Return a new number, about which nothing is known."""
        return UnknownNumber(*(LinearForm.unknown(f"{name}{part}") for part in ("", ".first", ".last")))

    @property
    def ulp(self) -> LinearForm:
        """The unit in the last place, ``2 u first``."""
        return 2 * self.first.times_u()

    @property
    def zero(self) -> Formula:
        """The formula that the number is zero."""
        return equal(self.value, ZERO)

    def __neg__(self) -> UnknownNumber:
        return replace(self, value=-self.value)


def is_multiple_of_ulp(a: UnknownNumber, b: UnknownNumber) -> Formula:
    """Return the formula that a is a multiple of ulp(b), which is true if either is zero."""
    return a.zero | b.zero | (b.ulp <= a.last)


@dataclass(frozen=True, eq=False)
class RoundedSum:
    """An exact sum of numbers and its rounding to nearest.

    Attributes
    ----------
    result : UnknownNumber
        A number of p bits nearest to the sum.
    terms : tuple of UnknownNumber
        The addends.
    own_ties : bool
        Whether ties go by the rule of the arithmetic. Otherwise they may go either way.
    """

    result: UnknownNumber
    terms: tuple[UnknownNumber, ...]
    own_ties: bool = True

    @property
    def exact(self) -> LinearForm:
        """The exact sum."""
        return sum((term.value for term in self.terms), ZERO)

    @property
    def off(self) -> LinearForm:
        """The exact sum minus the result."""
        return self.exact - self.result.value


# -- their arithmetic -------------------------------------------------------------------------------------
#: ``lemma(ar, *operands)`` returns the results of an algorithm, and adds what they obey to ``ar.known``.
Lemma = Callable[..., Any]


class Called(NamedTuple):
    """A call that a lemma replaced: the algorithm, its operands, and the results of the lemma."""

    algorithm: Callable[..., Any]
    operands: tuple[Any, ...]
    results: Any


class UnknownArithmetic:
    """An `mcfsim.protocol.Arithmetic` of unknown numbers of p bits, rounded to nearest by any rule for ties.

    Exponents are unbounded. Only sums, differences and changes of sign have linear facts, so other operations
    are refused.

    Parameters
    ----------
    lemmas : mapping, optional
        The lemmas that replace algorithms with a proved theorem.

    Attributes
    ----------
    numbers : list of UnknownNumber
        All numbers made so far.
    sums : list of RoundedSum
        All rounded sums, including one for each operand that is a double word.
    known : list of Formula
        Further facts, from lemmas and about operands.
    called : list of Called
        The calls that lemmas replaced.
    """

    format = rounding = None
    carrier = np.dtype(object)

    def __init__(self, lemmas: Mapping[Callable[..., Any], Lemma] | None = None) -> None:
        self.numbers: list[UnknownNumber] = []
        self.sums: list[RoundedSum] = []
        self.known: list[Formula] = []
        self.called: list[Called] = []
        self._lemmas = lemmas or {}
        self._names: set[str] = set()

    # -- numbers ------------------------------------------------------------------------------------------
    def number(self, name: str = "") -> UnknownNumber:
        """Return a new number, about which nothing is known.

        Raises
        ------
        ValueError
            If another number has the name: the two would be the same.
        """
        name = name or f"t{len(self.numbers)}"
        if name in self._names or "." in name:
            raise ValueError(f"an operand cannot be called {name!r}: another unknown is, or may be")
        self._names.add(name)
        self.numbers.append(UnknownNumber.unknown(name))
        return self.numbers[-1]

    def operand(self, operand: OperandSpec) -> Any:
        """Return unknowns for an operand: a number, or a tuple of two for a double word or relaxed pair.

        The high word of a double word is nearest to the sum of both, whichever way ties went.

        Raises
        ------
        ValueError
            If it is a sequence.
        """
        if operand.components == 1:
            return self.number(operand.name)
        if not operand.paired:
            raise ValueError(f"{operand.name} is a {operand.kind}; the solver takes values and pairs")
        high, low = self.number(f"{operand.name}h"), self.number(f"{operand.name}l")
        if operand.kind == "double word":
            self.sums.append(RoundedSum(high, (high, low), own_ties=False))
        else:
            half = high.first.times_u()
            small = (low.value <= half) & (-low.value <= half)
            self.known += [high.zero.implies(low.zero), high.zero | small]
        return high, low

    def rounded(self, *terms: UnknownNumber) -> UnknownNumber:
        """Return the rounded sum of numbers."""
        self.sums.append(RoundedSum(self.number(), terms))
        return self.sums[-1].result

    # -- operations ---------------------------------------------------------------------------------------
    def add(self, a: Any, b: Any) -> UnknownNumber:
        """Return ``a + b``."""
        return self.rounded(_taken(a), _taken(b))

    def sub(self, a: Any, b: Any) -> UnknownNumber:
        """Return ``a - b``."""
        return self.rounded(_taken(a), -_taken(b))

    def neg(self, a: Any) -> UnknownNumber:
        """Return ``-a``."""
        return -_taken(a)

    def evaluate(self, function: Callable[..., Any], /, *operands: Any, **options: Any) -> Any:
        """Return ``function(self, *operands, **options)``, or the results of a lemma that replaces it."""
        if function in self._lemmas and not options:
            self.called.append(Called(function, operands, self._lemmas[function](self, *operands)))
            return self.called[-1].results
        return function(self, *operands, **options)

    def _refused(self, *operands: Any) -> NoReturn:
        raise ValueError(
            "products, quotients, roots, signs and other formats have no linear facts; "
            "the solver takes algorithms that add, subtract and change signs"
        )

    exp = log = expm1 = log1p = tanh = erf = sin = cos = maximum = minimum = choose = _refused
    mul = div = sqrt = fma = abs = sign = round = like = on_block = _refused


def _taken(x: Any) -> UnknownNumber:
    if not isinstance(x, UnknownNumber):
        raise ValueError(f"the operand {x!r} is no unknown: a constant has another meaning for every p")
    return x
