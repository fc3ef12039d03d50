"""The double-word type, and sums of a double word and a number or another double word."""

from __future__ import annotations

from typing import Any

from mcfsim.eft import fast_two_sum, two_sum
from mcfsim.protocol import Arithmetic, Value, straight_line

DoubleWord = tuple[Value, Value]


def words(x: Any) -> DoubleWord:
    """Return the high and the low word.

    Raises
    ------
    TypeError
        If x is not a tuple: the elements of an array are not words.
    ValueError
        If the tuple does not have two components.
    """
    if not isinstance(x, tuple):
        raise TypeError(f"a double word is a tuple (high, low), not of type {type(x).__name__}")
    if len(x) != 2:
        raise ValueError(f"a double word is a tuple (high, low), not one of {len(x)} components")
    return x


def four_words(x: Any, y: Any) -> tuple[Value, Value, Value, Value]:
    """Return the words of two double words, the high word of each first."""
    return (*words(x), *words(y))


@straight_line
def dw_plus_fp(ar: Arithmetic, x: DoubleWord, y: Value, *, ordered: bool = False) -> DoubleWord:
    """Return ``x + y`` for a double word and a number. 10 operations, or 7 if ordered.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : double word
        The first summand; ``|low| <= ulp(high) / 2`` suffices.
    y : value
        The second summand.
    ordered : bool, optional
        Whether the first step is Fast2Sum, as in Collage's Grow. It is exact, and the bits are the same, only
        where ``|high| >= |y|`` (or high = 0, or the exponents are in that order). Elsewhere the compensation
        is lost: the error reaches 1.004 u in bfloat16.

    Returns
    -------
    double word
        Off by at most 2 u**2, for p >= 3.

    References
    ----------
    DWPlusFP: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 4, Theorem 2.2. Ordered: Yu et al.,
    Collage, ICML 2024.
    """
    xh, xl = words(x)
    s, e = (fast_two_sum if ordered else two_sum)(ar, xh, y)
    return fast_two_sum(ar, s, ar.add(xl, e))


@straight_line
def sloppy_dw_plus_dw(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x + y``, accurate only if x and y have the same sign. 11 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, y : double word
        The summands.

    Returns
    -------
    double word
        Off by at most 3 u**2 if x and y have the same sign. Otherwise the relative error may be 1.

    References
    ----------
    SloppyDWPlusDW: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 5.
    """
    xh, xl, yh, yl = four_words(x, y)
    s, e = two_sum(ar, xh, yh)
    v = ar.add(xl, yl)
    return fast_two_sum(ar, s, ar.add(e, v))


@straight_line
def accurate_dw_plus_dw(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x + y``. 20 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, y : double word
        The summands.

    Returns
    -------
    double word
        Off by at most 3 u**2 / (1 - 4 u), for p >= 3.

    References
    ----------
    AccurateDWPlusDW: Joldes, Muller, Popescu, ACM TOMS 44(2), 2017, Algorithm 6, Theorem 3.1; Muller,
    Rideau, ACM TOMS 48(1), 2022.
    """
    xh, xl, yh, yl = four_words(x, y)
    s, e = two_sum(ar, xh, yh)
    t, f = two_sum(ar, xl, yl)
    v, w = fast_two_sum(ar, s, ar.add(e, t))
    return fast_two_sum(ar, v, ar.add(f, w))


@straight_line
def add222(ar: Arithmetic, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """Return ``x + y`` by the network madd, more precise than `accurate_dw_plus_dw`. 20 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, y : double word
        The summands.

    Returns
    -------
    double word
        No error above 1.5 u**2 is known; that is measured, not proved.

    References
    ----------
    The network madd of Zhang, Aiken, floating-point accumulation networks, 2025.
    """
    xh, xl, yh, yl = four_words(x, y)
    s, e = two_sum(ar, xh, yh)
    t, f = two_sum(ar, xl, yl)
    s, t = fast_two_sum(ar, s, t)
    e = ar.add(e, f)
    return fast_two_sum(ar, s, ar.add(e, t))
