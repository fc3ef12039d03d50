"""Softmax, log-sum-exp and the cross entropy: from scores to probabilities, shifted by the maximum or not.

Scores are a tuple x of n values; m is the largest, ``y = log(sum(exp(x)))``, and u the unit roundoff. The
bounds are to first order. They assume that exp and log round correctly to nearest, without overflow, and
without underflow of results.
"""

from __future__ import annotations

from mcfsim.formats import Format
from mcfsim.functions.reductions import Terms, check_tuples, in_accumulator, of_values, recursive_dot
from mcfsim.multiword.summation import recursive_sum
from mcfsim.protocol import Arithmetic, Value, straight_line


def largest(ar: Arithmetic, x: Terms) -> Value:
    """Return the greatest of several values."""
    found, *rest = x
    for value in rest:
        found = ar.maximum(found, value)
    return found


def _shifted(ar: Arithmetic, x: Terms) -> tuple[Value, Terms, Terms]:
    """Return the maximum, the differences from it, and their exponentials."""
    check_tuples(x=x)
    top = largest(ar, x)
    below = tuple(ar.sub(value, top) for value in x)
    return top, below, tuple(ar.exp(value) for value in below)


@straight_line
def naive_softmax(ar: Arithmetic, x: Terms) -> Terms:
    """Return ``exp(x[i]) / sum(exp(x))`` for every i, computed as written.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        One beyond about ``log(max)`` overflows, which gives NaN; if all are below the logarithm of half the
        smallest number, the sum is zero. In float16 the ends are 11.1 and -17.3.

    Returns
    -------
    tuple of n values
        Each relative error is at most (n + 2) u, if no exponential overflows or is subnormal: in float16,
        between -9.7 and 11.1.

    References
    ----------
    Blanchard, D. Higham, N. Higham, Accurately computing the log-sum-exp and softmax functions, IMA J. Numer.
    Anal. 41(4), 2021.
    """
    check_tuples(x=x)
    parts = tuple(ar.exp(value) for value in x)
    total = recursive_sum(ar, parts)
    return tuple(ar.div(part, total) for part in parts)


@straight_line
def softmax(ar: Arithmetic, x: Terms, *, accumulator: Format | str | None = None) -> Terms:
    """Return ``exp(x[i] - m) / sum(exp(x - m))`` for every i.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        Finite, or -infinity for some, which get 0, as if they were absent.
    accumulator : Format or str, optional
        Format of the sum of exponentials, see `reductions`.

    Returns
    -------
    tuple of n values
        Each relative error is at most ``(n + 2 + 2 (m - min x)) u``. Nothing overflows unless ``m - min x``
        does. Wide scores make small results inaccurate: the rounding error of a difference is a relative
        error of its exponential. The results need not add up to 1 in the last digits.

    References
    ----------
    Blanchard, D. Higham, N. Higham, Accurately computing the log-sum-exp and softmax functions, IMA J. Numer.
    Anal. 41(4), 2021.
    """
    _, _, parts = _shifted(ar, x)
    wide, terms = in_accumulator(ar, accumulator, parts)
    total = of_values(ar, wide, recursive_sum(wide, terms))
    return tuple(ar.div(part, total) for part in parts)


@straight_line
def softmax_gradient(
    ar: Arithmetic, probabilities: Terms, upstream: Terms, *, accumulator: Format | str | None = None
) -> Terms:
    """Return ``p[i] (g[i] - sum(p g))`` for every i: the gradient of ``sum(g softmax(x))`` with respect to x.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    probabilities, upstream : tuples of n values
        The softmax p of the scores, and g.
    accumulator : Format or str, optional
        Format of the sum of products, see `reductions`.

    Returns
    -------
    tuple of n values
        The difference cancels where g[i] is near the mean of g weighted by p, which is itself off by up to n
        u times the mean of the magnitudes. Elsewhere the error is a few u.

    References
    ----------
    The chain rule, on the definition of softmax.
    """
    check_tuples(probabilities=probabilities, upstream=upstream)
    wide, weights, given = in_accumulator(ar, accumulator, probabilities, upstream)
    shared = of_values(ar, wide, recursive_dot(wide, weights, given))
    return tuple(ar.mul(p, ar.sub(g, shared)) for p, g in zip(probabilities, upstream, strict=True))


