"""Sums and dot products beside those of `mcfsim.multiword.summation`: pairwise, doubly compensated, fused.

Terms are a tuple of values, as there. In all files of this folder, a tuple that is empty or differs in length
from its partner raises ValueError, and anything but a tuple of values raises TypeError.

Functions with an option `accumulator` compute what all values share (a sum or mean, its root or logarithm) in
this second format, which must have the same carrier as the arithmetic's. Values are rounded into it first;
what they share is rounded into their format before it is combined with them. By default both formats are the
same. With two, bounds hold with the u of the accumulator for what it computes, and one u of the values'
format besides.

In the bounds, s is the exact sum of the n terms, S the sum of their magnitudes, ``u = 2**-p``, and
``gamma(k) = k u / (1 - k u)`` with k u < 1. They assume rounding to nearest, without overflow, and without
underflow of products and quotients. "To first order" leaves out terms of order u**2. Operations are counted
without changes of sign.
"""

from __future__ import annotations

from typing import Any

from mcfsim.formats import Format, get_format
from mcfsim.multiword.shewchuk import check_parts
from mcfsim.multiword.summation import recursive_sum
from mcfsim.protocol import Arithmetic, Value, straight_line

Terms = tuple[Value, ...]


def check_tuples(**given: Any) -> int:
    """Return the common length of tuples of values.

    Raises
    ------
    TypeError, ValueError
        If one is not a tuple of values or is empty, or if they differ in length.
    """
    for name, x in given.items():
        check_parts(x, name)
    lengths = {name: len(x) for name, x in given.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length} values" for name, length in lengths.items())
        raise ValueError(f"{said}: they go together one by one")
    return next(iter(lengths.values()))


def in_accumulator(ar: Arithmetic, accumulator: Format | str | None, *terms: Terms) -> tuple[Any, ...]:
    """Return the arithmetic of an accumulator's format, or `ar` if it is None, and terms brought into it."""
    if accumulator is None:
        return ar, *terms
    rounding: Any = ar.rounding  # None for an exact arithmetic, which is the same in every format
    wide = ar.like(get_format(accumulator), rounding)
    return wide, *(tuple(map(wide.round, x)) for x in terms)


def of_values(ar: Arithmetic, wide: Arithmetic, x: Value) -> Value:
    """Return a value of the accumulator's arithmetic in the format of the values."""
    return x if wide is ar else ar.round(x)


@straight_line
def pairwise_sum(ar: Arithmetic, x: Terms) -> Value:
    """Add the sums of both halves of the terms, each computed in the same way. n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        If n is odd, the first half is the longer one.

    Returns
    -------
    value
        Off by at most ``gamma(ceil(log2 n)) S``. It is inaccurate only where S is much larger than |s|.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 4.1 and (4.6).
    """
    check_tuples(x=x)
    return _tree(ar, x)


def _tree(ar: Arithmetic, x: Terms) -> Value:
    half = (len(x) + 1) // 2
    return x[0] if len(x) == 1 else ar.add(_tree(ar, x[:half]), _tree(ar, x[half:]))


@straight_line
def doubly_compensated_sum(ar: Arithmetic, x: Terms) -> Value:
    """Add terms that are sorted by magnitude, with two corrections each. 10 (n - 1) operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
        In decreasing order of magnitude: ``|x[0]| >= |x[1]| >= ...``. Nothing is checked, and terms in
        another order may lose the bound.

    Returns
    -------
    value
        Off by at most ``2 u |s|``, however much cancels, if ``n <= 2**(p - 3)``: up to 32 terms in bfloat16.

    References
    ----------
    Priest, On properties of floating point arithmetics, PhD thesis, Berkeley, 1992, section 4.1. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, Algorithm 4.3.
    """
    check_tuples(x=x)
    s, c = x[0], 0.0
    for term in x[1:]:
        y = ar.add(c, term)
        u = ar.sub(term, ar.sub(y, c))
        t = ar.add(y, s)
        v = ar.sub(y, ar.sub(t, s))
        z = ar.add(u, v)
        s = ar.add(t, z)
        c = ar.sub(z, ar.sub(s, t))
    return s


@straight_line
def recursive_dot(ar: Arithmetic, x: Terms, y: Terms) -> Value:
    """Add products one after another, each rounded. 2 n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x, y : tuples of n values

    Returns
    -------
    value
        Off by at most ``n u S``, for every n, where S is the dot product of the magnitudes.

    References
    ----------
    Jeannerod, Rump, Improved error bounds for inner products in floating-point arithmetic, SIAM J. Matrix
    Anal. Appl. 34(2), 2013. With gamma(n): Higham, 2002, (3.5).
    """
    check_tuples(x=x, y=y)
    return recursive_sum(ar, _products(ar, x, y))


@straight_line
def pairwise_dot(ar: Arithmetic, x: Terms, y: Terms) -> Value:
    """Add rounded products by `pairwise_sum`. 2 n - 1 operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x, y : tuples of n values

    Returns
    -------
    value
        Off by at most ``gamma(ceil(log2 n) + 1) S``, where S is the dot product of the magnitudes.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 3.1.
    """
    check_tuples(x=x, y=y)
    return _tree(ar, _products(ar, x, y))


def _products(ar: Arithmetic, x: Terms, y: Terms) -> Terms:
    return tuple(ar.mul(a, b) for a, b in zip(x, y, strict=True))


@straight_line
def fma_dot(ar: Arithmetic, x: Terms, y: Terms) -> Value:
    """Add products one after another by fused multiply-adds. n operations.

    Parameters
    ----------
    ar : Arithmetic
        Has a fused multiply-add.
    x, y : tuples of n values

    Returns
    -------
    value
        Off by at most ``gamma(n) S``, where S is the dot product of the magnitudes: a product takes part in
        at most n roundings.

    References
    ----------
    The argument is that of Higham, 2002, section 3.1, with one rounding for a product and its addition.
    """
    check_tuples(x=x, y=y)
    total = ar.mul(x[0], y[0])
    for a, b in zip(x[1:], y[1:], strict=True):
        total = ar.fma(a, b, total)
    return total


@straight_line
def difference_of_products(ar: Arithmetic, a: Value, b: Value, c: Value, d: Value) -> Value:
    """Return ``a b - c d`` by Kahan's algorithm: the error of one product is added back. 4 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    a, b, c, d : value

    Returns
    -------
    value
        Off by at most ``2 u |a b - c d|``, however much cancels. The plain formula has no such bound.

    References
    ----------
    Jeannerod, Louvet, Muller, Further analysis of Kahan's algorithm for the accurate computation of 2 x 2
    determinants, Math. Comp. 82, 2013.
    """
    w = ar.mul(c, d)
    e = ar.fma(ar.neg(c), d, w)
    return ar.add(ar.fma(a, b, ar.neg(w)), e)
