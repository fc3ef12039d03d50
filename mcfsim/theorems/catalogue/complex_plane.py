"""Statements on determinants, complex products, lengths and reciprocals, as `mcfsim.functions` computes them.

They suppose that nothing underflows; two false ones show why.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

from mcfsim import functions as f
from mcfsim.formats import Format
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.catalogue.accumulations import (
    JR_OPTIMAL,
    TWO,
    A,
    B,
    C,
    D,
    about_products,
    e,
    o,
)
from mcfsim.theorems.catalogue.double_words import BY_FAMILY, EVEN
from mcfsim.theorems.claims import (
    R,
    all_of,
    bounded,
    relative_error,
    root_error,
    same_results,
)
from mcfsim.theorems.counterexamples import Case, power, quantum
from mcfsim.theorems.hypotheses import RESULTS_FINITE, hypothesis, nonzero, of_format
from mcfsim.theorems.logic import SMALLEST_NORMAL, OfFormat, Result, Term, U, Ulp, Word
from mcfsim.theorems.operands import sequence
from mcfsim.theorems.statement import Claim, Theorem
from mcfsim.theorems.symbolic import families, family

JLM = "Jeannerod, Louvet, Muller, Math. Comp. 82, 2013"
BPZ = "Brent, Percival, Zimmermann, Math. Comp. 76, 2007, for p >= 5; for p = 2 to 4 tried here"
MARKSTEIN = "Markstein, IBM J. Res. Dev. 34(1), 1990"
UNDERFLOW = "on why nothing may underflow"


# -- determinants and products ------------------------------------------------------------------------------
#: Kahan's algorithm rounds twice by half an ulp, in one direction.
DETERMINANTS = families(
    family(a=-e, b=2 - e, c=-1 - e, d=1 + e), family(a=-o, b=(3 - o) / 2, c=-1 - o, d=1 + o / 2)
)
DETERMINANT = A * B - C * D
REAL, IMAGINARY = A * C - B * D, A * D + B * C


def _multiplied(ar: Arithmetic, a: Value, b: Value, c: Value, d: Value) -> Any:
    return f.complex_product(ar, (a, b), (c, d))


def _multiplied_fma(ar: Arithmetic, a: Value, b: Value, c: Value, d: Value) -> Any:
    return f.complex_product_fma(ar, (a, b), (c, d))


def _of_modulus(square: int, real: Term, imaginary: Term) -> Claim:
    """Claim that two results are off by at most the root of `square` times u, relative to the modulus."""
    x, y = Result(0) - real, Result(1) - imaginary
    return bounded(x * x + y * y, real * real + imaginary * imaginary, square, unit=2)


def _of_parts(constant: int) -> Claim:
    """Claim a bound on the relative error of each part, in units of u."""
    pairs = ((Result(0), REAL), (Result(1), IMAGINARY))
    return all_of(*(bounded(found - exact, exact, constant, unit=1) for found, exact in pairs))


def _published_products(p: int) -> Iterator[Case]:
    """Yield operands with an error of nearly ``sqrt(5) u``, after Brent, Percival and Zimmermann."""
    small = Fraction(1, 2**p)
    far, close = (11, 5) if p % 2 == 0 else (19, 13)
    first = (Fraction(3, 4), Fraction(3, 4) * (1 - 4 * small))
    yield *first, Fraction(2, 3) * (1 + far * small), Fraction(2, 3) * (1 + close * small)


def _cancelling(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield factors whose product loses its real part: both terms of it are rounded to one number."""
    small = Fraction(1, 2**fmt.precision)
    yield 1 + 2 * small, 1 + 4 * small, 1 + 2 * small, Fraction(1)