@straight_line
def naive_log_sum_exp(ar: Arithmetic, x: Terms) -> Value:
    """Return ``log(sum(exp(x)))``, computed as written.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        One beyond about ``log(max)`` overflows, which gives infinity; if all are below the logarithm of half
        the smallest number, the result is minus infinity.

    Returns
    -------
    value
        Off by at most ``(|y| + n) u``, if no exponential overflows or is subnormal. Where y is near zero it
        has no relative accuracy.

    References
    ----------
    Blanchard, D. Higham, N. Higham, IMA J. Numer. Anal. 41(4), 2021.
    """
    check_tuples(x=x)
    return ar.log(recursive_sum(ar, tuple(ar.exp(value) for value in x)))


@straight_line
def log_sum_exp(ar: Arithmetic, x: Terms, *, accumulator: Format | str | None = None) -> Value:
    """Return ``m + log(sum(exp(x - m)))``.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        Finite.
    accumulator : Format or str, optional
        Format of the sum of exponentials, its logarithm and the last sum, see `reductions`.

    Returns
    -------
    value
        Off by at most ``(|y| + |y + n - min x|) u``. Nothing overflows unless ``m - min x`` does. Where m and
        the logarithm cancel, near y = 0, it has no relative accuracy.

    References
    ----------
    Blanchard, D. Higham, N. Higham, IMA J. Numer. Anal. 41(4), 2021.
    """
    top, _, parts = _shifted(ar, x)
    wide, terms, (top,) = in_accumulator(ar, accumulator, parts, (top,))
    return of_values(ar, wide, wide.add(top, wide.log(recursive_sum(wide, terms))))


@straight_line
def log_softmax(ar: Arithmetic, x: Terms, *, accumulator: Format | str | None = None) -> Terms:
    """Return ``x[i] - m - log(sum(exp(x - m)))`` for every i.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    x : tuple of n values
        Finite.
    accumulator : Format or str, optional
        Format of the sum of exponentials and its logarithm, see `reductions`.

    Returns
    -------
    tuple of n values
        Result z is off by at most ``(2 |z| + n + m - min x) u``. One near zero, of a score far above all
        others, has no relative accuracy: the sum rounds to 1.

    References
    ----------
    The bound adds up the errors of the steps, as Blanchard, D. Higham, N. Higham, 2021, do for log-sum-exp.
    """
    _, below, parts = _shifted(ar, x)
    wide, terms = in_accumulator(ar, accumulator, parts)
    shift = of_values(ar, wide, wide.log(recursive_sum(wide, terms)))
    return tuple(ar.sub(value, shift) for value in below)


@straight_line
def cross_entropy(
    ar: Arithmetic, logits: Terms, targets: Terms, *, accumulator: Format | str | None = None
) -> Value:
    """Return ``-sum(targets[i] log_softmax(logits)[i])``.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    logits, targets : tuples of n values
        Finite scores (of -infinity the result is NaN, for a target of 0 too), and probabilities: one of them
        1 and the others 0, or any that add up to 1.
    accumulator : Format or str, optional
        Format of both sums and the logarithm, see `reductions`.

    Returns
    -------
    value
        As accurate as `log_softmax`. A loss near zero has no relative accuracy.

    References
    ----------
    Goodfellow, Bengio, Courville, Deep Learning, 2016, section 6.2.
    """
    check_tuples(logits=logits, targets=targets)
    found = log_softmax(ar, logits, accumulator=accumulator)
    wide, found, targets = in_accumulator(ar, accumulator, found, targets)
    return of_values(ar, wide, wide.neg(recursive_dot(wide, targets, found)))


@straight_line
def cross_entropy_gradient(
    ar: Arithmetic, logits: Terms, targets: Terms, *, accumulator: Format | str | None = None
) -> Terms:
    """Return ``softmax(logits)[i] - targets[i]`` for every i: the gradient with respect to the scores.

    Parameters
    ----------
    ar : Arithmetic
        Any arithmetic.
    logits, targets : tuples of n values
        As for `cross_entropy`; the targets add up to 1.
    accumulator : Format or str, optional
        Format of the sum of exponentials, see `reductions`.

    Returns
    -------
    tuple of n values
        Each is off by at most u times itself and the error of the probability. Where a probability is near
        its target, no digit may be right: it has the absolute accuracy of numbers near 1.

    References
    ----------
    Goodfellow, Bengio, Courville, Deep Learning, 2016, section 6.2.
    """
    check_tuples(logits=logits, targets=targets)
    found = softmax(ar, logits, accumulator=accumulator)
    return tuple(ar.sub(value, target) for value, target in zip(found, targets, strict=True))
