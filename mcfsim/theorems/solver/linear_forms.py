"""Linear forms in unknown numbers and their products with powers of u, and what is said of them.

A form is a sum of terms ``c u**k x``: c a fraction, x an unknown, k an integer. u is unknown too. As it is
positive, a form has the sign of its product with any power of u.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any

from mcfsim.checks.opaque import Opaque

#: An unknown, by its name, times a power of u.
Term = tuple[str, int]
#: What unknowns are, by name, in a unit that makes integers of them.
Values = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class LinearForm(Opaque):
    """A linear form: each term with its factor, in order, none of them zero.

    Its comparisons are formulas; ``==`` is none, but `equal`.
    """

    terms: tuple[tuple[Term, Fraction], ...] = ()

    @staticmethod
    def of(terms: Mapping[Term, Fraction]) -> LinearForm:
        """Return the form of these terms."""
        return LinearForm(tuple(sorted((term, Fraction(c)) for term, c in terms.items() if c)))

    @staticmethod
    def unknown(name: str) -> LinearForm:
        """Return an unknown as a form."""
        return LinearForm((((name, 0), Fraction(1)),))

    def __add__(self, other: LinearForm) -> LinearForm:
        found = dict(self.terms)
        for term, c in _form(other).terms:
            found[term] = found.get(term, Fraction(0)) + c
        return LinearForm.of(found)

    def __neg__(self) -> LinearForm:
        return LinearForm(tuple((term, -c) for term, c in self.terms))

    def __sub__(self, other: LinearForm) -> LinearForm:
        return self + -_form(other)

    def __mul__(self, factor: int | Fraction) -> LinearForm:
        return LinearForm.of({term: c * factor for term, c in self.terms})

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
        """The powers of u from the least to the greatest; none of the form zero."""
        found = [k for (_, k), _ in self.terms]
        return range(min(found), max(found) + 1) if found else range(0)

    @cached_property
    def primitive(self) -> LinearForm:
        """Return the multiple by a positive number and a power of u that has small integers and u**0."""
        if not self.terms:
            return self
        factors = [c for _, c in self.terms]
        size = Fraction(gcd(*(c.numerator for c in factors)), lcm(*(c.denominator for c in factors)))
        return (self * (1 / size)).times_u(-self.powers.start)

    def sign(self, values: Values, p: int) -> int:
        """Return a number that has the form's sign where its unknowns and p are known."""
        form = self.primitive
        return sum(int(c) * values[name] << p * (form.powers.stop - 1 - k) for (name, k), c in form.terms)


ZERO = LinearForm()


def _form(x: Any) -> LinearForm:
    if not isinstance(x, LinearForm):
        raise TypeError(f"{x!r} is no form: forms go with forms, such as ZERO")
    return x


class Formula(Opaque):
    """Something said of unknowns. There is no negation but `denied`, which carries it to the comparisons."""

    opaque = "is neither true nor false, nor compared: write (a <= b) & (b <= c), not a <= b <= c"

    def holds(self, values: Values, p: int) -> bool:
        """Return whether it is true where unknowns and p are known."""
        raise NotImplementedError

    def denied(self) -> Formula:
        """Return the contrary."""
        raise NotImplementedError

    def __and__(self, other: Formula) -> Formula:
        return all_of((self, other))

    def __or__(self, other: Formula) -> Formula:
        return Disjunction((self, formula(other)))

    def implies(self, other: Formula) -> Formula:
        """Return: if this, then the other."""
        return self.denied() | other


@dataclass(frozen=True, eq=False)
class Comparison(Formula):
    """``form >= 0``, or ``form > 0`` if strict."""

    form: LinearForm
    strict: bool

    def holds(self, values: Values, p: int) -> bool:
        """Return whether the form has the sign."""
        sign = self.form.sign(values, p)
        return sign > 0 if self.strict else sign >= 0

    def denied(self) -> Formula:
        """Return ``-form > 0``, or ``-form >= 0``."""
        return Comparison(-self.form, not self.strict)


@dataclass(frozen=True, eq=False)
class Conjunction(Formula):
    """All of several; true of none."""

    parts: tuple[Formula, ...]

    def holds(self, values: Values, p: int) -> bool:
        """Return whether all parts hold."""
        return all(part.holds(values, p) for part in self.parts)

    def denied(self) -> Formula:
        """Return that a part does not hold."""
        return Disjunction(tuple(part.denied() for part in self.parts))


@dataclass(frozen=True, eq=False)
class Disjunction(Formula):
    """One or more of several; false of none."""

    parts: tuple[Formula, ...]

    def holds(self, values: Values, p: int) -> bool:
        """Return whether any part holds."""
        return any(part.holds(values, p) for part in self.parts)

    def denied(self) -> Formula:
        """Return that no part holds."""
        return Conjunction(tuple(part.denied() for part in self.parts))


TRUE = Conjunction(())


def formula(x: Any) -> Formula:
    """Return a formula as it is; anything else is a TypeError."""
    if not isinstance(x, Formula):
        raise TypeError(
            f"{x!r} of type {type(x).__name__} is no formula: hypotheses and claims are comparisons of "
            "forms, such as a.value <= b.value, joined by & and |"
        )
    return x


def all_of(parts: Iterable[Formula]) -> Formula:
    """Return that all of them hold."""
    return Conjunction(tuple(map(formula, parts)))


def equal(a: LinearForm, b: LinearForm) -> Formula:
    """Return ``a = b``."""
    return (a <= b) & (b <= a)


def within(a: LinearForm, *bounds: LinearForm) -> Formula:
    """Return ``|a| <= b`` for each bound b."""
    return all_of(part for b in bounds for part in (a <= b, -a <= b))


def not_above(a: LinearForm, b: LinearForm) -> Formula:
    """Return ``|a| <= |b|``."""
    return within(a, b) | within(a, -b)
