"""Means, variances and exponential moving averages of a tuple of values.

Samples are a tuple x of n values; s is their exact mean, V their exact variance. Counts are real scalars. For
u and gamma see `reductions`.
"""

from __future__ import annotations

from typing import Any

from mcfsim.checks import check_int
from mcfsim.formats import Format
from mcfsim.functions.reductions import Terms, check_tuples, in_accumulator, of_values
from mcfsim.multiword import expansion
from mcfsim.multiword.summation import recursive_sum
from mcfsim.protocol import Arithmetic, Value, straight_line


@straight_line
def mean(ar: Arithmetic, x: Terms, *, accumulator: Format | str | None = None) -> Value:
    """Return the sum of the terms, added one after another, divided by their number. n operations.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
    accumulator : Format or str, optional
        Format of sum and quotient, see `reductions`.

    Returns
    -------
    value
        Off by at most n u times the mean of the magnitudes, to first order. From about 1 / u terms of one
        sign on, the sum may stop growing.

    References
    ----------
    The sum: Jeannerod, Rump, SIAM J. Matrix Anal. Appl. 34(2), 2013.
    """
    n = check_tuples(x=x)
    wide, terms = in_accumulator(ar, accumulator, x)
    return of_values(ar, wide, wide.div(recursive_sum(wide, terms), float(n)))


def _degrees(x: Terms, correction: int) -> float:
    n = check_tuples(x=x)
    check_int("correction", correction, 0)
    if n <= correction:
        raise ValueError(f"x has {n} values: a variance with correction = {correction} needs more")
    return float(n - correction)


@straight_line
def variance_one_pass(ar: Arithmetic, x: Terms, *, correction: int = 1) -> Value:
    """Return the variance from the sums of x and of x**2: the textbook formula.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
    correction : int, optional
        The sum of squares is divided by n - correction.

    Returns
    -------
    value
        Two sums that are equal up to V are subtracted. Where ``s**2`` is much larger than V, no digit is
        correct, and the result may be negative.

    References
    ----------
    Chan, Golub, LeVeque, Algorithms for computing the sample variance, American Statistician 37(3), 1983.
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 1.9.
    """
    degrees = _degrees(x, correction)
    squares = recursive_sum(ar, tuple(ar.mul(value, value) for value in x))
    total = recursive_sum(ar, x)
    return ar.div(ar.sub(squares, ar.div(ar.mul(total, total), float(len(x)))), degrees)


@straight_line
def variance_two_pass(ar: Arithmetic, x: Terms, *, correction: int = 1) -> Value:
    """Return the variance from the squares of the differences from the mean, which comes first.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
    correction : int, optional
        The sum of squares is divided by n - correction.

    Returns
    -------
    value
        Off by at most (n + 3) u V, to first order. The next term is about n times the square of the mean's
        error: it matters where ``n u |s|`` is not small beside the deviations, as it soon is in bfloat16.

    References
    ----------
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 1.9, Problem 1.10. Chan,
    Golub, LeVeque, 1983.
    """
    degrees = _degrees(x, correction)
    center = mean(ar, x)
    apart = tuple(ar.sub(value, center) for value in x)
    return ar.div(recursive_sum(ar, tuple(ar.mul(value, value) for value in apart)), degrees)


@straight_line
def variance_welford(ar: Arithmetic, x: Terms, *, correction: int = 1) -> Value:
    """Return the variance from a running mean and a running sum of squares, which each term updates.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x : tuple of n values
    correction : int, optional
        The sum of squares is divided by n - correction.

    Returns
    -------
    value
        Off by a small multiple of n u k V, to first order, with ``k = sqrt(1 + n s**2 / ((n - 1) V))`` for
        the sample variance V: worse than two passes and better than one. It needs no second pass.

    References
    ----------
    Welford, Note on a method for calculating corrected sums of squares and products, Technometrics 4(3),
    1962. Knuth, The Art of Computer Programming 2, 4.2.2, (15) and (16). Chan, Golub, LeVeque, 1983.
    """
    degrees = _degrees(x, correction)
    center, squares = x[0], ar.mul(ar.abs(x[0]), 0.0)
    for count, value in enumerate(x[1:], 2):
        before = ar.sub(value, center)
        center = ar.add(center, ar.div(before, float(count)))
        squares = ar.add(squares, ar.mul(before, ar.sub(value, center)))
    return ar.div(squares, degrees)


@straight_line
def ema(ar: Arithmetic, x: Terms, *, beta: Any = 0.999) -> Value:
    """Return the exponential moving average of values, from zero: ``m = beta m + (1 - beta) x`` for each.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of values
        The oldest first.
    beta : float or Fraction, optional
        A real scalar, as is ``1 - beta``, which is exact if beta is a float from 0.5 to 1.

    Returns
    -------
    value
        With rounding to nearest, m stays as it is where ``(1 - beta) |m|`` and ``(1 - beta) |x|`` are below a
        quarter of its ulp. So in bfloat16, with 0.999, an average of 1 stays for every x from -1.9 to 1.9,
        and one that should grow stops.

    References
    ----------
    Kingma, Ba, Adam: a method for stochastic optimization, ICLR 2015, Algorithm 1.
    """
    check_tuples(x=x)
    average = ar.mul(x[0], 1 - beta)
    for value in x[1:]:
        average = ar.add(ar.mul(average, beta), ar.mul(value, 1 - beta))
    return average


@straight_line
def debiased_ema(ar: Arithmetic, x: Terms, *, beta: float = 0.999) -> Value:
    """Return `ema` divided by ``1 - beta**n``, the sum of its n weights.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        The oldest first.
    beta : float, optional
        A real scalar; ``1 - beta**n`` is a Python float, as the bias corrections of optimizers are.

    Returns
    -------
    value
        As accurate as `ema`: the division adds one rounding. With one term it is that term, within 2 u.

    References
    ----------
    Kingma, Ba, Adam: a method for stochastic optimization, ICLR 2015, section 3.
    """
    return ar.div(ema(ar, x, beta=beta), 1 - beta ** len(x))


@straight_line
def ema_in_components(ar: Arithmetic, x: Terms, *, beta: Any = 0.999, k: int = 2) -> Terms:
    """Return `ema` as an expansion of k components, with beta as another expansion.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest; for k > 1 it has a fused multiply-add.
    x : tuple of values
        The oldest first.
    beta : float or Fraction, optional
        Split into k components by `mcfsim.expand`. With k = 1 it is rounded: to 1.0 for 0.999 in bfloat16,
        and then nothing decays.
    k : int, optional
        Number of components, at least 1.

    Returns
    -------
    tuple of k values
        The average is their sum. With k = 2 each decay has a relative error below 5 u**2 and each addition
        one of 2 u**2, so that the average moves where `ema` stands still. The products with ``1 - beta``, a
        real scalar, are rounded to one component. For other k see `mcfsim.expansion`.

    References
    ----------
    Yu et al., Collage: light-weight low-precision strategy for LLM training, ICML 2024.
    """
    check_tuples(x=x)
    parts = expansion.expand(ar, beta, k)
    first = ar.mul(x[0], 1 - beta)
    average: Terms = (first, *(ar.mul(first, 0.0) for _ in range(k - 1)))
    for value in x[1:]:
        decayed = expansion.mul(ar, parts, average)
        average = expansion.grow(ar, decayed, ar.mul(value, 1 - beta))
    return average
