"""What statements say of results, as data: see `mcfsim.theorems.logic`."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mcfsim.rounding import Mode
from mcfsim.theorems.logic import (
    AllOf,
    Bound,
    Computed,
    EveryDraw,
    Expectation,
    Finite,
    Iff,
    IsMultiple,
    IsValue,
    Mixed,
    Nonoverlapping,
    OfFormat,
    Operand,
    Predicate,
    Proposition,
    Result,
    Results,
    Rounded,
    Same,
    StronglyNonoverlapping,
    Term,
    Ulp,
    Within,
    Word,
    equal,
)
from mcfsim.theorems.logic.algebra import Sum
from mcfsim.theorems.logic.propositions import Constant
from mcfsim.theorems.logic.terms import InnerProduct, SumOfMagnitudes
from mcfsim.theorems.statement import Claim
from mcfsim.theorems.trial import Trial, Truth

#: What a result should be: a number, the quotient of two, or what a function of a `Trial` returns.
Target = Term | tuple[Term, Term] | Callable[[Trial], Any]

#: The two results of an error-free transformation.
S, E = Result(0, "s"), Result(1, "e")
#: The sum of the results.
R = Results()


def claim(said: Proposition | str, test: Callable[[Trial], Truth] | None = None) -> Claim:
    """Return a claim of one's own.

    Parameters
    ----------
    said : Proposition or str
        A proposition as data, which every interpreter reads; or words.
    test : callable, optional
        With words, a predicate on arrays: it says of each case of a `Trial` whether the claim holds. Trials
        alone can read it.
    """
    return Claim(_said(said, test))


def _said(said: Proposition | str, test: Callable[[Any], Any] | None) -> Proposition:
    if isinstance(said, Proposition) and test is None:
        return said
    if not isinstance(said, str) or not callable(test):
        raise TypeError(f"a proposition, or words and a test, not {said!r} and {test!r}")
    return Predicate(said, test)


# -- targets ------------------------------------------------------------------------------------------------
def sum_of(*names: str) -> Term:
    """Return the sum of operands, components included."""
    terms = tuple(map(Operand, names))
    return terms[0] if len(terms) == 1 else Sum(terms)


def product_of(a: str, b: str) -> Term:
    """Return the product of two operands."""
    return Operand(a) * Operand(b)


def quotient_of(a: str, b: str) -> tuple[Term, Term]:
    """Return the quotient of two operands."""
    return Operand(a), Operand(b)


def inner_product(x: str, y: str) -> Term:
    """Return the sum of the products of the components of two operands."""
    return InnerProduct(x, y)


def magnitudes_of(*names: str) -> Term:
    """Return the sum of magnitudes of an operand's components, or of the products of two operands'."""
    return SumOfMagnitudes(names)


def _as_quotient(target: Target) -> tuple[Term, Term | None]:
    """Return a target as numerator and denominator, which is None of a target that is no quotient."""
    if isinstance(target, tuple):
        return target
    if isinstance(target, Term):
        return target, None
    return Computed(target), None


# -- exactness ----------------------------------------------------------------------------------------------
def exact_sum(a: str = "a", b: str = "b") -> Claim:
    """Claim that two results s and e have exactly the sum of two values."""
    return Claim(equal(S + E, Word(a) + Word(b)))


def exactly(target: Target) -> Claim:
    """Claim that the sum of the results is exactly the target."""
    exact, denominator = _as_quotient(target)
    return Claim(equal(R if denominator is None else R * denominator, exact))


def normalised(first: int = 0) -> Claim:
    """Claim that results ``first`` and ``first + 1`` are a double word: ``high = RN(high + low)``."""
    high, low = Result(first), Result(first + 1)
    return Claim(equal(Rounded(high, low), high))


def double_word_to_even() -> Claim:
    """Claim that the two results are a double word, ties to even, whatever the mode of the statement."""
    high, low = Result(0), Result(1)
    return Claim(equal(Rounded(high, low, Mode.NEAREST_EVEN), high))


def same_results(one: str = "the first half of the results", other: str = "the second") -> Claim:
    """Claim that the first half of the results equals the second, bit for bit but for signs of zero.

    Parameters
    ----------
    one, other : str, optional
        What the halves are.
    """
    return Claim(Same(one, other))


def finite_result(place: int, name: str = "") -> Claim:
    """Claim that a result is finite: nothing overflows on the way."""
    return Claim(Finite(Result(place, name)))


def nonoverlapping_results(factor: int = 1) -> Claim:
    """Claim that the results do not overlap, smallest first; with the factor 2, that none are adjacent."""
    return Claim(Nonoverlapping(factor=factor))


def strongly_nonoverlapping_results() -> Claim:
    """Claim that the results are strongly nonoverlapping (Shewchuk)."""
    return Claim(StronglyNonoverlapping())


def all_of(*claims: Claim) -> Claim:
    """Claim several things at once; the first error that is bounded is measured."""
    parts: list[Proposition] = []
    for each in claims:
        parts += each.said.parts if isinstance(each.said, AllOf) else [each.said]
    return Claim(AllOf(tuple(parts)))


# -- errors -------------------------------------------------------------------------------------------------
def relative_error(constant: Constant, target: Target, *, unit: int = 2, text: str = "") -> Claim:
    """Claim that the sum of the results has at most so large a relative error.

    Parameters
    ----------
    constant : int, Fraction, Polynomial, Quotient or callable
        The bound in units of ``u**unit``: a number, a function of u, or one that gets the precision. Where
        the denominator of a `Quotient` is not positive the bound is that of a number: it bounds nothing.
    target : term, pair of terms, or callable
        The exact result; numerator and denominator, if it is a quotient. A callable gets a `Trial` and
        returns an `Exact`; trials alone can read it.
    unit : int, optional
        1 or 2.
    text : str, optional
        The bound as it is written, where the constant is a callable.
    """
    exact, _ = _as_quotient(target)
    return Claim(Within(error_of(target), exact, Bound(constant, unit, text=text)))


def error_of(target: Target, results: Term = R) -> Term:
    """Return the error of the results' sum, multiplied by the denominator of a quotient."""
    exact, denominator = _as_quotient(target)
    return results - exact if denominator is None else results * denominator - exact