# -- lengths ------------------------------------------------------------------------------------------------
def _vanishing(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield the smallest number and zeros: the square of that number is zero once it is rounded."""
    if quantum(fmt) <= -2:
        yield power(quantum(fmt)), Fraction(0)


def _vanishing_product(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    return ((a, a, zero, zero) for a, zero in _vanishing(fmt, rounding))


# -- reciprocals --------------------------------------------------------------------------------------------
def _improved(ar: Any, a: Value) -> Any:
    """Return one step from each neighbour of 1 / a, and twice 1 / a, rounded."""
    starts = (ar.like(ar.format, Rounding(mode)).div(1.0, a) for mode in (Mode.DOWN, Mode.UP))
    once = ar.div(1.0, a)
    return *(f.reciprocal_newton(ar, a, start, steps=1) for start in starts), once, once


#: Not all bits of the significand are ones.
NOT_ONES = hypothesis(
    U * abs(A) < OfFormat("(1 - u)", lambda fmt, _: 1 - Fraction(1, 2**fmt.precision)) * Ulp(A)
)
#: ``1 - a x`` is a value of the format, for every neighbour x of 1 / a.
RESIDUAL_FITS = of_format("emin <= -p", lambda fmt, _: fmt.emin <= -fmt.precision)
NORMAL = hypothesis(abs(Result(2)) >= SMALLEST_NORMAL)


def _all_ones(fmt: Format, _: Rounding) -> Iterator[Case]:
    yield (2 - power(1 - fmt.precision),)


#: What statements on one step for a reciprocal have in common.
_about_reciprocals = partial(
    Theorem,
    algorithm=_improved,
    operands=TWO[:1],
    claim=same_results("one step from each neighbour of 1/a", "RN(1/a)"),
)

THEOREMS = (
    # -- determinants and products --
    about_products(
        "difference_of_products",
        f.difference_of_products,
        claim=relative_error(2, DETERMINANT, unit=1),
        source=f"{JLM}, on Kahan's algorithm",
        families=DETERMINANTS,
        sharp=f"{BY_FAMILY}; 2u/(1+2u) is the worst of all operands tried, p = 2 to 4; ties away reach 2u",
    ),
    about_products(
        "difference_of_products_in_ulps",
        f.difference_of_products,
        claim=bounded(R - DETERMINANT, Ulp(DETERMINANT), Fraction(3, 2)),
        source=f"{JLM}, on Kahan's algorithm",
        sharp="reached at p = 3; asymptotically, by the source",
    ),
    Theorem(
        "difference_of_products_underflow",
        lambda ar, x: f.difference_of_products(ar, *x),
        (sequence("x", 4),),
        relative_error(2, Word("x", 0) * Word("x", 1) - Word("x", 2) * Word("x", 3), unit=1),
        where=(RESULTS_FINITE,),
        source=UNDERFLOW,
        holds=False,
        witnesses=_vanishing_product,
    ),
    about_products(
        "complex_product",
        _multiplied,
        claim=_of_modulus(5, REAL, IMAGINARY),
        source=BPZ,
        families=_published_products,
        sharp="asymptotically, by the source, whose operands are among those tried",
    ),
    about_products(
        "complex_product_parts",
        _multiplied,
        claim=_of_parts(2),
        where=(),
        source="the hope that each part is accurate, as by complex_product_fma",
        holds=False,
        witnesses=_cancelling,
        sharp="a part in which the products cancel may have no right digit",
    ),
    about_products(
        "complex_product_fma",
        _multiplied_fma,
        claim=_of_modulus(4, REAL, IMAGINARY),
        source="Jeannerod, Kornerup, Louvet, Muller, Math. Comp. 86, 2017",
        sharp="asymptotically, by the source",
    ),
    about_products(
        "complex_product_fma_parts",
        _multiplied_fma,
        claim=_of_parts(2),
        source=f"of {JLM}, for each part",
    ),
    about_products(
        "rotation",
        f.rotation,
        claim=_of_modulus(5, A * C + B * D, A * D - B * C),
        source=f"the product of c - i s and x + i y: {BPZ}",
        families=lambda p: ((a, -b, c, d) for a, b, c, d in _published_products(p)),
        sharp="as complex_product",
    ),
    # -- lengths --
    about_products(
        "hypot",
        f.hypot,
        operands=TWO,
        claim=root_error(2, A * A + B * B, unit=1),
        source=f"{JR_OPTIMAL}; Jeannerod, Muller, Plet, ARITH 2017",
        sharp="asymptotically, by the second source",
    ),
    Theorem(
        "hypot_underflow",
        lambda ar, x: f.hypot(ar, *x),
        (sequence("x", 2),),
        root_error(2, Word("x", 0) * Word("x", 0) + Word("x", 1) * Word("x", 1), unit=1),
        where=(RESULTS_FINITE,),
        source=UNDERFLOW,
        holds=False,
        witnesses=_vanishing,
    ),
    # -- reciprocals --
    _about_reciprocals(
        "reciprocal_newton",
        where=(nonzero("a"), NOT_ONES, RESIDUAL_FITS, NORMAL, RESULTS_FINITE),
        source=MARKSTEIN,
    ),
    _about_reciprocals(
        "reciprocal_newton_all_ones",
        where=(nonzero("a"), RESIDUAL_FITS, NORMAL, RESULTS_FINITE),
        source=f"{MARKSTEIN}, on the one significand that is left out",
        modes=EVEN,
        holds=False,
        witnesses=_all_ones,
    ),
)
