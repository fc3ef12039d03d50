"""Claims: what a statement says about its results, as data (see `mcfsim.theorems.logic`)."""

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
from mcfsim.theorems.logic.propositions import Constant
from mcfsim.theorems.logic.terms import InnerProduct, Sum, SumOfMagnitudes
from mcfsim.theorems.statement import Claim
from mcfsim.theorems.trial import Trial, Truth

#: A number: a term, or a function of a `Trial` that returns it.
Computable = Term | Callable[[Trial], Any]
#: An exact result: a number, or a quotient of two numbers.
Target = Computable | tuple[Term, Term]

#: The two results of an error-free transformation.
S, E = Result(0, "s"), Result(1, "e")
#: The sum of the results.
R = Results()


def claim(said: Proposition | str, test: Callable[[Trial], Truth] | None = None) -> Claim:
    """Return a claim made of a proposition, or of words and a test.

    Parameters
    ----------
    said : Proposition or str
        A proposition as data, which every interpreter can read; or words.
    test : callable, optional
        With words: a predicate on arrays that says for each case of a `Trial` whether the claim holds. Only
        trials can read it.
    """
    return Claim(_said(said, test))


def _said(said: Proposition | str, test: Callable[[Any], Any] | None) -> Proposition:
    if isinstance(said, Proposition) and test is None:
        return said
    if not isinstance(said, str) or not callable(test):
        raise TypeError(f"give a proposition, or words and a test, not {said!r} and {test!r}")
    return Predicate(said, test)


# -- targets ------------------------------------------------------------------------------------------------
def sum_of(*names: str) -> Term:
    """Return the sum of operands, each with all of its components."""
    terms = tuple(map(Operand, names))
    return terms[0] if len(terms) == 1 else Sum(terms)


def product_of(a: str, b: str) -> Term:
    """Return the product of two operands."""
    return Operand(a) * Operand(b)


def quotient_of(a: str, b: str) -> tuple[Term, Term]:
    """Return the quotient of two operands."""
    return Operand(a), Operand(b)


def inner_product(x: str, y: str) -> Term:
    """Return the inner product of the components of two operands."""
    return InnerProduct(x, y)


def magnitudes_of(*names: str) -> Term:
    """Return the sum of ``|x_i|`` over an operand's components, or of ``|x_i y_i|`` for two operands."""
    return SumOfMagnitudes(names)


def _as_quotient(target: Target) -> tuple[Term, Term | None]:
    """Return a target as numerator and denominator; the denominator is None if it is not a quotient."""
    if isinstance(target, tuple):
        return target
    if isinstance(target, Term):
        return target, None
    return Computed(target), None


# -- exactness ----------------------------------------------------------------------------------------------
def exact_sum(a: str = "a", b: str = "b") -> Claim:
    """Claim that two results s and e satisfy ``s + e = a + b`` exactly, for two values a and b."""
    return Claim(equal(S + E, Word(a) + Word(b)))


def exactly(target: Target) -> Claim:
    """Claim that the sum of the results is exactly the target."""
    exact, denominator = _as_quotient(target)
    return Claim(equal(R if denominator is None else R * denominator, exact))


def normalised(first: int = 0) -> Claim:
    """Claim that results ``first`` and ``first + 1`` form a double word: ``high = RN(high + low)``."""
    high, low = Result(first), Result(first + 1)
    return Claim(equal(Rounded(high, low), high))


def double_word_to_even() -> Claim:
    """Claim that the two results form a double word, ties to even, whatever the statement's mode."""
    return Claim(equal(Rounded(Result(0), Result(1), Mode.NEAREST_EVEN), Result(0)))


def same_results(one: str = "the first half of the results", other: str = "the second") -> Claim:
    """Claim that both halves of the results are equal, bit for bit except for signs of zero.

    Parameters
    ----------
    one, other : str, optional
        Descriptions of the halves.
    """
    return Claim(Same(one, other))


def finite_result(place: int, name: str = "") -> Claim:
    """Claim that a result is finite: nothing overflows on the way."""
    return Claim(Finite(Result(place, name)))


def nonoverlapping_results(factor: int = 1) -> Claim:
    """Claim that the results, smallest first, do not overlap; with the factor 2, that none are adjacent."""
    return Claim(Nonoverlapping(factor=factor))


def strongly_nonoverlapping_results() -> Claim:
    """Claim that the results are strongly nonoverlapping (Shewchuk)."""
    return Claim(StronglyNonoverlapping())


def all_of(*claims: Claim) -> Claim:
    """Claim several things at once; measure the first error that is bounded."""
    parts: list[Proposition] = []
    for each in claims:
        parts += each.said.parts if isinstance(each.said, AllOf) else [each.said]
    return Claim(AllOf(tuple(parts)))


# -- errors -------------------------------------------------------------------------------------------------
def relative_error(constant: Constant, target: Target, *, unit: int = 2, text: str = "") -> Claim:
    """Claim a bound on the relative error of the sum of the results.

    Parameters
    ----------
    constant : int, Fraction, Polynomial, Quotient or callable
        The bound in units of ``u**unit``: a number, a function of u, or a callable of the precision. If
        the denominator of a `Quotient` is not positive, the constant is ``4**p``, which bounds nothing.
    target : term, pair of terms, or callable
        The exact result; for a quotient, numerator and denominator. A callable gets a `Trial` and returns
        an `Exact`; only trials can read it.
    unit : int, optional
        The power of u: 1 or 2.
    text : str, optional
        The bound as text, if the constant is a callable.
    """
    exact, _ = _as_quotient(target)
    return bounded(error_of(target), exact, constant, unit=unit, text=text)


