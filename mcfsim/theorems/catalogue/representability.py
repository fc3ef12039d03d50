"""Statements on when an operation is exact, and when its error is a value of the format."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

from mcfsim.formats import Format
from mcfsim.protocol import Arithmetic, Value
from mcfsim.rounding import Mode, Rounding
from mcfsim.theorems.claims import claim
from mcfsim.theorems.counterexamples import Case, beyond_the_gap, factors, nearest_to, power, quantum
from mcfsim.theorems.hypotheses import (
    exponent_gap,
    exponents_at_least,
    hypothesis,
    is_of_quanta,
    nonzero,
    positive,
    product_in_range,
    sum_in_range,
    within_factor_two,
)
from mcfsim.theorems.logic import (
    LARGEST,
    SMALLEST_NORMAL,
    AllOf,
    Exponent,
    Iff,
    IsValue,
    OfFormat,
    Result,
    Ulp,
    Word,
    equal,
)
from mcfsim.theorems.operands import value
from mcfsim.theorems.statement import EVERY_MODE, FAITHFUL, Scaling, Theorem

A, B, X, Y = map(value, "abxy")
PAIR = (A, B)

DEKKER = "Dekker, Numer. Math. 18, 1971"
BOLDO_DAUMAS = "Boldo, Daumas, ARITH 2003"


# -- one operation ------------------------------------------------------------------------------------------
def add(ar: Arithmetic, a: Value, b: Value) -> Value:
    """Return ``a + b``, rounded."""
    return ar.add(a, b)


def subtract(ar: Arithmetic, a: Value, b: Value) -> Value:
    """Return ``a - b``, rounded."""
    return ar.sub(a, b)


def multiply(ar: Arithmetic, a: Value, b: Value) -> Value:
    """Return ``a b``, rounded."""
    return ar.mul(a, b)


def divide(ar: Arithmetic, y: Value, x: Value) -> Value:
    """Return ``x / y``, rounded; the divisor comes first, as the operand with few exponents in a core."""
    return ar.div(x, y)


def root(ar: Arithmetic, x: Value) -> Value:
    """Return the square root, rounded."""
    return ar.sqrt(x)


# -- claims and hypotheses ----------------------------------------------------------------------------------
_A, _B, _X, _Y = map(Word, "abxy")
S, P, Q = Result(0, "s"), Result(0, "p"), Result(0, "q")
_OF_SUM, _OF_PRODUCT = _A + _B - S, _A * _B - P
#: Products of operands with at least this sum of exponents have no bit below the smallest number.
_UNDER = OfFormat("emin + p - 1", lambda fmt, _: fmt.emin + fmt.precision - 1)
#: The largest number, squared.
_SQUARE = OfFormat("max^2", lambda fmt, _: fmt.max**2)

EXACT = claim(equal(S, _A - _B))
SUM = claim(IsValue(_OF_SUM))
NEAREST_SUM = claim(
    AllOf((IsValue(_OF_SUM), *(abs(_OF_SUM) <= most for most in (Ulp(S) * Fraction(1, 2), abs(_A), abs(_B)))))
)
PRODUCT = claim(IsValue(_OF_PRODUCT))
QUOTIENT = claim(IsValue(_X - Q * _Y))
ROOT = claim(IsValue(_X - S * S))

SUM_IN_RANGE = sum_in_range("a", "b")
PRODUCT_IN_RANGE = product_in_range("a", "b")
LARGE_PRODUCT = hypothesis(exponents_at_least(_A, _B))
QUOTIENT_IN_RANGE = hypothesis(abs(_X) <= LARGEST * abs(_Y))
NORMAL_QUOTIENT = hypothesis(abs(Q) >= SMALLEST_NORMAL)
LARGE_QUOTIENT = hypothesis(exponents_at_least(_Y, Q))
LARGE_ROOT = hypothesis(2 * Exponent(S) >= _UNDER)
NORMAL_ROOT = hypothesis(S >= SMALLEST_NORMAL)
ROOT_IN_RANGE = hypothesis(_X <= _SQUARE)


# -- counterexamples ----------------------------------------------------------------------------------------
def _exact_product(fmt: Format, _: Rounding) -> Iterator[Case]:
    """Yield powers of two with an exact product, and with exponents as near to the bound as possible."""
    least = quantum(fmt)
    low, high = max(2 * least, least), min(fmt.emin + fmt.precision - 2, fmt.emax, 2 * fmt.emax)
    for total in nearest_to(high, low, high):
        yield factors(1, 1, total)


def _odd_remainder(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield 3 as divisor of 1 or 5, scaled so that the last bit of the remainder is below all numbers.

    ``2**(p+1) / 3``, or toward zero ``5 2**(p-1) / 3`` if p is even, rounds to an odd integer Q. So the
    remainder, 1 or -1, is odd in units of the product of both ulps. Toward zero with p = 2 it is 2.
    """
    p, mode, least = fmt.precision, rounding.mode, quantum(fmt)
    above = p % 2 == 0  # whether the odd one of the two neighbours of the quotient is the upper one
    sign = -1 if mode is (Mode.DOWN if above else Mode.UP) else 1
    dividend, shift = (5, p - 1) if mode is Mode.TOWARD_ZERO and above and p > 2 else (1, p + 1)
    spare = int(mode is Mode.TOWARD_ZERO and p == 2)
    # The sum of the exponents of the quotient's ulp and the divisor's.
    for total in nearest_to(least - 1 - spare, max(2 * least, least - shift), least - 1 - spare):
        of_quotient = max(least, min(fmt.emax - p, total // 2))
        yield 3 * power(total - of_quotient), sign * dividend * power(total + shift)


def _directed_root(fmt: Format, rounding: Rounding) -> Iterator[Case]:
    """Yield a number whose root is rounded by nearly an ulp to an odd integer S, up to a power of two.

    The root of ``2**p (2**p - 3)`` rounds up to ``S = 2**p - 1``, with a remainder of ``2**p + 1``. That of
    ``2**p (2**p - 4)`` rounds down to ``2**p - 3``, with ``2**(p+1) - 9``. Both are odd and above ``2**p``.
    """
    p, upward = fmt.precision, rounding.mode in (Mode.UP, Mode.TO_ODD)
    if p < (3 if upward else 4):
        return
    low = max(fmt.emin + 1, 2 * fmt.emin - p + 2)
    high = min(fmt.emax - p + 1, 2 * fmt.emax - p + 1)
    for shift in nearest_to(-p, low + (low - p) % 2, high - (high - p) % 2):
        yield ((2**p - (3 if upward else 4)) * power(shift),)


#: What the statements about one operation have in common.
about_sums = partial(Theorem, algorithm=add, operands=PAIR, scaling=Scaling.COMMON)
_about_products = partial(Theorem, algorithm=multiply, operands=PAIR, modes=EVERY_MODE, scaling=Scaling.EACH)
_about_quotients = partial(_about_products, algorithm=divide, operands=(Y, X), claim=QUOTIENT)
_about_roots = partial(
    Theorem,
    algorithm=root,
    operands=(X,),
    claim=ROOT,
    where=(positive("x"), NORMAL_ROOT, LARGE_ROOT, ROOT_IN_RANGE),
)

THEOREMS = (
    about_sums(
        "sterbenz",
        algorithm=subtract,
        claim=EXACT,
        where=(within_factor_two("a", "b"),),
        source="Sterbenz, Floating-Point Computation, 1974, Theorem 4.3.1",
        modes=EVERY_MODE,
        gaps=lambda p: (-1, 1),
    ),
    about_sums(
        "add_error_representable",
        claim=NEAREST_SUM,
        where=(SUM_IN_RANGE,),
        source=f"{DEKKER}; with subnormal numbers: {BOLDO_DAUMAS}",
    ),
    about_sums(
        "add_error_representable_faithful",
        claim=SUM,
        where=(exponent_gap("a", "b"), SUM_IN_RANGE),
        source="the error is a multiple of the smaller ulp, and less than ulp(s)",
        modes=FAITHFUL,
        gaps=lambda p: (-p, p),
    ),
    about_sums(
        "add_error_representable_wider_gap",
        claim=SUM,
        where=(exponent_gap("a", "b", 1), SUM_IN_RANGE),
        source="shows that the gap of add_error_representable_faithful is the largest",
        modes=FAITHFUL,
        holds=False,
        witnesses=beyond_the_gap,
        gaps=lambda p: (-p - 1, p + 1),
    ),
    _about_products(
        "prod_error_representable",
        claim=claim(Iff(PRODUCT.said, is_of_quanta("a", "b"))),
        where=(PRODUCT_IN_RANGE,),
        source=f"the condition as sufficient: {BOLDO_DAUMAS}",
    ),
    _about_products(
        "prod_error_exponents_sufficient",
        claim=PRODUCT,
        where=(LARGE_PRODUCT, PRODUCT_IN_RANGE),
        source=BOLDO_DAUMAS,
    ),
    _about_products(
        "prod_error_exponents_iff",
        claim=claim(Iff(PRODUCT.said, LARGE_PRODUCT.said)),
        where=(nonzero("a", "b"), PRODUCT_IN_RANGE),
        source="often said; significands that end in zeros refute it",
        holds=False,
        witnesses=_exact_product,
    ),
    _about_quotients(
        "div_remainder",
        where=(NORMAL_QUOTIENT, LARGE_QUOTIENT, QUOTIENT_IN_RANGE),
        source=f"Bohlender, Walter, Kornerup, Matula, ARITH 1991; {BOLDO_DAUMAS}",
    ),
    _about_quotients(
        "div_remainder_any",
        where=(NORMAL_QUOTIENT, QUOTIENT_IN_RANGE),
        source=f"{BOLDO_DAUMAS}, on why exponents are bounded below",
        holds=False,
        witnesses=_odd_remainder,
    ),
    _about_roots("sqrt_remainder", source=BOLDO_DAUMAS),
    _about_roots(
        "sqrt_remainder_directed",
        source=f"{BOLDO_DAUMAS}, on why the root is rounded to nearest",
        modes=FAITHFUL,
        holds=False,
        witnesses=_directed_root,
    ),
)
