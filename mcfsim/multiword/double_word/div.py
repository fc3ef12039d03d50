"""Quotients of a double word by a number or another double word, and the square root of a double word."""

from __future__ import annotations

from collections.abc import Callable

from mcfsim.eft import fast_two_sum, two_prod_fma, two_sum
from mcfsim.multiword.double_word.add import DoubleWord, dw_plus_fp, four_words, words
from mcfsim.multiword.double_word.mul import dw_times_dw3, dw_times_fp1, dw_times_fp3
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def dw_div_fp1(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x / y`` for a number y: the longer form of `dw_div_fp2`. 16 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The dividend.
    y : value
        The divisor, not zero.

    Returns
    -------
    double word
        Off by at most 3.5 u**2, for p >= 4; bit for bit the result of `dw_div_fp2`.

    References
    ----------
    DWDivFP1: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 13.
    """
    xh, xl = words(x)
    th = ar.div(xh, y)
    g, h = two_prod_fma(ar, th, y)
    d, d1 = two_sum(ar, xh, ar.neg(g))
    d2 = ar.sub(xl, h)
    d = ar.add(d, ar.add(d1, d2))
    return fast_two_sum(ar, th, ar.div(d, y))


@straight_line
def dw_div_fp2(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x / y`` for a number y. 10 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The dividend.
    y : value
        The divisor, not zero.

    Returns
    -------
    double word
        Off by at most 3.5 u**2, for p >= 4.

    References
    ----------
    DWDivFP2: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 14.
    """
    xh, xl = words(x)
    th = ar.div(xh, y)
    g, h = two_prod_fma(ar, th, y)
    d = ar.sub(xh, g)  # exact
    d = ar.add(d, ar.sub(xl, h))
    return fast_two_sum(ar, th, ar.div(d, y))


@straight_line
def dw_div_fp3(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x / y`` for a number y: as short as `dw_div_fp2`, and more precise. 10 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The dividend.
    y : value
        The divisor, not zero.

    Returns
    -------
    double word
        Off by at most 3 u**2, for p >= 4.

    References
    ----------
    DWDivFP3: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 15, Theorem 6.2.
    """
    xh, xl = words(x)
    th = ar.div(xh, y)
    g, h = two_prod_fma(ar, th, y)
    d = ar.sub(ar.sub(xh, g), h)  # exact, both
    return fast_two_sum(ar, th, ar.div(ar.add(d, xl), y))


@straight_line
def dw_div_dw1(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x / y``: the longer form of `dw_div_dw2`. 24 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend, and the divisor, not zero.

    Returns
    -------
    double word
        Off by at most 15 u**2 + 56 u**3, for p >= 7; bit for bit the result of `dw_div_dw2`.

    References
    ----------
    DWDivDW1: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 16.
    """
    xh, xl, yh, _ = four_words(x, y)
    th = ar.div(xh, yh)
    r, e = dw_times_fp1(ar, y, th)
    d, v = two_sum(ar, xh, ar.neg(r))
    v = ar.add(ar.sub(v, e), xl)
    return fast_two_sum(ar, th, ar.div(ar.add(d, v), yh))


@straight_line
def dw_div_dw2(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x / y``. 18 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend, and the divisor, not zero.

    Returns
    -------
    double word
        Off by at most 15 u**2 + 56 u**3, for p >= 7.

    References
    ----------
    DWDivDW2: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 17, Theorem 7.1.
    """
    return _div_dw2(ar, x, y, dw_times_fp1)


@straight_line
def dw_div_dw2_fma(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x / y``: `dw_div_dw2` with the shorter product `dw_times_fp3`. 14 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend, and the divisor, not zero.

    Returns
    -------
    double word
        The theorem does not cover this variant. Its largest error may exceed that of `dw_div_dw2`: for p = 8
        it is 7.52 u**2 instead of 7.41 u**2. The bound of `dw_div_dw2` has held wherever it was tried.

    References
    ----------
    Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 17, with Algorithm 9 in place of Algorithm 7.
    """
    return _div_dw2(ar, x, y, dw_times_fp3)


def _div_dw2(ar: Arithmetic, x: DoubleWord, y: DoubleWord, times: Callable[..., DoubleWord]) -> DoubleWord:
    """Divide as `dw_div_dw2` does, with the given product of a double word and a number."""
    xh, xl, yh, _ = four_words(x, y)
    th = ar.div(xh, yh)
    r, e = times(ar, y, th)
    d = ar.sub(xh, r)  # exact
    d = ar.add(d, ar.sub(xl, e))
    return fast_two_sum(ar, th, ar.div(d, yh))


@straight_line
def dw_div_dw3(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x / y`` by the reciprocal of y, found with one Newton step. 31 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend, and the divisor, not zero; its reciprocal must neither overflow nor underflow.

    Returns
    -------
    double word
        Off by at most 9.8 u**2, for p >= 14; for smaller p the bound is not proved.

    References
    ----------
    DWDivDW3: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 18.
    """
    yh, yl = words(y)
    th = ar.div(1.0, yh)
    r = ar.fma(ar.neg(yh), th, 1.0)  # exact
    e = fast_two_sum(ar, r, ar.neg(ar.mul(yl, th)))
    reciprocal = dw_plus_fp(ar, dw_times_fp3(ar, e, th), th)
    return dw_times_dw3(ar, x, reciprocal)


@straight_line
def sqrt_dw(ar: Arithmetic, x: DoubleWord) -> DoubleWord:
    """Return the square root of ``x``. 8 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        Positive. The published algorithm tests for zero first. A straight line cannot, and divides 0 by 0:
        for x = 0 both words are NaN, and an arithmetic without NaN raises ZeroDivisionError.

    Returns
    -------
    double word
        Off by at most 25/8 u**2.

    References
    ----------
    SQRTDWtoDW: Lefevre, Louvet, Muller, Picot, Rideau, ACM TOMS 49(1), 2023, Algorithm 8.
    """
    xh, xl = words(x)
    s = ar.sqrt(xh)
    r = ar.fma(ar.neg(s), s, xh)  # exact
    t = ar.div(ar.add(xl, r), ar.add(s, s))
    return fast_two_sum(ar, s, t)
