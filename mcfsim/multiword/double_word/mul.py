"""Products of a double word and a number, and of two double words."""

from __future__ import annotations

from mcfsim.eft import fast_two_sum, two_prod_fma
from mcfsim.multiword.double_word.add import DoubleWord, four_words, words
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def dw_times_fp1(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x y`` for a double word and a number, by the most precise algorithm. 10 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The first factor.
    y : value
        The second factor.

    Returns
    -------
    double word
        Off by at most 1.5 u**2 + 4 u**3, for p >= 4.

    References
    ----------
    DWTimesFP1: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 7.
    """
    xh, xl = words(x)
    c, c1 = two_prod_fma(ar, xh, y)
    t, t1 = fast_two_sum(ar, c, ar.mul(xl, y))
    return fast_two_sum(ar, t, ar.add(t1, c1))


@straight_line
def dw_times_fp2(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x y`` for a double word and a number, with an fma only for the first error. 7 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The first factor.
    y : value
        The second factor.

    Returns
    -------
    double word
        Off by at most 3 u**2, for p >= 3.

    References
    ----------
    DWTimesFP2: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 8.
    """
    xh, xl = words(x)
    c, c1 = two_prod_fma(ar, xh, y)
    return fast_two_sum(ar, c, ar.add(c1, ar.mul(xl, y)))


@straight_line
def dw_times_fp3(ar: Arithmetic, x: DoubleWord, y: Value) -> DoubleWord:
    """Return ``x y`` for a double word and a number, by the shortest algorithm. 6 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        The first factor.
    y : value
        The second factor.

    Returns
    -------
    double word
        Off by at most 2 u**2, for p >= 3.

    References
    ----------
    DWTimesFP3: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 9, Theorem 4.3. It is Collage's
    Scaling: Yu et al., ICML 2024.
    """
    xh, xl = words(x)
    c, c1 = two_prod_fma(ar, xh, y)
    return fast_two_sum(ar, c, ar.fma(xl, y, c1))


@straight_line
def dw_times_dw1(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x y``, symmetric in x and y. 9 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The factors; the product of their low words is omitted.

    Returns
    -------
    double word
        Off by less than 5 u**2, for p >= 6.

    References
    ----------
    DWTimesDW1: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 10; bound of Muller, Rideau, ACM
    TOMS 48(1), 2022, Theorem 2.6.
    """
    xh, xl, yh, yl = four_words(x, y)
    c, c1 = two_prod_fma(ar, xh, yh)
    c2 = ar.add(ar.mul(xh, yl), ar.mul(xl, yh))
    return fast_two_sum(ar, c, ar.add(c1, c2))


@straight_line
def dw_times_dw2(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x y`` by the shortest algorithm. 8 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The factors; the product of their low words is omitted. Exchanging them may change the result.

    Returns
    -------
    double word
        Off by less than 5 u**2, for p >= 5.

    References
    ----------
    DWTimesDW2: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 11; bound of Muller, Rideau, ACM
    TOMS 48(1), 2022, Theorem 2.7. With its factors exchanged it is Collage's Mul: Yu et al., ICML 2024.
    """
    xh, xl, yh, yl = four_words(x, y)
    c, c1 = two_prod_fma(ar, xh, yh)
    c2 = ar.fma(xl, yh, ar.mul(xh, yl))
    return fast_two_sum(ar, c, ar.add(c1, c2))


@straight_line
def dw_times_dw3(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x y`` with the product of the low words, by the most precise algorithm. 9 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x, y : double word
        The factors. Exchanging them may change the result.

    Returns
    -------
    double word
        Off by less than 4 u**2, for p >= 5.

    References
    ----------
    DWTimesDW3: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 12; bound of Muller, Rideau, ACM
    TOMS 48(1), 2022, Theorem 2.8.
    """
    xh, xl, yh, yl = four_words(x, y)
    c, c1 = two_prod_fma(ar, xh, yh)
    t = ar.fma(xh, yl, ar.mul(xl, yl))
    c2 = ar.fma(xl, yh, t)
    return fast_two_sum(ar, c, ar.add(c1, c2))
