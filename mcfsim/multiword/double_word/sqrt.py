"""The square root of a double word."""

from __future__ import annotations

from mcfsim.eft import fast_two_sum
from mcfsim.multiword.double_word.words import DoubleWord, words
from mcfsim.protocol import Arithmetic, straight_line


@straight_line
def sqrt_dw(ar: Arithmetic, x: DoubleWord) -> DoubleWord:
    """Return the square root of ``x``. 8 operations.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest and has a fused multiply-add.
    x : double word
        Positive. The published algorithm tests for zero first; a straight line cannot, and divides 0 by 0:
        of zero both words are NaN, and an arithmetic without NaN raises ZeroDivisionError.

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