def error_of(target: Target, results: Term = R) -> Term:
    """Return the error of the results' sum; for a quotient, multiplied by its denominator."""
    exact, denominator = _as_quotient(target)
    return results - exact if denominator is None else results * denominator - exact


def error_relative_to(
    constant: Constant, target: Target, reference: Computable, *, unit: int = 1, text: str = ""
) -> Claim:
    """Claim a bound on the error of the results' sum, relative to a reference other than the exact result."""
    return bounded(error_of(target), reference, constant, unit=unit, text=text)


def bounded(
    error: Computable, reference: Computable, constant: Constant, *, unit: int = 0, text: str = ""
) -> Claim:
    """Claim ``|error| <= constant * u**unit * |reference|``.

    Parameters
    ----------
    error, reference : term, or callable
        A callable gets a `Trial` and returns an `Exact`; only trials can read it.
    constant, unit, text
        As for `relative_error`.
    """
    wrong, right = (x if isinstance(x, Term) else Computed(x) for x in (error, reference))
    return Claim(Within(wrong, right, Bound(constant, unit, text=text)))


def root_error(constant: Constant, radicand: Term, *, unit: int = 2) -> Claim:
    """Claim a bound on the error of the results' sum, relative to a square root.

    The root is irrational, but ``s**2 / x`` is rational. For a bound b, this quotient lies between
    ``(1 - b)**2`` and ``(1 + b)**2`` if and only if s or -s meets the bound. So s must also be nonnegative.
    """
    near = Within(R * R - radicand, radicand, Bound(constant, unit, squared=True))
    return Claim(AllOf((R >= 0, near)))


def mixed_error(
    target: Term, magnitudes: Term, shares: Callable[[int], tuple[Fraction, Fraction]], text: str, stop: int
) -> Claim:
    """Claim ``|error| <= a |s| + b S`` for an exact result s and a sum of magnitudes S >= |s|.

    Parameters
    ----------
    target, magnitudes : term
        s and S.
    shares : callable
        Returns ``(a, b)`` for a precision.
    text : str
        The bound as text.
    stop : int
        Number of results that are summed.
    """
    error = error_of(target, Results(0, stop))
    return Claim(Within(error, Mixed(target, magnitudes, shares, text), Bound(1)))


# -- stochastic rounding ------------------------------------------------------------------------------------
#: The probability of one draw, ``2**-k`` for k random bits.
_OF_DRAWS = OfFormat("2^-k", lambda _, rounding: Fraction(1, 2**rounding.random_bits))


def resolution(x: Term, extra: int = 0) -> Term:
    """Return ``ulp(x) / 2**(k + extra)``, where k is the number of random bits."""
    share = OfFormat(f"2^-(k+{extra})", lambda _, rounding: Fraction(1, 2 ** (rounding.random_bits + extra)))
    return Ulp(x) * (share if extra else _OF_DRAWS)


def unbiased(target: Term) -> Claim:
    """Claim that the expectation of the results' sum is the target."""
    return Claim(AllOf((equal(Expectation(R), target), Finite())))


def unbiased_iff_resolved(rounded: Term) -> Claim:
    """Claim that the expectation is the number being rounded if and only if k random bits resolve it."""
    return Claim(Iff(equal(Expectation(R), rounded), IsMultiple(rounded, resolution(rounded))))


def bias_inward(rounded: Term) -> Claim:
    """Claim that the expectation is less than ``ulp / 2**k`` from the number being rounded, toward zero."""
    bias = Within(Expectation(R) - rounded, resolution(rounded), Bound(1, strict=True))
    return Claim(AllOf((abs(Expectation(R)) <= abs(rounded), bias)))


def bias_of_half(rounded: Term) -> Claim:
    """Claim that the expectation is at most ``ulp / 2**(k + 1)`` from the number being rounded."""
    return Claim(Within(Expectation(R) - rounded, resolution(rounded), Bound(Fraction(1, 2))))


def variance_of_quarter(rounded: Term) -> Claim:
    """Claim that the variance of the result is at most ``ulp**2 / 4``."""
    error = R - rounded
    variance = Expectation(error * error) - Expectation(error) * Expectation(error)
    return Claim(Within(variance, Ulp(rounded) * Ulp(rounded), Bound(Fraction(1, 4))))


def neighbour_of(x: Term) -> Claim:
    """Claim that the result is x if x is a value of the format, and otherwise less than an ulp away."""
    return Claim(AllOf((abs(R - x) < Ulp(x), equal(R, x) | ~IsValue(x), Finite())))


def lost_on_every_draw_below(a: str, b: str, extra: int) -> Claim:
    """Claim, for b of a's sign, that s = a on every draw if and only if ``|b| < ulp(a) / 2**(k + extra)``."""
    lost = EveryDraw(equal(Result(0, "s"), Word(a)))
    return Claim(Iff(lost, abs(Word(b)) < resolution(Word(a), extra)))