def error_relative_to(
    constant: Constant,
    target: Target,
    reference: Term | Callable[[Trial], Any],
    *,
    unit: int = 1,
    text: str = "",
) -> Claim:
    """Claim a bound on the error of the results' sum, relative to something else than the exact result."""
    return bounded(error_of(target), reference, constant, unit=unit, text=text)


def bounded(
    error: Term | Callable[[Trial], Any],
    reference: Term | Callable[[Trial], Any],
    constant: Constant,
    *,
    unit: int = 0,
    text: str = "",
) -> Claim:
    """Claim that an error is at most so many ``u**unit`` of its reference, in magnitude.

    Parameters
    ----------
    error, reference : term, or callable
        A callable gets a `Trial` and returns an `Exact`; trials alone can read it.
    constant, unit, text
        As of `relative_error`.
    """
    wrong, right = (x if isinstance(x, Term) else Computed(x) for x in (error, reference))
    return Claim(Within(wrong, right, Bound(constant, unit, text=text)))


def root_error(constant: Constant, radicand: Term) -> Claim:
    """Claim that the sum of the results has at most so large an error relative to a square root.

    The root is irrational, but ``s**2 / x`` is not, and lies between ``(1 - c u**2)**2`` and
    ``(1 + c u**2)**2`` if and only if s is so near, or -s is: s may not be negative.
    """
    near = Within(R * R - radicand, radicand, Bound(constant, 2, squared=True))
    return Claim(AllOf((R >= 0, near)))


def mixed_error(
    target: Term,
    magnitudes: Term,
    shares: Callable[[int], tuple[Fraction, Fraction]],
    text: str,
    stop: int,
) -> Claim:
    """Claim ``|error| <= a |s| + b S`` for an exact result s and a sum of magnitudes S >= |s|.

    Parameters
    ----------
    target, magnitudes : term
        s and S.
    shares : callable
        Returns ``(a, b)`` at a precision.
    text : str
        The bound as it is written.
    stop : int
        How many results are added up.
    """
    error = error_of(target, Results(0, stop))
    return Claim(Within(error, Mixed(target, magnitudes, shares, text), Bound(1)))


# -- stochastic rounding ------------------------------------------------------------------------------------
#: A unit in the last place over ``2**k``, k the number of random bits.
_OF_DRAWS = OfFormat("2^-k", lambda _, rounding: Fraction(1, 2**rounding.random_bits))


def resolution(x: Term, extra: int = 0) -> Term:
    """Return ``ulp(x) / 2**(k + extra)``."""
    share = OfFormat(f"2^-(k+{extra})", lambda _, rounding: Fraction(1, 2 ** (rounding.random_bits + extra)))
    return Ulp(x) * (share if extra else _OF_DRAWS)


def unbiased(target: Term) -> Claim:
    """Claim that the sum of the results has the target as its expectation."""
    return Claim(AllOf((equal(Expectation(R), target), Finite())))


def unbiased_iff_resolved(rounded: Term) -> Claim:
    """Claim that a rounded number is the expectation if and only if k random bits resolve it."""
    return Claim(Iff(equal(Expectation(R), rounded), IsMultiple(rounded, resolution(rounded))))


def bias_inward(rounded: Term) -> Claim:
    """Claim that the expectation is less than ``ulp / 2**k`` from a rounded number, toward zero."""
    bias = Within(Expectation(R) - rounded, resolution(rounded), Bound(1, strict=True))
    return Claim(AllOf((abs(Expectation(R)) <= abs(rounded), bias)))


def bias_of_half(rounded: Term) -> Claim:
    """Claim that the expectation is at most ``ulp / 2**(k + 1)`` from a rounded number."""
    return Claim(Within(Expectation(R) - rounded, resolution(rounded), Bound(Fraction(1, 2))))


def variance_of_quarter(rounded: Term) -> Claim:
    """Claim that the variance is at most ``ulp**2 / 4``."""
    error = R - rounded
    variance = Expectation(error * error) - Expectation(error) * Expectation(error)
    return Claim(Within(variance, Ulp(rounded) * Ulp(rounded), Bound(Fraction(1, 4))))


def neighbour_of(x: Term) -> Claim:
    """Claim that the result is x, if that is a value, and else less than an ulp away."""
    return Claim(AllOf((abs(R - x) < Ulp(x), equal(R, x) | ~IsValue(x), Finite())))


def lost_on_every_draw_below(a: str, b: str, extra: int) -> Claim:
    """Claim that a loses b of its sign on all draws just where it is below ``ulp(a) / 2**(k + extra)``."""
    lost = EveryDraw(equal(Result(0, "s"), Word(a)))
    return Claim(Iff(lost, abs(Word(b)) < resolution(Word(a), extra)))
