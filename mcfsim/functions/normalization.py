"""Layer normalisation and RMS normalisation of a tuple of values, and their gradients.

Each follows the formula of its paper in the order in which libraries compute it: the reciprocal of the
deviation first, then a product with it. The number of values n and ``epsilon`` are real scalars.
"""

from __future__ import annotations

from typing import Any

from mcfsim.formats import Format
from mcfsim.functions.reductions import Terms, check_tuples, in_accumulator, of_values, recursive_dot
from mcfsim.functions.statistics import mean
from mcfsim.protocol import Arithmetic, Value, straight_line

_Wide = Format | str | None


def _scaled(ar: Arithmetic, x: Terms, epsilon: Any, accumulator: _Wide) -> tuple[Value, Terms]:
    """Return the reciprocal root of the mean square plus epsilon, and x times it."""
    wide, terms = in_accumulator(ar, accumulator, x)
    square = wide.div(recursive_dot(wide, terms, terms), float(len(x)))
    scale = of_values(ar, wide, wide.div(1.0, wide.sqrt(wide.add(square, epsilon))))
    return scale, tuple(ar.mul(value, scale) for value in x)


def _centered(ar: Arithmetic, x: Terms, accumulator: _Wide) -> Terms:
    center = mean(ar, x, accumulator=accumulator)
    return tuple(ar.sub(value, center) for value in x)


@straight_line
def layer_norm(
    ar: Arithmetic, x: Terms, gain: Terms, bias: Terms, *, epsilon: Any = 1e-5, accumulator: _Wide = None
) -> Terms:
    """Return ``gain (x - mean) / sqrt(variance + epsilon) + bias``, with the variance divided by n.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, gain, bias : tuples of n values
    epsilon : float or Fraction, optional
        A real scalar above zero. Where adding it to zero gives zero, as in float8_e4m3fn, equal values
        become NaN.
    accumulator : Format or str, optional
        Format of mean, variance and the reciprocal deviation, see `reductions`.

    Returns
    -------
    tuple of n values
        The error of the mean, up to n u times the mean of |x|, enters every difference. So values that lie
        far from zero and close together are normalised without a correct digit.

    References
    ----------
    Ba, Kiros, Hinton, Layer normalization, arXiv:1607.06450, 2016.
    """
    check_tuples(x=x, gain=gain, bias=bias)
    _, normal = _scaled(ar, _centered(ar, x, accumulator), epsilon, accumulator)
    return tuple(
        ar.add(ar.mul(value, factor), shift) for value, factor, shift in zip(normal, gain, bias, strict=True)
    )


@straight_line
def layer_norm_gradient(
    ar: Arithmetic,
    x: Terms,
    gain: Terms,
    upstream: Terms,
    *,
    epsilon: Any = 1e-5,
    accumulator: _Wide = None,
) -> Terms:
    """Return the gradient of ``sum(upstream layer_norm(x, gain, bias))`` with respect to x.

    With ``g = upstream gain`` and z the normalised x it is ``(g - mean(g) - z mean(g z))`` over the
    deviation.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, gain, upstream : tuples of n values
    epsilon : float or Fraction, optional
        That of `layer_norm`.
    accumulator : Format or str, optional
        Format of means, variance and the reciprocal deviation, see `reductions`.

    Returns
    -------
    tuple of n values
        As for `layer_norm`; in addition, the differences cancel where g is nearly a linear function of z, and
        the gradient is then small beside its error.

    References
    ----------
    The chain rule, on the formula of Ba, Kiros, Hinton, 2016.
    """
    check_tuples(x=x, gain=gain, upstream=upstream)
    scale, normal = _scaled(ar, _centered(ar, x, accumulator), epsilon, accumulator)
    given = _centered(ar, tuple(ar.mul(a, b) for a, b in zip(upstream, gain, strict=True)), accumulator)
    return _projected(ar, given, normal, scale, accumulator)


def _projected(ar: Arithmetic, given: Terms, normal: Terms, scale: Value, accumulator: _Wide) -> Terms:
    """Return ``scale (given - normal mean(given normal))``."""
    wide, left, right = in_accumulator(ar, accumulator, given, normal)
    share = of_values(ar, wide, wide.div(recursive_dot(wide, left, right), float(len(normal))))
    return tuple(
        ar.mul(scale, ar.sub(value, ar.mul(unit, share))) for value, unit in zip(given, normal, strict=True)
    )


@straight_line
def rms_norm(
    ar: Arithmetic, x: Terms, gain: Terms, *, epsilon: Any = 1e-5, accumulator: _Wide = None
) -> Terms:
    """Return ``gain x / sqrt(mean(x**2) + epsilon)``.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, gain : tuples of n values
        Squares that overflow make all results zero in a format with infinities.
    epsilon : float or Fraction, optional
        A real scalar above zero. Where adding it to zero gives zero, as in float8_e4m3fn, zeros become NaN.
    accumulator : Format or str, optional
        Format of the mean square and its reciprocal root, see `reductions`.

    Returns
    -------
    tuple of n values
        Each relative error is at most ``(n / 2 + 5) u``, to first order, if the sum of squares neither
        overflows nor underflows: nothing cancels.

    References
    ----------
    Zhang, Sennrich, Root mean square layer normalization, NeurIPS 2019. The bound is that of its steps.
    """
    check_tuples(x=x, gain=gain)
    _, normal = _scaled(ar, x, epsilon, accumulator)
    return tuple(ar.mul(value, factor) for value, factor in zip(normal, gain, strict=True))


@straight_line
def rms_norm_gradient(
    ar: Arithmetic,
    x: Terms,
    gain: Terms,
    upstream: Terms,
    *,
    epsilon: Any = 1e-5,
    accumulator: _Wide = None,
) -> Terms:
    """Return the gradient of ``sum(upstream rms_norm(x, gain))`` with respect to x.

    With ``g = upstream gain`` and z the normalised x it is ``(g - z mean(g z))`` over the root mean square.

    Parameters
    ----------
    ar : Arithmetic
        Rounds to nearest.
    x, gain, upstream : tuples of n values
    epsilon : float or Fraction, optional
        That of `rms_norm`.
    accumulator : Format or str, optional
        Format of means and the reciprocal root, see `reductions`.

    Returns
    -------
    tuple of n values
        The difference cancels where g is nearly a multiple of x; elsewhere the error is a few n u.

    References
    ----------
    The chain rule, on the formula of Zhang, Sennrich, 2019.
    """
    check_tuples(x=x, gain=gain, upstream=upstream)
    scale, normal = _scaled(ar, x, epsilon, accumulator)
    given = tuple(ar.mul(a, b) for a, b in zip(upstream, gain, strict=True))
    return _projected(ar, given, normal, scale, accumulator)
