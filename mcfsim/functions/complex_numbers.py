"""Products and quotients of complex numbers, each a pair (real part, imaginary part) of values.

A bound "of the modulus" bounds ``|found - z|`` relative to the modulus of the exact result z: a single part
may have no correct digit. For u and gamma see `reductions`; the assumptions are those stated there.
"""

from __future__ import annotations

from typing import Any

from mcfsim.functions.reductions import check_tuples, difference_of_products
from mcfsim.protocol import Arithmetic, Value, straight_line

Complex = tuple[Value, Value]


def _check_complex(**given: Any) -> None:
    if (count := check_tuples(**given)) != 2:
        raise ValueError(f"{', '.join(given)}: a complex number is a pair of values, not {count}")


@straight_line
def complex_product(ar: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return x y from four rounded products. 6 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, y : pairs of values

    Returns
    -------
    pair of values
        Off by at most ``sqrt(5) u`` of the modulus, for a precision of at least 5. A part in which two
        products cancel may have no correct digit.

    References
    ----------
    Brent, Percival, Zimmermann, Error bounds on complex floating-point multiplication, Math. Comp. 76, 2007.
    """
    _check_complex(x=x, y=y)
    (a, b), (c, d) = x, y
    return ar.sub(ar.mul(a, c), ar.mul(b, d)), ar.add(ar.mul(a, d), ar.mul(b, c))


@straight_line
def complex_product_fma(ar: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return x y with both parts computed by `difference_of_products`. 8 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : pairs of values

    Returns
    -------
    pair of values
        The relative error of each part is at most 2 u; so the error is within 2 u of the modulus, too.

    References
    ----------
    Jeannerod, Kornerup, Louvet, Muller, Error bounds on complex floating-point multiplication with an FMA,
    Math. Comp. 86, 2017.
    """
    _check_complex(x=x, y=y)
    (a, b), (c, d) = x, y
    return difference_of_products(ar, a, c, b, d), difference_of_products(ar, a, d, ar.neg(b), c)


@straight_line
def complex_quotient(ar: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return x / y by the formula with ``|y|**2`` as divisor. 11 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x, y : pairs of values
        The square of a part of y overflows, or underflows, long before y does: in float16 beyond 255.

    Returns
    -------
    pair of values
        Off by at most ``sqrt(2) gamma(4)`` of the modulus.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, Lemma 3.5.
    """
    _check_complex(x=x, y=y)
    (a, b), (c, d) = x, y
    square = ar.add(ar.mul(c, c), ar.mul(d, d))
    real = ar.add(ar.mul(a, c), ar.mul(b, d))
    imaginary = ar.sub(ar.mul(b, c), ar.mul(a, d))
    return ar.div(real, square), ar.div(imaginary, square)


@straight_line
def smith_quotient(ar: Arithmetic, x: Complex, y: Complex) -> Complex:
    """Return x / y with the ratio of the smaller part of y to the larger one: Smith's algorithm.

    Parameters
    ----------
    ar : Arithmetic
        Has `choose`, and therefore gradual underflow.
    x, y : pairs of values
        If y is zero, both parts of the result are NaN.

    Returns
    -------
    pair of values
        Off by a few u of the modulus; no square overflows. If the ratio underflows to zero, a term is lost,
        which may matter.

    References
    ----------
    Smith, Algorithm 116: Complex division, Commun. ACM 5(8), 1962. Baudin, R. L. Smith, A robust complex
    division in Scilab, arXiv:1210.4539, 2012, on its failures.
    """
    _check_complex(x=x, y=y)
    (a, b), (c, d) = x, y
    order = ar.sub(ar.abs(c), ar.abs(d))
    large, small = ar.choose(order, c, d), ar.choose(order, d, c)
    with_large, with_small = ar.choose(order, a, b), ar.choose(order, b, a)
    ratio = ar.div(small, large)
    divisor = ar.add(large, ar.mul(small, ratio))
    real = ar.div(ar.add(with_large, ar.mul(with_small, ratio)), divisor)
    imaginary = ar.div(ar.sub(with_small, ar.mul(with_large, ratio)), divisor)
    return real, ar.choose(order, imaginary, ar.neg(imaginary))
