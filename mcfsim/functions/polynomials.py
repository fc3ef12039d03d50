"""Polynomials: their values by several schemes, their products, and the roots of a quadratic one.

Coefficients are a tuple of values, from that of the highest power down to the constant term, as for
``numpy.polyval``; n is the degree. In the bounds, ``q = sum(|a[i]| |x|**i)`` over the coefficients a[i] of
the powers x**i; the condition number of the value is q / |p(x)|. For u and gamma see `reductions`.
"""

from __future__ import annotations

from mcfsim.eft import two_prod_fma, two_sum
from mcfsim.functions.reductions import Terms, check_tuples, difference_of_products
from mcfsim.multiword.summation import recursive_sum
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def horner(ar: Arithmetic, x: Value, coefficients: Terms) -> Value:
    """Evaluate a polynomial by Horner's scheme, with products that are rounded. 2 n operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value
    coefficients : tuple of n + 1 values

    Returns
    -------
    value
        Off by at most ``gamma(2 n) q``. Near a root q is much larger than |p(x)|, and no digit may be
        correct.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 5.1, (5.3).
    """
    check_tuples(coefficients=coefficients)
    total, *rest = coefficients
    for coefficient in rest:
        total = ar.add(ar.mul(total, x), coefficient)
    return total


@straight_line
def compensated_horner(ar: Arithmetic, x: Value, coefficients: Terms) -> Value:
    """Evaluate by Horner's scheme, the polynomial of its rounding errors too, and add. 11 n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : value
    coefficients : tuple of n + 1 values

    Returns
    -------
    value
        Off by at most ``u |p(x)| + gamma(2 n)**2 q``, as if computed with twice the precision and rounded. It
        is inaccurate where the condition number exceeds about 1 / u.

    References
    ----------
    Graillat, Langlois, Louvet, Compensated Horner scheme, Research report 04, Universite de Perpignan, 2005.
    Langlois, Louvet, How to ensure a faithful polynomial evaluation with the compensated Horner algorithm,
    ARITH 2007. Here a fused multiply-add gives the errors of the products.
    """
    check_tuples(coefficients=coefficients)
    total, *rest = coefficients
    errors: list[Value] = []
    for coefficient in rest:
        product, of_product = two_prod_fma(ar, total, x)
        total, of_sum = two_sum(ar, product, coefficient)
        errors.append(ar.add(of_product, of_sum))
    return ar.add(total, horner(ar, x, tuple(errors))) if errors else total


@straight_line
def estrin(ar: Arithmetic, x: Value, coefficients: Terms) -> Value:
    """Evaluate a polynomial in pairs of coefficients, pairs of pairs, and so on: Estrin's scheme.

    Its depth grows as log2 n, where that of Horner's scheme grows as n.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value
        Squared up to the highest power of two that is at most n: this may overflow or underflow.
    coefficients : tuple of n + 1 values

    Returns
    -------
    value
        Like that of `horner`, inaccurate where q is much larger than |p(x)|.

    References
    ----------
    Estrin, Organization of computer systems: the fixed plus variable structure computer, Western Joint
    Computer Conference, 1960. Muller, Elementary Functions, 3rd ed., 2016, on evaluation schemes.
    """
    check_tuples(coefficients=coefficients)
    parts, power = coefficients[::-1], x
    while len(parts) > 1:
        pairs = [ar.add(parts[i], ar.mul(parts[i + 1], power)) for i in range(0, len(parts) - 1, 2)]
        parts = (*pairs, *parts[2 * len(pairs) :])
        if len(parts) > 1:
            power = ar.mul(power, power)
    return parts[0]


@straight_line
def polynomial_from_roots(ar: Arithmetic, x: Value, roots: Terms) -> Value:
    """Evaluate the product of ``x - root`` over n roots, one after another. 2 n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : value
    roots : tuple of n values
        Exact roots: the error of a root that was rounded is not part of the bound.

    Returns
    -------
    value
        Off by at most ``gamma(2 n - 1) |p(x)|``, near a root too. It is inaccurate only where a product
        overflows or underflows.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, Lemma 3.1.
    """
    check_tuples(roots=roots)
    product, *rest = (ar.sub(x, root) for root in roots)
    for factor in rest:
        product = ar.mul(product, factor)
    return product


@straight_line
def polynomial_product(ar: Arithmetic, a: Terms, b: Terms) -> Terms:
    """Return the coefficients of the product of two polynomials: a convolution.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    a, b : tuples of values
        The coefficients of the factors.

    Returns
    -------
    tuple of value
        One fewer than a and b have together. A coefficient that sums m products is off by at most m u times
        the sum of their magnitudes.

    References
    ----------
    Each coefficient is a dot product: Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013.
    """
    check_tuples(a=a)
    check_tuples(b=b)
    found = []
    for k in range(len(a) + len(b) - 1):
        pairs = [(i, k - i) for i in range(len(a)) if 0 <= k - i < len(b)]
        found.append(recursive_sum(ar, tuple(ar.mul(a[i], b[j]) for i, j in pairs)))
    return tuple(found)


@straight_line
def quadratic_roots(ar: Arithmetic, a: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """Return both roots of ``a x**2 + b x + c`` by the textbook formula.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    a, b, c : value
        If a is zero or the discriminant is negative, the roots are NaN.

    Returns
    -------
    plus, minus : value
        ``(-b + sqrt(b**2 - 4 a c)) / (2 a)``, and the same with a minus sign. Where b**2 is much larger than
        4 |a c|, one of them is lost by cancellation; where b**2 is near 4 a c, both lose half their digits.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 1.8.
    """
    root = ar.sqrt(_discriminant(ar, a, b, c))
    twice = ar.mul(2.0, a)
    return ar.div(ar.sub(root, b), twice), ar.div(ar.neg(ar.add(b, root)), twice)


@straight_line
def stable_quadratic_roots(
    ar: Arithmetic, a: Value, b: Value, c: Value, *, fused: bool = False
) -> tuple[Value, Value]:
    """Return both roots of ``a x**2 + b x + c``, the smaller one from their product: no cancellation.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; for ``fused`` it has a fused multiply-add.
    a, b, c : value
        If a is zero or the discriminant is negative, the roots are NaN; if b and c are both zero, one root is
        NaN.
    fused : bool, optional
        Whether the discriminant is computed by `difference_of_products`.

    Returns
    -------
    plus, minus : value
        In the order of `quadratic_roots`. If fused, each has a relative error of at most 4 u, to first order.
        Otherwise both lose half their digits where b**2 is near 4 a c.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 1.8. Kahan, On the cost of
    floating-point computation without extra-precise arithmetic, 2004, on the discriminant.
    """
    root = ar.sqrt(_discriminant(ar, a, b, c, fused=fused))
    q = ar.add(ar.abs(b), root)
    far = ar.div(q, ar.mul(2.0, a))
    near = ar.div(ar.mul(2.0, c), q)
    return ar.choose(b, ar.neg(near), far), ar.choose(b, ar.neg(far), near)


def _discriminant(ar: Arithmetic, a: Value, b: Value, c: Value, *, fused: bool = False) -> Value:
    four = ar.mul(4.0, a)
    if fused:
        return difference_of_products(ar, b, b, four, c)
    return ar.sub(ar.mul(b, b), ar.mul(four, c))
