"""Sums of many numbers, and dot products: recursive, compensated, and in two words.

Terms are a tuple of values, which are added elementwise: arrays that broadcast, or numbers. An array is
summed along its first axis as ``tuple(x)``. Each function takes the arithmetic first and runs on any of them.

In the bounds, s is the exact sum of the n terms, S that of their magnitudes, ``u = 2**-p``, and
``gamma(n) = n u / (1 - n u)``. They suppose rounding to nearest, and that no partial sum overflows; sums may
underflow gradually. The smaller the precision, the sooner n u exceeds 1, and the bounds of `neumaier_sum`,
`sum_k` and `dot2` say nothing any more: in bfloat16 from 256 terms on. Nor are these sums accurate then, for
the errors are themselves summed recursively. `kahan_sum` and `dw_sum` are.
"""

from __future__ import annotations

from mcfsim.checks.arguments import check_int
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
        Any; it may round stochastically.
    x : tuple of n values
        NaN, infinities and overflow have the consequences of the additions.

    Returns
    -------
    value
        Off by at most ``(n - 1) u S``, for every n.

    Raises
    ------
    TypeError, ValueError
        If x is no tuple of values, or empty.

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
    """Add terms, each corrected by what the last addition got wrong. 4 (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity, NaN or overflow makes c NaN, and so s with the next term.

    Returns
    -------
    s, c : value
        The sum s is off by at most ``(2 u + O(n u**2)) S``; c is what the last addition put into s too much,
        exactly if the sum so far was the larger one. Of one term c is 0.0.

    Raises
    ------
    TypeError, ValueError
        If x is no tuple of values, or empty.

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
    """Add terms to a double word. 10 (n - 1) operations, or 7 (n - 1) if ordered.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; precision at least 3.
    x : tuple of n values
        An infinity, NaN or overflow makes both words NaN.
    ordered : bool, optional
        Whether each addition begins with Fast2Sum, as Collage's Grow does. It gives the same bits as long as
        no term exceeds the sum so far in magnitude; elsewhere the bound does not hold, see `dw_plus_fp`.

    Returns
    -------
    high, low : value
        A double word, off by at most ``((1 + 2 u**2)**(n - 1) - 1) S``, that is about ``2 n u**2 S``. Of one
        term low is 0.0.

    Raises
    ------
    TypeError, ValueError
        If x is no tuple of values, or empty.

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
    """Add terms, and the errors of these additions, and then both. 7 (n - 1) operations.

    Neumaier's comparison of magnitudes only finds the order that Fast2Sum needs: with 2Sum it is Sum2 of
    Ogita, Rump and Oishi, which is `sum_k` for k = 2.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity, NaN or overflow gives NaN, unless n = 1.

    Returns
    -------
    value
        For n u < 1 off by at most ``u |s| + gamma(n - 1)**2 S``. For more terms the sum of the errors stops
        growing, and the result can be as bad as that of `recursive_sum`.

    Raises
    ------
    TypeError, ValueError
        If x is no tuple of values, or empty.

    References
    ----------
    Neumaier, Z. Angew. Math. Mech. 54, 1974. Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm
    4.4, Proposition 4.5.
    """
    return sum_k(ar, x, 2)


def sum_k(ar: Arithmetic, x: Terms, k: int) -> Value:
    """Add terms after k - 1 passes that replace them by a sum and its errors. (6 k - 5) (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        An infinity, NaN or overflow gives NaN, unless n = 1 or k = 1.
    k : int
        At least 1; with 1 it is `recursive_sum`, with 2 `neumaier_sum`.

    Returns
    -------
    value
        For k >= 3 and 4 n u <= 1 off by at most ``(u + 3 gamma(n - 1)**2) |s| + gamma(2 n - 2)**k S``.

    Raises
    ------
    TypeError, ValueError
        If x is no tuple of values, or empty, or k is no int, or less than 1.

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
    """Add products, and the errors of products and additions, and then both. 10 n - 7 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : tuples of n values
        An infinity, NaN or overflow gives NaN.

    Returns
    -------
    value
        Let s be the exact dot product and S that of the magnitudes. For n u < 1, and if each product is a
        multiple of the smallest subnormal number, it is off by at most ``u |s| + gamma(n)**2 S``.

    Raises
    ------
    TypeError, ValueError
        If x or y is no tuple of values, or empty, or they differ in length.

    References
    ----------
    Ogita, Rump, Oishi, SIAM J. Sci. Comput. 26(6), 2005, Algorithm 5.3, Proposition 5.5; here the products'
    errors come from a fused multiply-add.
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
