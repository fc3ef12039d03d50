"""Quotients of a double word by a number, and of two double words."""

from __future__ import annotations

from collections.abc import Callable

from mcfsim.eft import fast_two_sum, two_prod_fma, two_sum
from mcfsim.multiword.double_word.add import dw_plus_fp
from mcfsim.multiword.double_word.mul import dw_times_dw3, dw_times_fp1, dw_times_fp3
from mcfsim.multiword.double_word.words import DoubleWord, words
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def dw_div_fp1(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x / y`` for a number y: the form from which `dw_div_fp2` comes. 16 operations.

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
        Off by at most 3.5 u**2, for p >= 4; bit for bit that of `dw_div_fp2`.

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
    """Return ``x / y``: the form from which `dw_div_dw2` comes. 24 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend and the divisor, which is not zero.

    Returns
    -------
    double word
        Off by at most 15 u**2 + 56 u**3, for p >= 7; bit for bit that of `dw_div_dw2`.

    References
    ----------
    DWDivDW1: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 16.
    """
    xh, xl = words(x)
    yh, _ = words(y)
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
        The dividend and the divisor, which is not zero.

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
        The dividend and the divisor, which is not zero.

    Returns
    -------
    double word
        The theorem does not cover this variant. Its largest error may exceed that of `dw_div_dw2`: for p = 8
        it is 7.52 u**2, and not 7.41 u**2; the bound of `dw_div_dw2` has held wherever it was tried.

    References
    ----------
    Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 17, with Algorithm 9 in place of Algorithm 7.
    """
    return _div_dw2(ar, x, y, dw_times_fp3)


def _div_dw2(ar: Arithmetic, x: DoubleWord, y: DoubleWord, times: Callable[..., DoubleWord]) -> DoubleWord:
    """Divide as `dw_div_dw2` does, with this product of a double word and a number."""
    xh, xl = words(x)
    yh, _ = words(y)
    th = ar.div(xh, yh)
    r, e = times(ar, y, th)
    d = ar.sub(xh, r)  # exact
    d = ar.add(d, ar.sub(xl, e))
    return fast_two_sum(ar, th, ar.div(d, yh))


@straight_line
def dw_div_dw3(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x / y`` by way of the reciprocal of y, with one step of Newton's. 31 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The dividend and the divisor, which is not zero and whose reciprocal neither over- nor underflows.

    Returns
    -------
    double word
        Off by at most 9.8 u**2, for p >= 14; below it the bound is not proved.

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
