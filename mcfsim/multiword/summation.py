"""Sums of many numbers and dot products: recursive, compensated, and in double words.

Terms are a tuple of values, added elementwise: numbers, or arrays that broadcast. Pass an array as
``tuple(x)`` to sum it along its first axis. Each function takes the arithmetic first and runs on any.

In the bounds, s is the exact sum of the n terms, S the sum of their magnitudes, ``u = 2**-p``, and
``gamma(n) = n u / (1 - n u)``. The bounds assume rounding to nearest and no overflow of a partial sum; sums
may underflow gradually. At low precision n u soon exceeds 1, in bfloat16 from 256 terms on. Then the bounds
of `neumaier_sum`, `sum_k` and `dot2` say nothing, and these sums are not accurate: they sum the errors
recursively. `kahan_sum` and `dw_sum` remain accurate.
"""

from __future__ import annotations

from mcfsim.checks import check_int
from mcfsim.eft import two_prod_fma, two_sum
from mcfsim.multiword.double_word import dw_plus_fp
from mcfsim.multiword.shewchuk import check_parts, vec_sum
from mcfsim.protocol import Arithmetic, Value, straight_line

Terms = tuple[Value, ...]


@straight_line
def recursive_sum(ar: Arithmetic, x: Terms) -> Value:
    """Add terms one after another. n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic; it may round stochastically.
    x : tuple of n values
        NaN, infinities and overflow propagate as in the additions.

    Returns
    -------
    value
        Off by at most ``(n - 1) u S``, for every n.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values, or is empty.

    References
    ----------
    Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013.
    """
    check_parts(x, "x")
    total, *rest = x
    for term in rest:
        total = ar.add(total, term)
    return total


@straight_line
def kahan_sum(ar: Arithmetic, x: Terms) -> tuple[Value, Value]:
    """Add terms, each corrected by the rounding error of the last addition. 4 (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity or NaN makes c NaN, an overflow makes it infinite; the next term then makes s NaN.

    Returns
    -------
    s, c : value
        The sum s is off by at most ``(2 u + O(n u**2)) S``. The correction c is the excess that the last
        addition put into s, exactly if the sum so far was the larger operand. For one term c is 0.0.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values, or is empty.

    References
    ----------
    Kahan, Commun. ACM 8(1), 1965. Knuth, The Art of Computer Programming 2, 4.2.2, exercise 19. Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, Algorithm 4.2 and (4.8).
    """
    check_parts(x, "x")
    s, c = x[0], 0.0
    for term in x[1:]:
        y = ar.sub(term, c)
        t = ar.add(s, y)
        c = ar.sub(ar.sub(t, s), y)
        s = t
    return s, c


@straight_line
def dw_sum(ar: Arithmetic, x: Terms, *, ordered: bool = False) -> tuple[Value, Value]:
    """Accumulate terms in a double word. 10 (n - 1) operations, or 7 (n - 1) if ordered.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; precision at least 3.
    x : tuple of n values
        An infinity or NaN makes both words NaN; after an overflow the low word is not finite.
    ordered : bool, optional
        Whether each addition begins with Fast2Sum, as Collage's Grow does. The bits are the same as long as
        no term exceeds the sum so far in magnitude; elsewhere the bound does not hold, see `dw_plus_fp`.

    Returns
    -------
    high, low : value
        A double word, off by at most ``((1 + 2 u**2)**(n - 1) - 1) S``, about ``2 n u**2 S``. For one term
        low is 0.0.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values, or is empty.

    References
    ----------
    For each addition see `dw_plus_fp`.
    """
    check_parts(x, "x")
    total = x[0], 0.0
    for term in x[1:]:
        total = dw_plus_fp(ar, total, term, ordered=ordered)
    return total


def neumaier_sum(ar: Arithmetic, x: Terms) -> Value:
    """Sum the terms, sum the rounding errors separately, and add both sums. 7 (n - 1) operations.

    Neumaier compares magnitudes only to find the order that Fast2Sum needs. With 2Sum his algorithm is Sum2
    of Ogita, Rump and Oishi, which is `sum_k` for k = 2.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity, NaN or overflow gives NaN, unless n = 1 or only the last addition overflows.

    Returns
    -------
    value
        Off by at most ``u |s| + gamma(n - 1)**2 S`` for n u < 1. With more terms the sum of the errors stops
        growing, and the result can be as bad as that of `recursive_sum`.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values, or is empty.

    References
    ----------
    Neumaier, Z. Angew. Math. Mech. 54, 1974. Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm
    4.4, Proposition 4.5.
    """
    return sum_k(ar, x, 2)


def sum_k(ar: Arithmetic, x: Terms, k: int) -> Value:
    """Sum terms recursively after k - 1 passes of `vec_sum` over them. (6 k - 5) (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity, NaN or overflow gives NaN, unless n = 1 or k = 1, or only the last addition overflows.
    k : int
        At least 1. With k = 1 this is `recursive_sum`, with k = 2 `neumaier_sum`.

    Returns
    -------
    value
        Off by at most ``(u + 3 gamma(n - 1)**2) |s| + gamma(2 n - 2)**k S`` for k >= 3 and 4 n u <= 1.

    Raises
    ------
    TypeError, ValueError
        If x is not a tuple of values or is empty, or if k is not an int or is less than 1.

    References
    ----------
    Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 4.8, Proposition 4.10.
    """
    check_int("k", k, 1)
    return ar.evaluate(_sum_k, x, k=k)


def _sum_k(ar: Arithmetic, x: Terms, *, k: int) -> Value:
    for _ in range(k - 1):
        x = vec_sum(ar, x)
    return recursive_sum(ar, x)


@straight_line
def dot2(ar: Arithmetic, x: Terms, y: Terms) -> Value:
    """Return a dot product: sum the products, sum all rounding errors, add both. 10 n - 7 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : tuples of n values
        An infinity, NaN or overflow gives NaN, unless only the last addition overflows.

    Returns
    -------
    value
        Let s be the exact dot product and S that of the magnitudes. The result is off by at most
        ``u |s| + gamma(n)**2 S`` if n u < 1 and each product is a multiple of the smallest subnormal number.

    Raises
    ------
    TypeError, ValueError
        If x or y is not a tuple of values or is empty, or if they differ in length.

    References
    ----------
    Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 5.3, Proposition 5.5. Here a fused
    multiply-add gives the errors of the products.
    """
    check_parts(x, "x")
    check_parts(y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} terms and y has {len(y)}: they go together in pairs")
    total, errors = two_prod_fma(ar, x[0], y[0])
    for a, b in zip(x[1:], y[1:], strict=True):
        product, error = two_prod_fma(ar, a, b)
        total, residual = two_sum(ar, total, product)
        errors = ar.add(errors, ar.add(residual, error))
    return ar.add(total, errors)
